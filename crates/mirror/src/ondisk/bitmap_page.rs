//! Bitmap page, in a single copy: if it cannot be read, all its blocks count as different.

use crate::id::MirrorId;
use crate::limits::{BITS_PER_PAGE, PAGE_WRITES_MAX};
use crate::ondisk::{FormatError, Page, begin, open, put, seal};

pub(super) const MAGIC: &[u8; 8] = b"FSMIRBM\n";
const WRITES_AT: usize = 40;
const WORDS_AT: usize = 48;

/// Words per page.
pub const WORDS: usize = (BITS_PER_PAGE / 64) as usize;

/// Contents of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageContents {
    /// How often the page was written since its log was created. The sum over all pages only grows,
    /// so the loss of a page write that the superblock has recorded is detected.
    pub writes: u64,
    /// Bit `b` of the bitmap is bit `b % 64` of word `b / 64 % 504` of page `b / 32256`.
    pub words: [u64; WORDS],
}

/// Encodes page `number` of the log `log`.
pub fn encode(log: MirrorId, number: u64, contents: &PageContents) -> Page {
    let mut page = begin(MAGIC);
    put(&mut page, 16, &log.0);
    put(&mut page, 32, &number.to_le_bytes());
    put(&mut page, WRITES_AT, &contents.writes.to_le_bytes());
    for (place, word) in page[WORDS_AT..].chunks_exact_mut(8).zip(&contents.words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    seal(&mut page);
    page
}

/// Decodes page `number` of the log `log`.
///
/// # Errors
/// See [`FormatError`]; [`FormatError::Foreign`] for a page of another log or position.
pub fn decode(page: &Page, log: MirrorId, number: u64) -> Result<PageContents, FormatError> {
    let fields = open(page, MAGIC)?;
    if fields.uuid(16) != log || fields.u64(32) != number {
        return Err(FormatError::Foreign);
    }
    let writes = fields.u64(WRITES_AT);
    if writes > PAGE_WRITES_MAX {
        return Err(FormatError::Field("writes"));
    }
    let words = std::array::from_fn(|index| fields.u64(WORDS_AT + 8 * index));
    Ok(PageContents { writes, words })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn page_round_trips(
            words in prop::collection::vec(any::<u64>(), WORDS),
            writes in 0..=PAGE_WRITES_MAX,
            number: u64,
        ) {
            let contents = PageContents { writes, words: words.try_into().expect("as many") };
            let (log, other) = (MirrorId([3; 16]), MirrorId([4; 16]));
            let page = encode(log, number, &contents);
            prop_assert_eq!(decode(&page, log, number), Ok(contents));
            prop_assert_eq!(decode(&page, other, number), Err(FormatError::Foreign));
            prop_assert_eq!(decode(&page, log, number ^ 1), Err(FormatError::Foreign));
        }

        #[test]
        fn changed_byte_is_detected(at in 0usize..4096, change in 1u8..) {
            let contents = PageContents { writes: 7, words: [5; WORDS] };
            let mut page = encode(MirrorId([3; 16]), 9, &contents);
            page[at] ^= change;
            prop_assert!(decode(&page, MirrorId([3; 16]), 9).is_err());
        }
    }

    #[test]
    fn excessive_write_count_is_refused() {
        let forged = PageContents { writes: PAGE_WRITES_MAX + 1, words: [0; WORDS] };
        let page = encode(MirrorId([3; 16]), 9, &forged);
        assert_eq!(decode(&page, MirrorId([3; 16]), 9), Err(FormatError::Field("writes")));
    }
}

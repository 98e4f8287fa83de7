//! A page of the bitmap. There is one copy of each: a page that cannot be read says nothing, and
//! then all that it stands for counts as different.

use crate::format::{FormatError, Page, begin, open, put, seal};
use crate::id::Uuid;
use crate::limits::BITS_PER_PAGE;

pub(super) const MAGIC: &[u8; 8] = b"FSMIRBM\n";
const WORDS_AT: usize = 48;

/// Words of a page.
pub const WORDS: usize = (BITS_PER_PAGE / 64) as usize;

/// Writes page `number` of the log `log`: bit `b` of the bitmap is bit `b % 64` of word
/// `b / 64 % 504` of page `b / 32256`.
pub fn encode(log: Uuid, number: u64, words: &[u64; WORDS]) -> Page {
    let mut page = begin(MAGIC);
    put(&mut page, 16, &log.0);
    put(&mut page, 32, &number.to_le_bytes());
    for (place, word) in page[WORDS_AT..].chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    seal(&mut page);
    page
}

/// Reads page `number` of the log `log`.
///
/// # Errors
/// See [`FormatError`]; [`FormatError::Foreign`] for a page of another log or place.
pub fn decode(page: &Page, log: Uuid, number: u64) -> Result<[u64; WORDS], FormatError> {
    let fields = open(page, MAGIC)?;
    if fields.uuid(16) != log || fields.u64(32) != number {
        return Err(FormatError::Foreign);
    }
    Ok(std::array::from_fn(|index| fields.u64(WORDS_AT + 8 * index)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(words in prop::collection::vec(any::<u64>(), WORDS), number: u64) {
            let words: [u64; WORDS] = words.try_into().expect("as many");
            let (log, other) = (Uuid([3; 16]), Uuid([4; 16]));
            let page = encode(log, number, &words);
            prop_assert_eq!(decode(&page, log, number), Ok(words));
            prop_assert_eq!(decode(&page, other, number), Err(FormatError::Foreign));
            prop_assert_eq!(decode(&page, log, number ^ 1), Err(FormatError::Foreign));
        }

        #[test]
        fn a_changed_byte_is_noticed(at in 0usize..4096, change in 1u8..) {
            let mut page = encode(Uuid([3; 16]), 9, &[5; WORDS]);
            page[at] ^= change;
            prop_assert!(decode(&page, Uuid([3; 16]), 9).is_err());
        }
    }
}

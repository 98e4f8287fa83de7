//! On-disk format of replicas, as pure functions of bytes. Byte maps: `docs/mirror-format.md`.
//!
//! Guarantees: encoding followed by decoding is the identity; torn, changed or foreign bytes are
//! refused with a reason and never cause a panic; every length and number is checked before use,
//! because the bytes may come from anywhere.

pub mod activity_log;
pub mod bitmap_page;
pub(crate) mod counter;
pub(crate) mod device_prefix;
pub mod layout;
pub mod locate;
pub mod log_header;
pub mod member;
pub(crate) mod new_space;
pub mod remnant;
pub mod superblock;
pub(crate) mod superblock_slots;

use crate::id::{Generation, MirrorId};
use crate::limits::PAGE_BYTES;

/// Version of all structures of this format.
pub const VERSION: u16 = 2;

/// A page as it is on disk.
pub type Page = [u8; PAGE_BYTES];

/// Offset of a page's checksum: its last four bytes, covering all bytes before them.
const CRC_AT: usize = PAGE_BYTES - 4;

/// Why bytes cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Foreign data, or none.
    #[error("there is no such structure")]
    Absent,
    /// Written by a later version.
    #[error("it has format version {0}; this release supports version {VERSION}")]
    Version(u16),
    /// Torn or changed.
    #[error("its checksum is wrong: it is torn or damaged")]
    Checksum,
    /// Valid checksum, invalid content.
    #[error("its field `{0}` is invalid")]
    Field(&'static str),
    /// The two slots of a superblock differ in a way that no interrupted update explains.
    #[error(
        "its two slots contradict each other (updates {first} and {second}): a write was lost, or a \
         part of the device is from another time"
    )]
    Contradiction {
        /// Sequence number of slot 0.
        first: u64,
        /// Sequence number of slot 1.
        second: u64,
    },
    /// Belongs to another log, or to another position of this one.
    #[error("it belongs elsewhere")]
    Foreign,
}

#[derive(Clone, Copy)]
struct Fields<'a>(&'a Page);

impl Fields<'_> {
    fn bytes<const N: usize>(self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.0[at..at + N]);
        bytes
    }

    fn u16(self, at: usize) -> u16 {
        u16::from_le_bytes(self.bytes(at))
    }

    fn u32(self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    fn u64(self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes(at))
    }

    fn uuid(self, at: usize) -> MirrorId {
        MirrorId(self.bytes(at))
    }

    fn generation(self, at: usize) -> Generation {
        Generation(self.u64(at))
    }
}

/// True if the beginning of a device is a write-intent log, or was one and has not been used for
/// anything else since. That includes logs that were removed, whose headers are zero, and logs
/// whose creation was interrupted. False for zeroes.
///
/// Another user of the device leaves no two header pages as zeroes or log headers.
pub fn is_log(beginning: &[u8]) -> bool {
    let begins = |page: &[u8], magic: &[u8; 8]| page.starts_with(magic);
    let is_zero = |page: &[u8]| page.iter().all(|byte| *byte == 0);
    let (headers, rest) = beginning.split_at(beginning.len().min(2 * PAGE_BYTES));
    let mut headers = headers.chunks(PAGE_BYTES);
    if !headers.clone().all(|page| begins(page, log_header::MAGIC) || is_zero(page)) {
        return false;
    }
    if headers.any(|page| begins(page, log_header::MAGIC)) {
        return true;
    }
    // A record spans several pages where many regions may be active.
    let (mut in_record, mut any) = (false, false);
    rest.chunks(PAGE_BYTES).all(|page| {
        let record = begins(page, activity_log::MAGIC);
        let begun = record || begins(page, bitmap_page::MAGIC);
        in_record = record || (in_record && !begun && !is_zero(page));
        any |= begun;
        begun || in_record || is_zero(page)
    }) && any
}

/// Checks common to all pages: magic, version, checksum. The version comes before the checksum
/// because another version may store its checksum elsewhere.
fn open<'a>(page: &'a Page, magic: &[u8; 8]) -> Result<Fields<'a>, FormatError> {
    let fields = Fields(page);
    if fields.bytes(0) != *magic {
        return Err(FormatError::Absent);
    }
    if fields.u16(8) != VERSION {
        return Err(FormatError::Version(fields.u16(8)));
    }
    if fields.u32(CRC_AT) != crc_fast::crc32_iscsi(&page[..CRC_AT]) {
        return Err(FormatError::Checksum);
    }
    Ok(fields)
}

fn begin(magic: &[u8; 8]) -> Page {
    let mut page = [0; PAGE_BYTES];
    put(&mut page, 0, magic);
    put(&mut page, 8, &VERSION.to_le_bytes());
    page
}

fn put(page: &mut [u8], at: usize, bytes: &[u8]) {
    page[at..at + bytes.len()].copy_from_slice(bytes);
}

fn seal(page: &mut Page) {
    let crc = crc_fast::crc32_iscsi(&page[..CRC_AT]);
    put(page, CRC_AT, &crc.to_le_bytes());
}

/// The newer of two alternately written slots, and its index. If one is torn, the other is used.
///
/// # Errors
/// When neither is valid: the more specific of the two errors.
pub fn newest<T>(
    slots: [Result<T, FormatError>; 2],
    sequence: impl Fn(&T) -> u64,
) -> Result<(usize, T), FormatError> {
    match slots {
        [Ok(first), Ok(second)] if sequence(&second) > sequence(&first) => Ok((1, second)),
        [Ok(first), _] => Ok((0, first)),
        [Err(_), Ok(second)] => Ok((1, second)),
        [Err(FormatError::Absent), Err(error)] | [Err(error), Err(_)] => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beginning of a device whose pages start with these bytes.
    fn device(pages: &[&[u8]]) -> Vec<u8> {
        let mut all = vec![0; pages.len() * PAGE_BYTES];
        for (page, first) in all.chunks_mut(PAGE_BYTES).zip(pages) {
            page[..first.len()].copy_from_slice(first);
        }
        all
    }

    #[test]
    fn log_is_recognized_until_device_is_reused() {
        const NO: &[u8] = b"";
        const OTHER: &[u8] = b"?";
        const LG: &[u8] = log_header::MAGIC;
        const HT: &[u8] = activity_log::MAGIC;
        const BM: &[u8] = bitmap_page::MAGIC;
        for log in [
            &[LG, LG, HT, NO, HT, NO, BM, BM][..],
            // One header torn or never written, or the rest damaged.
            &[LG, NO, HT, NO, HT, NO, BM],
            &[NO, LG, OTHER, OTHER, OTHER, OTHER, OTHER],
            // Removed; interrupted creation; records longer than a page.
            &[NO, NO, HT, NO, HT, NO, BM, BM],
            &[NO, NO, NO, NO, NO, NO, BM, NO],
            &[NO, NO, HT, OTHER, HT, NO, BM, BM],
        ] {
            assert!(is_log(&device(log)), "{log:?}");
        }
        for other in [
            &[NO, NO, NO, NO, NO][..],
            // Another user has overwritten parts of the device.
            &[OTHER, LG, HT, NO, HT, NO, BM, BM],
            &[LG, OTHER, HT, NO, HT, NO, BM, BM],
            &[NO, NO, HT, NO, OTHER, NO, BM, BM],
            &[NO, NO, HT, NO, HT, NO, BM, OTHER],
            &[NO, NO, OTHER],
        ] {
            assert!(!is_log(&device(other)), "{other:?}");
        }
        assert!(!is_log(&[]) && !is_log(OTHER) && is_log(LG));
    }
}

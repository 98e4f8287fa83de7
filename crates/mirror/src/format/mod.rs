//! What replicas write to disk, as pure functions of bytes. `docs/mirror-format.md` has the byte
//! maps.
//!
//! Promises: what one of these encodes it decodes again; bytes that were torn, changed or belong
//! to something else are refused with a reason and never panic; every length and number is checked
//! before it is used, for bytes may come from anybody.

pub mod bitmap_page;
pub mod hot_record;
pub mod log_header;
pub mod superblock;

use crate::id::{Generation, Uuid};
use crate::limits::PAGE_BYTES;

/// Version of every structure here.
pub const VERSION: u16 = 1;

/// A page as it is on disk.
pub type Page = [u8; PAGE_BYTES];

/// Where a page keeps its checksum: in its last four bytes, over all before them.
const CRC_AT: usize = PAGE_BYTES - 4;

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Nothing of ours, or nothing at all.
    #[error("no such structure is here")]
    Absent,
    /// Written by a later version.
    #[error("it has format version {0}, this program knows version {VERSION}")]
    Version(u16),
    /// Torn or changed.
    #[error("its checksum is wrong: it is torn or damaged")]
    Checksum,
    /// The checksum is right and the content makes no sense.
    #[error("its field `{0}` is not possible")]
    Field(&'static str),
    /// It belongs to another log, or to another place of this one.
    #[error("it belongs elsewhere")]
    Foreign,
}

/// Fields of fixed places in a page.
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

    fn uuid(self, at: usize) -> Uuid {
        Uuid(self.bytes(at))
    }

    fn generation(self, at: usize) -> Generation {
        Generation(self.u64(at))
    }
}

/// True of the beginning of a device that is a write-intent log or was one, whatever has become of it,
/// and nothing else since: also of one that was forgotten, whose headers are zero, or whose making was
/// not finished. False of what is zero.
///
/// What was written over a log leaves parts of it, but none of those that others use has zeroes or a
/// header of ours where the headers are.
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
    // A record is longer than a page where many regions may be hot.
    let (mut in_record, mut any) = (false, false);
    rest.chunks(PAGE_BYTES).all(|page| {
        let record = begins(page, hot_record::MAGIC);
        let begun = record || begins(page, bitmap_page::MAGIC);
        in_record = record || (in_record && !begun && !is_zero(page));
        any |= begun;
        begun || in_record || is_zero(page)
    }) && any
}

/// The checks that all pages share: magic, then version, then the checksum. A version that is not
/// ours may have its checksum elsewhere, so it is told first.
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

/// The newer of two slots that are written in turn, and its slot. A torn one leaves the other.
///
/// # Errors
/// When neither is valid: why the more telling one is not.
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

    /// The beginning of a device, of pages that begin with these.
    fn device(pages: &[&[u8]]) -> Vec<u8> {
        let mut all = vec![0; pages.len() * PAGE_BYTES];
        for (page, first) in all.chunks_mut(PAGE_BYTES).zip(pages) {
            page[..first.len()].copy_from_slice(first);
        }
        all
    }

    #[test]
    fn a_log_is_one_as_long_as_nobody_else_uses_its_device() {
        const NO: &[u8] = b"";
        const OTHER: &[u8] = b"?";
        const LG: &[u8] = log_header::MAGIC;
        const HT: &[u8] = hot_record::MAGIC;
        const BM: &[u8] = bitmap_page::MAGIC;
        for log in [
            &[LG, LG, HT, NO, HT, NO, BM, BM][..],
            // One header was torn, or never written, or the rest is damaged.
            &[LG, NO, HT, NO, HT, NO, BM],
            &[NO, LG, OTHER, OTHER, OTHER, OTHER, OTHER],
            // Forgotten; not finished; with records of more regions than fit into a page.
            &[NO, NO, HT, NO, HT, NO, BM, BM],
            &[NO, NO, NO, NO, NO, NO, BM, NO],
            &[NO, NO, HT, OTHER, HT, NO, BM, BM],
        ] {
            assert!(is_log(&device(log)), "{log:?}");
        }
        for other in [
            &[NO, NO, NO, NO, NO][..],
            // Another has taken the device, and left some of it.
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

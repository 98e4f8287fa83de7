//! Bitmap pages: which pages on disk differ from the bits in memory, and their write counts.
//!
//! Guarantees: a page flagged [`SET`] may lack a bit that memory has. A page without the flag names
//! at least the bits that memory had when the flag was last taken. Tasks that change bits raise the
//! flag *after* them, and the writer takes the flag *before* reading them. Both are
//! read-modify-writes of one word, so a change that the writer misses leaves its flag set.
//!
//! The counts equal the pages' on disk, or are one less while a write runs or has failed.
//!
//! A page without the flag [`UNCOPIED`] is the same on the device that the log is being moved to.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use flagstone_blockdev::IoError;

use crate::limits::{BITS_PER_PAGE, PAGE_WRITES_MAX, PAGES_PER_WRITE};

/// A bit was set that the page on disk may lack.
pub(crate) const SET: u8 = 1;
/// A bit was cleared that the page on disk may have: harmless, and worth a write eventually.
pub(crate) const CLEARED: u8 = 2;
/// The page has changed in memory or on disk since it was last copied to another device.
pub(crate) const UNCOPIED: u8 = 4;

#[derive(Debug)]
pub(crate) struct Pages {
    flags: Box<[AtomicU8]>,
    writes: Box<[AtomicU64]>,
    all_writes: AtomicU64,
}

impl Pages {
    /// No page flagged, and none written since the log was created.
    pub(crate) fn new(pages: u64) -> Pages {
        Pages {
            flags: (0..pages).map(|_| AtomicU8::new(0)).collect(),
            writes: (0..pages).map(|_| AtomicU64::new(0)).collect(),
            all_writes: AtomicU64::new(0),
        }
    }

    /// Raises a flag of all pages.
    pub(crate) fn raise_all(&self, flag: u8) {
        self.flags.iter().for_each(|flags| _ = flags.fetch_or(flag, Ordering::AcqRel));
    }

    /// Sets the write count found on disk. Only one task at a time may change counts.
    pub(crate) fn found(&self, page: u64, writes: u64) {
        let before = self.writes[page as usize].swap(writes, Ordering::AcqRel);
        self.all_writes.fetch_add(writes.wrapping_sub(before), Ordering::AcqRel);
    }

    pub(crate) fn writes(&self, page: u64) -> u64 {
        self.writes[page as usize].load(Ordering::Acquire)
    }

    /// The write count for the next write of a page.
    ///
    /// # Errors
    /// [`IoError::Unsupported`] when the count has reached its maximum.
    pub(crate) fn next_count(&self, page: u64) -> Result<u64, IoError> {
        let next = self.writes(page) + 1;
        if next > PAGE_WRITES_MAX { Err(IoError::Unsupported) } else { Ok(next) }
    }

    /// These pages are on disk with their next counts.
    pub(crate) fn written(&self, run: Range<u64>) {
        for page in run.clone() {
            self.writes[page as usize].fetch_add(1, Ordering::AcqRel);
            self.give_back(page, UNCOPIED);
        }
        self.all_writes.fetch_add(run.end - run.start, Ordering::AcqRel);
    }

    pub(crate) fn all_writes(&self) -> u64 {
        self.all_writes.load(Ordering::Acquire)
    }

    /// Raises a flag of the pages of these bits, which have changed.
    pub(crate) fn raise(&self, bits: &Range<u64>, flag: u8) {
        let pages = pages_of(bits);
        let end = pages.end.min(self.len());
        for page in pages.start.min(end)..end {
            self.flags[page as usize].fetch_or(flag | UNCOPIED, Ordering::AcqRel);
        }
    }

    /// Takes one flag of a page. Its bits and its count have to be read afterwards.
    pub(crate) fn take_one(&self, page: u64, flag: u8) {
        self.flags[page as usize].fetch_and(!flag, Ordering::AcqRel);
    }

    /// Takes a page's flags. Its bits have to be read afterwards.
    pub(crate) fn take(&self, page: u64) -> u8 {
        self.flags[page as usize].swap(0, Ordering::AcqRel)
    }

    /// Returns the flags of a page that was not written.
    pub(crate) fn give_back(&self, page: u64, flags: u8) {
        self.flags[page as usize].fetch_or(flags, Ordering::AcqRel);
    }

    /// The first run in `within` of pages with one of these flags; at most [`PAGES_PER_WRITE`].
    pub(crate) fn next_run(&self, within: Range<u64>, flags: u8) -> Option<Range<u64>> {
        let has = |page: &u64| self.flags[*page as usize].load(Ordering::Acquire) & flags != 0;
        let end = within.end.min(self.flags.len() as u64);
        let first = (within.start..end).find(has)?;
        let end = end.min(first + PAGES_PER_WRITE);
        Some(first..(first..end).find(|page| !has(page)).unwrap_or(end))
    }

    pub(crate) fn len(&self) -> u64 {
        self.flags.len() as u64
    }
}

pub(crate) fn page_of(bit: u64) -> u64 {
    bit / BITS_PER_PAGE
}

/// The bits of a page, including those beyond the end of the volume.
pub(crate) fn bits_of(page: u64) -> Range<u64> {
    page * BITS_PER_PAGE..(page + 1) * BITS_PER_PAGE
}

fn pages_of(bits: &Range<u64>) -> Range<u64> {
    if bits.is_empty() {
        return 0..0;
    }
    bits.start / BITS_PER_PAGE..bits.end.div_ceil(BITS_PER_PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_raised_taken_and_returned() {
        let pages = Pages::new(100);
        pages.raise(&(BITS_PER_PAGE - 1..3 * BITS_PER_PAGE), SET);
        pages.raise(&(0..1), CLEARED);
        assert_eq!(pages.next_run(0..100, SET), Some(0..3));
        assert_eq!(pages.next_run(0..100, CLEARED), Some(0..1));
        let taken = pages.take(0);
        assert_eq!((taken, pages.take(0)), (SET | CLEARED | UNCOPIED, 0));
        assert_eq!(pages.next_run(0..100, SET), Some(1..3));
        pages.give_back(0, taken);
        assert_eq!(pages.next_run(0..2, SET), Some(0..2));
        let flags = [SET | CLEARED | UNCOPIED, SET | UNCOPIED, SET | UNCOPIED];
        assert_eq!([0, 1, 2].map(|page| pages.take(page)), flags);
        assert_eq!(pages.next_run(0..100, SET | CLEARED), None);
        pages.raise(&(0..100 * BITS_PER_PAGE), SET);
        assert_eq!(pages.next_run(1..100, SET), Some(1..65));
        assert_eq!(pages.next_run(99..100, SET), Some(99..100));
        assert_eq!(pages_of(&(5..5)), 0..0);
    }

    #[test]
    fn page_write_counts_are_bounded() {
        let pages = Pages::new(4);
        pages.found(0, 7);
        pages.found(2, PAGE_WRITES_MAX);
        pages.written(0..2);
        let counts = [0, 1, 2, 3].map(|page| pages.next_count(page));
        assert_eq!(counts, [Ok(9), Ok(2), Err(IoError::Unsupported), Ok(1)]);
        assert_eq!(pages.all_writes(), 9 + PAGE_WRITES_MAX);
        pages.found(2, 1);
        assert_eq!(pages.all_writes(), 10);
    }
}

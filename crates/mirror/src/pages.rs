//! Which pages of the bitmap on disk say less, or more, than the bits in memory.
//!
//! Promises: a page whose flag is [`SET`] lacks a bit that memory has, or may; one without it names
//! at least what memory had when the flag was last looked at. Whoever changes bits raises the flag
//! *after* them; the writer takes the flag *before* it reads them. Both are read-modify-writes of
//! one word, so a change that the writer misses leaves its flag behind.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::limits::{BITS_PER_PAGE, PAGES_PER_WRITE};

/// A bit was set that the page on disk may lack.
pub(crate) const SET: u8 = 1;
/// A bit was cleared that the page on disk may have: harmless, and worth a write some time.
pub(crate) const CLEARED: u8 = 2;

/// The flags of all pages.
#[derive(Debug)]
pub(crate) struct Pages(Box<[AtomicU8]>);

impl Pages {
    /// None flagged.
    pub(crate) fn new(pages: u64) -> Pages {
        Pages((0..pages).map(|_| AtomicU8::new(0)).collect())
    }

    /// Raises a flag of the pages of these bits.
    pub(crate) fn raise(&self, bits: &Range<u64>, flag: u8) {
        let pages = pages_of(bits);
        let end = pages.end.min(self.len());
        for page in pages.start.min(end)..end {
            self.0[page as usize].fetch_or(flag, Ordering::AcqRel);
        }
    }

    /// Takes a page's flags; its bits are to be read afterwards.
    pub(crate) fn take(&self, page: u64) -> u8 {
        self.0[page as usize].swap(0, Ordering::AcqRel)
    }

    /// Gives flags back: the page was not written.
    pub(crate) fn give_back(&self, page: u64, flags: u8) {
        self.0[page as usize].fetch_or(flags, Ordering::AcqRel);
    }

    /// The first run from `from` on of pages that have one of these flags, within `within`; at most
    /// what one write carries.
    pub(crate) fn next_run(&self, within: Range<u64>, flags: u8) -> Option<Range<u64>> {
        let has = |page: &u64| self.0[*page as usize].load(Ordering::Acquire) & flags != 0;
        let end = within.end.min(self.0.len() as u64);
        let first = (within.start..end).find(has)?;
        let end = end.min(first + PAGES_PER_WRITE);
        Some(first..(first..end).find(|page| !has(page)).unwrap_or(end))
    }

    /// Number of pages.
    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }
}

/// The page of a bit.
pub(crate) fn page_of(bit: u64) -> u64 {
    bit / BITS_PER_PAGE
}

/// The pages of a range of bits.
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
    fn flags_are_found_taken_and_given_back() {
        let pages = Pages::new(100);
        pages.raise(&(BITS_PER_PAGE - 1..3 * BITS_PER_PAGE), SET);
        pages.raise(&(0..1), CLEARED);
        assert_eq!(pages.next_run(0..100, SET), Some(0..3));
        assert_eq!(pages.next_run(0..100, CLEARED), Some(0..1));
        let taken = pages.take(0);
        assert_eq!((taken, pages.take(0)), (SET | CLEARED, 0));
        assert_eq!(pages.next_run(0..100, SET), Some(1..3));
        pages.give_back(0, taken);
        assert_eq!(pages.next_run(0..2, SET), Some(0..2));
        assert_eq!([0, 1, 2].map(|page| pages.take(page)), [SET | CLEARED, SET, SET]);
        assert_eq!(pages.next_run(0..100, SET | CLEARED), None);
        pages.raise(&(0..100 * BITS_PER_PAGE), SET);
        assert_eq!(pages.next_run(1..100, SET), Some(1..65));
        assert_eq!(pages.next_run(99..100, SET), Some(99..100));
        assert_eq!(pages_of(&(5..5)), 0..0);
    }
}

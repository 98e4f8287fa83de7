//! Zeroed memory that becomes resident only when it is written.

use std::sync::atomic::AtomicU64;

/// Allocates `count` words of zeroes. The system supplies the memory page by page, at the first
/// store to each page. A loop that constructs each word would write all of it.
pub fn zeroed_words(count: usize) -> Box<[AtomicU64]> {
    const { assert!(align_of::<u64>() == align_of::<AtomicU64>()) };
    let words: *mut [u64] = Box::into_raw(vec![0_u64; count].into_boxed_slice());
    // SAFETY: the box was created just above and has no other owner. `AtomicU64` has the size and
    // the bit validity of `u64`, and its alignment here, so the box is returned with the same
    // layout.
    unsafe { Box::from_raw(words as *mut [AtomicU64]) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn zeroed_words_are_zero_and_writable() {
        let words = zeroed_words(1000);
        assert!(words.len() == 1000 && words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        words[999].store(u64::MAX, Ordering::Relaxed);
        assert_eq!(words[999].load(Ordering::Relaxed), u64::MAX);
        assert!(zeroed_words(0).is_empty());
    }
}

//! Words of memory that cost nothing before they are written.

use std::sync::atomic::AtomicU64;

/// So many words of zeroes. The system gives the memory page by page, as words that are not zero are
/// stored: one word after the other, made by a loop, would all be written.
pub fn zeroed_words(count: usize) -> Box<[AtomicU64]> {
    const { assert!(align_of::<u64>() == align_of::<AtomicU64>()) };
    let words: *mut [u64] = Box::into_raw(vec![0_u64; count].into_boxed_slice());
    // SAFETY: the box was made just now and nobody else has it. `AtomicU64` has the size and the bit
    // validity of `u64`, and its alignment here, so the box is given back as it was taken.
    unsafe { Box::from_raw(words as *mut [AtomicU64]) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn they_are_zeroes_and_words() {
        let words = zeroed_words(1000);
        assert!(words.len() == 1000 && words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        words[999].store(u64::MAX, Ordering::Relaxed);
        assert_eq!(words[999].load(Ordering::Relaxed), u64::MAX);
        assert!(zeroed_words(0).is_empty());
    }
}

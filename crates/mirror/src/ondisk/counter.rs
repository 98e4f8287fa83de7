//! Counters on disk: sequence numbers of alternating slots, and incarnations.

use flagstone_blockdev::IoError;

/// The next number.
///
/// # Errors
/// [`IoError::Unsupported`] after the maximum. No mirror ever counts that far, so the value is
/// forged, and after a wrap-around the latest slot would look the oldest.
pub(crate) fn next(counter: u64) -> Result<u64, IoError> {
    counter.checked_add(1).ok_or(IoError::Unsupported)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_does_not_wrap_around() {
        assert_eq!(next(0), Ok(1));
        assert_eq!(next(u64::MAX - 1), Ok(u64::MAX));
        assert_eq!(next(u64::MAX), Err(IoError::Unsupported));
    }
}

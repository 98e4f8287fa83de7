//! Counters that lie on disk: sequences of slots that are written in turn, and incarnations.

use flagstone_blockdev::IoError;

/// The one after this.
///
/// # Errors
/// [`IoError::Unsupported`] after the last number that there is. No mirror comes there, so what says
/// that it is there was written by something else; from there on the latest would look the oldest.
pub(crate) fn next(counter: u64) -> Result<u64, IoError> {
    counter.checked_add(1).ok_or(IoError::Unsupported)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_has_none_after_it() {
        assert_eq!(next(0), Ok(1));
        assert_eq!(next(u64::MAX - 1), Ok(u64::MAX));
        assert_eq!(next(u64::MAX), Err(IoError::Unsupported));
    }
}

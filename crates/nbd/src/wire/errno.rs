//! "Error values" of replies.

use flagstone_blockdev::IoError;

/// Protocol error value. Unknown values are treated like [`Errno::INVAL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(pub u32);

impl Errno {
    /// Operation not permitted: a change of a read-only export.
    pub const PERM: Errno = Errno(1);
    pub const IO: Errno = Errno(5);
    pub const NOMEM: Errno = Errno(12);
    pub const INVAL: Errno = Errno(22);
    /// No space left, or a write beyond the end.
    pub const NOSPC: Errno = Errno(28);
    /// Too large for a reply.
    pub const OVERFLOW: Errno = Errno(75);
    /// A fast zero that would not be fast.
    pub const NOTSUP: Errno = Errno(95);
    pub const SHUTDOWN: Errno = Errno(108);

    /// Error value for a device's read error.
    pub fn of_read(error: IoError) -> Errno {
        match error {
            IoError::OutOfRange | IoError::Misaligned => Errno::INVAL,
            other => Errno::of_change(other),
        }
    }

    /// Error value for a device's error of a write, trim, zeroes or flush.
    pub fn of_change(error: IoError) -> Errno {
        match error {
            IoError::OutOfRange | IoError::NoSpace => Errno::NOSPC,
            IoError::Misaligned => Errno::INVAL,
            IoError::ReadOnly => Errno::PERM,
            IoError::Unsupported => Errno::NOTSUP,
            IoError::NoMemory => Errno::NOMEM,
            IoError::ReadFault | IoError::WriteFault | IoError::Poisoned | IoError::Unreachable => {
                Errno::IO
            }
        }
    }

    /// Device error for a server's error value.
    pub fn to_io_error(self, writing: bool) -> IoError {
        match self {
            Errno::PERM => IoError::ReadOnly,
            Errno::NOMEM => IoError::NoMemory,
            Errno::NOSPC => IoError::NoSpace,
            Errno::NOTSUP => IoError::Unsupported,
            Errno::SHUTDOWN => IoError::Unreachable,
            Errno::IO if writing => IoError::WriteFault,
            Errno::IO => IoError::ReadFault,
            _ => IoError::Misaligned,
        }
    }

    /// Short message, sent with structured error chunks.
    pub fn message(self) -> &'static str {
        match self {
            Errno::PERM => "the export is read-only",
            Errno::IO => "the device failed the request",
            Errno::NOMEM => "out of memory for requests",
            Errno::INVAL => "the request is not valid for this export",
            Errno::NOSPC => "no space left, or beyond the end of the export",
            Errno::OVERFLOW => "the request is too long",
            Errno::NOTSUP => "zeroes would not be written faster than data",
            Errno::SHUTDOWN => "the server is shutting down",
            _ => "the request failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_range_error_by_command() {
        assert_eq!(Errno::of_change(IoError::OutOfRange), Errno::NOSPC);
        assert_eq!(Errno::of_read(IoError::OutOfRange), Errno::INVAL);
    }

    #[test]
    fn unknown_values_are_invalid() {
        assert_eq!(Errno(4711).to_io_error(true), Errno::INVAL.to_io_error(true));
    }

    #[test]
    fn device_errors_round_trip() {
        for error in [
            IoError::ReadOnly,
            IoError::NoSpace,
            IoError::Unsupported,
            IoError::WriteFault,
            IoError::NoMemory,
        ] {
            assert_eq!(Errno::of_change(error).to_io_error(true), error);
        }
        assert_eq!(Errno::of_read(IoError::ReadFault).to_io_error(false), IoError::ReadFault);
    }
}

//! I/O errors of devices.

/// The failures that front ends distinguish: each maps to one NVMe status and one NBD errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum IoError {
    /// The range is not within the device. NVMe: LBA Out of Range. NBD: EINVAL (ENOSPC for writes).
    #[error("the range is beyond the end of the device")]
    OutOfRange,
    /// Offset or length is not a multiple of the block size, or is zero or too large.
    #[error("the range is not aligned to the device's blocks, empty, or too long")]
    Misaligned,
    /// The device is read-only.
    #[error("the device is read-only")]
    ReadOnly,
    /// The medium has no space (thin file systems). NVMe: Capacity Exceeded. NBD: ENOSPC.
    #[error("no space left on the device below")]
    NoSpace,
    /// The device does not support the call, or not at the requested speed.
    #[error("the device does not support this")]
    Unsupported,
    /// The medium could not be read.
    #[error("unrecovered read error")]
    ReadFault,
    /// The medium could not be written.
    #[error("write fault")]
    WriteFault,
    /// A flush failed earlier, so written data may be lost: the device fails until it is reopened.
    #[error("the device failed a flush and must be reopened")]
    Poisoned,
    /// The path to the device is lost or timed out; the outcome of a write is unknown.
    #[error("the device cannot be reached")]
    Unreachable,
    /// No memory for the request at present.
    #[error("out of memory for requests")]
    NoMemory,
}

impl IoError {
    /// Maps the error of a system call on a file or disk.
    pub fn from_os(error: &std::io::Error, writing: bool) -> IoError {
        // Numbers of <errno.h>, the same on every Linux architecture.
        const EIO: i32 = 5;
        const ENOSPC: i32 = 28;
        const EROFS: i32 = 30;
        const EOPNOTSUPP: i32 = 95;
        const EDQUOT: i32 = 122;
        match error.raw_os_error() {
            Some(ENOSPC | EDQUOT) => IoError::NoSpace,
            Some(EROFS) => IoError::ReadOnly,
            Some(EOPNOTSUPP) => IoError::Unsupported,
            Some(EIO) | None | Some(_) if writing => IoError::WriteFault,
            _ => IoError::ReadFault,
        }
    }
}

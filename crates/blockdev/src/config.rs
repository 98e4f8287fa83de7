//! What devices can be built of, and what is said of settings that they cannot.

use crate::limits::{
    DELAY_MAX_SECONDS, DEVICE_MAX_BYTES, MEMORY_MAX_BYTES, STRIPE_MAX_CHILDREN,
    STRIPE_MAX_CHUNK_BYTES,
};

/// A setting that a device cannot be built with; the text says what is accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not a block size.
    #[error("a block size of {0} B is not possible: use a power of two from 512 to 65536")]
    BlockSize(u64),
    /// Not a number of blocks.
    #[error("a size of {size} B is not possible: use a multiple of {block} B, at least {block} B")]
    Size {
        /// What was asked, in bytes.
        size: u64,
        /// The block size, in bytes.
        block: u32,
    },
    /// Too large for a memory device.
    #[error("a memory device of {0} B is too large: use at most {MEMORY_MAX_BYTES} B (64 TiB)")]
    MemorySize(u64),
    /// Too large for any device.
    #[error("a device of {0} B is too large: use at most {DEVICE_MAX_BYTES} B")]
    DeviceSize(u64),
    /// Not a number of children.
    #[error("a stripe of {0} devices is not possible: give 1 to {STRIPE_MAX_CHILDREN}")]
    Children(usize),
    /// Not a chunk size.
    #[error(
        "a stripe chunk of {chunk} B is not possible: use a multiple of the block size, {block} B, \
         of at most {STRIPE_MAX_CHUNK_BYTES} B (1 GiB)"
    )]
    Chunk {
        /// What was asked, in bytes.
        chunk: u64,
        /// The largest block size of the children, in bytes.
        block: u32,
    },
    /// A child is smaller than a chunk.
    #[error("the smallest device of the stripe has {size} B, less than one chunk of {chunk} B")]
    ChildTooSmall {
        /// The child's size, in bytes.
        size: u64,
        /// The chunk, in bytes.
        chunk: u64,
    },
    /// Longer than any delay.
    #[error("a delay of {0:?} is too long: use at most {DELAY_MAX_SECONDS} s")]
    Delay(std::time::Duration),
    /// Not a rate.
    #[error("{0} faults in a million calls are not possible: use 0 to 1000000")]
    FaultRate(u32),
    /// Not a period.
    #[error("a fault at every call number 0 is not possible: use 1 (each call) or more")]
    FaultPeriod,
}

/// Checks size and block size of a device that may choose both.
pub(crate) fn check_size(size_bytes: u64, block_bytes: u32) -> Result<(), ConfigError> {
    if !block_bytes.is_power_of_two() || !(512..=65536).contains(&block_bytes) {
        return Err(ConfigError::BlockSize(block_bytes.into()));
    }
    if size_bytes == 0 || !size_bytes.is_multiple_of(u64::from(block_bytes)) {
        return Err(ConfigError::Size { size: size_bytes, block: block_bytes });
    }
    if size_bytes > DEVICE_MAX_BYTES {
        return Err(ConfigError::DeviceSize(size_bytes));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_blocks() {
        assert_eq!(check_size(4096, 512), Ok(()));
        assert_eq!(check_size(4096, 0), Err(ConfigError::BlockSize(0)));
        assert_eq!(check_size(4096, 256), Err(ConfigError::BlockSize(256)));
        assert_eq!(check_size(4096, 1 << 17), Err(ConfigError::BlockSize(1 << 17)));
        assert_eq!(check_size(0, 512), Err(ConfigError::Size { size: 0, block: 512 }));
        assert_eq!(check_size(1000, 512), Err(ConfigError::Size { size: 1000, block: 512 }));
        assert_eq!(check_size(1 << 63, 512), Err(ConfigError::DeviceSize(1 << 63)));
    }
}

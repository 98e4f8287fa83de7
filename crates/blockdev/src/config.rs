//! Settings of devices and layers: validation, with errors that state the accepted values.

use crate::limits::{
    DELAY_MAX_SECONDS, DEVICE_MAX_BYTES, MEMORY_MAX_BYTES, STRIPE_MAX_CHILDREN,
    STRIPE_MAX_CHUNK_BYTES,
};

/// A setting with which a device cannot be built; the text states the accepted values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayerConfigError {
    /// Invalid block size.
    #[error("a block size of {0} B is not possible: use a power of two from 512 to 65536")]
    BlockSize(u64),
    /// Invalid device size.
    #[error("a size of {size} B is not possible: use a multiple of {block} B, at least {block} B")]
    Size {
        /// Requested size, in bytes.
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
    /// Invalid number of children.
    #[error("a stripe of {0} devices is not possible: give 1 to {STRIPE_MAX_CHILDREN}")]
    Children(usize),
    /// Invalid chunk size.
    #[error(
        "a stripe chunk of {chunk} B is not possible: use a multiple of the block size, {block} B, \
         of at most {STRIPE_MAX_CHUNK_BYTES} B (1 GiB)"
    )]
    Chunk {
        /// Requested chunk size, in bytes.
        chunk: u64,
        /// The largest block size of the children, in bytes.
        block: u32,
    },
    /// A child is smaller than a chunk.
    #[error("the smallest device of the stripe has {size} B, less than one chunk of {chunk} B")]
    ChildTooSmall {
        /// Size of the child, in bytes.
        size: u64,
        /// Chunk size, in bytes.
        chunk: u64,
    },
    /// Delay too long.
    #[error("a delay of {0:?} is too long: use at most {DELAY_MAX_SECONDS} s")]
    Delay(std::time::Duration),
    /// Invalid fault rate.
    #[error("{0} faults in a million calls are not possible: use 0 to 1000000")]
    FaultRate(u32),
    /// Invalid fault period.
    #[error("a fault at every call number 0 is not possible: use 1 (each call) or more")]
    FaultPeriod,
}

/// Checks the size and block size of a device on which both are free to choose.
pub(crate) fn check_size(size_bytes: u64, block_bytes: u32) -> Result<(), LayerConfigError> {
    if !block_bytes.is_power_of_two() || !(512..=65536).contains(&block_bytes) {
        return Err(LayerConfigError::BlockSize(block_bytes.into()));
    }
    if size_bytes == 0 || !size_bytes.is_multiple_of(u64::from(block_bytes)) {
        return Err(LayerConfigError::Size { size: size_bytes, block: block_bytes });
    }
    if size_bytes > DEVICE_MAX_BYTES {
        return Err(LayerConfigError::DeviceSize(size_bytes));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_blocks() {
        assert_eq!(check_size(4096, 512), Ok(()));
        assert_eq!(check_size(4096, 0), Err(LayerConfigError::BlockSize(0)));
        assert_eq!(check_size(4096, 256), Err(LayerConfigError::BlockSize(256)));
        assert_eq!(check_size(4096, 1 << 17), Err(LayerConfigError::BlockSize(1 << 17)));
        assert_eq!(check_size(0, 512), Err(LayerConfigError::Size { size: 0, block: 512 }));
        assert_eq!(check_size(1000, 512), Err(LayerConfigError::Size { size: 1000, block: 512 }));
        assert_eq!(check_size(1 << 63, 512), Err(LayerConfigError::DeviceSize(1 << 63)));
    }
}

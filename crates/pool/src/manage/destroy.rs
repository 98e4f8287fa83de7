//! Rest of a destruction: a crash or an error leaves superblocks of the pool on some devices.
//!
//! Invariant: the caller recorded durably that the pool is being destroyed, before
//! [`Pool::destroy`] removed the first superblock.

use super::create::wipe_copy;
use super::pool::Pool;
use crate::error::PoolError;
use crate::id::PoolId;
use crate::recover::superblocks::read_copies;
use crate::storage::NamedDevice;

impl Pool {
    /// Completes the destruction of pool `id` on a device: removes the whole copies of its
    /// superblock. Leaves any other content of the device as it is. True if the device had one.
    ///
    /// # Errors
    /// Errors of the device.
    pub async fn complete_destruction(named: &NamedDevice, id: PoolId) -> Result<bool, PoolError> {
        let (copies, unreadable) = read_copies(named).await;
        let is_own = |copy: &usize| copies[*copy].as_ref().is_ok_and(|copy| copy.pool == id);
        // The device may have got a partition table, which lies in the first copy, since then.
        let own: Vec<usize> = (0..copies.len()).filter(is_own).collect();
        for copy in &own {
            wipe_copy(named, *copy).await?;
        }
        match unreadable {
            Some(error) if own.is_empty() => {
                Err(PoolError::Device { device: named.name.clone(), error })
            }
            Some(_) | None => Ok(!own.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use flagstone_blockdev::{FaultConfig, FaultLayer, MemoryDevice, SharedDevice};
    use flagstone_runtime::block_on;

    use super::*;
    use crate::CreateOptions;
    use crate::storage::{read_block, write_block};

    fn named(name: &str, device: SharedDevice) -> NamedDevice {
        NamedDevice { name: name.to_owned(), device }
    }

    /// Regression: the device was given a partition table, which the completion zeroed.
    #[test]
    fn reused_device_keeps_its_partition_table() {
        block_on(async {
            let memory: SharedDevice =
                Arc::new(MemoryDevice::new((1 << 20) + 64 * 16 * 4096, 512).unwrap());
            let device = named("/a", memory.clone());
            let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
            let pool = Pool::create(vec![device.clone()], &options).await.unwrap();
            let id = pool.identity().id;
            drop(pool);
            let table = [0x55; 4096];
            write_block(&memory, 0, &table).await.unwrap();
            assert!(Pool::complete_destruction(&device, id).await.unwrap());
            assert_eq!(read_block(&memory, 0).await.unwrap()[..], table);
            let examined = Pool::examine(std::slice::from_ref(&device)).await;
            assert!(matches!(examined, Err(PoolError::NotAPool { .. })), "{examined:?}");
            assert!(!Pool::complete_destruction(&device, id).await.unwrap());
        })
        .unwrap();
    }

    /// Regression: the superblocks of the devices after a failed one stayed.
    #[test]
    fn failed_device_keeps_no_other_from_being_freed() {
        block_on(async {
            let memory = || Arc::new(MemoryDevice::new((1 << 20) + 64 * 16 * 4096, 512).unwrap());
            let (first, faults) = FaultLayer::new(memory(), FaultConfig::default()).unwrap();
            let devices = [named("/a", Arc::new(first)), named("/b", memory())];
            let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
            let pool = Pool::create(devices.to_vec(), &options).await.unwrap();
            faults.fail_next_writes(1);
            let failed = pool.destroy().await.unwrap_err();
            assert!(failed.to_string().starts_with("/a"), "{failed}");
            let [first, second] = devices;
            let examined = Pool::examine(&[second]).await;
            assert!(matches!(examined, Err(PoolError::NotAPool { .. })), "{examined:?}");
            let examined = Pool::examine(std::slice::from_ref(&first)).await;
            assert!(!matches!(examined, Err(PoolError::NotAPool { .. })), "{examined:?}");
        })
        .unwrap();
    }
}

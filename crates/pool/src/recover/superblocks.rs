//! Superblocks of the given devices: whether they are one complete, current pool. Pure but for the
//! reading.

use flagstone_blockdev::IoError;

use crate::error::PoolError;
use crate::id::PoolId;
use crate::ondisk::FormatError;
use crate::ondisk::layout::Layout;
use crate::ondisk::superblock::{COPIES, Superblock, choose, copy_offset};
use crate::storage::{NamedDevice, Storage, read_block};

/// The superblock of one device, and the copies that do not have it.
pub(crate) struct FoundSuperblock {
    pub(crate) superblock: Superblock,
    /// Damaged copies first: they are written first.
    pub(crate) stale: Vec<usize>,
}

/// The superblock of one device.
///
/// # Errors
/// Of the device, if no copy can be read; [`PoolError`] if the copies cannot be used.
pub(crate) async fn read_superblock(named: &NamedDevice) -> Result<FoundSuperblock, PoolError> {
    let mut copies = Vec::with_capacity(COPIES);
    let mut unreadable = None;
    for copy in 0..COPIES {
        copies.push(match read_block(&named.device, copy_offset(copy)).await {
            Ok(block) => Superblock::decode(&block, copy),
            Err(error) => {
                unreadable = Some(error);
                Err(FormatError::Checksum)
            }
        });
    }
    let device = named.name.clone();
    let superblock = match (choose(&copies), unreadable) {
        (Ok(superblock), _) => superblock,
        (Err(_), Some(error)) => return Err(PoolError::Device { device, error }),
        (Err(FormatError::Absent), None) => return Err(PoolError::NotAPool { device }),
        (Err(reason), None) => return Err(PoolError::Superblock { device, reason }),
    };
    let mut stale: Vec<usize> =
        (0..COPIES).filter(|copy| copies[*copy].as_ref() != Ok(&superblock)).collect();
    stale.sort_by_key(|copy| copies[*copy].is_ok());
    Ok(FoundSuperblock { superblock, stale })
}

/// Brings every copy to the newest update, before anything else is written: what is written next
/// may use space that an older update still refers to.
///
/// # Errors
/// Of the device whose second copy failed.
pub(crate) async fn repair(
    storage: &Storage,
    newest: &Superblock,
    found: &[(PoolId, Vec<usize>)],
) -> Result<(), PoolError> {
    for (index, record) in newest.devices.iter().enumerate() {
        let own = found.iter().find(|(id, _)| *id == record.id);
        let stale = own.map_or(&[][..], |(_, stale)| stale);
        storage.write_copies(index, newest, stale, &mut 0).await.map_err(|error| {
            PoolError::Device { device: storage.devices[index].name.clone(), error }
        })?;
    }
    Ok(())
}

/// What the devices have in common.
fn common(superblock: &Superblock) -> Superblock {
    Superblock { device: 0, ..superblock.clone() }
}

/// Sorts the devices by the device table of the newest superblock.
///
/// # Errors
/// [`PoolError`] unless all devices of one pool are given once, whole, and current.
pub(crate) fn assemble(
    found: Vec<(NamedDevice, Superblock)>,
) -> Result<(Storage, Superblock), PoolError> {
    let newest = found.iter().max_by_key(|(_, superblock)| superblock.update);
    let Some((first, newest)) = newest.map(|(named, newest)| (named.name.clone(), newest.clone()))
    else {
        return Err(PoolError::Options("no devices were named"));
    };
    for (named, superblock) in &found {
        if superblock.pool != newest.pool {
            let pool =
                |superblock: &Superblock| format!("{} ({})", superblock.name, superblock.pool);
            return Err(PoolError::OtherPool {
                first,
                first_pool: pool(&newest),
                second: named.name.clone(),
                second_pool: pool(superblock),
            });
        }
    }
    for (index, (named, superblock)) in found.iter().enumerate() {
        let twin =
            found[..index].iter().find(|(_, other)| other.device_id() == superblock.device_id());
        if let Some((twin, _)) = twin {
            let (first, second) = (twin.name.clone(), named.name.clone());
            return Err(PoolError::Duplicate { first, second });
        }
    }
    for (named, superblock) in &found {
        let device = || named.name.clone();
        let (found, newest_update) = (superblock.update, newest.update);
        if found + 1 < newest_update {
            return Err(PoolError::Outdated { device: device(), found, newest: newest_update });
        }
        if found == newest_update && common(superblock) != common(&newest) {
            let pool = newest.name.clone();
            return Err(PoolError::Contradiction { device: device(), pool, update: found });
        }
    }
    let mut devices = Vec::with_capacity(newest.devices.len());
    for (index, record) in newest.devices.iter().enumerate() {
        let own = found.iter().find(|(_, superblock)| superblock.device_id() == record.id);
        let Some((named, _)) = own else {
            let (pool, count) = (newest.name.clone(), newest.devices.len());
            return Err(PoolError::Missing { pool, index, id: record.id, count });
        };
        let (is_bytes, was_bytes) = (named.device.geometry().size_bytes, record.size_bytes);
        if is_bytes < was_bytes {
            return Err(PoolError::Cut { device: named.name.clone(), is_bytes, was_bytes });
        }
        devices.push(named.clone());
    }
    if let Some((named, superblock)) = found.iter().find(|(_, superblock)| {
        !newest.devices.iter().any(|record| record.id == superblock.device_id())
    }) {
        let (pool, update) = (superblock.name.clone(), superblock.update);
        return Err(PoolError::Contradiction { device: named.name.clone(), pool, update });
    }
    let layout = Layout::new(newest.segment_blocks, &newest.devices)
        .map_err(|reason| PoolError::Superblock { device: first, reason })?;
    Ok((Storage { devices, layout }, newest))
}

/// Names the device of a failed call on a block of the pool.
pub(crate) fn device_error(storage: &Storage, block: u64, error: IoError) -> PoolError {
    PoolError::Device { device: storage.device_of(block).name.clone(), error }
}

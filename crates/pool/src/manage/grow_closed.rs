//! Growth of a closed pool, for a pool that is too full to be opened.
//!
//! An update of the superblock adds the device to the table and changes nothing else. Log,
//! checkpoint, marks and the tail of a log device stay, and the next opening replays the log as
//! before.
//!
//! A crash leaves the pool with or without the new device, as in the growth of an open pool.

use flagstone_blockdev::IoError;

use super::create::wipe;
use super::devices::{AddedDevice, DeviceOrderError, check_addition, write_first_copies};
use super::open::{FoundDevices, LogUse, OpenOptions, find_devices};
use super::pool::Pool;
use crate::error::PoolError;
use crate::limits::SEGMENTS_MIN;
use crate::ondisk::superblock::Superblock;
use crate::recover::repair::repair;
use crate::storage::NamedDevice;

/// Devices and layout of a closed pool, and the record of the new device.
async fn check_growth(
    devices: &[NamedDevice],
    options: &OpenOptions,
    new: &NamedDevice,
    overwrite: bool,
) -> Result<(FoundDevices, AddedDevice), DeviceOrderError> {
    // Without a tail, the log device is not opened: a blank one may belong to something else.
    let found = find_devices(devices, options, LogUse::Detach).await?;
    let added = check_addition(new, &found.superblock, overwrite).await?;
    if added.record.segments < SEGMENTS_MIN {
        let reason = "the first checkpoint of a full pool needs 32 segments, of 8 MiB by default";
        return Err(PoolError::Unsuitable { device: new.name.clone(), reason }.into());
    }
    Ok((found, added))
}

impl Pool {
    /// Checks a device before it is added to a closed pool, and removes its superblocks, which
    /// proves that the device answers. Writes nothing to the pool, and may be dropped.
    ///
    /// # Errors
    /// As [`Pool::grow_closed`].
    pub async fn prepare_closed_growth(
        devices: &[NamedDevice],
        options: &OpenOptions,
        new: &NamedDevice,
        overwrite: bool,
    ) -> Result<(), DeviceOrderError> {
        check_growth(devices, options, new, overwrite).await?;
        Ok(wipe(new).await?)
    }

    /// Adds a device to the closed pool on these devices. `overwrite` allows a device that contains
    /// data. The caller must run in a task that is not dropped.
    ///
    /// # Errors
    /// As [`Pool::open_with`] and [`Pool::grow`]. After an error of a device, the pool may or may
    /// not have the new device: try both sets.
    pub async fn grow_closed(
        devices: &[NamedDevice],
        options: &OpenOptions,
        new: NamedDevice,
        overwrite: bool,
    ) -> Result<(), DeviceOrderError> {
        let (found, added) = check_growth(devices, options, &new, overwrite).await?;
        let FoundDevices { storage, superblock, superblocks, .. } = found;
        repair(&storage, &superblock, &superblocks).await?;
        wipe(&new).await?;
        let mut next = Superblock { update: superblock.update + 1, ..superblock };
        added.add_to(&mut next);
        let (index, device) = (added.index, new.name.clone());
        let failure = |error: IoError| PoolError::Device { device: device.clone(), error };
        write_first_copies(&new, index, &next).await.map_err(failure)?;
        added.attach(&storage, new)?;
        let written = storage.write_superblock_after(&next, Some(index)).await;
        written.map(drop).map_err(|error| {
            let device = format!("a device of pool {}", next.name);
            PoolError::Device { device, error }.into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use flagstone_blockdev::{BlockDevice as _, FaultConfig, FaultLayer, MemoryDevice};
    use flagstone_runtime::{Buf, block_on, buf};

    use crate::limits::BLOCK_BYTES;
    use crate::log::append::chunk_memory;
    use crate::manage::create::is_empty;
    use crate::manage::open::LostTail;
    use crate::ondisk::chunk::ChunkRecord;
    use crate::ondisk::page::FANOUT;
    use crate::{CreateOptions, Redundancy, VolumeOptions};

    const SEGMENTS: u64 = 64;

    fn memory(name: &str, segments: u64) -> NamedDevice {
        let size = (1 << 20) + segments * 16 * BLOCK_BYTES as u64;
        let device = MemoryDevice::new(size, 512).unwrap();
        NamedDevice { name: name.to_owned(), device: Arc::new(device) }
    }

    /// Pool whose log takes all but `free` segments, with one written block in each of `pages` map
    /// pages.
    async fn full_pool(devices: &[NamedDevice], log: Option<NamedDevice>, free: usize, pages: u64) {
        let redundancy = match devices {
            [_] => Redundancy::None,
            _ => Redundancy::Mirror,
        };
        let options =
            CreateOptions { segment_blocks: 16, redundancy, ..CreateOptions::new("fast") };
        let made = Pool::create_with_log(devices.to_vec(), log, &options).await;
        let pool = made.unwrap();
        let size = VolumeOptions { size_bytes: 1 << 30, ..VolumeOptions::default() };
        let db = pool.create_volume("db", &size).await.unwrap();
        db.write(0, Buf::copy_of(&[7; BLOCK_BYTES]).unwrap(), false).await.unwrap();
        // Without checkpoints and admission, the log takes every segment.
        let turn = pool.maintenance_turn().await.unwrap();
        let shared = pool.shared();
        let volume = *shared.state.lock().volume_table.volumes.keys().next().unwrap();
        for page in 1..=pages {
            shared.state.lock().admitted.0 += 1;
            let record = ChunkRecord::Data { volume, block: page * FANOUT as u64, count: 1 };
            shared.append(vec![record], chunk_memory(1).await).await.unwrap();
        }
        while shared.state.lock().segments.free() > free {
            shared.append(Vec::new(), chunk_memory(0).await).await.unwrap();
        }
        while free == 0 && shared.append(Vec::new(), chunk_memory(0).await).await.is_ok() {}
        shared.flush().await.unwrap();
        drop((db, turn));
    }

    async fn opens_whole(devices: &[NamedDevice], log: Option<NamedDevice>) {
        let options = OpenOptions { log, ..OpenOptions::default() };
        let pool = Pool::open_with(devices.to_vec(), &options).await.unwrap();
        assert_eq!(pool.status().devices.len(), devices.len());
        let db = pool.open_volume("db").unwrap();
        for (offset, byte) in [(0, 7), (BLOCK_BYTES as u64, 0)] {
            let read = db.read(offset, buf::alloc(BLOCK_BYTES).await).await.unwrap();
            assert!(read.iter().all(|found| *found == byte), "block at {offset}");
        }
        db.write(4096, Buf::copy_of(&[8; BLOCK_BYTES]).unwrap(), true).await.unwrap();
        pool.close().await.unwrap();
        drop((db, pool));
        let report = Pool::check_devices(devices.to_vec(), &mut |_, _| {}).await.unwrap();
        assert_eq!(report.damage, []);
    }

    #[test]
    fn full_pool_opens_with_an_added_device() {
        block_on(async {
            let (device, new) = (memory("/a", SEGMENTS), memory("/b", SEGMENTS));
            full_pool(std::slice::from_ref(&device), None, 0, 0).await;
            let devices = [device.clone()];
            let refused = Pool::open(devices.to_vec()).await.unwrap_err();
            assert!(matches!(refused, PoolError::Full { .. }), "{refused}");
            let grow = async |new: &NamedDevice| {
                Pool::grow_closed(&devices, &OpenOptions::default(), new.clone(), false).await
            };
            let small = grow(&memory("/c", 8)).await.unwrap_err();
            assert!(small.to_string().contains("32 segments"), "{small}");
            let own = grow(&NamedDevice { name: "/d".to_owned(), ..device.clone() }).await;
            assert!(own.unwrap_err().to_string().contains("already"));
            grow(&new).await.unwrap();
            opens_whole(&[device.clone(), new], None).await;
        })
        .unwrap();
    }

    /// Such a pool could not be opened again.
    #[test]
    fn full_pool_with_two_copies_opens_with_an_added_pair() {
        block_on(async {
            let own = [memory("/a", SEGMENTS), memory("/b", SEGMENTS)];
            full_pool(&own, None, 0, 0).await;
            let refused = Pool::open(own.to_vec()).await.unwrap_err();
            assert!(matches!(refused, PoolError::Full { .. }), "{refused}");
            let grow = async |new: &[NamedDevice; 2]| {
                let (options, overwrite) = (OpenOptions::default(), [false; 2]);
                Pool::grow_closed_by_pair(&own, &options, new.clone(), overwrite).await
            };
            let small = grow(&[memory("/c", 8), memory("/d", 64)]).await.unwrap_err();
            assert!(small.to_string().contains("32 segments"), "{small}");
            let same = grow(&[own[0].clone(), memory("/d", 64)]).await;
            assert!(same.unwrap_err().to_string().contains("already"));
            let new = [memory("/c", SEGMENTS), memory("/d", SEGMENTS)];
            grow(&new).await.unwrap();
            opens_whole(&[own, new].concat(), None).await;
        })
        .unwrap();
    }

    #[test]
    fn pool_without_room_for_its_first_checkpoint_grows() {
        block_on(async {
            let (device, small, new) =
                (memory("/a", 256), memory("/b", SEGMENTS_MIN.into()), memory("/c", SEGMENTS));
            // Each page is a block, and a segment has 16.
            full_pool(std::slice::from_ref(&device), None, 3, 600).await;
            let (mut devices, options) = (vec![device], OpenOptions::default());
            let mut free = Vec::new();
            for new in [small, new] {
                let refused = Pool::open(devices.clone()).await.unwrap_err();
                let PoolError::Full { free: found, .. } = refused else { panic!("{refused}") };
                free.push(found);
                Pool::grow_closed(&devices, &options, new.clone(), false).await.unwrap();
                devices.push(new);
            }
            assert_eq!(free[1] - free[0], SEGMENTS_MIN as usize);
            opens_whole(&devices, None).await;
        })
        .unwrap();
    }

    /// A growth takes effect although the worn log device fails; the next opening detaches the log
    /// device.
    #[test]
    fn failed_growth_with_worn_log_device_takes_effect() {
        block_on(async {
            let (device, new) = (memory("/a", SEGMENTS), memory("/b", SEGMENTS));
            let memory = memory("/log", SEGMENTS);
            let (layer, control) = FaultLayer::new(memory.device, FaultConfig::default()).unwrap();
            let log = NamedDevice { name: memory.name, device: Arc::new(layer) };
            full_pool(std::slice::from_ref(&device), Some(log.clone()), 0, 0).await;
            let options = OpenOptions { log: Some(log.clone()), ..OpenOptions::default() };
            let devices = [device.clone()];
            let refused = Pool::open_with(devices.to_vec(), &options).await.unwrap_err();
            assert!(matches!(refused, PoolError::Full { .. }), "{refused}");
            control.fail_next_writes(1000);
            Pool::grow_closed(&devices, &options, new.clone(), false).await.unwrap_err();
            let both = vec![device, new];
            let pool = Pool::open_with(both.clone(), &options).await.unwrap();
            let status = pool.status();
            assert_eq!((status.devices.len(), status.log.unwrap().name), (2, None));
            pool.close().await.unwrap();
            drop(pool);
            opens_whole(&both, None).await;
        })
        .unwrap();
    }

    /// A device under the path of a drained log device may belong to something else.
    #[test]
    fn growth_writes_nothing_to_a_blank_log_device() {
        block_on(async {
            let (device, log) = (memory("/a", SEGMENTS), memory("/log", SEGMENTS));
            let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
            let made = Pool::create_with_log(vec![device.clone()], Some(log), &options).await;
            let pool = made.unwrap();
            pool.close().await.unwrap();
            drop(pool);
            let (blank, new) = (memory("/log", SEGMENTS), memory("/b", SEGMENTS));
            let tail = LostTail::Withhold;
            let options = OpenOptions { log: Some(blank.clone()), tail, ..OpenOptions::default() };
            let devices = [device];
            Pool::prepare_closed_growth(&devices, &options, &new, false).await.unwrap();
            Pool::grow_closed(&devices, &options, new, false).await.unwrap();
            assert!(is_empty(&blank.device, blank.device.geometry().size_bytes).await.unwrap());
        })
        .unwrap();
    }
}

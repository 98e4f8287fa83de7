//! Devices: growth of an open pool by a device, and removal of a device.
//!
//! Invariants:
//! - the numbers of segments never change: those of a removed device stay unused until a device
//!   gets its place in a full table;
//! - the device table changes by an update of the superblock, while no checkpoint runs. A new
//!   device gets copies 0 and 1 of that update before any other device: after a crash, either the
//!   new device has two copies, and the opening completes the update, or the other devices are a
//!   pool without it;
//! - a device is removed when nothing refers to its segments, including reads in progress;
//! - a task of its own writes a change of the table, and a chunk of the log: dropping the caller
//!   does not interrupt them.
//!
//! If a new device fails before another device has the update, the pool stays as it was. A crash
//! ends an evacuation; the operator starts it again.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use flagstone_blockdev::IoError;
use flagstone_runtime::spawn;

use super::create::{check_device, wipe};
use super::pool::Pool;
use super::shared::{Shared, State};
use super::space::{OrderKind, Sizes, SpaceState};
use super::superblock::SuperblockLock;
use crate::error::{PoolError, VolumeError};
use crate::id::PoolId;
use crate::limits::{
    BLOCK_BYTES, DEVICES_MAX, EVACUATION_SEGMENTS, EVACUATION_STEPS, FRUITLESS_PASSES,
    PASSES_WAITED, SEGMENTS_MAX, SEGMENTS_MIN,
};
use crate::log::append::chunk_memory;
use crate::ondisk::superblock::{COPIES_MIN, DeviceRecord, Superblock, copy_offset};
use crate::ondisk::unit::BLOCK_WEIGHT_U64;
use crate::recover::superblocks::read_superblock;
use crate::storage::{NamedDevice, Storage, write_block};

/// Reason why a device cannot be added or removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceOrderError {
    /// The new device cannot be used.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The order was refused.
    #[error(transparent)]
    Order(#[from] VolumeError),
    /// The pool has the most devices or segments.
    #[error(
        "the pool cannot have this device too: it has at most 16 devices, with removed ones whose \
         place only a device of their size or more can take, and 16,777,216 segments"
    )]
    TooMany,
    /// The pool was opened long ago.
    #[error(
        "pool {pool} has got the most devices since it was opened: flagstone pool reopen {pool} comes first"
    )]
    Reopen {
        /// Name of the pool.
        pool: String,
    },
    /// A pool without redundancy has no other copy.
    #[error(
        "pool {pool} has one copy of everything: flagstone pool grow and remove-device replace a device"
    )]
    Single {
        /// Name of the pool.
        pool: String,
    },
    /// The other copy is not complete.
    #[error(
        "{device} has the only complete copy in pool {pool}: wait for the end of the rebuild, or \
         replace its other device first"
    )]
    OnlyCopy {
        /// Name of the pool.
        pool: String,
        /// Name of the device.
        device: String,
    },
    /// Pools with redundancy keep their devices, and grow by pairs.
    #[error(
        "pool {pool} has two copies of everything: its devices are added in pairs, with flagstone \
         pool grow {pool} DEVICE DEVICE, and not removed, only replaced, with flagstone pool \
         replace-device"
    )]
    Redundant {
        /// Name of the pool.
        pool: String,
    },
    /// A pool without redundancy grows by one device.
    #[error("pool {pool} has one copy of everything: add one device at a time")]
    NoPairs {
        /// Name of the pool.
        pool: String,
    },
    /// No device of this name.
    #[error("pool {pool} has no device {device}")]
    Unknown {
        /// Name of the pool.
        pool: String,
        /// Name of the device.
        device: String,
    },
    /// The device is the only one.
    #[error("{device} is the only device of pool {pool}: add another one first")]
    Last {
        /// Name of the pool.
        pool: String,
        /// Name of the device.
        device: String,
    },
    /// Another device is being removed.
    #[error("another device of pool {pool} is being removed")]
    Busy {
        /// Name of the pool.
        pool: String,
    },
    /// The other devices are too small.
    #[error(
        "without {device}, the pool has room for {capacity_bytes} bytes, and {needed_bytes} are \
         used or reserved: add a device, or delete volumes or snapshots first"
    )]
    NoRoom {
        /// Name of the device.
        device: String,
        /// Capacity without the device, in bytes.
        capacity_bytes: u64,
        /// Bytes in use or reserved.
        needed_bytes: u64,
    },
    /// The other devices have too few free segments for what thick volumes may still write.
    #[error(
        "without {device}, {left_bytes} bytes are left for the {needed_bytes} bytes that are reserved: \
         add a device, or delete volumes or snapshots first"
    )]
    Unbacked {
        /// Name of the device.
        device: String,
        /// Bytes reserved.
        needed_bytes: u64,
        /// Bytes of free segments for them.
        left_bytes: u64,
    },
    /// Blocks on the device cannot be moved.
    #[error(
        "{segments} segments of {device} have blocks that are damaged or cannot be read, which cannot \
         be moved: scrub the pool, write or delete what is damaged, and repeat the order"
    )]
    Damaged {
        /// Name of the device.
        device: String,
        /// Number of segments.
        segments: usize,
    },
}

/// An evacuation in progress. Dropping it ends the evacuation, and the pool uses the device as
/// before.
pub struct Evacuation {
    pool: Pool,
    device: String,
    index: usize,
    progress: Cell<Progress>,
}

/// Identity of a device that was removed from a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovedDevice {
    pool: PoolId,
    device: PoolId,
}

/// Progress of an evacuation, or lack of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Progress {
    /// Fewest segments of the device in use so far.
    least: usize,
    /// Most free segments of the other devices so far: if these are full, they are cleaned first.
    most_free: usize,
    /// Steps since the last progress.
    steps: u32,
}

impl Drop for Evacuation {
    fn drop(&mut self) {
        let shared = self.pool.shared();
        let mut state = shared.state.lock();
        state.evacuation_waits = false;
        if state.evacuated.take().is_some() {
            state.segments.end_drain(false);
            let layout = &shared.storage.layout;
            state.sizes = shared.sizes.within(layout, layout.usable_segments());
            state.expect_gain();
        }
        drop(state);
        shared.progress.notify();
    }
}

impl Pool {
    /// Checks a device before it is added, and removes its superblocks, which proves that the
    /// device answers. Blocks nothing in the pool, and may be dropped.
    ///
    /// # Errors
    /// As [`Pool::grow`].
    pub async fn prepare_growth(
        &self,
        new: &NamedDevice,
        overwrite: bool,
    ) -> Result<(), DeviceOrderError> {
        self.check_growth(new, overwrite).await?;
        Ok(wipe(new).await?)
    }

    async fn check_growth(
        &self,
        new: &NamedDevice,
        overwrite: bool,
    ) -> Result<AddedDevice, DeviceOrderError> {
        let shared = self.shared();
        let superblock = shared.state.lock().superblock.clone();
        check_single(&superblock)?;
        if !shared.storage.devices.has_slot() {
            return Err(DeviceOrderError::Reopen { pool: shared.name.clone() });
        }
        let is_volatile = |named: &NamedDevice| named.device.geometry().volatile_cache;
        // With a log device, hosts see only the cache of the log device.
        let is_seen = shared.storage.log.is_none();
        if is_seen && is_volatile(new) && !shared.storage.has_volatile_cache() {
            // Attached hosts were told that they need not flush.
            let reason = "it has a volatile write cache, and the devices of the pool have none: turn \
                          its cache off";
            return Err(PoolError::Unsuitable { device: new.name.clone(), reason }.into());
        }
        check_addition(new, &superblock, overwrite).await
    }

    /// Adds a device to the pool. Its space is usable when the call returns. `overwrite` allows a
    /// device that contains data.
    ///
    /// # Errors
    /// [`DeviceOrderError`] for a device that cannot be used, and errors of the devices. After an
    /// error of a device in the pool, reopen the pool, with or without the new device.
    pub async fn grow(&self, new: NamedDevice, overwrite: bool) -> Result<(), DeviceOrderError> {
        let pool = self.clone();
        let grown = spawn(async move { pool.grow_now(new, overwrite).await });
        grown.await.unwrap_or(Err(VolumeError::Io(IoError::Unreachable).into()))
    }

    async fn grow_now(&self, new: NamedDevice, overwrite: bool) -> Result<(), DeviceOrderError> {
        let order = self.order(OrderKind::Deletion).await?;
        let shared = self.shared();
        let device = new.name.clone();
        let added = self.check_growth(&new, overwrite).await?;
        let turn = self.maintenance_turn().await?;
        wipe(&new).await?;
        // Marks of the log device wait until this update ends.
        let update = shared.update_turn().await.map_err(VolumeError::Io)?;
        let superblock = shared.next_update(|superblock| added.add_to(superblock));
        let first = write_first_copies(&new, added.index, &superblock).await;
        first.map_err(|error| PoolError::Device { device, error })?;
        added.attach(&shared.storage, new)?;
        let written = self.write_table(&update, &superblock, Some(added.index)).await;
        written.map_err(VolumeError::Io)?;
        self.use_segments(added.index);
        drop((update, turn, order));
        shared.progress.notify();
        Ok(())
    }

    /// Begins to use the segments of an added device.
    pub(super) fn use_segments(&self, index: usize) {
        let shared = self.shared();
        let layout = &shared.storage.layout;
        let range = layout.segments_on(index);
        let mut state = shared.state.lock();
        match range.start as usize == state.segments.count() {
            true => {
                state.usage.extend(range.len());
                state.meta_usage.extend(range.len());
                state.segments.extend(range.len() as u32);
            }
            false => state.segments.restore(range),
        }
        let withheld = state.evacuated.as_ref().map_or(0, |range| range.len() as u32);
        state.sizes = shared.sizes.within(layout, layout.usable_segments() - withheld);
        state.expect_gain();
    }

    /// Writes a superblock with a changed table. A new device already has copies 0 and 1.
    async fn write_table(
        &self,
        turn: &SuperblockLock<'_>,
        superblock: &Superblock,
        new: Option<usize>,
    ) -> Result<(), IoError> {
        let shared = self.shared();
        let written = turn.write(superblock, new).await;
        let mut state = shared.state.lock();
        match &written {
            Ok(written) => state.updated(written.clone()),
            Err(_) => state.fail(IoError::WriteFault),
        }
        drop(state);
        shared.progress.notify();
        written.map(drop)
    }

    /// Sizes without a device, and the blocks for which the other devices have room.
    fn sizes_without(&self, index: usize) -> (Sizes, u64) {
        let layout = &self.shared().storage.layout;
        let own = layout.segments_on(index).len() as u32;
        let rest = layout.usable_segments().saturating_sub(own).max(SEGMENTS_MIN);
        let sizes = self.shared().sizes.within(layout, rest);
        let room = match rest < EVACUATION_SEGMENTS {
            true => sizes.capacity / 4 * 3,
            false => sizes.capacity,
        };
        (sizes, room)
    }

    /// Begins to move everything from a device to the others. The log uses the device only while
    /// the others have no free segment.
    ///
    /// # Errors
    /// [`DeviceOrderError`] if the device is not in the pool, or the others are too small.
    pub async fn evacuate(&self, device: &str) -> Result<Evacuation, DeviceOrderError> {
        check_single(&self.shared().state.lock().superblock)?;
        let present = || self.shared().storage.devices.present();
        if let Some((index, _)) = present().find(|(_, named)| named.name == device)
            && present().count() > 1
        {
            // Deletions continue while the cleaner packs compressed units.
            let (_, room) = self.sizes_without(index);
            let packed = self.shared().admitted(|state, waited| state.try_fit(room, waited));
            packed.await.map_err(VolumeError::Io)?;
        }
        // A growth in progress must end first: it adds segments.
        let _order = self.order(OrderKind::Deletion).await?;
        // Blocks that were overwritten since the last checkpoint count as used.
        self.checkpoint().await.map_err(VolumeError::Io)?;
        let shared = self.shared();
        let mut state = shared.state.lock();
        state.check().map_err(VolumeError::Io)?;
        let used = state.supply().needed();
        let (index, range, sizes) = self.evacuation_of(&state, device, used)?;
        let device = device.to_owned();
        // Segments that could not be read earlier may be readable now.
        state.damaged.retain(|segment, _| !range.contains(segment));
        state.segments.drain(range.clone());
        (state.evacuated, state.sizes) = (Some(range), sizes);
        state.expect_gain();
        drop(state);
        shared.progress.notify();
        let progress = Cell::new(Progress { least: usize::MAX, most_free: 0, steps: 0 });
        Ok(Evacuation { pool: self.clone(), device, index, progress })
    }
}

impl Pool {
    /// Checks that the other devices have room for `used` blocks. Returns the position of the
    /// device, its segments, and the sizes without it.
    pub(super) fn evacuation_of(
        &self,
        state: &State,
        device: &str,
        used: u64,
    ) -> Result<(usize, Range<u32>, Sizes), DeviceOrderError> {
        check_single(&state.superblock)?;
        let shared = self.shared();
        let pool = || shared.name.clone();
        let found = shared.storage.devices.present().find(|(_, named)| named.name == device);
        let device = device.to_owned();
        let Some((index, _)) = found else {
            return Err(DeviceOrderError::Unknown { pool: pool(), device });
        };
        if shared.storage.devices.present().count() == 1 {
            return Err(DeviceOrderError::Last { pool: pool(), device });
        }
        if state.evacuated.is_some() {
            return Err(DeviceOrderError::Busy { pool: pool() });
        }
        let layout = &shared.storage.layout;
        let range = layout.segments_on(index);
        let rest = layout.usable_segments() - range.len() as u32;
        let (sizes, room) = self.sizes_without(index);
        let room = if rest < SEGMENTS_MIN { 0 } else { room };
        if used > room || rest < SEGMENTS_MIN {
            let block = BLOCK_BYTES as u64;
            let (capacity_bytes, needed_bytes) = (room * block, used * block);
            return Err(DeviceOrderError::NoRoom { device, capacity_bytes, needed_bytes });
        }
        Ok((index, range, sizes))
    }
}

impl Evacuation {
    /// Bytes in use on the device, as of the last checkpoint.
    pub fn left_bytes(&self) -> u64 {
        let state = self.pool.shared().state.lock();
        let weight: u64 = match &state.evacuated {
            Some(range) => range.clone().map(|segment| u64::from(state.weight_of(segment))).sum(),
            None => 0,
        };
        weight.div_ceil(BLOCK_WEIGHT_U64) * BLOCK_BYTES as u64
    }

    /// Moves some segments. True when nothing refers to the device any more, and the others have
    /// free segments for what is reserved.
    ///
    /// # Errors
    /// [`DeviceOrderError`] if the remaining blocks cannot be moved, and errors of the devices.
    pub async fn step(&self) -> Result<bool, DeviceOrderError> {
        let shared = self.pool.shared();
        let (range, log, damaged, used, is_backed, supply, sizes) = {
            let mut state = shared.state.lock();
            state.check().map_err(VolumeError::Io)?;
            let range = state.evacuated.clone().expect("it lasts until it is dropped");
            let (used, log) = state.segments.in_use(&range);
            let is_left =
                |segment: &u32| state.segments.is_closed(*segment) && !state.can_clean(*segment);
            let damaged = range.clone().filter(is_left).count();
            let (supply, sizes) = (state.supply(), state.sizes);
            let is_backed = supply.reserved == 0 || supply.is_backed(&sizes, 0);
            state.evacuation_waits = used == 0 && !is_backed;
            (range, log, damaged, used, is_backed, supply, sizes)
        };
        let free = supply.free;
        if used == 0 && is_backed {
            return Ok(true);
        }
        if used > 0 && used == damaged {
            let device = self.device.clone();
            return Err(DeviceOrderError::Damaged { device, segments: damaged });
        }
        let Progress { least, most_free, steps } = self.progress.get();
        let steps = if used < least || free > most_free { 0 } else { steps + 1 };
        let (least, most_free) = (least.min(used), most_free.max(free));
        self.progress.set(Progress { least, most_free, steps });
        // The cleaner only makes room for what is reserved, as it does for a write.
        let is_short = supply.reserved > 0 && free <= supply.kept_by_evacuation(&sizes);
        let (steps_max, is_unbacked) = match used {
            0 => (FRUITLESS_PASSES.into(), true),
            _ if is_short => (PASSES_WAITED, true),
            _ => (EVACUATION_STEPS.into(), false),
        };
        if u64::from(steps) >= steps_max {
            return Err(if is_unbacked { self.unbacked() } else { self.no_room() });
        }
        if log > 0 {
            let left = spawn(leave_segment(shared.clone()));
            left.await.unwrap_or(Err(VolumeError::Io(IoError::Unreachable)))?;
        }
        let is_closed = {
            let state = shared.state.lock();
            range.clone().any(|segment| state.can_clean(segment))
        };
        match is_closed || used == 0 {
            true => self.clean().await?,
            false => self.pool.checkpoint().await.map_err(VolumeError::Io)?,
        }
        Ok(false)
    }

    /// Error: the free segments of the other devices do not back the reservations.
    fn unbacked(&self) -> DeviceOrderError {
        let mut state = self.pool.shared().state.lock();
        let (sizes, supply) = (state.sizes, state.supply());
        let (device, block) = (self.device.clone(), BLOCK_BYTES as u64);
        let needed_bytes = supply.reserved * block;
        let left_bytes = SpaceState { reserved: 0, ..supply }.left_backed(&sizes) * block;
        DeviceOrderError::Unbacked { device, needed_bytes, left_bytes }
    }

    /// Error: the other devices are too full for the cleaner.
    fn no_room(&self) -> DeviceOrderError {
        let mut state = self.pool.shared().state.lock();
        let block = BLOCK_BYTES as u64;
        let (capacity_bytes, needed_bytes) =
            (state.sizes.capacity * block, state.supply().used() * block);
        DeviceOrderError::NoRoom { device: self.device.clone(), capacity_bytes, needed_bytes }
    }

    /// One pass of the cleaner.
    async fn clean(&self) -> Result<(), DeviceOrderError> {
        let shared = self.pool.shared();
        let target = {
            let mut state = shared.state.lock();
            state.wanted.cleaning = true;
            state.checkpoints + 1
        };
        shared.progress.notify();
        let done = || {
            let state = shared.state.lock();
            let done =
                state.checkpoints >= target || !state.wanted.cleaning && !state.maintenance.works();
            if done { Some(Ok(())) } else { state.check().err().map(Err) }
        };
        shared.progress.wait_for(done).await.map_err(VolumeError::Io)?;
        Ok(())
    }

    /// Removes the device from the table, after [`Evacuation::step`] has returned true. The device
    /// keeps an outdated superblock until [`release`] removes it.
    ///
    /// # Errors
    /// Errors of the devices: reopen the pool.
    pub async fn complete(self) -> Result<RemovedDevice, DeviceOrderError> {
        let removed = spawn(self.complete_now());
        removed.await.unwrap_or(Err(VolumeError::Io(IoError::Unreachable).into()))
    }

    async fn complete_now(self) -> Result<RemovedDevice, DeviceOrderError> {
        let shared = self.pool.shared().clone();
        let order = self.pool.order(OrderKind::Deletion).await?;
        let turn = self.pool.maintenance_turn().await?;
        let update = shared.update_turn().await.map_err(VolumeError::Io)?;
        {
            let mut state = shared.state.lock();
            let range = state.evacuated.clone().expect("it lasts until it is dropped");
            if state.segments.in_use(&range).0 > 0 {
                // The others had no free segment meanwhile.
                drop(state);
                return Err(self.no_room());
            }
            // From here on not even as a last resort: the update takes long on a slow device, and
            // would remove what is written meanwhile. If it fails, the pool has to be reopened.
            state.segments.end_drain(true);
        }
        let superblock =
            shared.next_update(|superblock| superblock.devices[self.index].size_bytes = 0);
        let device = superblock.devices[self.index].id;
        let removed = RemovedDevice { pool: superblock.pool, device };
        if let Err(error) = self.pool.write_table(&update, &superblock, None).await {
            return Err(VolumeError::Io(error).into());
        }
        shared.storage.layout.remove(self.index);
        shared.storage.devices.release(self.index);
        {
            let mut state = shared.state.lock();
            (state.evacuated, state.evacuation_waits) = (None, false);
        }
        drop((update, turn, order));
        Ok(removed)
    }
}

/// Moves the log to its next segment, which a chunk in the present segment names. A task of its own
/// writes this chunk: the removal may be canceled while a slow or hung device writes.
async fn leave_segment(shared: Arc<Shared>) -> Result<(), VolumeError> {
    let memory = chunk_memory(0).await;
    shared.append(Vec::new(), memory).await.map_err(VolumeError::Io)?;
    let mut state = shared.state.lock();
    let state = &mut *state;
    let left = state.position.leave(&mut state.segments);
    left.map_err(|_| VolumeError::Full { pool: shared.name.clone() })
}

/// # Errors
/// [`DeviceOrderError::Redundant`] for a pool with redundancy.
fn check_single(superblock: &Superblock) -> Result<(), DeviceOrderError> {
    match superblock.has_redundancy() {
        true => Err(DeviceOrderError::Redundant { pool: superblock.name.clone() }),
        false => Ok(()),
    }
}

/// A new device, and its position in the device table.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddedDevice {
    pub(super) index: usize,
    pub(super) record: DeviceRecord,
}

impl AddedDevice {
    /// After the other devices, or in the place of a removed one, whose segments keep their
    /// numbers. The rest of a larger device stays unused.
    ///
    /// # Errors
    /// [`DeviceOrderError::TooMany`]
    fn new(
        devices: &[DeviceRecord],
        record: DeviceRecord,
    ) -> Result<AddedDevice, DeviceOrderError> {
        let total: u64 = devices.iter().chain([&record]).map(|own| u64::from(own.segments)).sum();
        if devices.len() < DEVICES_MAX && total <= u64::from(SEGMENTS_MAX) {
            return Ok(AddedDevice { index: devices.len(), record });
        }
        let is_fitting = |own: &DeviceRecord| own.is_removed() && own.segments <= record.segments;
        let removed = devices.iter().enumerate().filter(|(_, own)| is_fitting(own));
        let (index, place) =
            removed.max_by_key(|(_, own)| own.segments).ok_or(DeviceOrderError::TooMany)?;
        let record = DeviceRecord { segments: place.segments, ..record };
        Ok(AddedDevice { index, record })
    }

    /// Adds the device to the table of an update.
    pub(super) fn add_to(&self, superblock: &mut Superblock) {
        match superblock.devices.get_mut(self.index) {
            Some(place) => *place = self.record,
            None => superblock.devices.push(self.record),
        }
    }

    /// Adds the device to the storage.
    ///
    /// # Errors
    /// [`DeviceOrderError::TooMany`]
    pub(super) fn attach(
        &self,
        storage: &Storage,
        new: NamedDevice,
    ) -> Result<(), DeviceOrderError> {
        match self.index < storage.layout.devices() {
            true => storage.layout.restore(self.index),
            false => {
                storage.layout.push(&self.record).map_err(|_| DeviceOrderError::TooMany)?;
            }
        }
        storage.devices.put(self.index, new);
        Ok(())
    }
}

/// Checks that a device can be added to a pool.
///
/// # Errors
/// [`DeviceOrderError`] if it cannot.
pub(super) async fn check_addition(
    new: &NamedDevice,
    superblock: &Superblock,
    overwrite: bool,
) -> Result<AddedDevice, DeviceOrderError> {
    check_single(superblock)?;
    let Superblock { segment_blocks, devices, pool, .. } = superblock;
    // A second name of a device of the pool is refused, even with `overwrite`.
    if let Ok(found) = read_superblock(new).await
        && found.superblock.pool == *pool
        && devices.iter().any(|own| own.id == found.superblock.device_id() && !own.is_removed())
    {
        let device = new.name.clone();
        let reason = "it is a device of this pool already, or a copy of one";
        return Err(PoolError::Unsuitable { device, reason }.into());
    }
    AddedDevice::new(devices, check_device(new, *segment_blocks, overwrite).await?)
}

/// Writes copies 0 and 1 of a new device. They are not rewritten before copies 2 and 3 are written:
/// a torn rewrite would leave one whole copy, while other devices may already need this device.
pub(super) async fn write_first_copies(
    named: &NamedDevice,
    index: usize,
    superblock: &Superblock,
) -> Result<(), IoError> {
    let own = Superblock { device: index as u16, ..superblock.clone() };
    for copy in 0..COPIES_MIN {
        write_block(&named.device, copy_offset(copy), &own.encode(copy)).await?;
    }
    Ok(())
}

/// Removes the superblocks of a device that was removed from a pool. Since then, its path may have
/// been given to another disk, which is left as it is.
///
/// # Errors
/// [`PoolError::Unsuitable`] for another disk; errors of the device.
pub async fn release(named: &NamedDevice, removed: RemovedDevice) -> Result<(), PoolError> {
    let found = read_superblock(named).await?.superblock;
    if (found.pool, found.device_id()) != (removed.pool, removed.device) {
        let device = named.name.clone();
        return Err(PoolError::Unsuitable { device, reason: "it is another device now" });
    }
    wipe(named).await
}

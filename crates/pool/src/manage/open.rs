//! Opening of a pool: recovery, and decisions about a missing log device.
//!
//! A log device whose tail may be missing is in one of two conditions:
//! - *gone*: the named device is blank, as a local SSD after a stop of its machine, or has an older
//!   state of the pool. The pool opens with the prefix of its history that the other devices have.
//!   Volumes that lack changes cannot be opened.
//! - *elsewhere*: the log device was not found, another device has its name, or its superblock is
//!   damaged. It may come back with the tail, and opening the prefix would lose the tail. The pool
//!   is refused until the operator gives the tail up.
//!
//! A log device that can be read but not written, such as a worn SSD, is *detached*: its tail is
//! copied to the other devices, and the pool opens without it. Failures of other devices detach
//! nothing.

use std::sync::Arc;

use flagstone_runtime::random_u64;

use super::create::is_empty;
use super::identity::ExpectedPool;
use super::pool::Pool;
use super::shared::Opened;
use super::space::Sizes;
use crate::error::PoolError;
use crate::id::PoolId;
use crate::limits::{BLOCK_BYTES, CACHE_PAGES};
use crate::log::device::LogDevice;
use crate::log::position::Position;
use crate::log::segments::Segments;
use crate::log::write_out::Copier;
use crate::map::cache::PageCache;
use crate::map::recent::Recent;
use crate::ondisk::superblock::{LOG_INDEX, Superblock, TailVolumes};
use crate::ondisk::volume_table::VolumeTable;
use crate::recover::metadata::read_checkpoint;
use crate::recover::repair::repair;
use crate::recover::replay::{LossEvidence, Replay};
use crate::recover::superblocks::{
    FoundSuperblock, assemble, read_copies, read_superblock, read_superblocks,
};
use crate::storage::{NamedDevice, Storage};

/// Options of an opening.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Present or former log device. It may also be among the other devices.
    pub log: Option<NamedDevice>,
    /// Handling of the tail if the log device is gone.
    pub tail: LostTail,
    /// Checks on the devices.
    pub expected: ExpectedPool,
    /// Names of volumes that cannot be opened if they lack changes, even if the tail is given up:
    /// a mirror has their data.
    pub mirrored: Vec<String>,
    /// Handling of absent devices of a pool with redundancy.
    pub absent: AbsentLegs,
}

/// Handling of absent devices of a pool with redundancy that may have later writes than the present
/// ones: nothing on a device says that it failed, so the other one may have continued without it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AbsentLegs {
    /// Refuse the pool ([`PoolError::AbsentLeg`]).
    #[default]
    Refuse,
    /// Open the pool as it is on the present devices, if only these legs are absent. Their later
    /// writes are lost; if there are any, a later opening with both is refused
    /// ([`PoolError::UsedApart`]).
    GiveUp(Vec<PoolId>),
}

/// Handling of the tail of a lost log device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LostTail {
    /// Refuse the pool. Names of disks change: a blank device may have the name of a log device
    /// that still exists.
    Keep,
    /// Accept the loss if the log device is gone, and refuse the pool if it may come back. Volumes
    /// that lack changes cannot be opened.
    #[default]
    Withhold,
    /// Give the tail up, wherever the log device is. Volumes that lack changes can be opened. A
    /// blank device does not become the log device.
    GiveUp,
}

/// Device found in place of the log device.
#[derive(Clone, Debug)]
enum FoundLog {
    /// Log device with the newest update.
    Current(NamedDevice),
    /// Log device with an older state of the pool. It can be used again.
    Outdated(NamedDevice),
    /// Blank device: a local SSD after its machine was stopped, or an unused disk.
    Blank(NamedDevice),
    /// Log device with fewer than two whole copies of its superblock.
    Damaged(NamedDevice),
    /// Another device, with this name.
    Other(String),
    Missing,
}

/// Use of a log device after its tail was copied to the other devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogUse {
    Continue,
    /// Open without it: it fails writes.
    Detach,
}

/// Why an attempt to open a pool failed.
enum Failure {
    Final(PoolError),
    /// Failure of this log device, after its tail was copied.
    WithLog(PoolError, NamedDevice),
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Failure {
        Failure::Final(error)
    }
}

/// Way to open a pool that has a log device.
#[derive(Clone, Debug)]
enum OpenPlan {
    /// Open with this log device and its tail.
    Whole(NamedDevice),
    /// Open with this log device, or without any. The tail is empty.
    Drained(Option<NamedDevice>),
    /// Open without the tail, which is lost.
    Prefix,
}

fn plan(found: FoundLog, superblock: &Superblock, tail: LostTail) -> Result<OpenPlan, PoolError> {
    let is_blank = matches!(found, FoundLog::Blank(_));
    // Device names change: a blank device under this name does not prove that the log device is
    // empty.
    if superblock.tail.is_empty() && !(is_blank && tail == LostTail::Keep) {
        return Ok(match found {
            FoundLog::Current(named) => OpenPlan::Whole(named),
            // The operator gave the tail up wherever the log device is, so this blank device may be
            // another disk.
            FoundLog::Blank(_) if tail == LostTail::GiveUp => OpenPlan::Drained(None),
            FoundLog::Outdated(named) | FoundLog::Blank(named) | FoundLog::Damaged(named) => {
                OpenPlan::Drained(Some(named))
            }
            FoundLog::Other(_) | FoundLog::Missing => OpenPlan::Drained(None),
        });
    }
    let device = match (found, tail) {
        (FoundLog::Current(named), _) => return Ok(OpenPlan::Whole(named)),
        (_, LostTail::GiveUp)
        | (FoundLog::Outdated(_) | FoundLog::Blank(_), LostTail::Withhold) => {
            return Ok(OpenPlan::Prefix);
        }
        (FoundLog::Outdated(named), _) => format!("{} has an older state of the pool", named.name),
        (FoundLog::Blank(named), _) => format!("{} is blank", named.name),
        (FoundLog::Damaged(named), _) => format!("the superblock of {} is damaged", named.name),
        (FoundLog::Other(name), _) => format!("{name} is another device"),
        (FoundLog::Missing, _) => "it was not found".to_owned(),
    };
    Err(log_missing(superblock, device, is_blank))
}

/// Error of a pool with a tail whose log device was not found.
pub(crate) fn log_missing(superblock: &Superblock, device: String, is_blank: bool) -> PoolError {
    let pool = superblock.name.clone();
    let (id, slots) = superblock.log_device.map(|log| (log.id, log.segments)).unwrap_or_default();
    let slot_bytes = u64::from(superblock.segment_blocks) * BLOCK_BYTES as u64;
    let (at_most_bytes, update) = (u64::from(slots) * slot_bytes, superblock.update);
    PoolError::LogDeviceMissing { pool, id, device, at_most_bytes, update, is_blank }
}

impl Pool {
    /// Opens the pool on these devices, in any order. Recovery replays the log, and ends with a
    /// checkpoint.
    ///
    /// # Errors
    /// As [`Pool::open_with`].
    pub async fn open(devices: Vec<NamedDevice>) -> Result<Pool, PoolError> {
        Pool::open_with(devices, &OpenOptions::default()).await
    }

    /// Opens the pool on these devices, in any order, with its log device.
    ///
    /// # Errors
    /// [`PoolError`] names the device and the reason, for devices that are not one complete and
    /// current pool, damaged metadata, and errors of devices. [`PoolError::LogDeviceMissing`] if
    /// changes would be lost, and [`PoolError::AbsentLeg`] if they may be.
    pub async fn open_with(
        devices: Vec<NamedDevice>,
        options: &OpenOptions,
    ) -> Result<Pool, PoolError> {
        let (pool, plan) = open_or_detach(devices.clone(), options).await?;
        let name = match (plan, &options.log) {
            (Some(OpenPlan::Prefix), Some(log)) => log.name.clone(),
            _ => return Ok(pool),
        };
        // The superblock now says that the tail is empty, so the device can be the log device
        // again.
        let closed = pool.close().await;
        closed.map_err(|error| PoolError::Device { device: name, error })?;
        drop(pool);
        Ok(open_or_detach(devices, options).await?.0)
    }
}

/// Opens a pool. If the log device fails writes after its tail was copied to the other devices,
/// opens without it.
async fn open_or_detach(
    devices: Vec<NamedDevice>,
    options: &OpenOptions,
) -> Result<(Pool, Option<OpenPlan>), PoolError> {
    let (error, log) = match open_once(devices.clone(), options, LogUse::Continue).await {
        Ok(opened) => return Ok(opened),
        Err(Failure::Final(error)) => return Err(error),
        Err(Failure::WithLog(error, log)) => (error, log),
    };
    match open_once(devices, options, LogUse::Detach).await {
        Ok((pool, plan)) => {
            let (pool_name, log) = (&pool.shared().name, &log.name);
            tracing::error!(
                pool = pool_name,
                log,
                %error,
                "the log device does not take writes: the pool continues without it, and has all of \
                 its data"
            );
            Ok((pool, plan))
        }
        Err(Failure::Final(error) | Failure::WithLog(error, _)) => Err(error),
    }
}

async fn open_once(
    devices: Vec<NamedDevice>,
    options: &OpenOptions,
    log_use: LogUse,
) -> Result<(Pool, Option<OpenPlan>), Failure> {
    let FoundDevices { storage, superblock, superblocks, plan } =
        find_devices(&devices, options, log_use).await?;
    let (lost, mirrored) = (options.tail, &options.mirrored[..]);
    let recovery = Recovery { superblocks, plan: plan.as_ref(), log_use, lost, mirrored };
    let pool = recover(storage, superblock, recovery).await?;
    Ok((pool, plan))
}

/// Devices of a closed pool.
pub(super) struct FoundDevices {
    /// Includes the log device if it is used.
    pub(super) storage: Storage,
    /// Newest superblock.
    pub(super) superblock: Superblock,
    pub(super) superblocks: Vec<FoundSuperblock>,
    plan: Option<OpenPlan>,
}

/// Reads the superblocks of the devices.
///
/// # Errors
/// As [`Pool::open_with`], without errors of metadata behind the superblock.
pub(super) async fn find_devices(
    devices: &[NamedDevice],
    options: &OpenOptions,
    log_use: LogUse,
) -> Result<FoundDevices, PoolError> {
    let mut found = read_superblocks(devices).await?;
    let other = match &options.log {
        Some(log) => add_log(&mut found, log).await?,
        None => FoundLog::Missing,
    };
    let (mut storage, superblock, is_log_current) = assemble(&found)?;
    options.expected.check(&superblock, devices)?;
    let unproven = storage.pairs.as_ref().map(|pairs| pairs.unproven()).unwrap_or_default();
    let is_accepted = |id: &PoolId| match &options.absent {
        AbsentLegs::Refuse => false,
        AbsentLegs::GiveUp(accepted) => accepted.contains(id),
    };
    if let Some(id) = unproven.into_iter().find(|id| !is_accepted(id)) {
        return Err(PoolError::AbsentLeg { pool: superblock.name, id });
    }
    let own = found.iter().find(|(_, found)| found.superblock.device == LOG_INDEX);
    let log = match own.map(|(named, found)| (named.clone(), &found.superblock)) {
        Some((named, own)) if superblock.is_former(own) => FoundLog::Other(named.name),
        Some((named, _)) if is_log_current => FoundLog::Current(named),
        Some((named, _)) => FoundLog::Outdated(named),
        None => other,
    };
    let log = fitting(log, &superblock);
    let plan = match superblock.log_device {
        Some(_) => Some(plan(log, &superblock, options.tail)?),
        None => None,
    };
    match (&plan, log_use) {
        (Some(OpenPlan::Whole(named)), _)
        | (Some(OpenPlan::Drained(Some(named))), LogUse::Continue) => {
            attach_log(&mut storage, &superblock, named);
        }
        _ => {}
    }
    let superblocks = found.into_iter().map(|(_, superblock)| superblock).collect();
    Ok(FoundDevices { storage, superblock, superblocks, plan })
}

/// Adds the log device to a storage.
pub(crate) fn attach_log(storage: &mut Storage, superblock: &Superblock, named: &NamedDevice) {
    let Some(record) = superblock.log_device else { return };
    let limit = Sizes::of(&storage.layout).tail;
    let log = LogDevice::new(named.clone(), record.segments, superblock.segment_blocks, limit);
    storage.log = Some(Arc::new(log));
}

/// Refuses a device that is too small for the log device.
fn fitting(found: FoundLog, superblock: &Superblock) -> FoundLog {
    let bytes = superblock.log_device.map_or(0, |record| record.size_bytes);
    match found {
        FoundLog::Current(named)
        | FoundLog::Outdated(named)
        | FoundLog::Blank(named)
        | FoundLog::Damaged(named)
            if named.device.geometry().size_bytes < bytes =>
        {
            FoundLog::Other(named.name)
        }
        found => found,
    }
}

/// Adds the superblock of a log device to the others; otherwise returns the kind of device that was
/// found.
async fn add_log(
    found: &mut Vec<(NamedDevice, FoundSuperblock)>,
    log: &NamedDevice,
) -> Result<FoundLog, PoolError> {
    if found.iter().any(|(named, _)| named.name == log.name) {
        return Ok(FoundLog::Missing);
    }
    let pool = found.first().map(|(_, found)| found.superblock.pool);
    let is_own =
        |superblock: &Superblock| superblock.device == LOG_INDEX && Some(superblock.pool) == pool;
    match read_superblock(log).await {
        Ok(own) if is_own(&own.superblock) => {
            let known = found.iter().map(|(_, found)| found.superblock.log_device);
            let is_known = known.flatten().any(|record| record.id == own.superblock.device_id());
            if !is_known {
                return Ok(FoundLog::Other(log.name.clone()));
            }
            found.push((log.clone(), own));
            Ok(FoundLog::Missing)
        }
        Ok(_) => Ok(FoundLog::Other(log.name.clone())),
        Err(PoolError::NotAPool { .. }) => {
            let size_bytes = log.device.geometry().size_bytes;
            Ok(match is_empty(&log.device, size_bytes).await {
                Ok(true) => FoundLog::Blank(log.clone()),
                Ok(false) | Err(_) => FoundLog::Other(log.name.clone()),
            })
        }
        // The superblock is damaged, or its first update was interrupted and there is no tail.
        Err(PoolError::Superblock { .. }) => {
            let copies = read_copies(log).await.0;
            Ok(match copies.into_iter().flatten().any(|superblock| is_own(&superblock)) {
                true => FoundLog::Damaged(log.clone()),
                false => FoundLog::Other(log.name.clone()),
            })
        }
        Err(error) => {
            tracing::error!(device = log.name, %error, "log device cannot be read");
            Ok(FoundLog::Missing)
        }
    }
}

/// Input of a recovery besides the storage and its newest superblock.
struct Recovery<'a> {
    superblocks: Vec<FoundSuperblock>,
    plan: Option<&'a OpenPlan>,
    log_use: LogUse,
    lost: LostTail,
    mirrored: &'a [String],
}

async fn recover(
    mut storage: Storage,
    mut superblock: Superblock,
    recovery: Recovery<'_>,
) -> Result<Pool, Failure> {
    let Recovery { superblocks, plan, log_use, lost, mirrored } = recovery;
    let sizes = Sizes::of(&storage.layout);
    let cache = PageCache::new(CACHE_PAGES);
    let checkpoint = read_checkpoint(&storage, &cache, &superblock).await?;
    let (recent, volume_table) =
        (Recent::new(sizes.table(), superblock.log), checkpoint.volume_table);
    let mut replay = Replay::new(&storage, &superblock, recent, volume_table, checkpoint.trees);
    let is_prefix = matches!(plan, Some(OpenPlan::Prefix));
    let gives_up = lost == LostTail::GiveUp && !superblock.tail.is_empty();
    replay.proof = match plan {
        Some(OpenPlan::Prefix) => LossEvidence::Accepted,
        Some(OpenPlan::Whole(_)) if gives_up => LossEvidence::Accepted,
        // No volume is marked, so the log device has no host data that the other devices lack, only
        // pages of checkpoints.
        Some(OpenPlan::Whole(_)) if superblock.tail.is_empty() => LossEvidence::OfHosts,
        Some(OpenPlan::Drained(_)) => LossEvidence::OfHosts,
        Some(OpenPlan::Whole(_)) | None => LossEvidence::Any,
    };
    replay.equalizes = true;
    replay.run().await?;
    let sequence = replay.sequence();
    if let (Some(OpenPlan::Whole(log)), LossEvidence::Any) = (plan, replay.proof)
        && sequence < superblock.reached
    {
        let (device, reached) = (log.name.clone(), superblock.reached);
        return Err(PoolError::TailMissing { device, sequence, reached }.into());
    }
    let device = format!("a device of pool {}", superblock.name);
    let failure = |error| PoolError::Device { device: device.clone(), error };
    if let Some(log) = &storage.log {
        // After this, the other devices have everything that the log device has.
        let copied = Copier::new(log.clone()).copy(&storage, &replay.on_log).await;
        copied.map_err(failure)?;
    }
    let on_disk = superblock.clone();
    let Replay { recent, frozen, mut volume_table, trees, segments: log_segments, .. } = replay;
    if log_use == LogUse::Detach {
        storage.log = None;
        (superblock.tail, superblock.reached) = (TailVolumes::default(), 0);
    }
    let log = storage.log.clone();
    let with_log = |error| match &log {
        Some(log) if log.has_failed() => Failure::WithLog(error, log.named.clone()),
        Some(_) | None => Failure::Final(error),
    };
    repair(&storage, &on_disk, &superblocks).await.map_err(with_log)?;
    if let Some(pairs) = &storage.pairs {
        // Absent legs are missing from here on, before any of this opening's writes.
        superblock = pairs.settle().await.map_err(failure)?;
    }
    // Replayed chunks may still be in volatile caches.
    storage.flush_table().await.map_err(failure)?;
    if is_prefix {
        let made = superblock.tail.made_since(volume_table.next_id);
        tracing::error!(
            pool = superblock.name,
            sequence,
            lost_volumes = made,
            "the log device is gone, and with it the end of the log: volumes lack changes, and those \
             that were made since are lost"
        );
    }
    if is_prefix || gives_up && sequence < on_disk.reached {
        mark_incomplete(&mut volume_table, &on_disk.tail, |name| {
            lost != LostTail::GiveUp || mirrored.iter().any(|mirrored| mirrored == name)
        });
    }
    let (usage, meta_usage) = (checkpoint.usage, checkpoint.meta_usage);
    let is_live = |segment: u32| {
        usage.weights[segment as usize] > 0 || meta_usage.weights[segment as usize] > 0
    };
    let mut segments = Segments::new(storage.layout.segments(), &log_segments, is_live);
    storage.layout.removed_segments().for_each(|range| segments.withhold(range));
    let free = segments.free();
    let begun = Position::begin(random_u64(), sequence, superblock.segment_blocks, &mut segments);
    let position = begun.map_err(|_| PoolError::Full { pool: superblock.name.clone(), free })?;
    let position = position.on_slots(storage.log.as_ref().map_or(1, |log| log.slots));
    let volume_table_bytes = checkpoint.volume_table_bytes;
    let opened = Opened {
        position,
        segments,
        recent,
        frozen,
        volume_table,
        trees,
        usage,
        meta_usage,
        volume_table_bytes,
        superblock,
    };
    Pool::start(storage, sizes, opened).await.map_err(with_log)
}

/// Marks chosen volumes that lack changes, so that they cannot be opened. The others have content
/// of an earlier time: they are no legs any more.
fn mark_incomplete(
    volume_table: &mut VolumeTable,
    tail: &TailVolumes,
    is_chosen: impl Fn(&str) -> bool,
) {
    for (id, volume) in &mut volume_table.volumes {
        match tail.has(*id) && volume.is_present_volume() {
            true if is_chosen(&volume.name) => volume.incomplete = true,
            true => volume.release_leg(),
            false => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_blockdev::MemoryDevice;

    #[test]
    fn log_device_decides_how_a_pool_opens() {
        let device = MemoryDevice::new(1 << 20, 512).unwrap();
        let named = NamedDevice { name: "log".to_owned(), device: Arc::new(device) };
        let superblock = |tail| Superblock {
            update: 1,
            pool: Default::default(),
            name: "fast".to_owned(),
            device: 0,
            devices: Vec::new(),
            pairs: Vec::new(),
            segment_blocks: 16,
            log: 1,
            start: crate::ondisk::superblock::LogStart {
                sequence: 1,
                block: 0,
                following: 0,
                slot: 0,
            },
            root: crate::ondisk::entry::MapEntry::HOLE,
            log_device: None,
            tail,
            reached: 0,
            encryption: false,
            skipped: 0,
        };
        let decide =
            |found: &FoundLog, tail, lost| match plan(found.clone(), &superblock(tail), lost) {
                Ok(OpenPlan::Whole(_)) => "whole",
                Ok(OpenPlan::Drained(Some(_))) => "drained",
                Ok(OpenPlan::Drained(None)) => "without",
                Ok(OpenPlan::Prefix) => "prefix",
                Err(_) => "refused",
            };
        for (found, drained, keep, withhold, give_up) in [
            (FoundLog::Current(named.clone()), "whole", "whole", "whole", "whole"),
            (FoundLog::Outdated(named.clone()), "drained", "refused", "prefix", "prefix"),
            (FoundLog::Blank(named.clone()), "drained", "refused", "prefix", "prefix"),
            (FoundLog::Damaged(named), "drained", "refused", "refused", "prefix"),
            (FoundLog::Other(String::new()), "without", "refused", "refused", "prefix"),
            (FoundLog::Missing, "without", "refused", "refused", "prefix"),
        ] {
            for (lost, expected) in [
                (LostTail::Keep, keep),
                (LostTail::Withhold, withhold),
                (LostTail::GiveUp, give_up),
            ] {
                let empty = decide(&found, TailVolumes::default(), lost);
                // A caller that does not pass `Keep` has searched for the log device, and checked
                // that the blank device is unused.
                let expected_empty = match (&found, lost) {
                    (FoundLog::Blank(_), LostTail::Keep) => "refused",
                    (FoundLog::Blank(_), LostTail::GiveUp) => "without",
                    _ => drained,
                };
                assert_eq!(empty, expected_empty, "{found:?} {lost:?}");
                let all = decide(&found, TailVolumes::All, lost);
                assert_eq!(all, expected, "{found:?} {lost:?}");
            }
        }
    }
}

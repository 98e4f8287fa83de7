//! Creation of a pool: checks its devices, and writes their superblocks last.

use std::collections::BTreeMap;
use std::sync::Arc;

use flagstone_blockdev::SharedDevice;
use flagstone_runtime::{buf, random_u64};

use super::pool::Pool;
use super::shared::Opened;
use super::usage::SegmentUsage;
use crate::error::PoolError;
use crate::id::PoolId;
use crate::limits::{
    BLOCK_BYTES, DEVICES_MAX, LOG_SLOTS, POOL_NAME_MAX, SEGMENT_BLOCKS_DEFAULT, SEGMENTS_MAX,
};
use crate::log::device::LogDevice;
use crate::log::position::Position;
use crate::log::segments::Segments;
use crate::manage::space::Sizes;
use crate::map::recent::Recent;
use crate::ondisk::entry::MapEntry;
use crate::ondisk::layout::{PoolLayout, segments_of};
use crate::ondisk::legs::{LEGS, LegRecord, LegState, Pair, device_of};
use crate::ondisk::superblock::{
    COPIES, DeviceRecord, LogStart, SUPERBLOCK_AREA_BYTES, Superblock, TailVolumes, copy_offset,
};
use crate::ondisk::volume_table::VolumeTable;
use crate::pairs::{AttachedLeg, Pairs};
use crate::storage::{NamedDevice, Storage, read_block, write_block};

/// Options of a new pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateOptions {
    /// Name, 1 to 63 bytes.
    pub name: String,
    /// Blocks of 4 KiB per segment: a power of two from 16 to 8,192.
    pub segment_blocks: u32,
    /// Allows devices that contain data.
    pub overwrite: bool,
    /// Copies of everything.
    pub redundancy: Redundancy,
}

/// Copies of everything in a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redundancy {
    /// One: the loss of a device loses the pool.
    #[default]
    None,
    /// Two, on pairs of devices in the order in which they are named.
    Mirror,
}

impl CreateOptions {
    /// Segments of 8 MiB; refuses devices that contain data.
    pub fn new(name: impl Into<String>) -> CreateOptions {
        CreateOptions {
            name: name.into(),
            segment_blocks: SEGMENT_BLOCKS_DEFAULT,
            overwrite: false,
            redundancy: Redundancy::None,
        }
    }

    /// Checks the number of devices of a new pool.
    ///
    /// # Errors
    /// [`PoolError::Options`] with the accepted numbers.
    pub fn check_devices(&self, count: usize, has_log: bool) -> Result<(), PoolError> {
        if !(1..=DEVICES_MAX).contains(&count) {
            return Err(PoolError::Options("a pool needs 1 to 16 devices"));
        }
        let is_fitting = match self.redundancy {
            Redundancy::None => true,
            Redundancy::Mirror => count.is_multiple_of(LEGS) && !has_log,
        };
        match is_fitting {
            true => Ok(()),
            false => Err(PoolError::Options(
                "a pool with redundancy needs an even number of devices, and no log device, which \
                 would be a single copy of the newest changes",
            )),
        }
    }
}

/// Checks that a pool can use this device.
pub(super) async fn check_device(
    named: &NamedDevice,
    segment_blocks: u32,
    overwrite: bool,
) -> Result<DeviceRecord, PoolError> {
    let device = named.name.clone();
    let geometry = named.device.geometry();
    let unsuitable = |reason| PoolError::Unsuitable { device: device.clone(), reason };
    if geometry.read_only {
        return Err(unsuitable("it is read-only"));
    }
    if geometry.block_bytes as usize > BLOCK_BYTES {
        return Err(unsuitable("its blocks exceed 4 KiB"));
    }
    let segments = segments_of(geometry.size_bytes, segment_blocks);
    if segments == 0 {
        return Err(unsuitable("it is smaller than one segment and the superblock"));
    }
    if !overwrite
        && !is_empty(&named.device, geometry.size_bytes)
            .await
            .map_err(|error| PoolError::Device { device: device.clone(), error })?
    {
        return Err(PoolError::NotEmpty { device });
    }
    let segments = segments.min(u64::from(SEGMENTS_MAX)) as u32;
    Ok(DeviceRecord { id: PoolId::random(), size_bytes: geometry.size_bytes, segments })
}

pub(super) async fn is_empty(
    device: &SharedDevice,
    size_bytes: u64,
) -> Result<bool, flagstone_blockdev::IoError> {
    let len = SUPERBLOCK_AREA_BYTES.min(size_bytes) as usize;
    if device.try_read_cached(0, len).is_some() {
        return Ok(true);
    }
    let read = device.read(0, buf::alloc(len).await).await?;
    let (mark, rest) = read.split_at(MARK_BYTES);
    let is_blank = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    Ok(is_blank(rest) && (is_blank(mark) || mark.starts_with(&MARK_MAGIC)))
}

/// Magic of the mark on a device during a creation. After a crash, a device with a mark counts as
/// empty.
const MARK_MAGIC: [u8; 8] = *b"FSPOOLM\n";

/// Length of a mark: magic, and identifier of the device.
const MARK_BYTES: usize = MARK_MAGIC.len() + 16;

/// Checks that a device can be the log device, and counts its usable slots.
pub(super) async fn check_log_device(
    named: &NamedDevice,
    options: &CreateOptions,
) -> Result<DeviceRecord, PoolError> {
    let record = check_device(named, options.segment_blocks, options.overwrite).await?;
    let segments = record.segments.min(*LOG_SLOTS.end());
    if segments < *LOG_SLOTS.start() {
        let reason = "a log device needs four segments, of 8 MiB by default, and 1 MiB";
        return Err(PoolError::Unsuitable { device: named.name.clone(), reason });
    }
    Ok(DeviceRecord { segments, ..record })
}

/// Removes the superblocks of a device.
pub(super) async fn wipe(named: &NamedDevice) -> Result<(), PoolError> {
    for copy in 0..COPIES {
        wipe_copy(named, copy).await?;
    }
    Ok(())
}

/// Removes one copy of a device's superblock.
pub(super) async fn wipe_copy(named: &NamedDevice, copy: usize) -> Result<(), PoolError> {
    let written = write_block(&named.device, copy_offset(copy), &[0; BLOCK_BYTES]).await;
    written.map_err(|error| PoolError::Device { device: named.name.clone(), error })
}

/// Removes the superblocks of an earlier pool, which would contradict the new ones. The first copy
/// of each device then has the device's identifier as a mark: a device that was given under two
/// names has only the mark of the second.
pub(super) async fn wipe_all(
    devices: &[NamedDevice],
    records: &[DeviceRecord],
) -> Result<(), PoolError> {
    let failure = |named: &NamedDevice| {
        let device = named.name.clone();
        |error| PoolError::Device { device, error }
    };
    let mut marks = Vec::with_capacity(devices.len());
    for (named, record) in devices.iter().zip(records) {
        let mut mark = [0; BLOCK_BYTES];
        mark[..MARK_MAGIC.len()].copy_from_slice(&MARK_MAGIC);
        mark[MARK_MAGIC.len()..MARK_BYTES].copy_from_slice(&record.id.0);
        let written = write_block(&named.device, copy_offset(0), &mark).await;
        written.map_err(failure(named))?;
        marks.push(mark);
    }
    let mut alias = None;
    for (named, mark) in devices.iter().zip(marks) {
        let read = read_block(&named.device, copy_offset(0)).await;
        if read.map_err(failure(named))? != mark {
            alias.get_or_insert(named);
        }
    }
    for named in devices {
        wipe(named).await?;
    }
    alias.map_or(Ok(()), |named| {
        let (device, reason) = (named.name.clone(), "another name of it is among the devices");
        Err(PoolError::Unsuitable { device, reason })
    })
}

/// Legs of a new pool, which have as many segments as the smaller one.
fn pair_up(records: &[DeviceRecord]) -> (Vec<DeviceRecord>, Vec<Pair>) {
    let leg = |record: &DeviceRecord| LegRecord {
        id: record.id,
        size_bytes: record.size_bytes,
        state: LegState::InSync,
        since: 0,
    };
    let pairs = records.chunks(LEGS).map(|two| {
        let pair = [leg(&two[0]), leg(&two[1])];
        (device_of(&pair, two[0].segments.min(two[1].segments)), pair)
    });
    pairs.unzip()
}

impl Pool {
    /// Creates a pool on these devices, and opens it. The superblock is written last, so a failed
    /// creation leaves no pool.
    ///
    /// # Errors
    /// [`PoolError`] for devices that contain data, are too small or named twice, options out of
    /// range, and errors of the devices.
    pub async fn create(
        devices: Vec<NamedDevice>,
        options: &CreateOptions,
    ) -> Result<Pool, PoolError> {
        Pool::create_with_log(devices, None, options).await
    }

    /// Creates a pool with a log device, and opens it.
    ///
    /// # Errors
    /// As [`Pool::create`]; the log device needs four segments.
    pub async fn create_with_log(
        devices: Vec<NamedDevice>,
        log_device: Option<NamedDevice>,
        options: &CreateOptions,
    ) -> Result<Pool, PoolError> {
        if !(1..=POOL_NAME_MAX).contains(&options.name.len()) {
            return Err(PoolError::Options("the name needs 1 to 63 bytes"));
        }
        options.check_devices(devices.len(), log_device.is_some())?;
        if !options.segment_blocks.is_power_of_two() {
            return Err(PoolError::Options("a segment needs a power of two of blocks"));
        }
        let mut records = Vec::with_capacity(devices.len());
        for named in &devices {
            let record = check_device(named, options.segment_blocks, options.overwrite).await;
            records.push(record?);
        }
        let has_redundancy = options.redundancy == Redundancy::Mirror;
        let table = records.clone();
        let (records, pairs) = match has_redundancy {
            true => pair_up(&records),
            false => (records, Vec::new()),
        };
        let layout = PoolLayout::new(options.segment_blocks, &records).map_err(|_| {
            PoolError::Options(
                "the devices together need 32 to 16,777,216 segments, of 8 MiB by default",
            )
        })?;
        let log_record = match &log_device {
            Some(named) => Some(check_log_device(named, options).await?),
            None => None,
        };
        let (mut all, mut all_records) = (devices.clone(), table);
        all.extend(log_device.clone());
        all_records.extend(log_record);
        wipe_all(&all, &all_records).await?;
        let segments_count = layout.segments() as usize;
        let sizes = Sizes::of(&layout);
        let mut segments = Segments::new(layout.segments(), &[], |_| false);
        let log = random_u64();
        let position = Position::begin(log, 1, options.segment_blocks, &mut segments);
        let position = position.expect("a new pool has free segments");
        let position = position.on_slots(log_record.map_or(1, |record| record.segments));
        let superblock = Superblock {
            update: 0,
            pool: PoolId::random(),
            name: options.name.clone(),
            device: 0,
            devices: records,
            pairs,
            segment_blocks: options.segment_blocks,
            log,
            start: LogStart { sequence: 1, block: 0, following: 0, slot: 0 },
            root: MapEntry::HOLE,
            log_device: log_record,
            tail: TailVolumes::default(),
            reached: 0,
            encryption: false,
            skipped: 0,
        };
        let pairs = has_redundancy.then(|| {
            let leg = |named: &NamedDevice| AttachedLeg { named: named.clone(), is_current: true };
            let legs = devices.chunks(LEGS).map(|two| [Some(leg(&two[0])), Some(leg(&two[1]))]);
            Arc::new(Pairs::new(&superblock, legs.collect()))
        });
        let devices = pairs.as_ref().map_or(devices, Pairs::devices);
        let opened = Opened {
            position,
            segments,
            recent: Recent::new(sizes.table(), log),
            frozen: None,
            volume_table: VolumeTable::default(),
            trees: BTreeMap::new(),
            usage: SegmentUsage::new(segments_count),
            meta_usage: SegmentUsage::new(segments_count),
            volume_table_bytes: Vec::new(),
            superblock,
        };
        let log = log_device.zip(log_record).map(|(named, record)| {
            let log = LogDevice::new(named, record.segments, options.segment_blocks, sizes.tail);
            Arc::new(log)
        });
        Pool::start(Storage { devices: devices.into(), layout, log, pairs }, sizes, opened).await
    }
}

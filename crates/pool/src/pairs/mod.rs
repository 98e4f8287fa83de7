//! Pairs: the two legs of each device of a pool with redundancy, and the superblock updates that
//! record their states.
//!
//! Invariants:
//! - a write is acknowledged when every leg that is in sync or behind has it. A leg that failed is
//!   first recorded as missing on the other legs;
//! - a device always has a leg in sync: the last one does not fail, but its calls do;
//! - one superblock update at a time, legs in sync first: a leg that is behind never has an update
//!   that a leg in sync lacks. No update follows a failed or dropped one.
//!
//! A call that a leg does not answer in time counts as failed. A write may still take effect later,
//! so a device is not taken into use while it has writes in progress ([`WriteCalls`]).

mod added;
mod calls;
mod device;
mod leg;
mod pair;
pub(crate) mod rebuild;
mod repair;
mod segment_sums;
mod set;
mod together;
mod updates;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flagstone_blockdev::{Geometry, IoError};
use flagstone_runtime::sync::SharedNotify;
use parking_lot::Mutex;

pub(crate) use self::added::{AddError, AddedPair};
pub(crate) use self::calls::WriteCalls;
pub(crate) use self::device::PairDevice;
use self::leg::LegDevice;
pub(crate) use self::leg::LegStatus;
use self::pair::Pair;
use self::repair::ReadFaults;
pub(crate) use self::repair::Repaired;
use self::set::PairSet;
use self::updates::LegChange;
use crate::id::PoolId;
use crate::ondisk::legs::{LEGS, LegRecord, LegState};
use crate::ondisk::superblock::Superblock;
use crate::storage::NamedDevice;

/// A leg at an opening.
#[derive(Clone, Debug)]
pub(crate) struct AttachedLeg {
    pub(crate) named: NamedDevice,
    /// It has the content that the newest superblock records. Otherwise it gets no copy of that
    /// superblock, which would call it current, but only of the next one.
    pub(crate) is_current: bool,
}

/// All pairs of a pool.
#[derive(Debug)]
pub(crate) struct Pairs {
    pairs: PairSet,
    updates: Mutex<updates::Updates>,
    changed: SharedNotify,
    /// Reads that one leg failed and the other answered.
    pub(crate) failed_reads: AtomicU64,
    /// Blocks that were rewritten from the other leg.
    pub(crate) repaired_blocks: AtomicU64,
    /// Blocks that a rebuild did not copy: no attempt to read them succeeded.
    pub(crate) left_out_blocks: AtomicU64,
    faults: ReadFaults,
    is_rebuilding: AtomicBool,
    /// True for a check, which changes nothing.
    is_read_only: AtomicBool,
    /// True when both legs in sync are known to be equal, so reads use both.
    pub(crate) are_equal: AtomicBool,
}

/// State of a leg for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegInfo {
    /// Identifier.
    pub id: PoolId,
    /// Name of its device; without a path if it was absent at the opening.
    pub device: String,
    /// Its content.
    pub state: LegState,
    /// Segments of the leg.
    pub segments: u32,
    /// True if its device is attached.
    pub is_attached: bool,
    /// Failed call that ended its use since the opening.
    pub failure: Option<IoError>,
}

impl Pairs {
    /// Pairs of a pool with this superblock. `legs` has the attached devices that belong to it; a
    /// leg whose state does not fit its record is recorded by [`Pairs::settle`].
    pub(crate) fn new(superblock: &Superblock, legs: Vec<[Option<AttachedLeg>; LEGS]>) -> Pairs {
        let pair = |(index, attached): (usize, [Option<AttachedLeg>; LEGS])| {
            let records = &superblock.pairs[index];
            let status = |leg: usize| match (records[leg].state, &attached[leg]) {
                (_, Some(AttachedLeg { is_current: false, .. })) | (LegState::Missing, Some(_)) => {
                    LegStatus::Behind { copied: 0 }
                }
                (LegState::InSync, Some(_)) => LegStatus::InSync,
                (LegState::Behind { copied }, Some(_)) => LegStatus::Behind { copied },
                (LegState::Missing, None) => LegStatus::Missing,
                (LegState::InSync | LegState::Behind { .. }, None) => LegStatus::Absent,
            };
            let status = [status(0), status(1)];
            let named = attached.map(|leg| leg.map(|leg| leg.named));
            let geometries = named.iter().flatten().map(|named| named.device.geometry());
            let geometry = geometries.reduce(combined).expect("a device has a leg in sync");
            let device = |(leg, named): (usize, Option<NamedDevice>)| {
                LegDevice::new(named.unwrap_or_else(|| device::absent(&records[leg], geometry)))
            };
            let [one, other] = named;
            Pair::new(status, [device((0, one)), device((1, other))], geometry)
        };
        Pairs {
            pairs: legs.into_iter().enumerate().map(pair).collect(),
            updates: Mutex::new(updates::Updates::new(superblock.clone())),
            changed: SharedNotify::default(),
            failed_reads: AtomicU64::new(0),
            repaired_blocks: AtomicU64::new(0),
            left_out_blocks: AtomicU64::new(0),
            faults: ReadFaults::default(),
            is_rebuilding: AtomicBool::new(false),
            is_read_only: AtomicBool::new(false),
            are_equal: AtomicBool::new(false),
        }
    }

    /// The devices that the pairs are for the pool.
    pub(crate) fn devices(self: &Arc<Self>) -> Vec<NamedDevice> {
        (0..self.pairs.len()).map(|index| self.pair_device(index)).collect()
    }

    /// The device that a pair is for the pool.
    pub(crate) fn pair_device(self: &Arc<Self>, index: usize) -> NamedDevice {
        let names = [0, 1].map(|leg| self.name(index, leg));
        let device = Arc::new(PairDevice { pairs: self.clone(), index });
        NamedDevice { name: names.join(" and "), device }
    }

    /// Attached legs by position in the device table. They get superblocks.
    pub(crate) fn members(&self) -> Vec<(usize, NamedDevice)> {
        let mut members = Vec::new();
        for (index, pair) in self.pairs.iter().enumerate() {
            for (leg, device) in pair.written().devices.into_iter().enumerate() {
                if let Some(device) = device {
                    members.push((LEGS * index + leg, device.named.clone()));
                }
            }
        }
        members
    }

    /// States of the legs, in the order of the table.
    pub(crate) fn legs(&self) -> Vec<LegInfo> {
        let table = self.updates.lock().last.table();
        let leg = |(position, record): (usize, &crate::ondisk::superblock::DeviceRecord)| {
            let (pair, leg) = (&self.pairs[position / LEGS], position % LEGS);
            let device = pair.device(leg);
            let status = pair.status()[leg];
            let state = match status {
                LegStatus::Behind { copied } => {
                    let copied = copied.max(device.copied.load(Ordering::Relaxed));
                    LegState::Behind { copied }
                }
                status => status.recorded(),
            };
            LegInfo {
                id: record.id,
                device: device.name().to_owned(),
                state,
                segments: record.segments,
                is_attached: status.is_written(),
                failure: *device.failure.lock(),
            }
        };
        table.iter().enumerate().map(leg).collect()
    }

    /// Position in the table of a device with this name, or of a missing one with this identifier.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        let ids = self.updates.lock().last.pairs.clone();
        let is_named = |position: &usize| {
            let id = ids[position / LEGS][position % LEGS].id;
            self.device(*position).name() == name || id.to_string() == name
        };
        // A pair that is being added is not in the table so far.
        (0..LEGS * ids.len()).find(is_named)
    }

    /// Present device of the leg at this position.
    fn device(&self, position: usize) -> Arc<LegDevice> {
        self.pairs[position / LEGS].device(position % LEGS)
    }

    /// Absent legs that are called in sync.
    pub(crate) fn absent(&self) -> Vec<PoolId> {
        let legs = self.last().pairs;
        let states = self.pairs.iter().flat_map(|pair| pair.status());
        let absent =
            legs.iter().flatten().zip(states).filter(|(leg, status)| {
                leg.state == LegState::InSync && *status == LegStatus::Absent
            });
        absent.map(|(leg, _)| leg.id).collect()
    }

    /// Absent legs with which the pool may have been used without any of the present ones. Every
    /// use needs a leg in sync of each pair, and records itself there: a pair whose legs in sync
    /// are all present proves that nothing is newer.
    pub(crate) fn unproven(&self) -> Vec<PoolId> {
        let last = self.last();
        let absent = |(index, pair): (usize, &Pair)| {
            let status = pair.status();
            let is_absent = |leg: &usize| {
                let recorded = last.pairs[index][*leg].state;
                status[*leg] == LegStatus::Absent && recorded == LegState::InSync
            };
            (0..LEGS).find(is_absent).map(|leg| last.pairs[index][leg].id)
        };
        let absent: Option<Vec<PoolId>> = self.pairs.iter().enumerate().map(absent).collect();
        absent.unwrap_or_default()
    }

    /// True if a superblock may go to the leg at this position: it records the content of the leg.
    pub(crate) fn is_recorded(&self, superblock: &Superblock, position: usize) -> bool {
        let status = self.pairs[position / LEGS].status()[position % LEGS];
        superblock.leg(position).is_some_and(|leg| leg.state == status.recorded())
    }

    /// True if writes go to the leg at this position.
    pub(crate) fn is_used(&self, position: usize) -> bool {
        self.pairs[position / LEGS].status()[position % LEGS].is_written()
    }

    /// True if the device of the leg at this position has writes in progress.
    pub(crate) fn has_writes(&self, position: usize) -> bool {
        self.device(position).has_writes()
    }

    /// Closes the device of a leg that is recorded as missing, if no write to it is in progress.
    pub(crate) fn close_missing(&self, position: usize) {
        self.pairs[position / LEGS].close_missing(position % LEGS);
    }

    /// Gives the leg at this position another device, which is behind. A rebuild of the former
    /// device ends.
    ///
    /// # Errors
    /// Of the new device, and as [`Pairs::write_superblock`].
    pub(crate) async fn replace(
        &self,
        position: usize,
        record: LegRecord,
        new: NamedDevice,
    ) -> Result<(), IoError> {
        let pair = &self.pairs[position / LEGS];
        if self.is_used(position) {
            self.fail_leg(position, IoError::Unreachable)?;
        }
        self.change(LegChange::Replaced(position, record)).await?;
        pair.replace(position % LEGS, LegDevice::new(new));
        self.settle().await?;
        match self.is_used(position) {
            true => Ok(()),
            false => Err(IoError::WriteFault),
        }
    }

    /// Legs in sync of a device.
    pub(crate) fn in_sync(&self, index: usize) -> Vec<usize> {
        let status = self.pairs[index].status();
        (0..LEGS).filter(|leg| status[*leg] == LegStatus::InSync).collect()
    }

    /// Name of the present device of a leg.
    pub(crate) fn name(&self, index: usize, leg: usize) -> String {
        self.pairs[index].device(leg).name().to_owned()
    }

    /// Name of a device that failed, and is not recorded as missing.
    pub(crate) fn failed(&self) -> Option<String> {
        let positions = 0..LEGS * self.pairs.len();
        let has_failed = |position: &usize| {
            self.pairs[position / LEGS].status()[position % LEGS] == LegStatus::Failed
        };
        positions.filter(has_failed).map(|at| self.device(at).name().to_owned()).next()
    }

    /// Prevents repairs: reads of damaged content use the other leg.
    pub(crate) fn set_read_only(&self) {
        self.is_read_only.store(true, Ordering::Release);
    }

    /// Stops the use of a leg that failed, unless it is the only one in sync.
    ///
    /// # Errors
    /// Of the last leg in sync.
    pub(crate) fn fail_leg(&self, position: usize, error: IoError) -> Result<(), IoError> {
        let pair = &self.pairs[position / LEGS];
        pair.fail(position % LEGS, &pair.device(position % LEGS), error)
    }
}

/// Geometry of a device with two legs.
fn combined(one: Geometry, other: Geometry) -> Geometry {
    Geometry {
        size_bytes: one.size_bytes.min(other.size_bytes),
        block_bytes: one.block_bytes.max(other.block_bytes),
        physical_block_bytes: one.physical_block_bytes.max(other.physical_block_bytes),
        volatile_cache: one.volatile_cache || other.volatile_cache,
        can_discard: false,
        discard_zeroes: false,
        can_write_zeroes: false,
        ..one
    }
}

//! Pairs: the two legs of each device of a pool with redundancy, and the superblock updates that
//! record their states.
//!
//! Invariants:
//! - a write is acknowledged when every leg that is in sync or behind has it. A leg that failed is
//!   first recorded as missing on the other legs;
//! - a device always has a leg in sync: the last one does not fail, but its calls do;
//! - one superblock update at a time, legs in sync first: a leg never has an update that its other
//!   leg lacks. No update follows one that failed or was dropped;
//! - a copy between legs excludes writes to its range.
//!
//! A call that a leg does not answer in time counts as failed. It may still take effect later, so
//! the leg is not used again while such calls are in progress.

mod device;
pub(crate) mod rebuild;
mod updates;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use flagstone_blockdev::{Geometry, IoError, IoFuture, SharedDevice};
use flagstone_runtime::sync::SharedNotify;
use flagstone_runtime::{BufMut, buf, spawn_detached, time};
use parking_lot::{Mutex, RwLock};

pub(crate) use self::device::PairDevice;
use self::updates::LegChange;
use crate::id::PoolId;
use crate::limits::LEG_TIME_LIMIT;
use crate::ondisk::legs::{LEGS, LegRecord, LegState};
use crate::ondisk::superblock::Superblock;
use crate::storage::NamedDevice;

/// Present use of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LegStatus {
    InSync,
    /// Gets all writes; reads do not use it.
    Behind {
        /// Segments that it has, from the first on.
        copied: u32,
    },
    /// Not used any more, and not recorded as missing so far.
    Failed,
    Missing,
}

impl LegStatus {
    /// State in the next superblock.
    fn recorded(self) -> LegState {
        match self {
            LegStatus::InSync => LegState::InSync,
            LegStatus::Behind { copied } => LegState::Behind { copied },
            LegStatus::Failed | LegStatus::Missing => LegState::Missing,
        }
    }

    fn is_written(self) -> bool {
        matches!(self, LegStatus::InSync | LegStatus::Behind { .. })
    }
}

/// A leg: its device, which can be replaced.
#[derive(Debug)]
struct Leg {
    named: RwLock<NamedDevice>,
    /// Calls that did not end in time, and still run.
    hung: Mutex<Arc<AtomicUsize>>,
    /// Segments that a rebuild in progress has copied.
    copied: AtomicU32,
    /// Failed call that ended the use of the device.
    failure: Mutex<Option<IoError>>,
}

#[derive(Debug)]
struct PairState {
    legs: [LegStatus; LEGS],
    /// Byte ranges of the writes in progress.
    writes: Vec<Range<u64>>,
    /// Byte range that is copied between the legs.
    copied: Option<Range<u64>>,
}

#[derive(Debug)]
struct Pair {
    legs: [Leg; LEGS],
    state: Mutex<PairState>,
    changed: SharedNotify,
    geometry: Geometry,
}

/// All pairs of a pool.
#[derive(Debug)]
pub(crate) struct Pairs {
    pairs: Vec<Pair>,
    updates: Mutex<updates::Updates>,
    changed: SharedNotify,
    /// Reads that one leg failed and the other answered.
    pub(crate) failed_reads: AtomicU64,
    /// Blocks that were rewritten from the other leg.
    pub(crate) repaired_blocks: AtomicU64,
    is_rebuilding: AtomicBool,
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

/// Both results, of calls in progress at the same time.
async fn both<T>(
    one: Option<impl Future<Output = T>>,
    other: Option<impl Future<Output = T>>,
) -> [Option<T>; LEGS] {
    let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
    let mut done = [None, None];
    let mut pending = [one.is_some(), other.is_some()];
    std::future::poll_fn(move |cx| {
        use std::task::Poll;
        if pending[0]
            && let Some(call) = one.as_mut().as_pin_mut()
            && let Poll::Ready(result) = call.poll(cx)
        {
            (done[0], pending[0]) = (Some(result), false);
        }
        if pending[1]
            && let Some(call) = other.as_mut().as_pin_mut()
            && let Poll::Ready(result) = call.poll(cx)
        {
            (done[1], pending[1]) = (Some(result), false);
        }
        match pending {
            [false, false] => Poll::Ready(std::mem::take(&mut done)),
            _ => Poll::Pending,
        }
    })
    .await
}

fn overlaps(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Leg {
    /// Ends a call in time.
    async fn limited<T: 'static>(&self, mut call: IoFuture<T>) -> Result<T, IoError> {
        if let Ok(result) = time::timeout(LEG_TIME_LIMIT, &mut call).await {
            return result;
        }
        let device = &self.named.read().name;
        tracing::error!(device, "device does not answer");
        let hung = self.hung.lock().clone();
        hung.fetch_add(1, Ordering::AcqRel);
        spawn_detached(async move {
            let _late = call.await;
            hung.fetch_sub(1, Ordering::AcqRel);
        });
        Err(IoError::Unreachable)
    }

    fn device(&self) -> SharedDevice {
        self.named.read().device.clone()
    }
}

/// A write in progress.
struct WriteInProgress<'a> {
    pair: &'a Pair,
    range: Range<u64>,
}

impl Drop for WriteInProgress<'_> {
    fn drop(&mut self) {
        let mut state = self.pair.state.lock();
        if let Some(index) = state.writes.iter().position(|range| *range == self.range) {
            state.writes.swap_remove(index);
        }
        drop(state);
        self.pair.changed.notify();
    }
}

/// A range that is not written.
struct CopiedRange<'a>(&'a Pair);

impl Drop for CopiedRange<'_> {
    fn drop(&mut self) {
        self.0.state.lock().copied = None;
        self.0.changed.notify();
    }
}

impl Pair {
    /// Waits until no copy has the range; returns the legs to write.
    async fn begin_write(&self, range: Range<u64>) -> (WriteInProgress<'_>, [bool; LEGS]) {
        let begin = || {
            let mut state = self.state.lock();
            if state.copied.as_ref().is_some_and(|copied| overlaps(copied, &range)) {
                return None;
            }
            state.writes.push(range.clone());
            Some(state.legs.map(LegStatus::is_written))
        };
        let written = self.changed.wait_for(begin).await;
        (WriteInProgress { pair: self, range }, written)
    }

    /// Excludes writes from a range.
    async fn exclude(&self, range: Range<u64>) -> CopiedRange<'_> {
        let begin = || {
            let mut state = self.state.lock();
            state.copied.is_none().then(|| state.copied = Some(range.clone()))
        };
        self.changed.wait_for(begin).await;
        let excluded = CopiedRange(self);
        let is_idle = || {
            let state = self.state.lock();
            (!state.writes.iter().any(|write| overlaps(write, &range))).then_some(())
        };
        self.changed.wait_for(is_idle).await;
        excluded
    }

    fn status(&self) -> [LegStatus; LEGS] {
        self.state.lock().legs
    }

    /// Stops the use of a leg that failed, unless it is the only one in sync.
    ///
    /// # Errors
    /// Of the last leg in sync.
    fn fail(&self, leg: usize, error: IoError) -> Result<(), IoError> {
        let mut state = self.state.lock();
        let other = state.legs[1 - leg];
        match state.legs[leg] {
            LegStatus::InSync if other != LegStatus::InSync => return Err(error),
            LegStatus::InSync | LegStatus::Behind { .. } => {}
            LegStatus::Failed | LegStatus::Missing => return Ok(()),
        }
        state.legs[leg] = LegStatus::Failed;
        drop(state);
        *self.legs[leg].failure.lock() = Some(error);
        let device = &self.legs[leg].named.read().name;
        tracing::error!(device, %error, "device failed: the pool continues with the other copy");
        Ok(())
    }

    /// Judges the results of a change.
    ///
    /// # Errors
    /// Unless a leg in sync has the change.
    fn judge(&self, results: [Option<Result<(), IoError>>; LEGS]) -> Result<(), IoError> {
        let mut first = None;
        for (leg, result) in results.iter().enumerate() {
            if let Some(Err(error)) = result {
                first = first.or(Some(*error));
                if results[1 - leg] == Some(Ok(())) {
                    self.fail(leg, *error)?;
                }
            }
        }
        let state = self.state.lock();
        let has = |leg: usize| state.legs[leg] == LegStatus::InSync && results[leg] == Some(Ok(()));
        match (0..LEGS).any(has) {
            true => Ok(()),
            false => Err(first.unwrap_or(IoError::Unreachable)),
        }
    }
}

impl Pairs {
    /// Pairs of a pool with this superblock. `legs` has the attached devices that belong to it; a
    /// leg whose state does not fit its record is recorded by [`Pairs::settle`].
    pub(crate) fn new(superblock: &Superblock, legs: Vec<[Option<NamedDevice>; LEGS]>) -> Pairs {
        let pair = |(index, named): (usize, [Option<NamedDevice>; LEGS])| {
            let records = &superblock.pairs[index];
            let status = |leg: usize| match (records[leg].state, &named[leg]) {
                (LegState::InSync, Some(_)) => LegStatus::InSync,
                (LegState::Behind { copied }, Some(_)) => LegStatus::Behind { copied },
                (LegState::Missing, Some(_)) => LegStatus::Behind { copied: 0 },
                (LegState::Missing, None) => LegStatus::Missing,
                (LegState::InSync | LegState::Behind { .. }, None) => LegStatus::Failed,
            };
            let status = [status(0), status(1)];
            let geometries = named.iter().flatten().map(|named| named.device.geometry());
            let geometry = geometries.reduce(combined).expect("a device has a leg in sync");
            let leg = |(leg, named): (usize, Option<NamedDevice>)| {
                let absent = || device::absent(&records[leg], geometry);
                let named = RwLock::new(named.unwrap_or_else(absent));
                let (hung, copied) = (Mutex::default(), AtomicU32::new(0));
                Leg { named, hung, copied, failure: Mutex::default() }
            };
            let [one, other] = named;
            let state = PairState { legs: status, writes: Vec::new(), copied: None };
            let legs = [leg((0, one)), leg((1, other))];
            Pair { legs, state: Mutex::new(state), changed: SharedNotify::default(), geometry }
        };
        Pairs {
            pairs: legs.into_iter().enumerate().map(pair).collect(),
            updates: Mutex::new(updates::Updates::new(superblock.clone())),
            changed: SharedNotify::default(),
            failed_reads: AtomicU64::new(0),
            repaired_blocks: AtomicU64::new(0),
            is_rebuilding: AtomicBool::new(false),
            are_equal: AtomicBool::new(false),
        }
    }

    /// The devices that the pairs are for the pool.
    pub(crate) fn devices(self: &Arc<Self>) -> Vec<NamedDevice> {
        let device = |index: usize| {
            let names: Vec<String> =
                self.pairs[index].legs.iter().map(|leg| leg.named.read().name.clone()).collect();
            let device = Arc::new(PairDevice { pairs: self.clone(), index });
            NamedDevice { name: names.join(" and "), device }
        };
        (0..self.pairs.len()).map(device).collect()
    }

    /// Attached legs by position in the device table: those that get superblocks.
    pub(crate) fn members(&self) -> Vec<(usize, NamedDevice)> {
        let mut members = Vec::new();
        for (index, pair) in self.pairs.iter().enumerate() {
            let status = pair.status();
            for (leg, status) in status.into_iter().enumerate() {
                if status.is_written() {
                    members.push((LEGS * index + leg, pair.legs[leg].named.read().clone()));
                }
            }
        }
        members
    }

    /// States of the legs, in the order of the table.
    pub(crate) fn legs(&self) -> Vec<LegInfo> {
        let table = self.updates.lock().last.table();
        let mut legs = Vec::new();
        for pair in &self.pairs {
            let status = pair.status();
            for (leg, status) in pair.legs.iter().zip(status) {
                let state = match status {
                    LegStatus::Behind { copied } => {
                        let copied = copied.max(leg.copied.load(Ordering::Relaxed));
                        LegState::Behind { copied }
                    }
                    status => status.recorded(),
                };
                let device = leg.named.read().name.clone();
                let record = table[legs.len()];
                let (id, segments, failure) = (record.id, record.segments, *leg.failure.lock());
                let is_attached = status.is_written();
                legs.push(LegInfo { id, device, state, segments, is_attached, failure });
            }
        }
        legs
    }

    /// Position in the table of a device with this name, or of a missing one with this identifier.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        let ids = self.updates.lock().last.pairs.clone();
        let is_named = |position: &usize| {
            let leg = &self.pairs[position / LEGS].legs[position % LEGS];
            let id = ids[position / LEGS][position % LEGS].id;
            leg.named.read().name == name || id.to_string() == name
        };
        (0..LEGS * self.pairs.len()).find(is_named)
    }

    /// True if writes go to the leg at this position.
    pub(crate) fn is_used(&self, position: usize) -> bool {
        self.pairs[position / LEGS].status()[position % LEGS].is_written()
    }

    /// True if calls to the leg at this position did not end in time, and still run.
    pub(crate) fn has_hung_calls(&self, position: usize) -> bool {
        let hung = self.pairs[position / LEGS].legs[position % LEGS].hung.lock().clone();
        hung.load(Ordering::Acquire) > 0
    }

    /// Gives the leg at this position another device, which is behind.
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
            pair.fail(position % LEGS, IoError::Unreachable)?;
        }
        self.change(LegChange::Replaced(position, record)).await?;
        let leg = &pair.legs[position % LEGS];
        *leg.named.write() = new;
        *leg.hung.lock() = Arc::default();
        *leg.failure.lock() = None;
        leg.copied.store(0, Ordering::Relaxed);
        pair.state.lock().legs[position % LEGS] = LegStatus::Behind { copied: 0 };
        self.settle().await?;
        match self.is_used(position) {
            true => Ok(()),
            false => Err(IoError::WriteFault),
        }
    }

    /// The device of a leg, if the leg is in sync.
    fn sync_device(&self, index: usize, leg: usize) -> Option<SharedDevice> {
        let pair = &self.pairs[index];
        let state = pair.state.lock();
        (state.legs[leg] == LegStatus::InSync).then(|| pair.legs[leg].device())
    }

    /// Legs in sync of a device.
    pub(crate) fn in_sync(&self, index: usize) -> Vec<usize> {
        let status = self.pairs[index].status();
        (0..LEGS).filter(|leg| status[*leg] == LegStatus::InSync).collect()
    }

    /// Stops the use of a leg that failed, unless it is the only one in sync.
    ///
    /// # Errors
    /// Of the last leg in sync.
    pub(crate) fn fail_leg(&self, position: usize, error: IoError) -> Result<(), IoError> {
        self.pairs[position / LEGS].fail(position % LEGS, error)
    }

    /// Reads from one leg in sync.
    ///
    /// # Errors
    /// Of the leg; [`IoError::Unreachable`] if it does not answer.
    pub(crate) async fn read_leg(
        &self,
        index: usize,
        leg: usize,
        offset: u64,
        buf: BufMut,
    ) -> Result<BufMut, IoError> {
        let device = self.sync_device(index, leg).ok_or(IoError::Unreachable)?;
        self.pairs[index].legs[leg].limited(device.read(offset, buf)).await
    }

    /// Contents of a range on each leg in sync; `None` where it cannot be read.
    ///
    /// # Errors
    /// If a leg fails in another way, and no other leg reads.
    pub(crate) async fn read_each(
        &self,
        index: usize,
        offset: u64,
        len: usize,
    ) -> Result<Vec<(usize, Option<BufMut>)>, IoError> {
        let (mut read, mut failed) = (Vec::with_capacity(LEGS), None);
        for leg in self.in_sync(index) {
            match self.read_leg(index, leg, offset, buf::alloc(len).await).await {
                Ok(bytes) => read.push((leg, Some(bytes))),
                Err(IoError::ReadFault) => read.push((leg, None)),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if read.is_empty() => Err(error),
            _ => Ok(read),
        }
    }

    /// Rewrites a range on each leg that is in sync or behind and differs from leg `good`. The
    /// pool is not open so far: a leg that fails is recorded by [`Pairs::settle`].
    ///
    /// # Errors
    /// Of the last leg in sync.
    pub(crate) async fn equalize(
        &self,
        index: usize,
        good: usize,
        offset: u64,
        len: usize,
    ) -> Result<(), IoError> {
        let pair = &self.pairs[index];
        let other = 1 - good;
        if !pair.status()[other].is_written() {
            return Ok(());
        }
        let content = self.read_leg(index, good, offset, buf::alloc(len).await).await?;
        let leg = &pair.legs[other];
        let found = leg.limited(leg.device().read(offset, buf::alloc(len).await)).await;
        if found.is_ok_and(|found| found[..] == content[..]) {
            return Ok(());
        }
        match leg.limited(leg.device().write(offset, content.freeze(), false)).await {
            Ok(()) => Ok(()),
            Err(error) => pair.fail(other, error),
        }
    }

    /// Finds content that `is_right` on a leg in sync, and rewrites the others with it. `None` if
    /// no leg has it.
    pub(crate) async fn repair(
        &self,
        index: usize,
        offset: u64,
        len: usize,
        is_right: impl Fn(&[u8]) -> bool,
    ) -> Option<BufMut> {
        let pair = &self.pairs[index];
        let excluded = pair.exclude(offset..offset + len as u64).await;
        let read = self.read_each(index, offset, len).await.ok()?;
        let (mut good, mut bad) = (None, Vec::new());
        for (leg, bytes) in read {
            match bytes {
                Some(bytes) if is_right(&bytes) => good = Some(bytes),
                _ => bad.push(leg),
            }
        }
        let good = good?;
        for leg in bad {
            let mut copy = buf::alloc(len).await;
            copy.copy_from_slice(&good);
            let Some(device) = self.sync_device(index, leg) else { continue };
            let own = &pair.legs[leg];
            match own.limited(device.write(offset, copy.freeze(), true)).await {
                Ok(()) => {
                    self.repaired_blocks.fetch_add(len as u64 / 4096, Ordering::Relaxed);
                    let device = &own.named.read().name;
                    tracing::warn!(device, offset, len, "rewrote damaged data from the other copy");
                }
                // The next change waits until this is recorded.
                Err(error) => drop(pair.fail(leg, error)),
            }
        }
        drop(excluded);
        Some(good)
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

//! Pair: two legs with the same content, the writes in progress, and copies between the legs.
//!
//! Invariants:
//! - the status of a leg and its device change together, under one lock. The result of a call
//!   counts only while the leg still has the device that was called;
//! - a copy between legs excludes writes to its range.

use std::ops::Range;
use std::sync::Arc;

use flagstone_blockdev::{Geometry, IoError};
use flagstone_runtime::sync::SharedNotify;
use flagstone_runtime::{buf, time};
use parking_lot::Mutex;

use super::device::closed;
use super::leg::{LegDevice, LegStatus};
use super::together::{LegCall, both};
use crate::limits::{BLOCK_BYTES, LEG_ANSWER_TIME, LEG_TIME_LIMIT};
use crate::ondisk::legs::LEGS;
use crate::ondisk::superblock::copy_offset;

#[derive(Debug)]
pub(super) struct PairState {
    pub(super) legs: [LegStatus; LEGS],
    devices: [Arc<LegDevice>; LEGS],
    /// Byte ranges of the writes in progress.
    writes: Vec<Range<u64>>,
    /// Byte range that is copied between the legs.
    copied: Option<Range<u64>>,
}

impl PairState {
    /// True if the leg has this device.
    fn has(&self, leg: usize, device: &Arc<LegDevice>) -> bool {
        Arc::ptr_eq(&self.devices[leg], device)
    }

    /// Legs that get writes.
    fn written(&self) -> WrittenLegs {
        let device = |leg: usize| self.legs[leg].is_written().then(|| self.devices[leg].clone());
        let in_sync = self.legs.map(|status| status == LegStatus::InSync);
        WrittenLegs { devices: [device(0), device(1)], in_sync }
    }
}

/// Legs that get a change.
pub(super) struct WrittenLegs {
    pub(super) devices: [Option<Arc<LegDevice>>; LEGS],
    in_sync: [bool; LEGS],
}

impl WrittenLegs {
    /// Makes a call to each of them. One is given up if it takes long after that of a leg in sync.
    pub(super) async fn call<F: Future<Output = Result<(), IoError>>>(
        &self,
        pair: &Pair,
        make: impl Fn(Arc<LegDevice>) -> F,
    ) -> [Option<Result<(), IoError>>; LEGS] {
        let [one, other] = &self.devices;
        let mut one = std::pin::pin!(one.clone().map(&make));
        let mut other = std::pin::pin!(other.clone().map(&make));
        let leg_call = |leg: usize, call| {
            let device = self.devices[leg].as_ref().expect("it is called");
            let give_up = Box::new(move || Box::pin(pair.give_up(leg, device)) as _);
            LegCall::new(call, give_up, 0, self.in_sync[leg], false)
        };
        let one = one.as_mut().as_pin_mut().map(|call| leg_call(0, call as _));
        let other = other.as_mut().as_pin_mut().map(|call| leg_call(1, call as _));
        both([one, other]).await
    }
}

#[derive(Debug)]
pub(super) struct Pair {
    pub(super) state: Mutex<PairState>,
    changed: SharedNotify,
    pub(super) geometry: Geometry,
}

fn overlaps(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// A write in progress.
pub(super) struct WriteInProgress<'a> {
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
pub(super) struct CopiedRange<'a>(&'a Pair);

impl Drop for CopiedRange<'_> {
    fn drop(&mut self) {
        self.0.state.lock().copied = None;
        self.0.changed.notify();
    }
}

impl Pair {
    pub(super) fn new(
        legs: [LegStatus; LEGS],
        devices: [Arc<LegDevice>; LEGS],
        geometry: Geometry,
    ) -> Pair {
        let state = PairState { legs, devices, writes: Vec::new(), copied: None };
        Pair { state: Mutex::new(state), changed: SharedNotify::default(), geometry }
    }

    /// Waits until no copy has the range; returns the legs to write.
    pub(super) async fn begin_write(
        &self,
        range: Range<u64>,
    ) -> (WriteInProgress<'_>, WrittenLegs) {
        let begin = || {
            let mut state = self.state.lock();
            if state.copied.as_ref().is_some_and(|copied| overlaps(copied, &range)) {
                return None;
            }
            state.writes.push(range.clone());
            Some(state.written())
        };
        let written = self.changed.wait_for(begin).await;
        (WriteInProgress { pair: self, range }, written)
    }

    /// Excludes writes from a range.
    pub(super) async fn exclude(&self, range: Range<u64>) -> CopiedRange<'_> {
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

    pub(super) fn status(&self) -> [LegStatus; LEGS] {
        self.state.lock().legs
    }

    /// Present device of a leg.
    pub(super) fn device(&self, leg: usize) -> Arc<LegDevice> {
        self.state.lock().devices[leg].clone()
    }

    /// Legs that get writes.
    pub(super) fn written(&self) -> WrittenLegs {
        self.state.lock().written()
    }

    /// The device of a leg, if the leg is in sync.
    pub(super) fn sync_device(&self, leg: usize) -> Option<Arc<LegDevice>> {
        let state = self.state.lock();
        (state.legs[leg] == LegStatus::InSync).then(|| state.devices[leg].clone())
    }

    /// Status of a leg; none if it has another device by now.
    pub(super) fn status_of(&self, leg: usize, device: &Arc<LegDevice>) -> Option<LegStatus> {
        let state = self.state.lock();
        state.has(leg, device).then(|| state.legs[leg])
    }

    /// Changes the progress of a leg that is behind; false if it is not, or has another device by
    /// now.
    pub(super) fn progress(&self, leg: usize, device: &Arc<LegDevice>, copied: u32) -> bool {
        let mut state = self.state.lock();
        let is_behind = state.has(leg, device);
        match &mut state.legs[leg] {
            LegStatus::Behind { copied: recorded } if is_behind => *recorded = copied,
            _ => return false,
        }
        true
    }

    /// Gives a leg another device, which is behind.
    pub(super) fn replace(&self, leg: usize, device: Arc<LegDevice>) {
        let mut state = self.state.lock();
        (state.legs[leg], state.devices[leg]) = (LegStatus::Behind { copied: 0 }, device);
    }

    /// Drops the device of a leg that is recorded as missing, which unlocks it for another use. It
    /// stays while it has writes in progress, which could overwrite later ones.
    pub(super) fn close_missing(&self, leg: usize) {
        let mut state = self.state.lock();
        let own = state.devices[leg].clone();
        if state.legs[leg] == LegStatus::Missing && !own.has_writes() {
            let closed = LegDevice::new(closed(own.name().to_owned(), self.geometry));
            *closed.failure.lock() = *own.failure.lock();
            state.devices[leg] = closed;
        }
    }

    /// Stops the use of a leg that failed, unless it is the only one in sync, or has another device
    /// by now.
    ///
    /// # Errors
    /// Of the last leg in sync.
    pub(super) fn fail(
        &self,
        leg: usize,
        device: &Arc<LegDevice>,
        error: IoError,
    ) -> Result<(), IoError> {
        let mut state = self.state.lock();
        if !state.has(leg, device) {
            return Ok(());
        }
        let other = state.legs[1 - leg];
        match state.legs[leg] {
            LegStatus::InSync if other != LegStatus::InSync => return Err(error),
            LegStatus::InSync | LegStatus::Behind { .. } => {}
            LegStatus::Absent | LegStatus::Failed | LegStatus::Missing => return Ok(()),
        }
        state.legs[leg] = LegStatus::Failed;
        drop(state);
        *device.failure.lock() = Some(error);
        let device = device.name();
        tracing::error!(device, %error, "device failed: the pool continues with the other copy");
        Ok(())
    }

    /// Ends the use of a leg whose call takes long, if the other leg is in sync and answers: a
    /// stall that both legs share, or of the last one, is waited for. True if the call no longer
    /// counts.
    pub(super) async fn give_up(&self, leg: usize, device: &Arc<LegDevice>) -> bool {
        let is_used = || self.status_of(leg, device).is_some_and(LegStatus::is_written);
        if !is_used() {
            return true;
        }
        let name = device.name();
        let Some(other) = self.sync_device(1 - leg) else {
            tracing::warn!(device = name, "device does not answer: waiting for it");
            return false;
        };
        let read = other.read(copy_offset(0), buf::alloc_small(BLOCK_BYTES));
        match time::timeout(LEG_ANSWER_TIME, read).await {
            Ok(Ok(_)) => {
                tracing::error!(device = name, "device does not answer");
                // The other leg may have failed meanwhile.
                self.fail(leg, device, IoError::Unreachable).is_ok()
            }
            Ok(Err(_)) | Err(_) => !is_used(),
        }
    }

    /// Ends a call to this device of a leg, with a time limit ([`Pair::give_up`]).
    ///
    /// # Errors
    /// Of the call; [`IoError::Unreachable`] after the use of the device has ended.
    pub(super) async fn limited<T>(
        &self,
        leg: usize,
        device: &Arc<LegDevice>,
        call: impl Future<Output = Result<T, IoError>>,
    ) -> Result<T, IoError> {
        let mut call = std::pin::pin!(call);
        loop {
            if let Ok(result) = time::timeout(LEG_TIME_LIMIT, call.as_mut()).await {
                return result;
            }
            if self.give_up(leg, device).await {
                return Err(IoError::Unreachable);
            }
        }
    }

    /// Judges the results of a change of these devices.
    ///
    /// # Errors
    /// Unless a leg in sync has the change.
    pub(super) fn judge(
        &self,
        devices: &[Option<Arc<LegDevice>>; LEGS],
        results: [Option<Result<(), IoError>>; LEGS],
    ) -> Result<(), IoError> {
        let mut first = None;
        for (leg, result) in results.iter().enumerate() {
            if let (Some(Err(error)), Some(device)) = (result, &devices[leg]) {
                first = first.or(Some(*error));
                if results[1 - leg] == Some(Ok(())) {
                    self.fail(leg, device, *error)?;
                }
            }
        }
        let state = self.state.lock();
        let has = |leg: usize| {
            let is_same = devices[leg].as_ref().is_some_and(|device| state.has(leg, device));
            is_same && state.legs[leg] == LegStatus::InSync && results[leg] == Some(Ok(()))
        };
        match (0..LEGS).any(has) {
            true => Ok(()),
            false => Err(first.unwrap_or(IoError::Unreachable)),
        }
    }
}

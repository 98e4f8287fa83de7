//! Device model: the set of answers that a device may give after a sequence of calls and faults.
//!
//! For each sector of 512 bytes, the model holds the versions that a read may return and the
//! versions that a power loss may leave. The content of a version names its sector, so the model
//! detects lost, stale, torn and misplaced data. The unit is a sector because a power loss may tear
//! a block.
//!
//! | event | versions a read may return | versions a power loss may leave |
//! | --- | --- | --- |
//! | write acknowledged | the new one | the new one, or any possible before |
//! | write acknowledged, FUA | the new one | the new one |
//! | write failed or unanswered | the new one as well | the new one as well |
//! | flush acknowledged | as before | readable when the flush began, and later writes |
//! | flush failed | as before | later flushes do not make the covered writes durable |
//! | flush unanswered, on a disk that fails flushes | as before | as for a failed flush |
//! | power lost | versions left by the loss | the same |
//! | read | the returned one only | as before |
//!
//! Calls in flight never overlap: a caller must [`Shared::claim`] its range first. A claim that is
//! dropped without a result counts as unanswered.

mod point;

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

pub use self::point::Point;
pub use crate::content::SECTOR_BYTES;
use crate::content::{ZEROES, content, version_of};

#[derive(Debug)]
struct Sector {
    /// Versions that a read may return.
    visible: Vec<u32>,
    /// Versions that a power loss may leave, each with the time since when.
    after_loss: Vec<(u64, u32)>,
    /// Unanswered writes that may still arrive at any time.
    late: Vec<u32>,
    /// Time of the last write that was durable by itself. Flushes older than it do not apply to the
    /// sector.
    durable_since: u64,
    /// A flush of the sector failed. Later flushes do not make earlier writes durable.
    tainted: bool,
    /// Time of the last failed flush of the sector. Flushes that began earlier prove nothing.
    tainted_since: u64,
    /// No write since the last power loss.
    untouched: bool,
    busy: bool,
    /// Version that the call in flight writes.
    changing: Option<u32>,
    /// The content is unknown: a read may return any version.
    unknown: bool,
    /// The content after a power loss is unknown.
    unknown_after_loss: bool,
    /// Version that was next when zeroes were last written.
    zeroed: u32,
}

impl Sector {
    /// A sector of zeroes, or one of unknown content.
    fn new(known: bool) -> Sector {
        Sector {
            visible: vec![ZEROES],
            after_loss: vec![(0, ZEROES)],
            late: Vec::new(),
            durable_since: 0,
            tainted: false,
            tainted_since: 0,
            untouched: true,
            busy: false,
            changing: None,
            unknown: !known,
            unknown_after_loss: !known,
            zeroed: 0,
        }
    }

    fn may_hold(&mut self, now: u64, version: u32) {
        if !self.visible.contains(&version) {
            self.visible.push(version);
        }
        self.after_loss.push((now, version));
        self.untouched = false;
    }
}

/// Model of one device. The module documentation has the rules.
#[derive(Debug)]
pub struct Model {
    seed: u64,
    sectors: Vec<Sector>,
    next_version: u32,
    /// Number of power losses so far.
    losses: u64,
    /// A dropped change may still be carried out later.
    late_when_dropped: bool,
    /// Flushes may fail, even when the caller dies before it learns of the failure.
    flushes_fail: bool,
    /// Logical clock: counts acknowledgments, so that a flush knows which writes it covers.
    now: u64,
    checks: u64,
    /// Start time of the latest acknowledged change.
    promised: Option<u64>,
}

/// Kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A write of new content.
    Write,
    /// A write of zeroes.
    Zero,
    /// Zeroes or the previous content.
    Discard,
}

/// Handle of a model, shared by the load's tasks and the fault injector.
#[derive(Clone, Debug)]
pub struct Shared(Rc<RefCell<Model>>);

impl Shared {
    /// Model of a device with `bytes` of zeroes. The `seed` gives each run different content.
    pub fn new(seed: u64, bytes: u64) -> Shared {
        let mut sectors = Vec::new();
        sectors.resize_with(bytes as usize / SECTOR_BYTES, || Sector::new(true));
        Shared(Rc::new(RefCell::new(Model {
            seed,
            sectors,
            next_version: 1,
            losses: 0,
            late_when_dropped: false,
            flushes_fail: false,
            now: 1,
            checks: 0,
            promised: None,
        })))
    }

    /// Allows dropped changes to be carried out later, until [`Shared::process_ended`]. For devices
    /// that another process serves.
    pub fn expect_late_changes(&self) {
        self.0.borrow_mut().late_when_dropped = true;
    }

    /// Allows flushes to fail at the disk while the caller is being killed.
    pub fn expect_failed_flushes(&self) {
        self.0.borrow_mut().flushes_fail = true;
    }

    /// Independent model of a copy of the device as it may be now. Changes in flight may or may not
    /// be in the copy.
    pub fn fork(&self) -> Shared {
        let model = self.0.borrow();
        let sectors = model.sectors.iter().map(|sector| {
            let mut copy = Sector {
                visible: sector.visible.clone(),
                after_loss: sector.after_loss.clone(),
                late: sector.late.clone(),
                durable_since: sector.durable_since,
                tainted: sector.tainted,
                tainted_since: sector.tainted_since,
                untouched: sector.untouched,
                busy: false,
                changing: None,
                unknown: sector.unknown,
                unknown_after_loss: sector.unknown_after_loss,
                zeroed: sector.zeroed,
            };
            if let Some(version) = sector.changing {
                copy.may_hold(model.now, version);
            }
            copy
        });
        let copy = Model {
            seed: model.seed,
            sectors: sectors.collect(),
            // Keeps the versions of the two models distinct.
            next_version: model.next_version + (1 << 20),
            losses: model.losses,
            late_when_dropped: model.late_when_dropped,
            flushes_fail: model.flushes_fail,
            now: model.now,
            checks: 0,
            promised: None,
        };
        Shared(Rc::new(RefCell::new(copy)))
    }

    /// Allows every earlier state, sector by sector. A flush must come before the next read.
    pub fn forget(&self) {
        for sector in &mut self.0.borrow_mut().sectors {
            (sector.unknown, sector.unknown_after_loss, sector.untouched) = (true, true, true);
        }
    }

    /// Grows the device to `bytes`, if it is smaller. The content of the new part is unknown.
    pub fn grow(&self, bytes: u64) {
        let mut model = self.0.borrow_mut();
        let sectors = model.sectors.len().max(bytes as usize / SECTOR_BYTES);
        model.sectors.resize_with(sectors, || Sector::new(false));
    }

    /// Current logical time, for [`Shared::has_promised_since`].
    pub fn moment(&self) -> u64 {
        let mut model = self.0.borrow_mut();
        model.now += 1;
        model.now
    }

    /// True when a change that began at `moment` or later was acknowledged since the fork. A change
    /// that began earlier may be part of the copy.
    pub fn has_promised_since(&self, moment: u64) -> bool {
        self.0.borrow().promised.is_some_and(|began| began >= moment)
    }

    /// True while a call is in flight.
    pub fn busy(&self) -> bool {
        self.0.borrow().sectors.iter().any(|sector| sector.busy)
    }

    /// True while a call to the sector of this byte is in flight.
    pub fn is_busy_at(&self, byte: usize) -> bool {
        self.0.borrow().sectors.get(byte / SECTOR_BYTES).is_some_and(|sector| sector.busy)
    }

    /// True for two handles of the same model.
    pub fn is(&self, other: &Shared) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// Size of the device, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.0.borrow().sectors.len() * SECTOR_BYTES) as u64
    }

    /// Number of sectors that were read and correct.
    pub fn checks(&self) -> u64 {
        self.0.borrow().checks
    }

    /// Claims a range for one call: a change, or a read (`None`). Returns `None` when the range
    /// overlaps a call in flight.
    pub fn claim(&self, offset: u64, len: usize, change: Option<Change>) -> Option<Claim> {
        let first = offset as usize / SECTOR_BYTES;
        let range = first..first + len / SECTOR_BYTES;
        let mut model = self.0.borrow_mut();
        if model.sectors[range.clone()].iter().any(|sector| sector.busy) {
            return None;
        }
        let version = match change {
            Some(Change::Write) => {
                model.next_version += 1;
                model.next_version - 1
            }
            _ => ZEROES,
        };
        let next = model.next_version;
        for sector in &mut model.sectors[range.clone()] {
            (sector.busy, sector.changing) = (true, change.map(|_| version));
            point::note_zeroes(sector, change, next);
        }
        let (losses, began) = (model.losses, model.now);
        Some(Claim { model: self.clone(), range, change, version, losses, began })
    }

    /// Starts a flush.
    pub fn begin_flush(&self) -> Flush {
        let model = self.0.borrow();
        // After a failed flush, a later one does not make a tainted sector's content known.
        let known = |sector: &Sector| !sector.tainted && !sector.unknown;
        let (mut versions, mut ends) = (Vec::new(), Vec::with_capacity(model.sectors.len()));
        for sector in &model.sectors {
            if known(sector) {
                versions.extend_from_slice(&sector.visible);
            }
            ends.push(versions.len());
        }
        let (began, losses) = (model.now, model.losses);
        Flush { model: self.clone(), began, losses, versions, ends, answered: false }
    }

    /// Records an acknowledged flush.
    pub fn flushed(&self, mut flush: Flush) {
        flush.answered = true;
        let ends = std::mem::take(&mut flush.ends);
        let mut model = self.0.borrow_mut();
        if model.losses != flush.losses {
            // Unknown whether the flush took effect before the power loss or after it.
            return;
        }
        let mut from = 0;
        for (sector, end) in model.sectors.iter_mut().zip(ends) {
            let visible = &flush.versions[std::mem::replace(&mut from, end)..end];
            // The content is unknown or tainted.
            if visible.is_empty()
                || sector.tainted_since > flush.began
                || sector.durable_since > flush.began
            {
                continue;
            }
            sector.unknown_after_loss = false;
            sector.after_loss.retain(|(since, _)| *since > flush.began);
            sector.after_loss.extend(visible.iter().map(|version| (flush.began, *version)));
            sector.after_loss.extend(sector.late.iter().map(|version| (flush.began, *version)));
        }
    }

    /// Records a failed flush: the device may have dropped the writes that it covered.
    pub fn flush_failed(&self) {
        let mut model = self.0.borrow_mut();
        model.now += 1;
        let now = model.now;
        for sector in &mut model.sectors {
            (sector.tainted, sector.tainted_since) = (true, now);
        }
    }

    /// Records that the serving process was killed, or had enough time to finish: none of its
    /// pending changes arrives later.
    pub fn process_ended(&self) {
        for sector in &mut self.0.borrow_mut().sectors {
            for version in std::mem::take(&mut sector.late) {
                if !sector.visible.contains(&version) {
                    sector.visible.push(version);
                }
            }
        }
    }

    /// Records a power loss of the node that holds the device.
    pub fn power_lost(&self) {
        let mut model = self.0.borrow_mut();
        model.losses += 1;
        let now = model.now;
        for sector in &mut model.sectors {
            let mut left: Vec<u32> =
                sector.after_loss.iter().map(|(_, version)| *version).collect();
            left.sort_unstable();
            left.dedup();
            sector.after_loss = left.iter().map(|version| (now, *version)).collect();
            sector.visible = left;
            sector.unknown |= sector.unknown_after_loss;
            sector.late.clear();
            sector.tainted = false;
            sector.untouched = true;
            sector.durable_since = 0;
        }
    }
}

/// A flush in flight. If dropped without a result, it counts as unanswered.
#[derive(Debug)]
pub struct Flush {
    model: Shared,
    began: u64,
    losses: u64,
    /// Readable versions of each sector when the flush began, and the end index of each sector's
    /// list.
    versions: Vec<u32>,
    ends: Vec<usize>,
    answered: bool,
}

impl Drop for Flush {
    fn drop(&mut self) {
        if !self.answered && self.model.0.borrow().flushes_fail {
            self.model.flush_failed();
        }
    }
}

/// A call in flight. If dropped without a result, it counts as unanswered.
#[derive(Debug)]
pub struct Claim {
    model: Shared,
    range: Range<usize>,
    change: Option<Change>,
    version: u32,
    losses: u64,
    began: u64,
}

impl Claim {
    /// Fills the payload of a write.
    pub fn fill(&self, payload: &mut [u8]) {
        let seed = self.model.0.borrow().seed;
        for (sector, bytes) in self.range.clone().zip(payload.chunks_mut(SECTOR_BYTES)) {
            bytes.copy_from_slice(&content(seed, sector, self.version));
        }
    }

    /// Records an acknowledged change, durable with `fua`.
    pub fn acknowledged(mut self, fua: bool) {
        if !fua && self.losses != self.model.0.borrow().losses {
            // The answer may be older than the power loss that undid the change.
            return self.failed();
        }
        let Some(change) = self.change.take() else { return };
        let mut model = self.model.0.borrow_mut();
        model.now += 1;
        model.promised = model.promised.max(Some(self.began));
        let now = model.now;
        for sector in &mut model.sectors[self.range.clone()] {
            if change == Change::Discard {
                sector.may_hold(now, ZEROES);
                continue;
            }
            sector.visible.clear();
            sector.visible.push(self.version);
            sector.unknown = false;
            sector.tainted = false;
            sector.untouched = false;
            if fua {
                sector.unknown_after_loss = false;
                sector.after_loss = sector.late.iter().map(|version| (now, *version)).collect();
                sector.durable_since = now;
            }
            sector.after_loss.push((now, self.version));
        }
    }

    /// Records a change that failed or will never be answered: any part of it may have been carried
    /// out by now.
    pub fn failed(self) {
        let model = self.model.clone();
        let late = std::mem::take(&mut model.0.borrow_mut().late_when_dropped);
        drop(self);
        model.0.borrow_mut().late_when_dropped = late;
    }

    /// Records a call that failed on the way to the device or back. After
    /// [`Shared::expect_late_changes`] it may still be carried out later.
    pub fn lost_on_the_way(self) {}

    /// Checks the bytes that a read returned.
    ///
    /// # Panics
    ///
    /// When the model does not allow this answer.
    pub fn returned(self, bytes: &[u8]) {
        let mut model = self.model.0.borrow_mut();
        let (seed, losses, now) = (model.seed, model.losses, model.now);
        for (number, bytes) in self.range.clone().zip(bytes.chunks(SECTOR_BYTES)) {
            let found = version_of(seed, number, bytes);
            let sector = &mut model.sectors[number];
            let allowed =
                |version: &u32| sector.visible.contains(version) || sector.late.contains(version);
            match found {
                Ok(version) if sector.unknown => {
                    (sector.visible, sector.unknown) = (vec![version], false);
                    if sector.untouched {
                        sector.unknown_after_loss = false;
                        sector.after_loss.clear();
                    }
                    sector.after_loss.push((now, version));
                    sector.late.clear();
                }
                Ok(version) if allowed(&version) => {
                    // An answer from before a power loss says nothing about the remaining content.
                    if sector.late.is_empty() && self.losses == losses {
                        sector.visible = vec![version];
                        if sector.untouched {
                            sector.after_loss = vec![(sector.after_loss[0].0, version)];
                        }
                    }
                }
                Ok(version) => panic!(
                    "sector {number} holds version {version}; it may hold {:?} (0 is zeroes)",
                    sector.visible
                ),
                Err(what) => panic!(
                    "sector {number} holds {what}; it may hold versions {:?} (0 is zeroes)",
                    sector.visible
                ),
            }
        }
        model.checks += self.range.len() as u64;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut model = self.model.0.borrow_mut();
        model.now += 1;
        let (now, late) = (model.now, model.late_when_dropped);
        for sector in &mut model.sectors[self.range.clone()] {
            (sector.busy, sector.changing) = (false, None);
            if self.change.is_some() {
                sector.may_hold(now, self.version);
                if late {
                    sector.late.push(self.version);
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;

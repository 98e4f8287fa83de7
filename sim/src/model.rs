//! What a device may answer, given what it was asked and what it promised.
//!
//! The model knows for each sector of 512 bytes which versions a read may return, and which a power
//! loss may leave. A version is written as content that names its sector, so that lost, stale, torn
//! and misplaced data are told apart. Sectors are the unit, since a power loss may tear a block.
//!
//! | event | a read may return | a power loss may leave |
//! | --- | --- | --- |
//! | write acknowledged | it | it, or what it might have left before |
//! | write acknowledged, FUA | it | it |
//! | write failed or unanswered | it too | it too |
//! | flush acknowledged | as before | what reads could return when the flush began, and later writes |
//! | flush failed | as before | what it covered is not made durable by later flushes |
//! | flush unanswered, on a disk that fails flushes | as before | the same: nobody may have heard of it |
//! | power lost | what the loss may leave | the same |
//! | read | what it returned, and nothing else | as before |
//!
//! Calls in flight never overlap: a caller [`Shared::claim`]s a range, and one that is dropped
//! before it has reported a result counts as unanswered.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

pub use crate::content::SECTOR_BYTES;
use crate::content::{ZEROES, content, version_of};

#[derive(Debug)]
struct Sector {
    /// What a read may return.
    visible: Vec<u32>,
    /// What a power loss may leave, and since when.
    after_loss: Vec<(u64, u32)>,
    /// Unanswered writes that may yet land at any time.
    late: Vec<u32>,
    /// The last durable write by itself: older flushes say nothing about the sector.
    durable_since: u64,
    /// A flush of it failed: later ones do not help what was written before.
    tainted: bool,
    /// The last time that a flush of it failed: flushes that began before say nothing.
    tainted_since: u64,
    /// Nothing was written since the last power loss.
    untouched: bool,
    busy: bool,
    /// The version that the call in flight writes.
    changing: Option<u32>,
    /// What is there is not known: it may be any version.
    unknown: bool,
    /// The same of what a power loss may leave.
    unknown_after_loss: bool,
}

impl Sector {
    /// One of zeroes, or one of which nothing is known.
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
        }
    }

    fn doubt(&mut self, now: u64, version: u32) {
        if !self.visible.contains(&version) {
            self.visible.push(version);
        }
        self.after_loss.push((now, version));
        self.untouched = false;
    }
}

/// See the module's head.
#[derive(Debug)]
pub struct Model {
    seed: u64,
    sectors: Vec<Sector>,
    next_version: u32,
    /// Power losses so far.
    losses: u64,
    /// Changes dropped without an answer may yet be carried out.
    late_when_dropped: bool,
    /// Flushes may fail, even such that nobody lives to hear of it.
    flushes_fail: bool,
    /// Counts acknowledgements, so that flushes know what they cover.
    now: u64,
    checks: u64,
    /// When the latest change that was acknowledged had begun.
    promised: Option<u64>,
}

/// What a change does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A write of new content.
    Write,
    /// A write of zeroes.
    Zero,
    /// Zeroes or what was there before.
    Discard,
}

/// A model, shared by the tasks of a load and by who breaks things.
#[derive(Clone, Debug)]
pub struct Shared(Rc<RefCell<Model>>);

impl Shared {
    /// The model of a device of `bytes` zeroes; `seed` makes its content unlike another run's.
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

    /// From now on a change that its caller drops may yet be carried out, until
    /// [`Shared::process_ended`]: the device is served by another process.
    pub fn expect_late_changes(&self) {
        self.0.borrow_mut().late_when_dropped = true;
    }

    /// From now on a flush may fail at the disk while its caller is killed.
    pub fn expect_failed_flushes(&self) {
        self.0.borrow_mut().flushes_fail = true;
    }

    /// A model of its own of what a copy of the device may answer now: what is under way may be
    /// there or not.
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
            };
            if let Some(version) = sector.changing {
                copy.doubt(model.now, version);
            }
            copy
        });
        let copy = Model {
            seed: model.seed,
            sectors: sectors.collect(),
            // Versions of both name different contents.
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

    /// Any earlier state may be found from now on, sector by sector. A flush comes before the next
    /// read.
    pub fn forget(&self) {
        for sector in &mut self.0.borrow_mut().sectors {
            (sector.unknown, sector.unknown_after_loss, sector.untouched) = (true, true, true);
        }
    }

    /// The device has grown to this size, if it had not before. What is in the new part is not known.
    pub fn grow(&self, bytes: u64) {
        let mut model = self.0.borrow_mut();
        let sectors = model.sectors.len().max(bytes as usize / SECTOR_BYTES);
        model.sectors.resize_with(sectors, || Sector::new(false));
    }

    /// A moment for [`Shared::has_promised_since`].
    pub fn moment(&self) -> u64 {
        let mut model = self.0.borrow_mut();
        model.now += 1;
        model.now
    }

    /// True when a change was acknowledged, since the fork, that had begun at this moment or later.
    /// One that began before may be wherever the device was copied to then.
    pub fn has_promised_since(&self, moment: u64) -> bool {
        self.0.borrow().promised.is_some_and(|began| began >= moment)
    }

    /// True while a call is under way.
    pub fn busy(&self) -> bool {
        self.0.borrow().sectors.iter().any(|sector| sector.busy)
    }

    /// True for two handles of one model.
    pub fn is(&self, other: &Shared) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// Size of the device, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.0.borrow().sectors.len() * SECTOR_BYTES) as u64
    }

    /// Sectors read and found right.
    pub fn checks(&self) -> u64 {
        self.0.borrow().checks
    }

    /// Takes a range for one call, to change it or (with `None`) to read it; `None` when another
    /// call has part of it.
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
        for sector in &mut model.sectors[range.clone()] {
            (sector.busy, sector.changing) = (true, change.map(|_| version));
        }
        let (losses, began) = (model.losses, model.now);
        Some(Claim { model: self.clone(), range, change, version, losses, began })
    }

    /// A flush begins.
    pub fn begin_flush(&self) -> Flush {
        let model = self.0.borrow();
        // A failed flush has left doubt about the tainted ones: this one does not end it.
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

    /// A flush was acknowledged.
    pub fn flushed(&self, mut flush: Flush) {
        flush.answered = true;
        let ends = std::mem::take(&mut flush.ends);
        let mut model = self.0.borrow_mut();
        if model.losses != flush.losses {
            // It was carried out before the loss or after: nobody knows.
            return;
        }
        let mut from = 0;
        for (sector, end) in model.sectors.iter_mut().zip(ends) {
            let visible = &flush.versions[std::mem::replace(&mut from, end)..end];
            // Nothing is known, or it is tainted.
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

    /// A flush failed: the device may have dropped what it covered.
    pub fn flush_failed(&self) {
        let mut model = self.0.borrow_mut();
        model.now += 1;
        let now = model.now;
        for sector in &mut model.sectors {
            (sector.tainted, sector.tainted_since) = (true, now);
        }
    }

    /// The process that served the device was killed, or has had time enough to finish: nothing
    /// that it had in hand comes later.
    pub fn process_ended(&self) {
        for sector in &mut self.0.borrow_mut().sectors {
            for version in std::mem::take(&mut sector.late) {
                if !sector.visible.contains(&version) {
                    sector.visible.push(version);
                }
            }
        }
    }

    /// The node that holds the device lost its power.
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

/// A flush under way. Dropped without a result it counts as unanswered.
#[derive(Debug)]
pub struct Flush {
    model: Shared,
    began: u64,
    losses: u64,
    /// What reads could return when it began, sector after sector, and where each one's ends.
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

/// A call under way. Dropped without a result it counts as unanswered.
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
    /// Fills a write's payload.
    pub fn fill(&self, payload: &mut [u8]) {
        let seed = self.model.0.borrow().seed;
        for (sector, bytes) in self.range.clone().zip(payload.chunks_mut(SECTOR_BYTES)) {
            bytes.copy_from_slice(&content(seed, sector, self.version));
        }
    }

    /// The change was acknowledged, durably with `fua`.
    pub fn acknowledged(mut self, fua: bool) {
        if !fua && self.losses != self.model.0.borrow().losses {
            // The answer may be older than the loss of what it acknowledges.
            return self.failed();
        }
        let Some(change) = self.change.take() else { return };
        let mut model = self.model.0.borrow_mut();
        model.now += 1;
        model.promised = model.promised.max(Some(self.began));
        let now = model.now;
        for sector in &mut model.sectors[self.range.clone()] {
            if change == Change::Discard {
                sector.doubt(now, ZEROES);
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

    /// The call failed, or was not answered and never will be: the change may have been made, in
    /// part or in whole, by now.
    pub fn failed(self) {
        let model = self.model.clone();
        let late = std::mem::take(&mut model.0.borrow_mut().late_when_dropped);
        drop(self);
        model.0.borrow_mut().late_when_dropped = late;
    }

    /// The call failed on its way to the device or back: it may be carried out at any time, if
    /// [`Shared::expect_late_changes`] was called.
    pub fn lost_on_the_way(self) {}

    /// A read returned these bytes.
    ///
    /// # Panics
    /// When the device may not answer so: a promise is broken.
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
                    // An answer from before a power loss says nothing about what is left.
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
                sector.doubt(now, self.version);
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

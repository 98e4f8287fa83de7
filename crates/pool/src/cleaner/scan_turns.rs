//! Turns of the scan for equal blocks: when a step begins, and when it ends early.
//!
//! Invariants:
//! - a step begins only after a pause: as long as the last step took, and while hosts read or
//!   write, at least [`DEDUP_PAUSE`];
//! - other work of the maintenance task, and orders that wait for it, end a step after the present
//!   piece.

use flagstone_runtime::task::yield_now;
use flagstone_runtime::time::{self, Instant};

use super::State;
use crate::limits::DEDUP_PAUSE;
use crate::log::position::BEGINNING_SEGMENTS;
use crate::manage::shared::{MaintenancePause, MaintenanceWork, Shared};

/// What the scan does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanWork {
    /// Scan a segment.
    Scan,
    /// Close the written segments with a checkpoint, if hosts do not write.
    Close,
}

impl Shared {
    /// Waits for the next work of the maintenance task. Without anything to scan, no timer runs.
    pub(crate) async fn next_work(&self) -> MaintenanceWork {
        loop {
            self.free_index().await;
            let now = time::now();
            let (due, host_blocks) = {
                let mut state = self.state.lock();
                (state.next_scan_work(now), state.host_blocks)
            };
            let ready = || {
                let mut state = self.state.lock();
                let becomes_due = |state: &State| {
                    due.is_none() && state.scan_work().is_some() || state.dedup.has_unused()
                };
                let work = state.next_work();
                work.map(Some).or_else(|| becomes_due(&state).then_some(None))
            };
            let next = self.progress.wait_for(ready);
            let next = match due {
                None => next.await,
                Some((_, at)) => time::timeout(at.since(now), next).await.unwrap_or(None),
            };
            if let Some(work) = next {
                return work;
            }
            let mut state = self.state.lock();
            if state.dedup.has_unused() {
                continue;
            }
            match due.and_then(|_| state.scan_work()) {
                Some(ScanWork::Scan) => state.wanted.sharing = true,
                Some(ScanWork::Close) => {
                    state.wanted.checkpoint |= state.host_blocks == host_blocks;
                }
                None => {}
            }
        }
    }
}

impl Shared {
    /// Frees an index that is no longer needed. Other tasks run between its parts.
    async fn free_index(&self) {
        let unused = self.state.lock().dedup.take_unused();
        if let Some((_, mut index)) = unused {
            while index.free_part() {
                yield_now().await;
            }
        }
    }
}

impl State {
    /// True if the scan may go on: maps that are being reaped lack pages, and an evacuation needs
    /// the space.
    pub(super) fn can_share(&self) -> bool {
        self.deleting == 0 && self.evacuated.is_none() && self.dedup.is_due(self.host_blocks)
    }

    /// True if a step ends early.
    pub(super) fn ends_step(&self) -> bool {
        let is_wanted = self.wanted.stop || self.wanted.checkpoint || self.wanted.cleaning;
        let order_waits = self.pause == MaintenancePause::Waiting;
        is_wanted || order_waits || !self.can_share() || self.check().is_err()
    }

    /// Begins a step.
    pub(super) fn begin_step(&mut self) -> Instant {
        self.wanted.sharing = false;
        self.dedup.next_step_at = None;
        time::now()
    }

    /// Begins the pause after a step that began at `begin`. Hosts pause if they had no I/O since
    /// the end of the step before it.
    pub(super) fn end_step(&mut self, begin: Instant) {
        let now = time::now();
        let took = now - begin;
        let hosts = (self.host_blocks, self.host_reads);
        let pause = match std::mem::replace(&mut self.dedup.host_io, hosts) == hosts {
            true => took,
            false => took.max(DEDUP_PAUSE),
        };
        self.dedup.next_step_at = Some(now + pause);
    }

    /// What the scan does next, and when.
    fn next_scan_work(&mut self, now: Instant) -> Option<(ScanWork, Instant)> {
        if !self.can_share() {
            self.dedup.next_step_at = None;
        }
        let later = now + DEDUP_PAUSE;
        Some(match self.scan_work()? {
            // Checkpoints and passes do not put it off.
            ScanWork::Scan => (ScanWork::Scan, *self.dedup.next_step_at.get_or_insert(later)),
            ScanWork::Close => (ScanWork::Close, later),
        })
    }

    fn scan_work(&self) -> Option<ScanWork> {
        if !self.dedup.is_on() || self.pause != MaintenancePause::None {
            return None;
        }
        let is_log_long = self.segments.in_log() > BEGINNING_SEGMENTS;
        match (self.can_share(), is_log_long && !self.active.is_empty()) {
            (true, _) => Some(ScanWork::Scan),
            (false, true) => Some(ScanWork::Close),
            (false, false) => None,
        }
    }
}

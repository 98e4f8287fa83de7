//! Write-out: copies the tail from the log device to its place on the devices of the pool, in the
//! order of the log, and frees its slots.
//!
//! Invariants: only applied chunks are copied, because these are whole on the log device; a slot is
//! freed only after its segment was flushed. A failure fails the pool: the tail stays on the log
//! device, where recovery finds it.

use std::rc::Rc;
use std::sync::Arc;

use flagstone_blockdev::window::run_all;
use flagstone_blockdev::{IoError, IoFuture, SharedDevice};
use flagstone_runtime::buf::SharedReserve;
use flagstone_runtime::time;

use super::device::LogDevice;
use super::tail::TailWrite;
use crate::limits::{BLOCK_BYTES, WRITE_OUT_BLOCKS, WRITE_OUT_COPIES, WRITE_OUT_PAUSE};
use crate::manage::shared::{Shared, WriteOut};
use crate::storage::Storage;

/// Next step of the write-out task.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    Stop,
    Copy(Vec<TailWrite>),
    /// Remove the marks in the superblock: the tail is empty.
    Unmark,
}

/// Copier of pieces, several at a time. Its memory is reserved, because writers that wait for a
/// slot hold the rest.
pub(crate) struct Copier {
    log: Arc<LogDevice>,
    reserve: Rc<SharedReserve>,
}

impl Copier {
    pub(crate) fn new(log: Arc<LogDevice>) -> Copier {
        let reserve = Rc::new(SharedReserve::new(WRITE_OUT_BLOCKS as usize * BLOCK_BYTES));
        Copier { log, reserve }
    }

    /// Copies pieces to their place, and flushes the devices.
    ///
    /// # Errors
    /// Errors of the devices.
    pub(crate) async fn copy(
        &self,
        storage: &Storage,
        pieces: &[TailWrite],
    ) -> Result<(), IoError> {
        for some in pieces.chunks(WRITE_OUT_COPIES) {
            run_all(some.iter().map(|piece| self.one(storage, piece)), |()| {}).await?;
        }
        storage.flush_table().await
    }

    fn one(&self, storage: &Storage, piece: &TailWrite) -> IoFuture<()> {
        let block = storage.layout.first_block(piece.segment) + u64::from(piece.first);
        let place = storage.layout.place(block);
        let to: SharedDevice = storage.devices[place.device].device.clone();
        let (log, reserve, piece) = (self.log.clone(), self.reserve.clone(), *piece);
        IoFuture::later(async move {
            let memory = reserve.acquire(piece.count as usize * BLOCK_BYTES).await;
            let read = log.read(piece.slot, piece.first, memory).await?;
            to.write(place.offset, read.freeze(), false).await
        })
    }
}

impl Shared {
    /// Writes the log out until the pool stops.
    pub(crate) async fn keep_writing_out(&self, log: Arc<LogDevice>) {
        let copier = Copier::new(log.clone());
        loop {
            let done = match self.next_due(&log).await {
                Due::Stop => break,
                Due::Copy(pieces) => self.write_out(&log, &copier, &pieces).await,
                Due::Unmark => self.unmark().await,
            };
            if let Err(error) = done {
                tracing::error!(pool = self.name, %error, "the log device was not written out");
                let mut state = self.state.lock();
                state.fail(IoError::WriteFault);
                state.write_out = WriteOut::Abandoned;
            }
            self.progress.notify();
        }
        self.state.lock().write_out = WriteOut::Ended;
        self.progress.notify();
    }

    async fn next_due(&self, log: &LogDevice) -> Due {
        let idle = {
            let due = || self.due(log, false);
            let is_unmarked = self.state.lock().superblock.tail.is_empty();
            let is_quiet = is_unmarked && !log.head().tail.has_applied();
            let stirs = || due().or_else(|| Self::stirs(log));
            match is_quiet {
                true => Ok(self.progress.wait_for(stirs).await),
                false => time::timeout(WRITE_OUT_PAUSE, self.progress.wait_for(due)).await,
            }
        };
        match idle {
            Ok(due) => due,
            Err(_) => self.due(log, true).unwrap_or(Due::Copy(Vec::new())),
        }
    }

    /// Wakes the task of an idle pool, so that the timer of
    /// [`WRITE_OUT_PAUSE`](crate::limits::WRITE_OUT_PAUSE) begins.
    fn stirs(log: &LogDevice) -> Option<Due> {
        log.head().tail.has_applied().then(|| Due::Copy(Vec::new()))
    }

    fn due(&self, log: &LogDevice, idle: bool) -> Option<Due> {
        let state = self.state.lock();
        let head = log.head();
        let is_planned = state.is_closing();
        // Continue while a checkpoint runs: it waits until the log is written out.
        let is_over = state.check().is_err() || state.wanted.stop && !state.maintenance.runs();
        if state.write_out == WriteOut::Abandoned || is_over && !is_planned {
            return Some(Due::Stop);
        }
        let all = idle || is_planned || head.throttle.is_slowing(head.tail.load());
        let pieces = head.tail.pieces(all, log.pieces);
        if !pieces.is_empty() {
            return Some(Due::Copy(pieces));
        }
        // During an opening, its checkpoint has the right to update the superblock, and may be
        // dropped.
        let is_drained = idle && state.maintenance.runs() && head.tail.volumes().is_empty();
        match (is_drained || is_planned) && !state.superblock.tail.is_empty() {
            true => Some(Due::Unmark),
            false if is_planned => Some(Due::Stop),
            false => None,
        }
    }

    async fn write_out(
        &self,
        log: &LogDevice,
        copier: &Copier,
        pieces: &[TailWrite],
    ) -> Result<(), IoError> {
        if pieces.is_empty() {
            return Ok(());
        }
        let begun = time::now();
        copier.copy(&self.storage, pieces).await?;
        let took = begun.elapsed();
        let head = &mut *log.head();
        let blocks: u64 = pieces.iter().map(|piece| u64::from(piece.count)).sum();
        head.throttle.measure(blocks, took, head.tail.load());
        head.tail.written_out(pieces);
        Ok(())
    }

    /// Waits until all applied chunks are durable on the devices of the table.
    ///
    /// # Errors
    /// Errors of the devices.
    pub(crate) async fn written_out(&self) -> Result<(), IoError> {
        let Some(log) = &self.storage.log else { return Ok(()) };
        let wanted = log.head().tail.want_applied();
        self.progress.notify();
        let done = || {
            let state = self.state.lock();
            match (log.head().tail.is_durable(wanted), state.write_out) {
                (true, _) => Some(Ok(())),
                (false, WriteOut::Runs) => state.check().err().map(Err),
                (false, _) => Some(Err(IoError::Unreachable)),
            }
        };
        self.progress.wait_for(done).await
    }
}

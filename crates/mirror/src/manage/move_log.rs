//! Moving the write-intent log of an open replica to another device, without a resync.
//!
//! Steps, each durable before the next one:
//! 1. begin a log with a new name at the new place, and copy all pages there, repeatedly, because
//!    bits change meanwhile;
//! 2. lock the log: activations of regions and evictions wait. Copy the pages that have changed,
//!    the activity record and the header;
//! 3. make the superblock name the new log.
//!
//! Guarantees:
//! - until step 3, the superblock names the old log, which receives every change. From step 3 on it
//!   names the new log, which has all that the old one had. So a crash at any moment leaves a log
//!   that names every difference;
//! - if it is unknown whether step 3 took effect, the old log receives no change before the
//!   superblock certainly names it, or the new log certainly cannot be trusted;
//! - writes to active regions never wait. Others wait for step 2 for at most [`MOVE_LOG_MS`], then
//!   the move is given up and the old log stays in use. Step 1 is given up when a call to the new
//!   device takes [`LOCAL_IO_MS`]. Another move begins only when all such calls have ended;
//! - a replica that retires gives up a move, and waits for its writes to the data device: hosts may
//!   get that space when the volume grows.
//!
//! The old log is left as it is. It is not trusted afterwards, because the superblock names
//! another.

use std::pin::pin;

use super::*;
use crate::intent_log::recover::{begin, complete};
use crate::intent_log::writer::LogLocation;
use crate::limits::{LOCAL_IO_MS, LOG_PLACE_MAX, MOVE_LOG_PASSES, PAGES_PER_WRITE};
use crate::mirror::Mirror;
use crate::ondisk::newest;

/// A move of the log in progress; ends on drop.
struct Moving(Arc<Inner>);

impl Drop for Moving {
    fn drop(&mut self) {
        self.0.lock().log_move = None;
    }
}

/// Watch of the moves of a replica's log. Does not keep the replica open.
#[derive(Default)]
pub struct LogMoves(Weak<Inner>);

impl LogMoves {
    /// True until the last write of the latest move has ended, also after its replica was closed.
    pub fn are_running(&self) -> bool {
        self.0.upgrade().is_some_and(|replica| replica.lock().log_move.is_some())
    }
}

impl Replica {
    /// Moves the log to the beginning of another device, or to its place on the data device if
    /// `device` is `None`. `place` is the new place as the operator knows it, of which the first
    /// [`LOG_PLACE_MAX`] bytes are kept for [`ReplicaError::LogMoved`]. Hosts may write meanwhile.
    ///
    /// # Errors
    /// See [`ReplicaError`]. The log is where it was. If writing the superblock failed in a way
    /// that leaves this open, later changes of the log fail until the replica is opened again.
    pub async fn move_log(
        &self,
        device: Option<SharedDevice>,
        place: &str,
    ) -> Result<(), ReplicaError> {
        let io = Arc::<LocalIo>::default();
        {
            let mut state = self.0.lock();
            if state.log_move.is_some() {
                return Err(ReplicaError::LogBusy);
            }
            state.log_move = Some(io.clone());
        }
        let moving = Moving(self.0.clone());
        let place: String = place.chars().filter(|char| !char.is_control()).collect();
        let place = place[..place.floor_char_boundary(LOG_PLACE_MAX)].to_owned();
        let replica = self.clone();
        // A move continues without its caller, because it may be in step 3.
        let moved = spawn(async move {
            let guard = replica.0.move_lock.acquire().await;
            if replica.0.lock().retired {
                return Err(ReplicaError::Io(IoError::Unreachable));
            }
            let to_data_device = device.is_none();
            // If the new device hangs, only the move fails, not the replica.
            let watch = spawn(fail_hung_calls(io.clone())).abort_on_drop();
            let moved = replica.move_log_watched(device, place, &io).await;
            drop(watch);
            // A write that lands late must hit neither another log nor host data.
            let guard = to_data_device.then_some(guard);
            spawn_detached(async move {
                io.settled().await;
                drop((moving, guard));
            });
            moved
        });
        moved.await.unwrap_or(Err(ReplicaError::Io(IoError::Unreachable)))
    }

    async fn move_log_watched(
        &self,
        device: Option<SharedDevice>,
        place: String,
        io: &Arc<LocalIo>,
    ) -> Result<(), ReplicaError> {
        let watched = device.clone().map(|device| WatchedDevice::over(device, io));
        self.check_log_destination(watched.as_ref()).await?;
        self.0.move_log(device, io, place).await
    }

    /// Checks whether the log could be moved there. Writes nothing.
    ///
    /// # Errors
    /// See [`ReplicaError`].
    pub async fn check_log_destination(
        &self,
        device: Option<&SharedDevice>,
    ) -> Result<(), ReplicaError> {
        let inner = &self.0;
        let superblock = self.superblock();
        let Some(device) = device else {
            let there = !inner.has_log_device.load(Ordering::Acquire);
            return if there { Err(ReplicaError::LogAlreadyThere) } else { Ok(()) };
        };
        check_blocks(&inner.device, Some(device))?;
        let area = LogArea::new(device.clone(), 0, &superblock.geometry);
        let headers = area.ok_or(ReplicaError::LogTooSmall)?.headers().await?;
        match newest(headers, |header| header.sequence) {
            Ok((_, header)) if header.log == superblock.log => Err(ReplicaError::LogAlreadyThere),
            Ok((_, header)) if header.replica != superblock.replica => {
                Err(ReplicaError::ForeignLog { log: header.replica, data: superblock.replica })
            }
            _ if is_free_for_log(device).await? => Ok(()),
            _ => Err(ReplicaError::LogDeviceInUse),
        }
    }
}

/// Fails the calls to a new log device when one has not ended for [`LOCAL_IO_MS`].
async fn fail_hung_calls(io: Arc<LocalIo>) {
    let limit = Duration::from_millis(LOCAL_IO_MS);
    while Duration::from_nanos(io.oldest_ns()) < limit {
        time::sleep(limit / 4).await;
    }
    io.fail();
}

impl Mirror {
    /// See [`Replica::move_log`]. The role does not matter, and is not changed.
    ///
    /// # Errors
    /// See [`Replica::move_log`].
    pub async fn move_log(
        &self,
        device: Option<SharedDevice>,
        place: &str,
    ) -> Result<(), ReplicaError> {
        self.0.local.move_log(device, place).await
    }

    /// The moves of the log of this replica.
    pub fn log_moves(&self) -> LogMoves {
        LogMoves(Arc::downgrade(&self.0.local.0))
    }

    /// See [`Replica::check_log_destination`].
    ///
    /// # Errors
    /// See [`Replica::check_log_destination`].
    pub async fn check_log_destination(
        &self,
        device: Option<&SharedDevice>,
    ) -> Result<(), ReplicaError> {
        self.0.local.check_log_destination(device).await
    }

    /// See [`Replica::set_log_room`].
    pub fn set_log_room(&self, bytes: u64) {
        self.0.local.set_log_room(bytes);
    }

    /// See [`Replica::log_lost`].
    pub fn log_lost(&self) -> Option<LogLost> {
        self.0.local.log_lost()
    }
}

impl Inner {
    async fn move_log(
        self: &Arc<Self>,
        device: Option<SharedDevice>,
        io: &Arc<LocalIo>,
        text: String,
    ) -> Result<(), ReplicaError> {
        let has_device = device.is_some();
        // The watch that the device has during the move, and afterwards.
        let (copied_to, in_use, at) = match device {
            Some(device) => {
                let watched = |io| WatchedDevice::over(device.clone(), io);
                (watched(io), watched(&self.local_io), 0)
            }
            None => {
                let device = self.device.clone();
                (WatchedDevice::over(device.clone(), io), device, self.layout.log)
            }
        };
        let area =
            |device| LogArea::new(device, at, self.log.geometry()).ok_or(ReplicaError::LogTooSmall);
        let (copied_to, in_use) = (area(copied_to)?, area(in_use)?);
        let name = begin(&copied_to).await?;
        let to = LogLocation { name, area: copied_to };
        self.log.begin_copies();
        for _ in 0..MOVE_LOG_PASSES {
            if self.log.copy_pages(&to).await? <= PAGES_PER_WRITE {
                break;
            }
        }
        let log_guard = self.log.exclusive().await;
        let limit = Duration::from_millis(MOVE_LOG_MS);
        let mut finish = pin!(self.finish_copy(&to));
        let header_sequence = match time::timeout(limit, &mut finish).await {
            Ok(finished) => finished?,
            Err(_) => {
                // A dropped call would no longer count as in flight, so another move would not wait
                // for it.
                io.fail();
                let _ = finish.await;
                return Err(ReplicaError::LogDeviceHangs);
            }
        };
        self.name_log(&to, header_sequence, text).await?;
        self.log.moved(LogLocation { name, area: in_use });
        self.has_log_device.store(has_device, Ordering::Release);
        self.log_room_bytes.store(u64::MAX, Ordering::Relaxed);
        drop(log_guard);
        self.start_recording_progress();
        Ok(())
    }

    /// Step 2. Returns the sequence number of the latest header. The caller holds the log's lock.
    async fn finish_copy(&self, to: &LogLocation) -> Result<u64, IoError> {
        self.log.copy_pages(to).await?;
        self.log.copy_record(to).await?;
        let (sequence, superblock) = {
            let state = self.lock();
            (state.header_sequence, state.superblock.clone())
        };
        let Superblock { replica, incarnation, geometry, .. } = superblock;
        let header = LogHeader { sequence, log: to.name, replica, incarnation, geometry };
        complete(&to.area, header).await?;
        counter::next(sequence)
    }

    /// Step 3. The caller holds the log's lock.
    async fn name_log(
        self: &Arc<Self>,
        to: &LogLocation,
        header_sequence: u64,
        text: String,
    ) -> Result<(), IoError> {
        let name = to.name;
        let guard = self.fifo.acquire().await;
        let change = move |superblock: &mut Superblock| {
            (superblock.log, superblock.log_place) = (name, text);
        };
        let Err(error) = self.write_superblock(guard, change).await else {
            self.lock().header_sequence = header_sequence;
            return Ok(());
        };
        // After a crash, the superblock may name either log. The old one must not change before
        // that is settled.
        let guard = self.fifo.acquire().await;
        if self.write_superblock(guard, |_| {}).await.is_err() && to.area.forget().await.is_err() {
            self.log.freeze();
        }
        Err(error)
    }
}

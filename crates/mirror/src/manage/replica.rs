//! Replica of a volume: a data device, its superblock, and its write-intent log.
//!
//! Guarantees:
//! - when [`Replica::update`] returns, the change is durable and whole, and changes apply in the
//!   order of the calls. A power failure leaves the superblock before or after the change;
//! - after [`Replica::open`], every block that may differ from the peers' is marked: those named by
//!   bitmap pages, those in regions that were active, and all blocks unless the log is certainly
//!   the replica's own and latest;
//! - metadata is never written below the usable size.
//!
//! Methods may be called from any core that runs the executor. A call that is dropped still runs to
//! completion, so that no superblock is left half-written.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use flagstone_blockdev::{Geometry, IoError, SharedDevice};
use flagstone_runtime::{spawn, spawn_detached, time};
use parking_lot::{Mutex, MutexGuard};

use crate::agree::decide::ReplicaView;
use crate::id::MirrorId;
use crate::intent_log::bitmap::Bitmap;
use crate::intent_log::log_area::LogArea;
use crate::intent_log::log_device::is_free_for_log;
pub use crate::intent_log::recover::LogLost;
use crate::intent_log::recover::{RecoveredLog, UnusableLog, make, recover};
use crate::intent_log::writer::IntentLog;
pub use crate::intent_log::writer::{IntentLogStatistics, RegionRef};
use crate::io::fifo_lock::{FifoGuard, FifoLock};
use crate::io::local::{LocalIo, WatchedDevice};
use crate::limits::TRANSFER_MS;
use crate::limits::{LOG_PROGRESS_MS, MOVE_LOG_MS, PAGE_BYTES, PIECE_MAX_REGIONS, REGIONS_MAX};
pub use crate::manage::create::CreateReplica;
use crate::manage::resize::{Sizes, follow_device};
use crate::ondisk::FormatError;
use crate::ondisk::counter;
use crate::ondisk::device_prefix::DevicePrefix;
use crate::ondisk::layout::{ReplicaGeometry, ReplicaLayout, follow, layout};
use crate::ondisk::locate::{end_of, locate, locate_near};
use crate::ondisk::log_header::LogHeader;
use crate::ondisk::new_space::NewSpace;
use crate::ondisk::superblock::{LogProgress, Superblock};
use crate::ondisk::superblock_slots::SuperblockSlots;
use crate::options::IntentLogMode;

/// Why a replica cannot be created or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum ReplicaError {
    #[error("{0}")]
    Io(#[from] IoError),
    #[error("no replica on the data device: {0}")]
    Superblock(FormatError),
    #[error("invalid granularities: {0}")]
    Geometry(FormatError),
    /// The block size exceeds a page, so pages could not be written individually.
    #[error("blocks of {0} bytes are not supported: the mirror needs 4096 or less")]
    BlockSize(u32),
    #[error("the data device is too small for a replica")]
    DataTooSmall,
    #[error("the log device is too small")]
    LogTooSmall,
    /// The log device holds something other than a log, which may still be needed.
    #[error("the log device holds data that is not a write-intent log")]
    LogDeviceInUse,
    /// The log device holds the log of another replica, which may still be needed.
    #[error("the log device belongs to replica {log}, but the data device holds replica {data}")]
    ForeignLog { log: MirrorId, data: MirrorId },
    /// The log was moved to the place in the superblock's `log_place`.
    #[error("the log was moved to another device")]
    LogMoved,
    #[error("the log is on that device already")]
    LogAlreadyThere,
    #[error("the log is being moved")]
    LogBusy,
    #[error("the new log device has not answered for {MOVE_LOG_MS} ms")]
    LogDeviceHangs,
    #[error("a device of the replica has not answered for {TRANSFER_MS} ms")]
    DeviceHangs,
}

/// An open replica. Clones are handles to the same replica.
#[derive(Clone)]
pub struct Replica(Arc<Inner>);

struct Inner {
    device: SharedDevice,
    data: SharedDevice,
    layout: ReplicaLayout,
    log: Arc<IntentLog>,
    lost: Option<LogLost>,
    fifo: Arc<FifoLock>,
    state: Mutex<State>,
    new_space: Arc<NewSpace>,
    /// Largest volume for which the log has room, if the size of the log is fixed.
    log_room_bytes: AtomicU64,
    /// True if the log has a device of its own, which may be restored from a backup separately.
    has_log_device: AtomicBool,
    /// Held during a move of the log, and while its late writes to the data device may land.
    move_lock: Arc<FifoLock>,
    /// Watch of the calls to both devices.
    local_io: Arc<LocalIo>,
    /// True while a task periodically records the log's progress in the superblock.
    recording_progress: AtomicBool,
}

struct State {
    superblock: Superblock,
    /// Changed under the FIFO lock.
    slots: SuperblockSlots,
    header_sequence: u64,
    /// True if no more writes are allowed: another mirror owns the devices.
    retired: bool,
    /// Calls of a move to the new log device, until the last one has ended.
    log_move: Option<Arc<LocalIo>>,
    /// Calls of a transfer to another mirror.
    transfer: Option<Arc<LocalIo>>,
}

/// A replica that was found and is not in use.
pub(crate) struct OpenedReplica {
    pub(crate) layout: ReplicaLayout,
    pub(crate) area: LogArea,
    pub(crate) superblock: Superblock,
    pub(crate) slots: SuperblockSlots,
    pub(crate) recovered: RecoveredLog,
    pub(crate) lost: Option<LogLost>,
}

pub(crate) fn place_metadata(
    device: &SharedDevice,
    log: Option<SharedDevice>,
    end: u64,
    geometry: &ReplicaGeometry,
) -> Result<(ReplicaLayout, ReplicaGeometry, LogArea), ReplicaError> {
    let layout = layout(end, geometry).ok_or(ReplicaError::DataTooSmall)?;
    let geometry = ReplicaGeometry {
        usable_bytes: layout.usable_bytes.min(geometry.usable_bytes),
        ..*geometry
    };
    geometry.check().map_err(ReplicaError::Geometry)?;
    let (on, at) = match log {
        Some(log) => (log, 0),
        None => (device.clone(), layout.log),
    };
    let area = LogArea::new(on, at, &geometry).ok_or(ReplicaError::LogTooSmall)?;
    Ok((layout, geometry, area))
}

pub(crate) fn check_blocks(
    device: &SharedDevice,
    log: Option<&SharedDevice>,
) -> Result<(), ReplicaError> {
    for geometry in std::iter::once(device).chain(log).map(|device| device.geometry()) {
        if geometry.block_bytes as usize > PAGE_BYTES {
            return Err(ReplicaError::BlockSize(geometry.block_bytes));
        }
    }
    Ok(())
}

/// Reads the superblock of a device, as it is on disk.
///
/// # Errors
/// [`ReplicaError::Superblock`] if there is no replica, or an error of the device.
pub async fn read_superblock(device: &SharedDevice) -> Result<Superblock, ReplicaError> {
    Ok(locate(device).await?.superblock)
}

/// Finds a replica and its log. The metadata is moved to the end of a device that has grown. An
/// untrusted log is replaced, if its device holds nothing else.
async fn find(
    device: &SharedDevice,
    log: Option<SharedDevice>,
    known_end: Option<u64>,
) -> Result<OpenedReplica, ReplicaError> {
    check_blocks(device, log.as_ref())?;
    let log_device = log.clone();
    let located = locate_near(device, known_end).await?;
    let found = follow_device(device, log.is_none(), located).await?;
    let mut superblock = found.superblock;
    let mut slots = found.slots;
    let (layout, geometry, area) = place_metadata(device, log, found.end, &superblock.geometry)?;
    if geometry != superblock.geometry {
        return Err(ReplicaError::Superblock(FormatError::Field("usable_bytes")));
    }
    superblock.flags.crashed |= superblock.flags.in_use;
    let (recovered, lost) = match recover(&area, &superblock).await {
        Ok(recovered) => (recovered, None),
        Err(UnusableLog::Unknown(error)) => return Err(error.into()),
        // More likely swapped devices than a blank one: refuse.
        Err(UnusableLog::Foreign(log)) => {
            return Err(ReplicaError::ForeignLog { log, data: superblock.replica });
        }
        // The configuration still names the old place. A new log there would cause a full resync,
        // although the log is whole elsewhere.
        Err(UnusableLog::Moved) => return Err(ReplicaError::LogMoved),
        Err(UnusableLog::Lost(lost)) => {
            // On the data device, the superblock determines the log's place, so no other user has
            // it.
            if let Some(log) = &log_device
                && !is_free_for_log(log).await?
            {
                return Err(ReplicaError::LogDeviceInUse);
            }
            tracing::warn!("replacing the log of replica {}: {lost}", superblock.replica);
            (renew(device, &area, &mut superblock, &mut slots).await?, Some(lost))
        }
    };
    Ok(OpenedReplica { layout, area, superblock, slots, recovered, lost })
}

/// Runs a future to completion even if the caller stops waiting.
async fn to_the_end<T: 'static>(
    work: impl Future<Output = Result<T, IoError>> + 'static,
) -> Result<T, IoError> {
    // A task is aborted only when its process ends.
    spawn(work).await.unwrap_or(Err(IoError::Unreachable))
}

impl Replica {
    /// Opens a replica. An untrusted log is replaced by a new one with all bits set, and
    /// [`Replica::log_lost`] returns the reason. A replica that was in use as a source is flagged
    /// as crashed.
    ///
    /// # Errors
    /// See [`ReplicaError`]. Also if the log device is unreachable, because its log may be intact,
    /// or if it holds something else. The log device is unchanged then.
    pub async fn open(
        device: SharedDevice,
        log: Option<SharedDevice>,
    ) -> Result<Replica, ReplicaError> {
        Replica::open_watched(device, log, Arc::default()).await
    }

    /// As [`Replica::open`], with the watch of the calls to its devices.
    pub(crate) async fn open_watched(
        device: SharedDevice,
        log: Option<SharedDevice>,
        local_io: Arc<LocalIo>,
    ) -> Result<Replica, ReplicaError> {
        let has_log_device = log.is_some();
        let device = WatchedDevice::over(device, &local_io);
        let log = log.map(|log| WatchedDevice::over(log, &local_io));
        let OpenedReplica { layout, area, superblock, slots, recovered, lost } =
            find(&device, log, None).await?;
        let size_bytes = superblock.geometry.usable_bytes;
        let data: SharedDevice = Arc::new(DevicePrefix { device: device.clone(), size_bytes });
        let RecoveredLog { start, header_sequence } = recovered;
        let log = IntentLog::new(area, data.clone(), start);
        let state = State {
            superblock,
            slots,
            header_sequence,
            retired: false,
            log_move: None,
            transfer: None,
        };
        let state = Mutex::new(state);
        let (fifo, log_room_bytes) = (Arc::default(), AtomicU64::new(u64::MAX));
        let new_space = NewSpace::new(device.clone(), layout, size_bytes);
        let inner = Inner {
            device,
            data,
            layout,
            log,
            lost,
            fifo,
            state,
            new_space,
            log_room_bytes,
            has_log_device: AtomicBool::new(has_log_device),
            move_lock: Arc::default(),
            local_io,
            recording_progress: AtomicBool::new(false),
        };
        Ok(Replica(Arc::new(inner)))
    }

    /// Resizes a replica that is not open, or is retired. Host data below the smaller size is kept.
    /// New space beyond `zeroed_bytes` is marked as possibly different from the peers'. `change` is
    /// applied in the same write of the superblock. Resizing to the current size changes nothing.
    ///
    /// # Errors
    /// See [`ReplicaError`]. The size is unchanged, or unknown if the last write failed.
    pub async fn resize(
        device: &SharedDevice,
        log: Option<SharedDevice>,
        usable_bytes: u64,
        zeroed_bytes: u64,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), ReplicaError> {
        Replica::resize_at(device, log, None, Sizes { usable_bytes, zeroed_bytes }, change).await
    }

    /// As [`Replica::resize`]; the metadata ends at `known_end` if not at the end of the device.
    pub(crate) async fn resize_at(
        device: &SharedDevice,
        log: Option<SharedDevice>,
        known_end: Option<u64>,
        sizes: Sizes,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), ReplicaError> {
        let opened = find(device, log.clone(), known_end).await?;
        crate::manage::resize::resize(device, log, opened, sizes, change).await
    }

    /// Stops all metadata writes for good: when this returns, another may open the devices. The
    /// caller has ended all host calls. Later calls fail with [`IoError::Unreachable`]. A move of
    /// the log is given up, unless the superblock is about to name the new one.
    pub async fn retire(&self) {
        let log_move = self.0.lock().log_move.clone();
        if let Some(io) = log_move {
            io.fail();
        }
        let _move_guard = self.0.move_lock.acquire().await;
        let _log_guard = self.0.log.exclusive().await;
        let _guard = self.0.fifo.acquire().await;
        self.0.log.retire();
        self.0.lock().retired = true;
        self.0.new_space.end().await;
        self.0.local_io.settled().await;
        let transfer = self.0.lock().transfer.clone();
        if let Some(io) = transfer {
            io.settled().await;
        }
    }

    /// Begins a transfer to another mirror, with this watch of its calls. Another mirror may open
    /// the devices after abandoned calls have ended, too.
    pub(crate) fn begin_transfer(&self, io: &Arc<LocalIo>) {
        self.0.lock().transfer = Some(io.clone());
    }

    /// End of the metadata on the data device, in bytes.
    pub(crate) fn end(&self) -> u64 {
        self.0.layout.end()
    }

    /// Flushes the devices, and rewrites the superblock.
    ///
    /// # Errors
    /// Errors of a device.
    pub(crate) async fn check_devices(&self) -> Result<(), IoError> {
        let inner = self.0.clone();
        // The write outlives its caller, so that the watch sees a hung call.
        to_the_end(async move {
            inner.log.place().area.flush().await?;
            inner.data.flush().await?;
            let guard = inner.fifo.acquire().await;
            inner.write_superblock(guard, |_| {}).await
        })
        .await
    }

    /// Sets what the log writes before the data. [`IntentLogMode::ActiveRegions`] is in effect each
    /// time the replica is opened, until this is called.
    pub fn set_intent_log_mode(&self, mode: IntentLogMode) {
        self.0.log.set_intent_log_mode(mode);
    }

    /// Why the log found at opening was not trusted. All bits were set then.
    pub fn log_lost(&self) -> Option<LogLost> {
        self.0.lost
    }

    /// Watch of the calls to the replica's devices.
    pub(crate) fn local_io(&self) -> &Arc<LocalIo> {
        &self.0.local_io
    }

    /// The part of the data device that hosts see.
    pub fn data(&self) -> &SharedDevice {
        &self.0.data
    }

    /// Geometry of the volume.
    pub fn geometry(&self) -> Geometry {
        self.0.data.geometry()
    }

    /// The superblock as on disk, except that
    /// [`Flags::crashed`](crate::ondisk::superblock::Flags::crashed) is as found when the replica
    /// was opened.
    pub fn superblock(&self) -> Superblock {
        self.0.lock().superblock.clone()
    }

    /// The replica's report to the peer in this slot of the superblock.
    ///
    /// # Panics
    /// When the slot does not exist.
    pub fn view(&self, peer: usize) -> ReplicaView {
        let room_bytes = self.room_bytes();
        let block_bytes = self.geometry().block_bytes;
        let state = self.0.lock();
        let superblock = &state.superblock;
        ReplicaView {
            volume: superblock.volume,
            replica: superblock.replica,
            usable_bytes: superblock.geometry.usable_bytes,
            room_bytes,
            bit_bytes: superblock.geometry.bit_bytes,
            block_bytes,
            generations: superblock.generations(peer),
            epoch: superblock.epoch,
            serving: superblock.flags.served_alone || self.0.log.is_open(),
            crashed: superblock.flags.crashed,
            inconsistent: superblock.flags.inconsistent,
            dirty: self.0.log.bits().count() > 0,
        }
    }

    /// Changes the superblock. The change takes effect when it is durable.
    ///
    /// # Errors
    /// Of the data device. The change has no effect then, but may appear after a power failure.
    pub async fn update<T: 'static>(
        &self,
        change: impl FnOnce(&mut Superblock) -> T,
    ) -> Result<T, IoError> {
        let guard = self.0.fifo.acquire().await;
        self.0.write_superblock(guard, change).await
    }

    /// Records that a flush of the devices failed before they were opened: data that can be read
    /// may not be durable, and no later flush changes that. Until a resync to this replica
    /// completes, across restarts, its checksums never match, so possibly different blocks are
    /// rewritten; it counts as inconsistent toward peers; and it does not serve. Call it before a
    /// mirror is created from the replica.
    ///
    /// # Errors
    /// Of the data device.
    pub async fn mark_unverified(&self) -> Result<(), IoError> {
        self.update(|superblock| superblock.unverified = true).await
    }

    /// Puts the replica and its log in use as a source: calls may enter from now on. First raises
    /// the log's incarnation, in the log's header and then in the superblock;
    /// `docs/mirror-format.md` gives the reason.
    ///
    /// # Errors
    /// Of a device; [`IoError::Unsupported`] when it is already in use.
    pub async fn begin_use(
        &self,
        change: impl FnOnce(&mut Superblock) + 'static,
    ) -> Result<(), IoError> {
        let inner = self.0.clone();
        to_the_end(async move {
            let _log_guard = inner.log.exclusive().await;
            if inner.log.is_open() {
                return Err(IoError::Unsupported);
            }
            inner.log.quiesce().await?;
            let guard = inner.fifo.acquire().await;
            if inner.lock().retired {
                return Err(IoError::Unreachable);
            }
            let header = inner.next_header()?;
            inner.log.place().area.write_header(&header).await?;
            inner.lock().header_sequence = header.sequence;
            let raise = |superblock: &mut Superblock| {
                change(superblock);
                superblock.flags.in_use = true;
                superblock.incarnation = header.incarnation;
            };
            inner.write_superblock(guard, raise).await?;
            inner.log.open();
            inner.start_recording_progress();
            Ok(())
        })
        .await
    }

    /// Writes an empty record to the log of a replica that is not in use, which is the only test of
    /// this log.
    ///
    /// # Errors
    /// Errors of a device.
    pub(crate) async fn check_log(&self) -> Result<(), IoError> {
        let inner = self.0.clone();
        to_the_end(async move {
            let _log_guard = inner.log.exclusive().await;
            if inner.log.is_open() || inner.lock().retired {
                return Ok(());
            }
            inner.log.quiesce().await
        })
        .await
    }

    /// Refuses new calls, waits for those inside, and closes the log and the replica.
    ///
    /// # Errors
    /// Of a device. Calls stay refused, and on disk the replica is still in use.
    pub async fn end_use(
        &self,
        change: impl FnOnce(&mut Superblock) + 'static,
    ) -> Result<(), IoError> {
        let inner = self.0.clone();
        to_the_end(async move {
            let _log_guard = inner.log.exclusive().await;
            inner.log.close().await?;
            let guard = inner.fifo.acquire().await;
            let lower = |superblock: &mut Superblock| {
                change(superblock);
                superblock.flags.in_use = false;
            };
            inner.write_superblock(guard, lower).await
        })
        .await
    }
}

/// Access to the log.
impl Replica {
    /// References the regions of a range if all are active, without I/O, allocation or a lock.
    /// Always `None` with [`IntentLogMode::EveryWrite`]. The range has to lie within the volume and
    /// within one piece of [`Replica::longest_piece`] bytes.
    pub fn try_reference(&self, offset: u64, len: u64) -> Option<RegionRef> {
        self.0.log.try_reference(offset, len)
    }

    /// As [`Replica::try_reference`], but waits for the record that activates the regions.
    ///
    /// # Errors
    /// Of a device; [`IoError::Unreachable`] when the replica is not in use.
    pub async fn reference(&self, offset: u64, len: u64) -> Result<RegionRef, IoError> {
        self.0.log.reference(offset, len).await
    }

    /// Longer calls are split at multiples of this, in bytes.
    pub fn longest_piece(&self) -> u64 {
        u64::from(PIECE_MAX_REGIONS) * u64::from(self.0.log.geometry().region_bytes)
    }

    /// The log's bitmap. One bitmap serves all peers: it names the blocks that any of them lacks.
    pub fn bits(&self) -> &Bitmap {
        self.0.log.bits()
    }

    /// Sets bits of the log. Either their regions are referenced, or [`Replica::persist_marks`] has
    /// to follow before they are relied on.
    pub fn mark(&self, bits: Range<u64>) {
        self.0.log.mark(bits);
    }

    /// Clears bits of the log for blocks that every peer has durably.
    pub fn clear(&self, bits: Range<u64>) {
        self.0.log.clear(bits);
    }

    /// A word of the log's bitmap.
    pub fn word(&self, index: u64) -> u64 {
        self.bits().word(index)
    }

    /// Makes all bits durable that were set before this call.
    ///
    /// # Errors
    /// Of the log's device.
    pub async fn persist_marks(&self) -> Result<(), IoError> {
        let inner = self.0.clone();
        to_the_end(async move { inner.log.persist_marks().await }).await
    }

    /// Counters of the log.
    pub fn statistics(&self) -> IntentLogStatistics {
        self.0.log.statistics()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn next_header(&self) -> Result<LogHeader, IoError> {
        let state = self.lock();
        Ok(LogHeader {
            sequence: counter::next(state.header_sequence)?,
            log: state.superblock.log,
            replica: state.superblock.replica,
            incarnation: counter::next(state.superblock.incarnation)?,
            geometry: state.superblock.geometry,
        })
    }

    async fn write_superblock<T: 'static>(
        self: &Arc<Self>,
        guard: FifoGuard,
        change: impl FnOnce(&mut Superblock) -> T,
    ) -> Result<T, IoError> {
        let before = self.lock().superblock.clone();
        let mut next = before.clone();
        let value = change(&mut next);
        // Otherwise a promise to a peer, or of an epoch, would be forgotten.
        assert_eq!(
            (next.volume, next.replica),
            (before.volume, before.replica),
            "a replica keeps its name"
        );
        assert!(next.epoch >= before.epoch, "role epoch {} after {}", next.epoch, before.epoch);
        let inner = self.clone();
        to_the_end(async move {
            if inner.lock().retired {
                return Err(IoError::Unreachable);
            }
            // At most the progress that is durable now: a log with less came from a backup.
            next.log_progress = inner.log.progress();
            let mut slots = inner.lock().slots.clone();
            let result = slots.write(&inner.device, &mut next).await;
            let mut state = inner.lock();
            state.slots = slots;
            if result.is_ok() {
                state.superblock = next;
            }
            drop(state);
            drop(guard);
            result.map(|()| value)
        })
        .await
    }
}

impl Inner {
    fn start_recording_progress(self: &Arc<Self>) {
        if self.has_log_device.load(Ordering::Acquire)
            && self.log.is_open()
            && !self.recording_progress.swap(true, Ordering::AcqRel)
        {
            spawn_detached(record_progress(Arc::downgrade(self)));
        }
    }
}

/// Periodically records the log's progress in the superblock while the log is in use.
async fn record_progress(inner: Weak<Inner>) {
    loop {
        let Some(log) = inner.upgrade().map(|inner| inner.log.clone()) else { return };
        let ended =
            time::timeout(Duration::from_millis(LOG_PROGRESS_MS), log.ended()).await.is_ok();
        let Some(inner) = inner.upgrade() else { return };
        if ended {
            inner.recording_progress.store(false, Ordering::Release);
            // The log may have been opened after the check, while this task was registered.
            if !log.is_open()
                || inner.lock().retired
                || inner.recording_progress.swap(true, Ordering::AcqRel)
            {
                return;
            }
            continue;
        }
        let guard = inner.fifo.acquire().await;
        if inner.lock().superblock.log_progress != log.progress() {
            // A failure is retried next time.
            let _ = inner.write_superblock(guard, |_| {}).await;
        }
    }
}

/// Creates a log with all bits set, which the superblock then names.
async fn renew(
    device: &SharedDevice,
    area: &LogArea,
    superblock: &mut Superblock,
    slots: &mut SuperblockSlots,
) -> Result<RecoveredLog, IoError> {
    let made = make(area, superblock.replica, 1, true).await?;
    (superblock.log, superblock.incarnation) = (made.start.name, 1);
    superblock.log_place.clear();
    superblock.log_progress = LogProgress::default();
    slots.write(device, superblock).await?;
    Ok(made)
}

#[path = "growth_space.rs"]
mod growth_space;

#[path = "move_log.rs"]
mod move_log;
pub use move_log::LogMoves;

#[cfg(test)]
#[path = "replica_tests.rs"]
mod tests;

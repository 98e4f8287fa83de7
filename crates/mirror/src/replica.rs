//! A replica of a volume: a data device, its superblock, and its write-intent log.
//!
//! Promises:
//! - what [`Replica::update`] returns from is durable, whole, and in the order of the calls; a power
//!   loss in the midst leaves the superblock before it or after it;
//! - [`Replica::open`] finds every part that may differ from the peers' marked: what pages name, what
//!   was hot, and everything when the log is not certainly its own and latest;
//! - nothing is written below the usable size.
//!
//! Methods may be called from any core that runs the executor. A call that is dropped goes on to its
//! end, for half a superblock is nothing to leave behind.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use flagstone_blockdev::{Geometry, IoError, SharedDevice};
use flagstone_runtime::{spawn, spawn_detached, time};

use crate::area::{Area, write_page};
use crate::bitmap::Bitmap;
use crate::counter;
pub use crate::create::Create;
use crate::decide::View;
use crate::format::FormatError;
use crate::format::log_header::LogHeader;
use crate::format::superblock::{Progress, Superblock};
use crate::id::Uuid;
use crate::limits::{LOG_NOTE_MS, PAGE_BYTES, PIECE_MAX_REGIONS, REGIONS_MAX};
use crate::locate::{end_of, locate};
use crate::log::Log;
pub use crate::log::{Pin, Statistics};
use crate::options::Intent;
use crate::part::Part;
pub use crate::recover::Lost;
use crate::recover::{NoLog, Recovered, make, recover};
use crate::resize::{Sizes, follow_device};
use crate::room::Room;
use crate::shape::{Layout, Shape, follow, layout};
use crate::turn::{Turn, Turns};
use crate::vacant::is_vacant;

/// Why a replica cannot be made or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaError {
    /// A device failed.
    #[error("{0}")]
    Io(#[from] IoError),
    /// No superblock, or one that makes no sense for this device.
    #[error("no replica on the data device: {0}")]
    Superblock(FormatError),
    /// The granularities make no sense.
    #[error("the granularities are not possible: {0}")]
    Shape(FormatError),
    /// Blocks larger than a page: a page could not be written alone.
    #[error("blocks of {0} bytes are larger than the 4096 that the mirror's own structures have")]
    Blocks(u32),
    /// The data device has no room for the log beside data.
    #[error("the data device is too small for a replica")]
    DataTooSmall,
    /// The log's device is smaller than the log.
    #[error("the device for the log is too small")]
    LogTooSmall,
    /// The log's device holds something that is no log, which may be wanted still.
    #[error("the device for the log holds something that is no write-intent log")]
    NoPlaceForLog,
    /// The log's device has the log of another replica, which may be wanted still.
    #[error(
        "the device for the log has that of replica {log}, and the data device has replica {data}"
    )]
    OthersLog {
        /// Whose log it is.
        log: Uuid,
        /// The replica on the data device.
        data: Uuid,
    },
}

/// See the module. Clones are the same replica.
#[derive(Clone)]
pub struct Replica(Arc<Inner>);

struct Inner {
    device: SharedDevice,
    data: SharedDevice,
    layout: Layout,
    log: Arc<Log>,
    lost: Option<Lost>,
    turns: Arc<Turns>,
    state: Mutex<State>,
    room: Arc<Room>,
    /// What its log has room for, when that is fixed.
    log_room_bytes: AtomicU64,
    /// The log has a device of its own, which may be set back to an earlier state by itself.
    log_is_apart: bool,
    /// A task notes how far the log has come.
    noting: AtomicBool,
}

struct State {
    superblock: Superblock,
    header_sequence: u64,
    /// Nothing is written any more: another has the disks.
    retired: bool,
}

/// A replica that was found and is not in use.
pub(crate) struct Opened {
    pub(crate) layout: Layout,
    pub(crate) area: Area,
    pub(crate) superblock: Superblock,
    pub(crate) recovered: Recovered,
    pub(crate) lost: Option<Lost>,
}

pub(crate) fn places(
    device: &SharedDevice,
    log: Option<SharedDevice>,
    end: u64,
    shape: &Shape,
) -> Result<(Layout, Shape, Area), ReplicaError> {
    let layout = layout(end, shape).ok_or(ReplicaError::DataTooSmall)?;
    let shape = Shape { usable_bytes: layout.usable_bytes.min(shape.usable_bytes), ..*shape };
    shape.check().map_err(ReplicaError::Shape)?;
    let (on, at) = match log {
        Some(log) => (log, 0),
        None => (device.clone(), layout.log),
    };
    let area = Area::new(on, at, &shape).ok_or(ReplicaError::LogTooSmall)?;
    Ok((layout, shape, area))
}

pub(crate) fn check_blocks(
    device: &SharedDevice,
    log: Option<&SharedDevice>,
) -> Result<(), ReplicaError> {
    for geometry in std::iter::once(device).chain(log).map(|device| device.geometry()) {
        if geometry.block_bytes as usize > PAGE_BYTES {
            return Err(ReplicaError::Blocks(geometry.block_bytes));
        }
    }
    Ok(())
}

/// The superblock on a device, as it is on disk.
///
/// # Errors
/// [`ReplicaError::Superblock`] where there is no replica; or of the device.
pub async fn read_superblock(device: &SharedDevice) -> Result<Superblock, ReplicaError> {
    Ok(locate(device).await?.superblock)
}

/// Finds a replica and its log. Its metadata follows the end of a device that has grown; a log that
/// cannot be trusted is made anew, where its device holds nothing else.
async fn find(device: &SharedDevice, log: Option<SharedDevice>) -> Result<Opened, ReplicaError> {
    check_blocks(device, log.as_ref())?;
    let apart = log.clone();
    let found = follow_device(device, log.is_none(), locate(device).await?).await?;
    let mut superblock = found.superblock;
    let (layout, shape, area) = places(device, log, found.end, &superblock.shape)?;
    if shape != superblock.shape {
        return Err(ReplicaError::Superblock(FormatError::Field("usable_bytes")));
    }
    superblock.flags.crashed |= superblock.flags.in_use;
    let (recovered, lost) = match recover(&area, &superblock).await {
        Ok(recovered) => (recovered, None),
        Err(NoLog::Unknown(error)) => return Err(error.into()),
        // Rather two devices that were exchanged for each other than one that is free to be used.
        Err(NoLog::Others(log)) => {
            return Err(ReplicaError::OthersLog { log, data: superblock.replica });
        }
        Err(NoLog::Lost(lost)) => {
            // On the data device it lies where the superblock has it, and nobody else has anything.
            if let Some(log) = &apart
                && !is_vacant(log).await?
            {
                return Err(ReplicaError::NoPlaceForLog);
            }
            tracing::warn!("the log of replica {} is made anew: {lost}", superblock.replica);
            (renew(device, &layout, &area, &mut superblock).await?, Some(lost))
        }
    };
    Ok(Opened { layout, area, superblock, recovered, lost })
}

/// Does work to its end, whether or not anybody waits for it.
async fn to_the_end<T: 'static>(
    work: impl Future<Output = Result<T, IoError>> + 'static,
) -> Result<T, IoError> {
    // Aborted is a task whose process ends.
    spawn(work).await.unwrap_or(Err(IoError::Unreachable))
}

impl Replica {
    /// Opens a replica. A log that cannot be trusted is replaced by one all of whose bits are set;
    /// [`Replica::lost`] says why. One that was open as a source is flagged as crashed.
    ///
    /// # Errors
    /// See [`ReplicaError`]; also where the log's device cannot be reached, and nothing is known of
    /// the log, or has something else: it is as it was.
    pub async fn open(
        device: SharedDevice,
        log: Option<SharedDevice>,
    ) -> Result<Replica, ReplicaError> {
        let log_is_apart = log.is_some();
        let Opened { layout, area, superblock, recovered, lost } = find(&device, log).await?;
        let size_bytes = superblock.shape.usable_bytes;
        let data: SharedDevice = Arc::new(Part { device: device.clone(), size_bytes });
        let Recovered { start, header_sequence } = recovered;
        let log = Log::new(area, data.clone(), start);
        let state = Mutex::new(State { superblock, header_sequence, retired: false });
        let (turns, log_room_bytes) = (Arc::default(), AtomicU64::new(u64::MAX));
        let room = Room::new(device.clone(), layout, size_bytes);
        let inner = Inner {
            device,
            data,
            layout,
            log,
            lost,
            turns,
            state,
            room,
            log_room_bytes,
            log_is_apart,
            noting: AtomicBool::new(false),
        };
        Ok(Replica(Arc::new(inner)))
    }

    /// Gives a replica that is not open, or is retired, another size: hosts' data below the smaller
    /// of the two stays, and what is new beyond `cleared_bytes` may differ from the peers'. `change`
    /// is made in the same write of the superblock. The same size again changes nothing.
    ///
    /// # Errors
    /// See [`ReplicaError`]. It has the old size still, unless that was the last write, of which
    /// nobody knows.
    pub async fn resize(
        device: &SharedDevice,
        log: Option<SharedDevice>,
        usable_bytes: u64,
        cleared_bytes: u64,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), ReplicaError> {
        let opened = find(device, log.clone()).await?;
        let sizes = Sizes { usable_bytes, cleared_bytes };
        crate::resize::resize(device, log, opened, sizes, change).await
    }

    /// Zeroes what a volume of so many bytes would have more than this one, durably.
    ///
    /// # Errors
    /// Of the device; [`IoError::OutOfRange`] when there is no room for so much, and
    /// [`IoError::Unreachable`] when the replica is retired.
    pub(crate) async fn clear_room(&self, usable_bytes: u64) -> Result<(), IoError> {
        if usable_bytes > self.room_bytes() {
            return Err(IoError::OutOfRange);
        }
        self.0.room.clear(usable_bytes).await
    }

    /// The size up to which the volume could grow into zeroes, in bytes.
    pub(crate) fn cleared_bytes(&self) -> u64 {
        self.0.room.cleared_bytes()
    }

    /// Writes nothing any more, from when this returns: another may open its disks. It is not in
    /// use; what is asked of it fails with [`IoError::Unreachable`].
    pub async fn retire(&self) {
        let _log_turn = self.0.log.turn().await;
        let _turn = self.0.turns.take().await;
        self.0.log.retire();
        self.0.lock().retired = true;
        self.0.room.end().await;
    }

    /// The largest size that the volume could have here, in bytes: what the device, which is asked
    /// how large it is now, and a log that cannot be made larger have room for.
    pub fn room_bytes(&self) -> u64 {
        self.0.device.refresh();
        let shape = self.superblock().shape;
        let here = self.0.layout;
        let layout = follow(here.end(), end_of(&self.0.device), &shape).unwrap_or(here);
        let regions = u64::from(shape.region_bytes).saturating_mul(REGIONS_MAX);
        let log = self.0.log_room_bytes.load(Ordering::Relaxed);
        layout.usable_bytes.min(regions).min(log).max(shape.usable_bytes)
    }

    /// Its log cannot be made larger than for a volume of so many bytes.
    pub fn set_log_room(&self, bytes: u64) {
        self.0.log_room_bytes.store(bytes, Ordering::Relaxed);
    }

    /// What its log writes before the data: [`Intent::HotRegions`] unless this says otherwise, after
    /// each time that it is opened.
    pub fn set_intent(&self, intent: Intent) {
        self.0.log.set_intent(intent);
    }

    /// Why the log that was found when it was opened could not be trusted; all bits were set then.
    pub fn lost(&self) -> Option<Lost> {
        self.0.lost
    }

    /// The part of the data device that hosts see.
    pub fn data(&self) -> &SharedDevice {
        &self.0.data
    }

    /// Geometry of the volume.
    pub fn geometry(&self) -> Geometry {
        self.0.data.geometry()
    }

    /// The superblock as it is on disk, except that [`Flags::crashed`](crate::format::superblock::Flags::crashed) is as open found.
    pub fn superblock(&self) -> Superblock {
        self.0.lock().superblock.clone()
    }

    /// What a peer in this place of the superblock has to know of this replica.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn view(&self, peer: usize) -> View {
        let room_bytes = self.room_bytes();
        let block_bytes = self.geometry().block_bytes;
        let state = self.0.lock();
        let superblock = &state.superblock;
        View {
            volume: superblock.volume,
            replica: superblock.replica,
            usable_bytes: superblock.shape.usable_bytes,
            room_bytes,
            bit_bytes: superblock.shape.bit_bytes,
            block_bytes,
            lineage: superblock.lineage(peer),
            epoch: superblock.epoch,
            serving: superblock.flags.served_alone || self.0.log.is_open(),
            crashed: superblock.flags.crashed,
            inconsistent: superblock.flags.inconsistent,
            dirty: self.0.log.bits().count() > 0,
        }
    }

    /// Changes the superblock. What `change` made of it counts once it is durable.
    ///
    /// # Errors
    /// Of the data device. The change does not count then, though a power loss may show it.
    pub async fn update<T: 'static>(
        &self,
        change: impl FnOnce(&mut Superblock) -> T,
    ) -> Result<T, IoError> {
        let turn = self.0.turns.take().await;
        self.0.write_superblock(turn, change).await
    }

    /// A flush of the devices has failed before they were opened: what can be read there may not be
    /// there durably, and no later flush makes it so. Until a resync to this replica has ended, however
    /// often it is opened meanwhile, no checksum of it is taken for that of the same data: what differs,
    /// or may, is written again; it is inconsistent for its peers, and does not serve. For a replica of
    /// which no mirror was made yet.
    ///
    /// # Errors
    /// Of the data device.
    pub async fn doubt(&self) -> Result<(), IoError> {
        self.update(|superblock| superblock.doubtful = true).await
    }

    /// Opens the log for a source, and the replica with it: from now on calls may enter. The log's
    /// incarnation is raised, in its header first: `docs/mirror-format.md` says why.
    ///
    /// # Errors
    /// Of a device; [`IoError::Unsupported`] when it is in use already.
    pub async fn begin_use(
        &self,
        change: impl FnOnce(&mut Superblock) + 'static,
    ) -> Result<(), IoError> {
        let inner = self.0.clone();
        to_the_end(async move {
            let _log_turn = inner.log.turn().await;
            if inner.log.is_open() {
                return Err(IoError::Unsupported);
            }
            inner.log.settle().await?;
            let turn = inner.turns.take().await;
            if inner.lock().retired {
                return Err(IoError::Unreachable);
            }
            let header = inner.next_header()?;
            inner.log.area().write_header(&header).await?;
            inner.lock().header_sequence = header.sequence;
            let raise = |superblock: &mut Superblock| {
                change(superblock);
                superblock.flags.in_use = true;
                superblock.incarnation = header.incarnation;
            };
            inner.write_superblock(turn, raise).await?;
            inner.log.open();
            if inner.log_is_apart && !inner.noting.swap(true, Ordering::AcqRel) {
                spawn_detached(note_progress(Arc::downgrade(&inner)));
            }
            Ok(())
        })
        .await
    }

    /// Refuses calls, waits for those that have entered, and closes the log and the replica.
    ///
    /// # Errors
    /// Of a device. Calls stay refused; on disk it is in use still.
    pub async fn end_use(
        &self,
        change: impl FnOnce(&mut Superblock) + 'static,
    ) -> Result<(), IoError> {
        let inner = self.0.clone();
        to_the_end(async move {
            let _log_turn = inner.log.turn().await;
            inner.log.close().await?;
            let turn = inner.turns.take().await;
            let lower = |superblock: &mut Superblock| {
                change(superblock);
                superblock.flags.in_use = false;
            };
            inner.write_superblock(turn, lower).await
        })
        .await
    }
}

/// The log.
impl Replica {
    /// Enters the regions of a range, if all are hot: without I/O, memory or a lock. Never with
    /// [`Intent::EveryWrite`]. The range is within the volume and spans at most [`Replica::longest_piece`], aligned to it.
    pub fn try_pin(&self, offset: u64, len: u64) -> Option<Pin> {
        self.0.log.try_pin(offset, len)
    }

    /// The same, waiting for the record that makes them hot.
    ///
    /// # Errors
    /// Of the log's device, or of a flush of the data device. [`IoError::Unreachable`] when the
    /// replica is not in use.
    pub async fn pin(&self, offset: u64, len: u64) -> Result<Pin, IoError> {
        self.0.log.pin(offset, len).await
    }

    /// Longer ranges are done piece by piece, cut at multiples of this, in bytes.
    pub fn longest_piece(&self) -> u64 {
        u64::from(PIECE_MAX_REGIONS) * u64::from(self.0.log.area().shape().region_bytes)
    }

    /// The log's bits. One map serves all peers: what any of them lacks.
    pub fn bits(&self) -> &Bitmap {
        self.0.log.bits()
    }

    /// Sets bits of the log. Either their regions are pinned, or [`Replica::persist_marks`] follows
    /// before they are relied on.
    pub fn mark(&self, bits: Range<u64>) {
        self.0.log.mark(bits);
    }

    /// Clears bits of the log, whose parts every peer has, durably.
    pub fn clear(&self, bits: Range<u64>) {
        self.0.log.clear(bits);
    }

    /// A word of the log's bits.
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

    /// What the log has cost and saved.
    pub fn statistics(&self) -> Statistics {
        self.0.log.statistics()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_header(&self) -> Result<LogHeader, IoError> {
        let state = self.lock();
        Ok(LogHeader {
            sequence: counter::next(state.header_sequence)?,
            log: state.superblock.log,
            replica: state.superblock.replica,
            incarnation: counter::next(state.superblock.incarnation)?,
            shape: state.superblock.shape,
        })
    }

    async fn write_superblock<T: 'static>(
        self: &Arc<Self>,
        turn: Turn,
        change: impl FnOnce(&mut Superblock) -> T,
    ) -> Result<T, IoError> {
        let mut next = self.lock().superblock.clone();
        let value = change(&mut next);
        // After a failure the same slot again: the other holds the one that counts.
        next.sequence = counter::next(next.sequence)?;
        let inner = self.clone();
        to_the_end(async move {
            if inner.lock().retired {
                return Err(IoError::Unreachable);
            }
            // No more than is durable by now: a log that has less came from the past.
            next.log_progress = inner.log.progress();
            let at = inner.layout.superblocks[(next.sequence & 1) as usize];
            let result = write_page(&inner.device, at, &next.encode()).await;
            if result.is_ok() {
                inner.lock().superblock = next;
            }
            drop(turn);
            result.map(|()| value)
        })
        .await
    }
}

/// Has the superblock say how far the log has come, now and then, while the log is in use.
async fn note_progress(inner: Weak<Inner>) {
    loop {
        let Some(log) = inner.upgrade().map(|inner| inner.log.clone()) else { return };
        let ended = time::timeout(Duration::from_millis(LOG_NOTE_MS), log.ended()).await.is_ok();
        let Some(inner) = inner.upgrade() else { return };
        if ended {
            inner.noting.store(false, Ordering::Release);
            // It may have been opened between the look and the store, and found us here.
            if !log.is_open() || inner.lock().retired || inner.noting.swap(true, Ordering::AcqRel) {
                return;
            }
            continue;
        }
        let turn = inner.turns.take().await;
        if inner.lock().superblock.log_progress != log.progress() {
            // What fails is tried again next time.
            let _ = inner.write_superblock(turn, |_| {}).await;
        }
    }
}

/// Makes a log all of whose bits are set, and has the superblock name it.
async fn renew(
    device: &SharedDevice,
    layout: &Layout,
    area: &Area,
    superblock: &mut Superblock,
) -> Result<Recovered, IoError> {
    superblock.sequence = counter::next(superblock.sequence)?;
    let made = make(area, superblock.replica, 1, true).await?;
    (superblock.log, superblock.incarnation) = (made.start.name, 1);
    superblock.log_progress = Progress::default();
    let at = layout.superblocks[(superblock.sequence & 1) as usize];
    write_page(device, at, &superblock.encode()).await?;
    Ok(made)
}

#[cfg(test)]
#[path = "replica_tests.rs"]
mod tests;

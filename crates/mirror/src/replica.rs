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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flagstone_blockdev::{Geometry, IoError, SharedDevice};
use flagstone_runtime::spawn;

use crate::area::{Area, read_page, write_page};
use crate::bitmap::Bitmap;
use crate::decide::View;
use crate::format::log_header::LogHeader;
use crate::format::superblock::{Flags, PeerRecord, Role, Superblock};
use crate::format::{FormatError, newest};
use crate::generation::List;
use crate::id::{Generation, Uuid};
use crate::limits::{PAGE_BYTES, PEERS_MAX, PIECE_MAX_REGIONS};
use crate::log::Log;
pub use crate::log::{Pin, Statistics};
use crate::part::Part;
pub use crate::recover::Lost;
use crate::recover::{Recovered, make, recover};
use crate::shape::{Layout, Shape, layout};
use crate::state::Wish;
use crate::turn::{Turn, Turns};

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
}

/// What a replica is made of. See [`Replica::create`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create {
    /// The volume.
    pub volume: Uuid,
    /// The data device holds the volume's data, of a new generation. Else the replica is blank.
    pub with_data: bool,
    /// Granularities; the size is found from the device's.
    pub shape: Shape,
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
}

struct State {
    superblock: Superblock,
    header_sequence: u64,
}

fn places(
    device: &SharedDevice,
    log: Option<SharedDevice>,
    shape: &Shape,
) -> Result<(Layout, Shape, Area), ReplicaError> {
    let layout = layout(device.geometry().size_bytes, shape).ok_or(ReplicaError::DataTooSmall)?;
    let shape = Shape { usable_bytes: layout.usable_bytes.min(shape.usable_bytes), ..*shape };
    shape.check().map_err(ReplicaError::Shape)?;
    let (on, at) = match log {
        Some(log) => (log, 0),
        None => (device.clone(), layout.log),
    };
    let area = Area::new(on, at, &shape).ok_or(ReplicaError::LogTooSmall)?;
    Ok((layout, shape, area))
}

fn check_blocks(device: &SharedDevice, log: Option<&SharedDevice>) -> Result<(), ReplicaError> {
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
    let page = PAGE_BYTES as u64;
    let end = device.geometry().size_bytes / page * page;
    let first = end.checked_sub(2 * page).ok_or(ReplicaError::DataTooSmall)?;
    // A slot that cannot be read may be the latest, so the other is not enough.
    let slots = [
        Superblock::decode(&read_page(device, first).await?),
        Superblock::decode(&read_page(device, first + page).await?),
    ];
    let (_, superblock) = newest(slots, |slot| slot.sequence).map_err(ReplicaError::Superblock)?;
    Ok(superblock)
}

/// Does work to its end, whether or not anybody waits for it.
async fn to_the_end<T: 'static>(
    work: impl Future<Output = Result<T, IoError>> + 'static,
) -> Result<T, IoError> {
    // Aborted is a task whose process ends.
    spawn(work).await.unwrap_or(Err(IoError::Unreachable))
}

impl Replica {
    /// Makes a replica of a data device, with its log there or at the beginning of another device.
    /// What stands on the data device keeps its place; its end is overwritten. An earlier replica
    /// there is gone once this has begun.
    ///
    /// # Errors
    /// See [`ReplicaError`]. Nothing has been written unless it is of I/O.
    pub async fn create(
        device: SharedDevice,
        log: Option<SharedDevice>,
        create: Create,
    ) -> Result<(), ReplicaError> {
        Replica::create_within(device, log, create, u64::MAX).await
    }

    /// The same, of a volume that is no larger than so many bytes: a peer's may be smaller than this
    /// device.
    ///
    /// # Errors
    /// See [`Replica::create`].
    pub async fn create_within(
        device: SharedDevice,
        log: Option<SharedDevice>,
        create: Create,
        at_most_bytes: u64,
    ) -> Result<(), ReplicaError> {
        check_blocks(&device, log.as_ref())?;
        let whole = Shape { usable_bytes: at_most_bytes, ..create.shape };
        let (layout, shape, area) = places(&device, log, &whole)?;
        // First the earlier replica's superblocks: its log is about to be overwritten.
        for at in layout.superblocks {
            write_page(&device, at, &[0; PAGE_BYTES]).await?;
        }
        let replica = Uuid::random();
        let made = make(&area, replica, 1, false).await?;
        let superblock = Superblock {
            sequence: 0,
            volume: create.volume,
            replica,
            shape,
            role: if create.with_data { Role::Source } else { Role::Target },
            flags: Flags::default(),
            heir: None,
            epoch: 0,
            current: if create.with_data { Generation::random() } else { Generation::NONE },
            history: List::default(),
            log: made.start.name,
            incarnation: 1,
            wishes: [Wish::default(); PEERS_MAX],
            peers: [PeerRecord::default(); PEERS_MAX],
        };
        Ok(write_page(&device, layout.superblocks[0], &superblock.encode()).await?)
    }

    /// Forgets a replica: its superblocks are zeroed. What hosts wrote stays, and nobody can tell any
    /// more what it is a replica of. It must not be open. The older superblock goes first: a power
    /// loss in between leaves the latest, never one of the past.
    ///
    /// # Errors
    /// Of the device.
    pub async fn forget(device: &SharedDevice) -> Result<(), IoError> {
        let page = PAGE_BYTES as u64;
        let end = device.geometry().size_bytes / page * page;
        let first = end.checked_sub(2 * page).ok_or(IoError::OutOfRange)?;
        let latest = read_superblock(device).await.map_or(1, |superblock| superblock.sequence & 1);
        for slot in [1 - latest, latest] {
            write_page(device, first + slot * page, &[0; PAGE_BYTES]).await?;
        }
        Ok(())
    }

    /// Opens a replica. A log that cannot be trusted is replaced by one all of whose bits are set;
    /// [`Replica::lost`] says why. One that was open as a source is flagged as crashed.
    ///
    /// # Errors
    /// See [`ReplicaError`].
    pub async fn open(
        device: SharedDevice,
        log: Option<SharedDevice>,
    ) -> Result<Replica, ReplicaError> {
        check_blocks(&device, log.as_ref())?;
        let mut superblock = read_superblock(&device).await?;
        let (layout, shape, area) = places(&device, log, &superblock.shape)?;
        if shape != superblock.shape {
            return Err(ReplicaError::Superblock(FormatError::Field("usable_bytes")));
        }
        superblock.flags.crashed |= superblock.flags.in_use;
        let (recovered, lost) = match recover(&area, &superblock).await {
            Ok(recovered) => (recovered, None),
            Err(lost) => {
                tracing::warn!("the log of replica {} is made anew: {lost}", superblock.replica);
                let made = renew(&device, &layout, &area, &mut superblock).await?;
                (made, Some(lost))
            }
        };
        let data: SharedDevice =
            Arc::new(Part { device: device.clone(), size_bytes: shape.usable_bytes });
        let Recovered { start, header_sequence } = recovered;
        let log = Log::new(area, data.clone(), start);
        let state = Mutex::new(State { superblock, header_sequence });
        let turns = Arc::default();
        Ok(Replica(Arc::new(Inner { device, data, layout, log, lost, turns, state })))
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

    /// The superblock as it is on disk, except that [`Flags::crashed`] is as open found.
    pub fn superblock(&self) -> Superblock {
        self.0.lock().superblock.clone()
    }

    /// What a peer in this place of the superblock has to know of this replica.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn view(&self, peer: usize) -> View {
        let state = self.0.lock();
        let superblock = &state.superblock;
        View {
            volume: superblock.volume,
            replica: superblock.replica,
            usable_bytes: superblock.shape.usable_bytes,
            bit_bytes: superblock.shape.bit_bytes,
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
            let header = inner.next_header();
            inner.log.area().write_header(&header).await?;
            inner.lock().header_sequence = header.sequence;
            let raise = |superblock: &mut Superblock| {
                change(superblock);
                superblock.flags.in_use = true;
                superblock.incarnation = header.incarnation;
            };
            inner.write_superblock(turn, raise).await?;
            inner.log.open();
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
    /// Enters the regions of a range, if all are hot: without I/O, memory or a lock. The range is
    /// within the volume and spans at most [`Replica::longest_piece`], aligned to it.
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

    fn next_header(&self) -> LogHeader {
        let state = self.lock();
        LogHeader {
            sequence: state.header_sequence + 1,
            log: state.superblock.log,
            replica: state.superblock.replica,
            incarnation: state.superblock.incarnation + 1,
            shape: state.superblock.shape,
        }
    }

    async fn write_superblock<T: 'static>(
        self: &Arc<Self>,
        turn: Turn,
        change: impl FnOnce(&mut Superblock) -> T,
    ) -> Result<T, IoError> {
        let mut next = self.lock().superblock.clone();
        let value = change(&mut next);
        // After a failure the same slot again: the other holds the one that counts.
        next.sequence += 1;
        let inner = self.clone();
        to_the_end(async move {
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

/// Makes a log all of whose bits are set, and has the superblock name it.
async fn renew(
    device: &SharedDevice,
    layout: &Layout,
    area: &Area,
    superblock: &mut Superblock,
) -> Result<Recovered, IoError> {
    let made = make(area, superblock.replica, 1, true).await?;
    superblock.sequence += 1;
    (superblock.log, superblock.incarnation) = (made.start.name, 1);
    let at = layout.superblocks[(superblock.sequence & 1) as usize];
    write_page(device, at, &superblock.encode()).await?;
    Ok(made)
}

#[cfg(test)]
#[path = "replica_tests.rs"]
mod tests;

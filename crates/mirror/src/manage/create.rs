//! Creating and removing replicas.
//!
//! Guarantees:
//! - a replica exists only when it is complete: its superblock is written last;
//! - before the first byte of a log is overwritten, the superblock of any earlier replica on the
//!   device is gone, wherever it ended, and an outdated superblock never becomes the latest;
//! - the host data on the device is unchanged.

use flagstone_blockdev::{IoError, SharedDevice};

use crate::agree::generation::GenerationList;
use crate::id::{Generation, MirrorId};
use crate::intent_log::log_area::write_page;
use crate::intent_log::recover::make;
use crate::limits::{PAGE_BYTES, PEERS_MAX};
use crate::manage::replica::{Replica, ReplicaError, check_blocks, place_metadata};
use crate::ondisk::layout::ReplicaGeometry;
use crate::ondisk::locate::{end_of, locate};
use crate::ondisk::superblock::{Flags, LogProgress, PeerRecord, ReplicaRole, Superblock};
use crate::ondisk::superblock_slots::SuperblockSlots;
use crate::state::status::DesiredState;

/// Parameters of [`Replica::create`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateReplica {
    /// The volume.
    pub volume: MirrorId,
    /// The data device holds the volume's data, and the replica is its source. Otherwise the
    /// replica is a target.
    pub with_data: bool,
    /// The data device reads as zeroes, which the caller has checked. A source remembers that it
    /// began so, and a target that began so too lacks only what was written since
    /// ([`Generation::of_zeroes`]).
    pub zeroes: bool,
    /// Granularities. The size is derived from the device.
    pub geometry: ReplicaGeometry,
}

/// Generation of the data, and what a peer that has not been met may hold. No host writes under the
/// generation of zeroes: a replica with that generation has no host data.
fn first_history(create: &CreateReplica) -> (Generation, [PeerRecord; PEERS_MAX]) {
    let zeroes = Generation::of_zeroes(create.volume);
    let mut peer = PeerRecord::default();
    if create.with_data && create.zeroes {
        peer.bases.remember(zeroes);
    }
    let current = match (create.with_data, create.zeroes) {
        (true, _) => Generation::random(),
        (false, true) => zeroes,
        (false, false) => Generation::NONE,
    };
    (current, [peer; PEERS_MAX])
}

impl Replica {
    /// Creates a replica on a data device, with its log there or at the beginning of another
    /// device. Host data on the data device stays in place, and the end of the device is
    /// overwritten. An earlier replica on it is destroyed as soon as this starts.
    ///
    /// # Errors
    /// See [`ReplicaError`]. Nothing was written, unless it is an I/O error.
    pub async fn create(
        device: SharedDevice,
        log: Option<SharedDevice>,
        create: CreateReplica,
    ) -> Result<(), ReplicaError> {
        Replica::create_within(device, log, create, u64::MAX).await
    }

    /// As [`Replica::create`], for a volume of at most `at_most_bytes`: the peer's device may be
    /// smaller.
    ///
    /// # Errors
    /// See [`Replica::create`].
    pub async fn create_within(
        device: SharedDevice,
        log: Option<SharedDevice>,
        create: CreateReplica,
        at_most_bytes: u64,
    ) -> Result<(), ReplicaError> {
        check_blocks(&device, log.as_ref())?;
        let whole = ReplicaGeometry { usable_bytes: at_most_bytes, ..create.geometry };
        let (layout, geometry, area) = place_metadata(&device, log, end_of(&device), &whole)?;
        // An earlier log, perhaps where the device ended before it grew, is about to be
        // overwritten.
        Replica::forget(&device, None).await?;
        for at in layout.superblocks {
            write_page(&device, at, &[0; PAGE_BYTES]).await?;
        }
        let replica = MirrorId::random();
        let made = make(&area, replica, 1, false).await?;
        let (current, peers) = first_history(&create);
        // As if a full resync under that name had been interrupted. It serves no hosts before it
        // has met its source, which serves without asking a peer that it has not met.
        let inconsistent = create.zeroes && !create.with_data;
        let mut superblock = Superblock {
            sequence: 0,
            volume: create.volume,
            replica,
            geometry,
            device_bytes: layout.end(),
            moved_from: 0,
            role: if create.with_data { ReplicaRole::Source } else { ReplicaRole::Target },
            flags: Flags { inconsistent, ..Flags::default() },
            unverified: false,
            designated_successor: None,
            epoch: 0,
            current,
            history: GenerationList::default(),
            log: made.start.name,
            incarnation: 1,
            log_progress: LogProgress::default(),
            volume_tag: 0,
            desired_states: [DesiredState::default(); PEERS_MAX],
            peers,
            not_received: Vec::new(),
            log_place: String::new(),
            removed: false,
            arbiter: Default::default(),
            members: Vec::new(),
        };
        Ok(SuperblockSlots::empty(layout.superblocks).write(&device, &mut superblock).await?)
    }

    /// Removes a replica: zeroes its superblocks and the headers of its log. Host data stays. The
    /// replica must not be open. Slot 1, which may be outdated, is zeroed first and the log headers
    /// last, so a power failure in between leaves the latest superblock or
    /// [remnants](crate::ondisk::remnant), and never an outdated superblock.
    ///
    /// # Errors
    /// Of a device.
    pub async fn forget(device: &SharedDevice, log: Option<&SharedDevice>) -> Result<(), IoError> {
        let page = PAGE_BYTES as u64;
        let found = locate(device).await;
        let end = found.as_ref().map_or_else(|_| end_of(device), |found| found.end);
        let first = end.checked_sub(2 * page).ok_or(IoError::OutOfRange)?;
        let superblock = found.ok().map(|found| found.superblock);
        for slot in [1, 0] {
            write_page(device, first + slot * page, &[0; PAGE_BYTES]).await?;
        }
        let Some(superblock) = superblock else { return Ok(()) };
        if let Ok((_, _, area)) = place_metadata(device, log.cloned(), end, &superblock.geometry) {
            area.forget().await?;
        }
        Ok(())
    }
}

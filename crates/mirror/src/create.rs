//! Replicas that are made, and forgotten.
//!
//! Promises:
//! - a replica is there when all of it is: its superblock is written last;
//! - an earlier one on the device, wherever it ended, has no superblock any more when the first byte of
//!   a log is overwritten, and never one of its past;
//! - what hosts see of the device stays as it is.

use flagstone_blockdev::{IoError, SharedDevice};

use crate::area::write_page;
use crate::format::superblock::{Flags, PeerRecord, Progress, Role, Superblock};
use crate::generation::List;
use crate::id::{Generation, Uuid};
use crate::limits::{PAGE_BYTES, PEERS_MAX};
use crate::locate::{end_of, locate};
use crate::recover::make;
use crate::replica::{Replica, ReplicaError, check_blocks, places};
use crate::shape::Shape;
use crate::state::Wish;

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
        let (layout, shape, area) = places(&device, log, end_of(&device), &whole)?;
        // An earlier replica's log is about to be overwritten. It may end where the device did before
        // it grew.
        Replica::forget(&device, None).await?;
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
            device_bytes: layout.end(),
            moved_from: 0,
            role: if create.with_data { Role::Source } else { Role::Target },
            flags: Flags::default(),
            doubtful: false,
            heir: None,
            epoch: 0,
            current: if create.with_data { Generation::random() } else { Generation::NONE },
            history: List::default(),
            log: made.start.name,
            incarnation: 1,
            log_progress: Progress::default(),
            called: 0,
            wishes: [Wish::default(); PEERS_MAX],
            peers: [PeerRecord::default(); PEERS_MAX],
        };
        Ok(write_page(&device, layout.superblocks[0], &superblock.encode()).await?)
    }

    /// Forgets a replica: its superblocks are zeroed, and the headers of its log, so that neither
    /// tells of it any more. What hosts wrote stays, and nobody can tell what it is a replica of. It
    /// must not be open. The older superblock goes first and the log last: a power loss in between
    /// leaves the latest, never one of the past, or [traces](crate::trace).
    ///
    /// # Errors
    /// Of a device.
    pub async fn forget(device: &SharedDevice, log: Option<&SharedDevice>) -> Result<(), IoError> {
        let page = PAGE_BYTES as u64;
        let found = locate(device).await;
        let end = found.as_ref().map_or_else(|_| end_of(device), |found| found.end);
        let first = end.checked_sub(2 * page).ok_or(IoError::OutOfRange)?;
        let superblock = found.ok().map(|found| found.superblock);
        let latest = superblock.as_ref().map_or(1, |superblock| superblock.sequence & 1);
        for slot in [1 - latest, latest] {
            write_page(device, first + slot * page, &[0; PAGE_BYTES]).await?;
        }
        let Some(superblock) = superblock else { return Ok(()) };
        if let Ok((_, _, area)) = places(device, log.cloned(), end, &superblock.shape) {
            area.forget().await?;
        }
        Ok(())
    }
}

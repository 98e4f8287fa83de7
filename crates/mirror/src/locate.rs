//! Where a replica's superblock is, also on a device that was made larger since it was written.
//!
//! It lies at the end of the device, and there it is looked for first. A device that grew has it at
//! its old end, which nothing at the new end tells. So ends are tried that devices have: a
//! superblock says how large its device was, and so one that lies elsewhere (in the data of hosts,
//! who may keep images of disks) is told from one that lies where a device ended.
//!
//! Promises: what is found lies at an end that it names itself, and of several the last; the search
//! reads at most [`crate::limits::SEARCH_PER_STEP`] places for each step, and beyond that one for each gibibyte and
//! gigabyte of the device, 8 KiB each.

use flagstone_blockdev::{IoError, SharedDevice};
use flagstone_runtime::spawn;

use crate::area::read_page;
use crate::format::superblock::Superblock;
use crate::format::{FormatError, newest};
use crate::limits::{PAGE_BYTES, SEARCH_STEPS};
use crate::replica::ReplicaError;

const PAGE: u64 = PAGE_BYTES as u64;

/// A superblock, and where it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The newer of the two slots.
    pub(crate) superblock: Superblock,
    /// End of the slots, in bytes: the device's, unless that has grown.
    pub(crate) end: u64,
}

/// The end of a device, in whole pages.
pub(crate) fn end_of(device: &SharedDevice) -> u64 {
    device.geometry().size_bytes / PAGE * PAGE
}

/// Finds the superblock of a device.
///
/// # Errors
/// [`ReplicaError::Superblock`] where there is no replica; or of the device.
pub(crate) async fn locate(device: &SharedDevice) -> Result<Found, ReplicaError> {
    let end = end_of(device);
    if end < 2 * PAGE {
        return Err(ReplicaError::DataTooSmall);
    }
    let why = match at(device, end).await? {
        Ok(found) => return Ok(found),
        // It is ours, and not to be overlooked.
        Err(later @ FormatError::Version(_)) => return Err(ReplicaError::Superblock(later)),
        Err(why) => why,
    };
    match search(device, end).await {
        Some(found) => {
            tracing::info!(
                was_bytes = found.end,
                is_bytes = end,
                "a replica's device has grown: its metadata is where the device ended"
            );
            Ok(found)
        }
        None => Err(ReplicaError::Superblock(why)),
    }
}

/// The superblock at the end of the device itself; at least two pages of it are there.
///
/// # Errors
/// Of the device.
pub(crate) async fn at_the_end(
    device: &SharedDevice,
) -> Result<Result<Found, FormatError>, IoError> {
    at(device, end_of(device)).await
}

/// The superblock that ends here.
///
/// # Errors
/// Of the device: a slot that cannot be read may be the latest, so the other is not enough.
async fn at(device: &SharedDevice, end: u64) -> Result<Result<Found, FormatError>, IoError> {
    let mut slots = [Err(FormatError::Absent), Err(FormatError::Absent)];
    for (slot, at) in slots.iter_mut().zip([end - 2 * PAGE, end - PAGE]) {
        *slot = Superblock::decode(&read_page(device, at).await?).and_then(|superblock| {
            let here = superblock.device_bytes == end;
            if here { Ok(superblock) } else { Err(FormatError::Foreign) }
        });
    }
    let newest = newest(slots, |slot| slot.sequence);
    Ok(newest.map(|(_, superblock)| Found { superblock, end }))
}

/// Places that are read at a time: on a disk that takes a millisecond the search takes some tens.
const AT_ONCE: usize = 64;

async fn search(device: &SharedDevice, end: u64) -> Option<Found> {
    let mut best: Option<Found> = None;
    for (step, most) in SEARCH_STEPS {
        let first = (end - 1) / step;
        let last = first.saturating_sub(most.unwrap_or(u64::MAX));
        let ends = (last..=first).rev().map(|place| place * step / PAGE * PAGE);
        // Below what was found nothing is of interest.
        let least = best.as_ref().map_or(2 * PAGE, |best| best.end + PAGE);
        let mut ends = ends.take_while(|end| *end >= least);
        loop {
            let some: Vec<u64> = ends.by_ref().take(AT_ONCE).collect();
            if some.is_empty() {
                break;
            }
            if let Some(found) = last_of(device, &some).await {
                best = Some(found);
                break;
            }
        }
    }
    best
}

/// The superblock at the first of these ends that has one.
async fn last_of(device: &SharedDevice, ends: &[u64]) -> Option<Found> {
    // A hole is known not to be one, without reading it.
    let holds = |end: &&u64| device.known(**end - 2 * PAGE, 2 * PAGE_BYTES).is_none();
    let tasks: Vec<_> = ends
        .iter()
        .filter(holds)
        .map(|end| {
            let (device, end) = (device.clone(), *end);
            spawn(async move { at(&device, end).await }).abort_on_drop()
        })
        .collect();
    let mut found = None;
    for mut task in tasks {
        // What cannot be read here is rather a hosts' block than a superblock; if it is one, there
        // is no replica to open.
        if let Ok(Ok(Ok(one))) = task.handle().await {
            found = found.or(Some(one));
        }
    }
    found
}

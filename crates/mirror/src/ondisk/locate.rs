//! Superblock search: finds a replica's superblock, even on a device enlarged since.
//!
//! The superblock lies at the end of the device, so that place is read first. On a device that has
//! grown it lies at the old end, which is recorded nowhere else, so likely device sizes are tried.
//! A superblock contains the size of its device. That distinguishes the device's own superblock
//! from one inside host data, such as a stored disk image.
//!
//! Guarantees: a superblock is accepted only at the end that it names, and of several the last one
//! wins. The search reads at most [`crate::limits::SEARCH_PER_STEP`] positions per step, plus one
//! per gibibyte and per gigabyte of the device, 8 KiB each.

use std::ops::RangeInclusive;

use flagstone_blockdev::{IoError, SharedDevice};
use flagstone_runtime::spawn;

use crate::limits::{PAGE_BYTES, SEARCH_STEPS};
use crate::manage::replica::ReplicaError;
use crate::ondisk::FormatError;
use crate::ondisk::layout::ReplicaLayout;
use crate::ondisk::superblock::Superblock;
use crate::ondisk::superblock_slots::{FoundSuperblock, SuperblockSlots, read_slots};

const PAGE: u64 = PAGE_BYTES as u64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocatedSuperblock {
    pub(crate) superblock: Superblock,
    /// Slot 1 does not have it.
    pub(crate) second_is_behind: bool,
    /// End of the slots, in bytes: the end of the device, unless that has grown.
    pub(crate) end: u64,
}

impl LocatedSuperblock {
    /// Its slots, at the place that `layout` gives for the same end.
    pub(crate) fn slots(&self, layout: &ReplicaLayout) -> SuperblockSlots {
        let LocatedSuperblock { superblock, second_is_behind, .. } = self.clone();
        SuperblockSlots::found(
            layout.superblocks,
            &FoundSuperblock { superblock, second_is_behind },
        )
    }
}

/// The end of a device, in whole pages.
pub(crate) fn end_of(device: &SharedDevice) -> u64 {
    device.geometry().size_bytes / PAGE * PAGE
}

/// Finds the superblock of a device.
///
/// # Errors
/// [`ReplicaError::Superblock`] if there is no replica, or an error of the device.
pub(crate) async fn locate(device: &SharedDevice) -> Result<LocatedSuperblock, ReplicaError> {
    locate_near(device, None).await
}

/// As [`locate`]. If the superblock is not at the end of the device, it is looked for at
/// `known_end`, where this process has written it, before the search: hosts may be waiting.
pub(crate) async fn locate_near(
    device: &SharedDevice,
    known_end: Option<u64>,
) -> Result<LocatedSuperblock, ReplicaError> {
    let end = end_of(device);
    if end < 2 * PAGE {
        return Err(ReplicaError::DataTooSmall);
    }
    let why = match at(device, end).await? {
        Ok(found) => return Ok(found),
        // A replica of another version, or needing the operator: not to be overlooked.
        Err(why @ (FormatError::Version(_) | FormatError::Contradiction { .. })) => {
            return Err(ReplicaError::Superblock(why));
        }
        Err(why) => why,
    };
    if let Some(known_end) = known_end.filter(|known| *known < end)
        && let Ok(found) = at(device, known_end).await?
    {
        return Ok(found);
    }
    match search(device, end).await {
        Some(found) => {
            tracing::info!(
                was_bytes = found.end,
                is_bytes = end,
                "the replica's device has grown: found its metadata at the old end"
            );
            Ok(found)
        }
        None => Err(ReplicaError::Superblock(why)),
    }
}

/// Reads the superblock at the end of the device, which has at least two pages.
pub(crate) async fn at_device_end(
    device: &SharedDevice,
) -> Result<Result<LocatedSuperblock, FormatError>, IoError> {
    at(device, end_of(device)).await
}

/// Reads the superblock that ends at `end`.
///
/// # Errors
/// Of the device.
async fn at(
    device: &SharedDevice,
    end: u64,
) -> Result<Result<LocatedSuperblock, FormatError>, IoError> {
    let found = read_slots(device, end).await?;
    Ok(found.map(|FoundSuperblock { superblock, second_is_behind }| LocatedSuperblock {
        superblock,
        second_is_behind,
        end,
    }))
}

/// Positions read in parallel: at a latency of 1 ms, the search takes tens of milliseconds.
const AT_ONCE: usize = 64;

/// Multiples of a step that are tried, in a device of `end` bytes.
fn places(step: u64, most: Option<u64>, end: u64) -> RangeInclusive<u64> {
    let first = end.saturating_sub(1) / step;
    first.saturating_sub(most.unwrap_or(u64::MAX))..=first
}

/// End of the metadata of the replica on a device, in bytes; `None` without a replica. It is before
/// the end of a device that has grown since the replica was opened or grown.
///
/// # Errors
/// [`ReplicaError`] of the device, or of metadata that only an operator may replace.
pub async fn replica_end(device: &SharedDevice) -> Result<Option<u64>, ReplicaError> {
    match locate(device).await {
        Ok(found) => Ok(Some(found.end)),
        Err(
            error @ ReplicaError::Superblock(
                FormatError::Version(_) | FormatError::Contradiction { .. },
            ),
        ) => Err(error),
        Err(ReplicaError::Superblock(_) | ReplicaError::DataTooSmall) => Ok(None),
        Err(error) => Err(error),
    }
}

/// True if the replica whose metadata ends at `from_bytes` is found after its device has grown to
/// `to_bytes`, also at the next start.
pub fn is_found_after_growth(from_bytes: u64, to_bytes: u64) -> bool {
    let [from, to] = [from_bytes, to_bytes].map(|bytes| bytes / PAGE * PAGE);
    let is_tried = |(step, most): (u64, Option<u64>)| {
        let place = from.div_ceil(step);
        places(step, most, to).contains(&place) && place * step / PAGE * PAGE == from
    };
    from >= to || SEARCH_STEPS.into_iter().any(is_tried)
}

async fn search(device: &SharedDevice, end: u64) -> Option<LocatedSuperblock> {
    let mut best: Option<LocatedSuperblock> = None;
    for (step, most) in SEARCH_STEPS {
        let ends = places(step, most, end).rev().map(|place| place * step / PAGE * PAGE);
        // Only positions beyond the best match matter.
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
async fn last_of(device: &SharedDevice, ends: &[u64]) -> Option<LocatedSuperblock> {
    // Holes are known to be empty and are not read.
    let may_hold = |end: &&u64| device.try_read_cached(**end - 2 * PAGE, 2 * PAGE_BYTES).is_none();
    let tasks: Vec<_> = ends
        .iter()
        .filter(may_hold)
        .map(|end| {
            let (device, end) = (device.clone(), *end);
            spawn(async move { at(&device, end).await }).abort_on_drop()
        })
        .collect();
    let mut found = None;
    for mut task in tasks {
        // More likely host data than a superblock, without which no replica can be opened.
        if let Ok(Ok(Ok(one))) = task.handle().await {
            found = found.or(Some(one));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_sizes_are_found_after_growth() {
        const MIB: u64 = 1 << 20;
        const GIB: u64 = 1 << 30;
        for (from, to, is_found) in [
            (256 * MIB, 512 * MIB, true),
            (10 * GIB, 1 << 40, true),
            (10_000_000_000, 1 << 40, true),
            (10 * GIB + 512 * MIB, 60 * GIB, true),
            (10 * GIB + 512 * MIB, 200 * GIB, false),
            (GIB + PAGE, GIB + 2 * MIB, true),
            (GIB + PAGE, 2 * GIB, false),
            (GIB, GIB, true),
        ] {
            assert_eq!(is_found_after_growth(from, to), is_found, "{from} to {to}");
        }
    }
}

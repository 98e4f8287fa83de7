//! Remnants of an earlier replica, on devices where no replica is found.
//!
//! A replica is found at the end of its device ([`crate::ondisk::locate`]). A device that has
//! shrunk has lost that end, a device that has grown by an unusual amount has it elsewhere, and a
//! replaced or blank device never had it. All of these look like a device without a replica.
//! Creating one there may overwrite host data, or start an empty volume although a peer has the
//! data. So three places are checked first: the superblock's own place, for a damaged superblock or
//! one of a device of another size; the log device, whose log names its replica and the replica's
//! size; and the last [`REMNANT_SEARCH_BYTES`] of the data device, for a log in front of a
//! superblock that was cut off.
//!
//! A negative result is no proof: a device that lost its log too shows no remnant.

use flagstone_blockdev::{IoError, SharedDevice};
use flagstone_runtime::buf;

use crate::id::MirrorId;
use crate::intent_log::log_area::read_page;
use crate::intent_log::recover::is_inconclusive;
use crate::limits::{PAGE_BYTES, PAGES_PER_WRITE, REMNANT_SEARCH_BYTES};
use crate::ondisk::layout::{ReplicaGeometry, layout};
use crate::ondisk::locate::{at_device_end, end_of};
use crate::ondisk::log_header::LogHeader;
use crate::ondisk::{FormatError, Page, newest};

const PAGE: u64 = PAGE_BYTES as u64;

/// A remnant of an earlier replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remnant {
    /// An unusable superblock: both slots are damaged, or the device had another size when it was
    /// written ([`FormatError::Foreign`]).
    Superblock(FormatError),
    /// The log device has the log of a replica.
    LogOnLogDevice(LogOwner),
    /// The log of a replica starts on the data device, this many bytes before its end.
    LogOnDataDevice(LogOwner, u64),
}

/// The owner of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOwner {
    /// The replica.
    pub replica: MirrorId,
    /// Size and granularities of the volume.
    pub geometry: ReplicaGeometry,
}

impl LogOwner {
    /// The smallest device that has room for this replica, in bytes.
    pub fn device_bytes(&self) -> u64 {
        let usable = self.geometry.usable_bytes;
        let fits = |bytes: u64| {
            layout(bytes, &self.geometry).is_some_and(|layout| layout.usable_bytes >= usable)
        };
        // The log of a volume is much smaller than the volume plus 64 MiB.
        let (mut small, mut large) = (usable / PAGE, usable.saturating_mul(2) / PAGE + (16 << 10));
        while small < large {
            let middle = small + (large - small) / 2;
            if fits(middle * PAGE) { large = middle } else { small = middle + 1 }
        }
        large * PAGE
    }
}

/// Looks for remnants of an earlier replica on a device on which none is found, and on its log
/// device. Writes nothing.
///
/// # Errors
/// Errors of a device. Unreadable pages are skipped, except the superblock's.
pub async fn find_remnant(
    device: &SharedDevice,
    log: Option<&SharedDevice>,
) -> Result<Option<Remnant>, IoError> {
    if end_of(device) < 2 * PAGE {
        return Ok(None);
    }
    let superblock = match at_device_end(device).await? {
        Ok(_) | Err(FormatError::Absent) => None,
        Err(why) => Some(Remnant::Superblock(why)),
    };
    // A log names sizes, a superblock of another size does not; a damaged one says more.
    if superblock.is_some_and(|found| found != Remnant::Superblock(FormatError::Foreign)) {
        return Ok(superblock);
    }
    if let Some(log) = log
        && let Some(owner) = log_owner(log).await?
    {
        return Ok(Some(Remnant::LogOnLogDevice(owner)));
    }
    let inside = log_on_data_device(device).await?;
    Ok(inside.map(|(owner, before_end)| Remnant::LogOnDataDevice(owner, before_end)).or(superblock))
}

/// The owner of a log at the beginning of a device.
async fn log_owner(log: &SharedDevice) -> Result<Option<LogOwner>, IoError> {
    if end_of(log) < 2 * PAGE {
        return Ok(None);
    }
    let mut slots = [Err(FormatError::Absent), Err(FormatError::Absent)];
    for (slot, at) in slots.iter_mut().zip([0, PAGE]) {
        match read_page(log, at).await {
            Ok(page) => *slot = LogHeader::decode(&page),
            Err(error) if is_inconclusive(error) => return Err(error),
            Err(_) => {}
        }
    }
    let header = newest(slots, |header| header.sequence).ok();
    Ok(header.map(|(_, LogHeader { replica, geometry, .. })| LogOwner { replica, geometry }))
}

/// The last log header near the end of a data device, and its distance from the end.
async fn log_on_data_device(device: &SharedDevice) -> Result<Option<(LogOwner, u64)>, IoError> {
    let end = end_of(device);
    let first = end.saturating_sub(REMNANT_SEARCH_BYTES);
    let mut until = end;
    while until > first {
        let from = until.saturating_sub(PAGES_PER_WRITE * PAGE).max(first);
        if let Some((owner, at)) = last_header(device, from, until).await? {
            return Ok(Some((owner, end - at)));
        }
        until = from;
    }
    Ok(None)
}

/// The last log header in a part of a device, and its position.
async fn last_header(
    device: &SharedDevice,
    from: u64,
    until: u64,
) -> Result<Option<(LogOwner, u64)>, IoError> {
    let Some(memory) = buf::try_alloc((until - from) as usize) else {
        return last_readable_header(device, from, until).await;
    };
    let bytes = match device.read(from, memory).await {
        Ok(bytes) => bytes,
        Err(error) if is_inconclusive(error) => return Err(error),
        // Page by page, to get every readable page.
        Err(_) => return last_readable_header(device, from, until).await,
    };
    let mut pages = bytes.chunks_exact(PAGE_BYTES).enumerate().rev();
    let place = |index: usize| from + (index * PAGE_BYTES) as u64;
    Ok(pages.find_map(|(index, page)| Some((owner(page)?, place(index)))))
}

async fn last_readable_header(
    device: &SharedDevice,
    from: u64,
    until: u64,
) -> Result<Option<(LogOwner, u64)>, IoError> {
    for at in (from / PAGE..until / PAGE).rev().map(|page| page * PAGE) {
        match read_page(device, at).await {
            Ok(page) => {
                if let Some(owner) = owner(&page) {
                    return Ok(Some((owner, at)));
                }
            }
            Err(error) if is_inconclusive(error) => return Err(error),
            Err(_) => {}
        }
    }
    Ok(None)
}

fn owner(page: &[u8]) -> Option<LogOwner> {
    let page = <&Page>::try_from(page).ok()?;
    let LogHeader { replica, geometry, .. } = LogHeader::decode(page).ok()?;
    Some(LogOwner { replica, geometry })
}

#[cfg(test)]
#[path = "remnant_tests.rs"]
mod tests;

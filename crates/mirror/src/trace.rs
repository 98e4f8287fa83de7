//! What tells of an earlier replica on devices on which none is found.
//!
//! A replica is found by the end of its device ([`crate::locate`]). A device that has become smaller
//! has lost that end; one that has grown by an unusual amount has it anywhere; another device, or an
//! empty one, never had it. All of them look like a device on which no replica was made yet, and
//! making one there may overwrite hosts' data, or set a volume up anew of which a peer has the data.
//! So before it is said that there is none, or one is made, three places are looked at: the
//! superblock's own, for what is damaged or was written for a device of another size; the log's
//! device, which names its replica and the size of that; and the last [`TRACE_BYTES`] of the data
//! device, where a log that lay before a superblock that is cut off still begins.
//!
//! What is not found here may have been there all the same: a device that lost more than its
//! metadata, whose log was on it, says nothing.

use flagstone_blockdev::{IoError, SharedDevice};
use flagstone_runtime::buf;

use crate::area::read_page;
use crate::format::log_header::LogHeader;
use crate::format::{FormatError, Page, newest};
use crate::id::Uuid;
use crate::limits::{PAGE_BYTES, PAGES_PER_WRITE, TRACE_BYTES};
use crate::locate::{at_the_end, end_of};
use crate::recover::is_silent;
use crate::shape::{Shape, layout};

const PAGE: u64 = PAGE_BYTES as u64;

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    /// A superblock that is of no use: both slots are damaged, or the device had another size when it
    /// was written ([`FormatError::Foreign`]).
    Superblock(FormatError),
    /// The log's device has the log of a replica.
    LogApart(Owner),
    /// The log of a replica begins on the data device, so many bytes before its end.
    LogInside(Owner, u64),
}

/// Whose log it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The replica.
    pub replica: Uuid,
    /// Size and granularities of the volume.
    pub shape: Shape,
}

impl Owner {
    /// The smallest device that has room for this replica, in bytes.
    pub fn device_bytes(&self) -> u64 {
        let usable = self.shape.usable_bytes;
        let fits = |bytes: u64| {
            layout(bytes, &self.shape).is_some_and(|layout| layout.usable_bytes >= usable)
        };
        // The log of a volume takes well less than the volume and 64 MiB.
        let (mut small, mut large) = (usable / PAGE, usable.saturating_mul(2) / PAGE + (16 << 10));
        while small < large {
            let middle = small + (large - small) / 2;
            if fits(middle * PAGE) { large = middle } else { small = middle + 1 }
        }
        large * PAGE
    }
}

/// Looks for what an earlier replica has left on a device on which none is found, and on the device
/// of its log. Nothing is written.
///
/// # Errors
/// Of a device. A page that cannot be read says nothing, except for those of the superblock.
pub async fn trace(
    device: &SharedDevice,
    log: Option<&SharedDevice>,
) -> Result<Option<Trace>, IoError> {
    if end_of(device) < 2 * PAGE {
        return Ok(None);
    }
    let superblock = match at_the_end(device).await? {
        Ok(_) | Err(FormatError::Absent) => None,
        Err(why) => Some(Trace::Superblock(why)),
    };
    // One of another size says less than a log, which names sizes; one that is damaged says more.
    if superblock.is_some_and(|found| found != Trace::Superblock(FormatError::Foreign)) {
        return Ok(superblock);
    }
    if let Some(log) = log
        && let Some(owner) = owner_of(log).await?
    {
        return Ok(Some(Trace::LogApart(owner)));
    }
    let inside = log_inside(device).await?;
    Ok(inside.map(|(owner, before_end)| Trace::LogInside(owner, before_end)).or(superblock))
}

/// Whose log begins at the beginning of a device.
async fn owner_of(log: &SharedDevice) -> Result<Option<Owner>, IoError> {
    if end_of(log) < 2 * PAGE {
        return Ok(None);
    }
    let mut slots = [Err(FormatError::Absent), Err(FormatError::Absent)];
    for (slot, at) in slots.iter_mut().zip([0, PAGE]) {
        match read_page(log, at).await {
            Ok(page) => *slot = LogHeader::decode(&page),
            Err(error) if is_silent(error) => return Err(error),
            Err(_) => {}
        }
    }
    let header = newest(slots, |header| header.sequence).ok();
    Ok(header.map(|(_, LogHeader { replica, shape, .. })| Owner { replica, shape }))
}

/// The last log that begins near the end of a data device, and how far before it.
async fn log_inside(device: &SharedDevice) -> Result<Option<(Owner, u64)>, IoError> {
    let end = end_of(device);
    let first = end.saturating_sub(TRACE_BYTES);
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

/// The last log header in a part of a device, and where it is.
async fn last_header(
    device: &SharedDevice,
    from: u64,
    until: u64,
) -> Result<Option<(Owner, u64)>, IoError> {
    let Some(memory) = buf::try_alloc((until - from) as usize) else {
        return last_readable_header(device, from, until).await;
    };
    let bytes = match device.read(from, memory).await {
        Ok(bytes) => bytes,
        Err(error) if is_silent(error) => return Err(error),
        // A page that can be read is worth more than none.
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
) -> Result<Option<(Owner, u64)>, IoError> {
    for at in (from / PAGE..until / PAGE).rev().map(|page| page * PAGE) {
        match read_page(device, at).await {
            Ok(page) => {
                if let Some(owner) = owner(&page) {
                    return Ok(Some((owner, at)));
                }
            }
            Err(error) if is_silent(error) => return Err(error),
            Err(_) => {}
        }
    }
    Ok(None)
}

fn owner(page: &[u8]) -> Option<Owner> {
    let page = <&Page>::try_from(page).ok()?;
    let LogHeader { replica, shape, .. } = LogHeader::decode(page).ok()?;
    Some(Owner { replica, shape })
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;

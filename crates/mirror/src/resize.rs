//! A replica that is not in use follows its device, and changes its size.
//!
//! Two steps, each of which leaves, wherever a power loss cuts it, what was there before it or after
//! it, and which is safe to repeat:
//!
//! - *following*: the metadata moves to the new end of a device that has grown. The log is copied,
//!   then a superblock at the new end names its place and the old one, which is zeroed then. Hosts'
//!   data, its size and what the log says of it stay as they are, so no peer needs to know;
//! - *resizing*: the volume takes another size within what there is room for. All pages of the
//!   bitmap are written with what is new set, then a header for the larger volume, then the
//!   superblock. What is new may differ from the peers', whatever is there, unless it was zeroed
//!   before ([`crate::room`]): then it is equal where they have zeroed theirs.
//!
//! `docs/mirror-format.md` says what is written in which order.

use flagstone_blockdev::{IoError, SharedDevice, ZeroFlags};

use crate::area::{Area, write_page};
use crate::bitmap::Bitmap;
use crate::counter;
use crate::format::FormatError;
use crate::format::log_header::LogHeader;
use crate::format::superblock::{Progress, Superblock};
use crate::limits::{PAGE_BYTES, PAGES_PER_WRITE};
use crate::locate::{Found, end_of};
use crate::memory::at_most;
use crate::pages::Pages;
use crate::replica::{Opened, ReplicaError};
use crate::shape::{Layout, Shape, follow, layout, log_layout};

const PAGE: u64 = PAGE_BYTES as u64;

/// Writes a superblock with the next sequence.
async fn put(
    device: &SharedDevice,
    layout: &Layout,
    superblock: &mut Superblock,
) -> Result<(), IoError> {
    superblock.sequence = counter::next(superblock.sequence)?;
    let at = layout.superblocks[(superblock.sequence & 1) as usize];
    write_page(device, at, &superblock.encode()).await
}

/// Moves the metadata to the end of the device, if that has grown by enough; zeroes what it left.
/// `inside` when the log lies on the data device.
pub(crate) async fn follow_device(
    device: &SharedDevice,
    inside: bool,
    found: Found,
) -> Result<Found, ReplicaError> {
    let Found { mut superblock, end } = found;
    let shape = superblock.shape;
    let old = layout(end, &shape).ok_or(ReplicaError::DataTooSmall)?;
    if superblock.moved_from != 0 {
        leave(device, &old, &mut superblock).await?;
    }
    let Some(new) = follow(end, end_of(device), &shape) else {
        return Ok(Found { superblock, end });
    };
    if shape.usable_bytes > old.usable_bytes {
        return Err(ReplicaError::Superblock(FormatError::Field("usable_bytes")));
    }
    if inside {
        copy(device, old.log, new.log, log_layout(&shape).total_bytes).await?;
    }
    // The one slot first: what an earlier life of the device left there may have any sequence.
    let next = (counter::next(superblock.sequence)? & 1) as usize;
    write_page(device, new.superblocks[1 - next], &[0; PAGE_BYTES]).await?;
    (superblock.device_bytes, superblock.moved_from) = (new.end(), end);
    put(device, &new, &mut superblock).await?;
    leave(device, &new, &mut superblock).await?;
    tracing::info!(
        replica = %superblock.replica,
        from_bytes = end,
        to_bytes = new.end(),
        "the metadata has followed the end of its device"
    );
    Ok(Found { superblock, end: new.end() })
}

/// Zeroes the place that the metadata moved from: nobody takes it for a replica any more, and hosts
/// find no bytes of ours there when the volume grows over it.
async fn leave(
    device: &SharedDevice,
    layout: &Layout,
    superblock: &mut Superblock,
) -> Result<(), ReplicaError> {
    let wrong = || ReplicaError::Superblock(FormatError::Field("moved_from"));
    let old = crate::shape::layout(superblock.moved_from, &superblock.shape).ok_or_else(wrong)?;
    if old.log < superblock.shape.usable_bytes || old.end() > layout.log {
        return Err(wrong());
    }
    let flags = ZeroFlags::default();
    device.write_zeroes(old.log, old.end() - old.log, flags).await?;
    device.flush().await?;
    superblock.moved_from = 0;
    Ok(put(device, layout, superblock).await?)
}

async fn copy(device: &SharedDevice, from: u64, to: u64, len: u64) -> Result<(), IoError> {
    let mut done = 0;
    while done < len {
        // Hosts' calls wait meanwhile.
        let memory = at_most((len - done).min(PAGES_PER_WRITE * PAGE) as usize);
        let part = device.read(from + done, memory).await?.freeze();
        let copied = part.len() as u64;
        device.write(to + done, part, false).await?;
        done += copied;
    }
    device.flush().await
}

/// A replica is to have another size, in bytes.
pub(crate) struct Sizes {
    /// That of the volume.
    pub(crate) usable_bytes: u64,
    /// From the end of the volume as it was to here everything is zero.
    pub(crate) cleared_bytes: u64,
}

/// Gives a replica that was found and is not open another size; `change` is made in the same write
/// of the superblock.
pub(crate) async fn resize(
    device: &SharedDevice,
    log: Option<SharedDevice>,
    opened: Opened,
    sizes: Sizes,
    change: impl FnOnce(&mut Superblock),
) -> Result<(), ReplicaError> {
    let Opened { layout, mut superblock, recovered, .. } = opened;
    let old = superblock.shape;
    let Sizes { usable_bytes, cleared_bytes } = sizes;
    if usable_bytes == old.usable_bytes {
        return Ok(());
    }
    let shape = Shape { usable_bytes, ..old };
    shape.check().map_err(ReplicaError::Shape)?;
    if usable_bytes > layout.usable_bytes {
        return Err(ReplicaError::DataTooSmall);
    }
    let (on, at) = match log {
        Some(log) => (log, 0),
        None => (device.clone(), layout.log),
    };
    let grows = usable_bytes > old.usable_bytes;
    // A smaller volume's log stays where it is in that of the larger.
    let area = Area::new(on, at, &shape).ok_or(ReplicaError::LogTooSmall)?;
    let start = recovered.start;
    let bits = Bitmap::new(shape.bits(), shape.bit_bytes);
    for index in 0..start.bits.words() {
        bits.merge(index, start.bits.word(index));
    }
    let known = old.usable_bytes.max(cleared_bytes);
    if known < usable_bytes {
        // The first of these bits may stand for known bytes and others.
        bits.set(known / u64::from(shape.bit_bytes)..shape.bits());
    }
    device.flush().await?;
    let pages = Pages::new(shape.pages());
    let known = start.pages.len().min(pages.len());
    (0..known).for_each(|page| pages.found(page, start.pages.writes(page)));
    let mut first = 0;
    while first < shape.pages() {
        let end = shape.pages().min(first + PAGES_PER_WRITE);
        area.write_pages(start.name, first..end, &bits, |page| pages.next_count(page)).await?;
        pages.written(first..end);
        first = end;
    }
    // What was hot is set, and durable now.
    let record_sequence = counter::next(start.sequence)?;
    area.write_record(record_sequence, start.name, &[]).await?;
    if grows {
        let header = LogHeader {
            sequence: counter::next(recovered.header_sequence)?,
            log: superblock.log,
            replica: superblock.replica,
            incarnation: superblock.incarnation,
            shape,
        };
        area.write_header(&header).await?;
    }
    superblock.shape = shape;
    superblock.log_progress = Progress { record_sequence, page_writes: pages.all_writes() };
    change(&mut superblock);
    Ok(put(device, &layout, &mut superblock).await?)
}

#[cfg(test)]
#[path = "resize_tests.rs"]
mod tests;

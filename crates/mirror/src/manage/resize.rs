//! Resizing a replica that is not in use, and moving its metadata when its device has grown.
//!
//! There are two operations. Each is idempotent, and after a power failure at any point the state
//! before or after it is found:
//!
//! - *following*: the metadata moves to the new end of a device that has grown. The log is copied,
//!   then a superblock at the new end names both the new and the old place, and the old place is
//!   zeroed. Host data, the volume's size and the log's contents are unchanged, so no peer is
//!   involved;
//! - *resizing*: the volume takes another size within the available space. All bitmap pages are
//!   written with the bits of the new space set, then a header for the larger volume, then the
//!   superblock. The new space may differ from the peers', unless it was zeroed before
//!   ([`crate::ondisk::new_space`]) and the peers have zeroed theirs.
//!
//! `docs/mirror-format.md` specifies the order of writes.

use flagstone_blockdev::{IoError, SharedDevice, ZeroFlags};

use crate::intent_log::bitmap::Bitmap;
use crate::intent_log::log_area::{LogArea, write_page};
use crate::intent_log::pages::Pages;
use crate::io::memory::at_most;
use crate::limits::{PAGE_BYTES, PAGES_PER_WRITE};
use crate::manage::replica::{OpenedReplica, ReplicaError};
use crate::ondisk::FormatError;
use crate::ondisk::counter;
use crate::ondisk::layout::{ReplicaGeometry, ReplicaLayout, follow, layout, log_layout};
use crate::ondisk::locate::{LocatedSuperblock, end_of};
use crate::ondisk::log_header::LogHeader;
use crate::ondisk::superblock::{LogProgress, Superblock};
use crate::ondisk::superblock_slots::SuperblockSlots;

const PAGE: u64 = PAGE_BYTES as u64;

/// Moves the metadata to the end of a grown device. `inside` is true if the log is there, too.
pub(crate) async fn follow_device(
    device: &SharedDevice,
    inside: bool,
    found: LocatedSuperblock,
) -> Result<FollowedDevice, ReplicaError> {
    let geometry = found.superblock.geometry;
    let old = layout(found.end, &geometry).ok_or(ReplicaError::DataTooSmall)?;
    let mut slots = found.slots(&old);
    let LocatedSuperblock { mut superblock, end, .. } = found;
    if superblock.moved_from != 0 {
        leave(device, &old, &mut superblock, &mut slots).await?;
    }
    let Some(new) = follow(end, end_of(device), &geometry) else {
        return Ok(FollowedDevice { superblock, slots, end });
    };
    if geometry.usable_bytes > old.usable_bytes {
        return Err(ReplicaError::Superblock(FormatError::Field("usable_bytes")));
    }
    if inside {
        copy(device, old.log, new.log, log_layout(&geometry).total_bytes).await?;
    }
    // First, because a leftover in slot 1 may have any sequence number.
    write_page(device, new.superblocks[1], &[0; PAGE_BYTES]).await?;
    (superblock.device_bytes, superblock.moved_from) = (new.end(), end);
    let mut slots = slots.moved(new.superblocks);
    slots.write(device, &mut superblock).await?;
    leave(device, &new, &mut superblock, &mut slots).await?;
    tracing::info!(
        replica = %superblock.replica,
        from_bytes = end,
        to_bytes = new.end(),
        "moved the metadata to the new end of its device"
    );
    Ok(FollowedDevice { superblock, slots, end: new.end() })
}

/// A superblock whose metadata is at the end of its device, as far as possible.
pub(crate) struct FollowedDevice {
    pub(crate) superblock: Superblock,
    pub(crate) slots: SuperblockSlots,
    pub(crate) end: u64,
}

/// Zeroes the former place of the metadata, so that it is not mistaken for a replica, and hosts
/// find no metadata when the volume grows over it.
async fn leave(
    device: &SharedDevice,
    layout: &ReplicaLayout,
    superblock: &mut Superblock,
    slots: &mut SuperblockSlots,
) -> Result<(), ReplicaError> {
    let wrong = || ReplicaError::Superblock(FormatError::Field("moved_from"));
    let old = crate::ondisk::layout::layout(superblock.moved_from, &superblock.geometry)
        .ok_or_else(wrong)?;
    if old.log < superblock.geometry.usable_bytes || old.end() > layout.log {
        return Err(wrong());
    }
    let flags = ZeroFlags::default();
    device.write_zeroes(old.log, old.end() - old.log, flags).await?;
    device.flush().await?;
    superblock.moved_from = 0;
    Ok(slots.write(device, superblock).await?)
}

async fn copy(device: &SharedDevice, from: u64, to: u64, len: u64) -> Result<(), IoError> {
    let mut done = 0;
    while done < len {
        // Small buffers: host calls wait meanwhile, and hold memory.
        let memory = at_most((len - done).min(PAGES_PER_WRITE * PAGE) as usize);
        let part = device.read(from + done, memory).await?.freeze();
        let copied = part.len() as u64;
        device.write(to + done, part, false).await?;
        done += copied;
    }
    device.flush().await
}

pub(crate) struct Sizes {
    pub(crate) usable_bytes: u64,
    /// End of the zeroed space after the old end of the volume.
    pub(crate) zeroed_bytes: u64,
}

/// Resizes a replica that is not open, with one superblock write that includes `change`.
pub(crate) async fn resize(
    device: &SharedDevice,
    log: Option<SharedDevice>,
    opened: OpenedReplica,
    sizes: Sizes,
    change: impl FnOnce(&mut Superblock),
) -> Result<(), ReplicaError> {
    let OpenedReplica { layout, mut superblock, mut slots, recovered, .. } = opened;
    let old = superblock.geometry;
    let Sizes { usable_bytes, zeroed_bytes } = sizes;
    if usable_bytes == old.usable_bytes {
        return Ok(());
    }
    let geometry = ReplicaGeometry { usable_bytes, ..old };
    geometry.check().map_err(ReplicaError::Geometry)?;
    if usable_bytes > layout.usable_bytes {
        return Err(ReplicaError::DataTooSmall);
    }
    let (on, at) = match log {
        Some(log) => (log, 0),
        None => (device.clone(), layout.log),
    };
    let grows = usable_bytes > old.usable_bytes;
    // The log of a smaller volume has the same layout at the beginning of the larger one.
    let area = LogArea::new(on, at, &geometry).ok_or(ReplicaError::LogTooSmall)?;
    let start = recovered.start;
    let bits = Bitmap::new(geometry.bits(), geometry.bit_bytes);
    for index in 0..start.bits.words() {
        bits.merge(index, start.bits.word(index));
    }
    let known = old.usable_bytes.max(zeroed_bytes);
    if known < usable_bytes {
        // The first of these bits may also cover known bytes.
        bits.set(known / u64::from(geometry.bit_bytes)..geometry.bits());
    }
    device.flush().await?;
    let pages = Pages::new(geometry.pages());
    let known = start.pages.len().min(pages.len());
    (0..known).for_each(|page| pages.found(page, start.pages.writes(page)));
    let mut first = 0;
    while first < geometry.pages() {
        let end = geometry.pages().min(first + PAGES_PER_WRITE);
        area.write_pages(start.name, first..end, &bits, |page| pages.next_count(page)).await?;
        pages.written(first..end);
        first = end;
    }
    // Regions that were active have their bits set, durably.
    let record_sequence = counter::next(start.sequence)?;
    area.write_record(record_sequence, start.name, &[]).await?;
    if grows {
        let header = LogHeader {
            sequence: counter::next(recovered.header_sequence)?,
            log: superblock.log,
            replica: superblock.replica,
            incarnation: superblock.incarnation,
            geometry,
        };
        area.write_header(&header).await?;
    }
    superblock.geometry = geometry;
    superblock.log_progress = LogProgress { record_sequence, page_writes: pages.all_writes() };
    change(&mut superblock);
    Ok(slots.write(device, &mut superblock).await?)
}

#[cfg(test)]
#[path = "resize_tests.rs"]
mod tests;

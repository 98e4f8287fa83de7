//! Stale replica: one whose device lost changes that had been flushed, or was restored from a copy.
//!
//! Its data is of an earlier time, and so are its superblock and log, so that nothing on it says
//! which blocks the peer has changed since. Marking it makes a partial resync impossible: the log
//! counts as lost, so every block is out of sync, and the data as unverified, so that it is neither
//! served nor copied to a peer, and no checksum of it is believed.

use flagstone_blockdev::SharedDevice;

use crate::manage::replica::ReplicaError;
use crate::ondisk::FormatError;
use crate::ondisk::layout::layout;
use crate::ondisk::locate::locate;

/// Incarnation that no log has: the log is then from another time.
const NO_INCARNATION: u64 = u64::MAX;

/// Marks the replica on a device that is not open, durably, until a full resync to it completes.
/// False if the device has no replica. Marking again changes nothing else.
///
/// # Errors
/// [`ReplicaError`] of a device, or for a superblock that cannot be used.
pub async fn mark_stale(device: &SharedDevice) -> Result<bool, ReplicaError> {
    let located = match locate(device).await {
        Ok(located) => located,
        Err(error @ ReplicaError::Superblock(FormatError::Version(_))) => return Err(error),
        // No replica, or a replica that is never opened again.
        Err(ReplicaError::Superblock(_) | ReplicaError::DataTooSmall) => return Ok(false),
        Err(error) => return Err(error),
    };
    let mut superblock = located.superblock.clone();
    let layout = layout(located.end, &superblock.geometry).ok_or(ReplicaError::DataTooSmall)?;
    (superblock.unverified, superblock.incarnation) = (true, NO_INCARNATION);
    located.slots(&layout).write(device, &mut superblock).await?;
    device.flush().await?;
    Ok(true)
}

#[cfg(test)]
#[path = "stale_tests.rs"]
mod tests;

//! New space: the space behind a volume on its device, zeroed before the volume grows into it.
//!
//! If all replicas of a volume grow into zeroes, they are equal there from the start: nothing has
//! to be copied, and a target that was in sync stays in sync. The zeroed range is remembered while
//! the replica is open. After that, the space may differ like any new space.
//!
//! The space may be taken back as long as the volume does not use it, so the device is not made
//! larger for this: it is [exposed](flagstone_blockdev::BlockDevice::expose) for one chunk at a
//! time. Space that was missing at any look counts as unknown again.
//!
//! A device that hangs fails a chunk after [`LOCAL_IO_MS`], so that the order to grow ends.
//!
//! Only this module writes there, until [`NewSpace::end`] has returned: then it may be host data.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{IoError, SharedDevice, ZeroFlags};
use flagstone_runtime::{spawn, time};
use parking_lot::{Mutex, MutexGuard};

use crate::io::fifo_lock::{FifoGuard, FifoLock};
use crate::io::memory::at_most;
use crate::limits::{LOCAL_IO_MS, ZERO_CHUNK_BYTES};
use crate::ondisk::layout::ReplicaLayout;

/// The space behind a volume, and how much of it is zeroed.
pub(crate) struct NewSpace {
    device: SharedDevice,
    layout: ReplicaLayout,
    /// Size of the volume, in bytes.
    usable_bytes: u64,
    /// Held while a chunk is zeroed, until its last device call has ended.
    fifo: Arc<FifoLock>,
    state: Mutex<State>,
}

struct State {
    /// Everything from the end of the volume to here is zero, durably.
    zeroed_bytes: u64,
    ended: bool,
}

impl NewSpace {
    /// The space behind a volume of `usable_bytes`, with unknown contents.
    pub(crate) fn new(
        device: SharedDevice,
        layout: ReplicaLayout,
        usable_bytes: u64,
    ) -> Arc<NewSpace> {
        let state = Mutex::new(State { zeroed_bytes: usable_bytes, ended: false });
        Arc::new(NewSpace { device, layout, usable_bytes, fifo: Arc::default(), state })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The size up to which the volume could grow into zeroes, in bytes.
    pub(crate) fn zeroed_bytes(&self) -> u64 {
        self.lock().zeroed_bytes
    }

    /// The device has room for a volume of just `room_bytes`: what lies beyond has unknown contents
    /// when it returns.
    pub(crate) fn limit(&self, room_bytes: u64) {
        let mut state = self.lock();
        state.zeroed_bytes = state.zeroed_bytes.min(room_bytes.max(self.usable_bytes));
    }

    /// Durably zeroes the space that a volume of `usable_bytes` would gain. Parts that already read
    /// as zeroes are not written.
    ///
    /// # Errors
    /// Of the device; [`IoError::Unreachable`] when the replica is no longer open.
    pub(crate) async fn zero(self: &Arc<Self>, usable_bytes: u64) -> Result<(), IoError> {
        let from = self.zeroed_bytes();
        if usable_bytes <= from {
            return Ok(());
        }
        for part in outside_metadata(&self.layout, from..usable_bytes) {
            let mut at = part.start;
            while at < part.end {
                let end = part.end.min(at + ZERO_CHUNK_BYTES);
                self.zero_part(at..end).await?;
                at = end;
            }
        }
        let device = self.device.clone();
        within_limit(async move { device.flush().await }).await?;
        let mut state = self.lock();
        if state.ended {
            return Err(IoError::Unreachable);
        }
        state.zeroed_bytes = state.zeroed_bytes.max(usable_bytes);
        Ok(())
    }

    async fn zero_part(self: &Arc<Self>, part: Range<u64>) -> Result<(), IoError> {
        let new_space = self.clone();
        within_limit(async move {
            let guard = new_space.fifo.acquire().await;
            new_space.zero_exclusively(part, guard).await
        })
        .await
    }

    async fn zero_exclusively(&self, part: Range<u64>, _guard: FifoGuard) -> Result<(), IoError> {
        if self.lock().ended {
            return Err(IoError::Unreachable);
        }
        let _exposed = Exposed::new(&self.device, part.end)?;
        // An unreadable block is overwritten, which may repair it.
        let (mut zero, mut data_end) = (part.start, part.start);
        while zero < part.end {
            // Holes of a thin device are neither read nor written: that would take space.
            if zero >= data_end {
                let found = self.device.allocated(zero, part.end - zero).await.unwrap_or_default();
                match found.first().filter(|extent| extent.len > 0) {
                    Some(extent) if extent.is_hole => {
                        zero += extent.len;
                        data_end = zero;
                        continue;
                    }
                    Some(extent) => data_end = zero + extent.len,
                    None => data_end = part.end,
                }
            }
            // Small buffers: a transfer of the replica, and with it hosts, wait for this lock.
            let memory = at_most((part.end - zero) as usize);
            match self.device.read(zero, memory).await {
                Ok(found) if found.iter().all(|byte| *byte == 0) => zero += found.len() as u64,
                _ => {
                    let flags = ZeroFlags { may_deallocate: true, ..ZeroFlags::default() };
                    return self.device.write_zeroes(zero, part.end - zero, flags).await;
                }
            }
        }
        Ok(())
    }

    pub(crate) async fn end(&self) {
        self.lock().ended = true;
        let _guard = self.fifo.acquire().await;
    }
}

/// Waits for a task that runs to completion, so that the lock shows when no call is in progress,
/// for at most [`LOCAL_IO_MS`].
async fn within_limit(
    work: impl Future<Output = Result<(), IoError>> + 'static,
) -> Result<(), IoError> {
    let ended = time::timeout(Duration::from_millis(LOCAL_IO_MS), spawn(work)).await;
    ended.ok().and_then(Result::ok).unwrap_or(Err(IoError::Unreachable))
}

/// A device whose new space can be reached, until this is dropped.
struct Exposed<'a>(&'a SharedDevice);

impl Exposed<'_> {
    /// # Errors
    /// [`IoError::OutOfRange`] if the device ends before `end`, in bytes.
    fn new(device: &SharedDevice, end: u64) -> Result<Exposed<'_>, IoError> {
        match device.present_bytes() {
            Some(_) => device.expose(end),
            // Nothing shows when its space is taken back.
            None => device.refresh(),
        }
        let exposed = Exposed(device);
        if device.geometry().size_bytes < end { Err(IoError::OutOfRange) } else { Ok(exposed) }
    }
}

impl Drop for Exposed<'_> {
    fn drop(&mut self) {
        self.0.expose(0);
    }
}

/// The parts of a range outside the metadata, whose place is zeroed when it moves away.
fn outside_metadata(layout: &ReplicaLayout, range: Range<u64>) -> [Range<u64>; 2] {
    let own = layout.log..layout.end();
    [range.start..range.end.min(own.start), range.start.max(own.end)..range.end]
}

#[cfg(test)]
#[path = "new_space_tests.rs"]
mod tests;

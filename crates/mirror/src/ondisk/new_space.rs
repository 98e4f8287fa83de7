//! New space: the space behind a volume on its device, zeroed before the volume grows into it.
//!
//! If all replicas of a volume grow into zeroes, they are equal there from the start: nothing has
//! to be copied, and a target that was in sync stays in sync. The zeroed range is remembered while
//! the replica is open. After that, the space may differ like any new space.
//!
//! Only this module writes there, until [`NewSpace::end`] has returned: then it may be host data.

use std::ops::Range;
use std::sync::Arc;

use flagstone_blockdev::{IoError, SharedDevice, ZeroFlags};
use flagstone_runtime::spawn;
use parking_lot::{Mutex, MutexGuard};

use crate::io::fifo_lock::{FifoGuard, FifoLock};
use crate::io::memory::at_most;
use crate::limits::ZERO_CHUNK_BYTES;
use crate::ondisk::layout::Layout;

/// The space behind a volume, and how much of it is zeroed.
pub(crate) struct NewSpace {
    device: SharedDevice,
    layout: Layout,
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
    pub(crate) fn new(device: SharedDevice, layout: Layout, usable_bytes: u64) -> Arc<NewSpace> {
        let state = Mutex::new(State { zeroed_bytes: usable_bytes, ended: false });
        Arc::new(NewSpace { device, layout, fifo: Arc::default(), state })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The size up to which the volume could grow into zeroes, in bytes.
    pub(crate) fn zeroed_bytes(&self) -> u64 {
        self.lock().zeroed_bytes
    }

    /// Durably zeroes what a volume of `usable_bytes` would gain; only reads what is zero.
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
        self.device.flush().await?;
        let mut state = self.lock();
        if state.ended {
            return Err(IoError::Unreachable);
        }
        state.zeroed_bytes = state.zeroed_bytes.max(usable_bytes);
        Ok(())
    }

    async fn zero_part(self: &Arc<Self>, part: Range<u64>) -> Result<(), IoError> {
        let guard = self.fifo.acquire().await;
        let new_space = self.clone();
        // Runs to completion, so that the lock shows when no call is in progress.
        let cleared = spawn(async move { new_space.zero_exclusively(part, guard).await });
        cleared.await.unwrap_or(Err(IoError::Unreachable))
    }

    async fn zero_exclusively(&self, part: Range<u64>, _guard: FifoGuard) -> Result<(), IoError> {
        if self.lock().ended {
            return Err(IoError::Unreachable);
        }
        // An unreadable block is overwritten, which may repair it.
        let mut zero = part.start;
        while zero < part.end {
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

/// The parts of a range outside the metadata, whose place is zeroed when it moves away.
fn outside_metadata(layout: &Layout, range: Range<u64>) -> [Range<u64>; 2] {
    let own = layout.log..layout.end();
    [range.start..range.end.min(own.start), range.start.max(own.end)..range.end]
}

#[cfg(test)]
#[path = "new_space_tests.rs"]
mod tests;

//! What lies behind a volume on its device, zeroed before the volume grows over it.
//!
//! A volume whose replicas all grow into zeroes is equal there from the first moment on: nothing of
//! it has to be copied, and each target that had all before has all after. What was zeroed is known
//! for as long as the replica stays open; after that it may differ, as anything that is new.
//!
//! Nobody writes there meanwhile but who zeroes it, part by part, and none of that comes after
//! [`Room::end`] has returned: what lies there may be hosts' data from then on.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flagstone_blockdev::{IoError, SharedDevice, ZeroFlags};
use flagstone_runtime::spawn;

use crate::limits::CLEAR_BYTES;
use crate::memory::at_most;
use crate::shape::Layout;
use crate::turn::{Turn, Turns};

/// See the module.
pub(crate) struct Room {
    device: SharedDevice,
    layout: Layout,
    /// Whoever zeroes a part has a turn until its last call to the device has ended.
    turns: Arc<Turns>,
    state: Mutex<State>,
}

struct State {
    /// From the end of the volume to here everything is zero, durably.
    cleared_bytes: u64,
    ended: bool,
}

impl Room {
    /// Behind a volume of so many bytes, of which nothing is known.
    pub(crate) fn new(device: SharedDevice, layout: Layout, usable_bytes: u64) -> Arc<Room> {
        let state = Mutex::new(State { cleared_bytes: usable_bytes, ended: false });
        Arc::new(Room { device, layout, turns: Arc::default(), state })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The size up to which the volume could grow into zeroes, in bytes.
    pub(crate) fn cleared_bytes(&self) -> u64 {
        self.lock().cleared_bytes
    }

    /// Zeroes what a volume of so many bytes would have more than this one; what is zero already is
    /// only read. It is durable when this returns.
    ///
    /// # Errors
    /// Of the device; [`IoError::Unreachable`] when the replica is not open any more.
    pub(crate) async fn clear(self: &Arc<Self>, usable_bytes: u64) -> Result<(), IoError> {
        let from = self.cleared_bytes();
        if usable_bytes <= from {
            return Ok(());
        }
        for part in beside(&self.layout, from..usable_bytes) {
            let mut at = part.start;
            while at < part.end {
                let end = part.end.min(at + CLEAR_BYTES);
                self.clear_part(at..end).await?;
                at = end;
            }
        }
        self.device.flush().await?;
        let mut state = self.lock();
        if state.ended {
            return Err(IoError::Unreachable);
        }
        state.cleared_bytes = state.cleared_bytes.max(usable_bytes);
        Ok(())
    }

    async fn clear_part(self: &Arc<Self>, part: Range<u64>) -> Result<(), IoError> {
        let turn = self.turns.take().await;
        let room = self.clone();
        // To its end though nobody waits for it any more: the turn says when nothing is in hand.
        let cleared = spawn(async move { room.clear_in_turn(part, turn).await });
        cleared.await.unwrap_or(Err(IoError::Unreachable))
    }

    async fn clear_in_turn(&self, part: Range<u64>, _turn: Turn) -> Result<(), IoError> {
        if self.lock().ended {
            return Err(IoError::Unreachable);
        }
        // What cannot be read is written: that may mend it.
        let mut zero = part.start;
        while zero < part.end {
            // A replica that is to be given to another mirror waits for this turn, and hosts for that.
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

    /// Nothing is zeroed any more once this has returned.
    pub(crate) async fn end(&self) {
        self.lock().ended = true;
        let _turn = self.turns.take().await;
    }
}

/// What of a range the replica has nothing of its own in: that is zeroed when it moves from there.
fn beside(layout: &Layout, range: Range<u64>) -> [Range<u64>; 2] {
    let own = layout.log..layout.end();
    [range.start..range.end.min(own.start), range.start.max(own.end)..range.end]
}

#[cfg(test)]
#[path = "room_tests.rs"]
mod tests;

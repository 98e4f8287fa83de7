//! Cleaner: copies live blocks out of the segments with the fewest of them, and lets a checkpoint
//! free these segments.
//!
//! Invariants:
//! - a block is copied only if the map has it at this place now, and the copy takes effect only if
//!   the map still does;
//! - a pass copies only segments whose copies are smaller than they are, headers included, and only as much
//!   as leaves the checkpoint its space;
//! - a segment that cannot be read, or whose live blocks are not found, stays as it is, and is tried
//!   again later;
//! - a block of snapshots is copied once; the checkpoint after it makes all maps that have the block
//!   refer to the copy, so a replay never sees one of them changed alone;
//! - map pages and metadata are not copied: the checkpoint writes them again;
//! - no checkpoint runs and no lineage changes between a look at a tree and the effect of the copy,
//!   because one task does both in turn.

pub(crate) mod gain;
mod gather;
mod owners;
mod pack;
mod room;
mod survey;
pub(crate) mod victims;

use std::collections::BTreeSet;

use flagstone_blockdev::IoError;

use crate::limits::BLOCK_BYTES;
use crate::log::append::chunk_memory;
use crate::manage::shared::{Shared, State};
use crate::ondisk::entry::Entry;
use gain::Gain;
use owners::Owners;
use pack::{Moved, Packed, Packer};
use room::Room;
use survey::Victims;

/// Live blocks of segments, gathered for the next chunks.
struct Copies {
    packer: Packer,
    /// Old locations of the pages that the next checkpoint will copy.
    pages: BTreeSet<u64>,
    /// A block or page was left, because the next checkpoint would have to copy too many pages.
    skipped: bool,
    room: Room,
    /// Blocks were left for the next pass.
    limited: bool,
    /// Blocks of chunks.
    written: u64,
    owners: Owners,
}

impl Shared {
    /// Cleans some segments, and makes the checkpoint that frees them.
    ///
    /// # Errors
    /// Of the devices; the pool then fails every change.
    pub(crate) async fn clean(&self) -> Result<(), IoError> {
        let (crowded, before) = {
            let mut state = self.state.lock();
            state.wanted.cleaning = false;
            // Maps that are being reaped are not whole.
            let crowded = 2 * state.active.len() > state.sizes.recent || state.deleting > 0;
            (crowded, self.room(&mut state))
        };
        if crowded {
            self.checkpoint().await?;
        }
        let (owners, room) = {
            let mut state = self.state.lock();
            if state.deleting > 0 {
                (state.wanted.checkpoint, state.wanted.cleaning) = (true, true);
                return Ok(());
            }
            let segment = self.storage.layout.segment_blocks() as usize;
            (Owners::of(&state), Room::new(state.sizes.recent, segment))
        };
        let victims = match self.victims(&owners).await {
            Ok(victims) => victims,
            Err(error) => return Err(self.fail_cleaning(error)),
        };
        let (victims, cost) = match victims {
            Victims::Chosen(victims, cost) => (victims, cost),
            Victims::None => {
                self.state.lock().clean = true;
                self.progress.notify();
                return Ok(());
            }
            Victims::Unknown => {
                let mut state = self.state.lock();
                state.wanted.cleaning = true;
                state.rounds += 1;
                drop(state);
                self.progress.notify();
                return Ok(());
            }
        };
        let mut copies = Copies {
            packer: Packer::new(self.chunk_blocks()),
            pages: BTreeSet::new(),
            skipped: false,
            room,
            limited: false,
            written: 0,
            owners,
        };
        let mut emptied = 0;
        let mut is_first_whole = None;
        for segment in &victims {
            let mut done = self.clean_segment(*segment, &mut copies).await;
            if done == Err(IoError::ReadFault) {
                tracing::error!(pool = self.name, segment, "segment cannot be read: it stays");
                self.state.lock().leave_alone(*segment);
                // Nothing is known of its live blocks.
                is_first_whole.get_or_insert((false, false));
                done = Ok(());
            }
            if let Err(error) = done {
                return Err(self.fail_cleaning(error));
            }
            is_first_whole.get_or_insert((!copies.limited, !copies.skipped && !copies.limited));
            if copies.limited {
                break;
            }
            emptied += 1;
        }
        for packed in copies.packer.end() {
            if let Err(error) = self.write_packed(packed, &mut copies.written).await {
                return Err(self.fail_cleaning(error));
            }
        }
        // A chunk is not full at the end, and each cost is rounded.
        let (written, most) = (copies.written, cost + victims.len() as u64 + 2);
        debug_assert!(written <= most, "copies of {victims:?} take {written} blocks, not {cost}");
        let (first, (is_tried, is_whole)) =
            (victims[0], is_first_whole.expect("there are victims"));
        let live = self.state.lock().live_in(first);
        self.checkpoint().await?;
        let mut state = self.state.lock();
        state.cleaned.0 += emptied;
        let after = self.room(&mut state);
        // What is withheld from use is no gain, and no sign of a clean pool.
        if state.evacuated.is_none() {
            state.gain.count(before, after, is_tried);
        }
        // The counted blocks belong to a chunk or map page that is damaged.
        let is_stuck = state.segments.is_closed(first) && state.live_in(first) >= live;
        if is_stuck && is_whole && state.deleting == 0 {
            tracing::error!(pool = self.name, segment = first, "live blocks not found: it stays");
            state.leave_alone(first);
            state.gain = Gain::default();
        }
        state.clean = state.gain.is_over();
        drop(state);
        self.progress.notify();
        Ok(())
    }

    fn fail_cleaning(&self, error: IoError) -> IoError {
        self.state.lock().fail(IoError::WriteFault);
        self.progress.notify();
        error
    }

    /// Free blocks, and those that hosts took since the opening.
    fn room(&self, state: &mut State) -> u64 {
        let segment = u64::from(self.storage.layout.segment_blocks());
        state.segments.free() as u64 * segment + state.host_blocks
    }

    /// Writes copies as a chunk.
    async fn write_packed(&self, packed: Packed, written: &mut u64) -> Result<(), IoError> {
        let Packed { records, bytes, entries, .. } = packed;
        *written += 1 + (bytes.len() / BLOCK_BYTES) as u64;
        let mut memory = chunk_memory(bytes.len() / BLOCK_BYTES).await;
        memory[BLOCK_BYTES..].copy_from_slice(&bytes);
        drop(bytes);
        {
            let mut state = self.state.lock();
            state.admitted.0 += entries.iter().filter(|moved| !moved.shared).count();
            state.cleaned.1 += entries.len() as u64;
        }
        let appended = self.append(records, memory).await?;
        let mut state = self.state.lock();
        for Moved { old, new, shared } in entries {
            if shared {
                let location = new.location + appended.payload;
                state.moving.blocks.insert(old, Entry { location, ..new });
            }
        }
        Ok(())
    }
}

//! Cleaner: copies live blocks out of the segments that have the fewest, and lets a checkpoint free
//! these segments.
//!
//! Invariants:
//! - a block is copied only if the map has it at this place now, and the copy takes effect only if
//!   the map still does;
//! - a segment that cannot be read, or whose live blocks are not found, is kept and tried again
//!   later;
//! - a block of snapshots is copied once. The next checkpoint makes all maps that have the block
//!   refer to the copy, so a replay never sees only some of them changed;
//! - map pages and metadata are not copied: the checkpoint rewrites them;
//! - what dead blocks of locked units hold is no gain ([`survey`]);
//! - no checkpoint runs and no ancestry changes between the lookup in a tree and the effect of the
//!   copy, because one task does both in turn.

mod content;
mod contents;
pub(crate) mod gain;
mod gather;
mod owners;
mod pack;
#[cfg(test)]
mod pass_tests;
mod piece;
mod scan_turns;
mod share;
pub(crate) mod survey;
mod turns;
mod victims;

use std::collections::BTreeSet;

use flagstone_blockdev::IoError;

use crate::limits::{BLOCK_BYTES, MOVING_MAX, UNIT_BLOCKS};
use crate::log::append::chunk_memory;
use crate::manage::shared::{Shared, State};
use crate::ondisk::entry::MapEntry;
use crate::ondisk::unit::BLOCK_WEIGHT;
use crate::work_slices::WorkSlices;
use gain::Gain;
use owners::Owners;
use pack::{Moved, Packed, Packer};
use victims::{Candidate, PassBudget, choose};

/// Live blocks of segments, gathered for the next chunks.
struct Copies {
    packer: Packer,
    /// Old locations of the pages that the next checkpoint will copy.
    pages: BTreeSet<u64>,
    /// Limit of `pages`.
    pages_max: usize,
    /// Leaves of volumes that the next checkpoint will write because of copies.
    leaves: BTreeSet<(u32, u64)>,
    /// Limit of `leaves`.
    leaves_max: usize,
    /// Copied blocks, each of which takes memory until the next checkpoint.
    blocks: usize,
    /// Limit of `blocks`.
    blocks_max: usize,
    /// True if a block or page was skipped because of a limit.
    skipped: bool,
    /// True if blocks were skipped because of `leaves_max`.
    lacked_leaves: bool,
    slices: WorkSlices,
    owners: Owners,
}

impl State {
    /// Costs of cleaning a segment.
    fn candidate(&self, segment: u32, packing: bool) -> Candidate {
        let held = self.held_in(segment);
        let weight = self.weight_of(segment).saturating_add(self.locked_in(segment));
        let blocks = |weight: u32| weight.div_ceil(BLOCK_WEIGHT);
        let rank = match packing {
            true => u32::MAX - held,
            // Packed with others, the live blocks of a unit take about as much as they weigh.
            false => blocks(weight.saturating_add(held / 2)),
        };
        let cost = blocks(weight.saturating_add(held));
        Candidate { segment, live: blocks(weight), cost, rank }
    }
}

impl Shared {
    /// Cleans some segments, and makes the checkpoint that frees them.
    ///
    /// # Errors
    /// Errors of the devices. The pool then fails every change.
    pub(crate) async fn clean(&self) -> Result<(), IoError> {
        let (crowded, packing, before) = {
            let mut state = self.state.lock();
            let packing = std::mem::take(&mut state.wanted.packing);
            state.wanted.cleaning = false;
            // Maps that are being reaped lack pages.
            let crowded = 2 * state.active.len() > state.sizes.recent || state.deleting > 0;
            (crowded, packing, self.room(&mut state))
        };
        if crowded {
            self.checkpoint().await?;
        }
        let (mut copies, leaves_max, has_spare) = {
            let mut state = self.state.lock();
            if state.deleting > 0 {
                (state.wanted.checkpoint, state.wanted.cleaning) = (true, true);
                return Ok(());
            }
            // Moving a block that n snapshots share rewrites n leaves. Spare blocks limit the
            // number of rewritten pages in small pools, memory in large ones.
            let spare = self.spare_blocks(&mut state) / 2;
            let mut copies = self.no_copies(&state);
            copies.pages_max = state.sizes.moving.max((spare as usize).min(MOVING_MAX));
            (copies, state.sizes.recent / 2, spare > 0)
        };
        let found = self.surveyed_victims(packing, &copies.owners).await;
        let victims = found.map_err(|error| self.fail_cleaning(error))?;
        let held = self.held_in(&victims);
        let segment_blocks = self.storage.layout.segment_blocks() as usize;
        let (mut is_first_whole, mut lacked_leaves) = (None, None);
        let mut cleaned = 0;
        for segment in &victims {
            // The first segment has no more leaves than stored blocks, unless units in it are
            // shared. Then it takes up to eight passes, which do not count as fruitless.
            let is_first = is_first_whole.is_none();
            copies.leaves_max = if is_first { leaves_max.max(segment_blocks) } else { leaves_max };
            let mut done = self.clean_segment(*segment, &mut copies).await;
            if done == Err(IoError::ReadFault) {
                tracing::error!(pool = self.name, segment, "segment cannot be read: it stays");
                self.state.lock().leave_alone(*segment);
                // The live blocks of an unreadable segment are unknown.
                is_first_whole.get_or_insert(false);
                done = Ok(());
            }
            if let Err(error) = done {
                return Err(self.fail_cleaning(error));
            }
            is_first_whole.get_or_insert(!copies.skipped);
            lacked_leaves.get_or_insert(copies.lacked_leaves);
            cleaned += 1;
            let mut state = self.state.lock();
            // Hosts, or copies that are still in memory, use up the spare segments.
            let (blocks, changes) = copies.packer.unwritten();
            let unwritten = blocks.div_ceil(state.sizes.payload as usize);
            let needed = unwritten + state.checkpoint_segments(changes);
            if has_spare && state.segments.free() < needed {
                break;
            }
        }
        if let Err(error) = self.write_copies(&mut copies, true).await {
            return Err(self.fail_cleaning(error));
        }
        let (Some(first), Some(is_whole)) = (victims.first().copied(), is_first_whole) else {
            let mut state = self.state.lock();
            (state.nothing_to_clean, state.cleaner_gains_nothing) = (true, true);
            state.passes += 1;
            drop(state);
            self.progress.notify();
            return Ok(());
        };
        let weight = self.state.lock().weight_of(first);
        self.checkpoint().await?;
        let mut state = self.state.lock();
        let is_part = lacked_leaves == Some(true) && state.weight_of(first) < weight;
        state.cleaned.0 += cleaned;
        let after = self.room(&mut state);
        // Freed segments of an evacuated device are not reused, and segments that still have
        // readers are reused later: neither is a gain or a sign that cleaning is over.
        if state.evacuated.is_none() && !state.segments.awaits_reads() {
            // A pass that only packs units lets later ones choose better. Such passes end: each
            // leaves less that is held.
            let left: u64 = victims.iter().map(|victim| u64::from(state.held_in(*victim))).sum();
            match held > left + copies.packer.held() {
                true if after > before => state.gain = Gain::default(),
                true => {}
                false if is_part && after <= before => {}
                false => state.gain.count(before, after),
            }
        }
        // The remaining live blocks belong to a damaged chunk or map page.
        let is_stuck = state.segments.is_closed(first) && state.weight_of(first) >= weight;
        if is_stuck && is_whole && state.deleting == 0 {
            tracing::error!(pool = self.name, segment = first, "live blocks not found: it stays");
            state.leave_alone(first);
            state.gain = Gain::default();
        }
        state.nothing_to_clean = state.gain.is_over();
        state.passes += 1;
        drop(state);
        self.progress.notify();
        Ok(())
    }

    fn fail_cleaning(&self, error: IoError) -> IoError {
        self.state.lock().fail(IoError::WriteFault);
        self.progress.notify();
        error
    }

    /// Free blocks plus the blocks written for hosts since the opening, so that writes of hosts do
    /// not hide the gain of a pass.
    fn room(&self, state: &mut State) -> u64 {
        let segment = u64::from(self.storage.layout.segment_blocks());
        state.segments.free() as u64 * segment + state.host_blocks
    }

    /// Budget for copies of data blocks: half of the free space beyond the next checkpoint's need.
    /// The other half is for copied pages of snapshots, each in a chunk of its own.
    fn spare_blocks(&self, state: &mut State) -> u64 {
        let spare = state.segments.free().saturating_sub(state.checkpoint_segments(0));
        spare as u64 * u64::from(self.storage.layout.segment_blocks()) / 2
    }

    /// No copies yet, with the limit of memory. A segment of units of one stored block each takes
    /// no more than one pass.
    fn no_copies(&self, state: &State) -> Copies {
        let segment = self.storage.layout.segment_blocks() as usize;
        let most = (state.sizes.recent / 2).max(state.sizes.copies).max(UNIT_BLOCKS * segment);
        Copies {
            packer: Packer::new(self.chunk_blocks()),
            pages: BTreeSet::new(),
            pages_max: 0,
            leaves: BTreeSet::new(),
            leaves_max: 0,
            blocks: 0,
            blocks_max: most,
            skipped: false,
            lacked_leaves: false,
            slices: WorkSlices::default(),
            owners: Owners::of(state),
        }
    }

    /// Weight that dead blocks of unlocked units hold in these segments, at most.
    fn held_in(&self, segments: &[u32]) -> u64 {
        let state = self.state.lock();
        segments.iter().map(|segment| u64::from(state.held_in(*segment))).sum()
    }

    /// Chooses the segments to clean: those whose copies probably take least; to pack units, those
    /// in which dead blocks hold most.
    fn victims(&self, packing: bool) -> Vec<u32> {
        let mut state = self.state.lock();
        let state: &mut State = &mut state;
        let segment_blocks = self.storage.layout.segment_blocks();
        let free_blocks = state.segments.free() as u64 * u64::from(segment_blocks);
        let evacuated = state.evacuated.clone();
        let spare = self.spare_blocks(state);
        // An evacuation copies more per pass, so that more segments share the cost of a checkpoint.
        // If the other devices run out of segments, the log still has those of the evacuated
        // device.
        let share = if evacuated.is_some() { 2 } else { 4 };
        let budget = PassBudget {
            // Copies need one header block per chunk.
            live_max: segment_blocks - 1 - segment_blocks.div_ceil(self.chunk_blocks() as u32),
            // In a nearly full pool, a small pass frees less than its checkpoint writes, so a large
            // pool copies more per pass.
            copies: (state.sizes.recent as u64 / 2)
                .min(free_blocks / share)
                .max((state.sizes.copies as u64).min(spare)),
        };
        // Evacuate even without a gain, while the other devices have more free segments than a
        // checkpoint (half of the reserve) and the reservations need. Host writes leave more than
        // that free, so they cannot block an evacuation for ever.
        let (sizes, supply) = (state.sizes, state.supply());
        let kept = supply.kept_by_evacuation(&sizes);
        let for_writes = state.cleans_for_writes(budget.live_max);
        if let Some(range) = evacuated.clone().filter(|_| supply.free > kept && !for_writes) {
            let room = (supply.free - kept) as u64 * u64::from(segment_blocks) / 2;
            let budget = PassBudget { live_max: segment_blocks, copies: budget.copies.min(room) };
            let closed = range.filter(|segment| state.can_clean(*segment));
            let victims = choose(closed.map(|segment| state.candidate(segment, false)), &budget);
            if !victims.is_empty() {
                return victims;
            }
        }
        let is_evacuated =
            |segment: &u32| evacuated.as_ref().is_some_and(|range| range.contains(segment));
        let closed = (0..state.segments.count() as u32)
            .filter(|segment| state.can_clean(*segment) && !is_evacuated(segment));
        if packing {
            let holding = closed.clone().filter(|segment| state.held_in(*segment) > 0);
            let victims = choose(holding.map(|segment| state.candidate(segment, true)), &budget);
            if !victims.is_empty() {
                return victims;
            }
        }
        choose(closed.map(|segment| state.candidate(segment, false)), &budget)
    }

    /// Writes gathered copies: the chunks that are full, or all. A chunk fills its segment to the
    /// end if possible: unused blocks at the end of a segment are lost space.
    async fn write_copies(&self, copies: &mut Copies, all: bool) -> Result<(), IoError> {
        while let Some(units) = copies.packer.pack_next(all) {
            copies.slices.spend(units).await;
        }
        loop {
            let room = self.state.lock().position.room();
            let Some(packed) = copies.packer.next(room, all) else { return Ok(()) };
            self.write_packed(packed).await?;
        }
    }

    async fn write_packed(&self, packed: Packed) -> Result<(), IoError> {
        let Packed { records, bytes, entries, .. } = packed;
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
                state.moving.blocks.insert(old, MapEntry { location, ..new });
            }
        }
        Ok(())
    }
}

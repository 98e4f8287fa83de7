//! Marks: the bits of the intent log and of each leg's bitmaps, which change together.
//!
//! Invariants:
//! - a bit of an out-of-sync or unflushed bitmap is also set in the log;
//! - a bit of the log is cleared only if no such bitmap has it;
//! - the lock of marks is taken after the state's, never before it.

use std::ops::Range;

use parking_lot::MutexGuard;

use crate::intent_log::out_of_sync::CopyToken;

use super::Inner;

impl Inner {
    /// Copies the log's bits to the out-of-sync bitmap of every peer.
    pub(crate) fn load_out_of_sync(&self) {
        for leg in &self.legs {
            for index in 0..leg.out_of_sync.words() {
                leg.out_of_sync.merge(index, self.local.word(index));
            }
        }
    }

    /// Loads the suspect bitmaps. Blocks that a log names when it is opened may be durable on
    /// neither leg: they were in active regions, or had been sent to a peer that had not flushed. A
    /// newly created log names everything and implies nothing of the kind.
    pub(super) fn load_suspect(&self) {
        if self.local.log_lost().is_some() {
            return;
        }
        let crashed = self.local.superblock().flags.crashed;
        let here = Some(&self.suspect).filter(|_| crashed);
        let maps = self.legs.iter().map(|leg| &leg.suspect).chain(here);
        for map in maps {
            (0..map.words()).for_each(|index| map.merge(index, self.local.word(index)));
        }
    }

    /// Marks a range that a leg lacks, or may lack.
    pub(crate) fn mark(&self, leg: usize, offset: u64, len: u64) {
        let marks = self.marks.lock();
        self.mark_locked(&marks, leg, offset, len);
    }

    fn mark_locked(&self, _marks: &MutexGuard<'_, ()>, leg: usize, offset: u64, len: u64) {
        let out_of_sync = &self.legs[leg].out_of_sync;
        let bits = out_of_sync.bits_of(offset, len);
        out_of_sync.mark(bits.clone());
        self.local.mark(bits);
    }

    /// Marks a range that was sent to a leg and failed: the leg may lack it.
    pub(crate) fn mark_suspect(&self, leg: usize, offset: u64, len: u64) {
        let suspect = &self.legs[leg].suspect;
        let marks = self.marks.lock();
        suspect.set(suspect.bits_of(offset, len));
        self.mark_locked(&marks, leg, offset, len);
    }

    /// Clears all marks: no block that the log names differs any more.
    pub(crate) fn forget_marks(&self) {
        let _marks = self.marks.lock();
        self.legs.iter().for_each(|leg| leg.out_of_sync.clear_all());
        let maps =
            self.legs.iter().flat_map(|leg| std::iter::once(&leg.suspect).chain(&leg.unflushed));
        maps.chain([&self.suspect]).for_each(|map| map.clear(map.all()));
        self.local.clear(0..self.local.superblock().geometry.bits());
    }

    /// Marks a range that is being sent to a leg, which may lose it or not have it yet. The caller
    /// has counted the call.
    pub(crate) fn mark_unflushed(&self, leg: usize, half: usize, offset: u64, len: u64) {
        let unflushed = &self.legs[leg].unflushed[half];
        let bits = unflushed.bits_of(offset, len);
        // The writer that set them set the log's bits too, and no bit of this half is cleared while
        // a call is counted in it.
        if unflushed.has_all(bits.clone()) {
            return;
        }
        let _marks = self.marks.lock();
        unflushed.set(bits.clone());
        self.local.mark(bits);
    }

    /// Clears the bits of the log that no other bitmap contains.
    fn clear_log(&self, _marks: &MutexGuard<'_, ()>, bits: Range<u64>) {
        let named = |bits: Range<u64>| {
            self.legs.iter().any(|leg| {
                leg.out_of_sync.any(bits.clone())
                    || leg.unflushed.iter().any(|map| map.any(bits.clone()))
            })
        };
        if !named(bits.clone()) {
            return self.local.clear(bits);
        }
        for bit in bits.filter(|bit| !named(*bit..bit + 1)) {
            self.local.clear(bit..bit + 1);
        }
    }

    /// Clears the marks of a run that was copied and that the peer has durably, except for the
    /// blocks in `kept`, in ascending order. The whole run stays marked if a block was marked again
    /// since the copy began. False, without a change, when the session has ended.
    pub(crate) fn copied(
        &self,
        leg: usize,
        session_id: u64,
        copy: CopyToken,
        kept: &[Range<u64>],
    ) -> bool {
        let state = self.lock();
        let current = state.legs[leg].is_current(session_id);
        if current {
            let own = &self.legs[leg];
            let marks = self.marks.lock();
            let mut cleared = Vec::new();
            own.out_of_sync.finish_copy(copy, kept, |run| cleared.push(run));
            for run in cleared {
                own.suspect.clear(run.clone());
                self.suspect.clear(run.clone());
                self.clear_log(&marks, run);
            }
        }
        current
    }

    /// Clears half of the unflushed bitmap after a peer's flush; false if the session ended.
    pub(crate) fn unflushed_is_durable(&self, leg: usize, session_id: u64, half: usize) -> bool {
        let state = self.lock();
        let current = state.legs[leg].is_current(session_id);
        if current {
            let unflushed = &self.legs[leg].unflushed[half];
            let mut from = 0;
            while let Some(run) = unflushed.next_run(from, 1 << 16) {
                from = run.end;
                let marks = self.marks.lock();
                unflushed.clear(run.clone());
                self.clear_log(&marks, run);
            }
        }
        current
    }
}

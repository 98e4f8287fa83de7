//! Out-of-sync bitmap: the blocks that a peer lacks, and the copies of them that are in progress.
//!
//! Invariant: a copy clears only blocks that were not marked again since it began. Marking a run
//! invalidates the tokens of all copies that overlap it, even where its bits were set before, and
//! only a valid token clears bits.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::intent_log::bitmap::Bitmap;

/// The blocks that a peer lacks.
#[derive(Debug)]
pub(crate) struct OutOfSync {
    bits: Bitmap,
    copies: Arc<Mutex<Copies>>,
}

/// Copies in progress: at most [`COPIES`](crate::limits::COPIES) and those not flushed yet.
#[derive(Debug, Default)]
struct Copies {
    next: u64,
    runs: Vec<CopyRun>,
}

#[derive(Debug)]
struct CopyRun {
    number: u64,
    run: Range<u64>,
    /// No bit of the run was marked since the copy began.
    is_current: bool,
}

impl Copies {
    fn invalidate(&mut self, bits: &Range<u64>) {
        let overlaps = |copy: &&mut CopyRun| copy.run.start < bits.end && bits.start < copy.run.end;
        self.runs.iter_mut().filter(overlaps).for_each(|copy| copy.is_current = false);
    }

    fn take(&mut self, number: u64) -> Option<CopyRun> {
        let index = self.runs.iter().position(|copy| copy.number == number)?;
        Some(self.runs.swap_remove(index))
    }
}

/// One copy of a run of blocks. If it is dropped, the run stays marked.
#[derive(Debug)]
#[must_use]
pub(crate) struct CopyToken {
    copies: Arc<Mutex<Copies>>,
    number: u64,
    run: Range<u64>,
}

impl CopyToken {
    /// The blocks to copy.
    pub(crate) fn run(&self) -> Range<u64> {
        self.run.clone()
    }
}

impl Drop for CopyToken {
    fn drop(&mut self) {
        self.copies.lock().take(self.number);
    }
}

impl OutOfSync {
    /// No block out of sync. `bit_bytes` is the number of bytes per bit.
    pub(crate) fn new(bits: u64, bit_bytes: u32) -> OutOfSync {
        OutOfSync { bits: Bitmap::new(bits, bit_bytes), copies: Arc::default() }
    }

    /// Marks blocks. Copies of them that are in progress no longer count.
    pub(crate) fn mark(&self, bits: Range<u64>) {
        let mut copies = self.copies.lock();
        copies.invalidate(&bits);
        self.bits.set(bits);
    }

    /// As [`OutOfSync::mark`], for the bits of word `index` that are set in `word`.
    pub(crate) fn merge(&self, index: u64, word: u64) {
        if word == 0 {
            return;
        }
        let first = index * 64;
        let mut copies = self.copies.lock();
        let from = first + u64::from(word.trailing_zeros());
        copies.invalidate(&(from..first + 64 - u64::from(word.leading_zeros())));
        self.bits.merge(index, word);
    }

    /// Clears all blocks: the peer has everything.
    pub(crate) fn clear_all(&self) {
        let mut copies = self.copies.lock();
        copies.invalidate(&self.bits.all());
        self.bits.clear(self.bits.all());
    }

    /// Begins a copy of the first marked run from `from` on, limited to `most` blocks.
    pub(crate) fn begin_copy(&self, from: u64, most: u64) -> Option<CopyToken> {
        let mut copies = self.copies.lock();
        let run = self.bits.next_run(from, most)?;
        let number = copies.next;
        copies.next += 1;
        copies.runs.push(CopyRun { number, run: run.clone(), is_current: true });
        Some(CopyToken { copies: self.copies.clone(), number, run })
    }

    /// Ends a copy: the peer has the run durably, except for the blocks in `kept`, which are in
    /// ascending order. Clears the other blocks and passes them to `cleared`, unless some block of
    /// the run was marked again; then the whole run stays marked.
    pub(crate) fn finish_copy(
        &self,
        token: CopyToken,
        kept: &[Range<u64>],
        mut cleared: impl FnMut(Range<u64>),
    ) -> bool {
        let mut copies = self.copies.lock();
        let copy = copies.take(token.number);
        let is_current = copy.is_some_and(|copy| copy.is_current);
        if is_current {
            let mut from = token.run.start;
            let end = token.run.end..token.run.end;
            for kept in kept.iter().chain([&end]) {
                if from < kept.start {
                    self.bits.clear(from..kept.start);
                    cleared(from..kept.start);
                }
                from = from.max(kept.end);
            }
        }
        drop(copies);
        is_current
    }

    /// The bits that a range of bytes overlaps.
    pub(crate) fn bits_of(&self, offset: u64, len: u64) -> Range<u64> {
        self.bits.bits_of(offset, len)
    }

    /// The first run of marked blocks from `from` on, limited to `most`.
    pub(crate) fn next_run(&self, from: u64, most: u64) -> Option<Range<u64>> {
        self.bits.next_run(from, most)
    }

    /// True when some block of the range is marked.
    pub(crate) fn any(&self, bits: Range<u64>) -> bool {
        self.bits.any(bits)
    }

    /// Number of marked blocks.
    pub(crate) fn count(&self) -> u64 {
        self.bits.count()
    }

    /// Bytes covered by the marked blocks. The last block of the volume counts in full.
    pub(crate) fn bytes(&self) -> u64 {
        self.bits.bytes()
    }

    /// The bits of word `index`.
    pub(crate) fn word(&self, index: u64) -> u64 {
        self.bits.word(index)
    }

    /// Number of words of the bitmap.
    pub(crate) fn words(&self) -> u64 {
        self.bits.words()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BITS: u64 = 150;

    #[derive(Clone, Debug)]
    enum Step {
        Mark(u64, u64),
        Merge(u64, u64),
        Begin(u64, u64),
        Finish(usize, Option<(u64, u64)>),
        Abandon(usize),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let bit = || 0..BITS;
        prop_oneof![
            (bit(), 1u64..40).prop_map(|(from, len)| Step::Mark(from, len)),
            (0u64..3, any::<u64>(), any::<u64>())
                .prop_map(|(index, a, b)| Step::Merge(index, a & b)),
            (bit(), 1u64..40).prop_map(|(from, most)| Step::Begin(from, most)),
            (any::<usize>(), prop::option::of((bit(), 1u64..5)))
                .prop_map(|(which, kept)| Step::Finish(which, kept)),
            any::<usize>().prop_map(Step::Abandon),
        ]
    }

    proptest! {
        /// After any sequence of marks, copies and abandoned copies, a block is clear only if a
        /// copy that began after its last mark has completed.
        #[test]
        fn copy_clears_only_blocks_not_marked_again(
            steps in prop::collection::vec(any_step(), 0..60),
        ) {
            let map = OutOfSync::new(BITS, 4096);
            // By block: the time of its last mark, and the latest start of a copy that cleared it.
            let mut marked: Vec<Option<u64>> = vec![None; BITS as usize];
            let mut copied: Vec<u64> = vec![0; BITS as usize];
            let mut copies: Vec<(u64, CopyToken)> = Vec::new();
            for (now, step) in (1u64..).zip(steps) {
                match step {
                    Step::Mark(from, len) => {
                        let run = from..(from + len).min(BITS);
                        map.mark(run.clone());
                        run.for_each(|bit| marked[bit as usize] = Some(now));
                    }
                    Step::Merge(index, word) => {
                        map.merge(index, word);
                        (0..64).filter(|bit| word >> bit & 1 == 1).map(|bit| index * 64 + bit)
                            .filter(|bit| *bit < BITS)
                            .for_each(|bit| marked[bit as usize] = Some(now));
                    }
                    Step::Begin(from, most) => {
                        if let Some(token) = map.begin_copy(from, most) {
                            prop_assert!(token.run().clone().all(|bit| map.any(bit..bit + 1)));
                            copies.push((now, token));
                        }
                    }
                    Step::Finish(which, kept) if !copies.is_empty() => {
                        let (began, token) = copies.swap_remove(which % copies.len());
                        let run = token.run();
                        let kept: Vec<_> = kept
                            .map(|(at, len)| {
                                let start = at.clamp(run.start, run.end);
                                start..(start + len).min(run.end)
                            })
                            .into_iter()
                            .collect();
                        map.finish_copy(token, &kept, |cleared| {
                            assert!(!kept.iter().any(|kept| kept.contains(&cleared.start)));
                            cleared.for_each(|bit| copied[bit as usize] = began);
                        });
                    }
                    Step::Abandon(which) if !copies.is_empty() => {
                        drop(copies.swap_remove(which % copies.len()));
                    }
                    Step::Finish(..) | Step::Abandon(_) => {}
                }
                for bit in 0..BITS {
                    let lacks = marked[bit as usize].is_some_and(|at| at > copied[bit as usize]);
                    prop_assert!(map.any(bit..bit + 1) || !lacks, "block {bit} is forgotten");
                }
            }
            drop(copies);
            // The map makes progress: without marks meanwhile, copies clear everything.
            while let Some(token) = map.begin_copy(0, 7) {
                let cleared = map.finish_copy(token, &[], |_| {});
                prop_assert!(cleared);
            }
            prop_assert_eq!(map.count(), 0);
        }
    }

    #[test]
    fn dropped_copy_leaves_its_run_marked() {
        let map = OutOfSync::new(BITS, 4096);
        map.mark(3..9);
        drop(map.begin_copy(0, 100));
        assert_eq!(map.next_run(0, 100), Some(3..9));
        let token = map.begin_copy(0, 100).expect("marked");
        assert!(map.finish_copy(token, &[4..5, 7..9], |_| {}));
        assert_eq!((map.next_run(0, 100), map.next_run(5, 100)), (Some(4..5), Some(7..9)));
    }
}

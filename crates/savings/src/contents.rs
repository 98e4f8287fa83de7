//! Contents seen: fingerprints with the runs that have them, in bounded memory.
//!
//! For a survey of everything, a content counts once, and beyond the bound only those whose
//! fingerprint ends with `k` zero bits are kept (adaptive sampling: Wegman; Flajolet 1990). Their
//! number times 2^k estimates the number of contents without regard to how often each occurs.
//!
//! For a sample, every occurrence is kept with its run, because the bounds need them; the size of
//! the sample bounds the memory.

/// Entries before a compaction: 128 MiB.
const ENTRIES_MAX: usize = 8 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    fingerprint: u64,
    run: u32,
}

/// Set of contents.
#[derive(Debug)]
pub struct Contents {
    seen: Vec<Seen>,
    /// Runs are distinguished.
    by_run: bool,
    /// Fingerprints are kept that end with this number of zero bits.
    skipped_bits: u32,
    entries_max: usize,
}

/// Number of distinct contents, with the standard deviation of the estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Distinct {
    pub(crate) contents: f64,
    pub(crate) deviation: f64,
}

/// Duplicates in a sample, for each run by its number in the sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Repeats {
    /// Contents of the run that no other run of the sample has.
    pub(crate) only_here: Vec<u32>,
    /// Number of contents that occur in several runs.
    pub(crate) in_several: u64,
    /// Blocks of the run whose content is in at least [`FREQUENT_RUNS`] runs.
    pub(crate) frequent: Vec<u32>,
    /// Other blocks: pairs of a block here and an equal block in another run.
    pub(crate) pairs_across: Vec<u64>,
    /// Other blocks: pairs inside the run, each counted twice.
    pub(crate) pairs_within: Vec<u64>,
}

/// Runs of a sample in which a content occurs to count as frequent.
const FREQUENT_RUNS: usize = 8;

impl Contents {
    /// For everything, or for a sample.
    pub fn new(sampled: bool) -> Contents {
        Contents { seen: Vec::new(), by_run: sampled, skipped_bits: 0, entries_max: ENTRIES_MAX }
    }

    pub(crate) fn add(&mut self, run: u32, fingerprints: &[u64]) {
        let run = if self.by_run { run } else { 0 };
        for &fingerprint in fingerprints {
            if self.is_kept(fingerprint) {
                self.seen.push(Seen { fingerprint, run });
            }
        }
        if !self.by_run && self.seen.len() > self.entries_max {
            self.compact();
        }
    }

    fn is_kept(&self, fingerprint: u64) -> bool {
        fingerprint.trailing_zeros() >= self.skipped_bits
    }

    /// Drops repetitions; then halves the fingerprints while more than half of the memory is used.
    fn compact(&mut self) {
        self.seen.sort_unstable();
        self.seen.dedup();
        while self.seen.len() > self.entries_max / 2 && self.skipped_bits < u64::BITS {
            self.skipped_bits += 1;
            let bits = self.skipped_bits;
            self.seen.retain(|seen| seen.fingerprint.trailing_zeros() >= bits);
        }
    }

    /// Distinct contents of everything that was added.
    pub(crate) fn distinct(&mut self) -> Distinct {
        self.seen.sort_unstable();
        let groups = self.seen.chunk_by(|a, b| a.fingerprint == b.fingerprint);
        let kept = groups.count() as f64;
        let scale = 2f64.powi(i32::try_from(self.skipped_bits).expect("64 bits at most"));
        Distinct { contents: kept * scale, deviation: (kept * scale * (scale - 1.0)).sqrt() }
    }

    /// Repetitions in a sample of `runs` runs.
    pub(crate) fn repeats(&mut self, runs: usize) -> Repeats {
        assert!(self.by_run, "only a sample keeps its runs");
        self.seen.sort_unstable();
        let mut out = Repeats {
            only_here: vec![0; runs],
            frequent: vec![0; runs],
            pairs_across: vec![0; runs],
            pairs_within: vec![0; runs],
            in_several: 0,
        };
        for content in self.seen.chunk_by(|a, b| a.fingerprint == b.fingerprint) {
            let holders = || content.chunk_by(|a, b| a.run == b.run);
            let held = holders().count();
            if held > 1 {
                out.in_several += 1;
            } else {
                out.only_here[content[0].run as usize] += 1;
            }
            for blocks in holders() {
                let (run, here) = (blocks[0].run as usize, blocks.len() as u64);
                if held >= FREQUENT_RUNS {
                    out.frequent[run] += u32::try_from(here).expect("a run is small");
                } else {
                    out.pairs_across[run] += here * (content.len() as u64 - here);
                    out.pairs_within[run] += here * (here - 1);
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixed(mut number: u64) -> u64 {
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    }

    #[test]
    fn distinct_contents_are_exact_within_memory() {
        let mut contents = Contents::new(false);
        for run in 0..100 {
            contents.add(run, &(0..64).map(|n| mixed(n + 1)).collect::<Vec<_>>());
        }
        assert_eq!(contents.distinct(), Distinct { contents: 64.0, deviation: 0.0 });
    }

    #[test]
    fn distinct_contents_beyond_memory_are_estimated() {
        let mut contents = Contents { entries_max: 4096, ..Contents::new(false) };
        // One content is half of all blocks, and must not disturb the estimate.
        for run in 0..4000_u32 {
            let own = (0..32).map(|n| mixed(u64::from(run) * 32 + n + 1));
            contents.add(run, &own.chain([mixed(u64::MAX); 32]).collect::<Vec<_>>());
            assert!(contents.seen.len() <= 4096 + 64, "memory is bounded");
        }
        let found = contents.distinct();
        let truth = 4000.0 * 32.0 + 1.0;
        assert!(found.deviation > 0.0);
        assert!((found.contents - truth).abs() < 4.0 * found.deviation, "{found:?}");
    }

    #[test]
    fn repeats_are_counted_by_run() {
        let mut contents = Contents::new(true);
        contents.add(0, &[1, 1, 2, 3]);
        contents.add(1, &[2, 4]);
        let found = contents.repeats(2);
        assert_eq!(found.only_here, [2, 1]);
        assert_eq!(found.in_several, 1);
        assert_eq!(found.pairs_across, [1, 1]);
        assert_eq!(found.pairs_within, [2, 0]);
        assert_eq!(found.frequent, [0, 0]);
    }

    #[test]
    fn content_in_many_runs_is_frequent() {
        let mut contents = Contents::new(true);
        for run in 0..8 {
            contents.add(run, &[7, 7, 100 + u64::from(run)]);
        }
        let found = contents.repeats(8);
        assert_eq!(found.frequent, [2; 8]);
        assert_eq!(found.pairs_across, [0; 8]);
        assert_eq!(found.only_here, [1; 8]);
    }
}

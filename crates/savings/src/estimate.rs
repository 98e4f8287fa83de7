//! Estimates from runs: shares of the data with confidence intervals.
//!
//! A run is a cluster of blocks, and all figures of a run are correlated, so the variance comes
//! from the differences between runs (ratio estimator of cluster sampling, Cochran 1977, chapter
//! 9A) with the finite population correction. Two pseudo-runs that save nothing and two that save
//! everything widen the interval (Agresti and Coull 1998): a sample of equal runs is not a proof
//! that all runs are equal.
//!
//! Duplicates of a sample cannot be extrapolated without assumptions (Charikar et al. 2000), so
//! they have bounds:
//! - at least: with contents of one sampled run scaled to all runs, and contents of several runs
//!   counted once, the number of contents is overestimated on average (their upper bound);
//! - at most: contents in many sampled runs count as duplicates in full. Equal pairs among the
//!   others give the mean number of copies `m` of a block, and at least `1 / m` of these blocks
//!   have a content of their own (Jensen). Three unseen pairs of equal runs are added, the 95 %
//!   bound for events that were not seen.

use serde::Serialize;

use crate::contents::{Contents, Repeats};
use crate::measure::RunFacts;
use crate::report::Bounds;
use crate::sample::Selection;
use crate::{BLOCK_BYTES, RUN_BYTES};

/// Standard deviations of a two-sided 95 % interval.
const Z: f64 = 1.959_964;
/// Pseudo-runs at each end.
const PSEUDO_RUNS: f64 = 2.0;
/// Upper 95 % bound of a count of which none was seen.
const UNSEEN: f64 = 3.0;

/// A share of the data, 0 to 1, with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SavedShare {
    pub estimate: f64,
    pub low: f64,
    pub high: f64,
}

/// Blocks of one run, without its fingerprints.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    blocks: u32,
    zeroes: u32,
    lz4: u32,
    zstd: u32,
}

/// Sums of a survey.
#[derive(Debug)]
pub struct Tally {
    selection: Selection,
    /// Of each run of a sample; empty for everything.
    runs: Vec<Counts>,
    blocks: u64,
    zeroes: u64,
    lz4: u64,
    zstd: u64,
    contents: Contents,
}

impl Tally {
    pub fn new(selection: Selection) -> Tally {
        let contents = Contents::new(!selection.is_everything());
        Tally { selection, runs: Vec::new(), blocks: 0, zeroes: 0, lz4: 0, zstd: 0, contents }
    }

    pub fn add(&mut self, run: &RunFacts) {
        self.blocks += u64::from(run.blocks);
        self.zeroes += u64::from(run.zeroes);
        self.lz4 += u64::from(run.lz4);
        self.zstd += u64::from(run.zstd);
        let number = u32::try_from(self.runs.len()).expect("a sample is bounded");
        self.contents.add(number, &run.fingerprints);
        if !self.selection.is_everything() {
            let RunFacts { blocks, zeroes, lz4, zstd, .. } = *run;
            self.runs.push(Counts { blocks, zeroes, lz4, zstd });
        }
    }

    /// Blocks that were read.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Share of zero blocks.
    pub fn zeroes(&self) -> SavedShare {
        self.share(self.zeroes, |run| run.zeroes)
    }

    /// Share that is saved by compression with lz4 and by zeroes.
    pub fn lz4(&self) -> SavedShare {
        let saved = self.blocks - self.lz4;
        self.share(saved, |run| run.blocks - run.lz4)
    }

    /// As [`Tally::lz4`], with zstd.
    pub fn zstd(&self) -> SavedShare {
        let saved = self.blocks - self.zstd;
        self.share(saved, |run| run.blocks - run.zstd)
    }

    fn share(&self, saved: u64, of: impl Fn(&Counts) -> u32) -> SavedShare {
        if self.selection.is_everything() {
            return SavedShare::exact(ratio(saved as f64, self.blocks as f64));
        }
        let runs = self.runs.iter().map(|run| (f64::from(of(run)), f64::from(run.blocks)));
        SavedShare::of(runs.collect::<Vec<_>>().as_slice(), self.selection.share())
    }

    /// Share that is saved by deduplication and by zeroes: bounds of the 95 % intervals.
    pub fn duplicates(&mut self) -> Bounds {
        let not_zero = (self.blocks - self.zeroes) as f64;
        if self.selection.is_everything() {
            let distinct = self.contents.distinct();
            let saved = |contents: f64| {
                ratio(self.blocks as f64 - contents.clamp(0.0, not_zero), self.blocks as f64)
            };
            let (middle, margin) = (distinct.contents, Z * distinct.deviation);
            return Bounds {
                estimate: Some(saved(middle)),
                low: saved(middle + margin),
                high: saved(middle - margin),
            };
        }
        let repeats = self.contents.repeats(self.runs.len());
        let (low, high) = (self.at_least(&repeats), self.at_most(&repeats));
        Bounds { estimate: None, low: low.min(high), high: high.max(low) }
    }

    fn at_least(&self, repeats: &Repeats) -> f64 {
        let runs =
            self.runs.iter().zip(&repeats.only_here).map(|(run, only)| {
                (f64::from(run.blocks) - f64::from(*only), f64::from(run.blocks))
            });
        let share = SavedShare::of(&runs.collect::<Vec<_>>(), self.selection.share());
        let total = self.blocks as f64 / self.selection.share();
        let once = ratio(repeats.in_several as f64, total);
        (share.low - once).max(self.zeroes().low).min(1.0)
    }

    fn at_most(&self, repeats: &Repeats) -> f64 {
        let chosen = self.selection.share();
        let (count, run_blocks) = (self.runs.len() as f64, RUN_BYTES as f64 / BLOCK_BYTES as f64);
        // Zeroes and frequent contents are saved in full.
        let sure = self.runs.iter().zip(&repeats.frequent).map(|(run, frequent)| {
            (f64::from(run.zeroes) + f64::from(*frequent), f64::from(run.blocks))
        });
        let sure = SavedShare::of(&sure.collect::<Vec<_>>(), chosen).high;
        let others: f64 = self.runs.iter().zip(&repeats.frequent).fold(0.0, |sum, (run, often)| {
            sum + f64::from(run.blocks - run.zeroes) - f64::from(*often)
        });
        if others <= 0.0 {
            return sure;
        }
        // Copies of a block in the rest of the source, by run.
        let runs = repeats.pairs_across.iter().zip(&repeats.pairs_within);
        let copies = |doubled: f64| {
            runs.clone()
                .map(|(across, within)| doubled * *across as f64 / chosen + *within as f64)
                .collect::<Vec<f64>>()
        };
        let mean = copies(1.0).iter().sum::<f64>() / count;
        // The first-order projection of a statistic of pairs has twice the deviation.
        let deviation = standard_error(&copies(2.0));
        let unseen = 2.0 * UNSEEN * run_blocks * (1.0 - chosen) / (chosen * count);
        let more = (mean + Z * deviation + unseen / chosen) / (others / count);
        (sure + (1.0 - sure) * (1.0 - 1.0 / (1.0 + more))).min(1.0)
    }
}

impl SavedShare {
    fn exact(estimate: f64) -> SavedShare {
        SavedShare { estimate, low: estimate, high: estimate }
    }

    /// From runs of `(saved, blocks)`, of which the share `chosen` of all runs was sampled.
    fn of(runs: &[(f64, f64)], chosen: f64) -> SavedShare {
        let (saved, blocks) =
            runs.iter().fold((0.0, 0.0), |sum, run| (sum.0 + run.0, sum.1 + run.1));
        if blocks == 0.0 {
            return SavedShare { estimate: 0.0, low: 0.0, high: 1.0 };
        }
        let (estimate, count) = (saved / blocks, runs.len() as f64);
        let mean = blocks / count;
        let wide = count + 2.0 * PSEUDO_RUNS;
        let middle = (saved + PSEUDO_RUNS * mean) / (wide * mean);
        let square = |run: &(f64, f64)| (run.0 - middle * run.1).powi(2);
        let pseudo = [(0.0, mean), (mean, mean)].iter().map(square).sum::<f64>() * PSEUDO_RUNS;
        let squares = runs.iter().map(square).sum::<f64>() + pseudo;
        let unread = (1.0 - chosen).max(0.0).sqrt();
        let margin = Z * unread * (squares / (wide - 1.0) / wide).sqrt() / mean;
        let shifted = estimate + (middle - estimate) * unread;
        // The blocks that were read are certain.
        let (least, most) = (estimate * chosen, estimate * chosen + 1.0 - chosen);
        SavedShare {
            estimate,
            low: (shifted - margin).min(estimate).clamp(least, most),
            high: (shifted + margin).max(estimate).clamp(least, most),
        }
    }
}

fn ratio(part: f64, all: f64) -> f64 {
    if all == 0.0 { 0.0 } else { part / all }
}

fn standard_error(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    if count < 2.0 {
        return 0.0;
    }
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (count - 1.0) / count).sqrt()
}

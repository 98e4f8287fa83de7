//! Selection of runs: all, or one at random from each of equal strata.

use flagstone_runtime::rng::split_mix64_at;

use crate::{RUN_BYTES, SAMPLE_BYTES_MAX};

/// Fewest runs of a sample: below, everything is read.
const RUNS_MIN: u64 = 64;

/// Requested size of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SampleSize {
    All,
    Bytes(u64),
    /// Above 0, up to 100.
    Percent(f64),
}

/// A sample that cannot be kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a sample is at most {} GiB: write less, or --sample all", SAMPLE_BYTES_MAX >> 30)]
pub struct SampleError;

/// Chosen runs of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Runs of the source; the last one may be short.
    pub population: u64,
    /// Chosen runs, as many as strata.
    pub runs: u64,
    pub seed: u64,
}

impl Selection {
    /// The selection for a source of `size_bytes`.
    ///
    /// # Errors
    /// [`SampleError`] for a sample of more than [`SAMPLE_BYTES_MAX`] that is not everything.
    pub fn of(size_bytes: u64, size: SampleSize, seed: u64) -> Result<Selection, SampleError> {
        let population = size_bytes.div_ceil(RUN_BYTES);
        let wanted = match size {
            SampleSize::All => population,
            SampleSize::Bytes(bytes) => bytes.div_ceil(RUN_BYTES),
            SampleSize::Percent(percent) => (population as f64 * percent / 100.0).ceil() as u64,
        };
        let runs = wanted.max(RUNS_MIN).min(population);
        if runs < population && runs * RUN_BYTES > SAMPLE_BYTES_MAX {
            return Err(SampleError);
        }
        Ok(Selection { population, runs, seed })
    }

    pub fn is_everything(&self) -> bool {
        self.runs == self.population
    }

    /// Share of the runs that was chosen.
    pub fn share(&self) -> f64 {
        self.runs as f64 / self.population as f64
    }

    /// The chosen run of a stratum, below [`Selection::runs`].
    pub fn run(&self, stratum: u64) -> u64 {
        let edge = |stratum: u64| {
            let at = u128::from(stratum) * u128::from(self.population) / u128::from(self.runs);
            u64::try_from(at).expect("at most the population")
        };
        let (from, to) = (edge(stratum), edge(stratum + 1));
        from + split_mix64_at(self.seed, stratum) % (to - from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_survey_reads_each_run_once() {
        let all = Selection::of(1000 * RUN_BYTES + 1, SampleSize::All, 3).unwrap();
        assert!(all.is_everything());
        assert!((0..1001).all(|at| all.run(at) == at));
        let small = Selection::of(4096, SampleSize::Percent(1.0), 3).unwrap();
        assert_eq!((small.runs, small.run(0)), (1, 0));
    }

    #[test]
    fn sample_has_one_run_of_each_stratum() {
        let some = Selection::of(1003 * RUN_BYTES, SampleSize::Percent(10.0), 3).unwrap();
        assert_eq!(some.runs, 101);
        let runs: Vec<u64> = (0..101).map(|at| some.run(at)).collect();
        assert!(runs.is_sorted() && runs.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(runs[100] < 1003);
        let other = Selection { seed: 4, ..some };
        assert_ne!(runs, (0..101).map(|at| other.run(at)).collect::<Vec<_>>());
    }

    #[test]
    fn sample_beyond_memory_is_refused() {
        let size = SampleSize::Bytes(SAMPLE_BYTES_MAX + RUN_BYTES);
        assert_eq!(Selection::of(1 << 50, size, 0), Err(SampleError));
        assert!(Selection::of(1 << 50, SampleSize::All, 0).is_ok());
    }
}

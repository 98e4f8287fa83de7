//! Survey of existing data: what a volume would save with zeroes left out, compression and
//! deduplication, from all of its data or from a sample of runs.
//!
//! Invariants:
//! - nothing is ever written to the source;
//! - memory is bounded: [`IN_FLIGHT`] runs of [`RUN_BYTES`], and fingerprints and counts up to the
//!   bounds of [`Contents`];
//! - a survey of everything is exact, except that the number of distinct blocks becomes an estimate
//!   with an interval beyond the bound of [`Contents`].
//!
//! A range that cannot be read is counted, reported and left out of every share.

#![allow(missing_docs, reason = "the names say it; units and ranges are documented")]

mod contents;
mod estimate;
mod measure;
mod report;
mod sample;
mod source;
mod survey;

pub use contents::Contents;
pub use estimate::{SavedShare, Tally};
pub use measure::{RunFacts, measure};
pub use report::{Bounds, DuplicateReport, Method, SurveyReport, Unreadable};
pub use sample::{SampleError, SampleSize, Selection};
pub use source::{FileSource, Source};
pub use survey::{SurveyProgress, survey};

/// Block of deduplication, and of space in a pool, in bytes.
pub const BLOCK_BYTES: usize = 4096;
/// Unit of compression in a pool, in bytes.
pub const UNIT_BYTES: usize = 8 * BLOCK_BYTES;
/// Unit of sampling, read with one I/O, in bytes.
pub const RUN_BYTES: u64 = 256 << 10;
/// Runs that are read and measured at a time.
pub const IN_FLIGHT: usize = 8;
/// Largest sample, in bytes: every block of it has its fingerprint in memory.
pub const SAMPLE_BYTES_MAX: u64 = 16 << 30;

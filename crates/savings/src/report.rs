//! Result of a survey.

use serde::Serialize;

use crate::estimate::SavedShare;

/// How the figures came about.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Method {
    /// Everything was read.
    pub everything: bool,
    pub run_bytes: u64,
    /// Runs read, and runs of the source.
    pub runs: u64,
    pub runs_total: u64,
    pub seed: u64,
    pub compression_unit_bytes: u64,
    pub dedup_block_bytes: u64,
    pub confidence_percent: u32,
}

/// Bounds of a share of the data, 0 to 1; an estimate only where there is an unbiased one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bounds {
    pub estimate: Option<f64>,
    pub low: f64,
    pub high: f64,
}

/// Deduplication of whole blocks.
pub type DuplicateReport = Bounds;

/// A range that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unreadable {
    pub offset_bytes: u64,
    pub bytes: u64,
    pub error: String,
}

/// Savings of a source, as shares of its size. Each includes zeroes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SurveyReport {
    pub size_bytes: u64,
    pub read_bytes: u64,
    pub method: Method,
    pub zeroes: SavedShare,
    pub lz4: SavedShare,
    pub zstd: SavedShare,
    pub dedup: DuplicateReport,
    /// Deduplication, then zstd, if duplicates compress as well as other blocks.
    pub dedup_and_zstd: Bounds,
    pub unreadable_bytes: u64,
    /// The first ones.
    pub unreadable: Vec<Unreadable>,
}

impl SurveyReport {
    /// Saving of deduplication and zstd together. Without zeroes, the blocks that remain after
    /// deduplication compress by the ratio of all blocks.
    pub(crate) fn together(zeroes: SavedShare, zstd: SavedShare, dedup: Bounds) -> Bounds {
        let both = |zeroes: f64, zstd: f64, dedup: f64| {
            let data = 1.0 - zeroes;
            if data <= 0.0 {
                return 1.0;
            }
            1.0 - (1.0 - zstd).clamp(0.0, data) * (1.0 - dedup).clamp(0.0, data) / data
        };
        Bounds {
            estimate: dedup.estimate.map(|dedup| both(zeroes.estimate, zstd.estimate, dedup)),
            low: both(zeroes.low, zstd.low, dedup.low),
            high: both(zeroes.high, zstd.high, dedup.high),
        }
    }
}

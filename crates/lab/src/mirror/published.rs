//! Published figures of experiment A.
//!
//! The report's MB/s are MiB/s: 24 requests of 64 KiB in flight at 6.248 ms are 240.07 MiB/s, and
//! the other rows agree.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PublishedFigures {
    pub mib_per_s: f64,
    pub latency_ms: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PublishedRow {
    pub size: &'static str,
    pub block_bytes: u64,
    pub mirror: PublishedFigures,
    pub plain: PublishedFigures,
}

/// Writes in flight: 8 threads with 3 each.
pub const IN_FLIGHT: u32 = 24;

pub const ROWS: [PublishedRow; 3] = [
    PublishedRow {
        size: "64K",
        block_bytes: 64 << 10,
        mirror: PublishedFigures { mib_per_s: 240.01, latency_ms: 6.247 },
        plain: PublishedFigures { mib_per_s: 240.02, latency_ms: 6.248 },
    },
    PublishedRow {
        size: "8K",
        block_bytes: 8 << 10,
        mirror: PublishedFigures { mib_per_s: 58.87, latency_ms: 3.183 },
        plain: PublishedFigures { mib_per_s: 96.80, latency_ms: 1.935 },
    },
    PublishedRow {
        size: "4K",
        block_bytes: 4 << 10,
        mirror: PublishedFigures { mib_per_s: 29.34, latency_ms: 3.194 },
        plain: PublishedFigures { mib_per_s: 37.54, latency_ms: 2.495 },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// SIOS relates the overhead of latency to the mirror's latency, this project to the
    /// baseline's.
    #[test]
    fn published_overheads_follow_from_the_figures() {
        let overheads = [(0.00, -0.02), (39.18, 39.21), (21.84, 21.88)];
        for (row, (throughput, latency)) in ROWS.iter().zip(overheads) {
            let (mirror, plain) = (row.mirror, row.plain);
            let found = 100.0 * (plain.mib_per_s - mirror.mib_per_s) / plain.mib_per_s;
            assert!((found - throughput).abs() < 0.011, "{}: {found}", row.size);
            let found = 100.0 * (mirror.latency_ms - plain.latency_ms) / mirror.latency_ms;
            assert!((found - latency).abs() < 0.011, "{}: {found}", row.size);
        }
    }

    /// Little's law gives the unit of the published MB/s.
    #[test]
    fn published_megabytes_are_mebibytes() {
        for row in &ROWS {
            for side in [row.mirror, row.plain] {
                let bytes_per_s =
                    f64::from(IN_FLIGHT) * row.block_bytes as f64 / (side.latency_ms / 1e3);
                let ratio = side.mib_per_s * f64::from(1 << 20) / bytes_per_s;
                assert!((ratio - 1.0).abs() < 0.002, "{}: {ratio}", row.size);
            }
        }
    }
}

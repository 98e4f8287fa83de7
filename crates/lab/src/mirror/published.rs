//! What was published of experiment A, as numbers.
//!
//! The report's MB/s are 2^20 bytes: 24 requests of 64 KiB in flight over 6.248 ms are 240.07 MiB/s,
//! and so are the other rows. Here they are called what they are.

use serde::Serialize;

/// One side of a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// 2^20 bytes a second.
    pub mib_per_s: f64,
    /// Average latency, in ms.
    pub latency_ms: f64,
}

/// A row of the published table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// As the table calls it.
    pub size: &'static str,
    /// Bytes of one write.
    pub block_bytes: u64,
    /// Of the synchronous mirror.
    pub mirror: Figures,
    /// Of no mirror.
    pub plain: Figures,
}

/// Writes in flight: 8 threads of 3.
pub const IN_FLIGHT: u32 = 24;

/// The table.
pub const ROWS: [Row; 3] = [
    Row {
        size: "64K",
        block_bytes: 64 << 10,
        mirror: Figures { mib_per_s: 240.01, latency_ms: 6.247 },
        plain: Figures { mib_per_s: 240.02, latency_ms: 6.248 },
    },
    Row {
        size: "8K",
        block_bytes: 8 << 10,
        mirror: Figures { mib_per_s: 58.87, latency_ms: 3.183 },
        plain: Figures { mib_per_s: 96.80, latency_ms: 1.935 },
    },
    Row {
        size: "4K",
        block_bytes: 4 << 10,
        mirror: Figures { mib_per_s: 29.34, latency_ms: 3.194 },
        plain: Figures { mib_per_s: 37.54, latency_ms: 2.495 },
    },
];

/// The share of the throughput that a mirror loses, in %.
pub fn throughput_overhead(mirror: f64, plain: f64) -> f64 {
    100.0 * (plain - mirror) / plain
}

/// The share of the mirror's latency that is more than without it, in %, as the report has it.
pub fn latency_overhead(mirror: f64, plain: f64) -> f64 {
    100.0 * (mirror - plain) / mirror
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_overheads_follow_from_the_figures() {
        let overheads = [(0.00, -0.02), (39.18, 39.21), (21.84, 21.88)];
        for (row, (throughput, latency)) in ROWS.iter().zip(overheads) {
            let found = throughput_overhead(row.mirror.mib_per_s, row.plain.mib_per_s);
            assert!((found - throughput).abs() < 0.011, "{}: {found}", row.size);
            let found = latency_overhead(row.mirror.latency_ms, row.plain.latency_ms);
            assert!((found - latency).abs() < 0.011, "{}: {found}", row.size);
        }
    }

    /// The unit of the published MB/s, by Little's law.
    #[test]
    fn the_published_megabytes_are_of_two_to_the_twentieth() {
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

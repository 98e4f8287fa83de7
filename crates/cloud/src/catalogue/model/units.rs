//! Units of a catalogue.

use serde::{Deserialize, Serialize};

/// Units of a catalogue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Units {
    /// Unit of sizes: `GB` or `GiB`.
    pub size: SizeUnit,
    /// Bytes of one such unit.
    pub size_bytes: u64,
    /// Unit of throughput: `MB/s` or `MiB/s`.
    pub throughput: ThroughputUnit,
    /// Unit of blocks: `KB` or `KiB`.
    pub block: BlockUnit,
    /// Bytes of one such unit.
    pub block_bytes: u64,
    /// Block units in one unit of throughput: 1,000 or 1,024.
    pub blocks_per_throughput: u64,
    /// Reason for these units.
    pub note: Option<String>,
}

impl Units {
    /// Converts a size from bytes to the catalogue's unit.
    pub fn size_of(&self, bytes: u64) -> f64 {
        bytes as f64 / self.size_bytes as f64
    }

    /// Bytes of one unit of throughput.
    pub fn throughput_bytes(&self) -> u64 {
        self.block_bytes * self.blocks_per_throughput
    }

    /// Converts a block size from bytes to the catalogue's unit.
    pub fn block_of(&self, bytes: u64) -> f64 {
        bytes as f64 / self.block_bytes as f64
    }
}

/// Unit of sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SizeUnit {
    /// As printed by the page; 10^9 bytes if `size_bytes` says so.
    #[serde(rename = "GB")]
    Gb,
    /// 2^30 bytes.
    #[serde(rename = "GiB")]
    Gib,
}

impl SizeUnit {
    /// Printed form.
    pub fn name(self) -> &'static str {
        match self {
            SizeUnit::Gb => "GB",
            SizeUnit::Gib => "GiB",
        }
    }
}

/// Unit of throughput.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ThroughputUnit {
    /// As printed by the page.
    #[serde(rename = "MB/s")]
    Mb,
    /// 2^20 bytes per second.
    #[serde(rename = "MiB/s")]
    Mib,
}

impl ThroughputUnit {
    /// Printed form.
    pub fn name(self) -> &'static str {
        match self {
            ThroughputUnit::Mb => "MB/s",
            ThroughputUnit::Mib => "MiB/s",
        }
    }
}

/// Unit of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockUnit {
    /// As printed by the page.
    #[serde(rename = "KB")]
    Kb,
    /// 2^10 bytes.
    #[serde(rename = "KiB")]
    Kib,
}

impl BlockUnit {
    /// Printed form.
    pub fn name(self) -> &'static str {
        match self {
            BlockUnit::Kb => "KB",
            BlockUnit::Kib => "KiB",
        }
    }
}

//! Units of a catalog.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Units {
    /// `GB` or `GiB`.
    pub size: SizeUnit,
    pub size_bytes: u64,
    /// `MB/s` or `MiB/s`.
    pub throughput: ThroughputUnit,
    /// `KB` or `KiB`.
    pub block: BlockUnit,
    pub block_bytes: u64,
    /// Block units in one unit of throughput: 1,000 or 1,024.
    pub blocks_per_throughput: u64,
    pub note: Option<String>,
}

impl Units {
    /// Converts a size from bytes to the catalog's unit.
    pub fn size_of(&self, bytes: u64) -> f64 {
        bytes as f64 / self.size_bytes as f64
    }

    /// Bytes of one unit of throughput.
    pub fn throughput_bytes(&self) -> u64 {
        self.block_bytes * self.blocks_per_throughput
    }

    /// Converts a block size from bytes to the catalog's unit.
    pub(crate) fn block_of(&self, bytes: u64) -> f64 {
        bytes as f64 / self.block_bytes as f64
    }
}

macro_rules! unit {
    ($name:ident: $decimal:ident = $in_1000s:literal, $binary:ident = $in_1024s:literal) => {
        /// A unit as printed by the page, or of a power of 1,024.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            #[doc = $in_1000s]
            #[serde(rename = $in_1000s)]
            $decimal,
            #[doc = $in_1024s]
            #[serde(rename = $in_1024s)]
            $binary,
        }

        impl $name {
            /// Name as the page prints it.
            pub fn name(self) -> &'static str {
                match self {
                    $name::$decimal => $in_1000s,
                    $name::$binary => $in_1024s,
                }
            }
        }
    };
}

impl ThroughputUnit {
    /// Bytes a second of one such unit, as people know it.
    pub fn bytes(self) -> f64 {
        match self {
            ThroughputUnit::Mb => 1e6,
            ThroughputUnit::Mib => 1_048_576.0,
        }
    }
}

unit!(SizeUnit: Gb = "GB", Gib = "GiB");
unit!(ThroughputUnit: Mb = "MB/s", Mib = "MiB/s");
unit!(BlockUnit: Kb = "KB", Kib = "KiB");

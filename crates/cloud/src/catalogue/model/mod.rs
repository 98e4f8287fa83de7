//! What a catalogue holds, field by field as it is written; `docs/catalogue.md` describes it.
//!
//! Sizes and throughput are in the catalogue's own units ([`Units`]): a field `x_gb` is written
//! `x_gib` where the units say GiB, and `_mb_per_s` is written `_mib_per_s` where they say MiB/s.
//! What no source gives is `None`: not known, which is different from 0 and from unlimited.

mod disk;
mod machine;
mod page;
mod remarks;
mod rules;
mod source;
mod units;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use disk::*;
pub use machine::*;
pub use page::*;
pub use remarks::*;
pub use rules::*;
pub use source::*;
pub use units::*;

/// A catalogue: what one cloud's disks do, as its sources say at one date.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// Version of the format, 1.
    pub format: u32,
    /// Short name, such as `gcp-2019`.
    pub name: String,
    /// For people.
    pub title: String,
    /// What it is of, as far as it is known.
    pub date: String,
    /// What it rests on, in a sentence.
    pub about: String,
    /// The least that its main tables are trusted.
    pub confidence: Confidence,
    /// The machine that is taken where none is named.
    pub machine_default: Option<String>,
    /// What the units mean.
    pub units: Units,
    /// What is known to be missing, in words.
    #[serde(default)]
    pub not_known: Vec<String>,
    /// Where numbers come from, by key.
    #[serde(rename = "source")]
    pub sources: BTreeMap<String, Source>,
    /// Types of disk, by name.
    #[serde(rename = "type")]
    pub types: BTreeMap<String, DiskType>,
    /// Families of machines, by name.
    #[serde(rename = "family")]
    pub families: BTreeMap<String, Family>,
    /// Limits of machines.
    #[serde(default)]
    pub per_vm: Vec<VmTable>,
    /// Limits of local SSDs by number.
    #[serde(default)]
    pub per_count: Vec<CountTable>,
    /// How egress bounds writes.
    pub egress: Option<Egress>,
    /// What vCPUs can drive.
    pub cpu: Option<Cpu>,
    /// Prices.
    #[serde(default, rename = "price")]
    pub prices: Vec<Price>,
    /// Where the sources contradict themselves.
    #[serde(default, rename = "inconsistency")]
    pub inconsistencies: Vec<Inconsistency>,
    /// Tables of the page.
    #[serde(default, rename = "page_table")]
    pub page_tables: Vec<PageTable>,
    /// Figures to compare with.
    #[serde(default, rename = "observation")]
    pub observations: Vec<Observation>,
}

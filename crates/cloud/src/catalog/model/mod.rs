//! Fields of a catalog in their written form, which `docs/catalog.md` describes.
//!
//! Sizes and throughput are in the catalog's own units ([`Units`]): a field `x_gb` is written
//! `x_gib` if the units are GiB, and `_mb_per_s` is written `_mib_per_s` for MiB/s. `None` means
//! that no source gives the value, which differs from 0 and from unlimited.

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
pub(crate) use page::*;
pub use remarks::*;
pub use rules::*;
pub use source::*;
pub use units::*;

/// A catalog: limits and prices of one cloud's disks, from its sources at one date.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalog {
    /// Version of the format, 1.
    pub format: u32,
    /// Such as `gcp-2019`.
    pub name: String,
    pub title: String,
    /// Of its contents, if known.
    pub date: String,
    /// Basis of the catalog, in one sentence.
    pub about: String,
    /// Lowest confidence of its main tables.
    pub confidence: Confidence,
    pub machine_default: Option<String>,
    pub units: Units,
    /// Known gaps, in words.
    #[serde(default)]
    pub not_known: Vec<String>,
    /// Sources by key.
    #[serde(rename = "source")]
    pub sources: BTreeMap<String, CatalogSource>,
    #[serde(rename = "type")]
    pub types: BTreeMap<String, DiskType>,
    #[serde(rename = "family")]
    pub families: BTreeMap<String, MachineFamily>,
    /// Limits of machines.
    #[serde(default)]
    pub per_vm: Vec<VmTable>,
    /// Limits of local SSDs by their number.
    #[serde(default)]
    pub(crate) per_count: Vec<CountTable>,
    pub egress: Option<Egress>,
    pub cpu: Option<Cpu>,
    #[serde(default, rename = "price")]
    pub prices: Vec<Price>,
    /// Contradictions within and between the sources.
    #[serde(default, rename = "inconsistency")]
    pub inconsistencies: Vec<Inconsistency>,
    /// Layouts of page tables.
    #[serde(default, rename = "page_table")]
    pub(crate) page_tables: Vec<PageTable>,
    #[serde(default, rename = "observation")]
    pub observations: Vec<Observation>,
}

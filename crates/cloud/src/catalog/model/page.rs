//! Layouts of the tables of provider pages.

use serde::{Deserialize, Serialize};

use crate::catalog::select::CountRange;

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TableKind {
    #[default]
    Overview,
    Volume,
    Vm,
    Simultaneous,
    Egress,
    Hdd,
    Price,
    Count,
}

/// Layout of a page's table, from which the table is regenerated. The model computes the numbers;
/// the layout has the page's choice of rows and its rounding.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PageTable {
    pub table: TableKind,
    pub title: String,
    /// Disk type, for tables about one type.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Disk types in the page's order, for tables about several; sorted by name if empty.
    #[serde(default)]
    pub types: Vec<String>,
    /// Machine family, for tables about machines.
    pub family: Option<String>,
    #[serde(default, alias = "sizes_gib")]
    pub(crate) sizes_gb: Vec<f64>,
    /// Sizes of rows that print a mark instead of numbers.
    #[serde(default, alias = "sizes_gib_marked")]
    pub(crate) sizes_gb_marked: Vec<f64>,
    #[serde(default)]
    pub vcpus: Vec<CountRange>,
    /// Largest blocks of the IOPS columns; one column for small blocks if empty.
    #[serde(default, alias = "read_blocks_kib")]
    pub(crate) read_blocks_kb: Vec<f64>,
    #[serde(default, alias = "write_blocks_kib")]
    pub(crate) write_blocks_kb: Vec<f64>,
    /// An egress table shows the effect on each disk type.
    #[serde(default)]
    pub(crate) by_type: bool,
    /// Machine whose maxima the rows of a simultaneous table share.
    pub machine: Option<String>,
    /// IOPS from 10,000 round down to a multiple of this.
    pub(crate) iops_step_from_10000: Option<f64>,
    /// Throughput below this keeps its decimals; larger values round down to whole numbers.
    #[serde(alias = "decimals_below_mib_per_s")]
    pub(crate) decimals_below_mb_per_s: Option<f64>,
    #[serde(default)]
    pub footnotes: Vec<String>,
    /// Cells that deviate from the page's own rules.
    #[serde(default)]
    pub(crate) exceptions: Vec<Exception>,
    /// Of the hard disk to match, as `hdd_mb_per_s`.
    pub(crate) hdd_iops: Option<f64>,
    #[serde(alias = "hdd_mib_per_s")]
    pub(crate) hdd_mb_per_s: Option<f64>,
}

/// A cell that deviates from the page's own rules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Exception {
    pub row: String,
    pub column: String,
    pub printed: String,
    /// Inconsistency that describes the cell.
    pub id: String,
}

//! How pages lay out their tables.

use serde::{Deserialize, Serialize};

use crate::catalogue::select::Range;

/// A table of `plan table`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TableKind {
    /// Rates and maxima of each type.
    Overview,
    /// Limits by size.
    Volume,
    /// Limits by machine.
    Vm,
    /// Reads and writes at the same time.
    Simultaneous,
    /// Egress and write throughput.
    Egress,
    /// Sizes that match a hard disk.
    Hdd,
    /// Prices.
    Price,
    /// Local SSDs by number.
    Count,
}

/// How a page lays out one of its tables, so that it can be regenerated. The numbers in it are
/// computed; here are the rows that the page chose and how it prints them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageTable {
    /// Which table.
    pub table: TableKind,
    /// Its title on the page.
    pub title: String,
    /// The type of disk it is about, of tables about one.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The types in the order of the page, of tables about several; by their names if empty.
    #[serde(default)]
    pub types: Vec<String>,
    /// The machines, of tables about machines: a family.
    pub family: Option<String>,
    /// Sizes of its rows.
    #[serde(default, alias = "sizes_gib")]
    pub sizes_gb: Vec<f64>,
    /// Sizes for which the page prints a mark and no numbers.
    #[serde(default, alias = "sizes_gib_marked")]
    pub sizes_gb_marked: Vec<f64>,
    /// vCPUs of its rows.
    #[serde(default)]
    pub vcpus: Vec<Range>,
    /// Largest blocks of its columns of read IOPS; one column for small blocks if empty.
    #[serde(default, alias = "read_blocks_kib")]
    pub read_blocks_kb: Vec<f64>,
    /// Largest blocks of its columns of write IOPS.
    #[serde(default, alias = "write_blocks_kib")]
    pub write_blocks_kb: Vec<f64>,
    /// Whether an egress table shows what each type of disk makes of it.
    #[serde(default)]
    pub by_type: bool,
    /// The machine whose maxima the rows of a simultaneous table share.
    pub machine: Option<String>,
    /// IOPS from 10,000 on are printed down to a multiple of this.
    pub iops_step_from_10000: Option<f64>,
    /// Throughput below this is printed with its decimals; all other is printed down to a whole.
    #[serde(alias = "decimals_below_mib_per_s")]
    pub decimals_below_mb_per_s: Option<f64>,
    /// What the page says below it.
    #[serde(default)]
    pub footnotes: Vec<String>,
    /// Cells that the page prints otherwise than its own rules give.
    #[serde(default)]
    pub exceptions: Vec<Exception>,
    /// A hard disk to compare with: IOPS.
    pub hdd_iops: Option<f64>,
    /// A hard disk to compare with: throughput.
    #[serde(alias = "hdd_mib_per_s")]
    pub hdd_mb_per_s: Option<f64>,
}

/// A cell that a page prints otherwise than its own rules give.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    /// The first cell of its row.
    pub row: String,
    /// The head of its column.
    pub column: String,
    /// What is printed.
    pub printed: String,
    /// The inconsistency that tells of it.
    pub id: String,
}

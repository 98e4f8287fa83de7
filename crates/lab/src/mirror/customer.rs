//! Published claims about a customer's system: a log with one metadata write before each data
//! write, and a machine type that never reached the disk's limit.
//!
//! If a metadata write takes `t`, there are at most `1 / t` data writes per second, independent of
//! queue depth and disks. The setups measure it beside the arithmetic.

use flagstone_bench::provenance::Provenance;
use flagstone_bench::table::{Table, UNKNOWN};

use crate::figures::{MIB, or_dash, table};

use super::published::{PublishedRow, ROWS};
use super::setup::{
    CUSTOMER_PD, CUSTOMER_SSD, LOCAL_SSD_LATENCY_US, MIRROR, PERSISTENT_DISK_LATENCY_US, PLAIN,
    writes_per_s_most,
};
use super::summary::{MirrorCell, MirrorSummary};

/// Published throughput at 64K with the log on a persistent disk, in MiB/s: "about".
const SLOW_LOG_MIB_PER_S: f64 = 70.0;
/// Published throughput of a machine type, mirrored or not, in MiB/s: "about".
const MACHINE_MIB_PER_S: f64 = 140.0;
/// The machine type of that figure.
const MACHINE: &str = "c2-standard-8";

fn per_s(mib_per_s: f64, row: &PublishedRow) -> f64 {
    mib_per_s * MIB / row.block_bytes as f64
}

/// Throughput limit from one metadata write at a time, in MiB/s.
fn at_most(metadata_us: f64, row: &PublishedRow) -> f64 {
    1e6 / metadata_us * row.block_bytes as f64 / MIB
}

fn find<'a>(summary: &'a MirrorSummary, row: &PublishedRow, setup: &str) -> Option<&'a MirrorCell> {
    let is = |cell: &&MirrorCell| cell.size == row.size && !cell.cold && cell.setup == setup;
    summary.cells.iter().find(is)
}

fn mib(cell: Option<&MirrorCell>) -> String {
    or_dash(cell, |cell| format!("{:.2}", cell.figures.mib_per_s))
}

/// The customer's log beside the intent log and the published figures, on both kinds of disks.
pub(super) fn log_table(summary: &MirrorSummary) -> Table {
    let mark = Provenance::Emulated.suffix();
    let heads = format!(
        "write size|mirror{mark}|customer's log, local SSD{mark}|published|customer's log, persistent \
         disk{mark}|published|at most, at 1 ms"
    );
    let rows = ROWS.iter().filter_map(|row| {
        let (fast, slow) = (find(summary, row, CUSTOMER_SSD), find(summary, row, CUSTOMER_PD));
        fast.or(slow)?;
        let known = row.block_bytes == 64 << 10;
        Some(vec![
            row.size.to_owned(),
            mib(find(summary, row, MIRROR)),
            mib(fast),
            format!("{:.2}", row.mirror.mib_per_s),
            mib(slow),
            if known { format!("about {SLOW_LOG_MIB_PER_S:.0}") } else { UNKNOWN.to_owned() },
            format!("{:.2}", at_most(PERSISTENT_DISK_LATENCY_US as f64, row)),
        ])
    });
    let title = "a metadata write before each write, as the customer's product has it, MiB/s: here on \
                 EMULATED disks, and as published";
    Table { rows: rows.collect(), ..table(title, &heads) }
}

/// Machine type whose limits the emulated disks have.
fn emulated_machine(summary: &MirrorSummary) -> Option<&str> {
    summary.machine.as_deref().filter(|_| !summary.real_nodes)
}

/// The machine type beside its published figures; no rows if none was named.
pub(super) fn machine_table(summary: &MirrorSummary) -> Table {
    let machine = emulated_machine(summary).unwrap_or_default();
    let mark = Provenance::Emulated.suffix();
    let title = format!(
        "{machine}, MiB/s: here on EMULATED disks with the page's limits, and as published"
    );
    let heads = format!(
        "write size|mirror{mark}|no mirror{mark}|the page's limit|published, mirrored or not"
    );
    let rows = ROWS.iter().filter_map(|row| {
        let limit = page_limit(machine, row)?;
        let (mirror, plain) = (find(summary, row, MIRROR), find(summary, row, PLAIN));
        mirror.or(plain)?;
        let known = machine == MACHINE && row.block_bytes == 64 << 10;
        Some(vec![
            row.size.to_owned(),
            mib(mirror),
            mib(plain),
            format!("{limit:.2}"),
            if known { format!("about {MACHINE_MIB_PER_S:.0}") } else { UNKNOWN.to_owned() },
        ])
    });
    Table { rows: rows.collect(), ..table(title, &heads) }
}

/// Throughput that the catalog allows for random writes of a row's size on a machine type, in
/// MiB/s; none for a machine type that it does not have.
fn page_limit(machine: &str, row: &PublishedRow) -> Option<f64> {
    Some(writes_per_s_most(row.block_bytes, Some(machine))? * row.block_bytes as f64 / MIB)
}

pub(super) fn caveats(summary: &MirrorSummary) -> Vec<String> {
    let mut caveats = Vec::new();
    if summary.cells.iter().any(|cell| [CUSTOMER_SSD, CUSTOMER_PD].contains(&cell.setup)) {
        caveats.push(slow_log_caveat(summary));
        caveats.push(fast_log_caveat());
    }
    if emulated_machine(summary) == Some(MACHINE)
        && let Some(limit) = page_limit(MACHINE, &ROWS[0])
    {
        caveats.push(format!(
            "of {MACHINE} about {MACHINE_MIB_PER_S:.0} MB/s were published, mirrored or not; the page \
             allows it {limit:.0} MiB/s at 64K, so its limits, which are emulated here, do not explain \
             that figure"
        ));
    }
    caveats
}

/// Whether one metadata write at a time explains the published figure.
fn slow_log_caveat(summary: &MirrorSummary) -> String {
    let row = &ROWS[0];
    let loaded_us = summary.disks.iter().find(|disk| disk.size == row.size);
    let loaded_us =
        loaded_us.map_or(ROWS[2].plain.latency_ms * 1e3, |disk| disk.write_latency_us as f64);
    let per_s = per_s(SLOW_LOG_MIB_PER_S, row);
    format!(
        "customer's log: one metadata write before each data write, one at a time, so never more \
         data writes than those. About {SLOW_LOG_MIB_PER_S:.0} MB/s of 64K are {per_s:.0} a second, \
         one in {:.2} ms: with the {:.0} ms that an SSD persistent disk is designed to stay below it \
         is {:.1} MiB/s, which reproduces it as far as \"about\" goes; with the {:.2} ms that the data \
         disk takes of 24 in flight it would be {:.1}. What kind of disk the customer's was is not \
         published",
        1e3 / per_s,
        PERSISTENT_DISK_LATENCY_US as f64 / 1e3,
        at_most(PERSISTENT_DISK_LATENCY_US as f64, row),
        loaded_us / 1e3,
        at_most(loaded_us, row),
    )
}

/// Caveat: latency of such a log, by the published table.
fn fast_log_caveat() -> String {
    let [at_8k, at_4k] = [&ROWS[1], &ROWS[2]].map(|row| per_s(row.mirror.mib_per_s, row));
    let [plain_8k, plain_4k] = [&ROWS[1], &ROWS[2]].map(|row| per_s(row.plain.mib_per_s, row));
    format!(
        "the published mirror does {at_8k:.0} writes a second of 8K and {at_4k:.0} of 4K, the same \
         whatever the size, where no mirror does {plain_8k:.0} and {plain_4k:.0}: so does one metadata \
         write at a time that takes {:.3} ms on the local SSD ({:.1} ms is what one takes here). Such \
         a log, not the link, would then be most of the published overhead",
        1e3 / at_8k,
        LOCAL_SSD_LATENCY_US as f64 / 1e3,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arithmetic in the caveats and in `docs/lab.md`.
    #[test]
    fn serialized_metadata_writes_explain_published_iops() {
        let [large, middle, small] = &ROWS;
        assert_eq!(per_s(SLOW_LOG_MIB_PER_S, large), 1120.0);
        assert_eq!(at_most(1000.0, large), 62.5);
        assert!((at_most(2495.0, large) - 25.05).abs() < 0.01);
        let [a, b] = [middle, small].map(|row| per_s(row.mirror.mib_per_s, row));
        assert!((a / b - 1.0).abs() < 0.004, "{a} and {b}");
        // With as much for each of 64K the disk's limit binds first, as published.
        assert!(at_most(1e6 / a, large) > 1.9 * large.plain.mib_per_s);
    }

    #[test]
    fn published_limit_does_not_explain_c2_throughput() {
        let [large, middle, small] = [0, 1, 2].map(|at| page_limit(MACHINE, &ROWS[at]).unwrap());
        assert!(large > 1.6 * MACHINE_MIB_PER_S, "{large}");
        // 4,000 a second.
        assert!((middle - 31.25).abs() < 0.5 && (small - 15.625).abs() < 0.25, "{middle} {small}");
        assert_eq!(page_limit("c9-standard-8", &ROWS[0]), None);
    }

    #[test]
    fn customer_tables_need_their_measurements() {
        let mut summary = super::super::summary::tests::example();
        let table = log_table(&summary);
        assert!(table.title.contains("EMULATED"));
        let cells: Vec<_> = table.rows[0].iter().map(String::as_str).collect();
        assert_eq!(cells, ["8K", "75.00", "62.50", "58.87", "7.50", "-", "7.81"]);
        assert_eq!(table.rows.len(), 1);
        let text = caveats(&summary).join("\n");
        assert!(text.contains("1120 a second, one in 0.89 ms"), "{text}");
        assert!(text.contains("7535 writes a second of 8K and 7511 of 4K"), "{text}");
        assert!(machine_table(&summary).rows.is_empty() && !text.contains(MACHINE));
        summary.machine = Some(MACHINE.to_owned());
        let table = machine_table(&summary);
        assert!(table.title.contains("EMULATED") && table.title.contains(MACHINE));
        assert_eq!(table.rows[0][..3], ["8K", "75.00", "93.75"]);
        assert!(caveats(&summary).iter().any(|caveat| caveat.contains("do not explain")));
        summary.cells.retain(|cell| cell.setup == PLAIN);
        assert!(log_table(&summary).rows.is_empty());
        assert_eq!(caveats(&summary).len(), 1);
    }
}

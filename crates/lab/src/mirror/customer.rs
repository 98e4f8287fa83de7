//! The customer's story: what a log costs that writes its metadata before each data write, one write
//! at a time; and a machine type that never reached the disk's limit.
//!
//! With metadata that takes `t` there are never more data writes than `1 / t` a second, however many
//! are in flight and however fast the disks are. That is arithmetic, and measured here beside it.

use flagstone_bench::nature::Nature;
use flagstone_bench::table::Table;

use super::published::{ROWS, Row};
use super::setup::{
    CUSTOMER_PD, CUSTOMER_SSD, LOCAL_SSD_LATENCY_US, MIRROR, PERSISTENT_DISK_LATENCY_US, PLAIN,
    writes_per_s_most,
};
use super::summary::{Cell, Summary};

/// What was published of 64K with the log on a persistent disk, in 2^20 bytes a second: "about".
const SLOW_LOG_MIB_PER_S: f64 = 70.0;
/// What was published of a machine type, mirrored or not, in 2^20 bytes a second: "about".
const MACHINE_MIB_PER_S: f64 = 140.0;
/// That machine type.
const MACHINE: &str = "c2-standard-8";
const MIB: f64 = 1048576.0;

fn per_s(mib_per_s: f64, row: &Row) -> f64 {
    mib_per_s * MIB / row.block_bytes as f64
}

/// What one write of metadata at a time lets through, in 2^20 bytes a second.
fn at_most(metadata_us: f64, row: &Row) -> f64 {
    1e6 / metadata_us * row.block_bytes as f64 / MIB
}

fn find<'a>(summary: &'a Summary, row: &Row, setup: &str) -> Option<&'a Cell> {
    let is = |cell: &&Cell| cell.size == row.size && !cell.cold && cell.setup == setup;
    summary.cells.iter().find(is)
}

fn mib(cell: Option<&Cell>) -> String {
    cell.map_or_else(|| "-".to_owned(), |cell| format!("{:.2}", cell.mib_per_s))
}

/// The customer's log beside ours and beside what was published of it, on both disks.
pub(super) fn log_table(summary: &Summary) -> Table {
    let ours = |what: &str| format!("{what}{}", Nature::Emulated.suffix());
    let head = vec![
        "write size".to_owned(),
        ours("mirror"),
        ours("customer's log, local SSD"),
        "published".to_owned(),
        ours("customer's log, persistent disk"),
        "published".to_owned(),
        "at most, at 1 ms".to_owned(),
    ];
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
            if known { format!("about {SLOW_LOG_MIB_PER_S:.0}") } else { "-".to_owned() },
            format!("{:.2}", at_most(PERSISTENT_DISK_LATENCY_US as f64, row)),
        ])
    });
    let title = "a metadata write before each write, as the customer's product has it, MiB/s: here on \
                 EMULATED disks, and as published";
    Table { title: title.to_owned(), head, rows: rows.collect() }
}

/// The machine type beside what was published of it; no rows if it was not asked for.
pub(super) fn machine_table(summary: &Summary) -> Table {
    let machine = summary.machine.as_deref().unwrap_or_default();
    let ours = |what: &str| format!("{what}{}", Nature::Emulated.suffix());
    let title = format!(
        "what {machine} reaches, MiB/s: here on EMULATED disks with the page's limits, and as published"
    );
    let head = vec![
        "write size".to_owned(),
        ours("mirror"),
        ours("no mirror"),
        "the page's limit".to_owned(),
        "published, mirrored or not".to_owned(),
    ];
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
            if known { format!("about {MACHINE_MIB_PER_S:.0}") } else { "-".to_owned() },
        ])
    });
    Table { title, head, rows: rows.collect() }
}

/// What the catalogue allows random writes of a row's size on a machine type, in 2^20 bytes a
/// second; none for a machine that it does not have.
fn page_limit(machine: &str, row: &Row) -> Option<f64> {
    Some(writes_per_s_most(row.block_bytes, Some(machine))? * row.block_bytes as f64 / MIB)
}

/// What the numbers of both do not say by themselves.
pub(super) fn doubts(summary: &Summary) -> Vec<String> {
    let mut doubts = Vec::new();
    if summary.cells.iter().any(|cell| [CUSTOMER_SSD, CUSTOMER_PD].contains(&cell.setup)) {
        doubts.push(slow_log_doubt(summary));
        doubts.push(fast_log_doubt());
    }
    if summary.machine.as_deref() == Some(MACHINE)
        && let Some(limit) = page_limit(MACHINE, &ROWS[0])
    {
        doubts.push(format!(
            "of {MACHINE} about {MACHINE_MIB_PER_S:.0} MB/s were published, mirrored or not; the page \
             allows it {limit:.0} MiB/s at 64K, so its limits, which are emulated here, do not explain \
             that figure"
        ));
    }
    doubts
}

/// Whether metadata one by one explains what was published.
fn slow_log_doubt(summary: &Summary) -> String {
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

/// What the published table itself says of such a log.
fn fast_log_doubt() -> String {
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

    /// The arithmetic that the doubts and `docs/lab.md` tell.
    #[test]
    fn one_metadata_write_at_a_time_explains_what_was_published() {
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
    fn the_page_does_not_explain_the_machine_that_was_slow() {
        let [large, middle, small] = [0, 1, 2].map(|at| page_limit(MACHINE, &ROWS[at]).unwrap());
        assert!(large > 1.6 * MACHINE_MIB_PER_S, "{large}");
        // 4,000 a second.
        assert!((middle - 31.25).abs() < 0.5 && (small - 15.625).abs() < 0.25, "{middle} {small}");
        assert_eq!(page_limit("c9-standard-8", &ROWS[0]), None);
    }

    #[test]
    fn the_story_is_told_where_it_was_measured() {
        let mut summary = super::super::summary::tests::example();
        let table = log_table(&summary);
        assert!(table.title.contains("EMULATED"));
        let cells: Vec<_> = table.rows[0].iter().map(String::as_str).collect();
        assert_eq!(cells, ["8K", "75.00", "62.50", "58.87", "7.50", "-", "7.81"]);
        assert_eq!(table.rows.len(), 1);
        let told = doubts(&summary).join("\n");
        assert!(told.contains("1120 a second, one in 0.89 ms"), "{told}");
        assert!(told.contains("7535 writes a second of 8K and 7511 of 4K"), "{told}");
        assert!(machine_table(&summary).rows.is_empty() && !told.contains(MACHINE));
        summary.machine = Some(MACHINE.to_owned());
        let table = machine_table(&summary);
        assert!(table.title.contains("EMULATED") && table.title.contains(MACHINE));
        assert_eq!(table.rows[0][..3], ["8K", "75.00", "93.75"]);
        assert!(doubts(&summary).iter().any(|doubt| doubt.contains("do not explain")));
        summary.cells.retain(|cell| cell.setup == PLAIN);
        assert!(log_table(&summary).rows.is_empty());
        assert_eq!(doubts(&summary).len(), 1);
    }
}

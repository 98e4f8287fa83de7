//! Tables of the demo that fit a terminal: the most important numbers, and the experiments, beside
//! the published figures.

use crate::fabric::{FabricRow, FabricSummary};
use crate::failover::{Death, FailoverSummary};
use crate::figures::{self, Figures, or_dash};
use crate::mirror::published::PublishedFigures;
use crate::mirror::summary::{MirrorCell, MirrorRow, MirrorSummary};
use crate::pool::summary::{PoolJobRow, PoolSummary};
use flagstone_bench::compare::ComparedMetric::{self, Latency, Throughput};
use flagstone_bench::provenance::Provenance;
use flagstone_bench::table::{Table, UNKNOWN};
use flagstone_units::display::count;
use flagstone_units::grouped;

use super::experiments::Experiments;
use super::grid::{GridRow, PathFigures};
use crate::mirror::setup::ASYNC;

pub(crate) fn headline(lab: &Experiments, rows: &[GridRow]) -> Table {
    let mark = Provenance::Emulated.suffix();
    let head = ["what", "here", "published"];
    let mut table = Table::new("the most important numbers", &head);
    let mut add = |what: String, here: String, published: String| {
        table.rows.push(vec![what, here, published]);
    };
    let none = || UNKNOWN.to_owned();
    for row in &lab.pool.rows {
        let (Some(ratio), Some(raw)) = (row.ratio, &row.raw) else { continue };
        let what = format!("random 4 KiB writes, a pool on {}{mark}", row.disk);
        let raw = grouped(raw.iops, 0);
        add(what, format!("{ratio:.1} times the raw disk's {raw}"), none());
    }
    let failover = &lab.failover;
    let lost = match failover.verified.is_right() {
        true => {
            format!("nothing of {} blocks", count(failover.verified.blocks_written))
        }
        false => failover.verified.verdict(),
    };
    add(format!("lost when a node died under load{mark}"), lost, none());
    add(format!("until the other node served{mark}"), took_over(failover), none());
    for kind in lab.automatic.iter().flat_map(|found| &found.deaths) {
        add(
            format!("until served, nobody intervening: {}{mark}", kind.death.in_words()),
            format!("{:.1} s", kind.worst_ms / 1e3),
            "60 to 120 s".to_owned(),
        );
    }
    for side in &lab.mirror.table {
        let (Some(mirror), Some(plain)) = (&side.mirror, &side.plain) else { continue };
        let theirs = &side.published;
        let of = |mirror, plain| percent(Throughput.overhead_percent(mirror, plain));
        add(
            format!("throughput that a mirror costs, {} writes{mark}", side.published.size),
            of(mirror.figures.mib_per_s, plain.figures.mib_per_s),
            of(theirs.mirror.mib_per_s, theirs.plain.mib_per_s),
        );
    }
    let most = lab.fabric.rows.iter().map(|row| row.disks).max().unwrap_or(0);
    for row in lab.fabric.rows.iter().filter(|row| row.disks == most) {
        let Some(percent) = row.of_local_percent else { continue };
        add(
            format!("of {most} SSDs' {}s is left over NVMe/TCP{mark}", row.rw),
            format!("{percent:.0} %"),
            format!("{:.0} %", row.published_of_local_percent()),
        );
    }
    for row in rows.iter().filter(|row| row.workload.depth == 1) {
        let of = |latency_us: f64| format!("{:+.0} µs", latency_us - row.local.latency_mean_us);
        let nbd = row
            .nbd
            .map_or_else(String::new, |nbd| format!(", {} over NBD", of(nbd.latency_mean_us)));
        let what = format!("added to a 4 KiB {} of a file", row.workload.direction.name());
        add(what, format!("{} over NVMe/TCP{nbd}", of(row.nvme_tcp.latency_mean_us)), none());
    }
    table
}

fn took_over(failover: &FailoverSummary) -> String {
    let ms = grouped(failover.failover_ms, 0);
    match failover.death {
        Death::Silent => format!("{ms} ms, of them 2,000 to 2,500 the peer's time-out"),
        Death::Kill | Death::Operator => format!("{ms} ms"),
    }
}

fn percent(value: Option<f64>) -> String {
    figures::percent(value, 1)
}

/// A pool on emulated disks; not all columns fit a terminal.
pub(crate) fn pool(summary: &PoolSummary) -> Table {
    let heads = "4 KiB random writes on|raw IOPS|pool IOPS|ratio|raw mean ms|pool mean ms";
    let title = format!("a pool that is half full{}", Provenance::Emulated.suffix());
    let mut table = figures::table(title, heads);
    let row = |row: &PoolJobRow| {
        let (raw, pool) = (row.raw.as_ref()?, row.pool.as_ref()?);
        Some(vec![
            row.disk.clone(),
            grouped(raw.iops, 0),
            grouped(pool.iops, 0),
            or_dash(row.ratio, |ratio| format!("{ratio:.2}")),
            format!("{:.2}", raw.latency_ms),
            format!("{:.2}", pool.latency_ms),
        ])
    };
    table.rows = summary.rows.iter().filter_map(row).collect();
    table
}

/// Throughput and latency of the mirror, by write size.
pub(crate) fn mirror(summary: &MirrorSummary) -> Vec<Table> {
    let table = |metric: ComparedMetric,
                 title: &str,
                 here: fn(&Figures) -> f64,
                 there: fn(&PublishedFigures) -> f64,
                 decimals: usize| {
        let overhead = |other, base| percent(metric.overhead_percent(other, base));
        let title = format!("{title}, 24 random writes in flight{}", Provenance::Emulated.suffix());
        let heads = "write|no mirror|mirror|overhead|async|published: no|mirror|overhead";
        let mut table = figures::table(title, heads);
        let row = |side: &MirrorRow| {
            let (plain, mirror) = (side.plain.as_ref()?, side.mirror.as_ref()?);
            let is = |cell: &&MirrorCell| cell.size == side.published.size && cell.setup == ASYNC;
            let asynchronous = summary.cells.iter().find(is);
            let number = |value: f64| format!("{value:.decimals$}");
            let (plain, mirror) = (here(&plain.figures), here(&mirror.figures));
            let (alone, theirs) = (there(&side.published.plain), there(&side.published.mirror));
            Some(vec![
                side.published.size.to_owned(),
                number(plain),
                number(mirror),
                overhead(mirror, plain),
                or_dash(asynchronous, |cell| number(here(&cell.figures))),
                number(alone),
                number(theirs),
                overhead(theirs, alone),
            ])
        };
        table.rows = summary.table.iter().filter_map(row).collect();
        table
    };
    vec![
        table(Throughput, "MiB/s", |figures| figures.mib_per_s, |figures| figures.mib_per_s, 1),
        table(
            Latency,
            "mean latency, ms",
            |figures| figures.latency_ms,
            |figures| figures.latency_ms,
            2,
        ),
    ]
}

/// IOPS of local disks and over the fabric.
pub(crate) fn fabric(summary: &FabricSummary) -> Table {
    let title = format!(
        "IOPS of local SSDs and over NVMe/TCP, {} times slower than the published{}",
        summary.scale,
        Provenance::Emulated.suffix()
    );
    let head = ["4 KiB", "SSDs", "local", "NVMe/TCP", "of local", "published", "bound by"];
    let mut table = Table::new(title, &head);
    let row = |row: &FabricRow| {
        let (local, fabric) = (row.local.as_ref()?, row.fabric.as_ref()?);
        Some(vec![
            row.rw.to_string(),
            row.disks.to_string(),
            grouped(local.figures.iops, 0),
            grouped(fabric.figures.iops, 0),
            row.of_local_percent.map_or_else(String::new, |percent| format!("{percent:.0} %")),
            format!("{:.0} %", row.published_of_local_percent()),
            fabric.bound.map_or(UNKNOWN, |bound| bound.words()).to_owned(),
        ])
    };
    table.rows = summary.rows.iter().filter_map(row).collect();
    table
}

/// The served volume: IOPS and mean latency over each path, with the ratio to the local disk and
/// the latency that the path adds.
pub(crate) fn served(rows: &[GridRow], engine: &str) -> Table {
    let heads = format!(
        "random 4 KiB|depth|local ({engine}) IOPS|mean µs|NVMe/TCP IOPS|ratio|added µs|NBD IOPS|ratio|\
         added µs"
    );
    let mut table = figures::table("a volume on a file, attached on the same machine", &heads);
    for row in rows {
        let mut cells = vec![
            row.workload.direction.name().to_owned(),
            row.workload.depth.to_string(),
            grouped(row.local.iops, 0),
            format!("{:.1}", row.local.latency_mean_us),
        ];
        for fabric in [Some(row.nvme_tcp), row.nbd] {
            cells.extend(compared(row.local, fabric));
        }
        table.rows.push(cells);
    }
    table
}

fn compared(local: PathFigures, fabric: Option<PathFigures>) -> [String; 3] {
    let Some(fabric) = fabric else { return ["skipped", UNKNOWN, UNKNOWN].map(str::to_owned) };
    [
        grouped(fabric.iops, 0),
        format!("{:.2}", fabric.iops / local.iops),
        format!("{:+.1}", fabric.latency_mean_us - local.latency_mean_us),
    ]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::demo::grid::{GridDirection, GridWorkload};
    use crate::fabric::{FabricBottleneck, FabricSide};
    use crate::failover::VerifiedLoad;
    use crate::mirror::published::ROWS;
    use flagstone_bench::job::AccessPattern;

    fn figures(mib_per_s: f64, iops: f64, latency_ms: f64) -> Figures {
        Figures {
            provenance: Provenance::Emulated,
            repetitions: 1,
            mib_per_s,
            iops,
            latency_ms,
            latency_p99_ms: None,
            coefficient_of_variation_percent: None,
            cpu_percent: None,
        }
    }

    fn cell(setup: &'static str, mib_per_s: f64, latency_ms: f64) -> MirrorCell {
        MirrorCell {
            size: "8K",
            cold: false,
            setup,
            figures: figures(mib_per_s, 0.0, latency_ms),
            run_to_run_variation_percent: None,
            throughput_overhead_percent: None,
            latency_overhead_percent: None,
        }
    }

    /// A mirror at 8K, reads of four SSDs, and a failover that lost nothing.
    pub(crate) fn experiments() -> Experiments {
        let (plain, mirrored) = (cell("no mirror", 90.0, 2.0), cell("mirror", 60.0, 3.0));
        let row = MirrorRow {
            published: ROWS[1],
            mirror: Some(mirrored.clone()),
            plain: Some(plain.clone()),
            remote_disk: None,
            network_share: None,
            run_to_run_variation_points: None,
        };
        let mirror = MirrorSummary {
            table: vec![row],
            cells: vec![plain, mirrored, cell(ASYNC, 85.0, 2.1)],
            ..crate::mirror::summary::tests::example()
        };
        let side = |iops: f64| {
            let (figures, bound) = (figures(0.0, iops, 1.0), Some(FabricBottleneck::Network));
            Some(FabricSide { figures, model_iops: Some(iops), bound })
        };
        let row = FabricRow {
            rw: AccessPattern::RandRead,
            disks: 4,
            local: side(36_000.0),
            fabric: side(24_000.0),
            of_local_percent: Some(100.0 * 2.0 / 3.0),
            published_local_iops: 659e3,
            published_fabric_iops: 384e3,
        };
        let fabric =
            FabricSummary { scale: 20, rows: vec![row], ..crate::fabric::tests::example() };
        let failover = FailoverSummary {
            verified: VerifiedLoad {
                blocks_written: 4321,
                blocks_checked: 9876,
                wrong_blocks: 0,
                errors: 0,
            },
            longest_ms: 2500.0,
            failover_ms: 2400.0,
            ..crate::failover::tests::example()
        };
        let pool = crate::pool::summary::tests::example();
        Experiments { pool, mirror, fabric, failover, automatic: None }
    }

    #[test]
    fn published_figures_stand_beside_measured() {
        let workload = GridWorkload { block_bytes: 4096, direction: GridDirection::Read, depth: 1 };
        let measured = |latency_mean_us| PathFigures {
            iops: 1.0,
            latency_mean_us,
            latency_p99_us: None,
            cpu_busy: 0.0,
        };
        let row = GridRow { workload, local: measured(60.0), nvme_tcp: measured(110.0), nbd: None };
        let rows = headline(&experiments(), &[row]).rows;
        let text: Vec<String> = rows.iter().map(|row| row.join(" | ")).collect();
        assert_eq!(
            text,
            [
                "random 4 KiB writes, a pool on pd-standard [EMULATED] | 10.0 times the raw disk's 750 | -",
                "random 4 KiB writes, a pool on pd-ssd [EMULATED] | 3.0 times the raw disk's 15,000 | -",
                "lost when a node died under load [EMULATED] | nothing of 4,321 blocks | -",
                "until the other node served [EMULATED] | 2,400 ms, of them 2,000 to 2,500 the peer's time-out | -",
                "throughput that a mirror costs, 8K writes [EMULATED] | 33.3 % | 39.2 %",
                "of 4 SSDs' randreads is left over NVMe/TCP [EMULATED] | 67 % | 58 %",
                "added to a 4 KiB read of a file | +50 µs over NVMe/TCP | -",
            ]
        );
        let mut lost = experiments();
        lost.failover.verified.wrong_blocks = 1;
        assert!(headline(&lost, &[]).rows[2][1].contains("1 blocks WRONG"));
    }

    #[test]
    fn emulated_tables_are_marked() {
        let found = experiments();
        let mut tables = mirror(&found.mirror);
        tables.push(fabric(&found.fabric));
        for table in &tables {
            assert!(table.title.contains("EMULATED"), "{}", table.title);
            assert_eq!(table.rows.len(), 1);
        }
        let cells = ["8K", "90.0", "60.0", "33.3 %", "85.0", "96.8", "58.9", "39.2 %"];
        assert_eq!(tables[0].rows[0], cells);
    }
}

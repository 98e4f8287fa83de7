//! The most important numbers, and the experiments as tables that fit a terminal: ours beside what
//! was published.

use flagstone_bench::nature::Nature;
use flagstone_bench::published::published;
use flagstone_bench::table::Table;
use flagstone_lab::fabric;
use flagstone_lab::failover::{Death, Summary as Failover};
use flagstone_lab::mirror::published::{Figures, latency_overhead, throughput_overhead};
use flagstone_lab::mirror::summary::{Cell, Side, Summary as Mirror};

use crate::lab::{ASYNC, Found};
use crate::report::Row;
use crate::table::grouped;

/// All of them, the most important first.
pub(crate) fn numbers(lab: &Found, rows: &[Row]) -> Table {
    let mark = Nature::Emulated.suffix();
    let head = ["what", "here", "published"];
    let mut table = Table::new("the most important numbers", &head);
    let mut add = |what: String, here: String, published: String| {
        table.rows.push(vec![what, here, published]);
    };
    let none = || "-".to_owned();
    let failover = &lab.failover;
    let lost = match failover.is_right() {
        true => format!("nothing of {} blocks", grouped(failover.blocks_written as f64)),
        false => failover.verdict(),
    };
    add(format!("lost when a node died under load{mark}"), lost, none());
    add(format!("until the other node served{mark}"), took_over(failover), none());
    for side in &lab.mirror.table {
        let (Some(mirror), Some(plain)) = (&side.mirror, &side.plain) else { continue };
        let theirs = &side.published;
        let of = |mirror: f64, plain: f64| percent(throughput_overhead(mirror, plain));
        add(
            format!("throughput that a mirror costs, {} writes{mark}", side.published.size),
            of(mirror.mib_per_s, plain.mib_per_s),
            of(theirs.mirror.mib_per_s, theirs.plain.mib_per_s),
        );
    }
    let most = lab.fabric.cells.iter().map(|cell| cell.disks).max().unwrap_or(0);
    for pair in pairs(&lab.fabric).filter(|pair| pair.disks == most) {
        let what = format!("of {most} SSDs' {}s is left over NVMe/TCP{mark}", pair.rw);
        add(what, pair.here(), pair.published());
    }
    for row in rows.iter().filter(|row| row.cell.depth == 1) {
        let of = |latency_us: f64| format!("{:+.0} µs", latency_us - row.local.latency_mean_us);
        let nbd = row
            .nbd
            .map_or_else(String::new, |nbd| format!(", {} over NBD", of(nbd.latency_mean_us)));
        let what = format!("added to a 4 KiB {} of a file", row.cell.direction.name());
        add(what, format!("{} over NVMe/TCP{nbd}", of(row.nvme_tcp.latency_mean_us)), none());
    }
    table
}

fn took_over(failover: &Failover) -> String {
    let ms = grouped(failover.failover_ms);
    match failover.death {
        Death::Silent => format!("{ms} ms, of them 2,000 to 2,500 the peer's time-out"),
        Death::Kill | Death::Told => format!("{ms} ms"),
    }
}

fn percent(value: f64) -> String {
    match format!("{value:.1} %") {
        zero if zero == "-0.0 %" => "0.0 %".to_owned(),
        text => text,
    }
}

/// One figure of the mirror by size of write.
pub(crate) fn mirror(summary: &Mirror) -> Vec<Table> {
    let table =
        |title: &str, here: fn(&Cell) -> f64, there: fn(&Figures) -> f64, decimals: usize| {
            let overhead = if decimals == 1 { throughput_overhead } else { latency_overhead };
            let title = format!("{title}, 24 random writes in flight{}", Nature::Emulated.suffix());
            let head = [
                "write",
                "no mirror",
                "mirror",
                "overhead",
                "async",
                "published: no",
                "mirror",
                "overhead",
            ];
            let mut table = Table::new(title, &head);
            let row = |side: &Side| {
                let (plain, mirror) = (side.plain.as_ref()?, side.mirror.as_ref()?);
                let is = |cell: &&Cell| cell.size == side.published.size && cell.setup == ASYNC;
                let asynchronous = summary.cells.iter().find(is);
                let number = |value: f64| format!("{value:.decimals$}");
                let (plain, mirror) = (here(plain), here(mirror));
                let (alone, theirs) = (there(&side.published.plain), there(&side.published.mirror));
                Some(vec![
                    side.published.size.to_owned(),
                    number(plain),
                    number(mirror),
                    percent(overhead(mirror, plain)),
                    asynchronous.map_or_else(|| "-".to_owned(), |cell| number(here(cell))),
                    number(alone),
                    number(theirs),
                    percent(overhead(theirs, alone)),
                ])
            };
            table.rows = summary.table.iter().filter_map(row).collect();
            table
        };
    vec![
        table("MiB/s", |cell| cell.mib_per_s, |figures| figures.mib_per_s, 1),
        table("mean latency, ms", |cell| cell.latency_ms, |figures| figures.latency_ms, 2),
    ]
}

/// The same work on a local disk and over the fabric.
struct Pair<'a> {
    rw: String,
    disks: u32,
    local: &'a fabric::Cell,
    remote: &'a fabric::Cell,
}

impl Pair<'_> {
    fn here(&self) -> String {
        format!("{:.0} %", 100.0 * self.remote.iops / self.local.iops)
    }

    /// As the published table has it: writes stand first.
    fn published(&self) -> String {
        let at = if self.rw == "randread" { 6 } else { 3 };
        let disks = self.disks.to_string();
        let rows = published("fabric").map_or_else(Vec::new, |table| table.rows);
        let found = rows.into_iter().find(|row| row.first() == Some(&disks));
        found.and_then(|row| row.get(at).cloned()).unwrap_or_else(|| "-".to_owned())
    }
}

fn pairs(summary: &fabric::Summary) -> impl Iterator<Item = Pair<'_>> {
    summary.cells.iter().filter_map(|remote| {
        let is = |local: &&fabric::Cell| {
            (local.rw, local.disks) == (remote.rw, remote.disks) && local.on != remote.on
        };
        let local = summary.cells.iter().find(is).filter(|_| remote.on == "NVMe/TCP")?;
        Some(Pair { rw: remote.rw.to_string(), disks: remote.disks, local, remote })
    })
}

/// Local disks and the fabric.
pub(crate) fn fabric(summary: &fabric::Summary) -> Table {
    let title = format!(
        "IOPS of local SSDs and over NVMe/TCP, {} times slower than the published{}",
        summary.scale,
        Nature::Emulated.suffix()
    );
    let head = ["4 KiB", "SSDs", "local", "NVMe/TCP", "of local", "published", "bound by"];
    let mut table = Table::new(title, &head);
    let row = |pair: Pair<'_>| {
        vec![
            pair.rw.clone(),
            pair.disks.to_string(),
            grouped(pair.local.iops),
            grouped(pair.remote.iops),
            pair.here(),
            pair.published(),
            pair.remote.bound.words().to_owned(),
        ]
    };
    table.rows = pairs(summary).map(row).collect();
    table
}

/// The served volume, as a table of a report.
pub(crate) fn served(rows: &[Row], engine: &str) -> Table {
    let local = format!("IOPS of the file ({engine})");
    let head =
        ["4 KiB, random", "depth", &local, "mean µs", "NVMe/TCP", "mean µs", "NBD", "mean µs"];
    let mut table = Table::new("a volume on a file, attached on the same machine", &head);
    for row in rows {
        let mut cells = vec![row.cell.direction.name().to_owned(), row.cell.depth.to_string()];
        for measured in [Some(row.local), Some(row.nvme_tcp), row.nbd] {
            let [iops, us] = measured.map_or_else(
                || ["-", "-"].map(str::to_owned),
                |m| [grouped(m.iops), format!("{:.1}", m.latency_mean_us)],
            );
            cells.extend([iops, us]);
        }
        table.rows.push(cells);
    }
    table
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::grid::{Direction, Measured};
    use flagstone_bench::job::Pattern;
    use flagstone_lab::failover;
    use flagstone_lab::mirror::published::ROWS;

    fn cell(setup: &'static str, mib_per_s: f64, latency_ms: f64) -> Cell {
        Cell {
            size: "8K",
            cold: false,
            setup,
            repetitions: 1,
            mib_per_s,
            iops: 0.0,
            latency_ms,
            latency_p99_ms: None,
            noise_percent: None,
            another_run_percent: None,
            cpu_percent: None,
            throughput_overhead_percent: None,
            latency_overhead_percent: None,
        }
    }

    /// A mirror at 8K, four SSDs read, and a drill in which nothing was lost.
    pub(crate) fn found() -> Found {
        let (plain, mirrored) = (cell("no mirror", 90.0, 2.0), cell("mirror", 60.0, 3.0));
        let side = Side {
            published: ROWS[1],
            mirror: Some(mirrored.clone()),
            plain: Some(plain.clone()),
            far: None,
            link: None,
            another_run_points: None,
        };
        let mirror = Mirror {
            schema_version: 1,
            experiment: "mirror",
            emulated: true,
            rtt_us: 300,
            machine: None,
            cpu_model: String::new(),
            cpus: 2,
            runtime_ms: 2000,
            disks: Vec::new(),
            table: vec![side],
            cells: vec![plain, mirrored, cell(ASYNC, 85.0, 2.1)],
            doubts: Vec::new(),
        };
        let cell = |on: &str, iops: f64| fabric::Cell {
            rw: Pattern::RandRead,
            disks: 4,
            on: on.to_owned(),
            repetitions: 1,
            iops,
            model_iops: iops,
            latency_us: 1.0,
            cpu_percent: None,
            bound: fabric::Bound::Network,
        };
        let fabric = fabric::Summary {
            schema_version: 1,
            experiment: "fabric",
            emulated: true,
            scale: 20,
            cells: vec![cell("local", 36_000.0), cell("NVMe/TCP", 24_000.0)],
            doubts: Vec::new(),
        };
        let failover = Failover {
            schema_version: failover::SCHEMA_VERSION,
            experiment: "failover",
            emulated: true,
            death: Death::Silent,
            blocks_written: 4321,
            blocks_checked: 9876,
            wrong_blocks: 0,
            errors: 0,
            longest_ms: 2500.0,
            failover_ms: 2400.0,
            resynced_bytes: 0,
            volume_bytes: 0,
            return_ms: 0.0,
            switchover_ms: 0.0,
            events: Vec::new(),
            timeline: Vec::new(),
        };
        Found { mirror, fabric, failover }
    }

    #[test]
    fn what_was_published_stands_beside() {
        let cell = crate::grid::Cell { block_bytes: 4096, direction: Direction::Read, depth: 1 };
        let measured = |latency_mean_us| Measured {
            iops: 1.0,
            latency_mean_us,
            latency_p99_us: 0.0,
            cpu_busy: 0.0,
        };
        let row = Row { cell, local: measured(60.0), nvme_tcp: measured(110.0), nbd: None };
        let rows = numbers(&found(), &[row]).rows;
        let text: Vec<String> = rows.iter().map(|row| row.join(" | ")).collect();
        assert_eq!(
            text,
            [
                "lost when a node died under load [EMULATED] | nothing of 4,321 blocks | -",
                "until the other node served [EMULATED] | 2,400 ms, of them 2,000 to 2,500 the peer's time-out | -",
                "throughput that a mirror costs, 8K writes [EMULATED] | 33.3 % | 39.2 %",
                "of 4 SSDs' randreads is left over NVMe/TCP [EMULATED] | 67 % | 58 %",
                "added to a 4 KiB read of a file | +50 µs over NVMe/TCP | -",
            ]
        );
        let mut lost = found();
        lost.failover.wrong_blocks = 1;
        assert!(numbers(&lost, &[]).rows[0][1].contains("1 blocks WRONG"));
    }

    #[test]
    fn every_table_of_emulated_disks_says_so() {
        let found = found();
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

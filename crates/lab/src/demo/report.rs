//! Demo report: the measured grid, the data checks, the experiments, and what limited the numbers.

use flagstone_bench::disturbance::Disturbance;
use flagstone_bench::report::AdditionalSections;
use flagstone_bench::table::{Form, Table, list_item};
use flagstone_units::display::count;
use flagstone_units::grouped;
use serde::Serialize;

use super::experiments::Experiments;
use super::grid::{AccessPath, GridRow, PathFigures};
use super::{PartConditions, tables};
use crate::failover::FailoverSummary;

/// Busy share from which on the CPUs are the limit, 0 to 1.
const CPU_BOUND: f64 = 0.9;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DataCheck {
    pub path: AccessPath,
    /// Blocks of 4 KiB written.
    pub blocks_written: u64,
    pub blocks_checked: u64,
    pub wrong_blocks: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DemoReport {
    pub schema_version: u32,
    pub flagstone: String,
    /// fio's I/O engine for the file.
    pub(crate) local_engine: String,
    /// CPUs that server and clients share.
    pub cpus: usize,
    /// How busy others kept the machine during each part.
    pub(crate) conditions: Vec<PartConditions>,
    pub volume_bytes: u64,
    pub seconds: f64,
    pub rows: Vec<GridRow>,
    pub checks: Vec<DataCheck>,
    pub(crate) nbd_skipped: Option<String>,
    pub lab: Experiments,
    pub took_s: f64,
}

impl DemoReport {
    /// Whether every check read blocks and found all of them right, and the failover lost nothing.
    pub fn is_right(&self) -> bool {
        let right = |check: &DataCheck| check.wrong_blocks == 0 && check.blocks_checked > 0;
        let automatic = self.lab.automatic.as_ref().is_none_or(|found| found.verified.is_right());
        self.checks.iter().all(right) && self.lab.failover.verified.is_right() && automatic
    }

    /// The report as text for a terminal, the most important numbers first.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut add = |table: &Table| text += &(table.write(Form::Text) + "\n");
        add(&self.headline());
        add(&tables::pool(&self.lab.pool));
        tables::mirror(&self.lab.mirror).iter().for_each(&mut add);
        add(&tables::fabric(&self.lab.fabric));
        add(&tables::served(&self.rows, &self.local_engine));
        self.notes().iter().for_each(|note| text += &list_item(note));
        text += &format!("it took {:.0} s\n", self.took_s);
        text
    }

    /// Summary section of the HTML report.
    pub fn sections(&self) -> AdditionalSections {
        let tables = vec![self.headline(), tables::served(&self.rows, &self.local_engine)];
        AdditionalSections::new("Flagstone in three minutes")
            .with_tables("demo", tables)
            .with_caveats(&self.notes())
    }

    /// The most important numbers; its title names the parts that are not to be believed.
    fn headline(&self) -> Table {
        let mut table = tables::headline(&self.lab, &self.rows);
        let disturbed = self.conditions.iter().filter(|part| part.disturbance.is_too_much());
        let names: Vec<&str> = disturbed.map(|part| part.part).collect();
        if !names.is_empty() {
            let names = names.join(", ");
            table.title += &format!(" (the machine was TOO BUSY to believe those of: {names})");
        }
        table
    }

    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.conditions.iter().filter_map(condition_note).collect();
        notes.extend(self.checks.iter().map(check_note));
        if let Some(reason) = &self.nbd_skipped {
            notes.push(format!("NBD skipped: {reason}"));
        }
        notes.push(failover_note(&self.lab.failover));
        notes.push(match &self.lab.automatic {
            Some(found) => {
                format!("with etcd and nobody touching anything: {}", found.verified.verdict())
            }
            None => "automatic failover skipped: etcd is not installed".to_owned(),
        });
        notes.push(String::from(
            "EMULATED are the disks of the pool, the mirror, the fabric and the failover, and the link and \
             network between their nodes: nothing of these is a measurement of a cloud",
        ));
        notes.push(self.bottleneck());
        notes
    }

    fn bottleneck(&self) -> String {
        let of_fabric = |row: &GridRow| [Some(row.nvme_tcp), row.nbd];
        let all: Vec<PathFigures> = self.rows.iter().flat_map(of_fabric).flatten().collect();
        let bound = all.iter().filter(|figures| figures.cpu_busy >= CPU_BOUND).count();
        let cpus = self.cpus;
        let shared =
            format!("client, server and the kernel's TCP share this machine's {cpus} CPUs");
        match bound {
            0 => format!(
                "bound by: the disk and, at depth 1, the round trip; {shared}, which were never \
                 busier than {:.0} %",
                all.iter().map(|figures| figures.cpu_busy).fold(0.0, f64::max) * 100.0
            ),
            _ => format!(
                "bound by: the CPU in {bound} of {} fabric measurements (90 % busy or more: \
                 {shared}); by the disk or the round trip in the others",
                all.len()
            ),
        }
    }
}

fn condition_note(part: &PartConditions) -> Option<String> {
    let of = |found: Disturbance| {
        let Disturbance { others_percent, steal_percent } = found;
        format!("{others_percent:.0} % of the CPUs, and the hypervisor {steal_percent:.0} %")
    };
    let first = part.repeated_for?;
    let (name, first, last) = (part.part, of(first), of(part.disturbance));
    Some(match part.disturbance.is_too_much() {
        true => format!(
            "too busy: during {name} other processes took {first}, in a second try {last}; repeat it \
             on a quiet machine"
        ),
        false => format!(
            "{name} was measured twice: other processes took {first} at first, {last} in the \
             figures shown"
        ),
    })
}

fn check_note(check: &DataCheck) -> String {
    let how = match check.path {
        AccessPath::NvmeTcp => "NVMe/TCP, flagstone load --verify",
        _ => "NBD, fio --verify=crc32c",
    };
    let found = match check.wrong_blocks {
        0 => "all as written".to_owned(),
        wrong => format!("{} WRONG", count(wrong)),
    };
    let (written, checked) = (count(check.blocks_written), count(check.blocks_checked));
    format!("verified over {how}: {written} blocks written, {checked} checked, {found}")
}

fn failover_note(failover: &FailoverSummary) -> String {
    let found = match (failover.verified.wrong_blocks, failover.verified.errors) {
        (0, 0) => "nothing lost, no error".to_owned(),
        (wrong, errors) => {
            format!("{} blocks WRONG, {} requests FAILED", count(wrong), count(errors))
        }
    };
    let mib = |bytes: u64| grouped(bytes as f64 / f64::from(1 << 20), 0);
    format!(
        "the failed node returned with {} of {} MiB copied and was in sync after {} ms, switched back \
         in {} ms; {} blocks written, {} checked, longest wait {} ms: {found}",
        mib(failover.resynced_bytes),
        mib(failover.volume_bytes),
        grouped(failover.return_ms, 0),
        grouped(failover.switchover_ms, 0),
        count(failover.verified.blocks_written),
        count(failover.verified.blocks_checked),
        grouped(failover.longest_ms, 0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bed::SCHEMA_VERSION;
    use crate::demo::grid::{GridDirection, GridWorkload};

    fn figures(iops: f64, latency_mean_us: f64, cpu_busy: f64) -> PathFigures {
        PathFigures { iops, latency_mean_us, latency_p99_us: None, cpu_busy }
    }

    fn report(nbd: Option<PathFigures>) -> DemoReport {
        let workload =
            GridWorkload { block_bytes: 4096, direction: GridDirection::Read, depth: 32 };
        let local = figures(100_000.0, 320.0, 0.4);
        let mut lab = tables::tests::experiments();
        lab.failover.longest_ms = 1234.0;
        DemoReport {
            schema_version: SCHEMA_VERSION,
            flagstone: "0.1.0".to_owned(),
            local_engine: "io_uring".to_owned(),
            cpus: 2,
            conditions: Vec::new(),
            volume_bytes: 1 << 30,
            seconds: 2.0,
            rows: vec![GridRow { workload, local, nvme_tcp: figures(95_000.0, 336.5, 0.97), nbd }],
            checks: vec![DataCheck {
                path: AccessPath::NvmeTcp,
                blocks_written: 5,
                blocks_checked: 7,
                wrong_blocks: 0,
            }],
            nbd_skipped: nbd.is_none().then(|| "fio has no nbd engine".to_owned()),
            lab,
            took_s: 123.4,
        }
    }

    /// Undoes the wrapping of list items.
    fn unwrapped(text: &str) -> String {
        text.replace("\n  ", " ")
    }

    #[test]
    fn report_sections_match_terminal_text() {
        let report = report(None);
        let (text, sections) = (report.text(), report.sections());
        assert!(text.starts_with("the most important numbers\n") && text.contains("it took 123 s"));
        assert_eq!(sections.tables[0].table, tables::headline(&report.lab, &report.rows));
        for note in &sections.caveats {
            assert!(text.contains(&list_item(note)), "{note}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn busy_machine_is_reported() {
        let mut report = report(None);
        let busy = Disturbance { others_percent: 31.0, steal_percent: 4.0 };
        let part = PartConditions {
            part: "mirror",
            disturbance: busy,
            repeated_for: Some(Disturbance { others_percent: 50.0, ..busy }),
        };
        report.conditions.push(part.clone());
        let text = unwrapped(&report.text());
        assert!(text.contains("TOO BUSY to believe those of: mirror)"), "{text}");
        assert!(
            text.contains("took 50 % of the CPUs, and the hypervisor 4 %, in a second try 31 %")
        );
        report.conditions[0] = PartConditions { disturbance: Disturbance::default(), ..part };
        let text = unwrapped(&report.text());
        assert!(!text.contains("TOO BUSY") && text.contains("mirror was measured twice"), "{text}");
    }

    #[test]
    fn ratio_and_added_latency_are_against_local_disk() {
        let text = report(Some(figures(50_000.0, 640.0, 0.5))).text();
        let row = text.lines().find(|line| line.starts_with("  read")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        let expected = "read 32 100,000 320.0 95,000 0.95 +16.5 50,000 0.50 +320.0";
        assert_eq!(cells.join(" "), expected);
        let text = unwrapped(&text);
        assert!(text.contains("the CPU in 1 of 2 fabric measurements"), "{text}");
        assert!(text.contains("5 blocks written, 7 checked, all as written"), "{text}");
    }

    #[test]
    fn missing_nbd_engine_is_reported() {
        let text = report(None).text();
        assert!(text.contains("NBD skipped: fio has no nbd engine"), "{text}");
        assert!(text.lines().any(|line| line.contains("+16.5") && line.contains("skipped")));
    }

    #[test]
    fn wrong_or_unchecked_blocks_fail_the_demo() {
        let mut all = report(None);
        assert!(all.is_right());
        all.checks[0].wrong_blocks = 1;
        assert!(!all.is_right() && unwrapped(&all.text()).contains("1 WRONG"));
        all.checks[0] = DataCheck { wrong_blocks: 0, blocks_checked: 0, ..all.checks[0].clone() };
        assert!(!all.is_right());
        all = report(None);
        assert!(unwrapped(&all.text()).contains("longest wait 1,234 ms: nothing lost, no error"));
        all.lab.failover.verified.errors = 2;
        assert!(!all.is_right() && unwrapped(&all.text()).contains("2 requests FAILED"));
    }
}

//! What came of it all: the table's numbers, the checks, and what bound the numbers.

use flagstone_bench::report::Extras;
use flagstone_bench::table::{Form, Table as PlainTable};
use flagstone_lab::failover;
use serde::Serialize;

use crate::grid::{Cell, Measured, Path};
use crate::headline;
use crate::lab::Found;
use crate::load::Verified;
use crate::table::{Table, grouped};

/// Busy so much, the CPUs are what binds, from 0 to 1.
const CPU_BINDS: f64 = 0.9;

/// Above the table of the served volume.
const SERVED: &str = "a volume on a file, attached on the same machine";

/// Busy so much with other programs, the machine does not show what it can do, from 0 to 1.
const DISTURBED: f64 = 0.15;

/// One row: a cell over every path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What was measured.
    #[serde(flatten)]
    pub cell: Cell,
    /// The file itself.
    pub local: Measured,
    /// Over NVMe/TCP.
    pub nvme_tcp: Measured,
    /// Over NBD; `None` where fio cannot.
    pub nbd: Option<Measured>,
}

/// A check of the data over one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Which.
    pub path: Path,
    /// Blocks of 4 KiB written.
    pub blocks_written: u64,
    /// Blocks read and compared.
    pub blocks_checked: u64,
    /// Blocks that were not what was written.
    pub wrong_blocks: u64,
}

impl Check {
    pub(crate) fn nvme_tcp(verified: Verified) -> Check {
        Check {
            path: Path::NvmeTcp,
            blocks_written: verified.blocks_written,
            blocks_checked: verified.blocks_checked,
            wrong_blocks: verified.violations,
        }
    }
}

/// A mirrored volume, one of whose nodes died.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Survived {
    /// Blocks of 4 KiB written.
    pub blocks_written: u64,
    /// Blocks read and compared.
    pub blocks_checked: u64,
    /// Blocks that were not what was written.
    pub wrong_blocks: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Longest time that a request took, in µs: the take-over, or the switchover.
    pub longest_us: f64,
    /// From the death of the source to the end of the command that made the other one the source,
    /// in ms.
    pub failover_ms: f64,
    /// What was copied to the node that had been dead, of `volume_bytes`.
    pub resynced_bytes: u64,
    /// Size of the volume.
    pub volume_bytes: u64,
    /// From its start until it was in sync, in ms.
    pub return_ms: f64,
    /// The planned switchover back, in ms.
    pub switchover_ms: f64,
}

impl Survived {
    /// Nothing was lost, and no host saw an error.
    pub fn is_right(&self) -> bool {
        self.wrong_blocks == 0 && self.errors == 0 && self.blocks_checked > 0
    }
}

impl From<&failover::Summary> for Survived {
    fn from(summary: &failover::Summary) -> Survived {
        Survived {
            blocks_written: summary.blocks_written,
            blocks_checked: summary.blocks_checked,
            wrong_blocks: summary.wrong_blocks,
            errors: summary.errors,
            longest_us: summary.longest_ms * 1e3,
            failover_ms: summary.failover_ms,
            resynced_bytes: summary.resynced_bytes,
            volume_bytes: summary.volume_bytes,
            return_ms: summary.return_ms,
            switchover_ms: summary.switchover_ms,
        }
    }
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Version of this form; rises when a field changes its meaning or goes away.
    pub schema_version: u32,
    /// What `flagstone --version` says.
    pub flagstone: String,
    /// fio's engine for the local disk.
    pub local_engine: String,
    /// CPUs that server and clients share.
    pub cpus: usize,
    /// How busy other programs kept them before anything was measured, 0 to 1.
    pub others_busy: f64,
    /// Size of the volume.
    pub volume_bytes: u64,
    /// Seconds that each number was measured.
    pub seconds: f64,
    /// The numbers.
    pub rows: Vec<Row>,
    /// The checks of the data.
    pub checks: Vec<Check>,
    /// Why there is no NBD, if there is none.
    pub nbd_skipped: Option<String>,
    /// A mirrored volume, one of whose nodes died.
    pub mirror: Survived,
    /// The experiments of the lab.
    pub lab: Found,
    /// How long all of it took, in seconds.
    pub took_s: f64,
}

/// [`Report::schema_version`].
pub const SCHEMA_VERSION: u32 = 1;

impl Report {
    /// Whether every block that was checked was right.
    pub fn is_right(&self) -> bool {
        let right = |check: &Check| check.wrong_blocks == 0 && check.blocks_checked > 0;
        self.checks.iter().all(right) && self.mirror.is_right()
    }

    /// As text for people: the most important first.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let mut add = |table: &PlainTable| text += &(table.write(Form::Text) + "\n");
        add(&headline::numbers(&self.lab, &self.rows));
        headline::mirror(&self.lab.mirror).iter().for_each(&mut add);
        add(&headline::fabric(&self.lab.fabric));
        text += &format!("{SERVED}\n{}\n", self.table().render());
        self.said().iter().for_each(|said| text += &wrapped(said));
        text += &format!("it took {:.0} s\n", self.took_s);
        text
    }

    /// What stands above the experiments in the report.
    pub fn extras(&self) -> Extras {
        let mut tables = vec![headline::numbers(&self.lab, &self.rows)];
        tables.push(headline::served(&self.rows, &self.local_engine));
        Extras::new("Flagstone in three minutes")
            .with_tables("demo", tables)
            .with_doubts(&self.said())
    }

    /// What the tables do not say.
    fn said(&self) -> Vec<String> {
        let mut said: Vec<String> = self.checks.iter().map(Report::check).collect();
        if let Some(reason) = &self.nbd_skipped {
            said.push(format!("NBD skipped: {reason}"));
        }
        said.push(survived(&self.mirror));
        said.push(String::from(
            "EMULATED are the disks of the mirror, the fabric and the dying node, and the link and \
             the network between them: nothing of these is a measurement of a cloud",
        ));
        said.push(self.binding());
        if self.others_busy >= DISTURBED {
            said.push(format!(
                "disturbed: other programs kept the CPUs {:.0} % busy before the first measurement",
                self.others_busy * 100.0
            ));
        }
        said
    }

    fn table(&self) -> Table {
        let engine = format!("local ({})", self.local_engine);
        let mut table = Table::new(&[("", 3), (&engine, 2), ("NVMe/TCP", 3), ("NBD", 3)]);
        let of_path = ["IOPS", "ratio", "added µs"];
        let mut header = vec!["block", "random", "depth", "IOPS", "mean µs"];
        header.extend(of_path.iter().chain(&of_path));
        table.row(header.into_iter().map(str::to_owned).collect());
        table.rule();
        for (index, row) in self.rows.iter().enumerate() {
            if index > 0 && row.cell.block_bytes != self.rows[index - 1].cell.block_bytes {
                table.rule();
            }
            let Cell { block_bytes, direction, depth } = row.cell;
            let mut cells = vec![
                format!("{} KiB", block_bytes >> 10),
                direction.name().to_owned(),
                depth.to_string(),
                grouped(row.local.iops),
                format!("{:.1}", row.local.latency_mean_us),
            ];
            for fabric in [Some(row.nvme_tcp), row.nbd] {
                cells.extend(compared(row.local, fabric));
            }
            table.row(cells);
        }
        table
    }

    fn check(check: &Check) -> String {
        let how = match check.path {
            Path::NvmeTcp => "NVMe/TCP, flagstone load --verify",
            _ => "NBD, fio --verify=crc32c",
        };
        let found = match check.wrong_blocks {
            0 => "all as written".to_owned(),
            wrong => format!("{} WRONG", grouped(wrong as f64)),
        };
        let written = grouped(check.blocks_written as f64);
        let checked = grouped(check.blocks_checked as f64);
        format!("verified over {how}: {written} blocks written, {checked} checked, {found}")
    }

    /// One honest line about what bound the numbers.
    fn binding(&self) -> String {
        let of_fabric = |row: &Row| [Some(row.nvme_tcp), row.nbd];
        let all: Vec<Measured> = self.rows.iter().flat_map(of_fabric).flatten().collect();
        let bound = all.iter().filter(|measured| measured.cpu_busy >= CPU_BINDS).count();
        let cpus = self.cpus;
        let shared =
            format!("client, server and the kernel's TCP share this machine's {cpus} CPUs");
        match bound {
            0 => format!(
                "bound by: the disk and, at depth 1, the round trip; {shared}, which were never \
                 busier than {:.0} %",
                all.iter().map(|m| m.cpu_busy).fold(0.0, f64::max) * 100.0
            ),
            _ => format!(
                "bound by: the CPU in {bound} of {} fabric measurements (90 % busy or more: \
                 {shared}); by the disk or the round trip in the others",
                all.len()
            ),
        }
    }
}

/// What became of the mirrored volume.
fn survived(mirror: &Survived) -> String {
    let found = match (mirror.wrong_blocks, mirror.errors) {
        (0, 0) => "nothing lost, no error".to_owned(),
        (wrong, errors) => {
            format!(
                "{} blocks WRONG, {} requests FAILED",
                grouped(wrong as f64),
                grouped(errors as f64)
            )
        }
    };
    let mib = |bytes: u64| grouped(bytes as f64 / f64::from(1 << 20));
    format!(
        "the node that had died came back with {} of {} MiB copied and was in sync after {} ms, \
         switched back in {} ms; {} blocks written, {} checked, longest wait {} ms: {found}",
        mib(mirror.resynced_bytes),
        mib(mirror.volume_bytes),
        grouped(mirror.return_ms),
        grouped(mirror.switchover_ms),
        grouped(mirror.blocks_written as f64),
        grouped(mirror.blocks_checked as f64),
        grouped(mirror.longest_us / 1e3),
    )
}

/// Letters of a line on the terminal.
const WIDTH: usize = 100;

/// In lines of at most [`WIDTH`] letters, the first of which begins a list's item.
fn wrapped(text: &str) -> String {
    let (mut out, mut line) = (String::new(), "-".to_owned());
    for word in text.split(' ') {
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            out += &(std::mem::replace(&mut line, " ".to_owned()) + "\n");
        }
        line += &format!(" {word}");
    }
    out + &line + "\n"
}

/// IOPS, ratio to local, and added latency.
fn compared(local: Measured, fabric: Option<Measured>) -> [String; 3] {
    let Some(fabric) = fabric else { return ["skipped", "", ""].map(str::to_owned) };
    [
        grouped(fabric.iops),
        format!("{:.2}", fabric.iops / local.iops),
        format!("{:+.1}", fabric.latency_mean_us - local.latency_mean_us),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::Direction;

    fn measured(iops: f64, latency_mean_us: f64, cpu_busy: f64) -> Measured {
        Measured { iops, latency_mean_us, latency_p99_us: 0.0, cpu_busy }
    }

    fn report(nbd: Option<Measured>) -> Report {
        let cell = Cell { block_bytes: 4096, direction: Direction::Read, depth: 32 };
        let local = measured(100_000.0, 320.0, 0.4);
        Report {
            schema_version: SCHEMA_VERSION,
            flagstone: "flagstone 0.1.0".to_owned(),
            local_engine: "io_uring".to_owned(),
            cpus: 2,
            others_busy: 0.0,
            volume_bytes: 1 << 30,
            seconds: 2.0,
            rows: vec![Row { cell, local, nvme_tcp: measured(95_000.0, 336.5, 0.97), nbd }],
            checks: vec![Check {
                path: Path::NvmeTcp,
                blocks_written: 5,
                blocks_checked: 7,
                wrong_blocks: 0,
            }],
            nbd_skipped: nbd.is_none().then(|| "fio has no nbd engine".to_owned()),
            mirror: Survived {
                blocks_written: 11,
                blocks_checked: 13,
                wrong_blocks: 0,
                errors: 0,
                longest_us: 1_234_000.0,
                failover_ms: 80.0,
                resynced_bytes: 5 << 20,
                volume_bytes: 255 << 20,
                return_ms: 300.0,
                switchover_ms: 20.0,
            },
            lab: crate::headline::tests::found(),
            took_s: 123.4,
        }
    }

    #[test]
    fn the_report_says_what_the_terminal_does() {
        let report = report(None);
        let (text, extras) = (report.render(), report.extras());
        assert!(text.starts_with("the most important numbers\n") && text.contains("it took 123 s"));
        assert_eq!(extras.tables[0].table, headline::numbers(&report.lab, &report.rows));
        for doubt in &extras.doubts {
            assert!(text.contains(&wrapped(doubt)), "{doubt}");
        }
        assert!(text.lines().all(|line| !line.starts_with("- ") || line.chars().count() <= WIDTH));
    }

    /// Without the breaks of long lines.
    fn flat(text: &str) -> String {
        text.replace("\n  ", " ")
    }

    #[test]
    fn ratios_and_added_latency_are_of_the_local_disk() {
        let text = report(Some(measured(50_000.0, 640.0, 0.5))).render();
        let row = text.lines().find(|line| line.starts_with("4 KiB  read")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().filter(|cell| *cell != "│").collect();
        let expected = "4 KiB read 32 100,000 320.0 95,000 0.95 +16.5 50,000 0.50 +320.0";
        assert_eq!(cells.join(" "), expected);
        let text = flat(&text);
        assert!(text.contains("the CPU in 1 of 2 fabric measurements"), "{text}");
        assert!(text.contains("5 blocks written, 7 checked, all as written"), "{text}");
    }

    #[test]
    fn a_path_that_cannot_be_measured_is_said_to_be_skipped() {
        let text = report(None).render();
        assert!(text.contains("NBD skipped: fio has no nbd engine"), "{text}");
        assert!(text.lines().any(|line| line.contains("+16.5") && line.contains("skipped")));
    }

    #[test]
    fn a_wrong_block_or_none_checked_is_not_right() {
        let mut all = report(None);
        assert!(all.is_right());
        all.checks[0].wrong_blocks = 1;
        assert!(!all.is_right() && flat(&all.render()).contains("1 WRONG"));
        all.checks[0] = Check { wrong_blocks: 0, blocks_checked: 0, ..all.checks[0].clone() };
        assert!(!all.is_right());
        all = report(None);
        assert!(flat(&all.render()).contains("longest wait 1,234 ms: nothing lost, no error"));
        all.mirror.errors = 2;
        assert!(!all.is_right() && flat(&all.render()).contains("2 requests FAILED"));
    }
}

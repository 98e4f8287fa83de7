//! Experiment D on a real disk: what it does against what its cloud sells it as, cell by cell as the
//! page has them.

use flagstone_bench::campaign::Watcher;
use flagstone_bench::nature::Nature;
use flagstone_bench::os::Interrupt;
use flagstone_bench::table::Table;
use flagstone_bench::target::Target;
use flagstone_bench::units::format_number;
use serde::Serialize;

use super::provisioned::{Kind, sizes, wrong};
use super::{Common, Figures, here};
use crate::Error;
use crate::page::{self, Column, PAGE_MB_BYTES, SOLD, TOLERANCE_PERCENT, printed};

/// Version of the JSON form.
pub const SCHEMA_VERSION: u32 = 1;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// As of every experiment.
    pub common: Common,
    /// The disk: all of it is written to.
    pub disk: Target,
    /// What it is.
    pub kind: Kind<'a>,
}

/// A cell of the page.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// Such as `write-16k`.
    pub what: &'static str,
    /// `IOPS`, or the page's `MB/s` of 1,024,000 bytes.
    pub unit: &'static str,
    /// What the catalogue says that the disk does.
    pub predicted: f64,
    /// What the page prints, if it has this disk on this machine.
    pub published: Option<f64>,
    /// In that unit.
    pub measured: f64,
    /// By how much more was measured than is predicted, in %.
    pub difference_percent: f64,
    /// Whether that is within 2 %.
    pub agrees: bool,
    /// All of the measurement.
    pub figures: Figures,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// `limits`.
    pub experiment: &'static str,
    /// Whether it is known to be no real disk.
    pub emulated: bool,
    /// Always true: the disk is the user's.
    pub real_nodes: bool,
    /// As it was named.
    pub disk: String,
    /// Its size.
    pub size_bytes: u64,
    /// What the planner was asked for.
    #[serde(rename = "type")]
    pub kind: String,
    /// What the planner was asked for.
    pub machine: String,
    /// Where the planner looked.
    pub catalogue: String,
    /// In the page's order.
    pub cells: Vec<Cell>,
    /// What the numbers do not say by themselves.
    pub doubts: Vec<String>,
}

/// What came of it.
pub type Outcome = crate::Outcome<Summary>;

/// Runs the experiment.
///
/// # Errors
/// What went wrong. The user's interruption while things are measured is an [`Ending`].
pub fn run(
    options: &Options<'_>,
    watcher: &mut dyn Watcher,
    interrupt: &Interrupt,
) -> Result<Outcome, Error> {
    let Options { common, disk, kind } = options;
    common.guard(std::slice::from_ref(disk), true)?;
    let sizes = sizes(common, std::slice::from_ref(disk), interrupt)?;
    let size_bytes = sizes[&disk.address()];
    for column in &SOLD {
        predicted(kind, size_bytes, column)?;
    }
    let jobs = SOLD.iter().map(|column| page::job(column, common.ramp_ms, common.runtime_ms));
    let title = "Experiment D on a real disk: what it does against what it is sold as";
    let plan = common.plan(("limits", title), jobs.collect(), vec![disk.clone()]);
    let measured = common.measure(&plan, watcher, interrupt)?;
    let mut cells = Vec::new();
    for column in &SOLD {
        let Some(figures) = Figures::of(&measured.records, column.job, &disk.name) else {
            continue;
        };
        let predicted = predicted(kind, size_bytes, column)?;
        cells.push(cell(kind, size_bytes, column, predicted, figures));
    }
    Ok(Outcome { ending: measured.ending, summary: summary(options, size_bytes, cells) })
}

fn predicted(kind: &Kind<'_>, bytes: u64, column: &Column) -> Result<f64, Error> {
    let workload = column.workload();
    let found = kind.catalogue.predict(&kind.of_size(bytes)?, &workload).map_err(wrong)?;
    Ok(match column.is_throughput {
        true => found.allowed.bytes_per_s / PAGE_MB_BYTES,
        false => found.allowed.iops,
    })
}

fn cell(kind: &Kind<'_>, bytes: u64, column: &Column, predicted: f64, figures: Figures) -> Cell {
    let measured = match column.is_throughput {
        true => figures.mib_per_s * f64::from(1 << 20) / PAGE_MB_BYTES,
        false => figures.iops,
    };
    let difference_percent = 100.0 * (measured / predicted - 1.0);
    let gb = (bytes as f64 / 1e9).round() as u32;
    let is_page = kind.catalogue.name == page::CATALOGUE;
    Cell {
        what: column.job,
        unit: column.unit(),
        predicted,
        published: printed(&kind.kind, gb, &kind.machine, column).filter(|_| is_page),
        measured,
        difference_percent,
        agrees: difference_percent.abs() <= TOLERANCE_PERCENT,
        figures,
    }
}

fn summary(options: &Options<'_>, size_bytes: u64, cells: Vec<Cell>) -> Summary {
    let Kind { catalogue, kind, machine } = &options.kind;
    let figures: Vec<&Figures> = cells.iter().map(|cell| &cell.figures).collect();
    let agree = cells.iter().filter(|cell| cell.agrees).count();
    let mut doubts = vec![format!(
        "{agree} of {} cells are within {TOLERANCE_PERCENT:.0} % of what {} says",
        cells.len(),
        catalogue.name
    )];
    doubts.extend(options.common.doubts(&figures));
    doubts.push(format!(
        "that the disk is {kind} on {machine} was told, not found out; its size was read"
    ));
    doubts.push("MB/s are the page's: 1,000 KB of 1,024 bytes".to_owned());
    Summary {
        schema_version: SCHEMA_VERSION,
        experiment: "limits",
        emulated: figures.iter().any(|figures| figures.is_emulated()),
        real_nodes: true,
        disk: options.disk.name.clone(),
        size_bytes,
        kind: kind.clone(),
        machine: machine.clone(),
        catalogue: catalogue.name.clone(),
        cells,
        doubts,
    }
}

/// Each cell: what is sold, and what came out.
pub fn table(summary: &Summary) -> Table {
    let figures: Vec<&Figures> = summary.cells.iter().map(|cell| &cell.figures).collect();
    let suffix = figures.iter().map(|figures| figures.nature).max().map_or("", Nature::suffix);
    let measured = format!("measured{suffix}");
    let head = ["what", "page prints", "catalogue", &measured, "difference", "agrees", "n", "CPU"];
    let title = format!(
        "{}, {} GB of {}: {}, and as {} has it",
        summary.disk,
        format_number(summary.size_bytes as f64 / 1e9, 0),
        summary.kind,
        here(&figures, Some(&summary.machine)),
        summary.catalogue
    );
    let mut table = Table::new(title, &head);
    for cell in &summary.cells {
        let figure = |value: f64| format!("{} {}", format_number(value, 0), cell.unit);
        let dash = || "-".to_owned();
        let verdict = match cell.difference_percent {
            _ if cell.agrees => "yes",
            percent if percent > 0.0 => "no: more",
            _ => "NO: less",
        };
        table.rows.push(vec![
            cell.what.to_owned(),
            cell.published.map_or_else(dash, figure),
            figure(cell.predicted),
            figure(cell.measured),
            format!("{:.1} %", cell.difference_percent),
            verdict.to_owned(),
            cell.figures.repetitions.to_string(),
            cell.figures.cpu_percent.map_or_else(dash, |percent| format!("{percent:.0} %")),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::tests::common;
    use flagstone_cloud::Catalogue;

    fn kind(machine: &str) -> Kind<'static> {
        let catalogue = Catalogue::builtin(page::CATALOGUE).unwrap();
        Kind { catalogue, kind: "pd-ssd".to_owned(), machine: machine.to_owned() }
    }

    fn figures(iops: f64) -> Figures {
        Figures {
            nature: Nature::Real,
            repetitions: 4,
            mib_per_s: iops * 16.0 / 1024.0,
            iops,
            latency_ms: 1.0,
            latency_p99_ms: None,
            noise_percent: None,
            cpu_percent: Some(10.0),
        }
    }

    #[test]
    fn a_disk_is_judged_by_what_it_is_sold_as() {
        let bytes = 500_000_000_000;
        let kind = kind("n1-standard-8");
        let column = &SOLD[0];
        let sold = predicted(&kind, bytes, column).unwrap();
        assert_eq!(sold, 15_000.0);
        let of = |iops| cell(&kind, bytes, column, sold, figures(iops));
        let cells = vec![of(14_900.0), of(12_000.0), of(20_000.0)];
        assert_eq!(cells[0].published, Some(15_000.0));
        let disk: Target = "/dev/sdb".parse().unwrap();
        let options = Options { common: common("r".into()), disk, kind: kind.clone() };
        let found = summary(&options, bytes, cells);
        assert!(found.doubts[0].starts_with("1 of 3 cells"), "{:?}", found.doubts);
        let table = table(&found);
        let verdicts: Vec<_> = table.rows.iter().map(|row| row[5].as_str()).collect();
        assert_eq!(verdicts, ["yes", "NO: less", "no: more"]);
        assert!(table.title.starts_with("/dev/sdb, 500 GB of pd-ssd: here on n1-standard-8, and"));
    }

    #[test]
    fn what_the_page_does_not_have_is_not_printed() {
        let found = cell(&kind("n1-standard-4"), 500_000_000_000, &SOLD[0], 1.0, figures(1.0));
        assert_eq!(found.published, None);
        assert!(predicted(&kind("z9"), 500_000_000_000, &SOLD[0]).is_err());
    }
}

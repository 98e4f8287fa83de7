//! Experiment B: local NVMe SSDs against the same SSDs over NVMe/TCP, beside what MayaScale
//! published.
//!
//! The emulated bed measures one to four striped SSDs in the process of the generator, as a local
//! disk is, and through a server with the network limit of the published machine. `scale` slows
//! disks and network down so that a machine with few CPUs reaches their limits.
//!
//! The given bed takes two runs, one on each machine: on the server, which measures its devices,
//! and on the client, which measures one served volume for each number of SSDs. The client's run
//! takes the results of the server's and shows both.

mod emulated;
mod given;

use flagstone_bench::campaign::Watcher;
use flagstone_bench::job::{AccessPattern, BenchJob};
use flagstone_bench::process::Interrupt;
use flagstone_bench::provenance::Provenance;
use flagstone_bench::results::ResultRecord;
use flagstone_bench::table::Table;
use flagstone_units::grouped;
use serde::Serialize;

pub use self::emulated::EmulatedFabric;
use self::emulated::{bottleneck, model};
pub use self::given::GivenFabric;
use crate::Error;
use crate::bed::{self, ExperimentOutcome, RunOptions, SCHEMA_VERSION, here, suffix};
use crate::figures::{self, Figures, or_dash, percent};

/// Largest number of SSDs, as published.
pub const DISKS: u32 = 4;
const SUITE: &str = "fabric";
const LOCAL: &str = "local";
const FABRIC: &str = "NVMe/TCP";
const DEPTH: u32 = 32;
/// Published thousands of IOPS by number of SSDs: local, and over NVMe/TCP.
const PUBLISHED: [(AccessPattern, [(f64, f64); 4]); 2] = [
    (AccessPattern::RandWrite, [(100., 100.), (200., 199.), (299., 299.), (398., 368.)]),
    (AccessPattern::RandRead, [(180., 180.), (360., 360.), (522., 413.), (659., 384.)]),
];

#[derive(Clone, Debug)]
pub enum FabricBed {
    Emulated(EmulatedFabric),
    Given(GivenFabric),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FabricBottleneck {
    Disks,
    Network,
    Cpu,
    Latency,
}

impl FabricBottleneck {
    pub fn words(self) -> &'static str {
        match self {
            FabricBottleneck::Disks => "the disks",
            FabricBottleneck::Network => "the network",
            FabricBottleneck::Cpu => "the CPU of this machine",
            FabricBottleneck::Latency => "latency",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FabricSide {
    #[serde(flatten)]
    pub figures: Figures,
    /// IOPS that the emulated disks and network allow; none for given ones.
    pub(crate) model_iops: Option<f64>,
    /// Bottleneck of the result; none for given disks.
    pub bound: Option<FabricBottleneck>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FabricRow {
    pub rw: AccessPattern,
    pub disks: u32,
    pub local: Option<FabricSide>,
    pub fabric: Option<FabricSide>,
    pub of_local_percent: Option<f64>,
    pub(crate) published_local_iops: f64,
    pub(crate) published_fabric_iops: f64,
}

impl FabricRow {
    /// Published IOPS over the fabric, in % of the local ones.
    pub(crate) fn published_of_local_percent(&self) -> f64 {
        100.0 * self.published_fabric_iops / self.published_local_iops
    }

    fn sides(&self) -> impl Iterator<Item = (&'static str, &FabricSide)> {
        let sides = [(LOCAL, &self.local), (FABRIC, &self.fabric)];
        sides.into_iter().filter_map(|(name, side)| Some((name, side.as_ref()?)))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FabricSummary {
    pub schema_version: u32,
    pub experiment: &'static str,
    pub emulated: bool,
    /// Whether the disks are the user's.
    pub real_nodes: bool,
    pub machine: Option<String>,
    /// Factor by which emulated disks and network are slower than the published ones; 1 for given
    /// ones.
    pub scale: u32,
    /// Writes, then reads, by number of SSDs.
    pub rows: Vec<FabricRow>,
    pub caveats: Vec<String>,
}

/// Runs the experiment, or one machine's part of it on a given bed.
///
/// # Errors
/// The first failure. The user's interruption during the measurements is a
/// [`CampaignEnd`](flagstone_bench::campaign::CampaignEnd).
pub fn run(
    run: &RunOptions,
    bed: &FabricBed,
    watcher: &mut dyn Watcher,
    interrupt: &Interrupt,
) -> Result<ExperimentOutcome<FabricSummary>, Error> {
    let (end, records) = match bed {
        FabricBed::Emulated(bed) => bed.measure(run, watcher, interrupt)?,
        FabricBed::Given(bed) => bed.measure(run, watcher, interrupt)?,
    };
    Ok(ExperimentOutcome { end, summary: summary(bed, &records) })
}

fn job(run: &RunOptions, pattern: AccessPattern, disks: u32) -> BenchJob {
    BenchJob { depth: DEPTH, disks, ..run.job(format!("{pattern}-x{disks}"), pattern) }
}

fn summary(bed: &FabricBed, records: &[ResultRecord]) -> FabricSummary {
    let mut rows = Vec::new();
    for (rw, published) in PUBLISHED {
        for (disks, (local_k, fabric_k)) in (1..).zip(published) {
            let side = |name: &str| side(bed, records, (rw, disks), name);
            let (local, fabric) = (side(LOCAL), side(FABRIC));
            if local.is_none() && fabric.is_none() {
                continue;
            }
            let both = local.zip(fabric);
            rows.push(FabricRow {
                rw,
                disks,
                of_local_percent: both
                    .map(|(local, fabric)| 100.0 * fabric.figures.iops / local.figures.iops),
                local,
                fabric,
                published_local_iops: local_k * 1e3,
                published_fabric_iops: fabric_k * 1e3,
            });
        }
    }
    let (machine, scale) = match bed {
        FabricBed::Emulated(bed) => (None, bed.scale),
        FabricBed::Given(bed) => (bed.targets.machine.clone(), 1),
    };
    let figures = figures(&rows);
    let mut caveats = bed::caveats(machine.as_ref(), &figures);
    let emulated = figures.iter().any(|figures| bed::is_emulated(figures.provenance));
    caveats.extend(match bed {
        FabricBed::Emulated(bed) => bed.caveats(&rows),
        FabricBed::Given(bed) => bed.caveats(&rows),
    });
    FabricSummary {
        schema_version: SCHEMA_VERSION,
        experiment: "fabric",
        emulated,
        real_nodes: matches!(bed, FabricBed::Given(_)),
        machine,
        scale,
        rows,
        caveats,
    }
}

fn side(
    bed: &FabricBed,
    records: &[ResultRecord],
    (rw, disks): (AccessPattern, u32),
    name: &str,
) -> Option<FabricSide> {
    let figures = Figures::of(records, &format!("{rw}-x{disks}"), name)?;
    let (model_iops, bound) = match bed {
        FabricBed::Emulated(bed) => {
            let (iops, by_model) = model(bed.scale, rw, disks, name == FABRIC);
            (Some(iops), Some(bottleneck(&figures, iops, by_model, name == LOCAL)))
        }
        FabricBed::Given(_) => (None, None),
    };
    Some(FabricSide { figures, model_iops, bound })
}

fn figures(rows: &[FabricRow]) -> Vec<&Figures> {
    rows.iter().flat_map(FabricRow::sides).map(|(_, side)| &side.figures).collect()
}

/// Writes and reads by number of SSDs beside the published figures, and the bottlenecks of emulated
/// disks.
pub fn tables(summary: &FabricSummary) -> Vec<Table> {
    let mut tables: Vec<Table> = PUBLISHED.iter().map(|(rw, _)| by_disks(summary, *rw)).collect();
    tables.push(bottlenecks(summary));
    tables.retain(|table| !table.rows.is_empty());
    tables
}

fn by_disks(summary: &FabricSummary, rw: AccessPattern) -> Table {
    let rows: Vec<&FabricRow> = summary.rows.iter().filter(|row| row.rw == rw).collect();
    let of = |pick: fn(&FabricRow) -> &Option<FabricSide>| {
        suffix(rows.iter().filter_map(move |row| Some(&pick(row).as_ref()?.figures)))
    };
    let heads = format!(
        "SSDs|local{}|published|NVMe/TCP{}|published|of local|published|mean ms|n",
        of(|row| &row.local),
        of(|row| &row.fabric)
    );
    let all: Vec<&Figures> =
        rows.iter().flat_map(|row| row.sides()).map(|(_, side)| &side.figures).collect();
    let slower = match summary.scale {
        1 => String::new(),
        scale => format!(", {scale} times slower"),
    };
    let title = format!(
        "thousands of IOPS, {rw} of 4 KiB: {}{slower}, and as MayaScale published it",
        here(&all, summary.machine.as_ref())
    );
    let mut table = figures::table(title, &heads);
    let thousands = |iops: f64| grouped(iops / 1e3, 1);
    for row in rows {
        let iops =
            |side: &Option<FabricSide>| or_dash(side.as_ref(), |side| thousands(side.figures.iops));
        let last = row.sides().last().map(|(_, side)| side.figures.latency_ms);
        let repetitions = row.sides().map(|(_, side)| side.figures.repetitions).min();
        table.rows.push(vec![
            row.disks.to_string(),
            iops(&row.local),
            thousands(row.published_local_iops),
            iops(&row.fabric),
            thousands(row.published_fabric_iops),
            percent(row.of_local_percent, 0),
            percent(Some(row.published_of_local_percent()), 0),
            or_dash(last, |ms| format!("{ms:.3}")),
            repetitions.unwrap_or(0).to_string(),
        ]);
    }
    table
}

/// Bottleneck of each result; no rows for given disks.
fn bottlenecks(summary: &FabricSummary) -> Table {
    let iops = format!("IOPS{}", Provenance::Emulated.suffix());
    let head = ["rw", "SSDs", "on", &iops, "allowed", "mean ms", "n", "CPU", "bound by"];
    let mut table = Table::new("bottlenecks, on EMULATED disks", &head);
    for row in &summary.rows {
        for (name, side) in row.sides() {
            let (Some(model_iops), Some(bound)) = (side.model_iops, side.bound) else { continue };
            table.rows.push(vec![
                row.rw.to_string(),
                row.disks.to_string(),
                name.to_owned(),
                grouped(side.figures.iops, 0),
                grouped(model_iops, 0),
                format!("{:.3}", side.figures.latency_ms),
                side.figures.repetitions.to_string(),
                percent(side.figures.cpu_percent, 0),
                bound.words().to_owned(),
            ]);
        }
    }
    table
}

#[cfg(test)]
pub(crate) mod tests {
    use flagstone_bench::cpu::CpuUse;
    use flagstone_bench::measurement::Measurement;
    use flagstone_bench::target::{BenchTarget, DiskAddress};

    use super::*;
    use crate::bed::tests::{given, run_options};

    pub(crate) fn record(
        rw: AccessPattern,
        disks: u32,
        on: &str,
        iops: f64,
        provenance: Provenance,
    ) -> ResultRecord {
        let job = job(&run_options("r".into()), rw, disks);
        let disks = vec![DiskAddress::Path("/x".into()); 4];
        let target = BenchTarget { name: on.to_owned(), disks };
        let mut measurement = Measurement::default();
        measurement.total.iops = iops;
        measurement.total.bytes_per_s = iops * 4096.0;
        ResultRecord { provenance, ..ResultRecord::new(SUITE, &job, &target, measurement) }
    }

    /// Reads of four emulated SSDs, 20 times slower.
    pub(crate) fn example() -> FabricSummary {
        let bed = FabricBed::Emulated(EmulatedFabric { scale: 20, disks: vec![4] });
        let read = |on, iops| record(AccessPattern::RandRead, 4, on, iops, Provenance::Emulated);
        summary(&bed, &[read(LOCAL, 36_000.0), read(FABRIC, 24_000.0)])
    }

    #[test]
    fn emulated_results_name_their_bottleneck() {
        let bed = FabricBed::Emulated(EmulatedFabric { scale: 1, disks: (1..=DISKS).collect() });
        let busy = |rw, disks, on, iops, busy: f64| {
            let mut record = record(rw, disks, on, iops, Provenance::Emulated);
            record.measurement.cpu = Some(CpuUse {
                user_percent: busy,
                kernel_percent: 0.0,
                idle_percent: 100.0 - busy,
            });
            record
        };
        use AccessPattern::{RandRead, RandWrite};
        let found = summary(
            &bed,
            &[
                busy(RandWrite, 1, LOCAL, 99_500.0, 50.0),
                busy(RandWrite, 1, FABRIC, 60_000.0, 99.0),
                busy(RandWrite, 2, FABRIC, 150_000.0, 40.0),
                // Four SSDs read more than the network carries.
                busy(RandRead, 4, FABRIC, 477_000.0, 99.0),
            ],
        );
        let sides: Vec<_> = found.rows.iter().flat_map(|row| row.sides()).collect();
        let bound: Vec<_> = sides.iter().map(|(_, side)| side.bound.unwrap()).collect();
        use FabricBottleneck::{Cpu, Disks, Latency, Network};
        assert_eq!(bound, [Disks, Cpu, Latency, Network]);
        let json = serde_json::to_value(&found.rows).unwrap();
        assert_eq!(json[0]["local"]["bound"], "disks");
        assert_eq!(json[0]["fabric"]["iops"], 60_000.0);
        let [_, _, table] = &tables(&found)[..] else { panic!("writes, reads, bottlenecks") };
        assert!(table.title.contains("EMULATED"));
        assert_eq!(table.rows[1].last().unwrap(), "the CPU of this machine");
        let caveats = found.caveats.join("\n");
        assert!(caveats.contains("limited: randwrite x1 NVMe/TCP;"), "{caveats}");
    }

    #[test]
    fn both_sides_stand_beside_published_figures() {
        let read = |on, iops, provenance| record(AccessPattern::RandRead, 4, on, iops, provenance);
        let records =
            [read(LOCAL, 600e3, Provenance::Real), read(FABRIC, 300e3, Provenance::Served)];
        let bed = FabricBed::Given(GivenFabric {
            targets: given(),
            disks: Vec::new(),
            local_results: None,
        });
        let found = summary(&bed, &records);
        assert!(!found.emulated && found.real_nodes);
        let [table] = &tables(&found)[..] else { panic!("only reads") };
        assert_eq!(table.head[1..4], ["local", "published", "NVMe/TCP [served]"]);
        assert_eq!(
            table.rows,
            [["4", "600.0", "659.0", "300.0", "384.0", "50 %", "58 %", "0.000", "1"]]
        );
        let one = summary(&bed, &records[..1]);
        assert!(one.caveats.join("\n").contains("the client's run"));
        let one = summary(&bed, &records[1..]);
        assert!(one.caveats.join("\n").contains("name the server's results"));
    }
}

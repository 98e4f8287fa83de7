//! Experiment A on real nodes: a volume that two of them mirror against one that is not mirrored,
//! beside the published table.
//!
//! The nodes run `flagstone serve` as the guide says; this side is their host. The link's round trip
//! is measured as that of one request at a time to a volume of node B that answers at once, or told.

use flagstone_bench::Error as BenchError;
use flagstone_bench::campaign::Watcher;
use flagstone_bench::generator::Generator;
use flagstone_bench::job::{Job, Pattern};
use flagstone_bench::os::Interrupt;
use flagstone_bench::table::Table;
use flagstone_bench::target::Target;
use flagstone_bench::units::format_size;
use serde::Serialize;

use super::{Common, Figures, here, volume_at};
use crate::Error;
use crate::mirror::published::{IN_FLIGHT, ROWS, Row, latency_overhead, throughput_overhead};

/// Version of the JSON form.
pub const SCHEMA_VERSION: u32 = 1;
/// The suite, for the published table in the report.
const SUITE: &str = "mirror";
/// What the other one is compared with.
const PLAIN: &str = "no mirror";
/// The mirrored one.
const MIRROR: &str = "mirror";
/// How much of the volumes is written to, where they have so much: `-c96G`.
const BYTES_MOST: u64 = 96 << 30;
/// Volumes are used in whole blocks of the largest size.
const GRAIN_BYTES: u64 = 64 << 10;
/// How long the link is measured, in ms.
const LINK_MS: u64 = 2000;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// As of every experiment.
    pub common: Common,
    /// Address of the node that is the source.
    pub node_a: String,
    /// Address of the other one; with it the link is measured.
    pub node_b: Option<String>,
    /// The mirrored volume, on both.
    pub mirrored: String,
    /// The one that is not mirrored, on node A.
    pub plain: String,
    /// One on node B that answers at once.
    pub link: String,
    /// The link's round trip, in µs, if it was told.
    pub rtt_us: Option<u64>,
}

impl Options {
    /// What is measured, what the other is compared with first.
    ///
    /// # Errors
    /// What of the addresses cannot be understood.
    pub fn targets(&self) -> Result<Vec<Target>, Error> {
        let plain = volume_at(&[&self.node_a], &self.plain)?;
        let mirror = volume_at(&[&self.node_a], &self.mirrored)?;
        if plain.disks == mirror.disks {
            let text = "--mirrored and --plain are the same volume".to_owned();
            return Err(BenchError::Usage(text).into());
        }
        Ok(vec![
            Target { name: PLAIN.to_owned(), ..plain },
            Target { name: MIRROR.to_owned(), ..mirror },
        ])
    }

    fn job(&self, row: &Row, size_bytes: u64) -> Job {
        Job {
            name: row.size.to_lowercase(),
            pattern: Pattern::RandWrite,
            block_bytes: row.block_bytes,
            depth: IN_FLIGHT,
            threads: 1,
            disks: 1,
            ramp_ms: self.common.ramp_ms,
            runtime_ms: self.common.runtime_ms,
            size_bytes: Some(size_bytes),
            // -Sh: written through.
            sync: true,
            ..Job::default()
        }
    }
}

/// The link between the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Whether it was measured, else it was told.
    pub is_measured: bool,
    /// A round trip, in µs: if it was measured, that of a request of 4 KiB, with what node B takes.
    pub round_trip_us: f64,
}

/// A row of the published table with what came out here.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// What was published.
    pub published: Row,
    /// With the mirror, here.
    pub mirror: Option<Figures>,
    /// Without, here.
    pub plain: Option<Figures>,
    /// What is lost of the throughput without a mirror, in %.
    pub throughput_overhead_percent: Option<f64>,
    /// What is more than the latency without a mirror, in % of the one with it.
    pub latency_overhead_percent: Option<f64>,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// `mirror`.
    pub experiment: &'static str,
    /// Whether any of it is known to be no real disk.
    pub emulated: bool,
    /// Always true: the nodes are the user's.
    pub real_nodes: bool,
    /// Type of the machines, as it was told.
    pub machine: Option<String>,
    /// How much of the volumes was written to, in bytes.
    pub used_bytes: u64,
    /// Between the nodes, if it is known.
    pub link: Option<Link>,
    /// The published table beside ours.
    pub table: Vec<Side>,
    /// What the numbers do not say by themselves.
    pub doubts: Vec<String>,
}

impl Summary {
    /// Whether there is anything to show.
    pub fn is_empty(&self) -> bool {
        self.table.iter().all(|side| side.plain.is_none() && side.mirror.is_none())
    }
}

/// What came of it.
pub type Outcome = crate::Outcome<Summary>;

/// Runs the experiment. What it measures is in the results' directory as soon as it is measured.
///
/// # Errors
/// What went wrong. The user's interruption while things are measured is an [`Ending`].
pub fn run(
    options: &Options,
    watcher: &mut dyn Watcher,
    interrupt: &Interrupt,
) -> Result<Outcome, Error> {
    let common = &options.common;
    let targets = options.targets()?;
    common.guard(&targets, true)?;
    let used_bytes = used_bytes(options, &targets, interrupt)?;
    let link = link(options, watcher, interrupt)?;
    let jobs = ROWS.iter().map(|row| options.job(row, used_bytes)).collect();
    let title = "Experiment A on real nodes: a mirror against no mirror";
    let plan = common.plan((SUITE, title), jobs, targets);
    let measured = common.measure(&plan, watcher, interrupt)?;
    let table = ROWS.iter().map(|row| side(row, &measured.records)).collect();
    let mut summary = Summary {
        schema_version: SCHEMA_VERSION,
        experiment: "mirror",
        emulated: false,
        real_nodes: true,
        machine: common.machine.clone(),
        used_bytes,
        link,
        table,
        doubts: Vec::new(),
    };
    summary.emulated = figures(&summary).iter().any(|figures| figures.is_emulated());
    summary.doubts = doubts(common, &summary);
    Ok(Outcome { ending: measured.ending, summary })
}

/// As much as both volumes have, and no more than was published.
fn used_bytes(options: &Options, targets: &[Target], interrupt: &Interrupt) -> Result<u64, Error> {
    let generator = Generator { program: options.common.program.clone() };
    let mut bytes = BYTES_MOST;
    for target in targets {
        let found = generator.size_bytes(&target.address(), interrupt)?;
        bytes = bytes.min(found / GRAIN_BYTES * GRAIN_BYTES);
        if bytes == 0 {
            let text = format!("{} is smaller than one block of 64 KiB", target.address());
            return Err(BenchError::Usage(text).into());
        }
    }
    Ok(bytes)
}

fn link(
    options: &Options,
    watcher: &mut dyn Watcher,
    interrupt: &Interrupt,
) -> Result<Option<Link>, Error> {
    if let Some(us) = options.rtt_us {
        return Ok(Some(Link { is_measured: false, round_trip_us: us as f64 }));
    }
    let Some(node_b) = &options.node_b else { return Ok(None) };
    let target = volume_at(&[node_b], &options.link)?;
    let runtime_ms = options.common.runtime_ms.min(LINK_MS);
    watcher.begin("measuring the link", runtime_ms as f64 / 1e3);
    let job = Job { name: "link".to_owned(), ramp_ms: 0, runtime_ms, ..Job::default() };
    let generator = Generator { program: options.common.program.clone() };
    let run = generator.measure(&job, &target.address(), interrupt, &mut || watcher.tick())?;
    let found = run.results.total.map(|total| total.latency_us.mean);
    Ok(found.map(|round_trip_us| Link { is_measured: true, round_trip_us }))
}

fn side(row: &Row, records: &[flagstone_bench::results::Record]) -> Side {
    let find = |target: &str| Figures::of(records, &row.size.to_lowercase(), target);
    let (mirror, plain) = (find(MIRROR), find(PLAIN));
    let overhead = |of: fn(f64, f64) -> f64, pick: fn(&Figures) -> f64| {
        Some(of(pick(mirror.as_ref()?), pick(plain.as_ref()?)))
    };
    Side {
        published: *row,
        throughput_overhead_percent: overhead(throughput_overhead, |f| f.mib_per_s),
        latency_overhead_percent: overhead(latency_overhead, |f| f.latency_ms),
        mirror,
        plain,
    }
}

fn figures(summary: &Summary) -> Vec<&Figures> {
    summary.table.iter().flat_map(|side| [&side.mirror, &side.plain]).flatten().collect()
}

fn doubts(common: &Common, summary: &Summary) -> Vec<String> {
    let mut doubts = common.doubts(&figures(summary));
    doubts.push(match summary.link {
        Some(Link { is_measured: true, round_trip_us }) => format!(
            "a request of 4 KiB to node B and back takes {:.3} ms from here, which is the link's round \
             trip if this is node A: a synchronous write waits for one",
            round_trip_us / 1e3
        ),
        Some(Link { round_trip_us, .. }) => format!(
            "the link's round trip of {:.3} ms was told, not measured",
            round_trip_us / 1e3
        ),
        None => "how much of it is the link is not known: give --node-b, or --rtt".to_owned(),
    });
    if summary.used_bytes < BYTES_MOST {
        doubts.push(format!(
            "{} of the volumes are written to, where 96 GiB were published: a cache or a log that calls \
             regions hot holds more of it",
            format_size(summary.used_bytes)
        ));
    }
    doubts.push(
        "whether the mirror was in sync all the time is not seen from here: flagstone mirror status on \
         a node says it"
            .to_owned(),
    );
    doubts.push(
        "the published MB/s are of 2^20 bytes (24 in flight over their latencies), and so are these"
            .to_owned(),
    );
    doubts
}

/// The published table with ours beside it: throughput, then latency.
pub fn tables(summary: &Summary) -> Vec<Table> {
    let throughput = Column {
        title: "throughput, MiB/s, of 24 random writes in flight",
        decimals: 2,
        ours: |figures| figures.mib_per_s,
        published: |figures| figures.mib_per_s,
        overhead: throughput_overhead,
    };
    let latency = Column {
        title: "average latency, ms",
        decimals: 3,
        ours: |figures| figures.latency_ms,
        published: |figures| figures.latency_ms,
        overhead: latency_overhead,
    };
    vec![beside(summary, &throughput), beside(summary, &latency)]
}

/// One figure of the published table.
struct Column {
    title: &'static str,
    decimals: usize,
    ours: fn(&Figures) -> f64,
    published: fn(&crate::mirror::published::Figures) -> f64,
    overhead: fn(f64, f64) -> f64,
}

fn beside(summary: &Summary, column: &Column) -> Table {
    let of = |pick: fn(&Side) -> &Option<Figures>| {
        let all = summary.table.iter().filter_map(|side| pick(side).as_ref());
        all.map(|figures| figures.nature).max().map_or("", |nature| nature.suffix())
    };
    let (mirrored, plain) = (of(|side| &side.mirror), of(|side| &side.plain));
    let here = here(&figures(summary), summary.machine.as_ref());
    let head = [
        "write size".to_owned(),
        format!("mirror{mirrored}"),
        "published".to_owned(),
        format!("no mirror{plain}"),
        "published".to_owned(),
        "overhead".to_owned(),
        "published".to_owned(),
        "n".to_owned(),
        "noise".to_owned(),
    ];
    let number = |value: f64| format!("{value:.*}", column.decimals);
    let percent = |value: f64| format!("{value:.2} %");
    let dash = || "-".to_owned();
    let rows = summary.table.iter().filter(|side| side.mirror.is_some() || side.plain.is_some());
    let rows = rows.map(|side| {
        let ours = |figures: &Option<Figures>| figures.as_ref().map(column.ours);
        let (mirror, plain) = (ours(&side.mirror), ours(&side.plain));
        let published = &side.published;
        let (theirs, alone) = (&published.mirror, &published.plain);
        let (theirs, alone) = ((column.published)(theirs), (column.published)(alone));
        let both = mirror.zip(plain);
        let all = [&side.mirror, &side.plain].into_iter().flatten();
        let noise = all.clone().filter_map(|figures| figures.noise_percent).reduce(f64::max);
        vec![
            published.size.to_owned(),
            mirror.map_or_else(dash, number),
            number(theirs),
            plain.map_or_else(dash, number),
            number(alone),
            both.map_or_else(dash, |(mirror, plain)| percent((column.overhead)(mirror, plain))),
            percent((column.overhead)(theirs, alone)),
            all.map(|figures| figures.repetitions).min().unwrap_or(0).to_string(),
            noise.map_or_else(dash, |percent| format!("{percent:.1} %")),
        ]
    });
    let title = format!("{}: {here}, and as SIOS published it", column.title);
    Table { title, head: head.into(), rows: rows.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::tests::common;
    use flagstone_bench::measurement::Measurement;
    use flagstone_bench::nature::Nature;
    use flagstone_bench::results::Record;

    fn options() -> Options {
        Options {
            common: common("results".into()),
            node_a: "10.0.0.1".to_owned(),
            node_b: None,
            mirrored: "mirrored".to_owned(),
            plain: "plain".to_owned(),
            link: "link".to_owned(),
            rtt_us: Some(300),
        }
    }

    #[test]
    fn one_volume_is_not_compared_with_itself() {
        assert_eq!(options().targets().unwrap().len(), 2);
        let same = Options { plain: "mirrored".to_owned(), ..options() };
        assert!(same.targets().unwrap_err().to_string().contains("the same volume"));
    }

    #[test]
    fn ours_stands_beside_the_published_and_says_what_it_is_of() {
        let options = options();
        let targets = options.targets().unwrap();
        let record = |target: usize, latency_ms: f64, nature| {
            let mut measurement = Measurement::default();
            measurement.total.latency_mean_us = latency_ms * 1e3;
            measurement.total.iops = 24e3 / latency_ms;
            measurement.total.bytes_per_s = 24e3 / latency_ms * 8192.0;
            let job = options.job(&ROWS[1], 1 << 30);
            Record { nature, ..Record::new(SUITE, &job, &targets[target], measurement) }
        };
        let records = [record(0, 2.0, Nature::Real), record(1, 2.5, Nature::Served)];
        let mut summary = Summary {
            schema_version: SCHEMA_VERSION,
            experiment: "mirror",
            emulated: false,
            real_nodes: true,
            machine: None,
            used_bytes: 1 << 30,
            link: None,
            table: ROWS.iter().map(|row| side(row, &records)).collect(),
            doubts: Vec::new(),
        };
        let [_, latency] = &tables(&summary)[..] else { panic!("two tables") };
        assert!(!latency.title.contains("EMULATED") && latency.title.contains("served"));
        assert_eq!(latency.head[1], "mirror [served]");
        assert_eq!(latency.head[3], "no mirror");
        assert_eq!(
            latency.rows,
            [["8K", "2.500", "3.183", "2.000", "1.935", "20.00 %", "39.21 %", "1", "-"]]
        );
        let told = doubts(&options.common, &summary).join("\n");
        assert!(told.contains("--node-b") && told.contains("1g of the volumes"), "{told}");
        summary.link = Some(Link { is_measured: true, round_trip_us: 310.0 });
        let told = doubts(&options.common, &summary).join("\n");
        assert!(told.contains("takes 0.310 ms"), "{told}");
    }
}

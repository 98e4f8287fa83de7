//! Experiment C on real disks: what a larger disk brings, read by the walk-through's own fio job and
//! judged by the planner. Nothing is written.

use std::collections::BTreeMap;

use flagstone_bench::Error as BenchError;
use flagstone_bench::campaign::Watcher;
use flagstone_bench::generator::Generator;
use flagstone_bench::job::Job;
use flagstone_bench::nature::Nature;
use flagstone_bench::os::{Interrupt, size_of};
use flagstone_bench::suite;
use flagstone_bench::table::Table;
use flagstone_bench::target::Target;
use flagstone_bench::units::format_number;
use flagstone_cloud::judge::Part;
use flagstone_cloud::{Catalogue, Configuration, Measured, PlanError, Workload};
use serde::Serialize;

use super::{Common, Figures, here};
use crate::Error;
use crate::provisioned::{Judged, PUBLISHED, SUITE, TOLERANCE, words};

/// Version of the JSON form.
pub const SCHEMA_VERSION: u32 = 1;
/// A size within this of a published one, over it, is that one: partitions and rounding.
const SAME_SIZE: f64 = 0.02;

/// A disk of a cloud as the planner knows it.
#[derive(Clone, Debug)]
pub struct Kind<'a> {
    /// Where it is described.
    pub catalogue: &'a Catalogue,
    /// Type of the disks, such as `pd-standard`.
    pub kind: String,
    /// Type of the machine.
    pub machine: String,
}

impl Kind<'_> {
    /// The disk of a size, which is that of whole GB: what a cloud sells.
    ///
    /// # Errors
    /// A type or machine that the catalogue does not have.
    pub(crate) fn of_size(&self, bytes: u64) -> Result<Configuration, Error> {
        const GB: u64 = 1_000_000_000;
        let bytes = (bytes as f64 / GB as f64).round().max(1.0) as u64 * GB;
        Configuration::new(self.catalogue, &self.kind, bytes, &self.machine).map_err(wrong)
    }
}

/// A mistake of the request, or what the catalogue does not know.
pub(crate) fn wrong(error: PlanError) -> Error {
    BenchError::usage(error.to_string()).into()
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// As of every experiment.
    pub common: Common,
    /// Devices or served volumes.
    pub disks: Vec<Target>,
    /// What they are.
    pub kind: Kind<'a>,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// As it was named.
    pub disk: String,
    /// Its size.
    pub size_bytes: u64,
    /// What the planner says that it does, in reads of 4 KiB a second.
    pub predicted_iops: f64,
    /// What was measured, judged.
    pub measured: Judged,
    /// All of the measurement.
    pub figures: Figures,
    /// What was published of a disk of this size, judged.
    pub published: Option<Judged>,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// `provisioned`.
    pub experiment: &'static str,
    /// Whether any of it is known to be no real disk.
    pub emulated: bool,
    /// Always true: the disks are the user's.
    pub real_nodes: bool,
    /// What the planner was asked for.
    #[serde(rename = "type")]
    pub kind: String,
    /// What the planner was asked for.
    pub machine: String,
    /// Where the planner looked.
    pub catalogue: String,
    /// As they were named.
    pub rows: Vec<Row>,
    /// What the numbers do not say by themselves.
    pub doubts: Vec<String>,
}

/// What came of it.
pub type Outcome = crate::Outcome<Summary>;

/// Sizes of targets of one disk each, by how they are written, in bytes.
///
/// # Errors
/// That one is not there: nothing is made here.
pub(crate) fn sizes(
    common: &Common,
    targets: &[Target],
    interrupt: &Interrupt,
) -> Result<BTreeMap<String, u64>, Error> {
    let generator = Generator { program: common.program.clone() };
    let mut sizes = BTreeMap::new();
    for target in targets {
        let [disk] = &target.disks[..] else {
            let text = format!("{}: one disk each, not several as one", target.address());
            return Err(BenchError::Usage(text).into());
        };
        let bytes = match disk.path() {
            Some(path) => size_of(path).map_err(BenchError::file("cannot open", path))?,
            None => generator.size_bytes(&disk.to_string(), interrupt)?,
        };
        sizes.insert(disk.to_string(), bytes);
    }
    Ok(sizes)
}

/// Runs the experiment.
///
/// # Errors
/// What went wrong. The user's interruption while things are measured is an [`Ending`].
pub fn run(
    options: &Options<'_>,
    watcher: &mut dyn Watcher,
    interrupt: &Interrupt,
) -> Result<Outcome, Error> {
    let common = &options.common;
    let sizes = sizes(common, &options.disks, interrupt)?;
    for bytes in sizes.values() {
        predicted(&options.kind, *bytes)?;
    }
    let suite = suite::find(SUITE)?;
    let timed =
        |job: &Job| Job { ramp_ms: common.ramp_ms, runtime_ms: common.runtime_ms, ..job.clone() };
    let jobs: Vec<Job> = suite.jobs.iter().map(timed).collect();
    let title = format!("Experiment C on real disks: {}", suite.title);
    let job = jobs.first().map(|job| job.name.clone()).unwrap_or_default();
    let plan = common.plan((SUITE, &title), jobs, options.disks.clone());
    let measured = common.measure(&plan, watcher, interrupt)?;
    let mut rows = Vec::new();
    for target in &options.disks {
        let Some(figures) = Figures::of(&measured.records, &job, &target.name) else { continue };
        let size_bytes = sizes[&target.address()];
        rows.push(Row {
            disk: target.name.clone(),
            size_bytes,
            predicted_iops: predicted(&options.kind, size_bytes)?,
            measured: judged(&options.kind, size_bytes, figures.iops)?,
            figures,
            published: published(&options.kind, size_bytes)?,
        });
    }
    Ok(Outcome { ending: measured.ending, summary: summary(options, rows) })
}

fn predicted(kind: &Kind<'_>, bytes: u64) -> Result<f64, Error> {
    let workload = Workload::random(4096, 100);
    let found = kind.catalogue.predict(&kind.of_size(bytes)?, &workload).map_err(wrong)?;
    Ok(found.allowed.iops)
}

fn judged(kind: &Kind<'_>, bytes: u64, iops: f64) -> Result<Judged, Error> {
    const IN_FLIGHT: u32 = 256;
    let latency_us = Some(f64::from(IN_FLIGHT) / iops * 1e6);
    let measured = Measured {
        read: Part { iops, bytes_per_s: iops * 4096.0, latency_us },
        in_flight: Some(IN_FLIGHT.into()),
        ..Measured::default()
    };
    let found = kind.catalogue.judge(&kind.of_size(bytes)?, &measured, TOLERANCE).map_err(wrong)?;
    Ok(Judged { iops, verdict: found.verdict, ratio: found.ratio })
}

fn published(kind: &Kind<'_>, bytes: u64) -> Result<Option<Judged>, Error> {
    let is = |gb: u32| (bytes as f64 / (f64::from(gb) * 1e9) - 1.0).abs() <= SAME_SIZE;
    let found = PUBLISHED.iter().find(|(gb, ..)| is(*gb) && kind.kind == "pd-standard");
    found.map(|(_, iops, _)| judged(kind, bytes, *iops)).transpose()
}

fn summary(options: &Options<'_>, rows: Vec<Row>) -> Summary {
    let figures: Vec<&Figures> = rows.iter().map(|row| &row.figures).collect();
    let Kind { catalogue, kind, machine } = &options.kind;
    let mut doubts = options.common.doubts(&figures);
    doubts.push(format!(
        "that the disks are {kind} on {machine} was told, not found out; their sizes were read"
    ));
    doubts.push(
        "a new disk reads nothing where it was never written, which may be faster: write all of it \
         once before"
            .to_owned(),
    );
    Summary {
        schema_version: SCHEMA_VERSION,
        experiment: "provisioned",
        emulated: figures.iter().any(|figures| figures.is_emulated()),
        real_nodes: true,
        kind: kind.clone(),
        machine: machine.clone(),
        catalogue: catalogue.name.clone(),
        rows,
        doubts,
    }
}

/// Measured, predicted and published.
pub fn table(summary: &Summary) -> Table {
    let figures: Vec<&Figures> = summary.rows.iter().map(|row| &row.figures).collect();
    let suffix = figures.iter().map(|figures| figures.nature).max().map_or("", Nature::suffix);
    let measured = format!("measured{suffix}");
    let head = [
        "disk",
        "size, GB",
        &measured,
        "n",
        "noise",
        "planner",
        "predicted",
        "published",
        "planner",
    ];
    let title = format!(
        "IOPS of 4 KiB random reads by size: {}, as {} of {} predicts, and as NetApp published them",
        here(&figures, Some(&summary.machine)),
        summary.catalogue,
        summary.kind
    );
    let mut table = Table::new(title, &head);
    let number = |iops: f64| format_number(iops, 0);
    for row in &summary.rows {
        let dash = || "-".to_owned();
        let Figures { repetitions, noise_percent, .. } = row.figures;
        table.rows.push(vec![
            row.disk.clone(),
            format_number(row.size_bytes as f64 / 1e9, 1),
            number(row.measured.iops),
            repetitions.to_string(),
            noise_percent.map_or_else(dash, |percent| format!("{percent:.1} %")),
            words(&row.measured),
            number(row.predicted_iops),
            row.published.as_ref().map_or_else(dash, |judged| number(judged.iops)),
            row.published.as_ref().map_or_else(dash, words),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::tests::common;
    use flagstone_cloud::judge::Verdict;

    fn kind() -> Kind<'static> {
        let catalogue = Catalogue::builtin("gcp-2019").unwrap();
        Kind { catalogue, kind: "pd-standard".to_owned(), machine: "n1-standard-8".to_owned() }
    }

    #[test]
    fn sizes_say_what_was_published_and_what_is_predicted() {
        // 200 GiB, as a cloud sells its GB, are 214.7 of the formula's.
        for (bytes, iops) in [(200_000_000_000, 150.0), (600_000_000_000, 450.0)] {
            assert!((predicted(&kind(), bytes).unwrap() - iops).abs() < 0.5);
            assert_eq!(published(&kind(), bytes).unwrap().unwrap().verdict, Verdict::Above);
            assert_eq!(judged(&kind(), bytes, iops).unwrap().verdict, Verdict::AsPredicted);
        }
        assert_eq!(published(&kind(), 300_000_000_000).unwrap(), None);
        let other = Kind { kind: "pd-ssd".to_owned(), ..kind() };
        assert_eq!(published(&other, 200_000_000_000).unwrap(), None);
        let unknown = Kind { kind: "pd-none".to_owned(), ..kind() };
        assert!(predicted(&unknown, 200_000_000_000).is_err());
    }

    #[test]
    fn what_is_of_a_real_disk_says_so_by_saying_nothing() {
        let of = |nature| {
            let figures = Figures {
                nature,
                repetitions: 4,
                mib_per_s: 1.0,
                iops: 309.0,
                latency_ms: 800.0,
                latency_p99_ms: None,
                noise_percent: Some(1.0),
                cpu_percent: None,
            };
            let bytes = 200_000_000_000;
            let rows = vec![Row {
                disk: "/dev/sdb".to_owned(),
                size_bytes: bytes,
                predicted_iops: 150.0,
                measured: judged(&kind(), bytes, 309.0).unwrap(),
                figures,
                published: published(&kind(), bytes).unwrap(),
            }];
            let options = Options { common: common("r".into()), disks: Vec::new(), kind: kind() };
            table(&summary(&options, rows))
        };
        let real = of(Nature::Real);
        assert_eq!(real.head[2], "measured");
        assert!(!real.title.contains("EMULATED"));
        assert_eq!(
            real.rows[0][1..],
            ["200.0", "309", "4", "1.0 %", "above, 2.06 times", "150", "309", "above, 2.06 times"]
        );
        let emulated = of(Nature::Emulated);
        assert!(emulated.title.contains("EMULATED") && emulated.head[2].contains("EMULATED"));
    }

    #[test]
    fn disks_that_are_not_there_are_not_made() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("none");
        let target: Target = path.to_str().unwrap().parse().unwrap();
        let found = sizes(&common("r".into()), &[target], &Interrupt::never());
        assert!(found.is_err() && !path.exists());
    }
}

//! Experiment B on real machines: local SSDs of a server, then the same over NVMe/TCP from a client,
//! beside what MayaScale published.
//!
//! It takes two runs, as it takes two machines: one on the server, which measures its devices
//! themselves, and, when the server serves them, one on the client, which measures one volume of
//! one SSD, one of two, and so on. The second takes the results of the first and shows both.

use std::path::PathBuf;

use flagstone_bench::Error as BenchError;
use flagstone_bench::campaign::{Ending, Plan, Watcher};
use flagstone_bench::environment::Environment;
use flagstone_bench::fio::Fio;
use flagstone_bench::job::{Job, Pattern};
use flagstone_bench::nature::Nature;
use flagstone_bench::os::{Interrupt, read_text};
use flagstone_bench::results::{Record, Store};
use flagstone_bench::table::Table;
use flagstone_bench::target::{Place, Target};
use serde::Serialize;

use super::{Common, Figures, here};
use crate::Error;
use crate::fabric::{DEPTH, DISKS, FABRIC, LOCAL};
use crate::limits::OUTPUT_BYTES;

/// Version of the JSON form.
pub const SCHEMA_VERSION: u32 = 1;
/// The suite, for the published table in the report.
const SUITE: &str = "fabric";
/// What was published, in thousands of IOPS by SSDs: local, and over NVMe/TCP.
const PUBLISHED: [(Pattern, [(f64, f64); 4]); 2] = [
    (Pattern::RandWrite, [(100., 100.), (200., 199.), (299., 299.), (398., 368.)]),
    (Pattern::RandRead, [(180., 180.), (360., 360.), (522., 413.), (659., 384.)]),
];

/// What is asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// As of every experiment.
    pub common: Common,
    /// Devices, each one SSD; or `nvme-tcp://` volumes, the first of one SSD, the second of two.
    pub disks: Vec<String>,
    /// Results of the run on the server.
    pub local: Option<PathBuf>,
}

impl Options {
    /// What is measured.
    ///
    /// # Errors
    /// Disks that are no devices of one machine, nor volumes of one server; too many.
    pub fn target(&self) -> Result<Target, Error> {
        let usage = |text: String| Error::from(BenchError::Usage(text));
        if self.disks.len() > DISKS as usize {
            return Err(usage(format!("from 1 to {DISKS} disks, as published")));
        }
        let mut disks = Vec::new();
        for disk in &self.disks {
            // A comma is of one volume's several addresses here, and joins no disks.
            disks.push(match disk.starts_with("nvme-tcp://") {
                true => Place::NvmeTcp(disk.clone()),
                false => disk.parse::<Target>().map_err(usage)?.disks.remove(0),
            });
        }
        let first = disks.first().ok_or_else(|| usage("name a disk".to_owned()))?;
        let name = match first {
            Place::Path(_) => LOCAL,
            Place::NvmeTcp(_) => FABRIC,
            Place::Nbd(uri) => return Err(usage(format!("{uri}: a device, or nvme-tcp://"))),
        };
        let kind = std::mem::discriminant(first);
        if disks.iter().any(|disk| std::mem::discriminant(disk) != kind) {
            return Err(usage(
                "devices are measured on the server and nvme-tcp:// on the client: not in one run"
                    .to_owned(),
            ));
        }
        if name == LOCAL && self.local.is_some() {
            return Err(usage("--local-results is for nvme-tcp:// volumes".to_owned()));
        }
        let absent = disks.iter().filter_map(Place::path).find(|path| !path.exists());
        if let Some(path) = absent {
            return Err(usage(format!("{}: there is no such device", path.display())));
        }
        Ok(Target { name: name.to_owned(), disks })
    }

    fn job(&self, pattern: Pattern, disks: u32) -> Job {
        Job {
            name: format!("{pattern}-x{disks}"),
            pattern,
            depth: DEPTH,
            disks,
            ramp_ms: self.common.ramp_ms,
            runtime_ms: self.common.runtime_ms,
            ..Job::default()
        }
    }
}

/// A number of SSDs, written to or read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// `randwrite` or `randread`.
    pub rw: Pattern,
    /// SSDs.
    pub disks: u32,
    /// On the server itself.
    pub local: Option<Figures>,
    /// From the client.
    pub fabric: Option<Figures>,
    /// What is left of the local IOPS over the network, in %.
    pub of_local_percent: Option<f64>,
    /// Published IOPS, local.
    pub published_local_iops: f64,
    /// Published IOPS over NVMe/TCP.
    pub published_fabric_iops: f64,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// `fabric`.
    pub experiment: &'static str,
    /// Whether any of it is known to be no real disk.
    pub emulated: bool,
    /// Always true: the disks are the user's.
    pub real_nodes: bool,
    /// Type of the machines, as it was told.
    pub machine: Option<String>,
    /// Writes, then reads, by SSDs.
    pub rows: Vec<Row>,
    /// What the numbers do not say by themselves.
    pub doubts: Vec<String>,
}

/// What came of it.
pub type Outcome = crate::Outcome<Summary>;

/// Runs one side of the experiment.
///
/// # Errors
/// What went wrong. The user's interruption while things are measured is an [`Ending`].
pub fn run(
    options: &Options,
    watcher: &mut dyn Watcher,
    interrupt: &Interrupt,
) -> Result<Outcome, Error> {
    let target = options.target()?;
    // Before anything is measured in vain.
    let before = options.local.as_deref().map(local_records).transpose()?.unwrap_or_default();
    let count = target.disks.len() as u32;
    let jobs = PUBLISHED
        .iter()
        .flat_map(|(pattern, _)| (1..=count).map(|disks| options.job(*pattern, disks)));
    let title = format!(
        "Experiment B on real machines: {}",
        match target.name.as_str() {
            LOCAL => "the server's own SSDs",
            _ => "the same over NVMe/TCP",
        }
    );
    let common = &options.common;
    let is_local = target.name == LOCAL;
    let plan = common.plan((SUITE, &title), jobs.collect(), vec![target]);
    let measured = match is_local {
        true => common.measure(&plan, watcher, interrupt)?,
        false => over_fabric(options, &plan, watcher, interrupt)?,
    };
    let records: Vec<Record> = before.into_iter().chain(measured.records).collect();
    Ok(Outcome { ending: measured.ending, summary: summary(common, &records) })
}

/// What the run on the server measured.
fn local_records(directory: &std::path::Path) -> Result<Vec<Record>, Error> {
    let (store, plan) = Store::open(directory)?;
    let mut records = store.records()?;
    records.retain(|record| record.target == LOCAL);
    match plan.suite == SUITE && !records.is_empty() {
        true => Ok(records),
        false => Err(BenchError::usage(format!(
            "{}: no results of flagstone lab fabric on devices",
            directory.display()
        ))
        .into()),
    }
}

/// Each number of SSDs is a volume of its own, as a server stripes it; what is kept counts the SSDs
/// and not the volumes, so that both runs can be put side by side.
fn over_fabric(
    options: &Options,
    plan: &Plan,
    watcher: &mut dyn Watcher,
    interrupt: &Interrupt,
) -> Result<super::Measured, Error> {
    let common = &options.common;
    common.guard(&plan.targets, plan.writes())?;
    plan.check()?;
    let fio = common.fio(plan, interrupt)?;
    let store = Store::create(&common.results, plan)?;
    let mut environment = None;
    let mut ending = Ending::Complete;
    for disks in 1..=plan.targets[0].disks.len() as u32 {
        let side = Side { options, plan, store: &store, fio: fio.as_ref() };
        ending = side.measure(disks, &mut environment, watcher, interrupt)?;
        if ending == Ending::Interrupted {
            break;
        }
    }
    Ok(super::Measured { ending, records: store.records()? })
}

/// The client's side.
struct Side<'a> {
    options: &'a Options,
    plan: &'a Plan,
    store: &'a Store,
    fio: Option<&'a Fio>,
}

impl Side<'_> {
    /// Measures the volume of so many SSDs.
    fn measure(
        &self,
        disks: u32,
        environment: &mut Option<Environment>,
        watcher: &mut dyn Watcher,
        interrupt: &Interrupt,
    ) -> Result<Ending, Error> {
        let volume = self.plan.targets[0].disks[disks as usize - 1].clone();
        let name = volume.to_string();
        let jobs = PUBLISHED.iter().map(|(pattern, _)| Job {
            disks: 1,
            // As many in flight on each SSD as on the server, and as many threads.
            threads: disks,
            ..self.options.job(*pattern, disks)
        });
        let part = Plan {
            jobs: jobs.collect(),
            targets: vec![Target { name: FABRIC.to_owned(), disks: vec![volume] }],
            destroy: self.plan.destroy.iter().filter(|other| **other == name).cloned().collect(),
            ..self.plan.clone()
        };
        let scratch =
            tempfile::tempdir().map_err(Error::system("cannot make a temporary directory"))?;
        let own = Store::create(scratch.path(), &part)?;
        let ended = self.options.common.run(&part, &own, self.fio, watcher, interrupt);
        // What was measured is kept, whatever happened then.
        for record in own.records()? {
            self.keep(record, disks, &own)?;
        }
        for found in own.environments()? {
            let whole = environment.get_or_insert_with(|| found.clone());
            whole.disks.extend(found.disks);
        }
        if let Some(whole) = environment.as_ref().filter(|whole| {
            whole.disks.len() as u32 == disks || !matches!(ended, Ok(Ending::Complete))
        }) {
            let path = self.store.directory().join("environment.json");
            let text = serde_json::to_string_pretty(whole).expect("it is always JSON") + "\n";
            std::fs::write(&path, text).map_err(BenchError::file("cannot write", &path))?;
        }
        ended
    }

    fn keep(&self, record: Record, disks: u32, own: &Store) -> Result<(), Error> {
        let raw = match &record.raw {
            Some(name) => {
                let path = own.directory().join("raw").join(name);
                let text = read_text(&path, OUTPUT_BYTES)
                    .map_err(BenchError::file("cannot read", &path))?;
                Some(self.store.raw(&record.job, 0, record.repetition, &text)?)
            }
            None => None,
        };
        let address = self.plan.targets[0].address();
        Ok(self.store.append(&Record { disks, threads: 1, address, raw, ..record })?)
    }
}

fn summary(common: &Common, records: &[Record]) -> Summary {
    let mut rows = Vec::new();
    for (rw, published) in PUBLISHED {
        for (disks, (local_k, fabric_k)) in (1..).zip(published) {
            let job = format!("{rw}-x{disks}");
            let (local, fabric) =
                (Figures::of(records, &job, LOCAL), Figures::of(records, &job, FABRIC));
            if local.is_none() && fabric.is_none() {
                continue;
            }
            let of = local.as_ref().zip(fabric.as_ref());
            rows.push(Row {
                rw,
                disks,
                of_local_percent: of.map(|(local, fabric)| 100.0 * fabric.iops / local.iops),
                local,
                fabric,
                published_local_iops: local_k * 1e3,
                published_fabric_iops: fabric_k * 1e3,
            });
        }
    }
    let figures: Vec<&Figures> =
        rows.iter().flat_map(|row| [&row.local, &row.fabric]).flatten().collect();
    let emulated = figures.iter().any(|figures| figures.is_emulated());
    let mut doubts = common.doubts(&figures);
    if rows.iter().all(|row| row.fabric.is_none()) {
        doubts.push(
            "this is the server's side: the client's run shows both, with --local-results"
                .to_owned(),
        );
    }
    if rows.iter().all(|row| row.local.is_none()) {
        doubts.push(
            "what the same disks do on the server is not known: --local-results is for that"
                .to_owned(),
        );
    }
    doubts.push(format!(
        "{DEPTH} in flight on each SSD; the published depth is not known, and its server and client had \
         16 vCPUs each"
    ));
    Summary {
        schema_version: SCHEMA_VERSION,
        experiment: "fabric",
        emulated,
        real_nodes: true,
        machine: common.machine.clone(),
        rows,
        doubts,
    }
}

/// Writes and reads by SSDs, each beside what was published.
pub fn tables(summary: &Summary) -> Vec<Table> {
    let of = |rw: Pattern| table(summary, rw);
    PUBLISHED.iter().map(|(rw, _)| of(*rw)).filter(|table| !table.rows.is_empty()).collect()
}

fn table(summary: &Summary, rw: Pattern) -> Table {
    let rows: Vec<&Row> = summary.rows.iter().filter(|row| row.rw == rw).collect();
    let all: Vec<&Figures> =
        rows.iter().flat_map(|row| [&row.local, &row.fabric]).flatten().collect();
    let suffix = |pick: fn(&Row) -> &Option<Figures>| {
        let natures = rows.iter().filter_map(|row| Some(pick(row).as_ref()?.nature));
        natures.max().map_or("", Nature::suffix)
    };
    let head = [
        "SSDs".to_owned(),
        format!("local{}", suffix(|row| &row.local)),
        "published".to_owned(),
        format!("NVMe/TCP{}", suffix(|row| &row.fabric)),
        "published".to_owned(),
        "of local".to_owned(),
        "published".to_owned(),
        "mean ms".to_owned(),
        "n".to_owned(),
    ];
    let thousands = |iops: f64| format!("{:.1}", iops / 1e3);
    let dash = || "-".to_owned();
    let cells = rows.iter().map(|row| {
        let iops =
            |figures: &Option<Figures>| figures.as_ref().map_or_else(dash, |f| thousands(f.iops));
        let both = [&row.fabric, &row.local];
        let last = both.into_iter().flatten().next();
        let theirs = 100.0 * row.published_fabric_iops / row.published_local_iops;
        vec![
            row.disks.to_string(),
            iops(&row.local),
            thousands(row.published_local_iops),
            iops(&row.fabric),
            thousands(row.published_fabric_iops),
            row.of_local_percent.map_or_else(dash, |percent| format!("{percent:.0} %")),
            format!("{theirs:.0} %"),
            last.map_or_else(dash, |figures| format!("{:.3}", figures.latency_ms)),
            both.into_iter().flatten().map(|f| f.repetitions).min().unwrap_or(0).to_string(),
        ]
    });
    let title = format!(
        "thousands of IOPS, {rw} of 4 KiB: {}, and as MayaScale published it",
        here(&all, summary.machine.as_ref())
    );
    Table { title, head: head.into(), rows: cells.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::tests::common;
    use flagstone_bench::measurement::Measurement;

    fn options(disks: &[&str]) -> Options {
        Options {
            common: common("results".into()),
            disks: disks.iter().map(|disk| (*disk).to_owned()).collect(),
            local: None,
        }
    }

    #[test]
    fn one_side_is_one_kind_of_disk() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(options(&[path]).target().unwrap().name, LOCAL);
        let volumes = ["nvme-tcp://a,b/nqn.2026-01.io.flagstone:x1", "nvme-tcp://a/nqn.x:y"];
        let target = options(&volumes).target().unwrap();
        assert_eq!((target.name.as_str(), target.disks.len()), (FABRIC, 2));
        for wrong in
            [&[path, volumes[0]][..], &["nbd://h/e"], &["/no/such/device"], &[path; 5], &[]]
        {
            assert!(options(wrong).target().is_err(), "{wrong:?}");
        }
        let local = Options { local: Some("r".into()), ..options(&[path]) };
        assert!(local.target().unwrap_err().to_string().contains("--local-results"));
    }

    #[test]
    fn both_sides_stand_beside_the_published() {
        let of = |name: &str, iops: f64, nature| {
            let job = options(&[]).job(Pattern::RandRead, 4);
            let target = Target { name: name.to_owned(), disks: vec![Place::Path("/x".into()); 4] };
            let mut measurement = Measurement::default();
            measurement.total.iops = iops;
            Record { nature, ..Record::new(SUITE, &job, &target, measurement) }
        };
        let records = [of(LOCAL, 600e3, Nature::Real), of(FABRIC, 300e3, Nature::Served)];
        let found = summary(&common("r".into()), &records);
        assert!(!found.emulated);
        let [table] = &tables(&found)[..] else { panic!("reads alone") };
        assert_eq!(table.head[1..4], ["local", "published", "NVMe/TCP [served]"]);
        assert_eq!(
            table.rows,
            [["4", "600.0", "659.0", "300.0", "384.0", "50 %", "58 %", "0.000", "1"]]
        );
        let one = summary(&common("r".into()), &records[..1]);
        assert!(one.doubts.join("\n").contains("the client's run"));
        let one = summary(&common("r".into()), &records[1..]);
        assert!(one.doubts.join("\n").contains("--local-results is for that"));
    }
}

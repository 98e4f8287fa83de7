//! End-to-end tests with the real fio on files: from a suite to results and tables, interrupted and
//! resumed; and a diskspd command line to its reports. Without fio they are skipped.

use std::path::Path;
use std::process::Command;

use flagstone_bench::attach::Initiator;
use flagstone_bench::campaign::{Campaign, CampaignEnd, CampaignPlan, Watcher};
use flagstone_bench::compare::{ComparedMetric, Comparison};
use flagstone_bench::diskspd::report::System;
use flagstone_bench::diskspd::translate::translate;
use flagstone_bench::diskspd::{DiskspdReport, parse};
use flagstone_bench::fio::Fio;
use flagstone_bench::generator::Generator;
use flagstone_bench::own_file;
use flagstone_bench::process::Interrupt;
use flagstone_bench::provenance::Provenance;
use flagstone_bench::results::{self, ResultRecord, ResultStore};
use flagstone_bench::stats::Steady;
use flagstone_bench::suite::{self, BUILT_IN};
use flagstone_bench::table::Form;
use flagstone_bench::target::BenchTarget;

const FILE_BYTES: u64 = 4 << 20;

fn fio() -> Option<Fio> {
    match Fio::find(&Interrupt::never()) {
        Ok(fio) => Some(fio),
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            None
        }
    }
}

/// Interrupts a campaign after a number of results.
#[derive(Default)]
struct Watch {
    interrupt: Interrupt,
    done: usize,
    stop_after: Option<usize>,
    judged: usize,
}

impl Watcher for Watch {
    fn note(&mut self, text: &str) {
        panic!("nothing is worth a note: {text}");
    }
    fn begin(&mut self, _: &str, remaining_s: f64) {
        assert!(remaining_s > 0.0);
    }
    fn tick(&mut self) {}
    fn done(&mut self, _: &ResultRecord) {
        self.done += 1;
        if Some(self.done) == self.stop_after {
            self.interrupt.raise();
        }
    }
    fn steadiness(&mut self, _: &str, _: &str, _: u32, _: Option<Steady>) {
        self.judged += 1;
    }
}

fn plan(directory: &Path) -> CampaignPlan {
    let target = |name: &str| -> BenchTarget {
        format!("{name}={}", directory.join(name).display()).parse().expect("a target")
    };
    let mut suite = suite::find("quick").expect("it is built in");
    suite.repetitions = 4;
    suite.jobs.truncate(2);
    for job in &mut suite.jobs {
        (job.ramp_ms, job.runtime_ms) = (0, 100);
        // The tests' file system may lack direct I/O.
        job.direct = false;
    }
    CampaignPlan::new(&suite, vec![target("a"), target("b")], FILE_BYTES)
}

fn run(plan: &CampaignPlan, store: &ResultStore, fio: &Fio, watch: &mut Watch) -> CampaignEnd {
    let generator = Generator { program: "/no/such/program".into() };
    let interrupt = watch.interrupt.clone();
    let initiator = Initiator::of_machine();
    let campaign = Campaign {
        plan,
        store,
        fio: Some(fio),
        generator: &generator,
        initiator: &initiator,
        interrupt: &interrupt,
    };
    campaign.run(watch).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn interrupted_campaign_resumes() {
    let Some(fio) = fio() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let plan = plan(directory.path());
    let results = directory.path().join("results");
    let store = ResultStore::create(&results, &plan).expect("it is new");
    let mut watch = Watch { stop_after: Some(5), ..Watch::default() };
    assert_eq!(run(&plan, &store, &fio, &mut watch), CampaignEnd::Interrupted);
    assert_eq!(results::read(&results).expect("results").len(), 5);

    let (store, resumed) = ResultStore::open(&results).expect("a campaign");
    assert_eq!(resumed, plan);
    let mut watch = Watch::default();
    assert_eq!(run(&resumed, &store, &fio, &mut watch), CampaignEnd::Complete);
    assert_eq!(watch.done, 2 * 4 * 2 - 5);

    let records = results::read(&results).expect("results");
    for record in &records {
        assert!(record.iops > 0.0 && record.latency_p99_us.is_some(), "{record:?}");
        let raw = results.join("raw").join(record.raw.as_ref().expect("it is kept"));
        assert!(raw.is_file() && record.command.starts_with("fio "), "{record:?}");
    }
    let writes = &records[15].measurement;
    assert!(writes.write.ios > 0 && writes.read.ios == 0 && writes.cpu.is_some());
    let comparison = Comparison::of_targets(records);
    // In memory, where the tests' directory is, names carry a mark.
    let named = |at: usize, name: &str| comparison.names()[at].starts_with(name);
    assert!(named(0, "a") && named(1, "b") && comparison.names().len() == 2);
    let text = comparison.figure(ComparedMetric::Iops).write(Form::Markdown);
    assert!(text.contains("difference shown") || text.contains("differs"), "{text}");
    assert!(results.join("environment.json").is_file());
}

#[test]
fn campaign_runs_until_steady_state() {
    let Some(fio) = fio() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut plan = plan(directory.path());
    plan.jobs.truncate(1);
    plan.targets.truncate(1);
    // A rate that any machine reaches is steady, independent of other load.
    plan.jobs[0].rate_iops = Some(100);
    plan.jobs[0].depth = 1;
    plan.steady_state = true;
    plan.repetitions = 1;
    let store = ResultStore::create(&directory.path().join("results"), &plan).expect("it is new");
    let mut watch = Watch::default();
    assert_eq!(run(&plan, &store, &fio, &mut watch), CampaignEnd::Complete);
    assert!((5..=25).contains(&watch.done) && watch.judged == watch.done, "{}", watch.done);
}

/// Each suite's kinds of jobs, shortened, through a whole campaign on files.
#[test]
fn every_suite_runs_on_files() {
    let Some(fio) = fio() else { return };
    for (name, _) in BUILT_IN {
        let directory = tempfile::tempdir().expect("a directory");
        let disks: Vec<_> =
            ["a", "b"].map(|disk| directory.path().join(disk).display().to_string()).into();
        let target: BenchTarget = format!("t={}", disks.join(",")).parse().expect("a target");
        let mut suite = suite::find(name).expect("it is built in");
        suite.repetitions = 1;
        // Files cannot be discarded.
        suite.discard = false;
        suite.jobs.retain(|job| job.disks <= 2);
        suite.jobs.dedup_by_key(|job| (job.pattern, job.sync, job.disks));
        for job in &mut suite.jobs {
            (job.ramp_ms, job.runtime_ms) = (0, 100);
            // The tests' file system may lack direct I/O.
            job.direct = false;
        }
        let plan = CampaignPlan::new(&suite, vec![target], FILE_BYTES);
        let store = ResultStore::create(&directory.path().join("r"), &plan).expect("it is new");
        let mut watch = Watch::default();
        assert_eq!(run(&plan, &store, &fio, &mut watch), CampaignEnd::Complete, "{name}");
        let records = store.records().expect("results");
        assert_eq!(records.len(), plan.steps().len(), "{name}");
        for record in records {
            assert!(record.iops > 0.0 && record.latency_p99_us.is_some(), "{name}: {record:?}");
            assert_ne!(record.provenance, Provenance::Unknown, "{name}");
        }
    }
}

#[test]
fn fio_accepts_all_suite_jobs() {
    let Some(fio) = fio() else { return };
    for (name, _) in BUILT_IN {
        let mut jobs = suite::find(name).expect("it is built in").jobs;
        // Jobs that differ only in numbers are one kind.
        jobs.dedup_by_key(|job| (job.pattern, job.sync));
        for job in jobs {
            let target: BenchTarget = "/dev/a,/dev/b,/dev/c,/dev/d".parse().expect("a target");
            let options = fio.options(&job, &target).expect("fio can do it");
            let program = std::env::var_os("FIO").unwrap_or_else(|| "fio".into());
            let ended = Command::new(program)
                .arg("--parse-only")
                .args(options.arguments())
                .output()
                .expect("fio runs");
            assert!(ended.status.success(), "{name} {}: {ended:?}", job.name);
        }
    }
}

#[test]
fn diskspd_command_runs_on_real_fio() {
    let Some(fio) = fio() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("data & more");
    let never = Interrupt::never();
    let target: BenchTarget = path.to_str().expect("a plain path").parse().expect("a target");
    std::fs::write(&path, []).expect("it can be made");
    own_file::mark(&path).expect("it can be noted");
    fio.fill(&target, Some(FILE_BYTES), &never, &mut || {}).expect("it is filled");
    let words = ["-d1", "-W0", "-r", "-w50", "-t2", "-o2", "-b8K", "-L", "-D250", "-n"];
    let mut words: Vec<_> = words.map(str::to_owned).into();
    words.push(path.display().to_string());
    let profile = parse(&words).expect("it is right").profile;
    let found = translate(&profile, "0").expect("fio can do it");
    let run = fio.measure(&found.job, &found.target, &never, &mut || {}).expect("it is measured");
    let system =
        System { computer: "test".to_owned(), started_unix_s: 0.0, cpus: 1, ..System::default() };
    let report = DiskspdReport::new(&profile, system, &run, &[FILE_BYTES]).expect("two threads");

    let text = report.text();
    let rows: Vec<_> = text.lines().filter(|line| line.ends_with("(4MiB)")).collect();
    assert_eq!(rows.len(), 3 * 2, "total, read and write of two threads: {text}");
    let total = text.lines().find(|line| line.starts_with("total:")).expect("a total");
    let fields = |line: &str| line.split('|').map(str::trim).map(str::to_owned).collect::<Vec<_>>();
    let bytes = |row: &str| fields(row)[1].parse::<u64>().expect("bytes");
    let total_bytes: u64 =
        fields(total)[0].trim_start_matches("total:").trim().parse().expect("bytes");
    assert_eq!(bytes(rows[0]) + bytes(rows[1]), total_bytes);
    assert_eq!(bytes(rows[2]) + bytes(rows[4]), bytes(rows[0]), "reads and writes of the first");
    for heading in ["Total IO", "Read IO", "Write IO", "Total latency distribution:", "avg.|"] {
        assert!(text.contains(heading), "{heading}");
    }
    let xml = report.xml();
    assert_eq!(xml.matches("<Thread>").count(), 2);
    assert!(
        xml.contains("data &amp; more</Path>")
            && xml.contains("<Percentile>99.9999999</Percentile>")
    );
    assert!(xml.contains("<Bucket SampleMillisecond=\"250\""));
    let opened = xml.matches('<').count() - xml.matches("</").count() - xml.matches("/>").count();
    assert_eq!(opened, xml.matches("</").count(), "every element is closed");
}

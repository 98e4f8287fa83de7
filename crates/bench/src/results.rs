//! Results in a directory that a person can read: `campaign.json` (what was to be done),
//! `environment.json` (on what), `results.jsonl` (a line a measurement, appended as it is made),
//! and `raw/` (what fio printed). The form is described in `docs/results.md`; a change that a
//! reader could notice beyond new fields raises [`SCHEMA_VERSION`].

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::campaign::Plan;
use crate::environment::Environment;
use crate::error::Error;
use crate::fio::arguments::shell;
use crate::job::{Job, Pattern};
use crate::limits::{ENVIRONMENTS, RESULT_LINE_BYTES, RESULTS_BYTES};
use crate::measurement::Measurement;
use crate::nature::Nature;
use crate::stats::WINDOW;
use crate::target::Target;

/// Version of the JSON forms.
pub const SCHEMA_VERSION: u32 = 1;

/// One line of `results.jsonl`. The main figures stand at the top so that a table of them is one
/// line of pandas; all of them are in `measurement`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The suite.
    pub suite: String,
    /// The job.
    pub job: String,
    /// The target's name.
    pub target: String,
    /// Its disks as they were written.
    pub address: String,
    /// Whether it is a real disk.
    #[serde(default)]
    pub nature: Nature,
    /// Which repetition, from 0.
    pub repetition: u32,
    /// When it began, in seconds since 1970.
    pub started_unix_s: f64,
    /// Order and kind of the requests.
    pub rw: Pattern,
    /// Bytes of a request.
    pub block_bytes: u64,
    /// In flight of each thread.
    pub depth: u32,
    /// Threads on each disk.
    pub threads: u32,
    /// Disks used at once.
    pub disks: u32,
    /// Time measured, in ms.
    pub runtime_ms: u64,
    /// Reads and writes a second.
    pub iops: f64,
    /// 10^6 bytes a second, reads and writes.
    pub mb_per_s: f64,
    /// Mean latency of reads and writes, in µs.
    pub latency_mean_us: f64,
    /// Median latency.
    pub latency_p50_us: Option<f64>,
    /// 99th percentile.
    pub latency_p99_us: Option<f64>,
    /// 99.9th percentile.
    pub latency_p99_9_us: Option<f64>,
    /// 99.99th percentile.
    pub latency_p99_99_us: Option<f64>,
    /// What measured it.
    pub tool: String,
    /// The command to repeat it.
    pub command: String,
    /// File in `raw/` with what the tool printed.
    pub raw: Option<String>,
    /// Everything.
    pub measurement: Measurement,
}

impl Record {
    /// A record of a measurement.
    pub fn new(suite: &str, job: &Job, target: &Target, measurement: Measurement) -> Record {
        let total = &measurement.total;
        let at = |name| total.percentile_us(name);
        Record {
            schema_version: SCHEMA_VERSION,
            suite: suite.to_owned(),
            job: job.name.clone(),
            target: target.name.clone(),
            address: target.address(),
            nature: Nature::default(),
            repetition: 0,
            started_unix_s: 0.0,
            rw: job.pattern,
            block_bytes: job.block_bytes,
            depth: job.depth,
            threads: job.threads,
            disks: if job.disks == 0 { target.disks.len() as u32 } else { job.disks },
            runtime_ms: job.runtime_ms,
            iops: total.iops,
            mb_per_s: total.mb_per_s(),
            latency_mean_us: total.latency_mean_us,
            latency_p50_us: at("50"),
            latency_p99_us: at("99"),
            latency_p99_9_us: at("99.9"),
            latency_p99_99_us: at("99.99"),
            tool: String::new(),
            command: String::new(),
            raw: None,
            measurement,
        }
    }
}

/// A directory of results.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string_pretty(value).expect("it is always JSON") + "\n"
}

impl Store {
    /// Begins a new one; the directory may exist, but no results in it.
    ///
    /// # Errors
    /// The system's; that there is a campaign in it already.
    pub fn create(directory: &Path, plan: &Plan) -> Result<Store, Error> {
        let store = Store { directory: directory.to_owned() };
        if store.path("campaign.json").exists() {
            return Err(Error::Usage(format!(
                "{} has results already: resume it, or name another directory",
                directory.display()
            )));
        }
        let raw = store.path("raw");
        fs::create_dir_all(&raw).map_err(Error::file("cannot make", raw))?;
        store.write("campaign.json", &json(plan))?;
        Ok(store)
    }

    /// One that is there; gives its plan too.
    ///
    /// # Errors
    /// That there is none, or that its plan cannot be read.
    pub fn open(directory: &Path) -> Result<(Store, Plan), Error> {
        let store = Store { directory: directory.to_owned() };
        let path = store.path("campaign.json");
        let text = crate::os::read_text(&path, RESULT_LINE_BYTES as u64)
            .map_err(Error::file("cannot read", &path))?;
        let plan: Plan = serde_json::from_str(&text).map_err(|error| Error::Results {
            path: path.clone(),
            line: error.line(),
            detail: error.to_string(),
        })?;
        plan.check()?;
        Ok((store, plan))
    }

    /// Takes a run away in which nothing was measured: of a failed beginning nothing stays.
    pub fn discard(self) {
        if self.path("results.jsonl").exists() {
            return;
        }
        // A directory with anything else in it is not empty, and stays.
        for name in ["campaign.json", "environment.json"] {
            let _ = fs::remove_file(self.path(name));
        }
        let _ = fs::remove_dir(self.path("raw"));
        let _ = fs::remove_dir(&self.directory);
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        let path = self.path(name);
        fs::write(&path, text).map_err(Error::file("cannot write", path))
    }

    /// Records what the measurements are made on; earlier records of a resumed run are kept beside.
    ///
    /// # Errors
    /// The system's.
    pub fn environment(&self, environment: &Environment) -> Result<(), Error> {
        let text = json(environment);
        let mut name = "environment.json".to_owned();
        for at in 2.. {
            match fs::read_to_string(self.path(&name)) {
                Ok(before) if before == text => return Ok(()),
                Ok(_) => name = format!("environment-{at}.json"),
                Err(_) => break,
            }
        }
        self.write(&name, &text)
    }

    /// What the measurements were made on, in the order in which it was recorded.
    ///
    /// # Errors
    /// What cannot be read.
    pub fn environments(&self) -> Result<Vec<Environment>, Error> {
        let mut found = Vec::new();
        for at in 1..=ENVIRONMENTS {
            let name = if at == 1 {
                "environment.json".to_owned()
            } else {
                format!("environment-{at}.json")
            };
            let path = self.path(&name);
            if !path.exists() {
                break;
            }
            let text = crate::os::read_text(&path, RESULT_LINE_BYTES as u64)
                .map_err(Error::file("cannot read", &path))?;
            found.push(serde_json::from_str(&text).map_err(|error| Error::Results {
                path: path.clone(),
                line: error.line(),
                detail: error.to_string(),
            })?);
        }
        Ok(found)
    }

    /// Keeps what a tool printed; gives the file's name.
    ///
    /// # Errors
    /// The system's.
    pub fn raw(
        &self,
        job: &str,
        target: usize,
        repetition: u32,
        text: &str,
    ) -> Result<String, Error> {
        let name = format!("{job}.{target}.{repetition}.json");
        self.write(&format!("raw/{name}"), text)?;
        Ok(name)
    }

    /// Adds a record: it is on the disk when this returns.
    ///
    /// # Errors
    /// The system's.
    pub fn append(&self, record: &Record) -> Result<(), Error> {
        let line = serde_json::to_string(record).expect("a record is always JSON") + "\n";
        let path = self.path("results.jsonl");
        let write = || {
            let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
            file.write_all(line.as_bytes())?;
            file.sync_data()
        };
        write().map_err(Error::file("cannot write", &path))
    }

    /// All records so far. A last line that a crash cut off is cut away from the file.
    ///
    /// # Errors
    /// As [`read`].
    pub fn records(&self) -> Result<Vec<Record>, Error> {
        let path = self.path("results.jsonl");
        if !path.exists() {
            return Ok(Vec::new());
        }
        let (records, whole_bytes) = read_lines(&path)?;
        if fs::metadata(&path).is_ok_and(|metadata| metadata.len() > whole_bytes) {
            OpenOptions::new()
                .write(true)
                .open(&path)
                .and_then(|file| file.set_len(whole_bytes))
                .map_err(Error::file("cannot repair", &path))?;
        }
        Ok(records)
    }
}

/// What goes on with a run.
pub fn resume_command(directory: &Path) -> String {
    let words = ["bench", "resume"].map(str::to_owned);
    shell("flagstone", &[&words[..], &[directory.display().to_string()]].concat())
}

/// A directory of this name, or with a number behind it, that no run is in: two runs of a second
/// have one each.
pub fn free_directory(name: &Path) -> PathBuf {
    let mut free = name.to_owned();
    for number in 2.. {
        if !free.exists() {
            break;
        }
        free = PathBuf::from(format!("{}-{number}", name.display()));
    }
    free
}

/// The file of lines of a directory, or that file itself.
pub(crate) fn file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("results.jsonl") } else { path.to_owned() }
}

/// The records of a directory, or of a file of lines.
///
/// # Errors
/// What cannot be read, with its line.
pub fn read(path: &Path) -> Result<Vec<Record>, Error> {
    let file = file(path);
    let is_run = path.join("campaign.json").exists();
    let records = match is_run && !file.exists() {
        true => Vec::new(),
        false => read_lines(&file)?.0,
    };
    if records.is_empty() && is_run {
        let name = path.display();
        let resume = resume_command(path);
        return Err(Error::Usage(format!("{name} has no results yet; go on with: {resume}")));
    }
    if records.is_empty() {
        return Err(Error::Usage(format!("{} has no results", path.display())));
    }
    Ok(records)
}

/// The records that results are: of a run that went on until it was steady, the last rounds that
/// were judged together; of any other, all.
pub fn settled(records: Vec<Record>, plan: &Plan) -> Vec<Record> {
    if !plan.steady_state {
        return records;
    }
    let rounds = |of: &Record| {
        let same = |r: &&Record| (&r.job, &r.target) == (&of.job, &of.target);
        records.iter().filter(same).map(|r| r.repetition).max().unwrap_or(0)
    };
    let first = |record: &Record| (rounds(record) + 1).saturating_sub(WINDOW as u32);
    let keep: Vec<_> = records.iter().map(|record| record.repetition >= first(record)).collect();
    records.into_iter().zip(keep).filter_map(|(record, keep)| keep.then_some(record)).collect()
}

/// Records, and how many bytes the whole lines have.
fn read_lines(path: &Path) -> Result<(Vec<Record>, u64), Error> {
    let text =
        crate::os::read_text(path, RESULTS_BYTES).map_err(Error::file("cannot read", path))?;
    let (mut records, mut whole_bytes) = (Vec::new(), 0);
    for (at, line) in text.split_inclusive('\n').enumerate() {
        let broken =
            |detail: String| Error::Results { path: path.to_owned(), line: at + 1, detail };
        if !line.ends_with('\n') {
            break;
        }
        if line.len() > RESULT_LINE_BYTES {
            return Err(broken("the line is too long".to_owned()));
        }
        let record: Record =
            serde_json::from_str(line).map_err(|error| broken(format!("no result: {error}")))?;
        if record.schema_version > SCHEMA_VERSION {
            return Err(broken(format!(
                "schema {} is newer than this program",
                record.schema_version
            )));
        }
        if [record.iops, record.mb_per_s, record.latency_mean_us].iter().any(|v| *v < 0.0) {
            return Err(broken("a figure below 0".to_owned()));
        }
        whole_bytes += line.len() as u64;
        records.push(record);
    }
    Ok((records, whole_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(repetition: u32) -> Record {
        let target: Target = "a=/x,/y".parse().unwrap();
        let mut measurement = Measurement::default();
        measurement.total.iops = 1000.25;
        measurement.total.percentiles_us.insert("99".to_owned(), 1.5);
        Record { repetition, ..Record::new("s", &Job::default(), &target, measurement) }
    }

    #[test]
    fn a_line_that_was_cut_off_costs_itself_alone() {
        let directory = tempfile::tempdir().unwrap();
        let mut plan = Plan::example();
        plan.destroy.push("/x".to_owned());
        let store = Store::create(directory.path(), &plan).unwrap();
        assert!(store.records().unwrap().is_empty());
        store.append(&record(0)).unwrap();
        let path = directory.path().join("results.jsonl");
        let mut text = fs::read_to_string(&path).unwrap();
        text += "{\"schema_version\":1,\"su";
        fs::write(&path, text).unwrap();
        assert_eq!(read(directory.path()).unwrap().len(), 1);
        assert_eq!(store.records().unwrap(), [record(0)]);
        store.append(&record(1)).unwrap();
        assert_eq!(store.records().unwrap(), [record(0), record(1)]);
        assert!(Store::create(directory.path(), &plan).is_err(), "nothing is overwritten");
        let resumed = Store::open(directory.path()).unwrap().1;
        assert!(resumed.destroy.is_empty(), "consent is given anew");
        plan.destroy.clear();
        assert_eq!(resumed, plan);
    }

    #[test]
    fn a_run_without_results_says_how_to_go_on_or_goes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run");
        let store = Store::create(&path, &Plan::example()).unwrap();
        assert_eq!(free_directory(&path), directory.path().join("run-2"));
        let error = read(&path).unwrap_err().to_string();
        assert!(error.ends_with(&format!("bench resume {}", path.display())), "{error}");
        store.discard();
        assert!(!path.exists());
        assert_eq!(free_directory(&path), path);

        let store = Store::create(&path, &Plan::example()).unwrap();
        store.append(&record(0)).unwrap();
        store.discard();
        assert_eq!(Store::open(&path).unwrap().0.records().unwrap().len(), 1, "nothing is lost");
    }

    #[test]
    fn of_rounds_the_last_are_the_results() {
        let mut plan = Plan::example();
        let all: Vec<_> = (0..8).map(record).collect();
        assert_eq!(settled(all.clone(), &plan).len(), 8);
        plan.steady_state = true;
        let kept: Vec<_> = settled(all.clone(), &plan).iter().map(|r| r.repetition).collect();
        assert_eq!(kept, [3, 4, 5, 6, 7]);
        assert_eq!(settled(all[..3].to_vec(), &plan).len(), 3);
    }

    #[test]
    fn foreign_files_are_named_with_the_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.jsonl");
        let good = serde_json::to_string(&record(0)).unwrap();
        for bad in
            ["{}", "nonsense", &good.replace("\"schema_version\":1", "\"schema_version\":99")]
        {
            fs::write(&path, format!("{good}\n{bad}\n")).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains("x.jsonl:2: "), "{error}");
        }
        assert!(read(&directory.path().join("missing")).is_err());
    }
}

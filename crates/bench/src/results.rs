//! Results directory: `campaign.json` (the plan), `environment.json`, `results.jsonl` (one line for
//! each measurement, appended when it is done), and `raw/` (the tools' output). `docs/results.md`
//! describes the format; a change other than new members raises [`SCHEMA_VERSION`].

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::campaign::CampaignPlan;
use crate::environment::Environment;
use crate::error::Error;
use crate::fio::arguments::shell;
use crate::job::{AccessPattern, BenchJob};
use crate::limits::{ENVIRONMENTS, RESULT_LINE_BYTES, RESULTS_BYTES};
use crate::measurement::Measurement;
use crate::provenance::Provenance;
use crate::stats::WINDOW;
use crate::target::BenchTarget;

pub const SCHEMA_VERSION: u32 = 1;

/// One line of `results.jsonl`. The main figures are at the top level, so that pandas reads them as
/// a table; all figures are in `measurement`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultRecord {
    pub schema_version: u32,
    pub suite: String,
    pub job: String,
    pub target: String,
    pub address: String,
    #[serde(default)]
    pub provenance: Provenance,
    pub repetition: u32,
    pub started_unix_s: f64,
    pub rw: AccessPattern,
    pub block_bytes: u64,
    pub depth: u32,
    pub threads: u32,
    pub disks: u32,
    pub runtime_ms: u64,
    pub iops: f64,
    pub mb_per_s: f64,
    pub latency_mean_us: f64,
    pub latency_p50_us: Option<f64>,
    pub latency_p99_us: Option<f64>,
    pub latency_p99_9_us: Option<f64>,
    pub latency_p99_99_us: Option<f64>,
    pub tool: String,
    pub command: String,
    /// File in `raw/` with the tool's output.
    pub raw: Option<String>,
    /// Bytes that the layer below wrote meanwhile, without the warm-up, by the user's command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_bytes: Option<u64>,
    pub measurement: Measurement,
}

impl ResultRecord {
    /// Bytes that the layer below wrote per byte written by the job.
    pub fn write_amplification(&self) -> Option<f64> {
        let written = self.written_bytes.filter(|_| self.rw.writes() && !self.rw.reads())?;
        let host = self.mb_per_s * 1e6 * self.runtime_ms as f64 / 1e3;
        (host > 0.0).then(|| written as f64 / host)
    }

    /// A record of a measurement without provenance, repetition, time, tool and command.
    pub fn new(
        suite: &str,
        job: &BenchJob,
        target: &BenchTarget,
        measurement: Measurement,
    ) -> ResultRecord {
        let total = &measurement.total;
        let at = |name| total.percentile_us(name);
        ResultRecord {
            schema_version: SCHEMA_VERSION,
            suite: suite.to_owned(),
            job: job.name.clone(),
            target: target.name.clone(),
            address: target.address(),
            provenance: Provenance::default(),
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
            written_bytes: None,
            measurement,
        }
    }
}

#[derive(Clone, Debug)]
pub struct ResultStore {
    directory: PathBuf,
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string_pretty(value).expect("it is always JSON") + "\n"
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T, Error> {
    let text = crate::os::read_text(path, RESULT_LINE_BYTES as u64)
        .map_err(Error::file("cannot read", path))?;
    let broken = |error: serde_json::Error| Error::Results {
        path: path.to_owned(),
        line: error.line(),
        detail: error.to_string(),
    };
    serde_json::from_str(&text).map_err(broken)
}

fn environment_name(at: usize) -> String {
    if at == 1 { "environment.json".to_owned() } else { format!("environment-{at}.json") }
}

impl ResultStore {
    /// Creates a new one; the directory may exist, but without a campaign.
    ///
    /// # Errors
    /// The directory has a campaign, or cannot be written.
    pub fn create(directory: &Path, plan: &CampaignPlan) -> Result<ResultStore, Error> {
        let store = ResultStore { directory: directory.to_owned() };
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

    /// Opens an existing one; returns its plan too.
    pub fn open(directory: &Path) -> Result<(ResultStore, CampaignPlan), Error> {
        let store = ResultStore { directory: directory.to_owned() };
        let plan: CampaignPlan = read_json(&store.path("campaign.json"))?;
        plan.check()?;
        Ok((store, plan))
    }

    /// Removes a run without results, after a failed start.
    pub fn discard(self) {
        if self.path("results.jsonl").exists() {
            return;
        }
        // A directory with other files is not empty and stays.
        for name in ["campaign.json", "environment.json"] {
            let _ = fs::remove_file(self.path(name));
        }
        let _ = fs::remove_dir(self.path("raw"));
        let _ = fs::remove_dir(&self.directory);
    }

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

    /// Stores the environment; different ones of a resumed run are kept side by side.
    pub fn environment(&self, environment: &Environment) -> Result<(), Error> {
        let text = json(environment);
        for name in (1..).map(environment_name) {
            match fs::read_to_string(self.path(&name)) {
                Ok(before) if before == text => break,
                Ok(_) => {}
                Err(_) => return self.write(&name, &text),
            }
        }
        Ok(())
    }

    pub fn environments(&self) -> Result<Vec<Environment>, Error> {
        let paths = (1..=ENVIRONMENTS).map(|at| self.path(&environment_name(at)));
        paths.take_while(|path| path.exists()).map(|path| read_json(&path)).collect()
    }

    /// Stores a tool's output; returns the name of the file.
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

    /// Appends a record and syncs it to disk.
    pub fn append(&self, record: &ResultRecord) -> Result<(), Error> {
        let line = serde_json::to_string(record).expect("a record is always JSON") + "\n";
        let path = self.path("results.jsonl");
        let write = || {
            let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
            file.write_all(line.as_bytes())?;
            file.sync_data()
        };
        write().map_err(Error::file("cannot write", &path))
    }

    /// All records. An incomplete last line, left by a crash, is removed from the file.
    pub fn records(&self) -> Result<Vec<ResultRecord>, Error> {
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

pub fn resume_command(directory: &Path) -> String {
    let words = ["bench", "resume"].map(str::to_owned);
    shell("flagstone", &[&words[..], &[directory.display().to_string()]].concat())
}

/// The directory of this name, or with a number appended, that does not exist yet: two runs may
/// start in the same second.
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

/// The file of lines in a directory, or that file itself.
pub(crate) fn file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("results.jsonl") } else { path.to_owned() }
}

pub fn read(path: &Path) -> Result<Vec<ResultRecord>, Error> {
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

/// The records that count as results: the last rounds that were judged together in a run with
/// steady state, else all.
pub fn settled(records: Vec<ResultRecord>, plan: &CampaignPlan) -> Vec<ResultRecord> {
    if !plan.steady_state {
        return records;
    }
    let rounds = |of: &ResultRecord| {
        let same = |r: &&ResultRecord| (&r.job, &r.target) == (&of.job, &of.target);
        records.iter().filter(same).map(|r| r.repetition).max().unwrap_or(0)
    };
    let first = |record: &ResultRecord| (rounds(record) + 1).saturating_sub(WINDOW as u32);
    let keep: Vec<_> = records.iter().map(|record| record.repetition >= first(record)).collect();
    records.into_iter().zip(keep).filter_map(|(record, keep)| keep.then_some(record)).collect()
}

/// Records, and the size of the complete lines in bytes.
fn read_lines(path: &Path) -> Result<(Vec<ResultRecord>, u64), Error> {
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
        let record: ResultRecord =
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

    fn record(repetition: u32) -> ResultRecord {
        let target: BenchTarget = "a=/x,/y".parse().unwrap();
        let mut measurement = Measurement::default();
        measurement.total.iops = 1000.25;
        measurement.total.percentiles_us.insert("99".to_owned(), 1.5);
        ResultRecord {
            repetition,
            ..ResultRecord::new("s", &BenchJob::default(), &target, measurement)
        }
    }

    #[test]
    fn truncated_last_line_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let mut plan = CampaignPlan::example();
        plan.destroy.push("/x".to_owned());
        let store = ResultStore::create(directory.path(), &plan).unwrap();
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
        assert!(ResultStore::create(directory.path(), &plan).is_err(), "nothing is overwritten");
        let resumed = ResultStore::open(directory.path()).unwrap().1;
        assert!(resumed.destroy.is_empty(), "consent is given again");
        plan.destroy.clear();
        assert_eq!(resumed, plan);
    }

    #[test]
    fn empty_run_can_be_resumed_or_discarded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run");
        let store = ResultStore::create(&path, &CampaignPlan::example()).unwrap();
        assert_eq!(free_directory(&path), directory.path().join("run-2"));
        let error = read(&path).unwrap_err().to_string();
        assert!(error.ends_with(&format!("bench resume {}", path.display())), "{error}");
        store.discard();
        assert!(!path.exists());
        assert_eq!(free_directory(&path), path);

        let store = ResultStore::create(&path, &CampaignPlan::example()).unwrap();
        store.append(&record(0)).unwrap();
        store.discard();
        assert_eq!(
            ResultStore::open(&path).unwrap().0.records().unwrap().len(),
            1,
            "nothing is lost"
        );
    }

    #[test]
    fn last_steady_rounds_are_the_results() {
        let mut plan = CampaignPlan::example();
        let all: Vec<_> = (0..8).map(record).collect();
        assert_eq!(settled(all.clone(), &plan).len(), 8);
        plan.steady_state = true;
        let kept: Vec<_> = settled(all.clone(), &plan).iter().map(|r| r.repetition).collect();
        assert_eq!(kept, [3, 4, 5, 6, 7]);
        assert_eq!(settled(all[..3].to_vec(), &plan).len(), 3);
    }

    #[test]
    fn invalid_results_name_file_and_line() {
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

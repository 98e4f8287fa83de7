//! fio's output in `json` or `json+` format, of any fio 3. It is read as hostile input: size and
//! counts are bounded, and every figure must be finite and not negative. Unknown and missing
//! members are accepted.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::fio::options::FioOptions;
use crate::histogram::Histogram;
use crate::limits::{FIO_JOBS, HISTOGRAM_BINS};

#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    pub version: String,
    /// Global options; options of a job take precedence.
    pub(crate) global: FioOptions,
    /// One entry for each job, or for each group with group reporting. Sums of several machines are
    /// removed.
    pub jobs: Vec<JobOutput>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct JobOutput {
    #[serde(rename = "jobname")]
    pub name: String,
    /// Error number of the system, or 0.
    pub error: i64,
    /// Group of the job. Jobs of one group ran at the same time. A job with `stonewall` or
    /// `new_group` starts the next group.
    pub(crate) groupid: i64,
    /// Start time, in ms since 1970; fio 3.36 and later.
    pub(crate) job_start: Option<u64>,
    /// Run time of fio when it reported this job, in s.
    pub elapsed: Option<u64>,
    /// Machine, where fio ran on others (`--client`).
    pub hostname: Option<String>,
    /// Options of the job; for a group, of its first job. fio omits options without a value.
    #[serde(rename = "job options")]
    pub options: FioOptions,
    pub read: FioDirection,
    pub write: FioDirection,
    /// Discards: for block devices, ioctl `BLKDISCARD`.
    pub(crate) trim: FioDirection,
    /// Reads, writes and trims together, with `unified_rw_reporting`.
    pub mixed: FioDirection,
    /// CPU time in user mode, in % of one CPU; of a group, the mean of its jobs.
    pub usr_cpu: f64,
    /// CPU time in the kernel, in % of one CPU.
    pub sys_cpu: f64,
    pub ctx: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct FioDirection {
    pub io_bytes: u64,
    pub total_ios: u64,
    pub iops: f64,
    pub bw_bytes: f64,
    /// Measured time, in ms.
    pub runtime: u64,
    pub iops_stddev: f64,
    /// Mean of the samples over time, which `iops_stddev` is of.
    pub(crate) iops_mean: f64,
    pub(crate) iops_samples: u64,
    /// Total latency, from submission to completion.
    #[serde(rename = "lat_ns")]
    pub(crate) lat: FioLatency,
    /// Completion latency, from the submission to the kernel on; the fallback where the total
    /// latency has no percentiles.
    #[serde(rename = "clat_ns")]
    pub(crate) clat: FioLatency,
}

impl FioDirection {
    /// Requests that completed during the measurement. fio's own count omits requests that were in
    /// flight at the end of the warm-up, although their bytes and latencies are counted: 1 % of
    /// 25,600 requests at a depth of 256.
    pub fn completed(&self) -> u64 {
        self.latency().count.max(self.total_ios)
    }

    pub(crate) fn completed_per_s(&self) -> f64 {
        let seconds = self.runtime as f64 / 1e3;
        match self.completed() {
            ios if ios > self.total_ios && seconds > 0.0 => ios as f64 / seconds,
            _ => self.iops,
        }
    }

    /// Standard deviation of the IOPS over time, as a part of their mean; `None` with too few
    /// samples, or if they are not of all I/O.
    pub(crate) fn iops_deviation(&self) -> Option<f64> {
        const SAMPLES_MIN: u64 = 10;
        let whole = (self.iops_mean / self.iops - 1.0).abs() <= 0.1;
        (self.iops_samples >= SAMPLES_MIN && whole).then(|| self.iops_stddev / self.iops_mean)
    }

    /// The latency that has percentiles: total latency, or else completion latency.
    pub fn latency(&self) -> &FioLatency {
        if self.lat.bins.count() == 0 && (self.clat.bins.count() > 0 || self.lat.count == 0) {
            &self.clat
        } else {
            &self.lat
        }
    }
}

/// Latencies, in ns.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct FioLatency {
    pub min: f64,
    pub max: f64,
    pub mean: f64,
    pub stddev: f64,
    #[serde(rename = "N")]
    pub count: u64,
    /// Histogram; json+ only.
    #[serde(deserialize_with = "bins")]
    pub bins: Histogram,
    /// Percentages and ns, ascending; without json+ the only percentiles.
    #[serde(deserialize_with = "percentiles")]
    pub percentile: Vec<(f64, f64)>,
}

impl FioLatency {
    /// A percentile in ns, from the histogram or as printed by fio.
    pub(crate) fn percentile_ns(&self, percent: f64) -> Option<f64> {
        if let Some(nanos) = self.bins.percentile_ns(percent) {
            // The middle of a bin may lie outside of the observed range.
            let inside = (nanos as f64).max(self.min);
            return Some(if self.max > 0.0 { inside.min(self.max) } else { inside });
        }
        let near = |(p, _): &&(f64, f64)| (p - percent).abs() < 1e-6;
        self.percentile.iter().find(near).map(|(_, nanos)| *nanos)
    }
}

struct Pairs<T, V>(std::marker::PhantomData<(T, V)>);

impl<'de, T: std::str::FromStr, V: Deserialize<'de>> Visitor<'de> for Pairs<T, V> {
    type Value = Vec<(T, V)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object whose keys are numbers")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut out = Vec::new();
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            // fio 3.0 ends the list with a key that is not a number.
            let Ok(key) = key.parse() else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if out.len() >= HISTOGRAM_BINS {
                return Err(de::Error::custom("too many bins"));
            }
            out.push((key, map.next_value()?));
        }
        Ok(out)
    }
}

fn bins<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Histogram, D::Error> {
    let pairs = deserializer.deserialize_map(Pairs::<u64, u64>(std::marker::PhantomData))?;
    Histogram::new(pairs).ok_or_else(|| de::Error::custom("more latencies than can be counted"))
}

fn percentiles<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(f64, f64)>, D::Error> {
    let mut pairs = deserializer.deserialize_map(Pairs::<f64, f64>(std::marker::PhantomData))?;
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(pairs)
}

#[derive(Deserialize)]
struct Raw {
    #[serde(rename = "fio version")]
    version: String,
    /// Time of the report, in s since 1970.
    timestamp: Option<u64>,
    #[serde(default, rename = "global options")]
    global: FioOptions,
    #[serde(default, deserialize_with = "jobs")]
    jobs: Vec<JobOutput>,
    /// In place of `jobs` where fio ran on other machines.
    #[serde(default, deserialize_with = "jobs")]
    client_stats: Vec<JobOutput>,
}

/// fio's name for the sum of several machines.
const ALL_CLIENTS: &str = "All clients";

struct Jobs;

impl<'de> Visitor<'de> for Jobs {
    type Value = Vec<JobOutput>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of jobs")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Self::Value, S::Error> {
        let mut out = Vec::new();
        while let Some(job) = list.next_element()? {
            if out.len() >= FIO_JOBS {
                return Err(de::Error::custom(format!(
                    "there are more than {FIO_JOBS} jobs in it"
                )));
            }
            out.push(job);
        }
        Ok(out)
    }
}

fn jobs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<JobOutput>, D::Error> {
    deserializer.deserialize_seq(Jobs)
}

/// Upper bound of an error message, in characters: it may quote the input.
const SAID_CHARS: usize = 200;

fn said(error: serde_json::Error) -> String {
    if error.is_eof() {
        return "its JSON ends in the middle".to_owned();
    }
    let text = error.to_string();
    if text.chars().count() <= SAID_CHARS {
        return text;
    }
    let begin: String = text.chars().take(SAID_CHARS).collect();
    format!("{begin}… at line {} column {}", error.line(), error.column())
}

/// Start of the JSON: fio prints it at the start of a line; warnings before it may have braces.
fn beginning(text: &str) -> Option<usize> {
    if text.starts_with('{') {
        return Some(0);
    }
    text.find("\n{").map(|at| at + 1).or_else(|| text.find('{'))
}

/// Parses the JSON in fio's output, which may be between other text. Of several objects of one run
/// (`--status-interval`) the last one describes the whole run.
///
/// # Errors
/// There is no result, an unreadable one, or results of several runs.
pub fn parse(text: &str) -> Result<Output, String> {
    let mut rest = &text[beginning(text).ok_or("there is no JSON in it")?..];
    let mut last: Option<Raw> = None;
    loop {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Raw>();
        let raw = values.next().ok_or("there is no JSON in it")?.map_err(said)?;
        if last.is_some_and(|before| !raw.continues(&before)) {
            return Err("it has results of several runs: put each into its own file".to_owned());
        }
        let after = &rest[values.byte_offset()..];
        last = Some(raw);
        // Other text may follow, such as the report for people, and another object after that.
        let next = after.trim_start();
        match next.strip_prefix('{').map(|_| 0).or_else(|| next.find("\n{").map(|at| at + 1)) {
            Some(at) => rest = &next[at..],
            None => break,
        }
    }
    let raw = last.ok_or("there is no JSON in it")?;
    let mut jobs = raw.jobs;
    if jobs.is_empty() {
        jobs = raw.client_stats;
        if jobs.len() > 1 {
            jobs.retain(|job| job.name != ALL_CLIENTS);
        }
    }
    if jobs.is_empty() {
        return Err("there is no job in it".to_owned());
    }
    for job in &jobs {
        check(job)?;
    }
    Ok(Output { version: raw.version, global: raw.global, jobs })
}

/// Difference in the start of a run, as computed from whole seconds of two reports.
const START_SECONDS: u64 = 2;

impl Raw {
    /// Whether this is a later report of the same run: the same jobs, started at the same time, and
    /// none with fewer requests than before.
    fn continues(&self, before: &Raw) -> bool {
        let all = |raw: &Raw| -> Vec<_> {
            raw.jobs.iter().chain(&raw.client_stats).cloned().collect::<Vec<JobOutput>>()
        };
        let (now, then) = (all(self), all(before));
        let is_same = |(now, then): (&JobOutput, &JobOutput)| {
            let sides = |job: &JobOutput| {
                [&job.read, &job.write, &job.trim, &job.mixed].map(|side| side.total_ios)
            };
            let start = now.job_start.zip(then.job_start);
            (&now.name, now.groupid, &now.hostname, &now.options)
                == (&then.name, then.groupid, &then.hostname, &then.options)
                && start.is_none_or(|(now, then)| now == then)
                && sides(now).iter().zip(sides(then)).all(|(now, then)| *now >= then)
        };
        let starts = self.started_s().zip(before.started_s());
        self.global == before.global
            && now.len() >= then.len()
            && starts.is_none_or(|(now, then)| now.abs_diff(then) <= START_SECONDS)
            && now.iter().zip(&then).all(is_same)
    }

    /// Start of the run in seconds since 1970; `None` if the report does not give it.
    fn started_s(&self) -> Option<u64> {
        let elapsed = self.jobs.iter().chain(&self.client_stats).filter_map(|job| job.elapsed);
        self.timestamp?.checked_sub(elapsed.max()?)
    }
}

/// Above any plausible figure in any unit; sums of smaller figures stay finite.
const FIGURE_MOST: f64 = 1e21;

fn check(job: &JobOutput) -> Result<(), String> {
    let mut figures = vec![("usr_cpu", job.usr_cpu), ("sys_cpu", job.sys_cpu)];
    for side in [&job.read, &job.write, &job.trim, &job.mixed] {
        figures.extend([("iops", side.iops), ("bw_bytes", side.bw_bytes)]);
        figures.extend([("iops_stddev", side.iops_stddev), ("iops_mean", side.iops_mean)]);
        for latency in [&side.lat, &side.clat] {
            figures.extend([("mean", latency.mean), ("stddev", latency.stddev)]);
            figures.extend([("min", latency.min), ("max", latency.max)]);
        }
    }
    match figures.iter().find(|(_, value)| !(0.0..FIGURE_MOST).contains(value)) {
        Some((name, value)) => Err(format!("`{name}` of job {} is {value}", shown(&job.name))),
        None => Ok(()),
    }
}

/// A name as it is repeated in a message: one short line.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(60).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// fio 3.1: no bins, no total of intervals.
    const OLD: &str = r#"fio: this platform does not support process shared mutexes
{"fio version": "fio-3.1", "timestamp": 1, "jobs": [{"jobname": "a", "groupid": 0, "error": 0,
 "read": {"io_bytes": 8192, "io_kbytes": 8, "bw": 4, "iops": 1000.5, "runtime": 2000, "total_ios": 2001,
   "lat_ns": {"min": 900, "max": 2000000, "mean": 950000.0, "stddev": 1.5},
   "clat_ns": {"min": 900, "max": 2000000, "mean": 940000.0, "stddev": 1.5,
      "percentile": {"1.000000": 900, "99.000000": 1500000, "0.00": 0}}},
 "usr_cpu": 1.5, "sys_cpu": 2, "ctx": 7}]}"#;

    #[test]
    fn old_fio_output_without_latency() {
        let output = parse(OLD).unwrap();
        assert_eq!(output.version, "fio-3.1");
        let read = &output.jobs[0].read;
        assert_eq!((read.iops, read.total_ios), (1000.5, 2001));
        assert_eq!(read.latency().percentile_ns(99.0), Some(1_500_000.0));
        assert_eq!(read.latency().percentile_ns(98.0), None);
        assert_eq!(output.jobs[0].write, FioDirection::default());
    }

    #[test]
    fn json_plus_histogram_percentiles() {
        let new = OLD.replace(
            r#""mean": 950000.0, "stddev": 1.5"#,
            r#""mean": 950000.0, "stddev": 1.5, "N": 4, "bins": {"800": 1, "2000": 1, "1000": 1, "9000000": 1}"#,
        );
        let output = parse(&new).unwrap();
        let latency = output.jobs[0].read.latency();
        assert_eq!(latency.bins.count(), 4);
        assert_eq!(latency.percentile_ns(50.0), Some(1000.0));
        assert_eq!(latency.percentile_ns(0.0), Some(900.0), "a bin's middle below the least");
        assert_eq!(latency.percentile_ns(100.0), Some(2_000_000.0));
    }

    #[test]
    fn broken_fio_output_is_an_error() {
        for (text, part) in [
            ("", "no JSON"),
            ("fio: engine nbd not loadable", "no JSON"),
            (&OLD[..OLD.len() - 40], "in the middle"),
            (r#"{"fio version": "fio-3.33", "jobs": []}"#, "no job"),
            (&OLD.replace("1000.5", "-1"), "`iops` of job a is -1"),
            (&OLD.replace("1000.5", "nan"), "expected"),
            (&OLD.replace("1000.5", "1e999"), "number out of range"),
        ] {
            let error = parse(text).expect_err(part);
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn text_around_json_is_skipped() {
        let json = OLD.lines().skip(1).collect::<Vec<_>>().join("\n");
        let around = format!("fio: {{warning}} of a job\n{json}\n\na: (groupid=0): err= 0\n");
        assert_eq!(parse(&around).unwrap(), parse(OLD).unwrap());
        let later = json.replace("1000.5", "2000.5");
        let twice = parse(&format!("{json}\n{later}\n")).unwrap();
        assert_eq!(twice.jobs[0].read.iops, 2000.5, "the last of a run with --status-interval");
        let error = parse(&format!("{json}\n{}", &later[..300])).expect_err("it is cut");
        assert!(error.contains("in the middle"), "{error}");
    }

    /// Regression test: only the last of several results was judged.
    #[test]
    fn results_of_several_runs_are_refused() {
        let run = |timestamp: u64, name: &str, ios: u64| {
            format!(
                r#"{{"fio version": "fio-3.33", "timestamp": {timestamp}, "jobs": [{{"jobname": "{name}",
                "elapsed": 60, "read": {{"total_ios": {ios}}}}}]}}"#
            )
        };
        let first = run(1000, "a", 100);
        for second in [run(1061, "a", 100), run(1000, "b", 100), run(1000, "a", 99)] {
            for between in ["\n", "", "\nfio: a warning\n"] {
                let error = parse(&format!("{first}{between}{second}")).expect_err("two runs");
                assert!(error.contains("several runs"), "{error}");
            }
        }
        assert!(parse(&format!("{first}\n{}", run(1001, "a", 100))).is_ok(), "one run");
        for broken in ["{\"fio version\": 7}", "{ nonsense", "{\"jobs\": []}"] {
            assert!(parse(&format!("{first}\n{broken}\n")).is_err(), "{broken}");
        }
    }

    #[test]
    fn client_server_output_has_hostnames() {
        let text = r#"{"fio version": "fio-3.33", "client_stats": [{"jobname": "a", "hostname": "x"},
          {"jobname": "a", "hostname": "y"}, {"jobname": "All clients"}], "disk_util": []}"#;
        let output = parse(text).unwrap();
        let hosts: Vec<_> = output.jobs.iter().map(|job| job.hostname.as_deref()).collect();
        assert_eq!(hosts, [Some("x"), Some("y")]);
    }

    #[test]
    fn hostile_fio_json_is_refused() {
        let deep = "[".repeat(100_000);
        let job = |key: &str, value: &str| {
            format!(r#"{{"fio version": "fio-3.33", "jobs": [{{"{key}": {value}}}]}}"#)
        };
        for (text, part) in [
            (job("read", &deep), "expected"),
            (job("read", r#"{"total_ios": -1}"#), "invalid value"),
            (job("read", r#"{"total_ios": 1e30}"#), "invalid type"),
            (job("read", r#"{"iops": NaN}"#), "expected value"),
            (job("read", r#"{"iops": "1"}"#), "invalid type"),
            (job("job options", "7"), "invalid type"),
            (job("mixed", r#"{"iops": -0.5}"#), "`iops` of job  is -0.5"),
            (r#"{"fio version": "fio-3.33", "jobs": {}}"#.to_owned(), "a list of jobs"),
            (
                format!(r#"{{"fio version": "x", "jobs": [{}{{}}]}}"#, "{},".repeat(FIO_JOBS)),
                "more than",
            ),
            ("{".repeat(100_000), "key must be a string"),
        ] {
            let error = parse(&text).expect_err(part);
            assert!(error.contains(part), "{part}: {error}");
        }
        let error = parse(&job("error", &format!("\"{}\"", "ü\\n".repeat(1 << 20))));
        let error = error.expect_err("it is no number");
        assert!(error.chars().count() < 300 && error.lines().count() == 1, "{error:.300}");
        assert!(error.contains("… at line 1 column"), "{error}");
    }

    proptest! {
        #[test]
        fn damaged_fio_json_never_panics(at in 0usize..700, byte in 32u8..127, cut in 0usize..700) {
            let mut bytes = OLD.as_bytes().to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(bytes.len() - cut % 20);
            if let Ok(output) = parse(std::str::from_utf8(&bytes).unwrap()) {
                prop_assert!(output.jobs.iter().all(|job| job.read.iops >= 0.0));
            }
        }
    }
}

//! What fio prints as `json` or `json+`, of any fio 3. It is read as hostile: bounded in size and
//! number, and every figure must be a finite number from 0 up. What newer or older versions add or
//! leave out is borne.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::histogram::Histogram;
use crate::limits::{FIO_JOBS, HISTOGRAM_BINS};

/// All of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Such as `fio-3.33`.
    pub version: String,
    /// A job, or with group reporting a group, each.
    pub jobs: Vec<JobOutput>,
}

/// What came of one job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct JobOutput {
    /// As its section is called.
    #[serde(rename = "jobname", default)]
    pub name: String,
    /// An error number of the system, or 0.
    #[serde(default)]
    pub error: i64,
    /// Reads.
    #[serde(default)]
    pub read: Side,
    /// Writes.
    #[serde(default)]
    pub write: Side,
    /// CPU time of the job in user mode, in % of one CPU.
    #[serde(default)]
    pub usr_cpu: f64,
    /// CPU time of the job in the kernel, in % of one CPU.
    #[serde(default)]
    pub sys_cpu: f64,
    /// Context switches.
    #[serde(default)]
    pub ctx: u64,
}

/// Reads or writes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Side {
    /// Bytes.
    #[serde(default)]
    pub io_bytes: u64,
    /// Requests.
    #[serde(default)]
    pub total_ios: u64,
    /// Requests a second.
    #[serde(default)]
    pub iops: f64,
    /// Bytes a second.
    #[serde(default)]
    pub bw_bytes: f64,
    /// Time that was measured, in ms.
    #[serde(default)]
    pub runtime: u64,
    /// Standard deviation of IOPS over intervals.
    #[serde(default)]
    pub iops_stddev: f64,
    /// From submission to completion.
    #[serde(default, rename = "lat_ns")]
    pub lat: Latency,
    /// From when the kernel had it to completion: of jobs of others, which have no percentiles of
    /// the whole.
    #[serde(default, rename = "clat_ns")]
    pub clat: Latency,
}

impl Side {
    /// The latency with percentiles: the whole, or else its part that the kernel had.
    pub fn latency(&self) -> &Latency {
        if self.lat.bins.count() == 0 && (self.clat.bins.count() > 0 || self.lat.count == 0) {
            &self.clat
        } else {
            &self.lat
        }
    }
}

/// A latency.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Latency {
    /// Least, in ns.
    #[serde(default)]
    pub min: f64,
    /// Greatest, in ns.
    #[serde(default)]
    pub max: f64,
    /// Mean, in ns.
    #[serde(default)]
    pub mean: f64,
    /// Standard deviation, in ns.
    #[serde(default)]
    pub stddev: f64,
    /// How many.
    #[serde(default, rename = "N")]
    pub count: u64,
    /// json+ alone.
    #[serde(default, deserialize_with = "bins")]
    pub bins: Histogram,
    /// Percentages and ns, ascending: what there is without json+.
    #[serde(default, deserialize_with = "percentiles")]
    pub percentile: Vec<(f64, f64)>,
}

impl Latency {
    /// A percentile in ns: from the bins, or the one that fio printed.
    pub fn percentile_ns(&self, percent: f64) -> Option<f64> {
        if let Some(nanos) = self.bins.percentile_ns(percent) {
            // A bin's middle may lie outside of what was seen.
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
            // fio 3.0 names the end of the list in it.
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
    #[serde(default)]
    jobs: Vec<JobOutput>,
}

/// Reads the first JSON object in fio's output: warnings may stand before it.
///
/// # Errors
/// What is wrong with it, as a phrase.
pub fn parse(text: &str) -> Result<Output, String> {
    let start = text.find('{').ok_or("there is no JSON in it")?;
    let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Raw>();
    let raw = values.next().ok_or("there is no JSON in it")?.map_err(|error| {
        if error.is_eof() { "its JSON ends in the middle".to_owned() } else { error.to_string() }
    })?;
    if raw.jobs.is_empty() {
        return Err("there is no job in it".to_owned());
    }
    if raw.jobs.len() > FIO_JOBS {
        return Err(format!("there are more than {FIO_JOBS} jobs in it"));
    }
    for job in &raw.jobs {
        check(job)?;
    }
    Ok(Output { version: raw.version, jobs: raw.jobs })
}

/// Above any figure that there can be, in any unit here; sums of them stay finite.
const FIGURE_MOST: f64 = 1e21;

fn check(job: &JobOutput) -> Result<(), String> {
    let mut figures = vec![("usr_cpu", job.usr_cpu), ("sys_cpu", job.sys_cpu)];
    for side in [&job.read, &job.write] {
        figures.extend([("iops", side.iops), ("bw_bytes", side.bw_bytes)]);
        figures.push(("iops_stddev", side.iops_stddev));
        for latency in [&side.lat, &side.clat] {
            figures.extend([("mean", latency.mean), ("stddev", latency.stddev)]);
            figures.extend([("min", latency.min), ("max", latency.max)]);
        }
    }
    match figures.iter().find(|(_, value)| !(0.0..FIGURE_MOST).contains(value)) {
        Some((name, value)) => Err(format!("`{name}` of job {:.60} is {value}", job.name)),
        None => Ok(()),
    }
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
    fn an_old_fio() {
        let output = parse(OLD).unwrap();
        assert_eq!(output.version, "fio-3.1");
        let read = &output.jobs[0].read;
        assert_eq!((read.iops, read.total_ios), (1000.5, 2001));
        assert_eq!(read.latency().percentile_ns(99.0), Some(1_500_000.0));
        assert_eq!(read.latency().percentile_ns(98.0), None);
        assert_eq!(output.jobs[0].write, Side::default());
    }

    #[test]
    fn json_plus_has_the_whole_histogram() {
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
    fn broken_output_is_named() {
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

    proptest! {
        #[test]
        fn damage_is_an_error_or_harmless(at in 0usize..700, byte in 32u8..127, cut in 0usize..700) {
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

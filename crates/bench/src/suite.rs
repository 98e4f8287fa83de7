//! Suites: jobs of a campaign in a TOML file, built in or the user's, or in a job file of fio.

use std::collections::BTreeMap;
use std::path::Path;

use flagstone_units::{format_block_size, parse_duration, parse_size};
use serde::Deserialize;

use crate::error::Error;
use crate::fio::job_file;
use crate::job::{AccessPattern, BenchJob, Buffers};
use crate::limits::{REPETITIONS, STEP_TIMES, SUITE_BYTES, SUITE_JOBS};

#[derive(Clone, Debug, PartialEq)]
pub struct Suite {
    pub name: String,
    pub title: String,
    pub about: String,
    pub repetitions: u32,
    /// Whether targets are filled with incompressible data first, where necessary.
    pub precondition: bool,
    pub discard: bool,
    /// Whether rounds are added until the results are steady.
    pub steady_state: bool,
    pub jobs: Vec<BenchJob>,
    /// Options of a fio job file that have no effect.
    pub notes: Vec<String>,
}

const REPETITIONS_DEFAULT: u32 = 5;

/// Name and file of each built-in suite.
pub const BUILT_IN: [(&str, &str); 12] = [
    ("quick", include_str!("../suites/quick.toml")),
    ("latency", include_str!("../suites/latency.toml")),
    ("sweep", include_str!("../suites/sweep.toml")),
    ("oltp", include_str!("../suites/oltp.toml")),
    ("redo-log", include_str!("../suites/redo-log.toml")),
    ("streaming", include_str!("../suites/streaming.toml")),
    ("mirror", include_str!("../suites/mirror.toml")),
    ("fabric", include_str!("../suites/fabric.toml")),
    ("provisioned-iops", include_str!("../suites/provisioned-iops.toml")),
    ("gcp-pd", include_str!("../suites/gcp-pd.toml")),
    ("gcp-local-ssd", include_str!("../suites/gcp-local-ssd.toml")),
    ("space-sharing", include_str!("../suites/space-sharing.toml")),
];

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum List<T> {
    Many(Vec<T>),
    One(T),
}

impl<T: Clone> List<T> {
    fn items(&self) -> Vec<T> {
        match self {
            List::One(item) => vec![item.clone()],
            List::Many(items) => items.clone(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSuite {
    name: String,
    title: String,
    #[serde(default)]
    about: String,
    repetitions: Option<u32>,
    precondition: Option<bool>,
    #[serde(default)]
    discard: bool,
    steady_state: Option<bool>,
    #[serde(default)]
    defaults: RawJob,
    #[serde(rename = "job")]
    jobs: Vec<RawJob>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawJob {
    name: Option<String>,
    rw: Option<List<AccessPattern>>,
    bs: Option<List<String>>,
    depth: Option<List<u32>>,
    threads: Option<List<u32>>,
    disks: Option<List<u32>>,
    write_percent: Option<List<u8>>,
    ramp: Option<String>,
    runtime: Option<String>,
    offset: Option<String>,
    size: Option<String>,
    offset_increment: Option<String>,
    direct: Option<bool>,
    sync: Option<bool>,
    buffers: Option<String>,
    rate_iops: Option<u64>,
    random_map: Option<bool>,
    seed: Option<u64>,
    engine: Option<String>,
    before: Option<String>,
    times: Option<u32>,
    #[serde(default)]
    fio: BTreeMap<String, String>,
}

/// The built-in suite of this name, or the suite in this file.
pub fn find(name: &str) -> Result<Suite, Error> {
    if let Some((_, text)) = BUILT_IN.iter().find(|(own, _)| *own == name) {
        return parse(text, name);
    }
    let path = Path::new(name);
    if !name.contains(['/', '.']) || !path.exists() {
        let names: Vec<_> = BUILT_IN.iter().map(|(own, _)| *own).collect();
        let names = names.join(", ");
        return Err(Error::Usage(format!("no suite `{name}`: {names}, or the path of a file")));
    }
    let text = crate::os::read_text(path, SUITE_BYTES).map_err(Error::file("cannot read", path))?;
    if path.extension().is_some_and(|extension| extension == "fio") {
        return parse_fio(&text, name);
    }
    parse(&text, name)
}

/// Parses a job file of fio; `origin` is its path.
pub(crate) fn parse_fio(text: &str, origin: &str) -> Result<Suite, Error> {
    let wrong = |what: String| Error::Usage(format!("suite {origin}: {what}"));
    let (jobs, notes) = job_file::parse(text).map_err(&wrong)?;
    check(&jobs).map_err(&wrong)?;
    let name = Path::new(origin).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Suite {
        title: format!("fio's job file {name}"),
        name,
        about: String::new(),
        repetitions: REPETITIONS_DEFAULT,
        precondition: true,
        discard: false,
        steady_state: false,
        jobs,
        notes,
    })
}

fn check(jobs: &[BenchJob]) -> Result<(), String> {
    if jobs.is_empty() {
        return Err("it has no job".to_owned());
    }
    for (at, job) in jobs.iter().enumerate() {
        job.check()?;
        if jobs[..at].iter().any(|other| other.name == job.name) {
            return Err(format!("two jobs are called {}", job.name));
        }
    }
    Ok(())
}

/// Parses a suite; `origin` is for messages.
pub fn parse(text: &str, origin: &str) -> Result<Suite, Error> {
    let wrong = |what: String| Error::Usage(format!("suite {origin}: {what}"));
    let raw: RawSuite = toml_edit::de::from_str(text)
        .map_err(|error| wrong(error.to_string().trim().to_owned()))?;
    let repetitions = raw.repetitions.unwrap_or(REPETITIONS_DEFAULT);
    if !(1..=REPETITIONS).contains(&repetitions) {
        return Err(wrong(format!("repetitions are from 1 to {REPETITIONS}")));
    }
    let mut jobs = Vec::new();
    for job in &raw.jobs {
        expand(&merged(&raw.defaults, job), &mut jobs).map_err(&wrong)?;
    }
    check(&jobs).map_err(&wrong)?;
    Ok(Suite {
        name: raw.name,
        title: raw.title,
        about: raw.about,
        repetitions,
        precondition: raw.precondition.unwrap_or(true),
        discard: raw.discard,
        steady_state: raw.steady_state.unwrap_or(false),
        jobs,
        notes: Vec::new(),
    })
}

/// The job with the suite's defaults where it has no value.
fn merged(defaults: &RawJob, job: &RawJob) -> RawJob {
    let (d, j) = (defaults.clone(), job.clone());
    let mut fio = d.fio;
    fio.extend(j.fio);
    macro_rules! first_given {
        ($($field:ident)*) => { RawJob { $($field: j.$field.or(d.$field),)* fio } };
    }
    first_given!(name rw bs depth threads disks write_percent ramp runtime offset size offset_increment
        direct sync buffers rate_iops random_map seed engine before times)
}

type Named = Vec<(Vec<String>, BenchJob)>;

/// Multiplies the jobs by a list: each item sets its value and, of several, its part of the name.
fn multiply<T: Clone>(
    jobs: Named,
    list: &Option<List<T>>,
    part: impl Fn(&T) -> String,
    set: impl Fn(&mut BenchJob, T),
) -> Result<Named, String> {
    let Some(list) = list else { return Ok(jobs) };
    let items = list.items();
    if jobs.len().saturating_mul(items.len()) > SUITE_JOBS {
        return Err(too_many());
    }
    let mut out = Named::new();
    for (parts, job) in &jobs {
        for item in &items {
            let (mut parts, mut job) = (parts.clone(), job.clone());
            if matches!(list, List::Many(_)) {
                parts.push(part(item));
            }
            set(&mut job, item.clone());
            out.push((parts, job));
        }
    }
    Ok(out)
}

fn too_many() -> String {
    format!("it has more than {SUITE_JOBS} jobs")
}

fn expand(raw: &RawJob, jobs: &mut Vec<BenchJob>) -> Result<(), String> {
    let sizes = match &raw.bs {
        None => None,
        Some(List::One(text)) => Some(List::One(size(text)?)),
        Some(List::Many(all)) => {
            Some(List::Many(all.iter().map(|text| size(text)).collect::<Result<_, _>>()?))
        }
    };
    let all = vec![(raw.name.iter().cloned().collect(), base(raw)?)];
    let all = multiply(all, &raw.rw, |p| p.to_string(), |job, p| job.pattern = p)?;
    let all = multiply(all, &sizes, |b| format_block_size(*b), |job, b| job.block_bytes = b)?;
    let all = multiply(all, &raw.depth, |n| format!("d{n}"), |job, n| job.depth = n)?;
    let all = multiply(all, &raw.threads, |n| format!("t{n}"), |job, n| job.threads = n)?;
    let all = multiply(all, &raw.disks, |n| format!("x{n}"), |job, n| job.disks = n)?;
    let all =
        multiply(all, &raw.write_percent, |n| format!("w{n}"), |job, n| job.write_percent = n)?;
    if all.len() + jobs.len() > SUITE_JOBS {
        return Err(too_many());
    }
    jobs.extend(all.into_iter().map(|(parts, job)| {
        let name = match parts.is_empty() {
            true => format!("{}-{}", job.pattern, format_block_size(job.block_bytes)),
            false => parts.join("-"),
        };
        BenchJob { name, ..job }
    }));
    Ok(())
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| format!("`{text}`: {error}"))
}

fn time_ms(text: &str) -> Result<u64, String> {
    let time = parse_duration(text).map_err(|error| format!("`{text}`: {error}"))?;
    Ok(time.as_millis() as u64)
}

fn base(raw: &RawJob) -> Result<BenchJob, String> {
    let mut job = BenchJob::default();
    let time = |text: &Option<String>, default| text.as_deref().map_or(Ok(default), time_ms);
    let size = |text: &Option<String>| text.as_deref().map(size).transpose();
    job.ramp_ms = time(&raw.ramp, job.ramp_ms)?;
    job.runtime_ms = time(&raw.runtime, job.runtime_ms)?;
    job.offset_bytes = size(&raw.offset)?.unwrap_or(0);
    job.size_bytes = size(&raw.size)?;
    job.offset_increment_bytes = size(&raw.offset_increment)?.unwrap_or(0);
    job.direct = raw.direct.unwrap_or(job.direct);
    job.sync = raw.sync.unwrap_or(job.sync);
    job.rate_iops = raw.rate_iops;
    job.random_map = raw.random_map.unwrap_or(job.random_map);
    job.seed = raw.seed;
    job.engine.clone_from(&raw.engine);
    job.before.clone_from(&raw.before);
    job.before_times = raw.times.unwrap_or(0);
    if job.before_times > STEP_TIMES || (job.before_times > 0 && job.before.is_none()) {
        return Err(format!("times is from 1 to {STEP_TIMES}, and belongs to before"));
    }
    job.buffers = match raw.buffers.as_deref() {
        None | Some("scrambled") => Buffers::Scrambled,
        Some("random") => Buffers::Random,
        Some("zero") => Buffers::Zero,
        Some(other) => return Err(format!("buffers are scrambled, random or zero, not `{other}`")),
    };
    job.extra = raw.fio.clone().into_iter().collect();
    Ok(job)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_suites_parse() {
        for (name, text) in BUILT_IN {
            let suite = parse(text, name).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(suite.name, name);
            // Fewer could not show a difference between two targets. The first write of a volume
            // cannot be repeated.
            let least = match name {
                "space-sharing" => 1,
                _ => crate::stats::REPETITIONS_LEAST as u32,
            };
            assert!(!suite.title.is_empty() && suite.repetitions >= least, "{name}");
        }
        let names = |name: &str| {
            find(name).unwrap().jobs.iter().map(|j| j.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names("mirror"), ["64k", "8k", "4k"]);
        assert_eq!(names("gcp-pd").len(), 8, "the ninth is the fill");
        let mirror = find("mirror").unwrap();
        assert!(mirror.jobs.iter().all(|job| job.in_flight() == 24 && job.sync && job.direct));
    }

    #[test]
    fn quick_suite_takes_under_a_minute() {
        let suite = find("quick").unwrap();
        let each: u64 = suite.jobs.iter().map(|job| job.ramp_ms + job.runtime_ms).sum();
        assert!(each * u64::from(suite.repetitions) <= 50_000);
    }

    #[test]
    fn suite_lists_are_multiplied() {
        let text = "name = 'x'\ntitle = 'X'\n[defaults]\nruntime = '1s'\n[[job]]\nname = 'a'\n\
                    rw = ['read', 'randrw']\nbs = ['4k', '1m']\ndepth = 8\nfio = { fsync = '1' }\n[[job]]\nrw = 'write'";
        let suite = parse(text, "x").unwrap();
        let names: Vec<_> = suite.jobs.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(names, ["a-read-4k", "a-read-1m", "a-randrw-4k", "a-randrw-1m", "write-4k"]);
        assert_eq!((suite.jobs[1].depth, suite.jobs[1].block_bytes), (8, 1 << 20));
        assert_eq!((suite.jobs[0].runtime_ms, suite.repetitions), (1000, 5));
        assert_eq!(suite.jobs[0].extra, [("fsync".to_owned(), "1".to_owned())]);
    }

    #[test]
    fn suite_mistakes_are_named() {
        let head = "name = 'x'\ntitle = 'X'\n";
        let many = "[[job]]\ndepth = [1,2,3,4,5,6,7,8,9,10,11]\nthreads = [1,2,3,4,5,6,7,8,9,10]\nwrite_percent = [1,2,3,4,5,6,7,8,9,10]";
        for (rest, part) in [
            ("", "job"),
            ("[[job]]\nfrobnicate = 1", "frobnicate"),
            ("[[job]]\nbs = '4x'", "`4x`: unknown unit `x`"),
            ("[[job]]\nrw = 'sideways'", "rw"),
            ("[[job]]\nfio = { filename = '/dev/sda' }", "filename"),
            ("[[job]]\n[[job]]", "two jobs are called"),
            ("[[job]]\nbuffers = 'warm'", "scrambled, random or zero"),
            ("repetitions = 0\n[[job]]", "repetitions"),
            (many, "more than 1000 jobs"),
        ] {
            let error = parse(&format!("{head}{rest}"), "x").expect_err(rest).to_string();
            assert!(error.contains(part), "{rest}: {error}");
        }
        assert!(find("no-such").unwrap_err().to_string().contains("provisioned-iops"));
    }
}

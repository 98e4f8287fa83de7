//! Job file of fio as a suite: each section is one measurement.
//!
//! Targets come from the command line, so the file's own names of files are left out and noted. An
//! option that would change the workload and has no counterpart is refused by name; options that
//! reach other files or run programs never pass ([`BenchJob::check`]). Bounded by the size of the
//! file and the number of jobs.

use flagstone_units::parse_duration;

use crate::job::{AccessPattern, BenchJob, Buffers};
use crate::limits::SUITE_JOBS;

/// fio's own defaults, where a suite has others.
fn defaults() -> BenchJob {
    BenchJob {
        pattern: AccessPattern::Read,
        ramp_ms: 0,
        runtime_ms: 0,
        direct: false,
        random_map: true,
        ..BenchJob::default()
    }
}

/// A section that is read: `global`, or a job.
#[derive(Clone)]
struct Section {
    job: BenchJob,
    /// Whether the job waits for its predecessors.
    stonewall: bool,
    time_based: bool,
}

/// Reads the jobs of a file, and notes on options that have no effect.
///
/// # Errors
/// The line, and the first mistake or unsupported option.
pub(crate) fn parse(text: &str) -> Result<(Vec<BenchJob>, Vec<String>), String> {
    let mut global = Section { job: defaults(), stonewall: false, time_based: false };
    let mut sections: Vec<Section> = Vec::new();
    let mut in_global = true;
    let mut notes: Vec<String> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let wrong = |what: String| format!("line {}: {what}", at + 1);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            in_global = name == "global";
            if !in_global {
                let job = BenchJob { name: name.to_owned(), ..global.job.clone() };
                sections.push(Section { job, ..global.clone() });
            }
            if sections.len() > SUITE_JOBS {
                return Err(wrong(format!("more than {SUITE_JOBS} jobs")));
            }
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or((line, "1"));
        let section = if in_global { Some(&mut global) } else { sections.last_mut() };
        let section = section.expect("a section precedes, or the line is global");
        let note = option(section, key.trim(), value.trim()).map_err(wrong)?;
        notes.extend(note.filter(|note| !notes.contains(note)));
    }
    for (at, section) in sections.iter().enumerate() {
        let name = &section.job.name;
        if !section.time_based || section.job.runtime_ms == 0 {
            return Err(format!(
                "job {name}: only jobs with `time_based` and `runtime` are supported"
            ));
        }
        if at > 0 && !section.stonewall {
            return Err(format!(
                "job {name} runs at the same time as the job before it: only jobs one after another \
                 are supported: add `stonewall`"
            ));
        }
    }
    Ok((sections.into_iter().map(|section| section.job).collect(), notes))
}

/// Applies one option; returns a note if it has no effect here.
fn option(section: &mut Section, key: &str, value: &str) -> Result<Option<String>, String> {
    let Section { job, stonewall, time_based } = section;
    if value.contains('$') {
        return Err(format!("`{key}`: variables are not supported"));
    }
    let unsupported = |why: &str| Err(format!("`{key}={value}` is not supported{why}"));
    match key {
        "filename" | "directory" | "filesize" | "nrfiles" => {
            return Ok(Some(format!("`{key}` has no effect: the command line names the targets")));
        }
        "name" | "description" | "group_reporting" | "thread" | "create_serialize" | "eta" => {}
        "stonewall" | "wait_for_previous" => *stonewall = truth(key, value)?,
        "time_based" => *time_based = truth(key, value)?,
        "rw" | "readwrite" => {
            job.pattern = match value {
                "readwrite" => AccessPattern::Rw,
                _ => value.parse().map_err(|_| format!("`{key}={value}` is not supported"))?,
            };
        }
        "bs" | "blocksize" => job.block_bytes = size(key, value)?,
        "iodepth" => job.depth = number(key, value)?,
        "numjobs" => job.threads = number(key, value)?,
        "rwmixwrite" => job.write_percent = percent(key, value)?,
        "rwmixread" => job.write_percent = 100 - percent(key, value)?,
        "runtime" | "timeout" => job.runtime_ms = time_ms(key, value)?,
        "ramp_time" => job.ramp_ms = time_ms(key, value)?,
        "offset" => job.offset_bytes = size(key, value)?,
        "size" if value == "100%" => job.size_bytes = None,
        "size" => job.size_bytes = Some(size(key, value)?),
        "offset_increment" => job.offset_increment_bytes = size(key, value)?,
        "direct" => job.direct = truth(key, value)?,
        "buffered" => job.direct = !truth(key, value)?,
        "sync" => match value {
            "0" | "none" => job.sync = false,
            "dsync" => job.sync = true,
            _ => return unsupported(": `sync=dsync` is"),
        },
        "norandommap" => job.random_map = !truth(key, value)?,
        "randseed" => job.seed = Some(number(key, value)?),
        "randrepeat" if !truth(key, value)? => job.seed = None,
        "randrepeat" => {}
        "zero_buffers" if truth(key, value)? => job.buffers = Buffers::Zero,
        "refill_buffers" if truth(key, value)? => job.buffers = Buffers::Random,
        "scramble_buffers" if truth(key, value)? => job.buffers = Buffers::Scrambled,
        "rate_iops" => job.rate_iops = Some(number(key, value)?),
        "ioengine" => job.engine = Some(value.to_owned()),
        _ if BenchJob::takes_extra(key) => job.extra.push((key.to_owned(), value.to_owned())),
        _ => return unsupported(""),
    }
    Ok(None)
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("`{key}={value}`: one whole number is needed"))
}

fn percent(key: &str, value: &str) -> Result<u8, String> {
    let percent: u8 = number(key, value)?;
    if percent > 100 { Err(format!("`{key}={value}` is above 100")) } else { Ok(percent) }
}

fn truth(key: &str, value: &str) -> Result<bool, String> {
    match value {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err(format!("`{key}={value}`: 0 or 1 is needed")),
    }
}

/// fio's `4k` and `4kb` are 4,096 bytes, and its `4kib` is 4,000 by default: the latter is refused
/// as ambiguous.
fn size(key: &str, value: &str) -> Result<u64, String> {
    let wrong = || format!("`{key}={value}`: one size such as 4096, 4k or 1g is needed");
    let lower = value.to_ascii_lowercase();
    let plain = lower.strip_suffix('b').unwrap_or(&lower);
    let digits = plain.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &plain[digits.len()..] {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(wrong()),
    };
    let count: u64 = digits.parse().map_err(|_| wrong())?;
    count.checked_mul(1 << shift).ok_or_else(wrong)
}

/// A time in ms; fio's numbers without a unit are seconds.
fn time_ms(key: &str, value: &str) -> Result<u64, String> {
    let seconds = if value.bytes().all(|byte| byte.is_ascii_digit()) { "s" } else { "" };
    let time = parse_duration(&format!("{value}{seconds}"))
        .map_err(|error| format!("`{key}={value}`: {error}"))?;
    Ok(time.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use crate::job::{AccessPattern, Buffers};
    use crate::suite;

    const GOOD: &str = "; a comment\n[global]\nioengine=libaio\ndirect=1\ntime_based\nruntime=60\n\
        ramp_time=500ms\nfilename=/dev/sdb\n\n[log]\nrw=write\nbs=4k\nsync=dsync\nsize=1g\n\
        [mixed]\nstonewall\nrw=randrw\nrwmixread=70\nbs=16KB\niodepth=32\nnumjobs=4\n\
        norandommap=1\nrefill_buffers\nrate_process=poisson\nrandseed=7\n";

    #[test]
    fn fio_job_file_is_a_suite() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("db.fio");
        std::fs::write(&path, GOOD).unwrap();
        let suite = suite::find(path.to_str().unwrap()).unwrap();
        assert_eq!((&*suite.name, suite.jobs.len(), suite.notes.len()), ("db", 2, 1));
        assert!(suite.notes[0].contains("`filename` has no effect"), "{:?}", suite.notes);
        let [log, mixed] = &suite.jobs[..] else { panic!("two jobs") };
        assert!(log.sync && log.direct && log.random_map && log.size_bytes == Some(1 << 30));
        assert_eq!((log.runtime_ms, log.ramp_ms, log.block_bytes), (60_000, 500, 4096));
        assert_eq!((mixed.pattern, mixed.write_percent), (AccessPattern::RandRw, 30));
        assert_eq!((mixed.depth, mixed.threads, mixed.seed), (32, 4, Some(7)));
        assert_eq!((mixed.block_bytes, &mixed.buffers), (16 << 10, &Buffers::Random));
        assert!(!mixed.random_map && !mixed.sync && mixed.engine.as_deref() == Some("libaio"));
        assert_eq!(mixed.extra, [("rate_process".to_owned(), "poisson".to_owned())]);
    }

    #[test]
    fn unsupported_fio_options_are_refused_by_name() {
        let many = "[a]\n".repeat(1001);
        for (text, part) in [
            ("[a]\nexec_prerun=rm -rf /", "line 2: `exec_prerun=rm -rf /` is not supported"),
            ("[a]\nbssplit=4k/50:8k/50\nrw=sideways", "line 3: `rw=sideways` is not supported"),
            ("[a]\nbs=4k,8k", "one size"),
            ("[a]\nbs=4kib", "one size"),
            ("[a]\nsize=99999999999t", "one size"),
            ("[a]\nsize=50%", "one size"),
            ("[a]\niodepth=1-4", "one whole number"),
            ("[a]\nrwmixread=101", "above 100"),
            ("[a]\nsync=1", "`sync=dsync` is"),
            ("[a]\nruntime=$ncpus", "variables"),
            ("include other.fio", "`include other.fio=1` is not supported"),
            ("[a]\nruntime=1", "`time_based` and `runtime`"),
            ("[a]\ntime_based", "`time_based` and `runtime`"),
            ("[global]\ntime_based\nruntime=1\n[a]\n[b]", "job b runs at the same time"),
            ("[global]\ntime_based\nruntime=1\nstonewall\n[a]\n[a]", "two jobs are called a"),
            ("[a/b]\ntime_based\nruntime=1", "no name of a job"),
            ("[a]\ntime_based\nruntime=1\nioengine=external:/x.so", "no engine"),
            ("[a]\ntime_based\nruntime=1\niodepth=70000", "depth 70000"),
            ("", "no job"),
            (&*many, "more than 1000 jobs"),
        ] {
            let error = suite::parse_fio(text, "x.fio").expect_err(text).to_string();
            assert!(error.contains(part) && error.contains("x.fio"), "{text}: {error}");
        }
    }
}

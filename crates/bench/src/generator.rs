//! Our own load generator for served volumes: `flagstone load` as a separate process, so that its
//! CPU time and memory are its own.

use std::path::PathBuf;
use std::process::Command;

use flagstone_load::results::{LoadOutcome, LoadResults};

use crate::error::Error;
use crate::fio::arguments::shell;
use crate::job::{BenchJob, Buffers};
use crate::limits::{FIO_OUTPUT_BYTES, FIO_SAID_BYTES};
use crate::measurement::Measurement;
use crate::process::{self, Interrupt};

#[derive(Clone, Debug)]
pub struct Generator {
    pub program: PathBuf,
}

/// Arguments of `flagstone` for a job.
///
/// # Errors
/// The job uses a feature that the generator lacks; the error names it.
pub fn arguments(job: &BenchJob, uri: &str) -> Result<Vec<String>, Error> {
    job.check().map_err(Error::Usage)?;
    let refused = |what: &str| {
        Err(Error::Usage(format!(
            "job {}: our own generator has no {what}; attach {uri} with nvme connect and name the device",
            job.name
        )))
    };
    if let Some((key, _)) = job.extra.first() {
        return refused(&format!("`{key}` of fio"));
    }
    let increment = job.offset_increment_bytes;
    if increment > 0 && job.pattern.is_random() {
        return refused("offset_increment at random places");
    }
    if !matches!(job.buffers, Buffers::Scrambled | Buffers::Random) {
        return refused("such buffers");
    }
    let above_zero = |value: u64| (value > 0).then(|| value.to_string());
    // Threads of the generator start in consecutive parts of the range, which matches the
    // increments.
    let parts = (increment > 0).then(|| increment.saturating_mul(job.threads.into()));
    let size = parts.into_iter().chain(job.size_bytes).min();
    let rate = job.rate_iops.map(|rate| rate.saturating_mul(job.threads.into()));
    let read_percent = job.pattern.is_mixed().then(|| 100 - job.write_percent);
    let mut words: Vec<String> = ["load", uri, "--json"].map(str::to_owned).into();
    for (key, value) in [
        ("--rw", Some(job.pattern.to_string())),
        ("--bs", Some(job.block_bytes.to_string())),
        ("--depth", Some(job.depth.to_string())),
        ("--threads", Some(job.threads.to_string())),
        ("--time", Some(format!("{}ms", job.runtime_ms))),
        ("--ramp", above_zero(job.ramp_ms).map(|ms| ms + "ms")),
        ("--read-percent", read_percent.map(|percent| percent.to_string())),
        ("--offset", above_zero(job.offset_bytes)),
        ("--size", size.map(|bytes| bytes.to_string())),
        ("--seed", job.seed.map(|seed| seed.to_string())),
        ("--rate", rate.map(|rate| rate.to_string())),
    ] {
        words.extend(value.map(|value| [key.to_owned(), value]).into_iter().flatten());
    }
    if job.sync {
        words.push("--fua".to_owned());
    }
    if job.writes() {
        // The guard of this program has asked before.
        words.extend(["--destroy-data", uri].map(str::to_owned));
    }
    Ok(words)
}

#[derive(Clone, Debug)]
pub struct LoadRun {
    pub results: LoadResults,
    pub command: String,
    /// Time in which it stood still, in seconds: see [`process::ProcessOutput::paused_s`].
    pub paused_s: f64,
}

impl LoadRun {
    /// The results in the form common to all tools.
    pub fn measurement(&self) -> Measurement {
        Measurement { paused_s: self.paused_s, ..Measurement::of_load(&self.results) }
    }
}

impl Generator {
    /// Measures one job.
    ///
    /// # Errors
    /// [`Error::ToolFailed`] with the generator's messages, or [`Error::Interrupted`].
    pub fn measure(
        &self,
        job: &BenchJob,
        uri: &str,
        interrupt: &Interrupt,
        tick: &mut dyn FnMut(),
    ) -> Result<LoadRun, Error> {
        self.run(&arguments(job, uri)?, interrupt, tick)
    }

    /// Size of a served volume, `nbd://` or `nvme-tcp://`, in bytes, from the results of one read.
    pub fn size_bytes(&self, uri: &str, interrupt: &Interrupt) -> Result<u64, Error> {
        let words = ["load", uri, "--json", "--rw", "read", "--bs", "4096", "--ios", "1"];
        let run = self.run(&words.map(str::to_owned), interrupt, &mut || {})?;
        Ok(run.results.device.size_bytes)
    }

    fn run(
        &self,
        words: &[String],
        interrupt: &Interrupt,
        tick: &mut dyn FnMut(),
    ) -> Result<LoadRun, Error> {
        let command = shell("flagstone", words);
        let mut program = Command::new(&self.program);
        let ended = process::run(program.args(words), FIO_OUTPUT_BYTES, interrupt, tick)?;
        let failed = |said: String| Error::ToolFailed {
            tool: "flagstone load",
            status: ended.status.to_string(),
            command: command.clone(),
            said,
        };
        if !ended.status.success() {
            return Err(failed(ended.message(FIO_SAID_BYTES)));
        }
        let results: LoadResults = serde_json::from_str(&ended.output)
            .map_err(|error| failed(format!("its results cannot be read: {error}")))?;
        if results.outcome != LoadOutcome::Complete {
            return Err(failed(format!("it ended as {:?}", results.outcome)));
        }
        Ok(LoadRun { results, command, paused_s: ended.paused_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::AccessPattern;

    #[test]
    fn load_generator_arguments() {
        let job = BenchJob {
            pattern: AccessPattern::RandRw,
            write_percent: 30,
            depth: 8,
            threads: 2,
            rate_iops: Some(10),
            sync: true,
            seed: Some(3),
            ..BenchJob::default()
        };
        let words = arguments(&job, "nvme-tcp://h/n").unwrap().join(" ");
        assert_eq!(
            words,
            "load nvme-tcp://h/n --json --rw randrw --bs 4096 --depth 8 --threads 2 --time 10000ms \
             --ramp 2000ms --read-percent 70 --seed 3 --rate 20 --fua \
             --destroy-data nvme-tcp://h/n"
        );
        let parts = BenchJob {
            pattern: AccessPattern::Read,
            offset_increment_bytes: 1 << 20,
            ..job.clone()
        };
        let words = arguments(&parts, "nvme-tcp://h/n").unwrap().join(" ");
        assert!(words.contains("--threads 2") && words.contains("--size 2097152"), "{words}");
        let random = BenchJob { offset_increment_bytes: 1 << 20, ..job.clone() };
        assert!(arguments(&random, "nvme-tcp://h/n").is_err());
        let extra = vec![("prio".to_owned(), "7".to_owned())];
        let error =
            arguments(&BenchJob { extra, ..job }, "nvme-tcp://h/n").unwrap_err().to_string();
        assert!(error.contains("`prio`") && error.contains("nvme connect"), "{error}");
    }
}

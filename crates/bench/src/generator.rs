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
/// What the generator does not support, by name.
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
    let mut words: Vec<String> = ["load", uri, "--json", "--rw"].map(str::to_owned).into();
    words.push(job.pattern.name().to_owned());
    let mut add = |key: &str, value: String| words.extend([key.to_owned(), value]);
    add("--bs", job.block_bytes.to_string());
    add("--depth", job.depth.to_string());
    add("--threads", job.threads.to_string());
    add("--time", format!("{}ms", job.runtime_ms));
    if job.ramp_ms > 0 {
        add("--ramp", format!("{}ms", job.ramp_ms));
    }
    if job.pattern.is_mixed() {
        add("--read-percent", (100 - job.write_percent).to_string());
    }
    if job.offset_bytes > 0 {
        add("--offset", job.offset_bytes.to_string());
    }
    // Threads of the generator start in consecutive parts of the range, which matches the
    // increments.
    let parts = (increment > 0).then(|| increment.saturating_mul(job.threads.into()));
    if let Some(size) = parts.into_iter().chain(job.size_bytes).min() {
        add("--size", size.to_string());
    }
    if let Some(seed) = job.seed {
        add("--seed", seed.to_string());
    }
    if let Some(rate) = job.rate_iops {
        add("--rate", rate.saturating_mul(job.threads.into()).to_string());
    }
    if job.sync {
        words.push("--fua".to_owned());
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
    ///
    /// # Errors
    /// As [`Generator::measure`].
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
    use crate::job::JobPattern;

    #[test]
    fn load_generator_arguments() {
        let job = BenchJob {
            pattern: JobPattern::RandRw,
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
             --ramp 2000ms --read-percent 70 --seed 3 --rate 20 --fua"
        );
        let parts =
            BenchJob { pattern: JobPattern::Read, offset_increment_bytes: 1 << 20, ..job.clone() };
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

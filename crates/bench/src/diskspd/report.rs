//! Results of a run as diskspd counts them: by thread and target.

use super::profile::Profile;
use crate::cpu::CpuUse;
use crate::error::Error;
use crate::fio::output::{FioDirection, JobOutput};
use crate::fio::program::FioRun;
use crate::fio::series::Series;
use crate::measurement::LatencySum;

#[derive(Clone, Debug, Default)]
pub(super) struct Count {
    pub(super) bytes: u64,
    pub(super) ios: u64,
    pub(super) latency: LatencySum,
}

impl Count {
    fn add(&mut self, side: &FioDirection) {
        self.bytes = self.bytes.saturating_add(side.io_bytes);
        self.ios = self.ios.saturating_add(side.total_ios);
        self.latency.add(side.latency(), side.total_ios);
    }
}

#[derive(Clone, Debug)]
pub(super) struct Thread {
    pub(super) path: String,
    pub(super) file_bytes: u64,
    job: JobOutput,
    pub(super) series: Series,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Total,
    Read,
    Write,
}

impl Section {
    fn sides(self, job: &JobOutput) -> Vec<&FioDirection> {
        match self {
            Section::Total => vec![&job.read, &job.write],
            Section::Read => vec![&job.read],
            Section::Write => vec![&job.write],
        }
    }

    pub(super) fn iops(self, series: &Series) -> Vec<f64> {
        match self {
            Section::Total => series.total_iops(),
            Section::Read => series.read_iops.clone(),
            Section::Write => series.write_iops.clone(),
        }
    }
}

impl Thread {
    pub(super) fn count(&self, section: Section) -> Count {
        count(section, std::iter::once(self))
    }
}

pub(super) fn count<'a>(section: Section, threads: impl Iterator<Item = &'a Thread>) -> Count {
    let mut sum = Count::default();
    for thread in threads {
        section.sides(&thread.job).into_iter().for_each(|side| sum.add(side));
    }
    sum
}

/// Population standard deviation of the IOPS of intervals.
pub(super) fn deviation(iops: &[f64]) -> f64 {
    let count = iops.len().max(1) as f64;
    let mean = iops.iter().sum::<f64>() / count;
    (iops.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt()
}

#[derive(Clone, Debug, Default)]
pub struct System {
    pub computer: String,
    pub started_unix_s: f64,
    pub cpus: usize,
    /// Frequency governor, in place of Windows' power scheme; empty if there is none.
    pub power_scheme: String,
}

impl System {
    pub(super) fn started(&self) -> String {
        flagstone_units::format_time(self.started_unix_s, "%Y/%m/%d %H:%M:%S UTC")
    }
}

#[derive(Clone, Debug)]
pub struct DiskspdReport<'a> {
    pub(super) profile: &'a Profile,
    pub(super) system: System,
    pub(super) seconds: f64,
    pub(super) cpus: Vec<CpuUse>,
    pub(super) threads: Vec<Thread>,
}

impl<'a> DiskspdReport<'a> {
    /// Report of a run of fio. `file_bytes` are the sizes of the targets, in bytes.
    pub fn new(
        profile: &'a Profile,
        system: System,
        run: &FioRun,
        file_bytes: &[u64],
    ) -> Result<DiskspdReport<'a>, Error> {
        let each = profile.threads as usize;
        if run.output.jobs.len() != each * profile.targets.len() {
            return Err(Error::FioOutput {
                detail: format!("{} threads, not {} for each target", run.output.jobs.len(), each),
                command: run.command.clone(),
                said: String::new(),
            });
        }
        let threads = run.output.jobs.iter().enumerate().map(|(at, job)| Thread {
            path: profile.targets[at / each].clone(),
            file_bytes: file_bytes.get(at / each).copied().unwrap_or(0),
            job: job.clone(),
            series: run.series.get(at).cloned().unwrap_or_default(),
        });
        let runtime = |job: &JobOutput| job.read.runtime.max(job.write.runtime);
        let longest = run.output.jobs.iter().map(runtime).max().unwrap_or(0);
        Ok(DiskspdReport {
            profile,
            system,
            seconds: longest as f64 / 1e3,
            cpus: run.cpus.clone(),
            threads: threads.collect(),
        })
    }

    pub(super) fn series(&self) -> Series {
        let mut all = Series::default();
        // An interval that some threads did not log is incomplete and is cut off.
        let least = self.threads.iter().map(|thread| thread.series.read_iops.len()).min();
        for thread in &self.threads {
            all.add(&thread.series);
        }
        all.read_iops.truncate(least.unwrap_or(0));
        all.write_iops.truncate(least.unwrap_or(0));
        all
    }
}

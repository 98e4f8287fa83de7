//! Measurement jobs: one type for the jobs of suites, of users' files and of diskspd command lines.

pub use flagstone_load::AccessPattern;
use serde::{Deserialize, Serialize};

use crate::limits::{BLOCK_BYTES, DEPTH, THREADS};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Buffers {
    /// Random data that fio changes a little for each request.
    #[default]
    Scrambled,
    /// New random data for each request, which cannot be compressed or deduplicated.
    Random,
    Zero,
    Pattern(Vec<u8>),
    File(String),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BenchJob {
    /// Unique in its suite; letters, digits, `-`, `_` and `.`.
    pub name: String,
    pub pattern: AccessPattern,
    pub block_bytes: u64,
    pub write_percent: u8,
    /// Requests in flight of each thread.
    pub depth: u32,
    pub threads: u32,
    /// Disks of the target that are used at once; 0 is all of them.
    pub disks: u32,
    pub ramp_ms: u64,
    pub runtime_ms: u64,
    pub offset_bytes: u64,
    /// Size of the accessed range, in bytes; up to the end of the target if `None`.
    pub size_bytes: Option<u64>,
    /// Distance between the ranges of threads, in bytes.
    pub offset_increment_bytes: u64,
    /// Bytes that a sequential pattern skips after each request.
    #[serde(default)]
    pub skip_bytes: u64,
    /// Interval of the time series, in ms; derived from the runtime if `None`.
    #[serde(default)]
    pub interval_ms: Option<u64>,
    pub direct: bool,
    /// Each write is durable when it completes (`O_DSYNC`).
    pub sync: bool,
    pub buffers: Buffers,
    /// Rate limit of each thread, in requests per second.
    pub rate_iops: Option<u64>,
    /// Accesses each block once before any block twice, as fio does by default.
    pub random_map: bool,
    /// Seed of random offsets; a new one for each run if `None`.
    pub seed: Option<u64>,
    /// fio's I/O engine; the best that works here if `None`.
    pub engine: Option<String>,
    /// Results for each thread instead of their sum.
    pub per_thread: bool,
    /// Step of the campaign that runs before the first repetition on each target: see
    /// [`crate::campaign::CampaignPlan::commands`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// How many times the step runs; 0 counts as 1.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub before_times: u32,
    pub extra: Vec<(String, String)>,
}

impl Default for BenchJob {
    fn default() -> BenchJob {
        BenchJob {
            name: "job".to_owned(),
            pattern: AccessPattern::RandRead,
            block_bytes: 4096,
            write_percent: 50,
            depth: 1,
            threads: 1,
            disks: 0,
            ramp_ms: 2000,
            runtime_ms: 10_000,
            offset_bytes: 0,
            size_bytes: None,
            offset_increment_bytes: 0,
            skip_bytes: 0,
            interval_ms: None,
            direct: true,
            sync: false,
            buffers: Buffers::default(),
            rate_iops: None,
            random_map: false,
            seed: None,
            engine: None,
            per_thread: false,
            before: None,
            before_times: 0,
            extra: Vec::new(),
        }
    }
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Options of fio that a job may add: none of them accesses anything but the checked target, runs a
/// program, or overrides a field of [`BenchJob`]. It is an allowlist because fio accepts
/// abbreviations, which no denylist would catch.
const EXTRA: &str = "\
    blockalign bsrange bssplit buffer_compress_percentage bwavgtime clocksource \
    cpus_allowed cpus_allowed_policy dedupe_percentage end_fsync fadvise_hint fallocate \
    fdatasync fixedbufs force_async fsync gtod_reduce hipri hugepage-size invalidate \
    io_submit_mode iodepth_batch iodepth_batch_complete_max iodepth_batch_complete_min \
    iodepth_batch_submit iodepth_low iomem iopsavgtime nice nonvectored nrfiles \
    numa_cpu_nodes numa_mem_policy percentage_random prio prioclass random_distribution \
    random_generator rate rate_process registerfiles rw_sequencer sqthread_poll \
    sqthread_poll_cpu thinktime thinktime_blocks verify verify_fatal";

/// I/O engines that a job may name: they access the target and nothing else.
const ENGINES: &[&str] =
    &["io_uring", "libaio", "mmap", "posixaio", "psync", "pvsync", "pvsync2", "sync", "vsync"];

impl BenchJob {
    /// Whether any request destroys data: writes, and discards (`BLKDISCARD`).
    pub fn destroys(&self) -> bool {
        self.writes() || self.pattern.trims()
    }

    pub fn writes(&self) -> bool {
        self.pattern.writes() && !(self.pattern.is_mixed() && self.write_percent == 0)
    }

    /// Whether a job may have this further option of fio.
    pub(crate) fn takes_extra(key: &str) -> bool {
        EXTRA.split(' ').any(|name| name == key)
    }

    /// Requests in flight of all threads on a disk.
    pub fn in_flight(&self) -> u64 {
        u64::from(self.depth) * u64::from(self.threads)
    }

    /// Validates the job.
    ///
    /// # Errors
    /// The first mistake, as a sentence that names the job.
    pub fn check(&self) -> Result<(), String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if self.name.is_empty() || self.name.len() > 100 || !self.name.chars().all(is_plain) {
            return Err(format!("`{}` is no name of a job: letters, digits, - _ .", self.name));
        }
        let wrong = |what: String| Err(format!("job {}: {what}", self.name));
        if !(1..=BLOCK_BYTES).contains(&self.block_bytes) {
            return wrong(format!("a block of {} bytes", self.block_bytes));
        }
        if !(1..=DEPTH).contains(&self.depth) {
            return wrong(format!("depth {} is not from 1 to {DEPTH}", self.depth));
        }
        if !(1..=THREADS).contains(&self.threads) {
            return wrong(format!("{} threads are not from 1 to {THREADS}", self.threads));
        }
        if self.write_percent > 100 {
            return wrong(format!("{} % of writes", self.write_percent));
        }
        if self.runtime_ms == 0 {
            return wrong("no time to measure".to_owned());
        }
        if let Some(engine) = self.engine.as_deref().filter(|engine| !ENGINES.contains(engine)) {
            return wrong(format!("no engine `{engine}`: {}", ENGINES.join(", ")));
        }
        if matches!(&self.buffers, Buffers::File(path) if path.contains(['\'', '\n', '\r', '\0'])) {
            return wrong("fio takes no such name of a file".to_owned());
        }
        if self.skip_bytes > 0 && self.pattern.is_random() {
            return wrong("a random pattern leaves nothing out".to_owned());
        }
        for (key, value) in &self.extra {
            if !BenchJob::takes_extra(key) {
                return wrong(format!("fio's option `{key}` cannot be added to a job"));
            }
            if value.contains(['\n', '\r', '\0']) {
                return wrong(format!("the value of `{key}` is more than one line"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixed_patterns_count_as_writes() {
        let job =
            |pattern, write_percent| BenchJob { pattern, write_percent, ..BenchJob::default() };
        assert!(job(AccessPattern::RandRw, 1).writes() && job(AccessPattern::Rw, 50).writes());
        assert!(job(AccessPattern::Write, 0).writes(), "the percentage is of mixed patterns alone");
        let trim = job(AccessPattern::RandTrim, 0);
        assert!(trim.destroys() && !trim.writes() && !job(AccessPattern::Read, 0).destroys());
        assert!(!job(AccessPattern::RandRw, 0).writes() && !job(AccessPattern::Read, 100).writes());
    }

    #[test]
    fn fio_options_beyond_allowlist_are_refused() {
        for key in ["filename", "filenam", "rw", "exec_prerun", "directory", "a b", ""] {
            let extra = vec![(key.to_owned(), "1".to_owned())];
            assert!(BenchJob { extra, ..BenchJob::default() }.check().is_err(), "{key}");
        }
        let extra = vec![("iomem".to_owned(), "mmaphuge".to_owned())];
        assert_eq!(BenchJob { extra, ..BenchJob::default() }.check(), Ok(()));
        assert!(BenchJob { name: "a/b".to_owned(), ..BenchJob::default() }.check().is_err());
        for engine in ["external:/x.so", "exec", "filedelete"] {
            assert!(
                BenchJob { engine: Some(engine.to_owned()), ..BenchJob::default() }
                    .check()
                    .is_err(),
                "{engine}"
            );
        }
        assert!(BenchJob { depth: 0, ..BenchJob::default() }.check().is_err());
        assert!(BenchJob { runtime_ms: 0, ..BenchJob::default() }.check().is_err());
    }
}

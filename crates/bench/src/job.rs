//! What is measured: one type for jobs of suites, of users' files and of diskspd's command lines.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::limits::{BLOCK_BYTES, DEPTH, THREADS};

/// Order and kind of the requests, by fio's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Reads, one after the other.
    Read,
    /// Writes, one after the other.
    Write,
    /// Reads at random places.
    RandRead,
    /// Writes at random places.
    RandWrite,
    /// Reads and writes, one after the other.
    #[serde(alias = "readwrite")]
    Rw,
    /// Reads and writes at random places.
    RandRw,
}

impl Pattern {
    /// fio's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Read => "read",
            Pattern::Write => "write",
            Pattern::RandRead => "randread",
            Pattern::RandWrite => "randwrite",
            Pattern::Rw => "rw",
            Pattern::RandRw => "randrw",
        }
    }

    /// Whether any request is a write: mixed ones count.
    pub fn writes(self) -> bool {
        !matches!(self, Pattern::Read | Pattern::RandRead)
    }

    /// Whether the places are random.
    pub fn is_random(self) -> bool {
        matches!(self, Pattern::RandRead | Pattern::RandWrite | Pattern::RandRw)
    }

    /// Whether there are both reads and writes.
    pub fn is_mixed(self) -> bool {
        matches!(self, Pattern::Rw | Pattern::RandRw)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Buffers {
    /// Random data that fio changes a little for each request.
    #[default]
    Scrambled,
    /// New random data for each request: what no disk can compress or deduplicate.
    Random,
    /// Zeroes.
    Zero,
    /// These bytes, repeated.
    Pattern(Vec<u8>),
    /// The contents of a file, repeated.
    File(String),
}

/// One measurement to make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Unique in its suite; letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Order and kind of the requests.
    pub pattern: Pattern,
    /// Bytes of one request.
    pub block_bytes: u64,
    /// Writes among a hundred requests of a mixed pattern.
    pub write_percent: u8,
    /// Requests in flight of each thread.
    pub depth: u32,
    /// Threads, each with its own requests; on each disk of a target of several.
    pub threads: u32,
    /// How many disks of the target are used at once; all of them if 0.
    pub disks: u32,
    /// Time before anything is counted, in ms.
    pub ramp_ms: u64,
    /// Time that is measured, in ms.
    pub runtime_ms: u64,
    /// Where on the target to begin, in bytes.
    pub offset_bytes: u64,
    /// How much of the target to use from there on, in bytes; the rest of it if `None`.
    pub size_bytes: Option<u64>,
    /// How much later each thread begins, in bytes.
    pub offset_increment_bytes: u64,
    /// Bytes that a sequential pattern leaves out after each request.
    #[serde(default)]
    pub skip_bytes: u64,
    /// Interval of the time series, in ms; what suits the runtime if `None`.
    #[serde(default)]
    pub interval_ms: Option<u64>,
    /// Bypasses the page cache.
    pub direct: bool,
    /// Each write is durable when it completes (`O_DSYNC`).
    pub sync: bool,
    /// What is written.
    pub buffers: Buffers,
    /// Most requests a second of each thread.
    pub rate_iops: Option<u64>,
    /// Visits each block once before any twice, as fio does if not told otherwise.
    pub random_map: bool,
    /// Seed of the random places; a new one each time if `None`.
    pub seed: Option<u64>,
    /// fio's I/O engine; the best that works here if `None`.
    pub engine: Option<String>,
    /// Results of each thread by itself, not of all together.
    pub per_thread: bool,
    /// Further options of fio as they are.
    pub extra: Vec<(String, String)>,
}

impl Default for Job {
    fn default() -> Job {
        Job {
            name: "job".to_owned(),
            pattern: Pattern::RandRead,
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
            extra: Vec::new(),
        }
    }
}

/// Options of fio that a job may add: none of them reaches beyond the target that was checked, runs
/// a program, or stands for a field of its own. It is a list of what is allowed because fio takes
/// abbreviations, which no list of what is forbidden would catch.
const EXTRA: &[&str] = &[
    "blockalign",
    "bsrange",
    "bssplit",
    "buffer_compress_percentage",
    "bwavgtime",
    "clocksource",
    "cpus_allowed",
    "cpus_allowed_policy",
    "dedupe_percentage",
    "end_fsync",
    "fadvise_hint",
    "fallocate",
    "fdatasync",
    "fixedbufs",
    "force_async",
    "fsync",
    "gtod_reduce",
    "hipri",
    "hugepage-size",
    "invalidate",
    "io_submit_mode",
    "iodepth_batch",
    "iodepth_batch_complete_max",
    "iodepth_batch_complete_min",
    "iodepth_batch_submit",
    "iodepth_low",
    "iomem",
    "iopsavgtime",
    "nice",
    "nonvectored",
    "nrfiles",
    "numa_cpu_nodes",
    "numa_mem_policy",
    "percentage_random",
    "prio",
    "prioclass",
    "random_distribution",
    "random_generator",
    "rate",
    "rate_process",
    "registerfiles",
    "rw_sequencer",
    "sqthread_poll",
    "sqthread_poll_cpu",
    "thinktime",
    "thinktime_blocks",
    "verify",
    "verify_fatal",
];

/// fio's I/O engines that a job may name: those that do I/O on the target, and nothing else.
const ENGINES: &[&str] =
    &["io_uring", "libaio", "mmap", "posixaio", "psync", "pvsync", "pvsync2", "sync", "vsync"];

impl Job {
    /// Whether it changes the target.
    pub fn writes(&self) -> bool {
        self.pattern.writes() && !(self.pattern.is_mixed() && self.write_percent == 0)
    }

    /// Requests in flight of one disk's threads together.
    pub fn in_flight(&self) -> u64 {
        u64::from(self.depth) * u64::from(self.threads)
    }

    /// Says what is wrong with it.
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
            if !EXTRA.contains(&key.as_str()) {
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
    fn mixed_modes_count_as_writes() {
        let job = |pattern, write_percent| Job { pattern, write_percent, ..Job::default() };
        assert!(job(Pattern::RandRw, 1).writes() && job(Pattern::Rw, 50).writes());
        assert!(job(Pattern::Write, 0).writes(), "the percentage is of mixed patterns alone");
        assert!(!job(Pattern::RandRw, 0).writes() && !job(Pattern::Read, 100).writes());
    }

    #[test]
    fn options_that_reach_past_the_target_are_refused() {
        for key in ["filename", "filenam", "rw", "exec_prerun", "directory", "a b", ""] {
            let extra = vec![(key.to_owned(), "1".to_owned())];
            assert!(Job { extra, ..Job::default() }.check().is_err(), "{key}");
        }
        let extra = vec![("iomem".to_owned(), "mmaphuge".to_owned())];
        assert_eq!(Job { extra, ..Job::default() }.check(), Ok(()));
        assert!(Job { name: "a/b".to_owned(), ..Job::default() }.check().is_err());
        for engine in ["external:/x.so", "exec", "filedelete"] {
            assert!(
                Job { engine: Some(engine.to_owned()), ..Job::default() }.check().is_err(),
                "{engine}"
            );
        }
        assert!(Job { depth: 0, ..Job::default() }.check().is_err());
        assert!(Job { runtime_ms: 0, ..Job::default() }.check().is_err());
    }
}

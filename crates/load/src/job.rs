//! What to do: a [`Job`], and its check against a device.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use flagstone_blockdev::Geometry;
use flagstone_blockdev::device::MAX_TRANSFER_BYTES;
use serde::{Deserialize, Serialize};

use crate::limits::{BLOCK_SIZES_MAX, DEPTH_MAX, PAYLOAD_BYTES, VERIFY_BLOCKS_MAX};

/// What kind of I/Os, and in which order. The names are fio's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Reads and writes mixed, one after the other.
    Rw,
    /// Reads and writes mixed, at random places.
    RandRw,
    /// Discards, one after the other.
    Trim,
    /// Discards at random places.
    RandTrim,
}

impl Pattern {
    const NAMES: [(&'static str, Pattern); 9] = [
        ("read", Pattern::Read),
        ("write", Pattern::Write),
        ("randread", Pattern::RandRead),
        ("randwrite", Pattern::RandWrite),
        ("rw", Pattern::Rw),
        ("readwrite", Pattern::Rw),
        ("randrw", Pattern::RandRw),
        ("trim", Pattern::Trim),
        ("randtrim", Pattern::RandTrim),
    ];

    /// True when offsets are random.
    pub fn is_random(self) -> bool {
        matches!(self, Pattern::RandRead | Pattern::RandWrite | Pattern::RandRw | Pattern::RandTrim)
    }

    /// True when some I/Os read.
    pub fn reads(self) -> bool {
        matches!(self, Pattern::Read | Pattern::RandRead | Pattern::Rw | Pattern::RandRw)
    }

    /// True when some I/Os write.
    pub fn writes(self) -> bool {
        matches!(self, Pattern::Write | Pattern::RandWrite | Pattern::Rw | Pattern::RandRw)
    }

    /// True when the I/Os discard.
    pub fn trims(self) -> bool {
        matches!(self, Pattern::Trim | Pattern::RandTrim)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Pattern::NAMES.iter().find(|(_, pattern)| pattern == self);
        f.pad(name.expect("every pattern has a name").0)
    }
}

impl FromStr for Pattern {
    type Err = JobError;
    fn from_str(name: &str) -> Result<Pattern, JobError> {
        let known = Pattern::NAMES.iter().find(|(known, _)| *known == name);
        known.map(|(_, pattern)| *pattern).ok_or_else(|| JobError::Pattern(name.to_owned()))
    }
}

/// One block size of a job, chosen in proportion to its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockSize {
    /// Bytes of one I/O.
    pub bytes: usize,
    /// Share of the I/Os, relative to the sum of all weights; 1 at least.
    pub weight: u32,
}

/// What a crash between the writing and a [`Verify::Recorded`] run may have taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Crash {
    /// Only the client died: every completed write must be there.
    ClientOnly,
    /// The server died or lost power: every flushed or FUA write must be there.
    Server,
}

/// Whether and how data is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Writes carry stamps, reads among them are checked, and at the end the whole range is read
    /// back. With `state` what completes is recorded in that file for [`Verify::Recorded`].
    Written {
        /// The record's file; replaced if it is there.
        state: Option<PathBuf>,
    },
    /// Nothing is written: the range is read and checked against the record of an earlier run.
    Recorded {
        /// The record's file.
        state: PathBuf,
        /// What happened since.
        crash: Crash,
    },
}

/// A load to run. `Job::default()` is fio's default in spirit: one 4 KiB random read at a time over
/// the whole device, for ten seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Kind and order of the I/Os.
    pub pattern: Pattern,
    /// Of mixed patterns, percent of reads, 0 to 100.
    pub read_percent: u8,
    /// Sizes of the I/Os: one or a weighted list; multiples of the device's block, at most 32 MiB
    /// (but for discards).
    pub block_sizes: Vec<BlockSize>,
    /// I/Os kept in flight over all cores, 1 at least.
    pub depth: usize,
    /// Runtime cores to run on, 1 at least. The depth is split over them, and so is the range for
    /// sequential patterns and when verifying.
    pub cores: usize,
    /// End after this long, beyond the warm-up.
    pub time: Option<Duration>,
    /// End after this many I/Os, beyond the warm-up.
    pub ios: Option<u64>,
    /// End after this many bytes, beyond the warm-up. When no end is given at all: the size of the
    /// range, once.
    pub bytes: Option<u64>,
    /// First byte of the range; a multiple of the device's block.
    pub offset_bytes: u64,
    /// Length of the range; the rest of the device without one.
    pub size_bytes: Option<u64>,
    /// Seed of places, sizes and kinds.
    pub seed: u64,
    /// I/Os a second at most, over all cores.
    pub rate_iops: Option<u64>,
    /// Time that runs before anything is counted.
    pub warm_up: Duration,
    /// A flush after this many writes (of each core).
    pub flush_every: Option<u32>,
    /// Writes are durable when they complete.
    pub fua: bool,
    /// Failed I/Os that are suffered; one more ends the job.
    pub errors_max: u64,
    /// Whether and how data is checked.
    pub verify: Option<Verify>,
}

impl Default for Job {
    fn default() -> Job {
        Job {
            pattern: Pattern::RandRead,
            read_percent: 50,
            block_sizes: vec![BlockSize { bytes: 4096, weight: 1 }],
            depth: 1,
            cores: 1,
            time: Some(Duration::from_secs(10)),
            ios: None,
            bytes: None,
            offset_bytes: 0,
            size_bytes: None,
            seed: 1,
            rate_iops: None,
            warm_up: Duration::ZERO,
            flush_every: None,
            fua: false,
            errors_max: 0,
            verify: None,
        }
    }
}

/// Why a job cannot run; each says what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// An unknown pattern.
    #[error(
        "unknown pattern `{0}`: use read, write, randread, randwrite, rw, randrw, trim or randtrim"
    )]
    Pattern(String),
    /// A number out of its range.
    #[error("{what} is {found}, must be {expected}")]
    Range {
        /// Which.
        what: &'static str,
        /// What it is.
        found: u64,
        /// What it may be.
        expected: String,
    },
    /// A size or offset that the device cannot address.
    #[error(
        "{what} of {found} bytes is not a multiple of the device's block of {block_bytes} bytes"
    )]
    Unaligned {
        /// Which.
        what: &'static str,
        /// What it is.
        found: u64,
        /// The device's block.
        block_bytes: u32,
    },
    /// The range leaves the device.
    #[error(
        "the range of {size_bytes} bytes at offset {offset_bytes} ends beyond the device of \
         {device_bytes} bytes"
    )]
    BeyondEnd {
        /// Start.
        offset_bytes: u64,
        /// Length.
        size_bytes: u64,
        /// The device's size.
        device_bytes: u64,
    },
    /// The range is smaller than an I/O.
    #[error(
        "each core's part of the range is {part_bytes} bytes, less than the largest block size of \
         {io_bytes} bytes: use a larger size, fewer cores or a smaller block size"
    )]
    TooSmall {
        /// One core's part.
        part_bytes: u64,
        /// The largest I/O.
        io_bytes: u64,
    },
    /// The device gives no space back.
    #[error("the device cannot discard, and `{0}` does nothing else")]
    NoDiscard(Pattern),
    /// The device takes no writes.
    #[error("the device is read-only and `{0}` changes data")]
    ReadOnly(Pattern),
    /// Buffers beyond the ceiling.
    #[error(
        "the job's buffers take {need_bytes} bytes, the ceiling of pooled memory is {limit_bytes}: \
         raise it, or use a smaller depth or block size"
    )]
    Memory {
        /// What the buffers take.
        need_bytes: u64,
        /// The runtime's ceiling.
        limit_bytes: u64,
    },
    /// Things that exclude each other.
    #[error("{0}")]
    Conflict(&'static str),
}

/// A job's range, checked, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset_bytes: u64,
    /// Length.
    pub size_bytes: u64,
}

impl Job {
    /// Checks the job against a device, for a runtime of `cores_there` cores and a ceiling of
    /// `memory_bytes` of pooled memory.
    ///
    /// # Errors
    /// The first mistake found.
    pub fn validate(
        &self,
        geometry: &Geometry,
        cores_there: usize,
        memory_bytes: usize,
    ) -> Result<Range, JobError> {
        self.validate_numbers(cores_there)?;
        self.validate_sizes(geometry)?;
        self.validate_kind(geometry)?;
        self.validate_verify(geometry)?;
        let range = self.range(geometry)?;
        self.validate_parts(geometry, range)?;
        self.validate_memory(memory_bytes)?;
        Ok(range)
    }

    /// Largest I/O, in bytes.
    pub fn io_bytes_max(&self) -> usize {
        self.block_sizes.iter().map(|size| size.bytes).max().unwrap_or(0)
    }

    /// True when I/Os carry data.
    fn transfers(&self) -> bool {
        !self.pattern.trims() || self.verify.is_some()
    }

    /// True when each core has a part of the range to itself.
    pub(crate) fn splits_range(&self) -> bool {
        !self.pattern.is_random() || self.verify.is_some()
    }

    fn validate_numbers(&self, cores_there: usize) -> Result<(), JobError> {
        within("the number of cores", self.cores as u64, 1, cores_there as u64)?;
        let deepest = (DEPTH_MAX * self.cores) as u64;
        within("the depth", self.depth as u64, self.cores as u64, deepest)?;
        within("the percentage of reads", u64::from(self.read_percent), 0, 100)?;
        within(
            "the number of block sizes",
            self.block_sizes.len() as u64,
            1,
            BLOCK_SIZES_MAX as u64,
        )?;
        if let Some(rate) = self.rate_iops {
            within("the rate in IOPS", rate, self.cores as u64, 1_000_000_000)?;
        }
        if let Some(every) = self.flush_every {
            within(
                "the number of writes between flushes",
                u64::from(every),
                1,
                u64::from(u32::MAX),
            )?;
        }
        for (what, count) in [("the number of I/Os", self.ios), ("the number of bytes", self.bytes)]
        {
            if let Some(count) = count {
                within(what, count, self.cores as u64, u64::MAX)?;
            }
        }
        if self.time == Some(Duration::ZERO) {
            within("the time", 0, 1, u64::MAX)?;
        }
        Ok(())
    }

    fn validate_sizes(&self, geometry: &Geometry) -> Result<(), JobError> {
        let most = if !self.transfers() { u64::MAX } else { MAX_TRANSFER_BYTES as u64 };
        for size in &self.block_sizes {
            within("the block size in bytes", size.bytes as u64, 1, most)?;
            within("a block size's weight", u64::from(size.weight), 1, u64::from(u32::MAX))?;
            aligned("the block size", size.bytes as u64, geometry)?;
        }
        aligned("the offset", self.offset_bytes, geometry)?;
        aligned("the size of the range", self.size_bytes.unwrap_or(0), geometry)
    }

    fn validate_kind(&self, geometry: &Geometry) -> Result<(), JobError> {
        let changes = self.pattern.writes() || self.pattern.trims();
        let reads_only = matches!(self.verify, Some(Verify::Recorded { .. }));
        if changes && geometry.read_only && !reads_only {
            return Err(JobError::ReadOnly(self.pattern));
        }
        if self.pattern.trims() && !geometry.can_discard && !reads_only {
            return Err(JobError::NoDiscard(self.pattern));
        }
        if !self.pattern.writes() && (self.fua || self.flush_every.is_some()) {
            return Err(JobError::Conflict(
                "FUA and periodic flushes need a pattern that writes: write, randwrite, rw or randrw",
            ));
        }
        Ok(())
    }

    fn validate_verify(&self, geometry: &Geometry) -> Result<(), JobError> {
        let Some(verify) = &self.verify else { return Ok(()) };
        let state = match verify {
            Verify::Written { state } => {
                if !self.pattern.writes() {
                    return Err(JobError::Conflict(
                        "verifying needs a pattern that writes (write, randwrite, rw or randrw), or \
                         the recorded state of an earlier run",
                    ));
                }
                if self.warm_up > Duration::ZERO {
                    return Err(JobError::Conflict(
                        "a verified job has no warm-up: each write counts",
                    ));
                }
                state.is_some()
            }
            Verify::Recorded { .. } => true,
        };
        if state && self.cores > 1 {
            return Err(JobError::Conflict("a recorded state is kept by one core: use one"));
        }
        let blocks = self.size_bytes.map_or_else(
            || {
                geometry
                    .blocks()
                    .saturating_sub(self.offset_bytes / u64::from(geometry.block_bytes))
            },
            |bytes| bytes / u64::from(geometry.block_bytes),
        );
        within("the number of verified blocks", blocks, 1, VERIFY_BLOCKS_MAX * self.cores as u64)
    }

    fn range(&self, geometry: &Geometry) -> Result<Range, JobError> {
        let rest = geometry.size_bytes.saturating_sub(self.offset_bytes);
        let size_bytes = self.size_bytes.unwrap_or(rest);
        let end = self.offset_bytes.checked_add(size_bytes);
        if size_bytes == 0 || end.is_none_or(|end| end > geometry.size_bytes) {
            return Err(JobError::BeyondEnd {
                offset_bytes: self.offset_bytes,
                size_bytes,
                device_bytes: geometry.size_bytes,
            });
        }
        Ok(Range { offset_bytes: self.offset_bytes, size_bytes })
    }

    fn validate_parts(&self, geometry: &Geometry, range: Range) -> Result<(), JobError> {
        let parts = if self.splits_range() { self.cores as u64 } else { 1 };
        let block = u64::from(geometry.block_bytes);
        let part_bytes = range.size_bytes / block / parts * block;
        let io_bytes = self.io_bytes_max() as u64;
        if part_bytes < io_bytes {
            return Err(JobError::TooSmall { part_bytes, io_bytes });
        }
        Ok(())
    }

    fn validate_memory(&self, memory_bytes: usize) -> Result<(), JobError> {
        let pooled = |bytes: usize| (bytes.next_power_of_two().max(4096)) as u64;
        let buffer = if self.transfers() { pooled(self.io_bytes_max()) } else { 0 };
        let payload = if self.pattern.writes() && self.verify.is_none() {
            payload_bytes(self) as u64
        } else {
            0
        };
        let need_bytes = buffer * self.depth as u64 + payload * self.cores as u64;
        let limit_bytes = memory_bytes as u64;
        if need_bytes > limit_bytes {
            return Err(JobError::Memory { need_bytes, limit_bytes });
        }
        Ok(())
    }
}

/// Size of the random data that a core's writes share.
pub(crate) fn payload_bytes(job: &Job) -> usize {
    job.io_bytes_max().next_power_of_two().max(PAYLOAD_BYTES)
}

fn within(what: &'static str, found: u64, least: u64, most: u64) -> Result<(), JobError> {
    if (least..=most).contains(&found) {
        return Ok(());
    }
    let expected =
        if most == u64::MAX { format!("{least} at least") } else { format!("{least} to {most}") };
    Err(JobError::Range { what, found, expected })
}

fn aligned(what: &'static str, found: u64, geometry: &Geometry) -> Result<(), JobError> {
    if found.is_multiple_of(u64::from(geometry.block_bytes)) {
        return Ok(());
    }
    Err(JobError::Unaligned { what, found, block_bytes: geometry.block_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: usize = 64 << 20;

    fn check(change: impl FnOnce(&mut Job)) -> Result<Range, String> {
        let mut job = Job::default();
        change(&mut job);
        job.validate(&Geometry::new(1 << 20, 4096), 2, MEMORY).map_err(|error| error.to_string())
    }

    #[test]
    fn a_default_job_covers_the_device() {
        assert_eq!(check(|_| {}), Ok(Range { offset_bytes: 0, size_bytes: 1 << 20 }));
        let rest = check(|job| job.offset_bytes = 8192);
        assert_eq!(rest, Ok(Range { offset_bytes: 8192, size_bytes: (1 << 20) - 8192 }));
    }

    #[test]
    fn mistakes_are_told_with_what_is_expected() {
        let said = |change: fn(&mut Job)| check(change).unwrap_err();
        assert_eq!(said(|job| job.depth = 0), "the depth is 0, must be 1 to 8192");
        assert_eq!(said(|job| job.cores = 3), "the number of cores is 3, must be 1 to 2");
        assert!(
            said(|job| job.block_sizes[0].bytes = 512).contains("multiple of the device's block")
        );
        assert!(said(|job| job.block_sizes[0].bytes = 64 << 20).contains("33554432"));
        assert!(said(|job| job.offset_bytes = 1 << 20).contains("beyond the device"));
        assert!(said(|job| job.size_bytes = Some(!4095)).contains("beyond the device"));
        assert!(said(|job| job.size_bytes = Some(2 << 20)).contains("beyond the device"));
        assert!(said(|job| job.fua = true).contains("pattern that writes"));
        assert!(said(|job| job.rate_iops = Some(0)).contains("rate"));
        assert!(said(|job| job.block_sizes.clear()).contains("block sizes"));
        let large = said(|job| {
            job.depth = 512;
            job.block_sizes[0].bytes = 1 << 20;
        });
        assert!(large.contains("ceiling of pooled memory"), "{large}");
        let small = said(|job| {
            (job.cores, job.depth, job.pattern) = (2, 2, Pattern::Write);
            job.size_bytes = Some(4096);
        });
        assert!(small.contains("each core's part"), "{small}");
    }

    #[test]
    fn a_device_that_cannot_discard_is_not_measured_discarding() {
        let geometry = Geometry { can_discard: false, ..Geometry::new(1 << 20, 512) };
        let job = Job { pattern: Pattern::Trim, ..Job::default() };
        assert_eq!(job.validate(&geometry, 1, MEMORY), Err(JobError::NoDiscard(Pattern::Trim)));
        assert!(job.validate(&Geometry::new(1 << 20, 512), 1, MEMORY).is_ok());
    }

    #[test]
    fn a_read_only_device_is_read() {
        let geometry = Geometry { read_only: true, ..Geometry::new(1 << 20, 512) };
        let mut job = Job::default();
        assert!(job.validate(&geometry, 1, MEMORY).is_ok());
        job.pattern = Pattern::RandTrim;
        assert_eq!(job.validate(&geometry, 1, MEMORY), Err(JobError::ReadOnly(Pattern::RandTrim)));
    }

    #[test]
    fn verifying_needs_writes_and_bounded_memory() {
        assert!(check(|job| job.verify = Some(Verify::Written { state: None })).is_err());
        let verified = |job: &mut Job| {
            job.pattern = Pattern::RandRw;
            job.verify = Some(Verify::Written { state: None });
        };
        assert!(check(verified).is_ok());
        let mut job = Job::default();
        verified(&mut job);
        let huge = Geometry::new(1 << 50, 512);
        let error = job.validate(&huge, 1, MEMORY).unwrap_err().to_string();
        assert!(error.contains("verified blocks"), "{error}");
    }

    #[test]
    fn patterns_have_names() {
        for (name, pattern) in Pattern::NAMES {
            assert_eq!(name.parse::<Pattern>(), Ok(pattern));
        }
        assert_eq!(Pattern::RandRw.to_string(), "randrw");
        assert!("rand".parse::<Pattern>().is_err());
    }
}

//! Load jobs: a [`LoadJob`], and its validation against a device.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use flagstone_blockdev::Geometry;
use flagstone_blockdev::device::MAX_TRANSFER_BYTES;
use flagstone_units::exact_size;
use serde::{Deserialize, Serialize};

use crate::limits::{
    BLOCK_SIZES_MAX, DEPTH_MAX, PAYLOAD_BYTES, SAMPLE_BYTES_MAX, VERIFY_BLOCKS_MAX,
};
use crate::payload::WriteData;

/// Kind and order of I/Os. The names are fio's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessPattern {
    Read,
    Write,
    RandRead,
    RandWrite,
    /// Sequential reads and writes mixed.
    #[serde(alias = "readwrite")]
    Rw,
    /// Random reads and writes mixed.
    RandRw,
    Trim,
    RandTrim,
}

impl AccessPattern {
    const NAMES: [(&'static str, AccessPattern); 9] = [
        ("read", AccessPattern::Read),
        ("write", AccessPattern::Write),
        ("randread", AccessPattern::RandRead),
        ("randwrite", AccessPattern::RandWrite),
        ("rw", AccessPattern::Rw),
        ("readwrite", AccessPattern::Rw),
        ("randrw", AccessPattern::RandRw),
        ("trim", AccessPattern::Trim),
        ("randtrim", AccessPattern::RandTrim),
    ];

    pub fn is_random(self) -> bool {
        matches!(self, Self::RandRead | Self::RandWrite | Self::RandRw | Self::RandTrim)
    }

    /// True if some I/Os are reads.
    pub fn reads(self) -> bool {
        matches!(self, Self::Read | Self::RandRead | Self::Rw | Self::RandRw)
    }

    /// True if some I/Os are writes.
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::RandWrite | Self::Rw | Self::RandRw)
    }

    pub fn is_mixed(self) -> bool {
        self.reads() && self.writes()
    }

    /// True if the I/Os are discards.
    pub fn trims(self) -> bool {
        matches!(self, AccessPattern::Trim | AccessPattern::RandTrim)
    }
}

impl fmt::Display for AccessPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = AccessPattern::NAMES.iter().find(|(_, pattern)| pattern == self);
        f.pad(name.expect("every pattern has a name").0)
    }
}

impl FromStr for AccessPattern {
    type Err = JobError;
    fn from_str(name: &str) -> Result<AccessPattern, JobError> {
        let known = AccessPattern::NAMES.iter().find(|(known, _)| *known == name);
        known.map(|(_, pattern)| *pattern).ok_or_else(|| JobError::Pattern(name.to_owned()))
    }
}

/// One block size of a job, chosen in proportion to its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockSize {
    pub bytes: usize,
    /// Share of the I/Os, relative to the sum of all weights; at least 1.
    pub weight: u32,
}

/// Data that a crash between the writing run and a [`Verify::Recorded`] run may have lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Crash {
    /// Only the client died: every completed write must be present.
    ClientOnly,
    /// The server died or lost power: every flushed or FUA write must be present.
    Server,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Writes carry stamps, reads of them are checked, and at the end the whole range is read back.
    /// With `state`, completed I/Os are recorded in that file for [`Verify::Recorded`].
    Written {
        /// File of the record; an existing one is replaced.
        state: Option<PathBuf>,
    },
    /// Reads the range, without writing, and checks it against the record of an earlier run.
    Recorded {
        state: PathBuf,
        /// Crash since the writing run.
        crash: Crash,
    },
}

/// A load to run. `LoadJob::default()` resembles fio's default: one 4 KiB random read at a time
/// over the whole device, for ten seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadJob {
    /// Kind and order of the I/Os.
    pub pattern: AccessPattern,
    pub read_percent: u8,
    /// Sizes of the I/Os: one or a weighted list; multiples of the device's block size, at most 32
    /// MiB (except for discards).
    pub block_sizes: Vec<BlockSize>,
    /// I/Os in flight over all cores, at least 1.
    pub depth: usize,
    /// Runtime cores to run on, at least 1. The depth is split over them, and so is the range for
    /// sequential patterns and for verification.
    pub cores: usize,
    /// Duration, after the warm-up.
    pub time: Option<Duration>,
    /// End after this many I/Os, after the warm-up.
    pub ios: Option<u64>,
    /// End after this many bytes, after the warm-up. Without any end, the job covers the size of
    /// the range once.
    pub bytes: Option<u64>,
    /// First byte of the range; a multiple of the device's block size.
    pub offset_bytes: u64,
    /// Length of the range, in bytes; by default the rest of the device.
    pub size_bytes: Option<u64>,
    pub seed: u64,
    /// Upper bound of I/Os per second, over all cores.
    pub rate_iops: Option<u64>,
    /// Time before statistics start.
    pub warm_up: Duration,
    /// Flush after this many writes (per core).
    pub flush_every: Option<u32>,
    pub fua: bool,
    /// Content of writes without verification; verified ones have stamps.
    pub data: WriteData,
    /// Tolerated failed I/Os; one more ends the job.
    pub errors_max: u64,
    pub verify: Option<Verify>,
}

impl Default for LoadJob {
    fn default() -> LoadJob {
        LoadJob {
            pattern: AccessPattern::RandRead,
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
            data: WriteData::Random,
            errors_max: 0,
            verify: None,
        }
    }
}

/// Reason that a job cannot run, with the accepted values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    #[error(
        "unknown pattern `{0}`: use read, write, randread, randwrite, rw, randrw, trim or randtrim"
    )]
    Pattern(String),
    #[error("{what} is {found}, must be {expected}")]
    Range { what: &'static str, found: u64, expected: String },
    /// A size or offset that the device cannot address.
    #[error(
        "{what} of {} is not a multiple of the device's block of {}",
        exact_size(*found), exact_size((*block_bytes).into())
    )]
    Unaligned { what: &'static str, found: u64, block_bytes: u32 },
    #[error(
        "the range of {} at offset {} ends beyond the device of {}",
        exact_size(*size_bytes), exact_size(*offset_bytes), exact_size(*device_bytes)
    )]
    BeyondEnd { offset_bytes: u64, size_bytes: u64, device_bytes: u64 },
    /// The range is smaller than an I/O.
    #[error(
        "each core's part of the range is {}, less than the largest block size of {}: use a larger \
         size, fewer cores or a smaller block size",
        exact_size(*part_bytes), exact_size(*io_bytes)
    )]
    TooSmall { part_bytes: u64, io_bytes: u64 },
    #[error("the device cannot discard, and `{0}` does nothing else")]
    NoDiscard(AccessPattern),
    #[error("the device is read-only and `{0}` changes data")]
    ReadOnly(AccessPattern),
    #[error(
        "the job's buffers take {}, the limit of pooled memory is {}: raise it, or use a smaller \
         depth or block size",
        exact_size(*need_bytes), exact_size(*limit_bytes)
    )]
    Memory { need_bytes: u64, limit_bytes: u64 },
    #[error("{0}")]
    Conflict(&'static str),
}

/// Validated range of a job, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobRange {
    pub offset_bytes: u64,
    pub size_bytes: u64,
}

impl LoadJob {
    /// Validates the job for a device and a runtime with `cores_there` cores and a limit of
    /// `memory_bytes` of pooled memory.
    pub fn validate(
        &self,
        geometry: &Geometry,
        cores_there: usize,
        memory_bytes: usize,
    ) -> Result<JobRange, JobError> {
        self.validate_numbers(cores_there)?;
        self.validate_sizes(geometry)?;
        self.validate_kind(geometry)?;
        self.validate_data()?;
        self.validate_verify(geometry)?;
        let range = self.range(geometry)?;
        self.validate_parts(geometry, range)?;
        self.validate_memory(memory_bytes)?;
        Ok(range)
    }

    pub fn io_bytes_max(&self) -> usize {
        self.block_sizes.iter().map(|size| size.bytes).max().unwrap_or(0)
    }

    /// True if I/Os carry data.
    fn transfers(&self) -> bool {
        !self.pattern.trims() || self.verify.is_some()
    }

    /// True if each core has its own part of the range.
    pub(crate) fn splits_range(&self) -> bool {
        !self.pattern.is_random() || self.verify.is_some()
    }

    fn validate_numbers(&self, cores_there: usize) -> Result<(), JobError> {
        within("the number of cores", self.cores as u64, 1, cores_there as u64)?;
        let deepest = (DEPTH_MAX * self.cores) as u64;
        within("the depth", self.depth as u64, self.cores as u64, deepest)?;
        within("the percentage of reads", u64::from(self.read_percent), 0, 100)?;
        let sizes = self.block_sizes.len() as u64;
        within("the number of block sizes", sizes, 1, BLOCK_SIZES_MAX as u64)?;
        if let Some(rate) = self.rate_iops {
            within("the rate in IOPS", rate, self.cores as u64, 1_000_000_000)?;
        }
        if let Some(every) = self.flush_every {
            within("the number of writes between flushes", every.into(), 1, u32::MAX.into())?;
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

    fn validate_data(&self) -> Result<(), JobError> {
        match &self.data {
            WriteData::Random => return Ok(()),
            WriteData::Compressible(percent) => {
                within("the percentage of zeroes", u64::from(*percent), 0, 99)?;
            }
            WriteData::Sample(sample) => {
                let most = SAMPLE_BYTES_MAX as u64;
                within("the sample in bytes", sample.len() as u64, 1, most)?;
            }
        }
        match self.pattern.writes() && self.verify.is_none() {
            true => Ok(()),
            false => Err(JobError::Conflict(
                "the kind of data needs a pattern that writes, without verification",
            )),
        }
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
        let rest = geometry.size_bytes.saturating_sub(self.offset_bytes);
        let blocks = self.size_bytes.unwrap_or(rest) / u64::from(geometry.block_bytes);
        within("the number of verified blocks", blocks, 1, VERIFY_BLOCKS_MAX * self.cores as u64)
    }

    fn range(&self, geometry: &Geometry) -> Result<JobRange, JobError> {
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
        Ok(JobRange { offset_bytes: self.offset_bytes, size_bytes })
    }

    fn validate_parts(&self, geometry: &Geometry, range: JobRange) -> Result<(), JobError> {
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

/// Size of the data shared by the writes of a core.
pub(crate) fn payload_bytes(job: &LoadJob) -> usize {
    let sample = match &job.data {
        WriteData::Sample(sample) => sample.len(),
        WriteData::Random | WriteData::Compressible(_) => 0,
    };
    job.io_bytes_max().max(sample).next_power_of_two().max(PAYLOAD_BYTES)
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

    fn check(change: impl FnOnce(&mut LoadJob)) -> Result<JobRange, String> {
        let mut job = LoadJob::default();
        change(&mut job);
        job.validate(&Geometry::new(1 << 20, 4096), 2, MEMORY).map_err(|error| error.to_string())
    }

    #[test]
    fn default_job_covers_device() {
        assert_eq!(check(|_| {}), Ok(JobRange { offset_bytes: 0, size_bytes: 1 << 20 }));
        let rest = check(|job| job.offset_bytes = 8192);
        assert_eq!(rest, Ok(JobRange { offset_bytes: 8192, size_bytes: (1 << 20) - 8192 }));
    }

    #[test]
    fn job_errors_state_accepted_values() {
        let said = |change: fn(&mut LoadJob)| check(change).unwrap_err();
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
        assert!(said(|job| job.data = WriteData::Compressible(50)).contains("pattern that writes"));
        assert!(said(|job| job.data = WriteData::Compressible(100)).contains("0 to 99"));
        assert!(said(|job| job.data = WriteData::Sample([].into())).contains("sample"));
        assert!(said(|job| job.rate_iops = Some(0)).contains("rate"));
        assert!(said(|job| job.block_sizes.clear()).contains("block sizes"));
        let large = said(|job| {
            job.depth = 512;
            job.block_sizes[0].bytes = 1 << 20;
        });
        assert!(large.contains("limit of pooled memory"), "{large}");
        let small = said(|job| {
            (job.cores, job.depth, job.pattern) = (2, 2, AccessPattern::Write);
            job.size_bytes = Some(4096);
        });
        assert!(small.contains("each core's part"), "{small}");
    }

    #[test]
    fn discard_job_needs_discard_support() {
        let geometry = Geometry { can_discard: false, ..Geometry::new(1 << 20, 512) };
        let job = LoadJob { pattern: AccessPattern::Trim, ..LoadJob::default() };
        assert_eq!(
            job.validate(&geometry, 1, MEMORY),
            Err(JobError::NoDiscard(AccessPattern::Trim))
        );
        assert!(job.validate(&Geometry::new(1 << 20, 512), 1, MEMORY).is_ok());
    }

    #[test]
    fn write_job_needs_writable_device() {
        let geometry = Geometry { read_only: true, ..Geometry::new(1 << 20, 512) };
        let mut job = LoadJob::default();
        assert!(job.validate(&geometry, 1, MEMORY).is_ok());
        job.pattern = AccessPattern::RandTrim;
        assert_eq!(
            job.validate(&geometry, 1, MEMORY),
            Err(JobError::ReadOnly(AccessPattern::RandTrim))
        );
    }

    #[test]
    fn verify_needs_writes_and_bounded_memory() {
        assert!(check(|job| job.verify = Some(Verify::Written { state: None })).is_err());
        let verified = |job: &mut LoadJob| {
            job.pattern = AccessPattern::RandRw;
            job.verify = Some(Verify::Written { state: None });
        };
        assert!(check(verified).is_ok());
        let mut job = LoadJob::default();
        verified(&mut job);
        let huge = Geometry::new(1 << 50, 512);
        let error = job.validate(&huge, 1, MEMORY).unwrap_err().to_string();
        assert!(error.contains("verified blocks"), "{error}");
    }

    #[test]
    fn patterns_have_names() {
        for (name, pattern) in AccessPattern::NAMES {
            assert_eq!(name.parse::<AccessPattern>(), Ok(pattern));
        }
        assert_eq!(AccessPattern::RandRw.to_string(), "randrw");
        assert!("rand".parse::<AccessPattern>().is_err());
    }
}

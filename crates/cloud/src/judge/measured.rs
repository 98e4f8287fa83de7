//! Input of a judgment: measured rates and their circumstances.

use crate::input::{AccessOrder, PlanError, Workload};
use crate::judge::MeasuredSpread;
use crate::limits::MAX_DEPTH;

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MeasuredRates {
    /// I/Os per second; 0 without I/O.
    pub iops: f64,
    pub bytes_per_s: f64,
    /// Mean latency in µs, from submission to completion; `None` if not measured.
    pub latency_us: Option<f64>,
}

impl MeasuredRates {
    pub fn block_bytes(&self) -> f64 {
        self.bytes_per_s / self.iops
    }

    fn in_flight(&self) -> Option<f64> {
        match self.latency_us {
            Some(us) => Some(self.iops * us / 1e6),
            None if self.iops > 0.0 => None,
            None => Some(0.0),
        }
    }
}

/// Measurement of all disks of a configuration together. `Default` stands for unknown
/// circumstances.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredRun {
    pub read: MeasuredRates,
    pub write: MeasuredRates,
    pub access: AccessOrder,
    pub jobs: u32,
    /// Total queue depth of all jobs; `None` if unknown.
    pub in_flight: Option<u64>,
    /// Length of the measurement in s; 0 if unknown.
    pub seconds: f64,
    /// The I/O went through the page cache.
    pub cached: bool,
    /// Name of an I/O engine that runs one I/O at a time despite the requested depth.
    pub one_at_a_time: Option<String>,
    pub throttled_by: Option<String>,
    pub flushed: bool,
    /// Several sequential jobs used the same offsets.
    pub same_offsets: bool,
    /// Minimum size of the disk, from the offsets of the job.
    pub reach_bytes: Option<u64>,
    pub cpus: f64,
    /// CPU time of the busiest job, in % of one CPU.
    pub busiest_percent: f64,
    pub spread: MeasuredSpread,
}

impl Default for MeasuredRun {
    fn default() -> MeasuredRun {
        MeasuredRun {
            read: MeasuredRates::default(),
            write: MeasuredRates::default(),
            access: AccessOrder::Random,
            jobs: 1,
            in_flight: None,
            seconds: 0.0,
            cached: false,
            one_at_a_time: None,
            throttled_by: None,
            flushed: false,
            same_offsets: false,
            reach_bytes: None,
            cpus: 0.0,
            busiest_percent: 0.0,
            spread: MeasuredSpread::default(),
        }
    }
}

impl MeasuredRun {
    pub fn iops(&self) -> f64 {
        self.read.iops + self.write.iops
    }

    /// Mean latency of all I/Os, in µs.
    pub(super) fn latency_us(&self) -> Option<f64> {
        Some(self.kept_in_flight()? / self.iops() * 1e6)
    }

    /// Average I/Os in flight (Little's law).
    pub(super) fn kept_in_flight(&self) -> Option<f64> {
        self.read.in_flight().zip(self.write.in_flight()).map(|(read, write)| read + write)
    }

    pub(super) fn check(&self, tolerance: f64) -> Result<(), PlanError> {
        let parts = [&self.read, &self.write];
        let figures = parts
            .iter()
            .flat_map(|part| [part.iops, part.bytes_per_s, part.latency_us.unwrap_or(0.0)]);
        let figures = figures.chain([self.seconds, self.cpus, self.busiest_percent]);
        let figures = figures.chain(self.spread.figures());
        if let Some(figure) = figures.into_iter().find(|figure| !(0.0..1e30).contains(figure)) {
            let found = format!("a figure of {figure}");
            return Err(PlanError::input(found, "a measurement has finite numbers from 0"));
        }
        if self.iops() <= 0.0 {
            return Err(PlanError::input("no I/O", "a measurement has reads or writes"));
        }
        if !(0.0..1.0).contains(&tolerance) {
            let found = format!("a tolerance of {tolerance}");
            return Err(PlanError::input(found, "write a part from 0 to less than 1"));
        }
        Ok(())
    }

    /// The workload of the measurement, as far as a prediction can express it.
    pub(super) fn workload(&self) -> Result<Workload, PlanError> {
        let bytes = self.read.bytes_per_s + self.write.bytes_per_s;
        let percent = (100.0 * self.read.iops / self.iops()).round();
        let percent = match (self.read.iops > 0.0, self.write.iops > 0.0) {
            (true, true) => percent.clamp(1.0, 99.0),
            _ => percent,
        };
        // More I/Os in flight than the given depth prove that the depth is incomplete.
        let kept = self.kept_in_flight().map(|kept| kept.round().max(1.0));
        let asked = self.in_flight.map(|asked| asked as f64);
        let in_flight = match (asked, kept) {
            (Some(asked), Some(kept)) if kept > 1.2 * asked => Some(kept),
            (asked, kept) => asked.or(kept),
        };
        let depth = in_flight.map(|depth| depth.clamp(1.0, f64::from(MAX_DEPTH)) as u32);
        let workload = Workload {
            block_bytes: (bytes / self.iops()).round() as u64,
            read_percent: percent as u8,
            access: self.access,
            depth,
            jobs: 1,
        };
        workload.check()?;
        Ok(workload)
    }
}

//! What was measured, and how: all that a judgement needs to be told.

use crate::input::{Access, PlanError, Workload};
use crate::limits::MAX_DEPTH;

/// Reads or writes that were measured.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Part {
    /// A second; 0 if there were none.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// Mean latency in µs, from submission to completion; none if it was not measured.
    pub latency_us: Option<f64>,
}

impl Part {
    /// Bytes of one, on average.
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

/// What was measured of all disks of a configuration together, and how. What is not known of the
/// circumstances is as in `Default`.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Reads.
    pub read: Part,
    /// Writes.
    pub write: Part,
    /// Whether places were random or in order.
    pub access: Access,
    /// Jobs or threads.
    pub jobs: u32,
    /// I/Os that all jobs together were to keep in flight; none if that is not known.
    pub in_flight: Option<u64>,
    /// How long it was measured, in s; 0 if that is not known.
    pub seconds: f64,
    /// The page cache of the system stood between.
    pub cached: bool,
    /// What was to keep many in flight does one at a time: its name.
    pub one_at_a_time: Option<String>,
    /// What held the jobs back on purpose: its name.
    pub paced_by: Option<String>,
    /// Writes waited for flushes among them.
    pub flushed: bool,
    /// Several sequential jobs went over the same places.
    pub same_places: bool,
    /// The disk has at least so many bytes, as the job saw it.
    pub reach_bytes: Option<u64>,
    /// CPUs that the jobs kept busy.
    pub cpus: f64,
    /// CPU time of the busiest job, in % of one CPU.
    pub busiest_percent: f64,
}

impl Default for Measured {
    fn default() -> Measured {
        Measured {
            read: Part::default(),
            write: Part::default(),
            access: Access::Random,
            jobs: 1,
            in_flight: None,
            seconds: 0.0,
            cached: false,
            one_at_a_time: None,
            paced_by: None,
            flushed: false,
            same_places: false,
            reach_bytes: None,
            cpus: 0.0,
            busiest_percent: 0.0,
        }
    }
}

impl Measured {
    /// Reads and writes a second.
    pub fn iops(&self) -> f64 {
        self.read.iops + self.write.iops
    }

    /// Mean latency of all, in µs.
    pub(super) fn latency_us(&self) -> Option<f64> {
        Some(self.kept_in_flight()? / self.iops() * 1e6)
    }

    /// I/Os in flight on average, by Little's law.
    pub(super) fn kept_in_flight(&self) -> Option<f64> {
        self.read.in_flight().zip(self.write.in_flight()).map(|(read, write)| read + write)
    }

    /// # Errors
    /// What cannot have been measured.
    pub(super) fn check(&self, tolerance: f64) -> Result<(), PlanError> {
        let parts = [&self.read, &self.write];
        let figures = parts
            .iter()
            .flat_map(|part| [part.iops, part.bytes_per_s, part.latency_us.unwrap_or(0.0)]);
        let figures = figures.chain([self.seconds, self.cpus, self.busiest_percent]);
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

    /// The workload that it was, as far as a prediction has words for it.
    ///
    /// # Errors
    /// A block that the model does not know.
    pub(super) fn workload(&self) -> Result<Workload, PlanError> {
        let bytes = self.read.bytes_per_s + self.write.bytes_per_s;
        let percent = (100.0 * self.read.iops / self.iops()).round();
        let percent = match (self.read.iops > 0.0, self.write.iops > 0.0) {
            (true, true) => percent.clamp(1.0, 99.0),
            _ => percent,
        };
        // What was in flight, where more was than is said: then what is said is not all.
        let kept = self.kept_in_flight().map(|kept| kept.round().max(1.0));
        let told = self.in_flight.map(|told| told as f64);
        let in_flight = match (told, kept) {
            (Some(told), Some(kept)) if kept > 1.2 * told => Some(kept),
            (told, kept) => told.or(kept),
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

//! Disk model layer: responds with the service latency of a disk type, for labs and tests.
//!
//! Invariants: a call completes when its service latency has passed, or when the child has
//! completed it if that is later. The time of the child is part of the latency, not added to it.
//! Calls do not queue behind each other, so at depth `d` it completes `d / mean latency` calls per
//! second (Little's law), unless a rate limit above allows less; the queue of the rate limit then
//! adds the rest. Failures are returned at once. The seed determines the latencies, in the order of
//! the calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flagstone_blockdev::stats::CallKind;
use flagstone_blockdev::{IoFuture, Layer, SharedDevice};
use flagstone_runtime::{rng, time};

use crate::limits::{LATENCY_MAX, TAIL_MAX};
use crate::lognormal::Lognormal;
use crate::rates::LimitError;

/// Distribution of the service time of a disk: lognormal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceTime {
    /// Median: greater than 0, at most 60 s.
    pub median: Duration,
    /// 99th percentile: 1 to 100 medians, at most 60 s. Equal to the median: constant.
    pub p99: Duration,
}

impl ServiceTime {
    pub fn constant(latency: Duration) -> ServiceTime {
        ServiceTime { median: latency, p99: latency }
    }

    /// The mean: median × e^(σ²/2) with σ = ln(p99 / median) / 2.326. At depth 1 the device
    /// completes one I/O per mean.
    pub fn mean(&self) -> Duration {
        Lognormal::new(self.median, self.p99).mean()
    }

    fn distribution(self) -> Result<Lognormal, LimitError> {
        let ServiceTime { median, p99 } = self;
        if let Some(wrong) =
            [median, p99].into_iter().find(|one| *one > LATENCY_MAX || one.is_zero())
        {
            return Err(LimitError::Latency(wrong));
        }
        if p99 < median || p99 > median * TAIL_MAX {
            return Err(LimitError::Tail { median, p99 });
        }
        Ok(Lognormal::new(median, p99))
    }
}

/// Latencies of the model. Calls without a latency take the time of the child.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskModelConfig {
    /// Latency of reads.
    pub read: Option<ServiceTime>,
    /// Latency of writes, flushes, discards and writes of zeroes.
    pub write: Option<ServiceTime>,
    /// Determines all latencies.
    pub seed: u64,
}

/// Layer that adds the latency of a disk type.
#[derive(Debug)]
pub struct DiskModelLayer {
    child: SharedDevice,
    read: Option<Lognormal>,
    write: Option<Lognormal>,
    seed: u64,
    calls: AtomicU64,
}

impl DiskModelLayer {
    /// Adds latency to `child`.
    ///
    /// # Errors
    /// [`LimitError::Latency`] and [`LimitError::Tail`] for latencies out of range.
    pub fn new(child: SharedDevice, config: DiskModelConfig) -> Result<DiskModelLayer, LimitError> {
        let distribution =
            |time: Option<ServiceTime>| time.map(ServiceTime::distribution).transpose();
        let (read, write) = (distribution(config.read)?, distribution(config.write)?);
        Ok(DiskModelLayer { child, read, write, seed: config.seed, calls: AtomicU64::new(0) })
    }
}

impl Layer for DiskModelLayer {
    fn child(&self) -> &SharedDevice {
        &self.child
    }

    fn pass<T: 'static>(
        &self,
        call: CallKind,
        _offset: u64,
        _len: u64,
        make: impl FnOnce(&SharedDevice) -> IoFuture<T> + 'static,
    ) -> IoFuture<T> {
        let distribution = if call == CallKind::Read { self.read } else { self.write };
        let Some(distribution) = distribution else { return make(&self.child) };
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let sleep = time::sleep(distribution.draw(rng::split_mix64_at(self.seed, number)));
        match make(&self.child).try_now() {
            Ok(Err(error)) => IoFuture::ready(Err(error)),
            Ok(Ok(value)) => IoFuture::later(async move {
                sleep.await;
                Ok(value)
            }),
            Err(later) => IoFuture::later(async move {
                let value = later.await?;
                sleep.await;
                Ok(value)
            }),
        }
    }
}

//! A device that answers as late as a disk of some type: for labs and for tests.
//!
//! Promises: a call is answered when its service latency is over, or when the child has answered if
//! that is later: what the child itself takes is part of the latency, not added to it. Calls do not
//! queue behind each other, so a depth of `d` has `d / mean latency` of them answered a second
//! (Little's law), for as long as no limit above says less; beyond it the limit's queue adds what
//! is missing. Failures are answered at once. The seed determines the latencies, in the order of
//! the calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, Geometry, IoFuture, SharedDevice, ZeroFlags};
use flagstone_runtime::{Buf, BufMut, time};

use crate::limits::{LATENCY_MAX, TAIL_MAX};
use crate::lognormal::Lognormal;
use crate::rates::ConfigError;

/// How long a disk takes to serve an I/O: a lognormal distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceTime {
    /// Half of the I/Os take no longer: more than 0, to 60 s.
    pub median: Duration,
    /// 99 of 100 take no longer: 1 to 100 medians, to 60 s. The same as the median: constant.
    pub p99: Duration,
}

impl ServiceTime {
    /// Always the same.
    pub fn constant(latency: Duration) -> ServiceTime {
        ServiceTime { median: latency, p99: latency }
    }

    /// The mean: median × e^(σ²/2), σ being ln(p99 / median) / 2.326. What a depth of 1 gives is
    /// one I/O in each of it.
    pub fn mean(&self) -> Duration {
        Lognormal::new(self.median, self.p99).mean()
    }

    fn law(self) -> Result<Lognormal, ConfigError> {
        let ServiceTime { median, p99 } = self;
        if let Some(wrong) =
            [median, p99].into_iter().find(|one| *one > LATENCY_MAX || one.is_zero())
        {
            return Err(ConfigError::Latency(wrong));
        }
        if p99 < median || p99 > median * TAIL_MAX {
            return Err(ConfigError::Tail { median, p99 });
        }
        Ok(Lognormal::new(median, p99))
    }
}

/// What to emulate; calls without a latency are answered as the child does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmulationConfig {
    /// Of reads.
    pub read: Option<ServiceTime>,
    /// Of writes, flushes, discards and writes of zeroes.
    pub write: Option<ServiceTime>,
    /// Determines all latencies.
    pub seed: u64,
}

/// See the module's promises.
pub struct Emulated {
    child: SharedDevice,
    read: Option<Lognormal>,
    write: Option<Lognormal>,
    seed: u64,
    calls: AtomicU64,
}

impl Emulated {
    /// Emulates over `child`.
    ///
    /// # Errors
    /// [`ConfigError::Latency`] and [`ConfigError::Tail`] for latencies that no disk has.
    pub fn new(child: SharedDevice, config: EmulationConfig) -> Result<Emulated, ConfigError> {
        let law = |time: Option<ServiceTime>| time.map(ServiceTime::law).transpose();
        let (read, write) = (law(config.read)?, law(config.write)?);
        Ok(Emulated { child, read, write, seed: config.seed, calls: AtomicU64::new(0) })
    }

    fn served<T: 'static>(
        &self,
        law: Option<Lognormal>,
        call: impl FnOnce(&SharedDevice) -> IoFuture<T>,
    ) -> IoFuture<T> {
        let Some(law) = law else { return call(&self.child) };
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let sleep = time::sleep(law.draw(random(self.seed, number)));
        match call(&self.child).try_now() {
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

/// The random bits of a call: SplitMix64 at the call's number.
fn random(seed: u64, number: u64) -> u64 {
    let value = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

impl std::fmt::Debug for Emulated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Emulated(read {:?}, write {:?})", self.read, self.write)
    }
}

// `known` stays unanswered: what is read without a call would take no time.
impl BlockDevice for Emulated {
    fn geometry(&self) -> Geometry {
        self.child.geometry()
    }

    fn refresh(&self) {
        self.child.refresh();
    }

    fn must_reopen(&self) -> bool {
        self.child.must_reopen()
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.served(self.read, |child| child.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        self.served(self.write, |child| child.write(offset, data, fua))
    }

    fn flush(&self) -> IoFuture<()> {
        self.served(self.write, |child| child.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.served(self.write, |child| child.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.served(self.write, |child| child.write_zeroes(offset, len, flags))
    }
}

//! Delay layer: delays calls, for labs and for tests that need a call in flight.
//!
//! Invariants: a call reaches the child no earlier than the fixed delay after it was made, and no
//! later than the fixed delay plus the jitter. Calls do not queue behind each other, so with jitter
//! they overtake each other. Time and randomness come from the runtime, so simulated runs replay.

use std::time::Duration;

use flagstone_runtime::{random_u64, time};

use crate::limits::DELAY_MAX_SECONDS;
use crate::stats::CallKind;
use crate::{IoFuture, Layer, LayerConfigError, SharedDevice};

/// Delay of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayTime {
    /// Minimum, at most 60 s.
    pub fixed: Duration,
    /// Additional random delay up to this, evenly distributed, at most 60 s.
    pub jitter: Duration,
}

impl DelayTime {
    /// A constant delay.
    pub fn fixed(fixed: Duration) -> DelayTime {
        DelayTime { fixed, jitter: Duration::ZERO }
    }

    fn check(self) -> Result<(), LayerConfigError> {
        let max = Duration::from_secs(DELAY_MAX_SECONDS);
        match [self.fixed, self.jitter].into_iter().find(|part| *part > max) {
            Some(part) => Err(LayerConfigError::Delay(part)),
            None => Ok(()),
        }
    }

    fn is_zero(self) -> bool {
        self.fixed.is_zero() && self.jitter.is_zero()
    }

    fn pick(self) -> Duration {
        if self.jitter.is_zero() {
            return self.fixed;
        }
        let range = u128::from(random_u64()) * (self.jitter.as_nanos() + 1);
        self.fixed + Duration::from_nanos((range >> 64) as u64)
    }
}

/// Delays per kind of call; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayConfig {
    /// Reads.
    pub read: DelayTime,
    /// Writes and write-zeroes.
    pub write: DelayTime,
    /// Flushes.
    pub flush: DelayTime,
    /// Discards.
    pub discard: DelayTime,
}

/// Layer that delays calls.
#[derive(Debug)]
pub struct DelayLayer {
    child: SharedDevice,
    config: DelayConfig,
}

impl DelayLayer {
    /// Delays calls to `child`.
    ///
    /// # Errors
    /// [`LayerConfigError::Delay`] for more than 60 s.
    pub fn new(child: SharedDevice, config: DelayConfig) -> Result<DelayLayer, LayerConfigError> {
        for latency in [config.read, config.write, config.flush, config.discard] {
            latency.check()?;
        }
        Ok(DelayLayer { child, config })
    }
}

impl Layer for DelayLayer {
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
        let latency = match call {
            CallKind::Read => self.config.read,
            CallKind::Write | CallKind::WriteZeroes => self.config.write,
            CallKind::Flush => self.config.flush,
            CallKind::Discard => self.config.discard,
        };
        if latency.is_zero() {
            return make(&self.child);
        }
        let child = self.child.clone();
        let sleep = time::sleep(latency.pick());
        IoFuture::later(async move {
            sleep.await;
            make(&child).await
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use flagstone_runtime::{block_on, buf};

    use super::*;
    use crate::{BlockDevice, NullDevice};

    fn null() -> SharedDevice {
        Arc::new(NullDevice::new(1 << 20, 512).unwrap())
    }

    #[test]
    fn each_kind_of_call_has_its_delay() {
        block_on(async {
            let latency = |ms| DelayTime {
                fixed: Duration::from_millis(ms),
                jitter: Duration::from_millis(1),
            };
            let config =
                DelayConfig { read: latency(4), flush: latency(2), ..DelayConfig::default() };
            let device = DelayLayer::new(null(), config).unwrap();
            let start = time::now();
            device.read(0, buf::alloc(512).await).await.unwrap();
            assert!(start.elapsed() >= Duration::from_millis(4));
            let start = time::now();
            device.flush().await.unwrap();
            assert!(start.elapsed() >= Duration::from_millis(2));
            let write = device.write(0, buf::alloc(512).await.freeze(), false);
            assert!(write.try_now().is_ok(), "without a delay the child's future comes as it is");
        })
        .unwrap();
    }

    #[test]
    fn delays_are_within_bounds() {
        block_on(async {
            let latency =
                DelayTime { fixed: Duration::from_nanos(10), jitter: Duration::from_nanos(3) };
            let mut seen = [0; 4];
            for _ in 0..1000 {
                seen[latency.pick().as_nanos() as usize - 10] += 1;
            }
            assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
        })
        .unwrap();
    }

    #[test]
    fn very_long_delays_are_refused() {
        let read = DelayTime::fixed(Duration::from_secs(61));
        let config = DelayConfig { read, ..DelayConfig::default() };
        let error = DelayLayer::new(null(), config).unwrap_err();
        assert!(error.to_string().contains("at most 60 s"), "{error}");
    }
}

//! Pace: how many chunks of a core are in flight. Pure.
//!
//! A cloud disk that is limited in I/Os per second queues what exceeds the limit. More chunks in
//! flight then only wait longer, and carry fewer writes each. So the number falls while chunks take
//! much longer than the fastest did lately, and rises again while they do not. Two remain, so that
//! the device never idles between chunks.

use std::time::Duration;

use crate::limits::CHUNKS_IN_FLIGHT;

/// Fewest chunks in flight.
const LEAST: usize = 2;

/// The fastest time is forgotten by this part with each chunk, as a device may become slower.
const FORGET: u32 = 256;

/// Chunks in flight, by the times that they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    most: usize,
    fastest: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { most: CHUNKS_IN_FLIGHT, fastest: Duration::MAX }
    }
}

impl Pace {
    /// Most chunks in flight.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// A chunk was written in this time.
    pub(super) fn completed(&mut self, took: Duration) {
        let fastest = self.fastest.saturating_add(self.fastest / FORGET);
        self.fastest = fastest.min(took);
        if took > 2 * self.fastest {
            self.most = (self.most - 1).max(LEAST);
        } else if 2 * took < 3 * self.fastest {
            self.most = (self.most + 1).min(CHUNKS_IN_FLIGHT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(times_ms: impl IntoIterator<Item = u64>) -> Pace {
        let mut pace = Pace::default();
        times_ms.into_iter().for_each(|ms| pace.completed(Duration::from_millis(ms)));
        pace
    }

    #[test]
    fn queuing_device_gets_fewer_chunks() {
        assert_eq!(after([4; 20]).most(), CHUNKS_IN_FLIGHT, "latency alone is no queue");
        assert_eq!(after([4, 11, 11, 11]).most(), CHUNKS_IN_FLIGHT - 3);
        assert_eq!(after([4].into_iter().chain([11; 20])).most(), LEAST);
        assert_eq!(after([4].into_iter().chain([11; 20]).chain([5; 20])).most(), CHUNKS_IN_FLIGHT);
    }

    #[test]
    fn slower_device_is_noticed_after_a_while() {
        let pace = after([4].into_iter().chain([12; 1000]));
        assert_eq!(pace.most(), CHUNKS_IN_FLIGHT, "the new latency counts as the fastest");
    }
}

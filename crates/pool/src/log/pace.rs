//! Pace: number of chunks of a core in flight. Pure.
//!
//! A cloud disk with a limit of I/Os per second queues I/O beyond the limit. More chunks in flight
//! then only wait longer, and carry fewer writes each. So the number falls while chunks take much
//! longer than the fastest recent one, and rises otherwise. It stays at two or more, so that the
//! device never idles between chunks.

use std::time::Duration;

use crate::limits::CHUNKS_IN_FLIGHT;

/// Fewest chunks in flight.
const LEAST: usize = 2;

/// Part by which the fastest time grows with each chunk, because a device may become slower.
const FORGET: u32 = 256;

/// State of the pace of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogPace {
    most: usize,
    fastest: Duration,
}

impl Default for LogPace {
    fn default() -> LogPace {
        LogPace { most: CHUNKS_IN_FLIGHT, fastest: Duration::MAX }
    }
}

impl LogPace {
    /// Most chunks in flight now.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Counts a chunk whose write took this time.
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

    fn after(times_ms: impl IntoIterator<Item = u64>) -> LogPace {
        let mut pace = LogPace::default();
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

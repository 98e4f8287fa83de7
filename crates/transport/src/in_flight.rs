//! Handshakes in flight, bounded in all and for each source address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::failure_delays::{Source, source_of};

/// Count of handshakes in flight.
#[derive(Debug)]
pub struct InFlight {
    all_max: usize,
    source_max: usize,
    by_source: Mutex<BTreeMap<Source, usize>>,
}

impl InFlight {
    /// At most `all_max` handshakes, of which one source has at most `source_max`.
    pub fn new(all_max: usize, source_max: usize) -> Arc<InFlight> {
        Arc::new(InFlight { all_max, source_max, by_source: Mutex::default() })
    }

    /// Begins a handshake of `source`, `None` for a Unix socket. Returns `None` at a limit.
    pub fn begin(self: &Arc<Self>, source: Option<IpAddr>) -> Option<InFlightPlace> {
        let source = source.map(source_of);
        let mut by_source = self.by_source.lock();
        let all: usize = by_source.values().sum();
        let own = by_source.get(&source).copied().unwrap_or(0);
        if all >= self.all_max || own >= self.source_max {
            return None;
        }
        by_source.insert(source, own + 1);
        Some(InFlightPlace { all: self.clone(), source })
    }
}

/// Handshake in flight, until it is dropped.
#[derive(Debug)]
pub struct InFlightPlace {
    all: Arc<InFlight>,
    source: Source,
}

impl Drop for InFlightPlace {
    fn drop(&mut self) {
        let mut by_source = self.all.by_source.lock();
        if let Some(own) = by_source.get_mut(&self.source) {
            *own -= 1;
            if *own == 0 {
                by_source.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_in_flight_are_bounded() {
        let all = InFlight::new(16, 4);
        let source = |last: u8| Some(IpAddr::from([192, 0, 2, last]));
        let mut held: Vec<_> = (0..4).map(|_| all.begin(source(1)).unwrap()).collect();
        assert!(all.begin(source(1)).is_none());
        held.extend((2..=250).map_while(|other| all.begin(source(other))));
        assert_eq!(held.len(), 16);
        assert!(all.begin(None).is_none());
        held.remove(0);
        assert!(all.begin(source(1)).is_some());
        drop(held);
        assert!(all.by_source.lock().is_empty());
    }

    #[test]
    fn ipv6_network_is_one_source() {
        let all = InFlight::new(16, 2);
        let source = |last: u16| Some(IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, last]));
        let held = (all.begin(source(1)).unwrap(), all.begin(source(2)).unwrap());
        assert!(all.begin(source(3)).is_none());
        drop(held);
    }
}

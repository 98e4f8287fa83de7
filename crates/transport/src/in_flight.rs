//! Handshakes in flight, bounded in all and for each source address.
//!
//! Invariants:
//! - a handshake that waits for its turn counts for its source, and only a begun handshake counts
//!   among all. So a source that has to wait cannot keep the places of others;
//! - when all places are taken, a handshake takes the place of the source with the most, whose
//!   oldest handshake is evicted, unless its own source then had as many. So sources that stall
//!   cannot keep others out, however many places they take, and evictions end.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use flagstone_runtime::sync::{OneReceiver, OneSender, oneshot};
use parking_lot::Mutex;

use crate::failure_delays::{PeerSource, source_of};

/// Count of handshakes in flight.
#[derive(Debug)]
pub struct InFlight {
    all_max: usize,
    source_max: usize,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Handshakes that have begun and are not evicted, the oldest first.
    begun: BTreeMap<u64, Begun>,
    next: u64,
    /// Handshakes that wait or have begun.
    by_source: BTreeMap<PeerSource, usize>,
}

#[derive(Debug)]
struct Begun {
    source: PeerSource,
    /// Dropped when the handshake is evicted.
    _place: OneSender<()>,
}

impl InFlight {
    /// At most `all_max` handshakes, of which one address has at most `source_max`. Clients of Unix
    /// sockets have no limit of their own: the directory of the socket admits them.
    pub fn new(all_max: usize, source_max: usize) -> Arc<InFlight> {
        Arc::new(InFlight { all_max, source_max, counts: Mutex::default() })
    }

    /// Begins a handshake of `source`, `None` for a Unix socket. Returns `None` at a limit.
    pub fn begin(self: &Arc<Self>, source: Option<IpAddr>) -> Option<InFlightPlace> {
        self.queue(source)?.begin()
    }

    /// Queues a handshake of `source`, `None` for a Unix socket. Returns `None` at the limit of the
    /// source.
    pub fn queue(self: &Arc<Self>, source: Option<IpAddr>) -> Option<QueuedPlace> {
        let source = source.map(source_of);
        let mut counts = self.counts.lock();
        let own = counts.by_source.entry(source).or_default();
        if *own >= self.source_max && source.is_some() {
            return None;
        }
        *own += 1;
        Some(QueuedPlace { all: self.clone(), source })
    }

    /// Handshakes that have begun, of all sources.
    pub fn begun(&self) -> usize {
        self.counts.lock().begun.len()
    }

    /// True if more than half of all places are taken.
    pub fn is_crowded(&self) -> bool {
        self.begun() > self.all_max / 2
    }
}

impl Counts {
    /// The handshake whose place `source` may take.
    fn victim(&self, source: PeerSource) -> Option<u64> {
        let mut counts = BTreeMap::<PeerSource, usize>::new();
        for one in self.begun.values() {
            *counts.entry(one.source).or_default() += 1;
        }
        let own = counts.get(&source).copied().unwrap_or(0);
        let (most, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        let mut oldest = self.begun.iter().filter(|(_, one)| one.source == most);
        oldest.next().filter(|_| count > own + 1).map(|(id, _)| *id)
    }
}

/// Handshake that waits for its turn, until it is dropped.
#[derive(Debug)]
pub struct QueuedPlace {
    all: Arc<InFlight>,
    source: PeerSource,
}

impl QueuedPlace {
    /// Begins the handshake. Returns `None` at the limit of all.
    pub fn begin(self) -> Option<InFlightPlace> {
        let (place, evicted) = oneshot();
        let mut counts = self.all.counts.lock();
        let mut victim = None;
        if counts.begun.len() >= self.all.all_max {
            let id = counts.victim(self.source)?;
            victim = counts.begun.remove(&id);
        }
        let id = counts.next;
        counts.next += 1;
        counts.begun.insert(id, Begun { source: self.source, _place: place });
        drop(counts);
        // Wakes its task.
        drop(victim);
        Some(InFlightPlace { queued: self, id, evicted })
    }
}

impl Drop for QueuedPlace {
    fn drop(&mut self) {
        let mut counts = self.all.counts.lock();
        if let Some(own) = counts.by_source.get_mut(&self.source) {
            *own -= 1;
            if *own == 0 {
                counts.by_source.remove(&self.source);
            }
        }
    }
}

/// Handshake in flight, until it is dropped.
#[derive(Debug)]
pub struct InFlightPlace {
    queued: QueuedPlace,
    id: u64,
    evicted: OneReceiver<()>,
}

impl InFlightPlace {
    /// Waits until the handshake is evicted, and has to end.
    pub async fn evicted(&mut self) {
        let _ = (&mut self.evicted).await;
    }

    /// True if the handshake is evicted, and has to end.
    pub fn is_evicted(&self) -> bool {
        !self.queued.all.counts.lock().begun.contains_key(&self.id)
    }
}

impl Drop for InFlightPlace {
    fn drop(&mut self) {
        let begun = self.queued.all.counts.lock().begun.remove(&self.id);
        drop(begun);
    }
}

#[cfg(test)]
mod tests {
    use flagstone_runtime::{block_on, spawn};

    use super::*;

    fn source(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, last]))
    }

    #[test]
    fn handshakes_in_flight_are_bounded() {
        let all = InFlight::new(16, 4);
        let mut held: Vec<_> = (0..4).map(|_| all.begin(source(1)).unwrap()).collect();
        assert!(all.begin(source(1)).is_none());
        held.extend((2..=13).map(|other| all.begin(source(other)).unwrap()));
        assert_eq!(all.begun(), 16);
        held.remove(0);
        held.push(all.begin(source(1)).unwrap());
        drop(held);
        assert!(all.counts.lock().by_source.is_empty());
        assert_eq!(all.begun(), 0);
    }

    #[test]
    fn sources_with_the_most_places_lose_their_oldest() {
        let all = InFlight::new(8, 6);
        let mut held: Vec<_> = (0..6).map(|_| all.begin(source(1)).unwrap()).collect();
        held.extend((0..2).map(|_| all.begin(source(2)).unwrap()));
        let evicted = |held: &[InFlightPlace]| -> Vec<_> {
            (0..held.len()).filter(|at| held[*at].is_evicted()).collect()
        };
        assert!(evicted(&held).is_empty());
        held.push(all.begin(source(3)).unwrap());
        assert_eq!((evicted(&held), all.begun()), (vec![0], 8));
        held.push(all.begin(source(2)).unwrap());
        assert_eq!(evicted(&held), [0, 1]);
        // Source 1 has four, the others four: it does not have more than source 2 would have.
        assert!(all.begin(source(2)).is_none());
        held.push(all.begin(source(3)).unwrap());
        assert_eq!((evicted(&held), all.begun()), (vec![0, 1, 2], 8));
        // An evicted handshake counts for its source until it ends, and then frees nothing more.
        assert!(all.begin(source(1)).is_none());
        held.drain(..3);
        assert_eq!(all.begun(), 8);
        assert!(all.begin(source(1)).is_none(), "all have as many");
    }

    #[test]
    fn evicted_handshakes_are_woken() {
        block_on(async {
            let all = InFlight::new(2, 2);
            let mut held = [all.begin(source(1)).unwrap(), all.begin(source(1)).unwrap()];
            let taker = all.clone();
            let taking = spawn(async move { taker.begin(source(2)) });
            held[0].evicted().await;
            assert!(taking.await.unwrap().is_some());
            assert!(!held[1].is_evicted());
        })
        .unwrap();
    }

    #[test]
    fn queued_handshakes_count_only_for_their_address() {
        let all = InFlight::new(4, 2);
        let queued: Vec<_> =
            (1..=8).flat_map(|last| [last; 2]).map(|last| all.queue(source(last))).collect();
        assert!(queued.iter().all(Option::is_some) && all.queue(source(1)).is_none());
        assert_eq!(all.begun(), 0);
        let begun: Vec<_> = queued.into_iter().map(|one| one.unwrap().begin()).collect();
        // Sources 3 and 4 take a place each of the first two.
        assert_eq!(begun.iter().flatten().count(), 6);
        assert!(all.is_crowded() && all.begun() == 4);
        drop(begun);
        assert!(!all.is_crowded() && all.begin(source(9)).is_some());
    }

    #[test]
    fn local_clients_have_no_limit_of_their_own() {
        let all = InFlight::new(16, 4);
        let held: Vec<_> = (0..16).map(|_| all.begin(None).unwrap()).collect();
        assert!(all.begin(None).is_none());
        drop(held);
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

//! Page cache: decoded map pages, bounded in number, with second-chance eviction. The bound may
//! change at any time.
//!
//! Invariant: a page is returned only for the entry with which it was read. A location that was
//! reused for another page is a miss, because the entries differ in birth.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::ondisk::entry::MapEntry;
use crate::ondisk::page::MapPage;

struct Slot {
    entry: MapEntry,
    page: Arc<MapPage>,
    used: bool,
}

#[derive(Default)]
struct Slots {
    by_location: BTreeMap<u64, usize>,
    slots: Vec<Slot>,
    hand: usize,
}

/// Cache of map pages, shared by cores.
pub struct PageCache {
    capacity: AtomicUsize,
    slots: Mutex<Slots>,
}

impl PageCache {
    /// A cache of at most `capacity` pages.
    pub fn new(capacity: usize) -> PageCache {
        PageCache { capacity: AtomicUsize::new(capacity.max(1)), slots: Mutex::default() }
    }

    /// Most pages in the cache.
    pub fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Changes the bound, and frees the memory beyond it.
    pub fn set_capacity(&self, capacity: usize) {
        let mut slots = self.slots.lock();
        let capacity = capacity.max(1);
        self.capacity.store(capacity, Ordering::Relaxed);
        let Slots { by_location, slots, hand } = &mut *slots;
        for slot in slots.drain(capacity.min(slots.len())..) {
            by_location.remove(&slot.entry.location);
        }
        slots.shrink_to_fit();
        *hand = 0;
    }

    /// Page of an entry, if it is cached.
    pub fn get(&self, entry: MapEntry) -> Option<Arc<MapPage>> {
        let mut slots = self.slots.lock();
        let index = *slots.by_location.get(&entry.location)?;
        let slot = &mut slots.slots[index];
        slot.used = true;
        (slot.entry == entry).then(|| slot.page.clone())
    }

    /// Adds a page.
    pub fn put(&self, entry: MapEntry, page: Arc<MapPage>) {
        let mut slots = self.slots.lock();
        let fresh = Slot { entry, page, used: true };
        if let Some(index) = slots.by_location.get(&entry.location).copied() {
            slots.slots[index] = fresh;
            return;
        }
        let index = if slots.slots.len() < self.capacity() {
            slots.slots.push(fresh);
            slots.slots.len() - 1
        } else {
            let index = slots.evict();
            slots.slots[index] = fresh;
            index
        };
        slots.by_location.insert(entry.location, index);
    }
}

impl Slots {
    /// Evicts a page that was not used since the hand passed it; returns its slot.
    fn evict(&mut self) -> usize {
        loop {
            let index = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[index];
            if !std::mem::replace(&mut slot.used, false) {
                self.by_location.remove(&slot.entry.location);
                return index;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_is_bounded_and_never_returns_another_page() {
        let cache = PageCache::new(4);
        let entry = |location, birth| MapEntry { location, birth, checksum: 0 };
        for location in 1..10 {
            cache.put(entry(location, 1), Arc::default());
        }
        let held = (1..10).filter(|location| cache.get(entry(*location, 1)).is_some()).count();
        assert_eq!(held, 4);
        assert!(cache.get(entry(9, 1)).is_some());
        assert!(cache.get(entry(9, 2)).is_none(), "the location was reused");
        cache.put(entry(9, 2), Arc::default());
        assert!(cache.get(entry(9, 1)).is_none() && cache.get(entry(9, 2)).is_some());
    }

    #[test]
    fn bound_changes_while_pages_are_cached() {
        let cache = PageCache::new(4);
        let entry = |location| MapEntry { location, birth: 1, checksum: 0 };
        let held = || (1..20).filter(|location| cache.get(entry(*location)).is_some()).count();
        let fill = || (1..20).for_each(|location| cache.put(entry(location), Arc::default()));
        for (capacity, after) in [(4, 0), (9, 4), (2, 2), (5, 2)] {
            cache.set_capacity(capacity);
            assert_eq!((cache.capacity(), held()), (capacity, after));
            fill();
            assert_eq!(held(), capacity);
        }
    }
}

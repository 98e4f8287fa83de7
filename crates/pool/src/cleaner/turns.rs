//! Turns of the cleaner during an evacuation, which frees no segments that hosts may use.
//!
//! While writes wait for free segments, a pass cleans the other devices instead, unless the last
//! such pass gained nothing. So neither the writes nor the evacuation wait for the end of the
//! other.

use crate::manage::shared::State;

impl State {
    /// True if the next pass cleans the other devices, because writes wait; then they have a
    /// segment with at most `live_max` live blocks.
    pub(super) fn cleans_for_writes(&mut self, live_max: u32) -> bool {
        let writes_wait = std::mem::take(&mut self.writes_wait);
        let last = self.free_before.take();
        let Some(range) = self.evacuated.clone().filter(|_| writes_wait) else { return false };
        let (sizes, supply) = (self.sizes, self.supply());
        let writable = supply.left_free(&sizes, 0).max(sizes.reserved_floor());
        let has_gained = last.is_none_or(|before| supply.free > before);
        let is_victim = |segment: u32| {
            self.can_clean(segment)
                && !range.contains(&segment)
                && self.candidate(segment, false).live <= live_max
        };
        let cleans = supply.free <= writable + 1
            && has_gained
            && (0..self.segments.count() as u32).any(is_victim);
        self.free_before = cleans.then_some(supply.free);
        cleans
    }
}

//! Reorder buffer: keeps asynchronous writes in order without a round trip each. A pure core.
//!
//! The source gives each write a sequence number, and lists the earlier writes that were still in
//! flight when it began. A write that is split into parts on the way has one number per part. All
//! earlier writes that are not listed had completed at the source, and a host may have relied on
//! that. So the target starts a write only after these have completed there too, in whatever order
//! the network delivers them. The target's data therefore always equals a past state of the source,
//! apart from writes that were not acknowledged.
//!
//! A write waits only for writes that it may depend on: a slow write at the target delays later
//! writes, but not writes that ran concurrently with it. At most [`CONCURRENT_MAX`] numbers can be
//! listed, so a write with more concurrent predecessors waits for the oldest ones.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::task::Waker;

use crate::limits::ORDER_WINDOW;

/// Window, in sequence numbers: a write can list this many numbers before its own, and the target
/// starts writes this far beyond the oldest incomplete one.
pub const CONCURRENT_MAX: u32 = 127;

/// Position of a write in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOrder {
    /// Sequence number, modulo 2^32. The first of an attachment is 1.
    pub number: u32,
    /// Earlier writes that need not complete first: bit `i` is number `number - 1 - i`.
    pub concurrent: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteNumbers {
    /// Order of its first part, from which the others follow.
    pub(crate) first: WriteOrder,
    parts: u32,
}

/// Source side: assigns sequence numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbering {
    next: u32,
    /// Bit `i`: number `next - 1 - i` is in flight.
    running: u128,
}

impl Default for Numbering {
    fn default() -> Numbering {
        Numbering { next: 1, running: 0 }
    }
}

fn ones(count: u32) -> u128 {
    1u128.checked_shl(count).map_or(u128::MAX, |next| next - 1)
}

impl Numbering {
    /// Starts a write that is sent in `parts` parts.
    pub(crate) fn begin(&mut self, parts: u32) -> WriteNumbers {
        let first = WriteOrder { number: self.next, concurrent: self.running };
        self.next = self.next.wrapping_add(parts);
        self.running = self.running.checked_shl(parts).unwrap_or(0) | ones(parts);
        WriteNumbers { first, parts }
    }

    /// A write has completed for its host: writes that start later may depend on it.
    pub(crate) fn completed(&mut self, numbers: WriteNumbers) {
        let after = numbers.first.number.wrapping_add(numbers.parts);
        let newer = self.next.wrapping_sub(after);
        self.running &= !ones(numbers.parts).checked_shl(newer).unwrap_or(0);
    }
}

/// A write with an invalid order: the source is broken or hostile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a write out of order")]
pub struct OutOfOrder;

#[derive(Debug)]
struct CompletedWrites {
    /// The oldest number that has not completed.
    floor: u64,
    /// Bit `i`: number `floor + i` has completed.
    above: u128,
}

impl CompletedWrites {
    /// The full number, of which 32 bits are transmitted.
    fn position(&self, number: u32) -> Result<u64, OutOfOrder> {
        let ahead = number.wrapping_sub(self.floor as u32);
        if ahead < ORDER_WINDOW { Ok(self.floor + u64::from(ahead)) } else { Err(OutOfOrder) }
    }

    /// True when every write that this one waits for has completed.
    fn allows(&self, position: u64, concurrent: u128) -> bool {
        let before = match position.checked_sub(self.floor) {
            None | Some(0) => return true,
            Some(before) if before <= u64::from(CONCURRENT_MAX) => before as u32,
            Some(_) => return false,
        };
        // Reversed, so that bit `i` is number `floor + i`, as in `above`.
        let named = concurrent.reverse_bits() >> (u128::BITS - before);
        (self.above | named) & ones(before) == ones(before)
    }

    fn complete(&mut self, number: u32) -> Result<(), OutOfOrder> {
        let above = (self.position(number)? - self.floor) as u32;
        let bit = 1u128.checked_shl(above).filter(|bit| self.above & bit == 0).ok_or(OutOfOrder)?;
        self.above |= bit;
        let whole = self.above.trailing_ones();
        self.floor += u64::from(whole);
        self.above = self.above.checked_shr(whole).unwrap_or(0);
        Ok(())
    }
}

#[derive(Debug)]
struct EarlyWrite {
    concurrent: u128,
    waker: Option<Waker>,
}

/// Target side: decides when a write may start.
#[derive(Debug)]
pub(crate) struct ReorderBuffer {
    done: CompletedWrites,
    waiting: BTreeMap<u64, EarlyWrite>,
}

impl Default for ReorderBuffer {
    fn default() -> ReorderBuffer {
        ReorderBuffer { done: CompletedWrites { floor: 1, above: 0 }, waiting: BTreeMap::new() }
    }
}

impl ReorderBuffer {
    /// Registers a write that has arrived. It may start when [`ReorderBuffer::may_start`] says so.
    ///
    /// # Errors
    /// When its number has completed, is too far ahead, or is already waiting.
    pub(crate) fn arrived(&mut self, order: WriteOrder) -> Result<(), OutOfOrder> {
        let position = self.done.position(order.number)?;
        match self.waiting.entry(position) {
            Entry::Occupied(_) => Err(OutOfOrder),
            Entry::Vacant(_) if self.done.allows(position, order.concurrent) => Ok(()),
            Entry::Vacant(entry) => {
                entry.insert(EarlyWrite { concurrent: order.concurrent, waker: None });
                Ok(())
            }
        }
    }

    /// Whether a registered write may start. If not, `waker` is woken when it may.
    pub(crate) fn may_start(&mut self, order: WriteOrder, waker: &Waker) -> bool {
        // A number that has completed meanwhile was a duplicate: its completion reports it.
        let Ok(position) = self.done.position(order.number) else { return true };
        if self.done.allows(position, order.concurrent) {
            self.waiting.remove(&position);
            return true;
        }
        let waiting = EarlyWrite { concurrent: order.concurrent, waker: None };
        self.waiting.entry(position).or_insert(waiting).waker = Some(waker.clone());
        false
    }

    /// Removes a waiting write, which may arrive again.
    pub(crate) fn withdrawn(&mut self, order: WriteOrder) {
        if let Ok(position) = self.done.position(order.number) {
            self.waiting.remove(&position);
        }
    }

    /// Records the completion of a write.
    ///
    /// # Errors
    /// When it had completed before.
    pub(crate) fn completed(&mut self, number: u32) -> Result<(), OutOfOrder> {
        self.done.complete(number)
    }

    /// The waker of a write that may start now. Call repeatedly until it returns `None`.
    pub(crate) fn next_to_wake(&mut self) -> Option<Waker> {
        // Whatever blocks one write blocks all later ones, so stop at the first that may not start.
        for (position, waiting) in &mut self.waiting {
            if !self.done.allows(*position, waiting.concurrent) {
                return None;
            }
            // A write without a waker was woken and has not run yet.
            if let Some(waker) = waiting.waker.take() {
                return Some(waker);
            }
        }
        None
    }

    /// Removes and returns all wakers, at the end of the attachment.
    pub(crate) fn wake_all(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.waiting)
            .into_values()
            .filter_map(|waiting| waiting.waker)
            .collect()
    }
}

#[cfg(test)]
#[path = "reorder_tests.rs"]
mod tests;

//! The order of asynchronous writes, without a round trip for it: a pure core for both ends.
//!
//! Each write has a number, one more than the one before it, and names those before it that were
//! under way at the source when it began; one that the way to the target cuts into parts has a
//! number for each. All others before it had completed there, and a host may have relied on that:
//! the target starts a write when they have completed there too, however the network shuffled them.
//! So what is on the target is always what was on the source at some moment, but for writes that
//! nobody had been promised.
//!
//! A write waits for no more than what it may depend on: one that is slow at the target holds up what
//! came after it, and nothing that went beside it. [`BESIDE`] numbers at most are in hand at once; who
//! goes beside more waits for those that are further back.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::task::Waker;

use crate::limits::ORDER_WINDOW;

/// Numbers that a write can name, back from its own, and that the target starts beyond the oldest
/// that has not completed.
pub const BESIDE: u32 = 127;

/// Where a write stands in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Its number, modulo 2^32; the first of an attachment is 1.
    pub number: u32,
    /// Those before it that it need not wait for: bit `i` is number `number - 1 - i`.
    pub beside: u128,
}

/// The numbers of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Of its first part; those of the others follow from it.
    pub(crate) first: Order,
    parts: u32,
}

/// The source's end: hands out numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbering {
    next: u32,
    /// Bit `i`: number `next - 1 - i` is under way.
    under_way: u128,
}

impl Default for Numbering {
    fn default() -> Numbering {
        Numbering { next: 1, under_way: 0 }
    }
}

/// So many ones.
fn ones(count: u32) -> u128 {
    1u128.checked_shl(count).map_or(u128::MAX, |next| next - 1)
}

impl Numbering {
    /// A write begins that goes to the target in so many parts.
    pub(crate) fn begin(&mut self, parts: u32) -> Span {
        let first = Order { number: self.next, beside: self.under_way };
        self.next = self.next.wrapping_add(parts);
        self.under_way = self.under_way.checked_shl(parts).unwrap_or(0) | ones(parts);
        Span { first, parts }
    }

    /// A write completes towards its host: what begins from now on may depend on it.
    pub(crate) fn completed(&mut self, span: Span) {
        let after = span.first.number.wrapping_add(span.parts);
        let newer = self.next.wrapping_sub(after);
        self.under_way &= !ones(span.parts).checked_shl(newer).unwrap_or(0);
    }
}

/// A write that the order forbids: the source is broken, or hostile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a write out of order")]
pub struct Disorder;

/// What has completed at the target.
#[derive(Debug)]
struct Done {
    /// The oldest number that has not.
    floor: u64,
    /// Bit `i`: number `floor + i` has.
    above: u128,
}

impl Done {
    /// The number, of which 32 bits travel.
    fn place(&self, number: u32) -> Result<u64, Disorder> {
        let ahead = number.wrapping_sub(self.floor as u32);
        if ahead < ORDER_WINDOW { Ok(self.floor + u64::from(ahead)) } else { Err(Disorder) }
    }

    /// True when all that this one waits for has completed.
    fn allows(&self, place: u64, beside: u128) -> bool {
        let before = match place.checked_sub(self.floor) {
            None | Some(0) => return true,
            Some(before) if before <= u64::from(BESIDE) => before as u32,
            Some(_) => return false,
        };
        // Bit `i` of it is number `floor + i`, as of what has completed.
        let named = beside.reverse_bits() >> (u128::BITS - before);
        (self.above | named) & ones(before) == ones(before)
    }

    fn complete(&mut self, number: u32) -> Result<(), Disorder> {
        let above = (self.place(number)? - self.floor) as u32;
        let bit = 1u128.checked_shl(above).filter(|bit| self.above & bit == 0).ok_or(Disorder)?;
        self.above |= bit;
        let whole = self.above.trailing_ones();
        self.floor += u64::from(whole);
        self.above = self.above.checked_shr(whole).unwrap_or(0);
        Ok(())
    }
}

/// A write that has arrived too early.
#[derive(Debug)]
struct Early {
    beside: u128,
    waker: Option<Waker>,
}

/// The target's end: when a write may start.
#[derive(Debug)]
pub(crate) struct Gate {
    done: Done,
    early: BTreeMap<u64, Early>,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate { done: Done { floor: 1, above: 0 }, early: BTreeMap::new() }
    }
}

impl Gate {
    /// A write has arrived. It may start when [`Gate::may_start`] says so.
    ///
    /// # Errors
    /// When its number has completed, lies too far ahead, or waits here already.
    pub(crate) fn arrived(&mut self, order: Order) -> Result<(), Disorder> {
        let place = self.done.place(order.number)?;
        match self.early.entry(place) {
            Entry::Occupied(_) => Err(Disorder),
            Entry::Vacant(_) if self.done.allows(place, order.beside) => Ok(()),
            Entry::Vacant(entry) => {
                entry.insert(Early { beside: order.beside, waker: None });
                Ok(())
            }
        }
    }

    /// Whether a write that has arrived may start; if not, `waker` is woken when it may.
    pub(crate) fn may_start(&mut self, order: Order, waker: &Waker) -> bool {
        // One whose number has completed meanwhile was there twice: its own completion says so.
        let Ok(place) = self.done.place(order.number) else { return true };
        if self.done.allows(place, order.beside) {
            self.early.remove(&place);
            return true;
        }
        let early = Early { beside: order.beside, waker: None };
        self.early.entry(place).or_insert(early).waker = Some(waker.clone());
        false
    }

    /// A write that has arrived is not to wait here: it may arrive again.
    pub(crate) fn turned_away(&mut self, order: Order) {
        if let Ok(place) = self.done.place(order.number) {
            self.early.remove(&place);
        }
    }

    /// A write of this number has completed.
    ///
    /// # Errors
    /// When it had already.
    pub(crate) fn completed(&mut self, number: u32) -> Result<(), Disorder> {
        self.done.complete(number)
    }

    /// The waker of one that may start now. Ask again until there is none.
    pub(crate) fn next_to_wake(&mut self) -> Option<Waker> {
        // What one waits for, all later ones wait for: the first that may not start is the end.
        for (place, early) in &mut self.early {
            if !self.done.allows(*place, early.beside) {
                return None;
            }
            // One without was woken, and has not run yet.
            if let Some(waker) = early.waker.take() {
                return Some(waker);
            }
        }
        None
    }

    /// All who wait: the attachment has ended.
    pub(crate) fn wake_all(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.early).into_values().filter_map(|early| early.waker).collect()
    }
}

#[cfg(test)]
#[path = "order_tests.rs"]
mod tests;

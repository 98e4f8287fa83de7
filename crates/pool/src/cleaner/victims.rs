//! Victims: the segments to clean next, by what their copies cost. Pure.
//!
//! Live blocks are counted by weight, so a segment whose units have dead parts may cost more than it
//! counts. The count is the least that it may cost; what it does cost is known after a look at its
//! chunks. Segments are looked at only while the count of one is less than the cost of those that are
//! known, so the choice is that of the cheapest ones.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::pack::Size;
use crate::limits::UNIT_BLOCKS;
use crate::ondisk::unit::BLOCK_WEIGHT;

/// Bounds of one pass, in blocks with the headers of their chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    /// Most that a segment may cost to gain anything.
    pub(crate) cost_max: u32,
    /// Blocks to copy in all, except that one segment is always cleaned.
    pub(crate) copies: u64,
    /// Blocks that may be written without a lack of space for the checkpoint after it.
    pub(crate) room: u64,
}

/// What is known of the cost of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cost {
    Exactly(u32),
    AtLeast(u32),
}

impl Cost {
    fn least(self) -> u32 {
        match self {
            Cost::Exactly(blocks) | Cost::AtLeast(blocks) => blocks,
        }
    }
}

/// A choice in progress.
pub(crate) struct Choice {
    /// Cheapest first.
    rest: BinaryHeap<Reverse<(u32, Cost, u32)>>,
    budget: Budget,
    copies: u64,
    chosen: Vec<u32>,
}

impl Choice {
    /// A choice among segments.
    pub(crate) fn new(closed: impl IntoIterator<Item = (u32, Cost)>, budget: Budget) -> Choice {
        let rest = closed
            .into_iter()
            .filter(|(_, cost)| cost.least() <= budget.cost_max)
            .map(|(segment, cost)| Reverse((cost.least(), cost, segment)))
            .collect();
        Choice { rest, budget, copies: 0, chosen: Vec::new() }
    }

    fn fits(&self, cost: u32) -> bool {
        let copies = self.copies + u64::from(cost);
        copies <= self.budget.room && (self.chosen.is_empty() || copies <= self.budget.copies)
    }

    /// The next segment to look at; none when the choice is made.
    pub(crate) fn unknown(&mut self) -> Option<u32> {
        while let Some(Reverse((least, cost, segment))) = self.rest.pop() {
            if !self.fits(least) {
                self.rest.clear();
                break;
            }
            match cost {
                Cost::AtLeast(_) => return Some(segment),
                Cost::Exactly(cost) => {
                    self.copies += u64::from(cost);
                    self.chosen.push(segment);
                }
            }
        }
        None
    }

    /// The cost of a segment that was looked at.
    pub(crate) fn found(&mut self, segment: u32, cost: u32) {
        if cost <= self.budget.cost_max {
            self.rest.push(Reverse((cost, Cost::Exactly(cost), segment)));
        }
    }

    /// As [`Choice::chosen`] while there are segments to look at. If they come before all that are known,
    /// this is the cheapest one of the latter: looks without an end must not keep what it has.
    pub(crate) fn chosen_so_far(mut self) -> (Vec<u32>, u64) {
        let known = self.rest.iter().filter_map(|Reverse((_, cost, segment))| match cost {
            Cost::Exactly(cost) if self.fits(*cost) => Some((*cost, *segment)),
            Cost::Exactly(_) | Cost::AtLeast(_) => None,
        });
        if let (true, Some((cost, segment))) = (self.chosen.is_empty(), known.min()) {
            (self.chosen, self.copies) = (vec![segment], cost.into());
        }
        self.chosen()
    }

    /// The segments, the cheapest first, and their cost in all.
    pub(crate) fn chosen(self) -> (Vec<u32>, u64) {
        (self.chosen, self.copies)
    }
}

/// Costs that were found, by segment, and the weight of the segment then.
#[derive(Debug, Default)]
pub(crate) struct Costs(BTreeMap<u32, (u32, u32)>);

impl Costs {
    pub(crate) fn insert(&mut self, segment: u32, weight: u32, cost: u32) {
        self.0.insert(segment, (weight, cost));
    }

    /// Forgets segments that are no longer closed.
    pub(crate) fn retain(&mut self, is_closed: impl Fn(u32) -> bool) {
        self.0.retain(|segment, _| is_closed(*segment));
    }

    /// What is known of a segment of this weight. A part that died since weighs at least an eighth
    /// of the block that it may have cost.
    pub(crate) fn of(&self, segment: u32, weight: u32, least: u32) -> Cost {
        let Some((then, cost)) = self.0.get(&segment).copied() else {
            return Cost::AtLeast(least);
        };
        match then.checked_sub(weight) {
            Some(0) => Cost::Exactly(cost),
            Some(died) => {
                let died = (u64::from(died) * UNIT_BLOCKS as u64).div_ceil(BLOCK_WEIGHT.into());
                Cost::AtLeast(least.max(cost.saturating_sub(2 * died as u32)))
            }
            None => Cost::AtLeast(least),
        }
    }
}

/// Cost of a segment with this weight that has no units.
pub(crate) fn cost_of_blocks(weight: u32, chunk_blocks: usize) -> u32 {
    let blocks = weight.div_ceil(BLOCK_WEIGHT) as usize;
    Size::of_blocks(blocks).blocks(chunk_blocks)
}

/// Most that a segment with this weight costs if no block of its units is dead.
pub(crate) fn cost_of_units(weight: u32, chunk_blocks: usize) -> u32 {
    let blocks = weight.div_ceil(BLOCK_WEIGHT) as usize;
    Size::of_units(blocks).blocks(chunk_blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(closed: &[(u32, u32)], real: impl Fn(u32) -> u32, budget: Budget) -> Vec<u32> {
        let cost = |(segment, weight): &(u32, u32)| match real(*segment) {
            0 => (*segment, Cost::Exactly(*weight)),
            _ => (*segment, Cost::AtLeast(*weight)),
        };
        let mut choice = Choice::new(closed.iter().map(cost), budget);
        while let Some(segment) = choice.unknown() {
            choice.found(segment, real(segment));
        }
        choice.chosen().0
    }

    #[test]
    fn cheapest_segments_are_cleaned_within_budget() {
        let closed = [(1, 9), (2, 15), (3, 4), (4, 5), (5, 10)];
        let budget = Budget { cost_max: 12, copies: 0, room: 100 };
        let pick = |copies, room| choose(&closed, |_| 0, Budget { copies, room, ..budget });
        assert_eq!(pick(9, 100), [3, 4]);
        assert_eq!(pick(20, 100), [3, 4, 1]);
        assert_eq!(pick(1, 100), [3], "progress");
        assert_eq!(pick(100, 100), [3, 4, 1, 5], "segment 2 gains nothing");
        assert_eq!(pick(100, 10), [3, 4], "the checkpoint needs the rest");
        assert!(pick(100, 3).is_empty());
    }

    #[test]
    fn segments_that_count_less_than_they_cost_come_later() {
        let closed = [(1, 2), (2, 3), (3, 8), (4, 9)];
        let real = |segment| [0, 13, 10, 0, 0][segment as usize];
        let budget = Budget { cost_max: 12, copies: 20, room: 100 };
        assert_eq!(choose(&closed, real, budget), [3, 4]);
        assert_eq!(choose(&closed, real, Budget { copies: 30, ..budget }), [3, 4, 2]);
        let all = |segment| if segment < 3 { 13 } else { 0 };
        assert_eq!(choose(&closed[..2], all, budget), [], "nothing gains");
    }

    #[test]
    fn known_segment_is_cleaned_while_others_are_unknown() {
        let closed = [
            (1, Cost::AtLeast(2)),
            (2, Cost::AtLeast(3)),
            (3, Cost::Exactly(9)),
            (4, Cost::Exactly(8)),
            (5, Cost::Exactly(13)),
        ];
        let budget = Budget { cost_max: 12, copies: 20, room: 100 };
        let after_one_look = |closed: &[(u32, Cost)], budget| {
            let mut choice = Choice::new(closed.iter().copied(), budget);
            assert_eq!(choice.unknown(), Some(1));
            choice.found(1, 13);
            assert_eq!(choice.unknown(), Some(2));
            choice.chosen_so_far()
        };
        assert_eq!(after_one_look(&closed, budget), (vec![4], 8));
        assert_eq!(after_one_look(&closed, Budget { room: 7, ..budget }), (vec![], 0));
        assert_eq!(after_one_look(&closed[..2], budget), (vec![], 0), "all are unknown");
        let mut choice = Choice::new([(6, Cost::Exactly(1)), (1, Cost::AtLeast(2))], budget);
        assert_eq!(choice.unknown(), Some(1));
        assert_eq!(choice.chosen_so_far(), (vec![6], 1));
    }

    #[test]
    fn cost_is_known_until_the_segment_changes() {
        let mut costs = Costs::default();
        let weight = |blocks: u32| blocks * BLOCK_WEIGHT;
        assert_eq!(costs.of(3, weight(5), 5), Cost::AtLeast(5));
        costs.insert(3, weight(5), 40);
        assert_eq!(costs.of(3, weight(5), 5), Cost::Exactly(40));
        assert_eq!(costs.of(3, weight(4), 4), Cost::AtLeast(24));
        assert_eq!(costs.of(3, weight(1), 1), Cost::AtLeast(1));
        costs.retain(|segment| segment != 3);
        assert_eq!(costs.of(3, weight(5), 5), Cost::AtLeast(5));
    }
}

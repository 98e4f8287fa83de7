//! Victims: the segments to clean next. Pure.

/// Bounds of one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PassBudget {
    /// Most live blocks of a segment that is worth cleaning.
    pub(crate) live_max: u32,
    /// Blocks to copy in all. One segment is cleaned even if it has more.
    pub(crate) copies: u64,
}

/// A closed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) segment: u32,
    /// Live blocks: the least that the copies take.
    pub(crate) live: u32,
    /// Live blocks, and dead blocks of units with live ones: the most that the copies take.
    pub(crate) cost: u32,
    /// Segments with a lower rank are cleaned first.
    pub(crate) rank: u32,
}

/// Chooses among closed segments by rank. The emptiest ones should come first: they free most space
/// per copied block.
pub(crate) fn choose(closed: impl Iterator<Item = Candidate>, budget: &PassBudget) -> Vec<u32> {
    let mut gains: Vec<Candidate> = closed.filter(|found| found.live <= budget.live_max).collect();
    gains.sort_unstable_by_key(|found| (found.rank, found.segment));
    let mut copies = 0;
    let fits = |(index, found): &(usize, Candidate)| {
        copies += u64::from(found.cost);
        *index == 0 || copies <= budget.copies
    };
    gains.into_iter().enumerate().take_while(fits).map(|(_, found)| found.segment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_blocks((segment, live): (u32, u32)) -> Candidate {
        Candidate { segment, live, cost: live, rank: live }
    }

    #[test]
    fn emptiest_segments_are_cleaned_within_budget() {
        let closed = || [(1, 9), (2, 15), (3, 4), (4, 5), (5, 10)].into_iter().map(of_blocks);
        let pick = |copies| choose(closed(), &PassBudget { live_max: 12, copies });
        assert_eq!(pick(9), [3, 4]);
        assert_eq!(pick(20), [3, 4, 1]);
        assert_eq!(pick(1), [3], "progress");
        assert_eq!(pick(100), [3, 4, 1, 5], "segment 2 gains nothing");
        let full = [(2, 15)].into_iter().map(of_blocks);
        assert!(choose(full, &PassBudget { live_max: 12, copies: 9 }).is_empty());
    }

    #[test]
    fn dead_blocks_of_units_count_for_the_budget() {
        let unsure = Candidate { segment: 1, live: 3, cost: 12, rank: 7 };
        let closed = || [unsure, of_blocks((2, 8)), of_blocks((3, 4))].into_iter();
        let pick = |copies| choose(closed(), &PassBudget { live_max: 10, copies });
        assert_eq!(pick(15), [3]);
        assert_eq!(pick(16), [3, 1]);
        assert_eq!(pick(24), [3, 1, 2]);
    }
}

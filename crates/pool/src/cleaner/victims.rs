//! Victims: the segments to clean next. Pure.

/// Bounds of one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PassBudget {
    /// Most live blocks of a segment that is worth cleaning.
    pub(crate) live_max: u32,
    /// Blocks to copy in all. One segment is cleaned even if it has more.
    pub(crate) copies: u64,
}

/// Chooses among closed segments, given with their live blocks. The emptiest come first: they free
/// most space per copied block.
pub(crate) fn choose(closed: impl Iterator<Item = (u32, u32)>, budget: &PassBudget) -> Vec<u32> {
    let mut gains: Vec<(u32, u32)> = closed.filter(|(_, live)| *live <= budget.live_max).collect();
    gains.sort_unstable_by_key(|(segment, live)| (*live, *segment));
    let mut copies = 0;
    let fits = |(index, (_, live)): &(usize, (u32, u32))| {
        copies += u64::from(*live);
        *index == 0 || copies <= budget.copies
    };
    gains.into_iter().enumerate().take_while(fits).map(|(_, (segment, _))| segment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emptiest_segments_are_cleaned_within_budget() {
        let closed = || [(1, 9), (2, 15), (3, 4), (4, 5), (5, 10)].into_iter();
        let pick = |copies| choose(closed(), &PassBudget { live_max: 12, copies });
        assert_eq!(pick(9), [3, 4]);
        assert_eq!(pick(20), [3, 4, 1]);
        assert_eq!(pick(1), [3], "progress");
        assert_eq!(pick(100), [3, 4, 1, 5], "segment 2 gains nothing");
        assert!(choose([(2, 15)].into_iter(), &PassBudget { live_max: 12, copies: 9 }).is_empty());
    }
}

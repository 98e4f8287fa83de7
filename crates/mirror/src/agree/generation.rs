//! Generation history: the origin of a replica's data, and its transitions.
//!
//! - created with data: new current generation, no bases, no history;
//! - first write, or flush that the peer needed, after the peer was lost: new current generation;
//!   the old one becomes a base for the peer;
//! - end of resync, on the source: the bases move to the history;
//! - end of resync, on the target: the source's generation becomes the current one, no bases; the
//!   old current generation and bases move to the history.
//!
//! *Base generations* are the generations that the peer may hold and from which the bitmap covers
//! every difference to the local data. The first is the generation that the peer had when it was
//! lost. Later ones come from the end of a resync: the source sends its current generation to the
//! target, and if the answer is lost, the target may hold either. The source's bits were all clear
//! at that moment, so they cover both.
//!
//! A source starts a new generation at the first write after *each* disconnect, even if the peer
//! was out of date already. The target may have adopted the announced generation just before the
//! disconnect, and would look equal to a source that continued under it.

use crate::id::Generation;
use crate::limits::{BASES_LEN, HISTORY_LEN};

/// A bounded list of distinct generations; [`Generation::NONE`] fills the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GenerationList<const N: usize>(pub [Generation; N]);

impl<const N: usize> Default for GenerationList<N> {
    fn default() -> GenerationList<N> {
        GenerationList([Generation::NONE; N])
    }
}

impl<const N: usize> GenerationList<N> {
    /// Generations, in order.
    pub fn iter(&self) -> impl Iterator<Item = Generation> + '_ {
        self.0.iter().copied().filter(|generation| !generation.is_none())
    }

    /// True when it contains this generation; never for none.
    pub fn contains(&self, generation: Generation) -> bool {
        self.iter().any(|held| held == generation)
    }

    /// True when it contains no generation.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Moves or adds a generation to the front. The last one drops out when the list is full.
    pub(crate) fn remember(&mut self, generation: Generation) {
        if generation.is_none() {
            return;
        }
        let last = self.0.iter().position(|held| *held == generation).unwrap_or(N - 1);
        self.0[..=last].rotate_right(1);
        self.0[0] = generation;
    }

    /// Merges another list of the same past, except generations that are `known` elsewhere. Returns
    /// true when that changed something. If the lists do not both fit, the newer half of each has
    /// priority, so that two full lists cannot displace each other's recent entries.
    pub(crate) fn merge(
        &mut self,
        other: &GenerationList<N>,
        known: impl Fn(Generation) -> bool,
    ) -> bool {
        let lacks = |generation: &Generation| !self.contains(*generation) && !known(*generation);
        let full = self.0.iter().all(|held| !held.is_none());
        // Old entries of the other list are not worth recent ones here.
        let worth = if full { N / 2 } else { N };
        if !other.iter().take(worth).any(|generation| lacks(&generation)) {
            return false;
        }
        let theirs =
            other.0.map(|generation| if known(generation) { Generation::NONE } else { generation });
        let (mut all, mut len) = (GenerationList::default(), 0);
        for generation in self.0.into_iter().zip(theirs).flat_map(|(own, theirs)| [own, theirs]) {
            if len < N && !generation.is_none() && !all.contains(generation) {
                all.0[len] = generation;
                len += 1;
            }
        }
        *self = all;
        true
    }
}

/// Generation history of a replica's data, as in the table of this module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GenerationHistory {
    /// Generation of the local data.
    pub current: Generation,
    /// Generations that the peer may hold and from which the bitmap covers all differences.
    pub bases: GenerationList<BASES_LEN>,
    /// Earlier generations of this data, newest first.
    pub history: GenerationList<HISTORY_LEN>,
}

impl GenerationHistory {
    /// Starts a new generation: the source writes without the peer for the first time since it was
    /// lost.
    ///
    /// # Panics
    /// When `new` is none or was used here before.
    pub fn bump(&mut self, new: Generation) {
        assert!(!new.is_none() && !self.knows(new), "a new generation was never used before");
        let old = std::mem::replace(&mut self.current, new);
        match self.bases.0.iter().position(|held| held.is_none()) {
            Some(free) => self.bases.0[free] = old,
            None => {
                // The first base is the most likely one; of the others the newest are.
                self.history.remember(self.bases.0[1]);
                self.bases.0[1..].rotate_left(1);
                self.bases.0[BASES_LEN - 1] = old;
            }
        }
    }

    /// Records that the peer is about to adopt `name`. The bitmap covers every difference.
    pub fn expect_name(&mut self, name: Generation) {
        // The first base is the most likely one: later ones give way to it.
        match self.bases.0.iter().position(|held| held.is_none()) {
            Some(free) => self.bases.0[..=free].rotate_right(1),
            // Its slot is needed, and no peer will have this generation any more.
            None => self.history.remember(self.bases.0[0]),
        }
        self.bases.0[0] = name;
    }

    /// A resync has completed, and the target has durably adopted the current generation.
    pub fn settle(&mut self) {
        for base in std::mem::take(&mut self.bases).iter() {
            if base != self.current {
                self.history.remember(base);
            }
        }
    }

    /// A resync to this replica has completed: its data is the source's.
    pub fn adopt(&mut self, source: Generation) {
        let old = std::mem::replace(&mut self.current, source);
        self.settle();
        if old != source {
            self.history.remember(old);
        }
    }

    /// True when the generation is or was one of this data.
    pub fn knows(&self, generation: Generation) -> bool {
        !generation.is_none()
            && (self.current == generation
                || self.bases.contains(generation)
                || self.history.contains(generation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list<const N: usize>(items: &[u64]) -> GenerationList<N> {
        let mut list = GenerationList::default();
        for (slot, item) in list.0.iter_mut().zip(items) {
            *slot = Generation(*item);
        }
        list
    }

    #[test]
    fn transitions_match_the_table() {
        let mut source =
            GenerationHistory { current: Generation(1), ..GenerationHistory::default() };
        let mut target = source;
        source.bump(Generation(2));
        assert_eq!((source.current, source.bases), (Generation(2), list(&[1])));
        source.bump(Generation(3));
        assert_eq!(source.bases, list(&[1, 2]));
        target.adopt(source.current);
        assert_eq!((target.current, target.history), (Generation(3), list(&[1])));
        source.settle();
        assert!(source.bases.is_empty());
        assert_eq!(source.history, list(&[2, 1]));
    }

    #[test]
    fn announced_generation_survives_later_bumps() {
        let mut source =
            GenerationHistory { current: Generation(2), ..GenerationHistory::default() };
        source.bases = list(&[1]);
        source.expect_name(Generation(100));
        (3..9).for_each(|new| source.bump(Generation(new)));
        assert_eq!(source.bases.0[0], Generation(100));
        assert!(source.history.contains(Generation(1)));
    }

    #[test]
    fn remembered_generation_moves_to_front() {
        let mut past: GenerationList<4> = list(&[4, 3, 2, 1]);
        past.remember(Generation(1));
        past.remember(Generation(5));
        assert_eq!(past, list(&[5, 1, 4, 3]));
        past.remember(Generation::NONE);
        assert_eq!(past, list(&[5, 1, 4, 3]));
    }

    #[test]
    fn merged_lists_keep_newest_of_both() {
        let none = |_: Generation| false;
        let mut past: GenerationList<4> = list(&[2, 1]);
        assert!(past.merge(&list(&[9, 2]), none), "there is room");
        assert_eq!(past, list(&[2, 9, 1]));
        assert!(!past.merge(&list(&[9, 2]), none), "all generations are known");
        assert!(
            !past.merge(&list(&[7]), |other| other == Generation(7)),
            "the generation is known elsewhere"
        );
        past = list(&[4, 3, 2, 1]);
        assert!(past.merge(&list(&[8, 7, 6, 5]), none));
        assert_eq!(past, list(&[4, 8, 3, 7]));
        assert!(
            !past.merge(&list(&[8, 7, 6, 5]), none),
            "old entries of the other list are dropped"
        );
        // The same history with one more generation here, which is kept.
        past = list(&[5, 4, 3, 2]);
        assert!(!past.merge(&list(&[4, 3, 2, 1]), none));
        assert_eq!(past, list(&[5, 4, 3, 2]));
    }

    #[test]
    fn first_and_newest_bases_are_kept() {
        let mut source =
            GenerationHistory { current: Generation(1), ..GenerationHistory::default() };
        (2..9).for_each(|new| source.bump(Generation(new)));
        assert_eq!(source.bases, list(&[1, 5, 6, 7]));
        assert_eq!(source.history, list(&[4, 3, 2]));
        assert!((1..9).all(|old| source.knows(Generation(old))));
        assert!(!source.knows(Generation::NONE));
    }
}

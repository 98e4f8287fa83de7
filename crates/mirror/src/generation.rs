//! The lineage of a replica's data, and the few ways in which it moves on.
//!
//! | event | current | bases (for the peer) | history |
//! | --- | --- | --- | --- |
//! | created with data | new | none | none |
//! | first write, or flush that the peer must have had, after it was lost | new | the old current joins | – |
//! | end of resync, on the source | – | none | the bases join |
//! | end of resync, on the target | the source's | none | the old current and bases join |
//!
//! *Bases* are the generations that the peer may hold and of which the bitmap covers every
//! difference to the data here. The first is what the peer had when it was lost. The later ones
//! are there because of the hand-over at the end of a resync: the source tells the target its
//! current generation, and if the answer is lost nobody knows which of the two the target holds.
//! The source's bits were all clear when it announced, so they cover both.
//!
//! A source mints at the first write after *each* loss, though the peer be out of date already:
//! the target may have taken the announced generation over just before it was lost, and would
//! then look equal to a source that wrote on under the same generation.

use crate::id::Generation;
use crate::limits::{BASES_LEN, HISTORY_LEN};

/// A bounded list of generations without repetition; [`Generation::NONE`] fills the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct List<const N: usize>(pub [Generation; N]);

impl<const N: usize> Default for List<N> {
    fn default() -> List<N> {
        List([Generation::NONE; N])
    }
}

impl<const N: usize> List<N> {
    /// What is in it, in its order.
    pub fn iter(&self) -> impl Iterator<Item = Generation> + '_ {
        self.0.iter().copied().filter(|generation| !generation.is_none())
    }

    /// True when it holds this one; never for none.
    pub fn contains(&self, generation: Generation) -> bool {
        self.iter().any(|held| held == generation)
    }

    /// True when it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Puts one at the front, also one that is known; the last falls out when there are too many.
    pub(crate) fn remember(&mut self, generation: Generation) {
        if generation.is_none() {
            return;
        }
        let last = self.0.iter().position(|held| *held == generation).unwrap_or(N - 1);
        self.0[..=last].rotate_right(1);
        self.0[0] = generation;
    }

    /// Takes over what another list of the same past names, but for what is `known` elsewhere. True
    /// when that has changed something. Where there is no room for all, the newer half of each is
    /// kept before the rest: two that are full must not push out of each other what is new there.
    pub(crate) fn unite(&mut self, other: &List<N>, known: impl Fn(Generation) -> bool) -> bool {
        let lacks = |generation: &Generation| !self.contains(*generation) && !known(*generation);
        let full = self.0.iter().all(|held| !held.is_none());
        // What is old there is not worth what is new here.
        let worth = if full { N / 2 } else { N };
        if !other.iter().take(worth).any(|generation| lacks(&generation)) {
            return false;
        }
        let theirs =
            other.0.map(|generation| if known(generation) { Generation::NONE } else { generation });
        let (mut all, mut len) = (List::default(), 0);
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

/// Where a replica's data comes from. See the module's table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lineage {
    /// The generation of the data here.
    pub current: Generation,
    /// What the peer may hold such that the bitmap covers the differences.
    pub bases: List<BASES_LEN>,
    /// Earlier generations of this data, the newest first.
    pub history: List<HISTORY_LEN>,
}

impl Lineage {
    /// The source writes without the peer for the first time since it was lost.
    ///
    /// # Panics
    /// When `new` is none or was used here before.
    pub fn mint(&mut self, new: Generation) {
        assert!(!new.is_none() && !self.knows(new), "a generation is new when it is minted");
        let old = std::mem::replace(&mut self.current, new);
        match self.bases.0.iter().position(|held| held.is_none()) {
            Some(free) => self.bases.0[free] = old,
            None => {
                // The first is what the peer most likely has; of the others the newest are.
                self.history.remember(self.bases.0[1]);
                self.bases.0[1..].rotate_left(1);
                self.bases.0[BASES_LEN - 1] = old;
            }
        }
    }

    /// The peer is about to be called `name`, and the bitmap covers everything: whatever it holds.
    pub fn expect(&mut self, name: Generation) {
        // The first is what the peer most likely has: later ones give way before it.
        match self.bases.0.iter().position(|held| held.is_none()) {
            Some(free) => self.bases.0[..=free].rotate_right(1),
            // Its place is needed, and a peer of that name would be called so no more.
            None => self.history.remember(self.bases.0[0]),
        }
        self.bases.0[0] = name;
    }

    /// A resync has ended and the target has taken our generation over, durably.
    pub fn settle(&mut self) {
        for base in std::mem::take(&mut self.bases).iter() {
            if base != self.current {
                self.history.remember(base);
            }
        }
    }

    /// A resync to this replica has ended: its data is the source's.
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

    fn list<const N: usize>(items: &[u64]) -> List<N> {
        let mut list = List::default();
        for (slot, item) in list.0.iter_mut().zip(items) {
            *slot = Generation(*item);
        }
        list
    }

    #[test]
    fn a_lineage_moves_as_the_table_says() {
        let mut source = Lineage { current: Generation(1), ..Lineage::default() };
        let mut target = source;
        source.mint(Generation(2));
        assert_eq!((source.current, source.bases), (Generation(2), list(&[1])));
        source.mint(Generation(3));
        assert_eq!(source.bases, list(&[1, 2]));
        target.adopt(source.current);
        assert_eq!((target.current, target.history), (Generation(3), list(&[1])));
        source.settle();
        assert!(source.bases.is_empty());
        assert_eq!(source.history, list(&[2, 1]));
    }

    #[test]
    fn the_name_that_a_peer_was_given_stays_though_another_comes_and_goes() {
        let mut source = Lineage { current: Generation(2), ..Lineage::default() };
        source.bases = list(&[1]);
        source.expect(Generation(100));
        (3..9).for_each(|new| source.mint(Generation(new)));
        assert_eq!(source.bases.0[0], Generation(100));
        assert!(source.history.contains(Generation(1)));
    }

    #[test]
    fn what_is_remembered_again_is_the_newest() {
        let mut past: List<4> = list(&[4, 3, 2, 1]);
        past.remember(Generation(1));
        past.remember(Generation(5));
        assert_eq!(past, list(&[5, 1, 4, 3]));
        past.remember(Generation::NONE);
        assert_eq!(past, list(&[5, 1, 4, 3]));
    }

    #[test]
    fn lists_that_unite_keep_what_is_new_in_both() {
        let none = |_: Generation| false;
        let mut past: List<4> = list(&[2, 1]);
        assert!(past.unite(&list(&[9, 2]), none), "there is room");
        assert_eq!(past, list(&[2, 9, 1]));
        assert!(!past.unite(&list(&[9, 2]), none), "all is known");
        assert!(!past.unite(&list(&[7]), |other| other == Generation(7)), "known elsewhere");
        past = list(&[4, 3, 2, 1]);
        assert!(past.unite(&list(&[8, 7, 6, 5]), none));
        assert_eq!(past, list(&[4, 8, 3, 7]));
        assert!(!past.unite(&list(&[8, 7, 6, 5]), none), "what is old there is let go");
        // The same past, and here one more: it is there still.
        past = list(&[5, 4, 3, 2]);
        assert!(!past.unite(&list(&[4, 3, 2, 1]), none));
        assert_eq!(past, list(&[5, 4, 3, 2]));
    }

    #[test]
    fn many_losses_keep_the_first_base_and_the_newest() {
        let mut source = Lineage { current: Generation(1), ..Lineage::default() };
        (2..9).for_each(|new| source.mint(Generation(new)));
        assert_eq!(source.bases, list(&[1, 5, 6, 7]));
        assert_eq!(source.history, list(&[4, 3, 2]));
        assert!((1..9).all(|old| source.knows(Generation(old))));
        assert!(!source.knows(Generation::NONE));
    }
}

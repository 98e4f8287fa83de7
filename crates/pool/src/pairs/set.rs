//! Pair set: the pairs of a pool, by position in its device table. Pairs are added and never
//! removed, by one task at a time.

use std::ops::Index;
use std::sync::OnceLock;

use super::pair::Pair;
use crate::limits::DEVICES_MAX;
use crate::ondisk::legs::LEGS;

#[derive(Debug, Default)]
pub(super) struct PairSet([OnceLock<Pair>; DEVICES_MAX / LEGS]);

impl PairSet {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Pair> {
        self.0.iter().map_while(OnceLock::get)
    }

    pub(super) fn len(&self) -> usize {
        self.iter().count()
    }

    /// Adds a pair after the others.
    ///
    /// # Panics
    /// If the device table is full.
    pub(super) fn push(&self, pair: Pair) {
        let set = self.0[self.len()].set(pair);
        set.expect("one task at a time adds pairs");
    }
}

impl FromIterator<Pair> for PairSet {
    fn from_iter<I: IntoIterator<Item = Pair>>(pairs: I) -> PairSet {
        let set = PairSet::default();
        pairs.into_iter().for_each(|pair| set.push(pair));
        set
    }
}

impl Index<usize> for PairSet {
    type Output = Pair;

    fn index(&self, index: usize) -> &Pair {
        self.0[index].get().expect("the device table has it")
    }
}

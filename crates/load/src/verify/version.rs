//! What is in a block, in 32 bits.

use super::stamp::Found;

/// What a write puts there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Stamps.
    Stamps,
    /// Zeroes. A discard is a write of zeroes whose outcome is unknown.
    Zeroes,
}

/// What the device holds before this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initial {
    /// Anything.
    Unknown,
    /// Zeroes.
    Zeroes,
}

/// A generation, and whether it is zeroes, in 32 bits; ordered by generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u32);

impl Version {
    /// Last generation of a block.
    pub(super) const LAST: u32 = u32::MAX >> 1;

    pub(super) fn new(generation: u32, content: Content) -> Version {
        Version(generation << 1 | u32::from(content == Content::Zeroes))
    }

    pub(super) fn initial(initial: Initial) -> Version {
        Version(u32::from(initial == Initial::Zeroes))
    }

    pub(super) fn is_zeroes(self) -> bool {
        self.0 & 1 == 1
    }

    pub(super) fn generation(self) -> u32 {
        self.0 >> 1
    }

    pub(super) fn matches(self, found: &Found) -> bool {
        match (self.0, found) {
            // What was there before may be anything, but nothing that this run wrote.
            (0, found) => !found.is_ours(),
            (_, Found::Zeroes) => self.is_zeroes(),
            (_, Found::Stamp { generation, .. }) => {
                !self.is_zeroes() && self.generation() == *generation
            }
            _ => false,
        }
    }
}

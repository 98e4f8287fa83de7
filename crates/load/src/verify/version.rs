//! Block versions: the content of a block, in 32 bits.

use super::stamp::StampReading;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Stamps,
    /// Zeroes. A discard is treated as a write of zeroes with unknown outcome.
    Zeroes,
}

/// Content of the device before this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initial {
    Unknown,
    Zeroes,
}

/// A generation, and whether it is zeroes, in 32 bits; ordered by generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BlockVersion(u32);

impl BlockVersion {
    /// Last possible generation of a block.
    pub(super) const LAST: u32 = u32::MAX >> 1;

    pub(super) fn new(generation: u32, content: Content) -> BlockVersion {
        BlockVersion(generation << 1 | u32::from(content == Content::Zeroes))
    }

    pub(super) fn initial(initial: Initial) -> BlockVersion {
        BlockVersion(u32::from(initial == Initial::Zeroes))
    }

    pub(super) fn is_zeroes(self) -> bool {
        self.0 & 1 == 1
    }

    pub(super) fn generation(self) -> u32 {
        self.0 >> 1
    }

    pub(super) fn matches(self, found: &StampReading) -> bool {
        match (self.0, found) {
            // The earlier content may be anything except a stamp of this run.
            (0, found) => !found.is_ours(),
            (_, StampReading::Zeroes) => self.is_zeroes(),
            (_, StampReading::Stamp { generation, .. }) => {
                !self.is_zeroes() && self.generation() == *generation
            }
            _ => false,
        }
    }
}

//! What was found that must not be, in words.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::stamp::Found;

/// Kinds of broken promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ViolationKind {
    /// A durable write is gone, or a completed one gave way to what was there before this run.
    Lost,
    /// An older or withdrawn write of this run.
    Stale,
    /// Parts of different writes in one block.
    Torn,
    /// A block that belongs elsewhere.
    Misplaced,
    /// Bytes that nobody wrote here.
    Corrupt,
}

impl fmt::Display for ViolationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ViolationKind::Lost => "lost",
            ViolationKind::Stale => "stale",
            ViolationKind::Torn => "torn",
            ViolationKind::Misplaced => "misplaced",
            ViolationKind::Corrupt => "corrupt",
        })
    }
}

/// What a read could have brought rightly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Oldest generation; 0 is what was there before this run.
    pub oldest: u32,
    /// Newest generation.
    pub newest: u32,
    /// Generation known to be durable.
    pub durable: u32,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Expected { oldest, newest, durable } = self;
        if oldest == newest {
            write!(f, "generation {newest}")?;
        } else {
            write!(f, "a generation of {oldest} to {newest}")?;
        }
        write!(f, " (durable: {durable})")
    }
}

/// A block that holds what it must not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What is wrong.
    pub kind: ViolationKind,
    /// Number of the block within the verified range.
    pub block: u64,
    /// Its place on the device, in bytes.
    pub offset_bytes: u64,
    /// What is there.
    pub found: Found,
    /// What should be.
    pub expected: Expected,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { kind, block, offset_bytes, found, expected } = self;
        write!(
            f,
            "{kind}: block {block} at offset {offset_bytes} holds {found}; expected {expected}"
        )
    }
}

impl std::error::Error for Violation {}

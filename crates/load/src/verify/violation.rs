//! Violations: wrong content of a block, with a description.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::stamp::StampReading;

/// Kinds of broken promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ViolationKind {
    /// A durable write is missing, or a completed one was replaced by content from before this run.
    Lost,
    /// An older or failed write of this run.
    Stale,
    /// Parts of different writes in one block.
    Torn,
    /// A block stamped for another offset.
    Misplaced,
    /// Bytes that were never written here.
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

/// Contents that a read could have returned correctly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Oldest generation; 0 is the content before this run.
    pub oldest: u32,
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

/// A block with wrong content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub kind: ViolationKind,
    /// Number of the block within the verified range.
    pub block: u64,
    /// Its offset on the device, in bytes.
    pub offset_bytes: u64,
    pub found: StampReading,
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

//! Verification with self-describing data: every written block names its offset, generation and
//! writer, and a [`Verifier`] knows which generations a read may return.
//!
//! Reads are classified as follows (see [`ViolationKind`]): a *lost* write (flushed, but missing),
//! a *stale* one (older than the last completed generation), a *torn* block (sectors of different
//! writes), a *misplaced* one (stamped for another offset), and *corrupt* bytes that were never
//! written. [`flagstone_blockdev::device`] defines the permitted outcomes: overlapping calls
//! take effect in either order, a failed write took effect before its failure was reported or
//! never, and a power loss may lose any write without a later flush. A correct device never causes
//! a violation.
//!
//! [`Verifier`] does no I/O. [`journal`] keeps its state in a file, so that a later run can check
//! the data of a killed one.

pub mod journal;
pub(crate) mod load;
mod stamp;
mod verifier;
mod version;
mod violation;

pub use stamp::StampReading;
pub use verifier::{FlushTicket, ReadTicket, Verifier, VerifierConfig, WriteOutcome, WriteTicket};
pub use version::{Content, Initial};
pub use violation::{Expected, Violation, ViolationKind};

/// The little-endian 32 bits at `at`.
fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// The little-endian 64 bits at `at`.
fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

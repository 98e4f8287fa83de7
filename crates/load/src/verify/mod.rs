//! Data that proves itself: every block written names its place, its generation and its writer, and
//! a [`Verifier`] knows which generations a read may bring back.
//!
//! What is told apart on a read (see [`ViolationKind`]): a *lost* write (flushed, and gone), a
//! *stale* one (an older generation than the last completed one), a *torn* block (sectors of
//! different writes), a *misplaced* one (stamped for another offset), and bytes that nobody wrote.
//! What is allowed is exactly what [`flagstone_blockdev::device`] leaves open: overlapping calls take
//! effect in either order, a failed write took effect before its failure was reported or never, and
//! a power loss may take any write that no later flush covered. No correct device is accused.
//!
//! [`Verifier`] does no I/O. [`journal`] keeps what it knows in a file, so that a run that was
//! killed can be checked by a later one.

pub mod journal;
pub(crate) mod load;
mod stamp;
mod verifier;
mod version;
mod violation;

pub use stamp::Found;
pub use verifier::{FlushTicket, ReadTicket, Verifier, VerifierConfig, WriteOutcome, WriteTicket};
pub use version::{Content, Initial};
pub use violation::{Expected, Violation, ViolationKind};

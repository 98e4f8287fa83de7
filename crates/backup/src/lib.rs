//! Backups of pool volumes' snapshots in an object store (docs/backup-format.md).
//!
//! Invariants:
//! - a backup is restored from its own manifest and indexes: no other backup's are needed;
//! - objects never change, except the head, which is replaced by compare-and-set and is the commit
//!   point of backups and prunes;
//! - what is restored has the right checksums, or the restore fails;
//! - bytes of the store are hostile: bounded and checked before they are used;
//! - a prefix is encrypted from its first object on, or never;
//! - the content of the head is in copies too, from which a lost head is made again.

mod assemble;
mod backup;
mod copies;
pub mod document;
mod error;
mod head;
pub mod id;
pub mod index;
pub mod limits;
mod piece;
mod pieces;
mod plan;
pub mod prune;
mod reader;
pub mod recover;
mod repository;
mod restore;
pub mod seal;
pub mod verify;

pub use backup::{SnapshotSource, back_up};
pub use error::BackupError;
pub use plan::{Plan, SameName, plan};
pub use reader::{BackupReader, Run};
pub use repository::{Options, Repository};
pub use restore::{Chunk, Restore};

#[cfg(test)]
mod tests;

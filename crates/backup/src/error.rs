//! Errors of backups.

use std::fmt::Display;

use crate::id::WriterId;

/// A reason for which a command on backups failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackupError {
    /// An object does not have the content that it must have.
    #[error("object {object} is damaged: {problem}")]
    Damaged {
        /// Name of the object.
        object: String,
        /// Contradiction.
        problem: String,
    },
    /// An object does not exist.
    #[error("object {object} is missing")]
    Missing {
        /// Name of the object.
        object: String,
    },
    /// The list of backups is lost or damaged.
    #[error("object {object} {problem}: flagstone backup recover makes it again")]
    Head {
        /// Name of the object.
        object: String,
        /// Contradiction.
        problem: String,
    },
    /// A recovery would leave out a backup.
    #[error("backup {id} cannot be recovered: {problem}. Repeat the command")]
    Incomplete {
        /// Number of its writer.
        id: WriterId,
        /// Missing or damaged object.
        problem: String,
    },
    /// The prefix has backups of another volume of this name.
    #[error(
        "the store has backups of another volume {volume} (ID {volume_id}, of pool {pool_id}): \
         choose another prefix for this one, or add it with --separate"
    )]
    OtherVolume {
        /// Name of both volumes.
        volume: String,
        /// UUID of the other volume.
        volume_id: String,
        /// UUID of its pool.
        pool_id: String,
    },
    /// The store refused a request, or did not answer.
    #[error("{action} {object}: {cause}")]
    Store {
        /// Request.
        action: &'static str,
        /// Name of the object.
        object: String,
        /// The store's reason.
        cause: String,
    },
    /// The store does not accept the credentials.
    #[error("{action} {object}: {cause}. Check the credentials and their permissions")]
    Access {
        /// Request.
        action: &'static str,
        /// Name of the object.
        object: String,
        /// The store's reason.
        cause: String,
    },
    /// The store ignores conditional writes.
    #[error("the object store ignores conditional writes ({0}): use another one")]
    Unconditional(&'static str),
    /// The head has no record of the running backup any more.
    #[error(
        "another process continued this backup, or a prune abandoned it: nothing was committed here"
    )]
    Fenced,
    /// Other commands replaced the head each time.
    #[error("other commands on this prefix are faster: repeat the command")]
    Busy,
    /// The prefix is encrypted and no key, or a wrong one, was given; or the other way around.
    #[error("{prefix}: {problem}")]
    Key {
        /// Prefix.
        prefix: String,
        /// Contradiction, and the next step.
        problem: &'static str,
    },
    /// A limit of the format.
    #[error("{0}")]
    Limit(String),
    /// The snapshot could not be read.
    #[error("{0}")]
    Snapshot(String),
}

impl BackupError {
    pub(crate) fn damaged(object: impl Display, problem: impl Display) -> BackupError {
        BackupError::Damaged { object: object.to_string(), problem: problem.to_string() }
    }

    /// True if an object of the store is missing or wrong.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            BackupError::Damaged { .. }
                | BackupError::Missing { .. }
                | BackupError::Head { .. }
                | BackupError::Incomplete { .. }
        )
    }
}

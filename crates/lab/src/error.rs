//! Errors of the lab.

use std::io;

/// An error of a lab.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of measuring, storing or reporting, or the user's interruption.
    #[error(transparent)]
    Bench(#[from] flagstone_bench::Error),
    /// A node failed.
    #[error("{node}: {what}\n{said}")]
    Node {
        /// Name of the node.
        node: String,
        /// What happened.
        what: String,
        /// End of its log.
        said: String,
    },
    /// A command of a node failed.
    #[error("{command} failed on {node} ({status})\n{said}")]
    Command {
        /// The command.
        command: String,
        /// The node.
        node: String,
        /// Its exit status.
        status: String,
        /// End of its output.
        said: String,
    },
    /// A program printed invalid output.
    #[error("{what} printed invalid output: {detail}")]
    Unexpected {
        /// The program.
        what: String,
        /// What is wrong.
        detail: String,
    },
    /// An operation of the system failed.
    #[error("{what}: {cause}")]
    System {
        /// What failed.
        what: &'static str,
        /// The cause.
        cause: io::Error,
    },
}

impl Error {
    /// Whether this is the user's interruption.
    pub fn is_interruption(&self) -> bool {
        matches!(self, Error::Bench(flagstone_bench::Error::Interrupted))
    }

    /// For `map_err` after an operation of the system.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |cause| Error::System { what, cause }
    }
}

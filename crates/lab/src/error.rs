//! What can go wrong in a lab, and what the user can do about it.

use std::io;

/// An error of a lab.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Measuring, keeping or reporting failed; the user's interruption is one of these.
    #[error(transparent)]
    Bench(#[from] flagstone_bench::Error),
    /// A node does not do what it should.
    #[error("{node}: {what}\n{said}")]
    Node {
        /// Its name.
        node: String,
        /// What it does instead.
        what: String,
        /// The end of its log.
        said: String,
    },
    /// A command of a node failed.
    #[error("{command} failed on {node} ({status})\n{said}")]
    Command {
        /// What was run.
        command: String,
        /// On which node.
        node: String,
        /// How it ended.
        status: String,
        /// What it said.
        said: String,
    },
    /// A program printed something else than it should have.
    #[error("{what} printed what cannot be understood: {detail}")]
    Unexpected {
        /// Who printed it.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The system refused something.
    #[error("{what}: {cause}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        cause: io::Error,
    },
}

impl Error {
    /// Whether it is the user's interruption and no failure.
    pub fn is_interruption(&self) -> bool {
        matches!(self, Error::Bench(flagstone_bench::Error::Interrupted))
    }

    /// For `map_err` of an operation of the system.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |cause| Error::System { what, cause }
    }
}

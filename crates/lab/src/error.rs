//! Errors of the lab.

use std::io;

use flagstone_bench::process::ProcessOutput;

use crate::limits::SAID_BYTES;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of measuring, storing or reporting, or the user's interruption.
    #[error(transparent)]
    Bench(#[from] flagstone_bench::Error),
    #[error("{node}: {what}\n{said}")]
    Node { node: String, what: String, said: String },
    #[error("{command} failed on {node} ({status})\n{said}")]
    Command { command: String, node: String, status: String, said: String },
    #[error("{what} printed invalid output: {detail}")]
    Unexpected { what: String, detail: String },
    #[error("{what}: {cause}")]
    System { what: &'static str, cause: io::Error },
}

impl Error {
    pub fn is_interruption(&self) -> bool {
        matches!(self, Error::Bench(flagstone_bench::Error::Interrupted))
    }

    pub(crate) fn command(command: &str, node: &str, ended: &ProcessOutput) -> Error {
        let (command, node) = (command.to_owned(), node.to_owned());
        let (status, said) = (ended.status.to_string(), ended.message(SAID_BYTES));
        Error::Command { command, node, status, said }
    }

    pub(crate) fn unexpected(what: &str, detail: impl ToString) -> Error {
        Error::Unexpected { what: what.to_owned(), detail: detail.to_string() }
    }

    /// For `map_err` after an operation of the system.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |cause| Error::System { what, cause }
    }
}

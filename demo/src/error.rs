//! Why the demo ended early, with what to do about it.

use std::io;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Ctrl-C or a request to terminate.
    #[error("interrupted")]
    Interrupted,
    /// A program that is not installed.
    #[error("cannot start {program}: {cause}; `make setup` installs what is needed")]
    CannotStart {
        /// Its name.
        program: String,
        /// The system's reason.
        cause: io::Error,
    },
    /// A program failed; what it said is in the message.
    #[error("{what} failed ({status})\n{said}")]
    Failed {
        /// What it was to do.
        what: String,
        /// How it ended.
        status: String,
        /// The end of its standard error, and of its output if there is no other.
        said: String,
    },
    /// A program printed something else than it should have.
    #[error("{what} printed what cannot be understood: {detail}")]
    Unexpected {
        /// What it was to do.
        what: String,
        /// What is wrong.
        detail: String,
    },
    /// The drill of the lab failed.
    #[error(transparent)]
    Lab(flagstone_lab::Error),
    /// A file or directory.
    #[error("{what}: {cause}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's reason.
        cause: io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |cause| Error::Io { what, cause }
    }

    pub(crate) fn unexpected(what: impl Into<String>, detail: impl ToString) -> Error {
        Error::Unexpected { what: what.into(), detail: detail.to_string() }
    }
}

impl From<flagstone_bench::Error> for Error {
    fn from(error: flagstone_bench::Error) -> Error {
        flagstone_lab::Error::from(error).into()
    }
}

impl From<flagstone_lab::Error> for Error {
    fn from(error: flagstone_lab::Error) -> Error {
        if error.is_interruption() { Error::Interrupted } else { Error::Lab(error) }
    }
}

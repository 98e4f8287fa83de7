//! Errors of a benchmark, with the next step for the user.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is invalid; nothing was done.
    #[error("{0}")]
    Usage(String),
    #[error(
        "there is no fio here: install it (apt install fio, dnf install fio, zypper install fio), \
         or name it with FIO=/path/to/fio"
    )]
    FioMissing,
    /// The program that was found or named cannot be used as fio: it cannot be started, does not
    /// answer in time, is another program, or is too old.
    #[error("{0}")]
    FioUnusable(String),
    #[error("{tool} failed ({status}) at: {command}\n{said}")]
    ToolFailed { tool: &'static str, status: String, command: String, said: String },
    #[error("cannot read what fio printed: {detail}\nat: {command}\n{said}")]
    FioOutput { detail: String, command: String, said: String },
    #[error("{what}: {problem}")]
    Served {
        what: &'static str,
        /// The client's message, with the volume's address.
        problem: String,
    },
    /// The target holds data, and its destruction was not agreed to.
    #[error(transparent)]
    Guarded(#[from] flagstone_host::guard::Guarded),
    #[error("{what} {}: {cause}", path.display())]
    File { what: &'static str, path: PathBuf, cause: io::Error },
    #[error("{}:{line}: {detail}", path.display())]
    Results { path: PathBuf, line: usize, detail: String },
    #[error("{what}: {cause}")]
    System { what: &'static str, cause: io::Error },
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// Whether no usable fio is here; work that needs none may continue.
    pub fn is_lack_of_fio(&self) -> bool {
        matches!(self, Error::FioMissing | Error::FioUnusable(_))
    }

    pub fn usage(text: impl Into<String>) -> Error {
        Error::Usage(text.into())
    }

    /// For `map_err` of an operation on a file.
    pub fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |cause| Error::File { what, path, cause }
    }

    /// For `map_err` of other system calls.
    pub fn system(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |cause| Error::System { what, cause }
    }
}

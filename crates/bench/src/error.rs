//! Errors of a benchmark, with the next step for the user.

use std::io;
use std::path::PathBuf;

/// An error of a benchmark.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is invalid; nothing was done.
    #[error("{0}")]
    Usage(String),
    /// fio is not installed.
    #[error(
        "there is no fio here: install it (apt install fio, dnf install fio, zypper install fio), \
         or name it with FIO=/path/to/fio"
    )]
    FioMissing,
    /// fio was found or named but cannot be started.
    #[error(
        "{program} cannot be run as fio: {cause}; name another with FIO=/path/to/fio, or install fio \
         (apt install fio, dnf install fio, zypper install fio) and unset FIO"
    )]
    FioNotRun {
        /// The program, as it was named or found.
        program: String,
        /// The reason.
        cause: String,
    },
    /// The program does not answer `--version`.
    #[error(
        "{program} did not say its version within {limit_s} s, and was ended: it is not fio, or cannot \
         work here; see what `{program} --version` waits for, or name another with FIO=/path/to/fio"
    )]
    FioSilent {
        /// The program, as it was named or found.
        program: String,
        /// Time limit, in seconds.
        limit_s: f64,
    },
    /// The program is not fio.
    #[error(
        "{program} is not fio: asked for its version it printed {printed}; install fio (apt install \
         fio, dnf install fio, zypper install fio), or name the program with FIO=/path/to/fio"
    )]
    NotFio {
        /// The program, as it was named or found.
        program: String,
        /// First line of its output, shortened and without control characters.
        printed: String,
    },
    /// fio is too old.
    #[error(
        "{found} is too old: {needed} or newer is needed; install a newer fio, or name one with FIO=/path/to/fio"
    )]
    FioTooOld {
        /// Version that was found.
        found: String,
        /// Oldest version that is supported.
        needed: &'static str,
    },
    /// fio failed.
    #[error("fio failed ({status}) at: {command}\n{said}")]
    FioFailed {
        /// Exit status.
        status: String,
        /// Command line.
        command: String,
        /// Its messages.
        said: String,
    },
    /// fio's output is invalid.
    #[error("cannot read what fio printed: {detail}\nat: {command}\n{said}")]
    FioOutput {
        /// The mistake.
        detail: String,
        /// Command line.
        command: String,
        /// Its messages.
        said: String,
    },
    /// `flagstone load` failed.
    #[error("flagstone load failed ({status}) at: {command}\n{said}")]
    LoadFailed {
        /// Exit status.
        status: String,
        /// Command line.
        command: String,
        /// Its messages.
        said: String,
    },
    /// A served volume cannot be inspected or filled.
    #[error("{what}: {problem}")]
    Served {
        /// The operation.
        what: &'static str,
        /// The client's message, with the volume's address.
        problem: String,
    },
    /// A target is protected, because writing would destroy data.
    #[error("{target} is not written to: {found}\n{remedy}")]
    Guarded {
        /// The target, as it was named.
        target: String,
        /// What is on it.
        found: String,
        /// The next step for the user.
        remedy: String,
    },
    /// A file operation failed.
    #[error("{what} {}: {cause}", path.display())]
    File {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        cause: io::Error,
    },
    /// A results file is invalid.
    #[error("{}:{line}: {detail}", path.display())]
    Results {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The mistake.
        detail: String,
    },
    /// A system call failed.
    #[error("{what}: {cause}")]
    System {
        /// The operation.
        what: &'static str,
        /// The reason.
        cause: io::Error,
    },
    /// The user interrupted.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// Whether no usable fio is here; work that needs none may continue.
    pub fn is_lack_of_fio(&self) -> bool {
        matches!(
            self,
            Error::FioMissing
                | Error::FioNotRun { .. }
                | Error::FioSilent { .. }
                | Error::NotFio { .. }
                | Error::FioTooOld { .. }
        )
    }

    /// A mistake in the request.
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

//! What can go wrong, and what the user can do about it.

use std::io;
use std::path::PathBuf;

/// An error of a benchmark.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request makes no sense; nothing was done.
    #[error("{0}")]
    Usage(String),
    /// There is no fio.
    #[error(
        "there is no fio here: install it (apt install fio, dnf install fio, zypper install fio), \
         or name it with FIO=/path/to/fio"
    )]
    FioMissing,
    /// The fio that is here, or that was named, cannot be started.
    #[error(
        "{program} cannot be run as fio: {cause}; name another with FIO=/path/to/fio, or install fio \
         (apt install fio, dnf install fio, zypper install fio) and unset FIO"
    )]
    FioNotRun {
        /// As it was named, or found on the path.
        program: String,
        /// Why, in the system's words and ours.
        cause: String,
    },
    /// A program that was taken for fio does not answer.
    #[error(
        "{program} did not say its version within {limit_s} s, and was ended: it is not fio, or cannot \
         work here; see what `{program} --version` waits for, or name another with FIO=/path/to/fio"
    )]
    FioSilent {
        /// As it was named, or found on the path.
        program: String,
        /// How long it was waited for, in seconds.
        limit_s: f64,
    },
    /// A program that was taken for fio is another one.
    #[error(
        "{program} is not fio: asked for its version it printed {printed}; install fio (apt install \
         fio, dnf install fio, zypper install fio), or name the program with FIO=/path/to/fio"
    )]
    NotFio {
        /// As it was named, or found on the path.
        program: String,
        /// The first line of what it printed, cut and harmless.
        printed: String,
    },
    /// fio is older than what is needed.
    #[error(
        "{found} is too old: {needed} or newer is needed; install a newer fio, or name one with FIO=/path/to/fio"
    )]
    FioTooOld {
        /// What it calls itself.
        found: String,
        /// The oldest that will do.
        needed: &'static str,
    },
    /// fio ended with an error.
    #[error("fio failed ({status}) at: {command}\n{said}")]
    FioFailed {
        /// How it ended.
        status: String,
        /// What was run.
        command: String,
        /// What it said.
        said: String,
    },
    /// What fio printed is not what it should be.
    #[error("cannot read what fio printed: {detail}\nat: {command}\n{said}")]
    FioOutput {
        /// What is wrong with it.
        detail: String,
        /// What was run.
        command: String,
        /// What it said beside.
        said: String,
    },
    /// Flagstone's own load generator failed.
    #[error("flagstone load failed ({status}) at: {command}\n{said}")]
    LoadFailed {
        /// How it ended.
        status: String,
        /// What was run.
        command: String,
        /// What it said.
        said: String,
    },
    /// A served volume that cannot be looked at or filled.
    #[error("{what}: {problem}")]
    Served {
        /// What was tried.
        what: &'static str,
        /// What its client says, with its name.
        problem: String,
    },
    /// A target whose data would be destroyed.
    #[error("{target} is not written to: {found}\n{remedy}")]
    Guarded {
        /// As it was named.
        target: String,
        /// What is on it.
        found: String,
        /// What to do.
        remedy: String,
    },
    /// A file that cannot be read or written.
    #[error("{what} {}: {cause}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        cause: io::Error,
    },
    /// A results file with something else in it.
    #[error("{}:{line}: {detail}", path.display())]
    Results {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong.
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
    /// The user wants to stop.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// Whether it says that there is no fio here that can be used: what needs none goes on.
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

    /// For `map_err` of another operation.
    pub fn system(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |cause| Error::System { what, cause }
    }
}

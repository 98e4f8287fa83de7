//! Failure log of a file or disk: which call failed, where, and with which error of the system.
//!
//! A client learns a status at most, and a failing disk fails many calls: one line per
//! [`FAILURE_LOG_PERIOD`] names one of them and counts those left out.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use flagstone_runtime::time::{self, Instant};
use parking_lot::Mutex;

use crate::IoError;
use crate::limits::FAILURE_LOG_PERIOD;

/// The failures of one file or disk, on all cores.
#[derive(Debug)]
pub(super) struct FailureLog {
    path: PathBuf,
    limit: Mutex<LogLimit>,
}

/// A call that failed, and its range in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailedCall {
    Read {
        offset: u64,
        len: u64,
    },
    Write {
        offset: u64,
        len: u64,
    },
    Zero {
        offset: u64,
        len: u64,
    },
    /// After this the device must be reopened.
    Sync,
}

impl fmt::Display for FailedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, offset, len) = match self {
            FailedCall::Read { offset, len } => ("read", offset, len),
            FailedCall::Write { offset, len } => ("write", offset, len),
            FailedCall::Zero { offset, len } => ("zeroing", offset, len),
            FailedCall::Sync => return f.write_str("sync, after which it must be reopened,"),
        };
        write!(f, "{what} of {len} B at {offset}")
    }
}

impl FailureLog {
    pub(super) fn new(path: &Path) -> FailureLog {
        FailureLog { path: path.to_owned(), limit: Mutex::default() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Logs a failure, unless another one was logged just now, and returns the device error for it.
    #[cold]
    pub(super) fn failed(&self, call: FailedCall, error: &io::Error) -> IoError {
        if let Some(left_out) = self.limit.lock().take(time::now()) {
            let path = self.path.display();
            tracing::error!(%path, left_out, "{call} failed: {error}");
        }
        IoError::from_os(error, !matches!(call, FailedCall::Read { .. }))
    }
}

#[derive(Debug, Default)]
struct LogLimit {
    logged: Option<Instant>,
    left_out: u64,
}

impl LogLimit {
    /// The number of failures left out since the last line, if one may be logged `now`.
    fn take(&mut self, now: Instant) -> Option<u64> {
        if self.logged.is_some_and(|logged| now.since(logged) < FAILURE_LOG_PERIOD) {
            self.left_out += 1;
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_per_period_is_logged() {
        let mut limit = LogLimit::default();
        let start = flagstone_runtime::block_on(async { time::now() }).unwrap();
        let end = start + FAILURE_LOG_PERIOD;
        assert_eq!(limit.take(start), Some(0));
        assert_eq!(limit.take(start), None);
        assert_eq!(limit.take(start + FAILURE_LOG_PERIOD / 2), None);
        assert_eq!(limit.take(end), Some(2));
        assert_eq!(limit.take(end), None);
        assert_eq!(limit.take(end + FAILURE_LOG_PERIOD), Some(1));
    }

    #[test]
    fn errors_of_the_system_are_those_of_the_call() {
        let log = FailureLog::new(Path::new("/dev/example"));
        let [failing, full] = [5, 28].map(io::Error::from_raw_os_error);
        let (offset, len) = (0, 4096);
        flagstone_runtime::block_on(async {
            assert_eq!(log.failed(FailedCall::Read { offset, len }, &failing), IoError::ReadFault);
            assert_eq!(
                log.failed(FailedCall::Write { offset, len }, &failing),
                IoError::WriteFault
            );
            assert_eq!(log.failed(FailedCall::Zero { offset, len }, &full), IoError::NoSpace);
            assert_eq!(log.failed(FailedCall::Sync, &failing), IoError::WriteFault);
        })
        .unwrap();
    }
}

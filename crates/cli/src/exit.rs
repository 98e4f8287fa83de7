//! Exit statuses of the program: one for each case that a script handles differently.

use std::process::ExitCode;

use flagstone_bench::Error as BenchError;
use flagstone_lab::Error as LabError;

use crate::output::complain;

/// Exit statuses, documented in `docs/cli.md`. A panic ends the process with SIGABRT. A shell
/// reports an unhandled signal as 128 plus its number, so a panic as 134.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Success = 0,
    Failed = 1,
    Usage = 2,
    VerifyFailed = 3,
    Interrupted = 4,
    Slower = 5,
}

impl Exit {
    /// The meaning of each status, as documented, in numerical order.
    pub const MEANINGS: [(Exit, &str); 6] = [
        (Exit::Success, "success; or a stopped server has drained"),
        (Exit::Failed, "the operation failed: a device, an address or a connection"),
        (Exit::Usage, "wrong command line or configuration; nothing was done"),
        (Exit::VerifyFailed, "verification found wrong data"),
        (Exit::Interrupted, "interrupted; the output covers the completed part"),
        (Exit::Slower, "slower than `--fail-if-slower` allows"),
    ];
}

/// The exit status and the message of a command that failed.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) Exit, pub(crate) String);

impl Failure {
    pub(crate) fn failed(text: impl ToString) -> Failure {
        Failure(Exit::Failed, text.to_string())
    }

    pub(crate) fn usage(text: impl ToString) -> Failure {
        Failure(Exit::Usage, text.to_string())
    }

    /// Prints the message to standard error.
    pub(crate) fn report(self) -> Exit {
        complain(&format!("flagstone: error: {}\n", self.1));
        self.0
    }
}

/// A mistake in the command line, in words.
impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure::usage(text)
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Failure {
        let exit = match error {
            BenchError::Usage(_) | BenchError::Guarded(_) => Exit::Usage,
            BenchError::Interrupted => Exit::Interrupted,
            _ => Exit::Failed,
        };
        Failure(exit, error.to_string())
    }
}

impl From<LabError> for Failure {
    fn from(error: LabError) -> Failure {
        let exit = match error {
            LabError::Bench(BenchError::Usage(_) | BenchError::Guarded(_)) => Exit::Usage,
            _ if error.is_interruption() => Exit::Interrupted,
            _ => Exit::Failed,
        };
        Failure(exit, error.to_string())
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

//! Exit statuses of the program: one for each case that a script handles differently.

use std::process::ExitCode;

/// Exit statuses, documented in `docs/cli.md`. A panic ends the process with SIGABRT. A shell reports
/// an unhandled signal as 128 plus its number, so a panic as 134.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Success; a stopped server has drained.
    Success = 0,
    /// The operation failed: a device, an address or a connection.
    Failed = 1,
    /// Wrong command line or configuration; nothing was done.
    Usage = 2,
    /// Verification found wrong data.
    VerifyFailed = 3,
    /// Interrupted; the output covers the completed part.
    Interrupted = 4,
    /// Slower than `--fail-if-slower` allows.
    Slower = 5,
}

impl Exit {
    /// All statuses, in numerical order.
    pub const ALL: [Exit; 6] = [
        Exit::Success,
        Exit::Failed,
        Exit::Usage,
        Exit::VerifyFailed,
        Exit::Interrupted,
        Exit::Slower,
    ];

    /// The number that the shell sees.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The meaning, as documented.
    pub fn meaning(self) -> &'static str {
        match self {
            Exit::Success => "success; or a stopped server has drained",
            Exit::Failed => "the operation failed: a device, an address or a connection",
            Exit::Usage => "wrong command line or configuration; nothing was done",
            Exit::VerifyFailed => "verification found wrong data",
            Exit::Interrupted => "interrupted; the output covers the completed part",
            Exit::Slower => "slower than `--fail-if-slower` allows",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

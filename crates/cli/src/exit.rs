//! How the program ends: one code for each thing that a script would do differently.

use std::process::ExitCode;

/// The exit codes, documented in `docs/cli.md`. A panic, which is a bug, ends with 101; a signal
/// that is not handled with 128 and its number, as the shell reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// It did what it was asked; a server was told to stop and did so in order.
    Success = 0,
    /// The operation failed: a device, an address or a connection.
    Failed = 1,
    /// The command line or the configuration is wrong; nothing was done.
    Usage = 2,
    /// Data that was read is not what was written.
    VerifyFailed = 3,
    /// It was interrupted before it was done; what was printed is of the part that was.
    Interrupted = 4,
    /// Something is slower than it may be.
    Slower = 5,
}

impl Exit {
    /// All of them, in the order of their codes.
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

    /// What it means, as documented.
    pub fn meaning(self) -> &'static str {
        match self {
            Exit::Success => "done; or a server was told to stop and has drained",
            Exit::Failed => "the operation failed: a device, an address or a connection",
            Exit::Usage => "wrong command line or configuration; nothing was done",
            Exit::VerifyFailed => "data that was read is not what was written",
            Exit::Interrupted => {
                "interrupted before it was done; what is printed is of the part that was"
            }
            Exit::Slower => "it is slower than `--fail-if-slower` allows",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

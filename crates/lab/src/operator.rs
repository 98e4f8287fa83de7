//! Operator: waits for a key of the user, who acts on given nodes.
#![allow(
    clippy::disallowed_methods,
    reason = "a lab reads the terminal outside of any executor and never in a simulation"
)]

use flagstone_bench::process::{Interrupt, wait_for};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Error;

/// Waits until the user presses Enter.
///
/// # Errors
/// The user's interruption; standard input has ended or cannot be read.
pub fn wait_for_enter(interrupt: &Interrupt) -> Result<(), Error> {
    let stdin = std::io::stdin();
    let cannot = "cannot read standard input";
    // A blocking read would not notice Ctrl-C.
    let ready = wait_for(f64::INFINITY, interrupt, || {
        let mut of = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut of, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(0) | Err(rustix::io::Errno::INTR) => None,
            Ok(_) => Some(Ok(())),
            Err(cause) => Some(Err(Error::System { what: cannot, cause: cause.into() })),
        }
    })?;
    ready.transpose()?;
    match stdin.read_line(&mut String::new()).map_err(Error::system(cannot))? {
        0 => Err(Error::System { what: cannot, cause: std::io::ErrorKind::UnexpectedEof.into() }),
        _ => Ok(()),
    }
}

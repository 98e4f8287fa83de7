//! Writing to the terminal: results to standard output, everything else to standard error.

use std::io::{self, IsTerminal, Write as _};

use crate::exit::Exit;

/// Whether text for this stream is coloured: only on a terminal, and not when the environment
/// asks otherwise (`NO_COLOR` not empty, as no-color.org says, or `TERM=dumb`).
pub fn wants_color(stream: &impl IsTerminal) -> bool {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    stream.is_terminal() && !no_color && !dumb
}

/// Writes a result to standard output and gives `exit` back. A reader that has seen enough
/// (`| head`) is no failure; a full disk is one.
pub fn print(text: &str, exit: Exit) -> Exit {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => exit,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => exit,
        Err(error) => {
            complain(&format!("flagstone: error: cannot write the result: {error}\n"));
            Exit::Failed
        }
    }
}

/// Writes a message to standard error. If that fails there is nobody left to tell.
pub fn complain(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

//! Terminal output: results on standard output, everything else on standard error.

use std::io::{self, IsTerminal, Write as _};

use flagstone_config::redact;
use flagstone_units::display::size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::exit::Exit;

/// Whether text on this stream is colored: only on a terminal, and not if `NO_COLOR` is set
/// (no-color.org) or `TERM=dumb`.
pub(crate) fn wants_color(stream: &impl IsTerminal) -> bool {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    stream.is_terminal() && !no_color && !dumb
}

/// Writes a result to standard output and returns `exit`. A closed pipe (`| head`) is no failure; a
/// full disk is.
pub(crate) fn print(text: &str, exit: Exit) -> Exit {
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

pub(crate) fn json(document: &impl Serialize) -> String {
    serde_json::to_string_pretty(document).expect("every document is JSON") + "\n"
}

/// A progress bar on a terminal; nothing elsewhere, to keep logs readable.
pub(crate) fn progress_bar(length: Option<u64>, template: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr());
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Writes a message to standard error, without keys and tokens of the arguments. A failure has no
/// other place to go.
pub(crate) fn complain(text: &str) {
    let given = std::env::args_os().map(|one| one.to_string_lossy().into_owned());
    let text = redact::arguments(text, given);
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Space that data takes, and its ratio.
pub(crate) fn compressed(data_bytes: u64, stored_bytes: u64) -> String {
    let ratio = data_bytes as f64 / stored_bytes.max(1) as f64;
    format!("stored in {} ({ratio:.2}:1)", size(stored_bytes))
}

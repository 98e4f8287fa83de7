//! Terminal colors of reports.

use std::io;

use crate::output::wants_color;

/// ANSI colors, or none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paint {
    color: bool,
}

impl Paint {
    pub(super) fn stdout() -> Paint {
        Paint { color: wants_color(&io::stdout()) }
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(super) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(super) fn red(self, text: &str) -> String {
        self.with("1;31", text)
    }

    pub(super) fn yellow(self, text: &str) -> String {
        self.with("33", text)
    }

    pub(super) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }
}

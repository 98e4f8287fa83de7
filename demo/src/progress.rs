//! Progress on standard error: a bar on a terminal, a line for each step elsewhere.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    steps: usize,
    done: usize,
}

impl Progress {
    pub(crate) fn new(steps: usize) -> Progress {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(steps as u64);
            let style = "{bar:30} {pos}/{len} {elapsed} {msg}";
            bar.set_style(ProgressStyle::with_template(style).expect("a valid template"));
            bar
        });
        Progress { bar, steps, done: 0 }
    }

    /// What is done now.
    pub(crate) fn begin(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
            bar.tick();
        }
    }

    /// Time passes.
    pub(crate) fn tick(&self) {
        if let Some(bar) = &self.bar {
            bar.tick();
        }
    }

    /// What came of it.
    pub(crate) fn end(&mut self, what: &str) {
        self.done += 1;
        match &self.bar {
            Some(bar) => bar.inc(1),
            None => eprintln!("[{:>2}/{}] {what}", self.done, self.steps),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

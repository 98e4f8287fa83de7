//! Progress of a campaign: a bar on a terminal, lines elsewhere.

use std::io::{self, IsTerminal};

use flagstone_bench::campaign::Watcher;
use flagstone_bench::results::Record;
use flagstone_bench::stats::Steady;
use flagstone_bench::units::{format_number, format_seconds};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::complain;

/// Shows a campaign to whoever looks at standard error.
pub(crate) struct Watch(ProgressBar);

impl Watch {
    pub(crate) fn new() -> Watch {
        if !io::stderr().is_terminal() {
            return Watch(ProgressBar::hidden());
        }
        let bar = ProgressBar::new_spinner();
        bar.set_draw_target(ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {msg}") {
            bar.set_style(style);
        }
        Watch(bar)
    }

    fn line(&self, text: &str) {
        self.0.suspend(|| complain(&format!("{text}\n")));
    }

    pub(crate) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

impl Watcher for Watch {
    fn note(&mut self, text: &str) {
        self.line(&format!("flagstone: note: {text}"));
    }

    fn begin(&mut self, what: &str, remaining_s: f64) {
        self.0.set_message(format!("{what}; about {} left", format_seconds(remaining_s)));
    }

    fn tick(&mut self) {
        self.0.tick();
    }

    fn done(&mut self, record: &Record) {
        let p99 =
            record.latency_p99_us.map_or_else(|| "-".to_owned(), |us| format!("{:.3}", us / 1e3));
        self.line(&format!(
            "{:<24} {:<20} {:>3}  {:>11} IOPS {:>10} MB/s  mean {:.3} ms  p99 {p99} ms",
            record.job,
            record.target,
            record.repetition + 1,
            format_number(record.iops, 0),
            format_number(record.mb_per_s, 2),
            record.latency_mean_us / 1e3,
        ));
    }

    fn steadiness(&mut self, target: &str, job: &str, round: u32, found: Option<Steady>) {
        let Some(found) = found else { return };
        let word = if found.is_steady { "steady" } else { "not steady yet" };
        self.line(&format!(
            "{job} on {target} after round {round}: {word}: range {:.1} % (20), drift {:.1} % (10) of \
             the last five",
            found.range_percent, found.drift_percent
        ));
    }
}

//! Progress of a campaign: a bar on a terminal, lines elsewhere.

use std::time::Duration;

use flagstone_bench::campaign::Watcher;
use flagstone_bench::results::ResultRecord;
use flagstone_bench::stats::Steady;
use flagstone_units::{display::duration, grouped};
use indicatif::ProgressBar;

use crate::output::{complain, progress_bar};

pub(crate) struct CampaignProgress {
    bar: ProgressBar,
    what: String,
    /// The completed fraction of the step, 0 to 1, if known.
    done: Option<f64>,
    /// The time of the last remaining-time estimate, and the estimate in seconds.
    estimate: (Duration, f64),
}

impl CampaignProgress {
    pub(crate) fn new() -> CampaignProgress {
        let bar = progress_bar(None, "{spinner} {elapsed} {msg}");
        CampaignProgress { bar, what: String::new(), done: None, estimate: (Duration::ZERO, 0.0) }
    }

    fn show(&self) {
        let since = self.bar.elapsed().saturating_sub(self.estimate.0).as_secs_f64();
        self.bar.set_message(message(&self.what, self.done, self.estimate.1 - since));
    }

    fn estimate(&mut self, remaining_s: f64) {
        self.estimate = (self.bar.elapsed(), remaining_s);
    }

    fn line(&self, text: &str) {
        self.bar.suspend(|| complain(&format!("{text}\n")));
    }

    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Watcher for CampaignProgress {
    fn note(&mut self, text: &str) {
        self.line(&format!("flagstone: note: {text}"));
    }

    fn begin(&mut self, what: &str, remaining_s: f64) {
        self.what = what.to_owned();
        self.done = None;
        self.estimate(remaining_s);
        self.show();
    }

    fn filled(&mut self, done: f64, remaining_s: f64) {
        self.done = Some(done);
        self.estimate(remaining_s);
    }

    fn tick(&mut self) {
        self.show();
        self.bar.tick();
    }

    fn done(&mut self, record: &ResultRecord) {
        let p99 =
            record.latency_p99_us.map_or_else(|| "-".to_owned(), |us| format!("{:.3}", us / 1e3));
        let paused = match record.measurement.paused_s {
            s if s > 0.0 => format!("  (suspended for {s:.1} s)"),
            _ => String::new(),
        };
        self.line(&format!(
            "{:<24} {:<20} {:>3}  {:>11} IOPS {:>10} MB/s  mean {:.3} ms  p99 {p99} ms{paused}",
            record.job,
            record.target,
            record.repetition + 1,
            grouped(record.iops, 0),
            grouped(record.mb_per_s, 2),
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

/// The step, its completed percentage and the remaining time of the campaign. The caller counts the
/// remaining time down between estimates.
fn message(what: &str, done: Option<f64>, left_s: f64) -> String {
    let share = done.map_or_else(String::new, |done| format!(", {:.0} % done", done * 100.0));
    let left = match left_s {
        s if s >= 1.0 => format!("about {}", duration(s)),
        _ => "less than a second".to_owned(),
    };
    format!("{what}{share}; {left} left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_message_format() {
        assert_eq!(message("a on b, 1 of 4", None, 90.4), "a on b, 1 of 4; about 1m 30s left");
        assert_eq!(message("filling b", Some(0.376), 5.0), "filling b, 38 % done; about 5s left");
        assert_eq!(message("a", None, -3.0), "a; less than a second left");
    }
}

//! Remaining time of a campaign: the planned time, corrected by the time that steps took so far.

/// Assumed throughput of a fill before anything is known, in bytes per second.
const FILL_BYTES_PER_S: f64 = 200e6;
/// Interval at which the progress of a fill is read, in seconds.
const LOOK_S: f64 = 1.0;
/// Share of a fill that must be done before its pace is used, 0 to 1.
const SHOWN_FROM: f64 = 0.01;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CampaignPace {
    planned_s: f64,
    took_s: f64,
}

impl CampaignPace {
    pub(super) fn add(&mut self, planned_s: f64, took_s: f64) {
        self.planned_s += planned_s;
        self.took_s += took_s;
    }

    pub(super) fn corrected(&self, planned_s: f64) -> f64 {
        match self.planned_s > 0.0 {
            true => planned_s * (self.took_s / self.planned_s),
            false => planned_s,
        }
    }
}

pub(super) fn planned_s(size_bytes: u64) -> f64 {
    size_bytes as f64 / FILL_BYTES_PER_S
}

#[derive(Debug, Default)]
pub(super) struct Progress {
    looked_s: f64,
    done: f64,
}

impl Progress {
    /// Reads the progress if the interval has passed: the share that is done, 0 to 1, and the
    /// seconds that the rest takes. `written_bytes` returns the bytes written so far, where known.
    pub(super) fn look(
        &mut self,
        elapsed_s: f64,
        size_bytes: u64,
        written_bytes: impl FnOnce() -> Option<u64>,
    ) -> Option<(f64, f64)> {
        if elapsed_s - self.looked_s < LOOK_S {
            return None;
        }
        self.looked_s = elapsed_s;
        // The kernel's count may stand still or shrink: it includes other writers.
        self.done = self.done.max((written_bytes()? as f64 / size_bytes.max(1) as f64).min(1.0));
        (self.done >= SHOWN_FROM).then(|| (self.done, elapsed_s * (1.0 - self.done) / self.done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_time_follows_actual_pace() {
        let mut pace = CampaignPace::default();
        assert_eq!(pace.corrected(10.0), 10.0);
        pace.add(2.0, 3.0);
        pace.add(2.0, 5.0);
        assert_eq!(pace.corrected(10.0), 20.0);
    }

    #[test]
    fn fill_progress_and_remaining_time() {
        let mut fill = Progress::default();
        assert_eq!(fill.look(5.0, 400, || Some(0)), None, "nothing is known yet");
        assert_eq!(fill.look(5.5, 400, || Some(100)), None, "too early");
        assert_eq!(fill.look(10.0, 400, || Some(100)), Some((0.25, 30.0)));
        assert_eq!(fill.look(20.0, 400, || Some(0)).unwrap().0, 0.25, "it never goes back");
        assert_eq!(fill.look(30.0, 400, || None), None);
        assert_eq!(fill.look(40.0, 400, || Some(500)), Some((1.0, 0.0)));
    }
}

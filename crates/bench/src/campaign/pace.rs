//! How long a campaign still takes: what was planned, corrected by what such steps took so far.

/// What a fill is taken to reach before anything is known of it, in bytes a second.
const FILL_BYTES_PER_S: f64 = 200e6;
/// A fill is looked at so seldom, in seconds.
const LOOK_S: f64 = 1.0;
/// Of a fill so much has to be done before its pace is believed.
const TOLD_LEAST: f64 = 0.01;

/// How much longer the steps of this run took than was planned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    planned_s: f64,
    took_s: f64,
}

impl Pace {
    /// A step is done.
    pub(super) fn add(&mut self, planned_s: f64, took_s: f64) {
        self.planned_s += planned_s;
        self.took_s += took_s;
    }

    /// What planned seconds will be.
    pub(super) fn corrected(&self, planned_s: f64) -> f64 {
        match self.planned_s > 0.0 {
            true => planned_s * (self.took_s / self.planned_s),
            false => planned_s,
        }
    }
}

/// What a fill of a size is taken to take, in seconds, before it begins.
pub(super) fn planned_s(size_bytes: u64) -> f64 {
    size_bytes as f64 / FILL_BYTES_PER_S
}

/// The progress of a fill.
#[derive(Debug, Default)]
pub(super) struct Progress {
    looked_s: f64,
    done: f64,
}

impl Progress {
    /// Looks, if it is time: how much is done, from 0 to 1, and how long the rest takes.
    /// `written_bytes` tells how much of so many bytes is written, where that is known.
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
        // What the kernel tells may stand still or go back, as it counts others too.
        self.done = self.done.max((written_bytes()? as f64 / size_bytes.max(1) as f64).min(1.0));
        (self.done >= TOLD_LEAST).then(|| (self.done, elapsed_s * (1.0 - self.done) / self.done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_is_corrected_by_what_it_took() {
        let mut pace = Pace::default();
        assert_eq!(pace.corrected(10.0), 10.0);
        pace.add(2.0, 3.0);
        pace.add(2.0, 5.0);
        assert_eq!(pace.corrected(10.0), 20.0);
    }

    #[test]
    fn a_fill_tells_how_far_it_is() {
        let mut fill = Progress::default();
        assert_eq!(fill.look(5.0, 400, || Some(0)), None, "nothing is known yet");
        assert_eq!(fill.look(5.5, 400, || Some(100)), None, "too early");
        assert_eq!(fill.look(10.0, 400, || Some(100)), Some((0.25, 30.0)));
        assert_eq!(fill.look(20.0, 400, || Some(0)).unwrap().0, 0.25, "it never goes back");
        assert_eq!(fill.look(30.0, 400, || None), None);
        assert_eq!(fill.look(40.0, 400, || Some(500)), Some((1.0, 0.0)));
    }
}

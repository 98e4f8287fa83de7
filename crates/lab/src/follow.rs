//! The campaigns of an experiment as one, for whoever watches.

use flagstone_bench::campaign::Watcher;
use flagstone_bench::results::Record;
use flagstone_bench::stats::Steady;

/// Passes on what happens in one campaign of several.
pub(crate) struct Follow<'a> {
    /// Who is told.
    pub(crate) inner: &'a mut dyn Watcher,
    /// What the others take.
    pub(crate) later_s: f64,
}

impl Watcher for Follow<'_> {
    /// What a campaign says of served volumes, that they are not filled: emulated disks are as slow
    /// where they were never written.
    fn note(&mut self, _: &str) {}

    fn begin(&mut self, what: &str, remaining_s: f64) {
        self.inner.begin(what, remaining_s + self.later_s);
    }

    fn tick(&mut self) {
        self.inner.tick();
    }

    fn done(&mut self, record: &Record) {
        self.inner.done(record);
    }

    fn steadiness(&mut self, target: &str, job: &str, round: u32, found: Option<Steady>) {
        self.inner.steadiness(target, job, round, found);
    }
}

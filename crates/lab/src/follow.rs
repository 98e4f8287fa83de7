//! Progress of one campaign among several of an experiment.

use flagstone_bench::campaign::Watcher;
use flagstone_bench::results::ResultRecord;
use flagstone_bench::stats::Steady;

pub(crate) struct Follow<'a> {
    pub(crate) inner: &'a mut dyn Watcher,
    /// Duration of the campaigns that follow, in seconds.
    pub(crate) later_s: f64,
    /// Whether notes are dropped. A campaign notes that served volumes are not filled, which does
    /// not matter for emulated disks.
    pub(crate) hides_notes: bool,
}

impl Watcher for Follow<'_> {
    fn note(&mut self, text: &str) {
        if !self.hides_notes {
            self.inner.note(text);
        }
    }

    fn begin(&mut self, what: &str, remaining_s: f64) {
        self.inner.begin(what, remaining_s + self.later_s);
    }

    fn filled(&mut self, done: f64, remaining_s: f64) {
        self.inner.filled(done, remaining_s + self.later_s);
    }

    fn tick(&mut self) {
        self.inner.tick();
    }

    fn done(&mut self, record: &ResultRecord) {
        self.inner.done(record);
    }

    fn steadiness(&mut self, target: &str, job: &str, round: u32, found: Option<Steady>) {
        self.inner.steadiness(target, job, round, found);
    }
}

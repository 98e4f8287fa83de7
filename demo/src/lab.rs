//! The experiments of the lab, as short as they still tell something: what a mirror costs, what
//! NVMe/TCP costs, and a source that dies under a verifying load.

use std::path::{Path, PathBuf};

use flagstone_bench::campaign::{Ending, Watcher};
use flagstone_bench::os::Interrupt;
use flagstone_bench::report::{Album, Extras, Run};
use flagstone_bench::results::Record;
use flagstone_bench::stats::Steady;
use flagstone_lab::failover::{self, Death, Follower};
use flagstone_lab::mirror::setup::{MIRROR, PLAIN};
use flagstone_lab::{extras, fabric, mirror};
use serde::Serialize;

use crate::Error;
use crate::progress::Progress;
use crate::table::grouped;

/// The asynchronous mirror, as the lab calls it.
pub const ASYNC: &str = "mirror, async";
/// What is mirrored or not, of all that the lab can.
const SETUPS: &[&str] = &[PLAIN, MIRROR, ASYNC];
/// Sizes of write that the lab measures.
const SIZES: usize = 3;
/// Emulated SSDs, striped.
const DISKS: [u32; 2] = [1, 4];
/// By how much disks and network are slower than the published ones, so that two CPUs are enough.
const SCALE: u32 = 20;
/// The link's round trip, as between two zones of a region, in µs.
const RTT_US: u64 = 300;
/// Warm-up of each measurement: this part of its time.
const RAMP_PART: f64 = 0.5;
/// The drill's time for a second of a measurement's, and what it is at least and at most.
const DRILL: (f64, f64, f64) = (5.0, 5.0, 20.0);
/// What a user would have to type to do it again.
const COMMAND: &str = "make demo";
/// Steps of progress that [`Lab::run`] makes.
pub(crate) const STEPS: usize = SETUPS.len() * SIZES + 2 * 2 * DISKS.len() + failover::STEPS;
/// The parts of the report, in the order in which they stand there.
const PARTS: [&str; 3] = ["failover", "mirror", "fabric"];
/// The report, beside their results.
const PAGE: &str = "report.html";

/// What came of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// What a mirror costs.
    pub mirror: mirror::summary::Summary,
    /// What NVMe/TCP costs.
    pub fabric: fabric::Summary,
    /// A source dies.
    pub failover: failover::Summary,
}

/// What runs them.
pub(crate) struct Lab<'a> {
    /// The program.
    pub(crate) flagstone: &'a Path,
    /// Where the results go: a directory for each.
    pub(crate) results: &'a Path,
    /// Where the nodes' files of the drill go.
    pub(crate) scratch: &'a Path,
    /// Of each measurement.
    pub(crate) seconds: f64,
    /// The user's.
    pub(crate) interrupt: &'a Interrupt,
}

impl Lab<'_> {
    /// Runs all of them.
    pub(crate) fn run(&self, progress: &mut Progress) -> Result<Found, Error> {
        let mirror = self.mirror(progress)?;
        let fabric = self.fabric(progress)?;
        let failover = self.failover(progress)?;
        Ok(Found { mirror, fabric, failover })
    }

    /// A place for results, without those of an earlier demo.
    fn place(&self, name: &str) -> Result<PathBuf, Error> {
        let place = self.results.join(name);
        if place.join("campaign.json").exists() {
            std::fs::remove_dir_all(&place)
                .map_err(Error::io(format!("cannot remove {}", place.display())))?;
        }
        Ok(place)
    }

    fn times_ms(&self) -> (u64, u64) {
        ((self.seconds * RAMP_PART * 1e3) as u64, (self.seconds * 1e3) as u64)
    }

    fn mirror(&self, progress: &mut Progress) -> Result<mirror::summary::Summary, Error> {
        let results = self.place("mirror")?;
        let (ramp_ms, runtime_ms) = self.times_ms();
        let options = mirror::Options {
            program: self.flagstone.to_owned(),
            command: COMMAND.to_owned(),
            results: results.clone(),
            rtt_us: RTT_US,
            machine: None,
            ramp_ms,
            runtime_ms,
            repetitions: 1,
            only: SETUPS,
        };
        let outcome = mirror::run(&options, &mut Watching(progress), self.interrupt)?;
        is_complete(outcome.ending)?;
        extras::mirror(&outcome.summary).write(&results)?;
        Ok(outcome.summary)
    }

    fn fabric(&self, progress: &mut Progress) -> Result<fabric::Summary, Error> {
        let results = self.place("fabric")?;
        let (ramp_ms, runtime_ms) = self.times_ms();
        let options = fabric::Options {
            program: self.flagstone.to_owned(),
            command: COMMAND.to_owned(),
            results: results.clone(),
            scale: SCALE,
            ramp_ms,
            runtime_ms,
            repetitions: 1,
            disks: DISKS.into(),
        };
        progress.begin("starting a server with emulated SSDs");
        let outcome = fabric::run(&options, &mut Watching(progress), self.interrupt)?;
        is_complete(outcome.ending)?;
        extras::fabric(&outcome).write(&results)?;
        Ok(outcome.summary)
    }

    fn failover(&self, progress: &mut Progress) -> Result<failover::Summary, Error> {
        let results = self.place("failover")?;
        let (of_second, least, most) = DRILL;
        let options = failover::Options {
            program: self.flagstone.to_owned(),
            command: COMMAND.to_owned(),
            scratch: self.scratch.to_owned(),
            seconds: (self.seconds * of_second).clamp(least, most),
            death: Death::Silent,
            emulate: true,
        };
        let outcome = failover::run(&options, progress, self.interrupt)?;
        outcome.keep(&results)?;
        extras::failover(&outcome.summary).write(&results)?;
        Ok(outcome.summary)
    }
}

fn is_complete(ending: Ending) -> Result<(), Error> {
    match ending {
        Ending::Complete => Ok(()),
        Ending::Interrupted => Err(Error::Interrupted),
    }
}

/// Makes one page of a summary and the results of all of them; gives where it is.
pub(crate) fn page(summary: &Extras, results: &Path) -> Result<PathBuf, Error> {
    let runs = PARTS.map(|part| Run::read(&results.join(part)));
    let runs = runs.into_iter().collect::<Result<Vec<_>, _>>()?;
    let path = results.join(PAGE);
    std::fs::write(&path, Album::new(summary, runs).html())
        .map_err(Error::io(format!("cannot write {}", path.display())))?;
    Ok(path)
}

/// Shows a campaign's measurements as steps.
struct Watching<'a>(&'a mut Progress);

impl Watcher for Watching<'_> {
    fn note(&mut self, _: &str) {}

    fn begin(&mut self, what: &str, _: f64) {
        self.0.begin(what);
    }

    fn tick(&mut self) {
        self.0.tick();
    }

    fn done(&mut self, record: &Record) {
        let iops = grouped(record.iops);
        let nature = record.nature.suffix();
        self.0.end(&format!("{} on {}{nature}: {iops} IOPS", record.job, record.target));
    }

    fn steadiness(&mut self, _: &str, _: &str, _: u32, _: Option<Steady>) {}
}

impl Follower for Progress {
    fn begin(&mut self, what: &str) {
        Progress::begin(self, what);
    }

    fn end(&mut self, what: &str) {
        Progress::end(self, what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_what_the_lab_has() {
        for name in SETUPS {
            assert!(mirror::setup::SETUPS.iter().any(|setup| setup.name == *name), "{name}");
        }
        assert_eq!(mirror::published::ROWS.len(), SIZES);
        assert!(DISKS.iter().all(|disks| (1..=fabric::DISKS).contains(disks)));
    }
}

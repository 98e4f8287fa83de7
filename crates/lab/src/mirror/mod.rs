//! Experiment A: a mirror against no mirror, beside the published table.
//!
//! The emulated bed measures many setups with two processes on this machine; the given bed measures
//! a mirrored volume of the user's nodes against one without a mirror.

mod customer;
mod emulated;
mod given;
pub mod published;
pub mod setup;
pub mod summary;
pub mod tables;

use flagstone_bench::campaign::{CampaignEnd, Watcher};
use flagstone_bench::environment;
use flagstone_bench::job::{AccessPattern, BenchJob};
use flagstone_bench::process::Interrupt;
use flagstone_bench::results::ResultRecord;
use serde::Serialize;

pub use self::emulated::EmulatedMirror;
pub use self::given::GivenMirror;
use self::published::{IN_FLIGHT, PublishedRow};
use self::setup::PLAIN;
use self::summary::{Calibrated, MirrorSummary};
use crate::Error;
use crate::bed::{ExperimentOutcome, RunOptions};

const SUITE: &str = "mirror";

#[derive(Clone, Debug)]
pub enum MirrorBed {
    /// Two processes with emulated disks and link.
    Emulated(EmulatedMirror),
    Given(GivenMirror),
}

impl MirrorBed {
    /// Least duration of the emulated experiment, in seconds.
    pub fn emulated_seconds(&self, run: &RunOptions) -> Option<f64> {
        match self {
            MirrorBed::Emulated(bed) => Some(bed.seconds(run)),
            MirrorBed::Given(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MirrorLink {
    /// Whether the round trip was measured: with a request of 4 KiB, including the time in node B.
    pub is_measured: bool,
    pub round_trip_us: f64,
}

struct MeasuredMirror {
    end: CampaignEnd,
    records: Vec<ResultRecord>,
    link: Option<MirrorLink>,
    range_bytes: u64,
    disks: Vec<Calibrated>,
}

/// Runs the experiment. Each result is stored as soon as it is measured.
///
/// # Errors
/// The first failure. The user's interruption during the measurements is a [`CampaignEnd`].
pub fn run(
    run: &RunOptions,
    bed: &MirrorBed,
    watcher: &mut dyn Watcher,
    interrupt: &Interrupt,
) -> Result<ExperimentOutcome<MirrorSummary>, Error> {
    let measured = match bed {
        MirrorBed::Emulated(bed) => bed.measure(run, watcher, interrupt)?,
        MirrorBed::Given(bed) => bed.measure(run, watcher, interrupt)?,
    };
    let machine = environment::record(&[], None);
    let summary = MirrorSummary::new(run, bed, &measured, &machine);
    Ok(ExperimentOutcome { end: measured.end, summary })
}

fn job_name(row: &PublishedRow, hot: bool) -> String {
    row.size.to_lowercase() + if hot { "" } else { "-cold" }
}

fn job(run: &RunOptions, row: &PublishedRow, name: String, size_bytes: u64) -> BenchJob {
    BenchJob {
        block_bytes: row.block_bytes,
        // One thread keeps as many requests in flight as the eight threads of diskspd.
        depth: IN_FLIGHT,
        size_bytes: Some(size_bytes),
        // Durable writes, as with diskspd -Sh.
        sync: true,
        ..run.job(name, AccessPattern::RandWrite)
    }
}

fn is_plain(target: &str) -> bool {
    target == PLAIN
}

//! A mirrored volume under a verifying load: the drill of `flagstone lab failover`, on files as
//! fast as they are.

use std::path::Path;

use flagstone_bench::os::Interrupt;
use flagstone_lab::failover::{self, Follower, Options, Summary};
use serde::Serialize;

use crate::Error;
use crate::progress::Progress;

/// Seconds of load.
const LOAD_SECONDS: f64 = 8.0;

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Survived {
    /// Blocks of 4 KiB written.
    pub blocks_written: u64,
    /// Blocks read and compared.
    pub blocks_checked: u64,
    /// Blocks that were not what was written.
    pub wrong_blocks: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Longest time that a request took, in µs: the take-over, or the switchover.
    pub longest_us: f64,
    /// From the death of the source to the end of the command that made the other one the source,
    /// in ms.
    pub failover_ms: f64,
    /// What was copied to the node that had been dead, of `volume_bytes`.
    pub resynced_bytes: u64,
    /// Size of the volume.
    pub volume_bytes: u64,
    /// From its start until it was in sync, in ms.
    pub return_ms: f64,
    /// The planned switchover back, in ms.
    pub switchover_ms: f64,
}

impl Survived {
    /// Nothing was lost, and no host saw an error.
    pub fn is_right(&self) -> bool {
        self.wrong_blocks == 0 && self.errors == 0 && self.blocks_checked > 0
    }
}

impl From<&Summary> for Survived {
    fn from(summary: &Summary) -> Survived {
        Survived {
            blocks_written: summary.blocks_written,
            blocks_checked: summary.blocks_checked,
            wrong_blocks: summary.wrong_blocks,
            errors: summary.errors,
            longest_us: summary.longest_ms * 1e3,
            failover_ms: summary.failover_ms,
            resynced_bytes: summary.resynced_bytes,
            volume_bytes: summary.volume_bytes,
            return_ms: summary.return_ms,
            switchover_ms: summary.switchover_ms,
        }
    }
}

/// Steps of progress that [`run`] makes.
pub const STEPS: usize = failover::STEPS;

impl Follower for Progress {
    fn begin(&mut self, what: &str) {
        Progress::begin(self, what);
    }

    fn end(&mut self, what: &str) {
        Progress::end(self, what);
    }
}

/// Goes through all of it in a directory that is there, and leaves nothing in it.
///
/// # Errors
/// What went wrong.
pub(crate) fn run(
    flagstone: &Path,
    directory: &Path,
    progress: &mut Progress,
    interrupt: &Interrupt,
) -> Result<Survived, Error> {
    let options = Options {
        program: flagstone.to_owned(),
        command: "make demo".to_owned(),
        scratch: directory.to_owned(),
        seconds: LOAD_SECONDS,
        death: failover::Death::Kill,
        emulate: false,
    };
    let outcome = failover::run(&options, progress, interrupt)?;
    Ok(Survived::from(&outcome.summary))
}

//! Given bed: a mirrored volume of the user's nodes against one without a mirror.
//!
//! The nodes run `flagstone serve`; this machine is their host. The link's round trip is measured
//! with single requests to a volume of node B that answers immediately, or stated by the user.

use flagstone_bench::Error as BenchError;
use flagstone_bench::campaign::Watcher;
use flagstone_bench::job::BenchJob;
use flagstone_bench::process::Interrupt;
use flagstone_bench::target::BenchTarget;

use super::published::ROWS;
use super::setup::{MIRROR, PLAIN};
use super::{MeasuredMirror, MirrorLink, SUITE, job_name};
use crate::Error;
use crate::bed::{BedTargets, RunOptions, volume_at};

/// Most bytes of a volume in use, as published: `-c96G`.
pub(super) const BYTES_MOST: u64 = 96 << 30;
/// The bytes in use are a multiple of the largest write size.
const GRAIN_BYTES: u64 = 64 << 10;
const LINK_MS: u64 = 2000;

#[derive(Clone, Debug)]
pub struct GivenMirror {
    pub targets: BedTargets,
    /// Address of the source.
    pub node_a: String,
    /// Address of the other node; needed to measure the link.
    pub node_b: Option<String>,
    pub mirrored: String,
    pub plain: String,
    /// Volume on node B that answers immediately.
    pub link: String,
    /// Round trip of the link as stated by the user, in µs.
    pub rtt_us: Option<u64>,
}

impl GivenMirror {
    /// The volumes; the one without a mirror first.
    ///
    /// # Errors
    /// An invalid address, or the same volume given twice.
    pub fn volumes(&self) -> Result<Vec<BenchTarget>, Error> {
        let plain = volume_at(&[&self.node_a], &self.plain)?;
        let mirror = volume_at(&[&self.node_a], &self.mirrored)?;
        if plain.disks == mirror.disks {
            let text = "--mirrored and --plain are the same volume";
            return Err(BenchError::usage(text).into());
        }
        Ok(vec![
            BenchTarget { name: PLAIN.to_owned(), ..plain },
            BenchTarget { name: MIRROR.to_owned(), ..mirror },
        ])
    }

    pub(super) fn measure(
        &self,
        run: &RunOptions,
        watcher: &mut dyn Watcher,
        interrupt: &Interrupt,
    ) -> Result<MeasuredMirror, Error> {
        crate::check_is_new(&run.results)?;
        let volumes = self.volumes()?;
        self.targets.guard(&volumes, true)?;
        let range_bytes = range_bytes(run, &volumes, interrupt)?;
        let link = self.link(run, watcher, interrupt)?;
        let jobs =
            ROWS.iter().map(|row| super::job(run, row, job_name(row, true), range_bytes)).collect();
        let title = "Experiment A on real nodes: a mirror against no mirror";
        let plan = run.plan((SUITE, title), jobs, volumes, &self.targets);
        let parts = (&plan, std::slice::from_ref(&plan));
        let (end, records) = run.campaign(parts, &self.targets, None, watcher, interrupt)?;
        Ok(MeasuredMirror { end, records, link, range_bytes, disks: Vec::new() })
    }

    fn link(
        &self,
        run: &RunOptions,
        watcher: &mut dyn Watcher,
        interrupt: &Interrupt,
    ) -> Result<Option<MirrorLink>, Error> {
        if let Some(us) = self.rtt_us {
            return Ok(Some(MirrorLink { is_measured: false, round_trip_us: us as f64 }));
        }
        let Some(node_b) = &self.node_b else { return Ok(None) };
        let target = volume_at(&[node_b], &self.link)?;
        let runtime_ms = run.runtime_ms.min(LINK_MS);
        watcher.begin("measuring the link", runtime_ms as f64 / 1e3);
        let job =
            BenchJob { name: "link".to_owned(), ramp_ms: 0, runtime_ms, ..BenchJob::default() };
        let generator = run.generator();
        let measured =
            generator.measure(&job, &target.address(), interrupt, &mut || watcher.tick())?;
        let found = measured.results.total.map(|total| total.latency_us.mean);
        Ok(found.map(|round_trip_us| MirrorLink { is_measured: true, round_trip_us }))
    }
}

/// Bytes that both volumes have, at most the range of the publication.
fn range_bytes(
    run: &RunOptions,
    targets: &[BenchTarget],
    interrupt: &Interrupt,
) -> Result<u64, Error> {
    let generator = run.generator();
    let mut bytes = BYTES_MOST;
    for target in targets {
        let found = generator.size_bytes(&target.address(), interrupt)?;
        bytes = bytes.min(found / GRAIN_BYTES * GRAIN_BYTES);
        if bytes == 0 {
            let text = format!("{} is smaller than one block of 64 KiB", target.address());
            return Err(BenchError::usage(text).into());
        }
    }
    Ok(bytes)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bed::tests::given;

    pub(in crate::mirror) fn bed() -> GivenMirror {
        GivenMirror {
            targets: BedTargets { machine: None, ..given() },
            node_a: "10.0.0.1".to_owned(),
            node_b: None,
            mirrored: "mirrored".to_owned(),
            plain: "plain".to_owned(),
            link: "link".to_owned(),
            rtt_us: Some(300),
        }
    }

    #[test]
    fn volume_is_not_compared_with_itself() {
        assert_eq!(bed().volumes().unwrap().len(), 2);
        let same = GivenMirror { plain: "mirrored".to_owned(), ..bed() };
        assert!(same.volumes().unwrap_err().to_string().contains("the same volume"));
    }
}

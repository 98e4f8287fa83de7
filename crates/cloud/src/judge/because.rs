//! Why it is so: what follows from the numbers, and what else may be the cause.

use serde::Serialize;

use crate::catalogue::LimitKind;
use crate::input::Access;
use crate::judge::{Bound, Case, Verdict};
use crate::limits::{BURST_SECONDS, MEMORY_PART, TOLERANCE};
use crate::prediction::{Dimension, Limit, Remedy};
use crate::remedy::Remedies;

/// One reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "finding", rename_all = "kebab-case")]
pub enum Finding {
    /// A limit that is enforced is used up.
    AtLimit {
        /// Which.
        kind: LimitKind,
        /// The part of it that was taken.
        used: f64,
        /// Where its number comes from.
        because: String,
    },
    /// More was measured than a limit allows.
    BeyondLimit {
        /// Which.
        kind: LimitKind,
        /// How often what is allowed.
        times: f64,
        /// IOPS that it allows.
        iops: f64,
        /// Where its number comes from.
        because: String,
    },
    /// Little's law: as many as were in flight, each taking its time, give the rate.
    Latency {
        /// On average.
        in_flight: f64,
        /// Each took so long, in µs.
        latency_us: f64,
        /// Which gives so many IOPS.
        iops: f64,
        /// Of so many that are allowed.
        allowed_iops: f64,
    },
    /// The latency is what the rule of the queue depth stands for.
    AsTheRule {
        /// In µs.
        latency_us: f64,
        /// In µs, at best.
        best_us: f64,
        /// In µs, surely.
        sure_us: f64,
    },
    /// It is longer.
    SlowerThanTheRule {
        /// In µs.
        latency_us: f64,
        /// In µs, at best.
        best_us: f64,
        /// In µs, surely.
        sure_us: f64,
    },
    /// It is shorter.
    FasterThanTheRule {
        /// In µs.
        latency_us: f64,
        /// In µs, at best.
        best_us: f64,
        /// In µs, surely.
        sure_us: f64,
    },
    /// No source has a rule: whether the latency is as it should be is not known.
    NoRule {
        /// In µs.
        latency_us: f64,
    },
    /// More were to be in flight than were.
    QueueNotFull {
        /// On average.
        in_flight: f64,
        /// What was to be.
        told: u64,
    },
    /// Something held the job back on purpose.
    Paced {
        /// Its name.
        by: String,
    },
    /// Writes waited for flushes.
    Flushed,
    /// What was to keep many in flight does one at a time.
    OneAtATime {
        /// Its name.
        engine: String,
    },
    /// The page cache stood between.
    PageCache,
    /// A job had no more CPU time.
    BusyJob {
        /// In % of one CPU.
        percent: f64,
    },
    /// The machine had no more CPU time.
    BusyMachine {
        /// CPUs that the jobs kept busy.
        cpus: f64,
        /// CPUs that there are.
        vcpus: u32,
    },
    /// The jobs were at the same places.
    SamePlaces,
    /// Answers came too soon to come from a disk of this type.
    Memory {
        /// In µs.
        latency_us: f64,
        /// What the type takes at best, in µs.
        best_us: f64,
    },
    /// The run was short enough to be all burst.
    Burst {
        /// In s.
        seconds: f64,
    },
    /// Reads that the disk need not have done.
    EasyReads,
    /// A disk of this size would be allowed as much.
    OtherSize {
        /// Of each disk.
        size: f64,
        /// Its unit.
        unit: &'static str,
    },
    /// More may have been bought than was said, or it is another type or machine.
    OtherConfiguration,
    /// The job reached further than the disk that was named is large.
    BeyondTheEnd {
        /// How far, in bytes.
        reach_bytes: u64,
        /// Bytes of all disks.
        size_bytes: u64,
    },
    /// Other traffic of the machine, of which nothing was said, would explain it.
    OtherTraffic {
        /// In Gbit/s.
        gbit_per_s: f64,
    },
    /// Something in the path takes time: a mirror, a log, a file system, encryption.
    SlowPath {
        /// What it adds to what the model has, in µs, to each.
        extra_us: f64,
    },
    /// Other load on the disks or the machine.
    OtherLoad,
}

impl Case<'_, '_> {
    /// What follows, and what may be the cause. `first` is the limit of which most was taken.
    pub(super) fn findings(
        &self,
        verdict: Verdict,
        bound: Bound,
        first: &Limit,
    ) -> (Vec<Finding>, Vec<Finding>) {
        let mut because = self.of_bound(bound, verdict, first);
        because.extend(self.of_rule(bound));
        because.extend(self.of_job(bound));
        let perhaps = match verdict {
            Verdict::Above => self.why_more(bound, first, &mut because),
            Verdict::Below => self.why_less(bound),
            Verdict::AsPredicted => Vec::new(),
        };
        (because, perhaps)
    }

    fn of_bound(&self, bound: Bound, verdict: Verdict, first: &Limit) -> Vec<Finding> {
        let (kind, because) = (first.kind, first.because.clone());
        match bound {
            Bound::Limit if verdict == Verdict::Above => {
                let iops = self.allowed();
                vec![Finding::BeyondLimit { kind, times: self.used, iops, because }]
            }
            Bound::Limit => vec![Finding::AtLimit { kind, used: self.used, because }],
            Bound::Latency => self.of_latency(),
            Bound::Cpu => {
                let mut out = Vec::new();
                if self.job_is_busy() {
                    out.push(Finding::BusyJob { percent: self.measured.busiest_percent });
                }
                if let Some(vcpus) = self.site.machine.vcpus.filter(|_| self.machine_is_busy()) {
                    out.push(Finding::BusyMachine { cpus: self.measured.cpus, vcpus });
                }
                out
            }
            Bound::Job => {
                let kept = self.in_flight.zip(self.measured.in_flight);
                let not_full = |(in_flight, told)| Finding::QueueNotFull { in_flight, told };
                kept.map(not_full).into_iter().collect()
            }
            Bound::NotKnown => Vec::new(),
        }
    }

    fn of_latency(&self) -> Vec<Finding> {
        let (Some(in_flight), Some(latency_us)) = (self.in_flight, self.latency_us) else {
            return Vec::new();
        };
        let (iops, allowed_iops) = (self.iops, self.allowed());
        vec![Finding::Latency { in_flight, latency_us, iops, allowed_iops }]
    }

    /// How the latency compares with the rule; where a limit is used up it is made by waiting for it
    /// and says nothing.
    fn of_rule(&self, bound: Bound) -> Option<Finding> {
        let latency_us = self.latency_us.filter(|_| bound != Bound::Limit)?;
        let Some((best_us, sure_us)) = self.rule_us else {
            return Some(Finding::NoRule { latency_us });
        };
        // As near as the whole is judged.
        let near = TOLERANCE;
        Some(match latency_us {
            us if us > sure_us * (1.0 + near) => {
                Finding::SlowerThanTheRule { latency_us, best_us, sure_us }
            }
            us if us < best_us * (1.0 - near) => {
                Finding::FasterThanTheRule { latency_us, best_us, sure_us }
            }
            _ => Finding::AsTheRule { latency_us, best_us, sure_us },
        })
    }

    /// What is known of how it was measured and matters.
    fn of_job(&self, bound: Bound) -> Vec<Finding> {
        let measured = self.measured;
        let mut out = Vec::new();
        if bound != Bound::Limit {
            out.extend(measured.paced_by.clone().map(|by| Finding::Paced { by }));
            let engine = measured.one_at_a_time.clone();
            out.extend(engine.map(|engine| Finding::OneAtATime { engine }));
            out.extend((measured.flushed && self.mix.write > 0.0).then_some(Finding::Flushed));
        }
        out.extend(measured.cached.then_some(Finding::PageCache));
        out.extend(measured.same_places.then_some(Finding::SamePlaces));
        out
    }

    fn why_more(&self, bound: Bound, first: &Limit, because: &mut Vec<Finding>) -> Vec<Finding> {
        let measured = self.measured;
        if let (Some(latency_us), Some((best_us, _))) = (self.latency_us, self.rule_us)
            && latency_us < MEMORY_PART * best_us
        {
            because.push(Finding::Memory { latency_us, best_us });
        }
        let mut out = Vec::new();
        if bound != Bound::Limit {
            return out;
        }
        if measured.seconds > 0.0 && measured.seconds < BURST_SECONDS {
            out.push(Finding::Burst { seconds: measured.seconds });
        }
        out.extend((self.mix.read > 0.0).then_some(Finding::EasyReads));
        out.push(self.other_size(first).unwrap_or(Finding::OtherConfiguration));
        let size_bytes = self.size_bytes();
        out.extend(
            measured
                .reach_bytes
                .filter(|reach| *reach > size_bytes)
                .map(|reach_bytes| Finding::BeyondTheEnd { reach_bytes, size_bytes }),
        );
        out
    }

    fn size_bytes(&self) -> u64 {
        let unit = self.site.catalogue.units.size_bytes as f64;
        (self.demand.size * unit * f64::from(self.demand.disks)) as u64
    }

    /// The size that would be allowed as much as was measured, if a size would.
    fn other_size(&self, first: &Limit) -> Option<Finding> {
        let cap = self.hard.iter().find(|cap| {
            cap.kind == LimitKind::Volume
                && first.kind == LimitKind::Volume
                && cap.dimension == first.dimension
        })?;
        let remedies = Remedies {
            site: self.site,
            demand: self.demand,
            workload: self.workload,
            mix: self.mix,
            caps: self.hard,
        };
        let lifts = remedies.of(cap, self.iops);
        // A type that has no more at any size is another type.
        if lifts.contains(&Remedy::OtherType) {
            return None;
        }
        lifts.into_iter().find_map(|lift| match lift {
            Remedy::LargerVolume { size, unit } => Some(Finding::OtherSize { size, unit }),
            _ => None,
        })
    }

    fn why_less(&self, bound: Bound) -> Vec<Finding> {
        let mut out = Vec::new();
        if bound != Bound::Latency {
            return out;
        }
        out.extend(self.other_traffic());
        if let (Some(latency_us), Some((_, sure_us))) = (self.latency_us, self.rule_us)
            && latency_us > sure_us
        {
            out.push(Finding::SlowPath { extra_us: latency_us - sure_us });
        }
        out.push(Finding::OtherLoad);
        out
    }

    /// Traffic that leaves to writes what was measured, if so much is possible: part of the egress is
    /// the disks' whatever else there is.
    fn other_traffic(&self) -> Option<Finding> {
        let egress = self.hard.iter().find(|cap| cap.kind == LimitKind::Egress)?;
        let gbit = self.site.egress_gbit_per_s?;
        let written = egress.write? * self.load.used_of(egress);
        let least = self.site.egress_throughput(gbit, gbit);
        let own = self.site.network_gbit_per_s;
        let near = 1.0 - TOLERANCE;
        let below = egress.dimension == Dimension::Throughput && written >= least * near;
        let left = gbit * written / self.site.egress_throughput(gbit, 0.0);
        (below && gbit - left > own).then_some(Finding::OtherTraffic { gbit_per_s: gbit - left })
    }

    /// Whether sequential I/O came from one place alone.
    pub(super) fn is_one_stream(&self) -> bool {
        self.measured.access == Access::Sequential && self.measured.jobs == 1
    }
}

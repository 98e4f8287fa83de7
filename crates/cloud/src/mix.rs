//! Mixed workloads: the IOPS of a mix of reads and writes under limits.
//!
//! All functions return IOPS of reads and writes together, and `f64::INFINITY` without a limit.

use crate::caps::Cap;
use crate::catalog::{Sharing, Units};
use crate::input::Workload;
use crate::prediction::Dimension;

/// The properties of a workload that limits depend on, in a catalog's units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkloadMix {
    pub read: f64,
    pub write: f64,
    /// Throughput of one I/O per second, in the catalog's unit.
    pub throughput_per_io: f64,
    pub iops: Sharing,
    pub throughput: Sharing,
}

impl WorkloadMix {
    pub fn new(workload: &Workload, units: &Units, rules: (Sharing, Sharing)) -> WorkloadMix {
        WorkloadMix::of_reads(workload.read_part(), workload.block_bytes, units, rules)
    }

    pub(crate) fn of_reads(
        read: f64,
        block_bytes: u64,
        units: &Units,
        (iops, throughput): (Sharing, Sharing),
    ) -> WorkloadMix {
        let throughput_per_io = units.block_of(block_bytes) / units.blocks_per_throughput as f64;
        WorkloadMix { read, write: 1.0 - read, throughput_per_io, iops, throughput }
    }

    /// Whether both reads and writes occur.
    pub fn is_mixed(&self) -> bool {
        self.read > 0.0 && self.write > 0.0
    }

    /// IOPS of the mix under all these limits together.
    ///
    /// The maxima of the sharing rules are the lowest limits of each kind. Reads and writes use up
    /// a budget in fractions of their maxima.
    pub fn iops_under<'c, 'a: 'c>(&self, caps: impl Iterator<Item = &'c Cap<'a>>) -> f64 {
        let mut most = [(f64::INFINITY, f64::INFINITY); 2];
        let mut apart = f64::INFINITY;
        for cap in caps {
            let (read, write) = self.as_iops(cap);
            if cap.together {
                apart = apart.min(self.shared(read, write));
            }
            if !cap.soft {
                let of = &mut most[usize::from(cap.dimension == Dimension::Throughput)];
                *of = (of.0.min(read), of.1.min(write));
            }
        }
        let [iops, throughput] = most;
        self.under(iops, self.iops).min(self.under(throughput, self.throughput)).min(apart)
    }

    pub(crate) fn iops_under_one(&self, cap: &Cap<'_>) -> f64 {
        self.iops_under(std::iter::once(cap))
    }

    fn as_iops(&self, cap: &Cap<'_>) -> (f64, f64) {
        let scale = match cap.dimension {
            Dimension::Iops => 1.0,
            Dimension::Throughput => 1.0 / self.throughput_per_io,
        };
        let iops = |limit: Option<f64>| limit.map_or(f64::INFINITY, |limit| limit * scale);
        (iops(cap.read), iops(cap.write))
    }

    fn under(&self, (read, write): (f64, f64), sharing: Sharing) -> f64 {
        match sharing {
            // Half duplex: one budget for both. If the maxima differ, the line between them keeps
            // each below its own.
            Sharing::Shared | Sharing::HalfDuplex => self.shared(read, write),
            Sharing::Independent => {
                let of =
                    |part: f64, most: f64| if part > 0.0 { most / part } else { f64::INFINITY };
                of(self.read, read).min(of(self.write, write))
            }
        }
    }

    /// The point on the line `read / read_max + write / write_max = 1`.
    fn shared(&self, read: f64, write: f64) -> f64 {
        let of = |part: f64, most: f64| if part > 0.0 { part / most } else { 0.0 };
        let spent = of(self.read, read) + of(self.write, write);
        if spent > 0.0 { 1.0 / spent } else { f64::INFINITY }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::LimitKind;
    use proptest::prelude::*;

    fn cap(dimension: Dimension, read: f64, write: f64) -> Cap<'static> {
        static NONE: Vec<String> = Vec::new();
        Cap {
            kind: LimitKind::Vm,
            dimension,
            read: Some(read),
            write: Some(write),
            together: false,
            soft: false,
            source: &NONE,
            confidence: None,
        }
    }

    fn mix(read: f64, rule: Sharing) -> WorkloadMix {
        WorkloadMix {
            read,
            write: 1.0 - read,
            throughput_per_io: 0.016,
            iops: rule,
            throughput: rule,
        }
    }

    #[test]
    fn sharing_rules_match_published_points() {
        let limit = [cap(Dimension::Iops, 60000.0, 30000.0)];
        // 45,000 and 7,500 lie on the line; independent limits would allow 30,000 writes.
        let shared = mix(45.0 / 52.5, Sharing::Shared).iops_under(limit.iter());
        assert!((shared - 52500.0).abs() < 1e-6, "{shared}");
        let apart = mix(2.0 / 3.0, Sharing::Independent).iops_under(limit.iter());
        assert!((apart - 90000.0).abs() < 1e-6, "{apart}");
        let one = [cap(Dimension::Throughput, 240.0, 240.0)];
        let half = mix(0.25, Sharing::HalfDuplex).iops_under(one.iter());
        assert!((half * 0.016 - 240.0).abs() < 1e-6, "{half}");
    }

    #[test]
    fn missing_limit_is_infinite() {
        assert_eq!(mix(0.5, Sharing::Shared).iops_under(std::iter::empty()), f64::INFINITY);
        let reads = Cap { write: None, ..cap(Dimension::Iops, 100.0, 0.0) };
        assert_eq!(mix(0.0, Sharing::Shared).iops_under_one(&reads), f64::INFINITY);
        assert_eq!(mix(1.0, Sharing::Shared).iops_under_one(&reads), 100.0);
    }

    proptest! {
        #[test]
        fn independent_sharing_allows_most(
            read in 0.0f64..=1.0,
            most in (1.0f64..1e6, 1.0f64..1e6),
        ) {
            let limit = [cap(Dimension::Iops, most.0, most.1)];
            let under = |rule| mix(read, rule).iops_under(limit.iter());
            let (shared, apart) = (under(Sharing::Shared), under(Sharing::Independent));
            prop_assert!(shared <= apart * (1.0 + 1e-12));
            prop_assert!(apart <= 2.0 * shared * (1.0 + 1e-12));
            let slack = 1.0 + 1e-9;
            prop_assert!(shared * read <= most.0 * slack && shared * (1.0 - read) <= most.1 * slack);
        }

        #[test]
        fn additional_limit_is_never_faster(
            read in 0.0f64..=1.0,
            limits in prop::collection::vec((any::<bool>(), 1.0f64..1e6, 1.0f64..1e6), 1..6),
        ) {
            let caps: Vec<_> = limits
                .iter()
                .map(|(iops, r, w)| {
                    let dimension = if *iops { Dimension::Iops } else { Dimension::Throughput };
                    cap(dimension, *r, *w)
                })
                .collect();
            let mix = mix(read, Sharing::Shared);
            let all = mix.iops_under(caps.iter());
            for index in 0..caps.len() {
                let fewer = caps.iter().enumerate().filter(|(at, _)| *at != index);
                prop_assert!(all <= mix.iops_under(fewer.map(|(_, cap)| cap)) * (1.0 + 1e-12));
            }
        }
    }
}

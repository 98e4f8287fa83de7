//! Utilization of limits: the inverse of [`crate::mix`], for reads and writes with different block
//! sizes.

use crate::caps::Cap;
use crate::catalog::{Sharing, Units};
use crate::judge::MeasuredRun;
use crate::prediction::Dimension;

/// A measurement in a catalog's units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct MeasuredLoad {
    iops: (f64, f64),
    throughput: (f64, f64),
    rules: (Sharing, Sharing),
}

impl MeasuredLoad {
    pub(super) fn new(
        measured: &MeasuredRun,
        units: &Units,
        rules: (Sharing, Sharing),
    ) -> MeasuredLoad {
        let unit = units.throughput_bytes() as f64;
        let throughput = (measured.read.bytes_per_s / unit, measured.write.bytes_per_s / unit);
        MeasuredLoad { iops: (measured.read.iops, measured.write.iops), throughput, rules }
    }

    /// Utilization of one limit; 0 if it does not limit this load.
    pub(super) fn utilization_of(&self, cap: &Cap<'_>) -> f64 {
        let (amounts, rule) = self.of(cap.dimension);
        let limits = (cap.read.unwrap_or(f64::INFINITY), cap.write.unwrap_or(f64::INFINITY));
        part(amounts, limits, if cap.together { Sharing::Shared } else { rule })
    }

    /// Utilization of all limits together: shared budgets combine the lowest limits.
    pub(super) fn utilization(&self, caps: &[Cap<'_>]) -> f64 {
        let together = caps.iter().filter(|cap| cap.together).map(|cap| self.utilization_of(cap));
        let budgets = [Dimension::Iops, Dimension::Throughput]
            .map(|dimension| self.utilization_in(dimension, caps));
        budgets.into_iter().chain(together).fold(0.0, f64::max)
    }

    pub(super) fn utilization_in(&self, dimension: Dimension, caps: &[Cap<'_>]) -> f64 {
        let mut least = (f64::INFINITY, f64::INFINITY);
        for cap in caps.iter().filter(|cap| cap.dimension == dimension && !cap.soft) {
            least.0 = least.0.min(cap.read.unwrap_or(f64::INFINITY));
            least.1 = least.1.min(cap.write.unwrap_or(f64::INFINITY));
        }
        let (amounts, rule) = self.of(dimension);
        part(amounts, least, rule)
    }

    fn of(&self, dimension: Dimension) -> ((f64, f64), Sharing) {
        match dimension {
            Dimension::Iops => (self.iops, self.rules.0),
            Dimension::Throughput => (self.throughput, self.rules.1),
        }
    }
}

fn part(amounts: (f64, f64), limits: (f64, f64), rule: Sharing) -> f64 {
    // Without I/O, even a limit of 0 has no utilization.
    let of = |amount: f64, limit: f64| if amount > 0.0 { amount / limit } else { 0.0 };
    let (read, write) = (of(amounts.0, limits.0), of(amounts.1, limits.1));
    match rule {
        Sharing::Shared | Sharing::HalfDuplex => read + write,
        Sharing::Independent => read.max(write),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::caps::QueueFigure;
    use crate::catalog::Catalog;
    use crate::input::{DiskConfiguration, Workload};
    use crate::judge::MeasuredRates;
    use crate::mix::WorkloadMix;
    use crate::placement::Placement;

    proptest! {
        /// Utilization is the exact inverse of the allowed rate.
        #[test]
        fn utilization_inverts_mix(
            kind in 0usize..20, block in 9u32..22, percent in 0u8..=100, part in 0.01f64..3.0,
        ) {
            let catalog = Catalog::builtin("gcp-current").unwrap();
            let kinds: Vec<_> = catalog.types.keys().collect();
            let kind = kinds[kind % kinds.len()];
            let machine = "n2-standard-8";
            let size = 2000 << 30;
            let Ok(configuration) = DiskConfiguration::new(catalog, kind, size, machine) else {
                return Ok(());
            };
            let Ok(placement) = Placement::of(catalog, &configuration) else { return Ok(()) };
            let Ok(demand) = placement.demand(&configuration) else { return Ok(()) };
            let workload = Workload::random(1 << block, percent);
            let mix = WorkloadMix::new(&workload, &catalog.units, placement.sharing());
            let mut caps = placement.hard_caps(&demand, workload.block_bytes);
            caps.extend(placement.soft_caps(&workload, QueueFigure::Low));
            let allowed = mix.iops_under(caps.iter());
            prop_assume!(allowed.is_finite());
            let of = |share: f64| {
                let iops = allowed * share * part;
                MeasuredRates { iops, bytes_per_s: iops * workload.block_bytes as f64, latency_us: None }
            };
            let measured =
                MeasuredRun { read: of(mix.read), write: of(mix.write), ..MeasuredRun::default() };
            let load = MeasuredLoad::new(&measured, &catalog.units, placement.sharing());
            let utilization = load.utilization(&caps);
            prop_assert!((utilization - part).abs() < 1e-9 * part, "{kind}: {utilization} of {part}");
        }
    }
}

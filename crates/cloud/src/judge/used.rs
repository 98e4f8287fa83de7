//! How much of limits was taken: [`crate::mix`] turned round, for reads and writes whose blocks may
//! differ.

use crate::caps::Cap;
use crate::catalogue::{Sharing, Units};
use crate::judge::Measured;
use crate::prediction::Dimension;

/// What was measured, in a catalogue's units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Load {
    /// Reads and writes a second.
    iops: (f64, f64),
    /// The same as throughput.
    throughput: (f64, f64),
    /// How reads and writes share IOPS, and throughput.
    rules: (Sharing, Sharing),
}

impl Load {
    pub(super) fn new(measured: &Measured, units: &Units, rules: (Sharing, Sharing)) -> Load {
        let unit = units.throughput_bytes() as f64;
        let throughput = (measured.read.bytes_per_s / unit, measured.write.bytes_per_s / unit);
        Load { iops: (measured.read.iops, measured.write.iops), throughput, rules }
    }

    /// The part of one limit that was taken; 0 if it does not limit this.
    pub(super) fn used_of(&self, cap: &Cap<'_>) -> f64 {
        let (amounts, rule) = self.of(cap.dimension);
        let limits = (cap.read.unwrap_or(f64::INFINITY), cap.write.unwrap_or(f64::INFINITY));
        part(amounts, limits, if cap.together { Sharing::Shared } else { rule })
    }

    /// The part of all limits together: the budgets that reads and writes share are made of the
    /// least of all limits.
    pub(super) fn used(&self, caps: &[Cap<'_>]) -> f64 {
        let together = caps.iter().filter(|cap| cap.together).map(|cap| self.used_of(cap));
        let budgets =
            [Dimension::Iops, Dimension::Throughput].map(|dimension| self.used_in(dimension, caps));
        budgets.into_iter().chain(together).fold(0.0, f64::max)
    }

    /// The part of the limits in one dimension.
    pub(super) fn used_in(&self, dimension: Dimension, caps: &[Cap<'_>]) -> f64 {
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
    // Of a limit of 0, nothing is nothing.
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
    use crate::catalogue::Catalogue;
    use crate::input::{Configuration, Workload};
    use crate::judge::Part;
    use crate::mix::Mix;
    use crate::site::Site;

    proptest! {
        /// What a mix is allowed, taken to the full, is all of what there is: no more, no less.
        #[test]
        fn it_is_the_mix_turned_round(
            kind in 0usize..20, block in 9u32..22, percent in 0u8..=100, part in 0.01f64..3.0,
        ) {
            let catalogue = Catalogue::builtin("gcp-current").unwrap();
            let kinds: Vec<_> = catalogue.types.keys().collect();
            let kind = kinds[kind % kinds.len()];
            let machine = "n2-standard-8";
            let size = 2000 << 30;
            let Ok(configuration) = Configuration::new(catalogue, kind, size, machine) else {
                return Ok(());
            };
            let Ok(site) = Site::of(catalogue, &configuration) else { return Ok(()) };
            let Ok(demand) = site.demand(&configuration) else { return Ok(()) };
            let workload = Workload::random(1 << block, percent);
            let mix = Mix::new(&workload, &catalogue.units, site.sharing());
            let mut caps = site.hard_caps(&demand, workload.block_bytes);
            caps.extend(site.soft_caps(&workload, QueueFigure::Low));
            let allowed = mix.iops_under(caps.iter());
            prop_assume!(allowed.is_finite());
            let of = |share: f64| {
                let iops = allowed * share * part;
                Part { iops, bytes_per_s: iops * workload.block_bytes as f64, latency_us: None }
            };
            let measured =
                Measured { read: of(mix.read), write: of(mix.write), ..Measured::default() };
            let load = Load::new(&measured, &catalogue.units, site.sharing());
            let used = load.used(&caps);
            prop_assert!((used - part).abs() < 1e-9 * part, "{kind}: {used} of {part}");
        }
    }
}

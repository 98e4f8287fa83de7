//! Smallest disks of a type on a machine that carry a need.
//!
//! The smallest is the cheapest. For a number of disks, the choices are size, IOPS and throughput
//! of each. Every rule of the catalog bounds one of them from below by something that rises with
//! the others (GB per IOPS, throughput per GB), and every limit rises with them. Therefore one
//! smallest triple satisfies all rules, and it is smaller in each member than every other one. No
//! price falls when more is bought.

use crate::caps::{Cap, QueueFigure};
use crate::catalog::ProvisionedRule;
use crate::cheapest::need::{RequiredLoad, Requirement};
use crate::input::Workload;
use crate::placement::{Demand, Placement};

/// Upper bound of every purchase, in whole units.
const WHOLE_MAX: u64 = 1 << 40;

/// Relative difference below which two figures are equal.
const SAME: f64 = 1e-9;

/// Reason that no disks of a type are sufficient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Misfit {
    /// The number of disks, or their size, is not available.
    Count,
    /// A load exceeds the largest available limit.
    RequiredLoad(Requirement),
}

/// A disk type on a machine with its need, solved as far as the number of disks does not matter.
#[derive(Debug)]
pub(super) struct Fit<'s, 'a> {
    placement: &'s Placement<'a>,
    loads: Vec<RequiredLoad>,
    capacity: f64,
    /// Total size that carries the loads, for types with limits by size.
    size: f64,
    /// IOPS bought for all disks together.
    iops: Option<f64>,
    /// Throughput bought for all disks together.
    throughput: Option<f64>,
}

impl<'s, 'a> Fit<'s, 'a> {
    pub(super) fn new(
        placement: &'s Placement<'a>,
        loads: Vec<RequiredLoad>,
        capacity: f64,
    ) -> Result<Fit<'s, 'a>, Misfit> {
        let mut fit = Fit { placement, loads, capacity, size: 0.0, iops: None, throughput: None };
        if placement.size_each().is_some() {
            return Ok(fit);
        }
        let endless = Demand {
            size: WHOLE_MAX as f64,
            disks: 1,
            iops: Some(f64::INFINITY),
            throughput: Some(f64::INFINITY),
        };
        let endless = match &placement.disk.provisioned {
            // Throughput that a type neither sells nor derives follows the machine.
            Some(part) => Demand {
                throughput: endless.throughput.filter(|_| sells_throughput(part)),
                ..endless
            },
            None => Demand { iops: None, throughput: None, ..endless },
        };
        if let Some(what) = fit.fails(&endless) {
            return Err(Misfit::RequiredLoad(what));
        }
        // Each of the three, with the others unlimited.
        if placement.volume_limits().is_some() {
            fit.size = fit.least(|size| Demand { size, ..endless });
        }
        if placement.disk.provisioned.is_some() {
            fit.iops = Some(fit.least(|iops| Demand { iops: Some(iops), ..endless }));
            fit.throughput = endless.throughput.map(|_| {
                fit.least(|throughput| Demand { throughput: Some(throughput), ..endless })
            });
        }
        Ok(fit)
    }

    /// The smallest sufficient whole number, which must exist.
    fn least(&self, demand: impl Fn(f64) -> Demand) -> f64 {
        let (mut enough, mut short) = (WHOLE_MAX, 0);
        if self.fails(&demand(0.0)).is_none() {
            return 0.0;
        }
        while enough - short > 1 {
            let middle = short + (enough - short) / 2;
            match self.fails(&demand(middle as f64)) {
                Some(_) => short = middle,
                None => enough = middle,
            }
        }
        enough as f64
    }

    /// The first load that exceeds the limits.
    fn fails(&self, demand: &Demand) -> Option<Requirement> {
        let short =
            |load: &&RequiredLoad| carries(self.placement, demand, load) < load.iops * (1.0 - SAME);
        self.loads.iter().find(short).map(|load| load.what)
    }

    /// The smallest sufficient configuration of `disks` disks.
    pub(super) fn with(&self, disks: u32) -> Result<Demand, Misfit> {
        let count = f64::from(disks);
        let each = |all: f64| (all / count * (1.0 - SAME)).ceil();
        if let Some(size) = self.placement.size_each() {
            return self.with_each(size, disks);
        }
        let least = self.placement.disk.size_gb_min.unwrap_or(1.0);
        let size = each(self.capacity.max(self.size)).max(least);
        let demand = match &self.placement.disk.provisioned {
            None => Demand { size, disks, iops: None, throughput: None },
            Some(part) => {
                let iops = each(self.iops.unwrap_or(0.0));
                let throughput = each(self.throughput.unwrap_or(0.0));
                purchasable(part, size, iops, throughput)
                    .map(|(size, iops, throughput)| Demand { size, disks, iops, throughput })?
            }
        };
        let disk = self.placement.disk;
        let all = demand.size * count;
        if disk.size_gb_max.is_some_and(|most| demand.size > most)
            || disk.size_gb_max_vm.is_some_and(|most| all > most)
        {
            return Err(Misfit::Count);
        }
        Ok(demand)
    }

    /// Disks of one size: only their number can be chosen.
    fn with_each(&self, size: f64, disks: u32) -> Result<Demand, Misfit> {
        let counts = self.placement.local_counts();
        if !counts.iter().any(|range| range.contains(disks)) {
            return Err(Misfit::Count);
        }
        if size * f64::from(disks) < self.capacity * (1.0 - SAME) {
            return Err(Misfit::RequiredLoad(Requirement::Capacity));
        }
        let demand = Demand { size, disks, iops: None, throughput: None };
        self.fails(&demand).map_or(Ok(demand), |what| Err(Misfit::RequiredLoad(what)))
    }
}

/// IOPS of a load under the limits of disks and machine at any depth. 0 without a known limit,
/// because nothing is promised then.
pub(super) fn carries(placement: &Placement<'_>, demand: &Demand, load: &RequiredLoad) -> f64 {
    let caps = caps(placement, demand, load);
    let most = load.mix.iops_under(caps.iter());
    if most.is_finite() { most } else { 0.0 }
}

pub(super) fn caps<'a>(
    placement: &Placement<'a>,
    demand: &Demand,
    load: &RequiredLoad,
) -> Vec<Cap<'a>> {
    let mut caps = placement.hard_caps(demand, load.block_bytes);
    let any_depth = Workload::random(load.block_bytes, 50);
    caps.extend(placement.soft_caps(&any_depth, QueueFigure::Low));
    caps
}

fn sells_throughput(part: &ProvisionedRule) -> bool {
    part.mb_per_s_per_iops.is_some()
        || part.mb_per_s_min.is_some()
        || part.mb_per_s_default.is_some()
}

/// The smallest purchasable size, IOPS and throughput of a disk, none below the given values.
fn purchasable(
    part: &ProvisionedRule,
    size: f64,
    iops: f64,
    throughput: f64,
) -> Result<(f64, Option<f64>, Option<f64>), Misfit> {
    let above = |value: f64, most: Option<f64>| most.is_some_and(|most| value > most);
    if above(iops, part.iops_max) || above(throughput, part.mb_per_s_max) {
        return Err(Misfit::Count);
    }
    let (mut size, mut iops, mut throughput) = (size, iops, throughput);
    let up = |value: f64| (value * (1.0 - SAME)).ceil();
    // Each round raises the values that a rule demands. A chain of rules is at most three long, so
    // a round without a change comes; values that grow without end stop at the maxima below.
    for _ in 0..16 {
        let before = (size, iops, throughput);
        if let Some(rate) = part.iops_per_mb_per_s {
            // IOPS follow the throughput.
            throughput = throughput.max(up(iops / rate));
            iops = (rate * throughput).min(part.iops_max.unwrap_or(f64::INFINITY));
        } else {
            iops = iops.max(part.iops_min.unwrap_or(0.0));
        }
        if let Some(rate) = part.mb_per_s_per_iops {
            // Throughput follows the IOPS.
            iops = iops.max(up(throughput / rate));
            throughput = (rate * iops).min(part.mb_per_s_max.unwrap_or(f64::INFINITY));
        } else if let Some(range) = part.throughput_range(size, Some(iops)) {
            throughput = throughput.max(up(range.min));
            if let Some(rate) = part.mb_per_s_per_iops_max {
                iops = iops.max(up(throughput / rate));
            }
            if let Some(rate) = part.mb_per_s_per_gb_max {
                size = size.max(up(throughput / rate));
            }
        }
        if let Some(rate) = part.iops_per_gb_max {
            size = size.max(up(iops / rate));
        }
        size = size.max(part.size_for_iops(iops).ok_or(Misfit::Count)?);
        if before == (size, iops, throughput) {
            break;
        }
    }
    if above(iops, part.iops_max) || above(throughput, part.mb_per_s_max) {
        return Err(Misfit::Count);
    }
    let throughput = sells_throughput(part).then_some(throughput);
    Ok((size, Some(iops), throughput))
}

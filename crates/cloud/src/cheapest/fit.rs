//! The least disks of a type on a machine that carry what is needed.
//!
//! Why the least is the cheapest: of a number of disks, what each can be bought with is a size, IOPS
//! and a throughput. Every rule of the catalogue says that one of them is not below something that
//! rises with the others (so many GB for each IOPS, so much throughput for each GB), and every limit
//! rises with them. So there is one smallest triple that meets all of it, smaller in each of the
//! three than any other that does; and no price falls when more is bought.

use crate::caps::{Cap, QueueFigure};
use crate::catalogue::Provisioned;
use crate::cheapest::need::{Load, What};
use crate::input::Workload;
use crate::site::{Demand, Site};

/// More of anything than can be bought anywhere, in whole units.
const WHOLE_MAX: u64 = 1 << 40;

/// Two figures closer than this are the same.
const SAME: f64 = 1e-9;

/// Why no disks of a type are enough.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Misfit {
    /// So many disks of the type cannot be had, or not so large.
    Count,
    /// A load is more than the most that can be had carries.
    Load(What),
}

/// A type of disk on a machine, with what it is to carry, settled as far as the number of disks
/// does not matter.
#[derive(Debug)]
pub(super) struct Fit<'s, 'a> {
    site: &'s Site<'a>,
    loads: Vec<Load>,
    /// Whole units to keep, in the catalogue's unit.
    capacity: f64,
    /// Sizes of all disks together that carry the loads, for types whose limits follow the size.
    size: f64,
    /// IOPS bought for all disks together.
    iops: Option<f64>,
    /// Throughput bought for all disks together.
    throughput: Option<f64>,
}

impl<'s, 'a> Fit<'s, 'a> {
    /// # Errors
    /// That it is more than any number of disks carries on this machine.
    pub(super) fn new(
        site: &'s Site<'a>,
        loads: Vec<Load>,
        capacity: f64,
    ) -> Result<Fit<'s, 'a>, Misfit> {
        let mut fit = Fit { site, loads, capacity, size: 0.0, iops: None, throughput: None };
        if site.size_each().is_some() {
            return Ok(fit);
        }
        let endless = Demand {
            size: WHOLE_MAX as f64,
            disks: 1,
            iops: Some(f64::INFINITY),
            throughput: Some(f64::INFINITY),
        };
        let endless = match &site.disk.provisioned {
            // What a type does not sell and does not derive is the machine's.
            Some(part) => Demand {
                throughput: endless.throughput.filter(|_| sells_throughput(part)),
                ..endless
            },
            None => Demand { iops: None, throughput: None, ..endless },
        };
        if let Some(what) = fit.fails(&endless) {
            return Err(Misfit::Load(what));
        }
        // Each of the three by itself, the others without end.
        if site.volume_limits().is_some() {
            fit.size = fit.least(|size| Demand { size, ..endless });
        }
        if site.disk.provisioned.is_some() {
            fit.iops = Some(fit.least(|iops| Demand { iops: Some(iops), ..endless }));
            fit.throughput = endless.throughput.map(|_| {
                fit.least(|throughput| Demand { throughput: Some(throughput), ..endless })
            });
        }
        Ok(fit)
    }

    /// The least whole number that is enough; there is one.
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

    /// The first load that is too much.
    fn fails(&self, demand: &Demand) -> Option<What> {
        let short = |load: &&Load| carries(self.site, demand, load) < load.iops * (1.0 - SAME);
        self.loads.iter().find(short).map(|load| load.what)
    }

    /// The least `disks` that are enough.
    ///
    /// # Errors
    /// Why so many are not.
    pub(super) fn with(&self, disks: u32) -> Result<Demand, Misfit> {
        let count = f64::from(disks);
        let each = |all: f64| (all / count * (1.0 - SAME)).ceil();
        if let Some(size) = self.site.size_each() {
            return self.with_each(size, disks);
        }
        let least = self.site.disk.size_gb_min.unwrap_or(1.0);
        let size = each(self.capacity.max(self.size)).max(least);
        let demand = match &self.site.disk.provisioned {
            None => Demand { size, disks, iops: None, throughput: None },
            Some(part) => {
                let iops = each(self.iops.unwrap_or(0.0));
                let throughput = each(self.throughput.unwrap_or(0.0));
                settle(part, size, iops, throughput).map(|(size, iops, throughput)| Demand {
                    size,
                    disks,
                    iops,
                    throughput,
                })?
            }
        };
        if self.site.disk.size_gb_max.is_some_and(|most| demand.size > most) {
            return Err(Misfit::Count);
        }
        Ok(demand)
    }

    /// Disks of one size: nothing can be bought but their number.
    fn with_each(&self, size: f64, disks: u32) -> Result<Demand, Misfit> {
        let machine = &self.site.machine.name;
        let fixed = self.site.catalogue.fixed_disks(self.site.kind, machine);
        if fixed.is_some_and(|fixed| fixed != disks) || self.site.count_row(disks).is_none() {
            return Err(Misfit::Count);
        }
        if size * f64::from(disks) < self.capacity * (1.0 - SAME) {
            return Err(Misfit::Load(What::Capacity));
        }
        let demand = Demand { size, disks, iops: None, throughput: None };
        self.fails(&demand).map_or(Ok(demand), |what| Err(Misfit::Load(what)))
    }
}

/// IOPS of a load that the disks and the machine carry, whatever the depth. 0 where no limit is
/// known: nothing is promised then.
pub(super) fn carries(site: &Site<'_>, demand: &Demand, load: &Load) -> f64 {
    let caps = caps(site, demand, load);
    let most = load.mix.iops_under(caps.iter());
    if most.is_finite() { most } else { 0.0 }
}

/// All limits of a load but the queue depth, which is the user's to choose.
pub(super) fn caps<'a>(site: &Site<'a>, demand: &Demand, load: &Load) -> Vec<Cap<'a>> {
    let mut caps = site.hard_caps(demand, load.block_bytes);
    let any_depth = Workload::random(load.block_bytes, 50);
    caps.extend(site.soft_caps(&any_depth, QueueFigure::Low));
    caps
}

fn sells_throughput(part: &Provisioned) -> bool {
    part.mb_per_s_per_iops.is_some()
        || part.mb_per_s_min.is_some()
        || part.mb_per_s_default.is_some()
}

/// The least size, IOPS and throughput of a disk, none below what is given, that can be bought.
fn settle(
    part: &Provisioned,
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
    // Each turn raises what a rule asks for. A chain of rules is at most three long, so a turn
    // without a change comes; those that would go on for ever end at the maxima below.
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

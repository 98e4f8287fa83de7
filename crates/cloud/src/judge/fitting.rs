//! Fitting caps: configurations and observations that would explain a measured rate.
//!
//! A rate below every known limit may be held by a cap that the given configuration does not have:
//! the disk or the machine is another one than given, or the catalog has only an observation of it.

use crate::caps::Cap;
use crate::input::{DiskConfiguration, Machine};
use crate::judge::Case;
use crate::judge::causes::Cause;
use crate::judge::utilization::MeasuredLoad;
use crate::limits::{CAP_TOLERANCE, TOLERANCE};
use crate::placement::Placement;

/// Most caps of each kind that are named.
const NAMED: usize = 2;

impl Case<'_, '_> {
    /// Caps that equal the measured rate.
    pub(super) fn fitting_caps(&self, given: &DiskConfiguration) -> Vec<Cause> {
        let mut out = self.observed_caps(given);
        let catalog = self.placement.catalog;
        let other_types = catalog.types.keys().filter(|kind| **kind != given.kind);
        let types = other_types.filter_map(|kind| {
            let configuration = DiskConfiguration { kind: kind.clone(), ..given.clone() };
            let iops = self.fits(&configuration)?;
            Some(Cause::FittingType { kind: kind.clone(), iops })
        });
        out.extend(types.take(NAMED));
        let machines = self.other_machines(given).into_iter().filter_map(|machine| {
            let name = machine.name.clone();
            let iops = self.fits(&DiskConfiguration { machine, ..given.clone() })?;
            Some(Cause::FittingMachine { machine: name, iops })
        });
        out.extend(machines.take(NAMED));
        out
    }

    /// The IOPS that another configuration allows, if they equal the measured ones.
    fn fits(&self, configuration: &DiskConfiguration) -> Option<f64> {
        let placement = Placement::of(self.placement.catalog, configuration).ok()?;
        let demand = placement.demand(configuration).ok()?;
        let units = &placement.catalog.units;
        let load = MeasuredLoad::new(self.measured, units, placement.sharing());
        let block = self.workload.block_bytes.max(1);
        let mut hard = placement.hard_caps(&demand, block);
        hard.retain(|cap: &Cap<'_>| load.utilization_of(cap) > 0.0);
        let utilization = load.utilization(&hard);
        ((utilization - 1.0).abs() <= CAP_TOLERANCE).then(|| self.iops / utilization)
    }

    /// Machines of the family with other numbers of vCPUs.
    fn other_machines(&self, given: &DiskConfiguration) -> Vec<Machine> {
        let catalog = self.placement.catalog;
        let family = catalog.families.get(&given.machine.family);
        let counts = family.and_then(|family| family.vcpus.as_ref()).into_iter().flatten();
        let others = counts.filter(|count| Some(**count) != given.machine.vcpus);
        let name = |count: &u32| format!("{}-standard-{count}", given.machine.family);
        others.filter_map(|count| catalog.machine(&name(count)).ok()).collect()
    }

    /// Measurements in the catalog of the same disk that have the same rate, those on the given
    /// machine first.
    fn observed_caps(&self, given: &DiskConfiguration) -> Vec<Cause> {
        let catalog = self.placement.catalog;
        let unit = catalog.units.throughput_bytes() as f64;
        let size = catalog.units.size_of(given.size_bytes);
        let near = |found: Option<f64>, measured: f64| {
            found.is_some_and(|found| measured > 0.0 && (found / measured - 1.0).abs() <= TOLERANCE)
        };
        let (read, write) = (&self.measured.read, &self.measured.write);
        let same = |observation: &&crate::catalog::Observation| {
            observation.measured
                && observation.kind == given.kind
                && observation.size_gb.is_none_or(|other| (other / size - 1.0).abs() <= TOLERANCE)
                && observation.disks.unwrap_or(1) == given.disks
        };
        let observations = catalog.observations.iter().filter(same).filter(|observation| {
            near(observation.read_iops, read.iops)
                || near(observation.write_iops, write.iops)
                || near(observation.read_mb_per_s, read.bytes_per_s / unit)
                || near(observation.write_mb_per_s, write.bytes_per_s / unit)
        });
        let source = |observation: &crate::catalog::Observation| {
            let keys = observation.source.iter().filter_map(|key| catalog.sources.get(key));
            keys.map(|source| source.address.clone()).collect::<Vec<_>>().join(", ")
        };
        let mut observed: Vec<(&str, String)> =
            observations.filter_map(|one| Some((one.machine.as_deref()?, source(one)))).collect();
        observed.sort_by_key(|(machine, _)| *machine != given.machine.name);
        let cause = |(machine, source): (&str, String)| Cause::Observed {
            source,
            machine: machine.to_owned(),
        };
        observed.into_iter().take(NAMED).map(cause).collect()
    }
}

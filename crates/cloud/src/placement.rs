//! Placement: a disk type on a machine. Its catalog rows are looked up once, so that many sizes
//! and numbers of disks can be tried cheaply.

use flagstone_units::grouped;

use crate::catalog::{
    Catalog, CountRange, CountRow, CountTable, Cpu, DiskType, EgressRow, LocalSsd, Mixing,
    NamePattern, Sharing, Support, VmRow, VmTable, VolumeLimits,
};
use crate::input::{DiskConfiguration, Machine, PlanError};
use crate::mix::WorkloadMix;

#[derive(Debug, Clone)]
pub struct Placement<'a> {
    pub catalog: &'a Catalog,
    pub kind: &'a str,
    pub disk: &'a DiskType,
    pub machine: Machine,
    pub regional: bool,
    /// Other traffic that the machine sends, in Gbit/s.
    pub other_egress_gbit_per_s: f64,
    /// Egress of the machine; not known if `None`.
    pub(crate) egress_gbit_per_s: Option<f64>,
    /// The machine's limits; not known if `None`.
    pub vm: Option<(&'a VmTable, &'a VmRow)>,
    /// The provider must approve the combination.
    pub by_request: bool,
}

/// Disks in the catalog's units, with their purchased performance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    pub size: f64,
    pub disks: u32,
    /// IOPS bought for each, for types that sell or derive them.
    pub iops: Option<f64>,
    /// Throughput bought for each, for types that sell or derive it.
    pub throughput: Option<f64>,
}

/// The row of a machine. A name match takes precedence over vCPUs.
pub(crate) fn row_for<'r, R>(
    rows: &'r [R],
    machine: &Machine,
    selectors: impl Fn(&R) -> (Option<&CountRange>, Option<&NamePattern>),
) -> Option<&'r R> {
    let named = |row: &&R| selectors(row).1.is_some_and(|pattern| pattern.matches(&machine.name));
    let sized = |row: &&R| {
        let range = selectors(row).0;
        range.zip(machine.vcpus).is_some_and(|(range, vcpus)| range.contains(vcpus))
    };
    rows.iter().find(named).or_else(|| rows.iter().find(sized))
}

impl Catalog {
    /// The limit table of a machine family for a type: its own, or the `*` table.
    pub fn vm_table(&self, kind: &str, family: &str) -> Option<&VmTable> {
        let of = |name: &str| {
            self.per_vm.iter().find(|table| {
                table.types.iter().any(|known| known == kind)
                    && table.families.iter().any(|known| known == name)
            })
        };
        of(family).or_else(|| of("*"))
    }

    /// Egress of a machine in Gbit/s; `None` if unknown.
    pub fn egress_of(&self, machine: &Machine, tier1_networking: bool) -> Option<f64> {
        let rows = &self.families.get(&machine.family)?.egress;
        let of = |row: &EgressRow| match tier1_networking {
            true => row.tier1_gbit_per_s,
            false => Some(row.gbit_per_s),
        };
        if let Some(row) = row_for(rows, machine, |row| (row.vcpus.as_ref(), row.machine.as_ref()))
        {
            return of(row);
        }
        // A vCPU count between two rows has at least the egress of the lower one.
        if let (Some(vcpus), false) = (machine.vcpus, rows.is_empty()) {
            let below = |row: &&EgressRow| row.vcpus.is_some_and(|range| range.min <= vcpus);
            return rows.iter().filter(below).max_by_key(|row| row.vcpus).and_then(of);
        }
        let rule = self.egress.as_ref()?;
        let gbit = rule.gbit_per_s_per_vcpu? * f64::from(machine.vcpus?);
        Some(rule.gbit_per_s_max.map_or(gbit, |most| gbit.min(most)))
    }

    /// Number of disks of a type that a machine comes with; `None` if the number is free.
    pub fn fixed_disks(&self, kind: &str, machine: &str) -> Option<u32> {
        self.count_tables(kind)
            .flat_map(|table| &table.rows)
            .find(|row| row.machine.as_ref().is_some_and(|pattern| pattern.matches(machine)))
            .map(|row| row.disks.min)
    }

    /// Numbers of disks of a type with one size that a machine takes or comes with. Empty if it has
    /// none, or if no source says.
    pub fn local_counts(&self, kind: &str, machine: &Machine) -> Vec<CountRange> {
        if let Some(disks) = self.fixed_disks(kind, &machine.name) {
            return vec![CountRange { min: disks, max: Some(disks) }];
        }
        let family = self.families.get(&machine.family);
        let local = family.and_then(|family| family.local_ssd.as_ref());
        let local = local.filter(|local| local.types.iter().any(|known| known == kind));
        let row = local.and_then(|local| {
            row_for(&local.rows, machine, |row| (row.vcpus.as_ref(), row.machine.as_ref()))
        });
        row.map(|row| row.disks.clone()).unwrap_or_default()
    }

    fn count_tables(&self, kind: &str) -> impl Iterator<Item = &CountTable> {
        self.per_count.iter().filter(move |table| table.kind == kind)
    }
}

impl<'a> Placement<'a> {
    /// Looks up the type and the machine of a configuration.
    ///
    /// # Errors
    /// An unknown type, or a machine that does not support it.
    pub fn of(
        catalog: &'a Catalog,
        configuration: &DiskConfiguration,
    ) -> Result<Placement<'a>, PlanError> {
        Placement::new(
            catalog,
            &configuration.kind,
            &configuration.machine,
            configuration.regional,
            configuration.other_egress_gbit_per_s,
            configuration.tier1_networking,
        )
    }

    /// Like [`Placement::of`], from its parts.
    pub fn new(
        catalog: &'a Catalog,
        kind: &str,
        machine: &Machine,
        regional: bool,
        other_egress_gbit_per_s: f64,
        tier1_networking: bool,
    ) -> Result<Placement<'a>, PlanError> {
        catalog.disk_type(kind)?;
        let (kind, disk) = catalog
            .types
            .get_key_value(kind)
            .ok_or_else(|| PlanError::NotKnown(kind.to_owned()))?;
        let egress_gbit_per_s = catalog.egress_of(machine, tier1_networking);
        let table = catalog.vm_table(kind, &machine.family);
        let row = table.and_then(|table| {
            row_for(&table.rows, machine, |row| (row.vcpus.as_ref(), row.machine.as_ref()))
        });
        let placement = Placement {
            catalog,
            kind,
            disk,
            machine: machine.clone(),
            regional,
            other_egress_gbit_per_s,
            egress_gbit_per_s,
            vm: table.zip(row),
            by_request: false,
        };
        placement.checked(tier1_networking)
    }

    fn checked(mut self, tier1_networking: bool) -> Result<Placement<'a>, PlanError> {
        let (kind, machine) = (self.kind, self.machine.name.as_str());
        let family = self.catalog.families.get(&self.machine.family);
        match family.and_then(|family| family.disks.get(kind)) {
            Some(Support::No) => {
                let takes = family.map(|family| {
                    let yes = family.disks.iter().filter(|(_, support)| **support != Support::No);
                    crate::input::listed(yes.map(|(name, _)| name.as_str()))
                });
                let takes = takes.filter(|names| !names.is_empty());
                let accepted = match takes {
                    Some(names) => format!("{} takes {names}", self.machine.family),
                    None => "write another type, or another family".to_owned(),
                };
                return Err(PlanError::input(format!("{machine} takes no {kind}"), accepted));
            }
            Some(Support::ByRequest) => self.by_request = true,
            _ => {}
        }
        if self.regional && self.disk.regional.is_none() {
            let can = self.catalog.types.iter().filter(|(_, disk)| disk.regional.is_some());
            let can = crate::input::listed(can.map(|(name, _)| name.as_str()));
            let found = format!("{} knows no regional {kind}", self.catalog.name);
            return Err(PlanError::input(found, format!("leave --regional out, or write {can}")));
        }
        if let (Some(part), Some(vcpus)) = (&self.disk.provisioned, self.machine.vcpus)
            && let Some(least) = part.vcpus_min.get(&self.machine.family)
            && vcpus < *least
        {
            let found = format!("{kind} on {machine}");
            let accepted = format!("it needs {least} vCPUs or more of {}", self.machine.family);
            return Err(PlanError::input(found, accepted));
        }
        if tier1_networking && self.egress_gbit_per_s.is_none() {
            let found = format!("no Tier_1 networking is known of {machine}");
            return Err(PlanError::input(
                found,
                "leave --tier1-networking out, or write a larger machine",
            ));
        }
        if let Some(egress) = self.egress_gbit_per_s
            && self.other_egress_gbit_per_s > egress
        {
            let found = format!("{} Gbit/s of other traffic", self.other_egress_gbit_per_s);
            let accepted = format!("{machine} sends at most {egress} Gbit/s");
            return Err(PlanError::input(found, accepted));
        }
        self.check_local()?;
        Ok(self)
    }

    /// Disks of one size need a machine that is known to take them.
    fn check_local(&self) -> Result<(), PlanError> {
        if self.size_each().is_none() || !self.local_counts().is_empty() {
            return Ok(());
        }
        let (kind, family) = (self.kind, &self.machine.family);
        let found = format!("{} has no {kind}", self.machine.name);
        let prefix = format!("{family}-");
        let named: Vec<&str> = self
            .catalog
            .count_tables(kind)
            .flat_map(|table| &table.rows)
            .filter_map(|row| row.machine.as_ref().map(|pattern| pattern.0.as_str()))
            .collect();
        let own: Vec<&str> =
            named.iter().copied().filter(|name| name.starts_with(&prefix)).collect();
        if !own.is_empty() {
            return Err(PlanError::input(found, format!("these have: {}", own.join(", "))));
        }
        let takes = |local: &LocalSsd| local.types.iter().any(|known| known == kind);
        let with_rows = self.catalog.families.iter().filter(|(name, family)| {
            let prefix = format!("{name}-");
            let come_with = named.iter().any(|name| name.starts_with(&prefix));
            come_with || family.local_ssd.as_ref().is_some_and(takes)
        });
        let families = crate::input::listed(with_rows.map(|(name, _)| name.as_str()));
        if families.is_empty() {
            let none = format!("no machine of {} takes {kind}", self.catalog.name);
            return Err(PlanError::NotKnown(format!("{found}, and {none}")));
        }
        Err(PlanError::input(found, format!("write a machine of {families}")))
    }

    /// Numbers of disks of the type that the machine takes, for types with one size.
    pub(crate) fn local_counts(&self) -> Vec<CountRange> {
        self.catalog.local_counts(self.kind, &self.machine)
    }

    pub(crate) fn not_known(&self) -> PlanError {
        PlanError::NotKnown(format!("what {} does on {}", self.kind, self.machine.name))
    }

    /// The sharing rule, if the mix depends on it.
    pub(crate) fn mixing_rule(&self, mix: &WorkloadMix) -> Option<&'a Mixing> {
        self.disk.mixing.as_ref().filter(|_| mix.is_mixed())
    }

    /// Service time of one I/O in µs by the queue depth rule: guarantee and best case.
    pub(crate) fn service_us(&self) -> Option<(f64, f64)> {
        let queue = self.disk.queue.as_ref()?;
        let high = queue.iops_per_io_high.unwrap_or(queue.iops_per_io_low);
        Some((1e6 / queue.iops_per_io_low, 1e6 / high))
    }

    pub(crate) fn volume_limits(&self) -> Option<&'a VolumeLimits> {
        match self.regional {
            true => self.disk.regional.as_ref(),
            false => self.disk.volume.as_ref(),
        }
    }

    /// The row for a number of disks, for types with limits by that number.
    pub(crate) fn count_row(&self, disks: u32) -> Option<(&'a CountTable, &'a CountRow)> {
        let rows = || {
            let tables = self.catalog.per_count.iter().filter(|table| table.kind == self.kind);
            tables.flat_map(|table| table.rows.iter().map(move |row| (table, row)))
        };
        let named = rows().find(|(_, row)| {
            row.machine.as_ref().is_some_and(|pattern| pattern.matches(&self.machine.name))
        });
        named.or_else(|| rows().find(|(_, row)| row.machine.is_none() && row.disks.contains(disks)))
    }

    pub(crate) fn cpu(&self) -> Option<&'a Cpu> {
        let cpu = self.catalog.cpu.as_ref()?;
        cpu.types.iter().any(|known| known == self.kind).then_some(cpu)
    }

    /// Sharing rules of IOPS and throughput; the strictest if unknown.
    pub fn sharing(&self) -> (Sharing, Sharing) {
        let known = self.disk.mixing.as_ref().map(|mixing| (mixing.iops, mixing.throughput));
        known.unwrap_or((Sharing::Shared, Sharing::Shared))
    }

    /// The disks of a configuration in the catalog's units.
    ///
    /// # Errors
    /// A size, number or performance that is not available, with the range.
    pub fn demand(&self, configuration: &DiskConfiguration) -> Result<Demand, PlanError> {
        configuration.check_numbers()?;
        let units = &self.catalog.units;
        let size = match self.size_each() {
            Some(each) => {
                self.check_each(configuration, each)?;
                each
            }
            None => {
                let size = units.size_of(configuration.size_bytes);
                self.check_size(size)?;
                self.check_all(size * f64::from(configuration.disks))?;
                size
            }
        };
        let disks = configuration.disks;
        let throughput = configuration
            .provisioned_bytes_per_s
            .map(|bytes| bytes / units.throughput_bytes() as f64);
        let (iops, throughput) = self.bought(size, configuration.provisioned_iops, throughput)?;
        Ok(Demand { size, disks, iops, throughput })
    }

    /// Fixed size of a disk in the catalog's unit; `None` if sizes are free.
    pub fn size_each(&self) -> Option<f64> {
        let own = self.count_row(1).and_then(|(table, _)| table.size_gb_each);
        own.or(self.disk.size_gb_each)
    }

    fn check_each(&self, configuration: &DiskConfiguration, each: f64) -> Result<(), PlanError> {
        let units = &self.catalog.units;
        let asked = units.size_of(configuration.size_bytes);
        if configuration.size_bytes != 0 && (asked - each).abs() > 0.01 {
            let found = format!("{} of {}", size_text(asked, units.size.name()), self.kind);
            let each = size_text(each, units.size.name());
            let accepted = format!("each is of {each}: leave --size out, and write how many");
            return Err(PlanError::input(found, accepted));
        }
        let machine = &self.machine.name;
        match self.catalog.fixed_disks(self.kind, machine) {
            Some(fixed) if fixed != configuration.disks => {
                let found = format!("{} disks of {} on {machine}", configuration.disks, self.kind);
                Err(PlanError::input(found, format!("it comes with {fixed}")))
            }
            Some(_) => Ok(()),
            None => self.check_count(configuration.disks),
        }
    }

    pub(crate) fn check_count(&self, disks: u32) -> Result<(), PlanError> {
        let counts = self.local_counts();
        if counts.iter().any(|range| range.contains(disks)) {
            return Ok(());
        }
        let found = format!("{disks} disks of {} on {}", self.kind, self.machine.name);
        let counts: Vec<_> = counts.iter().map(CountRange::to_string).collect();
        let accepted = match counts.as_slice() {
            [] => "it takes none".to_owned(),
            [one] => format!("write {one}"),
            [first @ .., last] => format!("write {} or {last}", first.join(", ")),
        };
        Err(PlanError::input(found, accepted))
    }

    /// # Errors
    /// A size that the type lacks, with the range.
    pub fn check_size(&self, size: f64) -> Result<(), PlanError> {
        let unit = self.catalog.units.size.name();
        let (min, max) = (self.disk.size_gb_min, self.disk.size_gb_max);
        let fits =
            size > 0.0 && min.is_none_or(|min| size >= min) && max.is_none_or(|max| size <= max);
        if fits {
            return Ok(());
        }
        let found = format!("{} of {}", size_text(size, unit), self.kind);
        let text = |size: Option<f64>| size.map(|size| size_text(size, unit));
        let accepted = match (text(min), text(max)) {
            (Some(min), Some(max)) => format!("write a size from {min} to {max}"),
            (Some(min), None) => format!("write a size from {min}"),
            (None, Some(max)) => format!("write a size up to {max}"),
            (None, None) => "write a size above 0".to_owned(),
        };
        Err(PlanError::input(found, accepted))
    }

    /// # Errors
    /// More than a machine takes, of all its disks together.
    pub(crate) fn check_all(&self, size: f64) -> Result<(), PlanError> {
        let unit = self.catalog.units.size.name();
        match self.disk.size_gb_max_vm {
            Some(most) if size > most => Err(PlanError::input(
                format!("{} of {} in all", size_text(size, unit), self.kind),
                format!("a machine takes up to {}", size_text(most, unit)),
            )),
            _ => Ok(()),
        }
    }

    /// IOPS and throughput of a disk of `size` with these requests.
    fn bought(
        &self,
        size: f64,
        iops: Option<f64>,
        throughput: Option<f64>,
    ) -> Result<(Option<f64>, Option<f64>), PlanError> {
        let Some(part) = &self.disk.provisioned else {
            if iops.is_some() || throughput.is_some() {
                let found = format!("performance bought for {}", self.kind);
                let sold = self.catalog.types.iter().filter(|(_, disk)| disk.provisioned.is_some());
                let sold = crate::input::listed(sold.map(|(name, _)| name.as_str()));
                let accepted = format!("it follows the size; it is bought for {sold}");
                return Err(PlanError::input(found, accepted));
            }
            return Ok((None, None));
        };
        part.resolve(self.kind, self.catalog.units.throughput.name(), size, iops, throughput)
    }
}

/// A size in the unit of a catalog, to two decimals if it is not whole.
pub fn size_text(size: f64, unit: &str) -> String {
    let rounded = (size * 100.0).round() / 100.0;
    match rounded {
        0.0 if size > 0.0 => format!("less than 0.01 {unit}"),
        whole if whole.fract() == 0.0 => format!("{} {unit}", grouped(whole, 0)),
        _ => format!("{} {unit}", grouped(rounded, 2)),
    }
}

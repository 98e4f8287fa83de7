//! Machines to choose from.

use crate::catalog::{Catalog, MachineFamily};
use crate::cheapest::Prices;
use crate::input::{Machine, PlanError};

/// Machines of the `wanted` families or names, or of the whole catalog if empty, with the priced
/// ones among them. Sorted by family and vCPUs, without duplicates.
pub(super) fn machines(
    catalog: &Catalog,
    wanted: &[String],
    prices: &Prices,
) -> Result<Vec<Machine>, PlanError> {
    let mut found: Vec<Machine> = Vec::new();
    if wanted.is_empty() {
        for (name, family) in &catalog.families {
            found.extend(of_family(catalog, name, family));
        }
    }
    for name in wanted {
        match catalog.families.get(name) {
            Some(family) => found.extend(of_family(catalog, name, family)),
            None => found.push(catalog.machine(name)?),
        }
    }
    for name in prices.machines() {
        let machine = catalog.machine(name)?;
        if wanted.is_empty() || wanted.contains(&machine.family) {
            found.push(machine);
        }
    }
    found.sort_by(|a, b| (&a.family, a.vcpus, &a.name).cmp(&(&b.family, b.vcpus, &b.name)));
    found.dedup();
    Ok(found)
}

/// Machines of a family: one per vCPU count, the named ones, and machines that come with disks.
fn of_family(catalog: &Catalog, name: &str, family: &MachineFamily) -> Vec<Machine> {
    let counts = family.vcpus.iter().flatten();
    let mut names: Vec<String> = counts.map(|n| format!("{name}-standard-{n}")).collect();
    names.extend(family.machines.iter().cloned());
    if catalog.lists_all(name, family) {
        names.extend(catalog.named_machines(name).map(str::to_owned));
    }
    let prefix = format!("{name}-");
    let rows = catalog.per_count.iter().flat_map(|table| &table.rows);
    let with_disks = rows.filter_map(|row| row.machine.as_ref()).map(|pattern| &pattern.0);
    // A `*` in a row stands for the machine's kind.
    let with_disks = with_disks.filter(|pattern| pattern.starts_with(&prefix));
    names.extend(with_disks.map(|pattern| pattern.replace('*', "standard")));
    names.iter().filter_map(|name| catalog.machine(name).ok()).collect()
}

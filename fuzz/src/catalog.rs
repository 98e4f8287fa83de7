//! Fuzz target for catalogs of cloud disks.
//!
//! Input: the text of a catalog.

use flagstone_cloud::catalog::MachineFamily;
use flagstone_cloud::{Catalog, DiskConfiguration, Workload};

/// Number of types and families of one catalog that are tried together.
const TRIED: usize = 6;

/// Parses the catalog: it is valid as a whole, or has an error that can be displayed.
pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match Catalog::parse("own.toml", text) {
        Ok(catalog) => check(&catalog),
        Err(mistake) => {
            assert!(!mistake.message.is_empty() && !mistake.help.is_empty());
            if let Some(line) = mistake.line {
                assert!((1..=text.lines().count() + 1).contains(&line));
            }
            assert!(!mistake.to_string().contains('\n'), "{mistake}");
        }
    }
}

/// Checks an accepted catalog: every query has an answer or a reason.
fn check(catalog: &Catalog) {
    match catalog.tables(None) {
        Ok(tables) => {
            for table in tables {
                assert!(table.rows.iter().all(|row| row.len() == table.columns.len()));
            }
        }
        // Such as a type of local disk that no machine of the catalog takes.
        Err(reason) => assert!(!reason.to_string().is_empty()),
    }
    for (kind, disk) in catalog.types.iter().take(TRIED) {
        for (name, family) in catalog.families.iter().take(TRIED) {
            let units = &catalog.units;
            let sizes = [disk.size_gb_min, disk.size_gb_max, Some(500.0)];
            for size in sizes.into_iter().flatten() {
                let bytes = match disk.size_gb_each {
                    Some(_) => 0,
                    None => (size * units.size_bytes as f64) as u64,
                };
                let made = DiskConfiguration::new(catalog, kind, bytes, &machine(name, family));
                if let Ok(configuration) = made {
                    predict(catalog, &configuration);
                }
            }
        }
    }
}

fn machine(name: &str, family: &MachineFamily) -> String {
    let vcpus = family.vcpus.as_ref().and_then(|all| all.first()).copied().unwrap_or(1);
    family.machines.first().cloned().unwrap_or_else(|| format!("{name}-standard-{vcpus}"))
}

fn predict(catalog: &Catalog, configuration: &DiskConfiguration) {
    for (block_bytes, read_percent) in [(4096, 100), (16_384, 0), (262_144, 50)] {
        for depth in [None, Some(8)] {
            let workload = Workload { depth, ..Workload::random(block_bytes, read_percent) };
            let Ok(found) = catalog.predict(configuration, &workload) else { continue };
            let (total, allowed) = (found.total.iops, found.allowed.iops);
            assert!(total >= 0.0 && total.is_finite() && allowed.is_finite());
            assert!(total <= allowed * (1.0 + 1e-9), "{total} of {allowed}");
            assert!(!found.limits.is_empty());
        }
    }
    let _ = catalog.ceilings(configuration);
}

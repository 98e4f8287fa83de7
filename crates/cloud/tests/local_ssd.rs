//! Local SSDs: which machine families have them, and how many disks a machine takes.

use flagstone_cloud::catalog::Catalog;
use flagstone_cloud::cheapest::{Need, Prices, Scope};
use flagstone_cloud::{DiskConfiguration, Workload};

fn current() -> &'static Catalog {
    Catalog::builtin("gcp-current").expect("it is in the program")
}

fn predicted(kind: &str, machine: &str, disks: u32) -> Result<f64, String> {
    let configuration = DiskConfiguration::new(current(), kind, 0, machine)
        .map(|configuration| DiskConfiguration { disks, ..configuration });
    let configuration = configuration.map_err(|error| error.to_string())?;
    let found = current().predict(&configuration, &Workload::random(512, 100));
    found.map(|found| found.allowed.iops.round()).map_err(|error| error.to_string())
}

#[test]
fn every_family_says_whether_it_has_local_ssds() {
    for name in Catalog::builtin_names() {
        let catalog = Catalog::builtin(name).expect("it is in the program");
        for (family, found) in &catalog.families {
            assert!(found.local_ssd.is_some(), "{family} in {name} does not say");
        }
    }
}

#[test]
fn families_without_local_ssds_are_refused() {
    for machine in [
        "e2-standard-8",
        "e2-medium",
        "t2d-standard-8",
        "t2a-standard-8",
        "n4-standard-8",
        "h3-standard-88",
        "f1-micro",
    ] {
        let error = predicted("local-ssd-nvme", machine, 1).expect_err(machine);
        assert!(error.contains(&format!("{machine} has no local-ssd-nvme")), "{error}");
    }
}

#[test]
fn number_of_local_ssds_depends_on_vcpus() {
    for (machine, disks, iops) in [
        ("n2-standard-8", 1, 170_000.0),
        ("n2-standard-8", 24, 2_400_000.0),
        ("n2-standard-16", 2, 340_000.0),
        ("n2-standard-64", 16, 1_600_000.0),
        ("c2-standard-60", 8, 680_000.0),
        ("a2-highgpu-1g", 4, 680_000.0),
        ("n1-standard-4", 3, 510_000.0),
        ("a3-ultragpu-8g", 32, 3_200_000.0),
    ] {
        assert_eq!(predicted("local-ssd-nvme", machine, disks), Ok(iops), "{disks} of {machine}");
    }
    for (machine, disks, accepted) in [
        ("n2-standard-16", 1, "write 2, 4, 8, 16 or 24"),
        ("n2-standard-8", 3, "write 1, 2, 4, 8, 16 or 24"),
        ("n2-standard-96", 8, "write 16 or 24"),
        ("c2-standard-8", 16, "write 1, 2, 4 or 8"),
        ("n1-standard-8", 9, "write 1-8, 16 or 24"),
        ("c2-standard-60", 4, "write 8"),
    ] {
        let error = predicted("local-ssd-nvme", machine, disks).expect_err(machine);
        assert!(error.contains(accepted), "{disks} of {machine}: {error}");
    }
}

#[test]
fn unknown_support_counts_as_none() {
    let text = Catalog::builtin_text("gcp-current").expect("it is in the program");
    let start = text.find("[family.n2.local_ssd]").expect("n2 has them");
    let end = start + 1 + text[start + 1..].find("\n[").expect("another table follows");
    let text = format!("{}{}", &text[..start], &text[end..]);
    let catalog = Catalog::parse("without", &text).unwrap_or_else(|error| panic!("{error}"));
    let configuration = DiskConfiguration::new(&catalog, "local-ssd-nvme", 0, "n2-standard-8");
    let found = catalog.predict(&configuration.expect("it exists"), &Workload::random(4096, 100));
    assert!(found.expect_err("not known").to_string().contains("has no local-ssd-nvme"));
}

#[test]
fn cheapest_never_proposes_missing_local_ssds() {
    let need = Need {
        read_iops: 100_000.0,
        write_iops: 0.0,
        bytes_per_s: 0.0,
        capacity_bytes: 300_000_000_000,
        block_bytes: 4096,
        at_once: true,
    };
    let scope = |machines: &str| Scope {
        machines: vec![machines.to_owned()],
        types: vec!["local-ssd-nvme".to_owned()],
        local_ssd: true,
        ..Scope::default()
    };
    let found = |machines: &str| {
        let found = current().cheapest(&need, &scope(machines), &Prices::default(), (10, false));
        found.unwrap_or_else(|error| panic!("{error}")).found
    };
    assert!(found("e2").is_empty());
    let on_n2: Vec<u32> = found("n2-standard-16").iter().map(|found| found.disks).collect();
    assert_eq!(on_n2, [2, 4, 8, 16]);
}

//! Several disks on one machine: each alone, and all at once under the shared limits.

use flagstone_cloud::catalog::Catalog;
use flagstone_cloud::{DiskConfiguration, JointPrediction, PlanError, Workload};

fn current() -> &'static Catalog {
    Catalog::builtin("gcp-current").expect("it is in the program")
}

fn disk(catalog: &Catalog, kind: &str, gib: u64, machine: &str) -> DiskConfiguration {
    DiskConfiguration::new(catalog, kind, gib << 30, machine).expect("it exists")
}

fn reads(catalog: &Catalog, disks: &[DiskConfiguration]) -> Result<JointPrediction, PlanError> {
    catalog.predict_together(disks, &Workload::random(4096, 100))
}

/// Regression test: "by itself" left out the machine, which allows 15,000 of 61,879.
#[test]
fn own_rate_is_that_of_a_prediction() {
    for (kind, gib, machine) in [
        ("pd-ssd", 1863, "n2-standard-8"),
        ("pd-balanced", 4000, "n2-standard-4"),
        ("hyperdisk-balanced", 500, "c3-standard-8"),
    ] {
        let disk = disk(current(), kind, gib, machine);
        let alone = current().predict(&disk, &Workload::random(4096, 100)).expect("known").total;
        let found = reads(current(), &[disk]).expect("known");
        assert_eq!((found.disks[0].own, found.total), (alone, alone), "{kind}");
        assert!(found.binding.is_empty(), "{found:?}");
    }
}

/// Regression test: three local SSDs, one by one, passed on a machine that takes 2 or 4.
#[test]
fn local_ssds_are_counted_together() {
    let one = disk(current(), "local-ssd-nvme", 0, "n2-standard-8");
    let error = reads(current(), &vec![one.clone(); 3]).expect_err("the machine takes 2 or 4");
    assert!(error.to_string().contains("write 1, 2, 4, 8, 16 or 24"), "{error}");
    let found = reads(current(), &vec![one.clone(); 4]).expect("the machine takes 4");
    let four = DiskConfiguration { disks: 4, ..one };
    let wanted = current().predict(&four, &Workload::random(4096, 100)).expect("known");
    assert_eq!((found.disks.len(), found.total), (1, wanted.total));
    let none = disk(current(), "local-ssd-nvme", 0, "e2-standard-8");
    let ssd = disk(current(), "pd-ssd", 500, "e2-standard-8");
    assert!(reads(current(), &[ssd, none]).is_err());
    // A machine that takes no single one.
    let one = disk(current(), "local-ssd-nvme", 0, "n2-standard-16");
    assert!(reads(current(), &vec![one; 2]).is_ok());
}

/// Regression test: the baseline of a type counted once for each disk.
#[test]
fn equal_disks_are_a_stripe() {
    let one = disk(current(), "pd-balanced", 200, "n2-standard-32");
    let stripe = DiskConfiguration { disks: 3, ..one.clone() };
    let wanted = current().predict(&stripe, &Workload::random(4096, 100)).expect("known");
    let found = reads(current(), &vec![one; 3]).expect("known");
    assert!((found.total.iops - wanted.total.iops).abs() < 1e-6, "{found:?}");
    assert_eq!(found.binding.len(), 1);
}

/// Regression test: a limit of 938 IOPS was said to bind where egress left 281.
#[test]
fn limits_that_do_not_bind_are_not_listed() {
    let catalog = Catalog::builtin("gcp-2019").expect("it is in the program");
    let disks = [("pd-ssd", 1863), ("pd-standard", 9313)]
        .map(|(kind, gib)| disk(catalog, kind, gib, "n1-standard-2"));
    let found = catalog.predict_together(&disks, &Workload::random(256 << 10, 0)).expect("known");
    assert!(!found.binding.is_empty());
    for limit in &found.binding {
        let shares = found
            .disks
            .iter()
            .filter(|disk| limit.types.contains(&disk.configuration.kind))
            .map(|disk| disk.together.iops);
        assert!((shares.sum::<f64>() - limit.iops).abs() < 1e-6, "{found:?}");
    }
}

/// No source says whether unlike types share the limit of a machine: the sum is not promised.
#[test]
fn unlike_types_share_one_budget() {
    let disks = ["pd-ssd", "pd-balanced"].map(|kind| disk(current(), kind, 4000, "n2-standard-8"));
    let found = reads(current(), &disks).expect("known");
    assert!(found.total.iops <= 15_000.0 + 1e-6, "{found:?}");
    let gap = "whether pd-ssd, pd-balanced share the limit of n2-standard-8";
    assert!(found.not_known.iter().any(|line| line.starts_with(gap)), "{:?}", found.not_known);
    let same = reads(current(), &[disks[0].clone(), disks[0].clone()]).expect("known");
    assert!(same.not_known.is_empty(), "{:?}", same.not_known);
}

#[test]
fn machine_takes_257_tib_of_persistent_disks() {
    let large = |kind| disk(current(), kind, 65536, "n2-standard-8");
    let disks = [large("pd-ssd"), large("pd-balanced"), large("pd-standard"), large("pd-ssd")];
    assert!(reads(current(), &disks).is_ok());
    let more = [&disks[..], &[disk(current(), "pd-ssd", 1025, "n2-standard-8")]].concat();
    let error = reads(current(), &more).expect_err("it is too much").to_string();
    assert!(error.contains("a machine takes up to 263,168 GiB"), "{error}");
    let stripe = DiskConfiguration { disks: 5, ..large("pd-ssd") };
    let error = current().predict(&stripe, &Workload::random(4096, 100)).expect_err("too much");
    assert!(error.to_string().contains("up to 263,168 GiB"), "{error}");
}

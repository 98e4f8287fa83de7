//! `gcp-current` compared with its sources cell by cell, and invariants of predictions.

use flagstone_cloud::catalog::Catalog;
use flagstone_cloud::{
    Demand, DiskConfiguration, LimitKind, Placement, PlanError, Prediction, Recommendation,
    Workload,
};
use proptest::prelude::*;
use toml_edit::Document;

const GIB: u64 = 1 << 30;
const MIB: f64 = 1048576.0;

fn catalog() -> &'static Catalog {
    Catalog::builtin("gcp-current").expect("it is in the program")
}

fn cells(name: &str) -> Vec<Vec<String>> {
    let document = Document::parse(include_str!("sources-current.toml")).expect("it is TOML");
    let rows = document.get(name).and_then(|item| item.as_array()).expect(name);
    let text = |value: &toml_edit::Value| value.as_str().expect("a text").to_owned();
    rows.iter().map(|row| row.as_array().expect(name).iter().map(text).collect()).collect()
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or_else(|_| panic!("{text}"))
}

/// Wrong cells of a source, with the catalog's replacement.
const CORRECTED: [(&str, &str, &str, [f64; 4]); 4] = [
    ("n1", "pd-balanced", "64 or more", [80000.0, 80000.0, 1200.0, 1200.0]),
    ("n1", "pd-ssd", "16-31", [25000.0, 25000.0, 1200.0, 1200.0]),
    ("n1", "pd-ssd", "32-63", [60000.0, 60000.0, 1200.0, 1200.0]),
    ("a2-ultra", "pd-standard", "a2-ultragpu-8g", [7500.0, 15000.0, 1200.0, 400.0]),
];

/// The machine of a row's first cell.
fn machine_of(family: &str, selector: &str) -> String {
    let selector = selector.trim_end_matches('*');
    if selector.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return selector.to_owned();
    }
    match selector.strip_suffix("-metal") {
        Some(vcpus) => format!("{family}-standard-{vcpus}-metal"),
        None => {
            let first = selector.split([' ', '-']).next().expect("split gives one");
            // N2 and N2D have a row for 1 vCPU but no such machine.
            match (family, first) {
                ("n2" | "n2d", "1") => format!("{family}-custom-1-1024"),
                ("m3", "32") => "m3-ultramem-32".to_owned(),
                ("m3" | "m4", _) => format!("{family}-megamem-{first}"),
                _ => format!("{family}-standard-{first}"),
            }
        }
    }
}

#[test]
fn unlike_disks_share_the_machine() {
    let catalog = catalog();
    let disk = |kind: &str, gib: u64| {
        DiskConfiguration::new(catalog, kind, gib << 30, "n2-standard-8").unwrap()
    };
    let together = |disks: &[DiskConfiguration], read_percent, block_bytes| {
        let workload = Workload::random(block_bytes, read_percent);
        catalog.predict_together(disks, &workload).unwrap_or_else(|error| panic!("{error}"))
    };
    let disks = [disk("pd-ssd", 2000), disk("pd-ssd", 500), disk("pd-standard", 1000)];
    let found = together(&disks, 100, 4096);
    // One budget: each type uses up a part of its own limit, which no source says that they add.
    let [first, second, third] = &found.disks[..] else { panic!("three disks") };
    let alone = catalog.predict(&disks[0], &Workload::random(4096, 100)).unwrap();
    let machine = alone.total.iops;
    let rest = (first.together.iops + second.together.iops) / machine;
    assert!((rest + third.together.iops / 5000.0 - 1.0).abs() < 1e-9, "{found:?}");
    assert!(
        (first.together.iops / second.together.iops - first.own.iops / second.own.iops).abs()
            < 1e-9
    );
    assert!(third.together.iops < third.own.iops);
    assert_eq!(found.binding[0].types, ["pd-ssd", "pd-standard"]);
    let sum: f64 = found.disks.iter().map(|disk| disk.together.iops).sum();
    assert!((sum - found.total.iops).abs() < 1e-6);
    // A single disk has the rate of its own prediction.
    let one = together(&disks[2..], 100, 4096);
    let predicted = catalog.predict(&disks[2], &Workload::random(4096, 100)).unwrap();
    assert!((one.total.iops - predicted.total.iops).abs() < 1e-6 && one.binding.is_empty());
    // Writes of both types share the egress.
    let busy = |kind, gib| DiskConfiguration {
        regional: true,
        other_egress_gbit_per_s: 15.0,
        ..disk(kind, gib)
    };
    let found = together(&[busy("pd-ssd", 4000), busy("pd-standard", 8000)], 0, 1 << 20);
    let egress = found.binding.iter().find(|limit| limit.kind == LimitKind::Egress);
    assert_eq!(egress.map(|limit| limit.types.len()), Some(2), "{found:?}");
}

#[test]
fn persistent_disks_by_machine() {
    let rows = cells("persistent_disk");
    assert_eq!(rows.len(), 271);
    let mut corrected = 0;
    for row in rows {
        let family = row[0].split('-').next().expect("split gives one");
        let name = machine_of(family, &row[2]);
        let machine = catalog().machine(&name).unwrap_or_else(|error| panic!("{error}"));
        let placement =
            Placement::new(catalog(), &row[1], &machine, false, 0.0, false).expect("right");
        let (_, found) = placement.vm.unwrap_or_else(|| panic!("{row:?}"));
        let mut wanted: Vec<_> = row[3..].iter().map(|cell| number(cell)).collect();
        let known = CORRECTED
            .iter()
            .find(|known| (known.0, known.1, known.2) == (&row[0], &row[1], &row[2]));
        if let Some(known) = known {
            assert_ne!(wanted, known.3, "{row:?} needs no correction");
            wanted = known.3.to_vec();
            corrected += 1;
        }
        let found = [found.read_iops, found.write_iops, found.read_mb_per_s, found.write_mb_per_s];
        assert_eq!(found.map(|cell| cell.expect("given")).to_vec(), wanted, "{row:?}");
    }
    assert_eq!(corrected, CORRECTED.len());
}

#[test]
fn hyperdisk_by_machine() {
    for row in cells("hyperdisk") {
        let name = machine_of(&row[1], &row[2]);
        let machine = catalog().machine(&name).unwrap_or_else(|error| panic!("{error}"));
        let table = catalog().vm_table(&row[0], &machine.family).expect("there is one");
        let found = table
            .rows
            .iter()
            .find(|found| found.machine.as_ref().is_some_and(|p| p.matches(&name)))
            .or_else(|| {
                table.rows.iter().find(|found| {
                    found.vcpus.zip(machine.vcpus).is_some_and(|(range, n)| range.contains(n))
                })
            })
            .unwrap_or_else(|| panic!("{row:?}"));
        let wanted = (Some(number(&row[3])), Some(number(&row[4])));
        assert_eq!((found.iops, found.mb_per_s), wanted, "{row:?}");
    }
}

#[test]
fn egress_of_machines() {
    for row in cells("egress") {
        let name = match row[1].as_str() {
            word if word.bytes().all(|b| b.is_ascii_alphabetic()) => format!("{}-{word}", row[0]),
            word => machine_of(&row[0], word),
        };
        let machine = catalog().machine(&name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(catalog().egress_of(&machine, false), Some(number(&row[2])), "{row:?}");
        let tier1_networking =
            Some(&row[3]).filter(|cell| !cell.is_empty()).map(|cell| number(cell));
        assert_eq!(catalog().egress_of(&machine, true), tier1_networking, "{row:?}");
    }
}

#[test]
fn egress_table_of_n1() {
    let tables = catalog().tables(None).expect("no type was named");
    let table = tables.iter().find(|table| table.title.contains("egress")).expect("there is one");
    let printed: Vec<Vec<String>> = table
        .rows
        .iter()
        .map(|row| row.iter().map(|cell| cell.text.replace(',', "")).collect())
        .collect();
    assert_eq!(printed, cells("egress_n1"));
}

#[test]
fn local_ssds() {
    let predict = |kind: &str, machine: &str, disks: u32, block: u64, reads: u8| {
        let mut configuration = DiskConfiguration::new(catalog(), kind, 0, machine).expect("right");
        configuration.disks = disks;
        let prediction = catalog().predict(&configuration, &Workload::random(block, reads));
        prediction.unwrap_or_else(|error| panic!("{error}")).allowed
    };
    let check = |kind: &str, machine: &str, disks: u32, wanted: &[String]| {
        // 512 B for IOPS and 1 MiB for throughput isolate one limit each.
        let found = [
            predict(kind, machine, disks, 512, 100).iops,
            predict(kind, machine, disks, 512, 0).iops,
            predict(kind, machine, disks, 1 << 20, 100).bytes_per_s / MIB,
            predict(kind, machine, disks, 1 << 20, 0).bytes_per_s / MIB,
        ];
        for (found, wanted) in found.iter().zip(wanted) {
            assert!((found - number(wanted)).abs() < 1e-3, "{kind} {machine} {disks}: {found}");
        }
    };
    for row in cells("local_ssd") {
        let (first, last) = row[0].split_once('-').unwrap_or((&row[0], &row[0]));
        for disks in number(first) as u32..=number(last) as u32 {
            // n1 takes every number in the table.
            check("local-ssd-nvme", "n1-standard-64", disks, &row[1..]);
        }
    }
    for row in cells("titanium") {
        let disks = catalog().fixed_disks("local-ssd-titanium", &row[0]).expect("fixed");
        check("local-ssd-titanium", &row[0], disks, &row[1..]);
        // 3 TB each: 750,000 and 500,000 IOPS, 3,072 and 2,560 MiB/s.
        assert_eq!(number(&row[1]), 750_000.0 * f64::from(disks));
        assert_eq!(number(&row[4]), 2_560.0 * f64::from(disks));
    }
    let unknown = DiskConfiguration {
        disks: 12,
        ..DiskConfiguration::new(catalog(), "local-ssd-nvme", 0, "n2-standard-64").expect("right")
    };
    let error = catalog().predict(&unknown, &Workload::random(4096, 100)).expect_err("not sold");
    assert!(matches!(error, PlanError::Input { .. }), "{error}");
}

#[test]
fn prices() {
    for row in cells("price") {
        let price = catalog().prices.iter().find(|price| price.kind == row[0]).expect("known");
        assert_eq!(price.usd_per_gb, number(&row[1]), "{row:?}");
        let regional = Some(&row[2]).filter(|cell| !cell.is_empty()).map(|cell| number(cell));
        assert_eq!(price.usd_per_gb_regional, regional, "{row:?}");
    }
}

fn predict(kind: &str, size_gib: u64, machine: &str, workload: &Workload) -> Prediction {
    let configuration =
        DiskConfiguration::new(catalog(), kind, size_gib * GIB, machine).expect("right");
    catalog().predict(&configuration, workload).unwrap_or_else(|error| panic!("{error}"))
}

/// Expectations of the provider's tests for the largest machines.
#[test]
fn expected_observations_agree() {
    let mut seen = 0;
    for observed in catalog().observations.iter().filter(|observed| !observed.measured) {
        let machine = observed.machine.as_deref().expect("each names one");
        if observed.kind == "pd-extreme" || machine == "c3d-standard-180" {
            // Provisioned, or contradictory (K08).
            continue;
        }
        for (wanted, reads) in [(observed.read_mb_per_s, 100), (observed.write_mb_per_s, 0)] {
            let found = predict(&observed.kind, 65536, machine, &Workload::random(1 << 20, reads));
            let wanted = wanted.expect("each has it");
            assert!((found.allowed.bytes_per_s / MIB - wanted).abs() < 1e-6, "{observed:?}");
        }
        for (wanted, reads) in [(observed.read_iops, 100), (observed.write_iops, 0)] {
            let Some(wanted) = wanted else { continue };
            let found = predict(&observed.kind, 65536, machine, &Workload::random(4096, reads));
            assert!((found.allowed.iops - wanted).abs() < 1e-6, "{observed:?}");
        }
        seen += 1;
    }
    assert_eq!(seen, 8);
}

#[test]
fn baseline_counts_once() {
    let mut configuration =
        DiskConfiguration::new(catalog(), "pd-balanced", 100 * GIB, "n2-standard-64")
            .expect("right");
    let workload = Workload::random(4096, 100);
    let one = catalog().predict(&configuration, &workload).expect("right");
    assert_eq!(one.allowed.iops, 3600.0);
    configuration.disks = 2;
    let two = catalog().predict(&configuration, &workload).expect("right");
    assert_eq!(two.allowed.iops, 4200.0);
}

#[test]
fn hyperdisk_purchases() {
    let mut configuration =
        DiskConfiguration::new(catalog(), "hyperdisk-balanced", 500 * GIB, "c4d-standard-64")
            .expect("right");
    let small = Workload::random(4096, 100);
    let free = catalog().predict(&configuration, &small).expect("right");
    assert_eq!(free.allowed.iops, 3000.0);
    assert_eq!(free.cost.expect("known").usd_per_month, 40.0);
    configuration.provisioned_iops = Some(20000.0);
    configuration.provisioned_bytes_per_s = Some(600.0 * MIB);
    let bought = catalog().predict(&configuration, &small).expect("right");
    assert_eq!(bought.allowed.iops, 20000.0);
    let cost = bought.cost.expect("known");
    assert!((cost.usd_per_month - (40.0 + 85.0 + 18.4)).abs() < 1e-9, "{cost:?}");
    configuration.provisioned_bytes_per_s = Some(6000.0 * MIB);
    let error = catalog().predict(&configuration, &small).expect_err("too much");
    assert!(error.to_string().contains("2400"), "{error}");
    configuration.provisioned_iops = Some(100.0);
    let error = catalog().predict(&configuration, &small).expect_err("too few");
    assert!(error.to_string().contains("3000 to 160000"), "{error}");
}

#[test]
fn gaps_are_reported() {
    let workload = Workload { depth: Some(8), ..Workload::random(4096, 50) };
    let reported = predict("pd-balanced", 500, "c4a-standard-8", &workload).not_known;
    for part in ["limit of c4a-standard-8", "share its limits", "latency"] {
        assert!(reported.iter().any(|line| line.contains(part)), "{part}: {reported:?}");
    }
    let reported = predict("hyperdisk-balanced", 500, "c3-standard-8", &workload).not_known;
    assert!(reported.iter().any(|line| line.contains("limit of c3-standard-8")), "{reported:?}");
}

#[test]
fn impossible_configurations_are_refused() {
    let refused = |kind: &str, machine: &str, size_gib: u64| {
        let configuration = DiskConfiguration::new(catalog(), kind, size_gib * GIB, machine);
        let workload = Workload::random(4096, 100);
        configuration
            .and_then(|configuration| catalog().predict(&configuration, &workload))
            .expect_err("refused")
            .to_string()
    };
    for (kind, machine, size, part) in [
        ("pd-fast", "n2-standard-8", 500, "gcp-current has hyperdisk-balanced"),
        ("pd-ssd", "n2-standard-7", 500, "n2 has 1, 2, 4, 8"),
        ("pd-ssd", "n9-standard-8", 500, "write a family"),
        ("pd-ssd", "../../etc/passwd", 500, "write a family"),
        ("pd-ssd", "a2-highgpu-3g", 500, "a2-highgpu-1g"),
        ("pd-ssd", "c4-standard-8", 500, "c4 takes hyperdisk-balanced"),
        ("pd-ssd", "n2-standard-8", 70000, "10 GiB to 65,536 GiB"),
        ("hyperdisk-throughput", "n2-standard-8", 100, "2,048 GiB to 32,768 GiB"),
        ("hyperdisk-extreme", "n2-standard-8", 100, "80 vCPUs or more"),
        ("hyperdisk-extreme", "n2-standard-80", 100, "--iops is missing"),
        ("local-ssd-nvme", "c3-standard-8", 0, "c3-standard-8-lssd"),
        ("local-ssd-titanium", "n2-standard-8", 0, "write a machine of z3"),
    ] {
        let error = refused(kind, machine, size);
        assert!(error.contains(part), "{kind} {machine}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn recommendations_lift_binding_limit() {
    let workload = Workload { depth: Some(64), ..Workload::random(8192, 0) };
    let bound = predict("pd-ssd", 100, "n2-standard-16", &workload);
    assert_eq!(bound.binding.kind, LimitKind::Volume);
    let Some(Recommendation::LargerVolume { size, .. }) = bound.binding.recommendations.first()
    else {
        panic!("{:?}", bound.binding.recommendations)
    };
    let next = bound.next.as_ref().expect("there is one");
    let lifted = predict("pd-ssd", *size as u64, "n2-standard-16", &workload);
    assert!(lifted.total.iops >= next.workload_iops * (1.0 - 1e-6));
    let almost = predict("pd-ssd", *size as u64 - 1, "n2-standard-16", &workload);
    assert!(almost.total.iops < next.workload_iops);
}

/// Types, with machines whose limits are known.
fn a_place() -> impl Strategy<Value = (&'static str, String)> {
    let table = prop::sample::select(catalog().per_vm.iter().collect::<Vec<_>>());
    let of_table = table.prop_flat_map(|table| {
        let kinds = table.types.iter().map(String::as_str).collect::<Vec<_>>();
        let rows: Vec<_> = table
            .rows
            .iter()
            .map(|row| match (&row.machine, &row.vcpus) {
                (Some(pattern), _) => pattern.0.replace('*', "standard"),
                (None, Some(range)) => format!("{}-standard-{}", table.families[0], range.min),
                (None, None) => unreachable!("checked"),
            })
            .filter(|name| catalog().machine(name).is_ok())
            .collect();
        (prop::sample::select(kinds), prop::sample::select(rows))
    });
    of_table.prop_map(|(kind, machine)| (kind, machine))
}

fn configured(kind: &str, size: u64, machine: &str, disks: u32) -> Option<DiskConfiguration> {
    let mut configuration = DiskConfiguration::new(catalog(), kind, size * GIB, machine).ok()?;
    configuration.disks = disks;
    let part = catalog().types[kind].provisioned.as_ref();
    if part.is_some_and(|part| part.iops_default.is_none() && part.iops_per_mb_per_s.is_none()) {
        configuration.provisioned_iops = Some(20000.0);
    }
    if kind == "hyperdisk-throughput" {
        configuration.provisioned_bytes_per_s = Some(100.0 * MIB);
    }
    Some(configuration)
}

fn a_workload() -> impl Strategy<Value = Workload> {
    (9u32..22, 0u8..=100, prop::option::of(1u32..512)).prop_map(|(shift, read_percent, depth)| {
        Workload { depth, ..Workload::random(1 << shift, read_percent) }
    })
}

proptest! {
    #[test]
    fn larger_disk_is_never_slower(
        (kind, machine) in a_place(),
        workload in a_workload(),
        small in 10u64..30000,
        more in 0u64..30000,
    ) {
        let at = |size| {
            let configuration = configured(kind, size, &machine, 1)?;
            catalog().predict(&configuration, &workload).ok()
        };
        if let (Some(small), Some(large)) = (at(small), at(small + more)) {
            prop_assert!(small.total.iops <= large.total.iops * (1.0 + 1e-12));
            prop_assert!(small.allowed.iops <= large.allowed.iops * (1.0 + 1e-12));
        }
    }

    #[test]
    fn prediction_never_exceeds_a_cap(
        (kind, machine) in a_place(),
        workload in a_workload(),
        size in 10u64..65536,
        disks in 1u32..5,
        network in 0.0f64..2.0,
    ) {
        let Some(mut configuration) = configured(kind, size, &machine, disks) else { return Ok(()) };
        configuration.other_egress_gbit_per_s = network;
        let Ok(found) = catalog().predict(&configuration, &workload) else { return Ok(()) };
        let slack = 1.0 + 1e-9;
        let ceilings = &found.ceilings;
        for (rate, most) in [
            (found.read.iops, ceilings.read_iops),
            (found.write.iops, ceilings.write_iops),
            (found.read.bytes_per_s, ceilings.read_bytes_per_s),
            (found.write.bytes_per_s, ceilings.write_bytes_per_s),
        ] {
            prop_assert!(most.is_none_or(|most| rate <= most * slack), "{rate} {most:?}");
        }
        for limit in &found.limits {
            prop_assert!(found.total.iops <= limit.workload_iops * slack, "{limit:?}");
            prop_assert!(!limit.explanation.is_empty() && !limit.sources.is_empty());
        }
        // Throughput is IOPS times the block size, and the parts add up to the total.
        let block = workload.block_bytes as f64;
        for rates in [found.total, found.read, found.write, found.allowed] {
            prop_assert!((rates.bytes_per_s - rates.iops * block).abs() <= 1e-9 * rates.bytes_per_s);
            prop_assert!((rates.mb_per_s * 1e6 - rates.bytes_per_s).abs() <= 1e-9 * rates.bytes_per_s);
        }
        prop_assert!((found.read.iops + found.write.iops - found.total.iops).abs() <= 1e-9 * found.total.iops);
        prop_assert!(found.total.iops <= found.allowed.iops * slack);
        if let Some(latency) = found.latency_us {
            let in_flight = workload.in_flight().expect("there is a latency") as f64;
            prop_assert!((latency * found.total.iops / 1e6 - in_flight).abs() <= 1e-6 * in_flight);
        }
        prop_assert!(!found.binding.recommendations.is_empty());
    }

    #[test]
    fn binding_limit_is_lowest_for_pure_workloads(
        (kind, machine) in a_place(),
        writes in any::<bool>(),
        size in 10u64..65536,
        shift in 9u32..22,
    ) {
        let Some(configuration) = configured(kind, size, &machine, 1) else { return Ok(()) };
        let workload = Workload::random(1 << shift, if writes { 0 } else { 100 });
        let Ok(found) = catalog().predict(&configuration, &workload) else { return Ok(()) };
        let least = found.limits[0].workload_iops;
        prop_assert!((found.total.iops - least).abs() <= 1e-9 * least);
        prop_assert!((found.binding.workload_iops - least).abs() <= 1e-9 * least);
        if let Some(next) = &found.next {
            let second = found.limits[1].workload_iops;
            prop_assert!((next.workload_iops - second).abs() <= 1e-9 * second);
        }
    }

    #[test]
    fn more_vcpus_are_never_slower(
        index in 0..400usize,
        workload in a_workload(),
    ) {
        let table = &catalog().per_vm[index % catalog().per_vm.len()];
        let rows: Vec<_> = table.rows.iter().filter(|row| row.vcpus.is_some()).collect();
        for pair in rows.windows(2) {
            let numbers = |row: &flagstone_cloud::catalog::VmRow| {
                [row.iops, row.mb_per_s, row.read_iops, row.write_iops, row.read_mb_per_s, row.write_mb_per_s]
            };
            let both = numbers(pair[0]).into_iter().zip(numbers(pair[1]));
            let grows = both.into_iter().all(|(a, b)| a.zip(b).is_none_or(|(a, b)| a <= b));
            prop_assert!(grows, "{:?} then {:?}", pair[0], pair[1]);
        }
        let predict = |row: &flagstone_cloud::catalog::VmRow| {
            let vcpus = row.vcpus.expect("filtered").min;
            let machine = catalog().machine(&format!("{}-standard-{vcpus}", table.families[0])).ok()?;
            let placement = Placement::new(catalog(), &table.types[0], &machine, false, 0.0, false).ok()?;
            let demand = Demand { size: 65536.0, disks: 1, iops: Some(2e6), throughput: Some(1e5) };
            let mix = flagstone_cloud::WorkloadMix::new(&workload, &catalog().units, placement.sharing());
            Some(mix.iops_under(placement.hard_caps(&demand, workload.block_bytes).iter()))
        };
        for pair in rows.windows(2) {
            if let (Some(fewer), Some(more)) = (predict(pair[0]), predict(pair[1])) {
                prop_assert!(fewer <= more * (1.0 + 1e-9), "{:?} {:?}", pair[0], pair[1]);
            }
        }
    }
}

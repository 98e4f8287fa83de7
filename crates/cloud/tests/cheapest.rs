//! Cheapest search: compared with an exhaustive search of a small catalog, and run on the
//! built-in ones.

use flagstone_cloud::catalog::{Catalog, Confidence};
use flagstone_cloud::cheapest::{CheapestPlan, CheapestReport, Need, Prices, Requirement, Scope};
use flagstone_cloud::{DiskConfiguration, Workload};
use proptest::prelude::*;

/// A cloud small enough for an exhaustive search: sizes to 24 GB, 24 IOPS, 12 MB/s, 3 disks.
const SMALL: &str = r#"
format = 1
name = "small"
title = "A small cloud"
date = "2026-01-01"
about = "made up"
confidence = "A"
[units]
size = "GB"
size_bytes = 1_000_000_000
throughput = "MB/s"
block = "KB"
block_bytes = 1024
blocks_per_throughput = 1000
[source.own]
address = "made up"
date = "2026-01-01"
confidence = "A"

[type.scaled]
title = "By size"
source = ["own"]
size_gb_min = 2
size_gb_max = 24
size_gb_max_vm = 40
block_kb_min_for_throughput = 100
[type.scaled.volume]
source = ["own"]
read_iops_per_gb = 0.75
write_iops_per_gb = 0.5
read_mb_per_s_per_gb = 0.3
write_mb_per_s_per_gb = 0.2
baseline_iops = 1
read_iops_max = 16
write_iops_max = 14
[type.scaled.mixing]
source = ["own"]
iops = "shared"
throughput = "half-duplex"

[type.bought]
title = "Bought apart"
source = ["own"]
size_gb_min = 1
size_gb_max = 24
block_kb_min_for_throughput = 100
[type.bought.provisioned]
source = ["own"]
iops_min = 3
iops_max = 24
iops_max_by_size = [{ size_gb_min = 1, iops = 6 }, { size_gb_min = 5, iops = 24 }]
iops_per_gb_max = 2
iops_default = 3
iops_free = 3
mb_per_s_min = 1
mb_per_s_max = 12
mb_per_s_per_iops_min = 0.25
mb_per_s_per_iops_max = 0.5
mb_per_s_default = 1
mb_per_s_free = 2
[type.bought.mixing]
source = ["own"]
iops = "independent"
throughput = "shared"

[family.a]
source = ["own"]
vcpus = [1, 2]
[family.b]
source = ["own"]
vcpus = [4]

[[per_vm]]
types = ["scaled", "bought"]
families = ["a"]
source = ["own"]
rows = [
  { vcpus = "1", read_iops = 9, write_iops = 7, read_mb_per_s = 5, write_mb_per_s = 4 },
  { vcpus = "2", iops = 14, mb_per_s = 7 },
]
[[per_vm]]
types = ["bought"]
families = ["b"]
source = ["own"]
rows = [{ vcpus = "4", read_iops = 40, write_iops = 30, read_mb_per_s = 20, write_mb_per_s = 20 }]

[[price]]
type = "scaled"
region = "here"
source = ["own"]
usd_per_gb = 1.0
[[price]]
type = "bought"
region = "here"
source = ["own"]
usd_per_gb = 0.7
usd_per_iops = 0.31
usd_per_mb_per_s = 0.9
"#;

const DISKS: u32 = 3;
const BLOCK: u64 = 100 * 1024;

fn need(read: u32, write: u32, mb_per_s: u32, gb: u32) -> Need {
    Need {
        read_iops: f64::from(read),
        write_iops: f64::from(write),
        bytes_per_s: f64::from(mb_per_s) * 1_024_000.0,
        capacity_bytes: u64::from(gb) * 1_000_000_000,
        block_bytes: 512,
        at_once: true,
    }
}

/// Whether [`flagstone_cloud::Catalog::predict`] finds the configuration sufficient,
/// independently of the search.
fn carries(catalog: &Catalog, configuration: &DiskConfiguration, need: &Need) -> bool {
    let total = need.read_iops + need.write_iops;
    let read = if total > 0.0 { Some(need.read_iops / total * 100.0) } else { None };
    let enough = |block: u64, percent: f64, iops: f64| {
        assert_eq!(percent.fract(), 0.0, "whole percents alone can be predicted");
        let workload = Workload::random(block, percent as u8);
        catalog
            .predict(configuration, &workload)
            .is_ok_and(|found| found.allowed.iops >= iops * (1.0 - 1e-9))
    };
    // A need of capacity alone still needs a disk that is sold.
    let iops = enough(need.block_bytes, read.unwrap_or(100.0), total);
    let reads = read.map_or(vec![100.0, 0.0], |read| vec![read]);
    let throughput = need.bytes_per_s == 0.0
        || reads.into_iter().all(|read| enough(BLOCK, read, need.bytes_per_s / BLOCK as f64));
    iops && throughput
}

/// The lowest price over everything that can be bought.
fn by_trying(catalog: &Catalog, need: &Need) -> Option<f64> {
    let gb = need.capacity_bytes / 1_000_000_000;
    let mut best: Option<f64> = None;
    for (kind, machine) in [
        ("scaled", "a-standard-1"),
        ("scaled", "a-standard-2"),
        ("bought", "a-standard-1"),
        ("bought", "a-standard-2"),
        ("bought", "b-standard-4"),
    ] {
        let bought: Vec<(Option<f64>, Option<f64>)> = match kind {
            "scaled" => vec![(None, None)],
            _ => (3..=24u32)
                .flat_map(|iops| (1..=12u32).map(move |t| (iops, t)))
                .map(|(iops, t)| (Some(f64::from(iops)), Some(f64::from(t) * 1_024_000.0)))
                .collect(),
        };
        for disks in 1..=DISKS {
            for size in 1..=24u64 {
                if size * u64::from(disks) < gb {
                    continue;
                }
                for (iops, throughput) in &bought {
                    let bytes = size * 1_000_000_000;
                    let mut configuration =
                        DiskConfiguration::new(catalog, kind, bytes, machine).unwrap();
                    configuration.disks = disks;
                    configuration.provisioned_iops = *iops;
                    configuration.provisioned_bytes_per_s = *throughput;
                    let usd = usd(kind, disks, size, *iops, *throughput);
                    let cheaper = best.is_none_or(|best| usd < best - 1e-9);
                    if cheaper && carries(catalog, &configuration, need) {
                        best = Some(usd);
                    }
                }
            }
        }
    }
    best
}

fn usd(kind: &str, disks: u32, size: u64, iops: Option<f64>, bytes: Option<f64>) -> f64 {
    let each = match kind {
        "scaled" => size as f64,
        _ => {
            let iops = (iops.unwrap() - 3.0).max(0.0) * 0.31;
            let throughput = (bytes.unwrap() / 1_024_000.0 - 2.0).max(0.0) * 0.9;
            size as f64 * 0.7 + iops + throughput
        }
    };
    each * f64::from(disks)
}

fn ask(catalog: &Catalog, need: &Need) -> CheapestReport {
    let scope = Scope { disks_max: DISKS, ..Scope::default() };
    catalog.cheapest(need, &scope, &Prices::default(), (10, false)).unwrap()
}

/// A result as input of `predict`.
fn configuration(catalog: &Catalog, found: &CheapestPlan) -> DiskConfiguration {
    let units = &catalog.units;
    let bytes = (found.size * units.size_bytes as f64) as u64;
    let name = &found.machine.name;
    let mut configuration = DiskConfiguration::new(catalog, &found.kind, bytes, name).unwrap();
    configuration.disks = found.disks;
    configuration.provisioned_iops = found.iops;
    let bytes_per_s = |rate: f64| rate * units.throughput_bytes() as f64;
    configuration.provisioned_bytes_per_s = found.throughput.map(bytes_per_s);
    configuration.regional = found.regional && catalog.types[&found.kind].regional.is_some();
    configuration
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn cheapest_matches_exhaustive_search(
        read_percent in prop_oneof![Just(0u32), Just(25), Just(50), Just(60), Just(100)],
        total in prop_oneof![Just(0u32), Just(5), Just(10), Just(20), Just(40)],
        mb_per_s in 0u32..14,
        gb in 1u32..50,
    ) {
        let catalog = Catalog::parse("small", SMALL).unwrap();
        // Whole numbers of both give a whole percentage.
        let read = total * read_percent / 100;
        prop_assume!(total == 0 || (read * 100).is_multiple_of(total));
        let need = need(read, total - read, mb_per_s, gb);
        let answer = ask(&catalog, &need);
        let best = answer.found.first().map(|found| found.usd_per_month);
        match (best, by_trying(&catalog, &need)) {
            (Some(found), Some(tried)) => prop_assert!(
                (found - tried).abs() < 1e-6,
                "{need:?}: found {found}, there is {tried}: {:#?}", answer.found[0]
            ),
            (None, None) => {}
            (found, tried) => prop_assert!(false, "{need:?}: found {found:?}, there is {tried:?}"),
        }
        for found in &answer.found {
            prop_assert!(carries(&catalog, &configuration(&catalog, found), &need), "{found:#?}");
        }
        prop_assert!(answer.found.is_sorted_by_key(|found| found.usd_per_month));
        for cheaper in &answer.cheaper {
            prop_assert!(cheaper.has_iops < cheaper.needs_iops);
            prop_assert!(best.is_none_or(|best| cheaper.usd_per_month < best));
        }
    }
}

#[test]
fn results_carry_the_need() {
    let current = Catalog::builtin("gcp-current").unwrap();
    let need = Need {
        read_iops: 20_000.0,
        write_iops: 10_000.0,
        bytes_per_s: 400e6,
        capacity_bytes: 1_000_000_000_000,
        block_bytes: 16 << 10,
        at_once: true,
    };
    for local_ssd in [false, true] {
        for regional in [false, true] {
            let scope = Scope { local_ssd, regional, ..Scope::default() };
            let answer = current.cheapest(&need, &scope, &Prices::default(), (10, false)).unwrap();
            assert!(!answer.found.is_empty());
            assert!(answer.cheaper.iter().all(|cheaper| cheaper.has_iops > 0.0), "{answer:?}");
            for found in &answer.found {
                assert!(!regional || found.regional, "{found:?}");
                let configuration = configuration(current, found);
                // 67 % and 66 % enclose two thirds.
                for percent in [67, 66] {
                    let workload = Workload::random(16 << 10, percent);
                    let allowed = current.predict(&configuration, &workload).unwrap().allowed.iops;
                    assert!(allowed > 30_000.0 * 0.98, "{allowed}: {found:?}");
                }
                assert!(found.headroom.iter().all(|room| room.percent > -1e-6), "{found:?}");
            }
        }
    }
}

#[test]
fn price_drivers_are_named() {
    let catalog = Catalog::parse("small", SMALL).unwrap();
    let capacity = &ask(&catalog, &need(1, 0, 0, 20)).found[0];
    assert_eq!(capacity.decided_by, [Requirement::Capacity]);
    let iops = &ask(&catalog, &need(10, 0, 0, 2)).found[0];
    assert!(iops.decided_by.contains(&Requirement::Iops), "{iops:?}");
    // 16 GB of `bought` cost 11.20 USD and lack the IOPS for 20 reads per second.
    let answer = ask(&catalog, &need(20, 0, 0, 16));
    let cheaper = answer.cheaper.iter().find(|cheaper| cheaper.kind == "bought").unwrap();
    assert_eq!(cheaper.lacks, Requirement::Iops);
    assert!(cheaper.enough_usd_per_month.unwrap() > cheaper.usd_per_month);
}

#[test]
fn machine_prices_change_order() {
    let catalog = Catalog::parse("small", SMALL).unwrap();
    let text = "machine_usd_per_month = { a-standard-2 = 100.0, b-standard-4 = 1.0 }\n\
                [disk.bought]\nusd_per_gb = 2.0\nusd_per_iops = 0.1\nusd_per_mb_per_s = 0.1\n";
    let prices = Prices::parse("own.toml", text).unwrap();
    let catalog = prices.apply("own.toml", &catalog).unwrap();
    let scope = Scope { disks_max: DISKS, ..Scope::default() };
    let answer = catalog.cheapest(&need(5, 0, 0, 4), &scope, &prices, (10, false)).unwrap();
    let best = &answer.found[0];
    assert_eq!((best.machine.name.as_str(), best.usd_machine), ("b-standard-4", Some(1.0)));
    assert_eq!(best.cost.sources, ["price-file"]);
    assert!(answer.found.iter().all(|found| found.machine.name != "a-standard-1"));
    assert!(answer.not_known.iter().any(|what| what.ends_with(" of a-standard-1")));
}

#[test]
fn search_mistakes_are_one_line() {
    let catalog = Catalog::parse("small", SMALL).unwrap();
    let scope = Scope::default();
    let none = Prices::default();
    let mut wrong = need(1, 1, 1, 1);
    wrong.read_iops = -1.0;
    let refusal = |need: &Need, scope: &Scope| {
        catalog.cheapest(need, scope, &none, (10, false)).unwrap_err().to_string()
    };
    assert!(refusal(&wrong, &scope).contains("-1 read IOPS: write a number from 0"));
    assert!(refusal(&need(0, 0, 0, 0), &scope).contains("nothing is needed"));
    let of = |machines: &[&str], types: &[&str]| Scope {
        machines: machines.iter().map(|name| (*name).to_owned()).collect(),
        types: types.iter().map(|name| (*name).to_owned()).collect(),
        ..Scope::default()
    };
    assert!(refusal(&need(1, 0, 0, 1), &of(&["zz"], &[])).contains("unknown machine `zz`"));
    assert!(refusal(&need(1, 0, 0, 1), &of(&[], &["zz"])).contains("unknown type of disk `zz`"));
    for (text, said) in [
        ("machine_usd_per_month = 3", "p.toml:1"),
        ("[disk.bought]\nusd_per_iops = 1.0", "`usd_per_gb` is missing"),
        ("x = 1", "unknown key `x`"),
        ("machine_usd_per_month = { a = -1.0 }", "a price of -1 for `a`"),
    ] {
        let error = Prices::parse("p.toml", text).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
}

/// Regression test: families of which only the largest number of vCPUs was known were not
/// expanded, so that nothing was found, without a reason.
#[test]
fn families_of_2019_are_expanded() {
    let catalog = Catalog::builtin("gcp-2019").unwrap();
    let need = Need {
        read_iops: 20_000.0,
        write_iops: 0.0,
        bytes_per_s: 0.0,
        capacity_bytes: 2_000_000_000_000,
        block_bytes: 8 << 10,
        at_once: true,
    };
    let best = |machines: &[&str]| {
        let machines = machines.iter().map(|name| (*name).to_owned()).collect();
        let scope = Scope { machines, ..Scope::default() };
        let answer = catalog.cheapest(&need, &scope, &Prices::default(), (10, true)).unwrap();
        answer.found[0].clone()
    };
    let family = best(&["n2"]);
    assert_eq!(family.machine.name, "n2-standard-16");
    assert_eq!(family.usd_per_month, best(&["n2-standard-16"]).usd_per_month);
    assert_eq!(best(&[]).machine.vcpus, Some(16));
}

#[test]
fn shortfall_names_requirement_and_nearest() {
    let catalog = Catalog::builtin("gcp-2019").unwrap();
    let need = |read_iops, capacity_bytes| Need {
        read_iops,
        write_iops: 0.0,
        bytes_per_s: 0.0,
        capacity_bytes,
        block_bytes: 8 << 10,
        at_once: true,
    };
    let scope = Scope { machines: vec!["n1-standard-8".to_owned()], ..Scope::default() };
    let ask = |need: &Need| catalog.cheapest(need, &scope, &Prices::default(), (10, true)).unwrap();
    // 8 vCPUs of n1 are allowed 15,000 reads.
    let shortfall = ask(&need(20_000.0, 1 << 40)).shortfall.expect("nothing is found");
    assert_eq!((shortfall.unmet.as_slice(), shortfall.percent), (&[Requirement::Iops][..], 75));
    assert_eq!(shortfall.nearest.expect("there is one").kind, "pd-ssd");
    let shortfall = ask(&need(10.0, 1 << 59)).shortfall.expect("nothing is found");
    assert_eq!((shortfall.unmet.as_slice(), shortfall.percent), (&[Requirement::Capacity][..], 0));
    assert_eq!(shortfall.nearest, None);
    assert_eq!(ask(&need(10.0, 1 << 40)).shortfall, None);
}

#[test]
fn distinct_search_has_one_row_per_type_and_family() {
    let catalog = Catalog::builtin("gcp-current").unwrap();
    let need = Need {
        read_iops: 20_000.0,
        write_iops: 10_000.0,
        bytes_per_s: 0.0,
        capacity_bytes: 1_000_000_000_000,
        block_bytes: 16 << 10,
        at_once: true,
    };
    let scope = Scope::default();
    let answer = catalog.cheapest(&need, &scope, &Prices::default(), (1000, true)).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for found in &answer.found {
        assert!(seen.insert((&found.kind, &found.machine.family)), "{found:?}");
    }
    assert!(answer.found.len() > 3);
}

fn of_current(read_iops: f64, capacity_bytes: u64, scope: &Scope) -> CheapestReport {
    let need = Need {
        read_iops,
        write_iops: 0.0,
        bytes_per_s: 0.0,
        capacity_bytes,
        block_bytes: 4 << 10,
        at_once: true,
    };
    let catalog = Catalog::builtin("gcp-current").unwrap();
    catalog.cheapest(&need, scope, &Prices::default(), (1000, false)).unwrap()
}

const TB: u64 = 1_000_000_000_000;

/// Regression test: one disk of 8 PiB was offered, because no largest size was known.
#[test]
fn disks_that_no_source_knows_are_not_offered() {
    let scope = Scope::default();
    let answer = of_current(0.0, 9000 * TB, &scope);
    assert!(answer.found.is_empty(), "{:?}", answer.found[0]);
    let shortfall = answer.shortfall.expect("nothing is found");
    assert_eq!(
        (shortfall.unmet.as_slice(), shortfall.nearest),
        (&[Requirement::Capacity][..], None)
    );
    for found in of_current(0.0, 500 * TB, &scope).found {
        assert!(found.size <= 65536.0 && !found.kind.starts_with("pd-"), "{found:?}");
        // Regression test: a disk of Hyperdisk Extreme without any IOPS was an answer.
        assert_ne!(found.iops, Some(0.0), "{found:?}");
    }
    let nearest = of_current(10_000_000.0, 2 * TB, &scope).shortfall.and_then(|one| one.nearest);
    let nearest = nearest.expect("something carries a part");
    let unknown = nearest.kind == "hyperdisk-balanced" && nearest.size < 320.0;
    assert!(!unknown || nearest.iops <= Some(3600.0), "{nearest:?}");
}

/// Regression test: any IOPS were sold with a disk of any size.
#[test]
fn small_hyperdisks_sell_what_is_known() {
    let catalog = Catalog::builtin("gcp-current").unwrap();
    let predicted = |gib: u64, iops: f64| {
        let machine = "c4-standard-96";
        let disk = DiskConfiguration::new(catalog, "hyperdisk-balanced", gib << 30, machine);
        let disk = DiskConfiguration { provisioned_iops: Some(iops), ..disk.unwrap() };
        catalog.predict(&disk, &Workload::random(4096, 100))
    };
    for (gib, iops) in [(10, 3000.0), (100, 3600.0), (320, 100_000.0)] {
        let found = predicted(gib, iops).unwrap().total.iops;
        assert!((found - iops).abs() < 1e-6, "{gib}: {found}");
    }
    for (gib, iops) in [(10, 100_000.0), (99, 3600.0), (319, 3601.0)] {
        let error = predicted(gib, iops).unwrap_err();
        assert!(matches!(error, flagstone_cloud::PlanError::NotKnown(_)), "{error}");
    }
}

/// Regression test: a family was said to be left out, and recommended above.
#[test]
fn left_out_machines_are_named() {
    let scope = Scope { machines: vec!["e2".to_owned()], ..Scope::default() };
    let answer = of_current(10_000.0, TB, &scope);
    assert!(answer.found.iter().any(|found| found.kind == "pd-balanced"));
    let line = answer.not_known.iter().find(|line| line.starts_with("limits of pd-balanced,"));
    assert!(line.is_none_or(|line| !line.contains("of machines of e2")), "{line:?}");
    let whole = answer.not_known.iter().filter(|line| line.contains("of machines of"));
    for line in whole {
        let kind = line.split(' ').nth(2).unwrap().trim_end_matches(',');
        assert!(answer.found.iter().all(|found| found.kind != kind), "{line}");
    }
}

#[test]
fn iops_by_size_are_in_order() {
    for (row, other) in
        [("size_gb_min = 5, iops = 24", "size_gb_min = 1, iops = 24"), ("iops = 6", "iops = 60")]
    {
        let error = Catalog::parse("small", &SMALL.replace(row, other)).unwrap_err().to_string();
        assert!(error.contains("iops_max_by_size is out of order"), "{error}");
    }
}

fn current() -> &'static Catalog {
    Catalog::builtin("gcp-current").unwrap()
}

fn throughput(bytes_per_s: f64) -> Need {
    Need {
        read_iops: 0.0,
        write_iops: 0.0,
        bytes_per_s,
        capacity_bytes: TB,
        block_bytes: 4 << 10,
        at_once: true,
    }
}

/// Regression test: throughput that no source gives counted as enough.
#[test]
fn unknown_disk_throughput_carries_no_need() {
    let types = ["pd-standard", "pd-balanced", "pd-ssd"].map(str::to_owned).to_vec();
    let scope = Scope { regional: true, types, ..Scope::default() };
    let ask = |need| current().cheapest(&need, &scope, &Prices::default(), (10, false)).unwrap();
    let answer = ask(throughput(1e8));
    assert_eq!(answer.found, []);
    let line = "the throughput of regional pd-ssd by its size, so that it is left out";
    assert!(answer.not_known.iter().any(|what| what == line), "{:?}", answer.not_known);
    let large =
        Need { read_iops: 100.0, bytes_per_s: 0.0, block_bytes: 1 << 20, ..throughput(0.0) };
    assert_eq!(ask(large).found, [], "large blocks are throughput");
    let small = ask(Need { read_iops: 1000.0, ..throughput(0.0) });
    assert!(!small.found.is_empty());
    assert!(small.found.iter().all(|found| found.confidence == Confidence::C));

    let disk = DiskConfiguration::new(current(), "pd-ssd", 1 << 40, "n2-standard-8").unwrap();
    let zonal = current().predict(&disk, &Workload::random(1 << 20, 100)).unwrap();
    let disk = DiskConfiguration { regional: true, ..disk };
    let regional = current().predict(&disk, &Workload::random(1 << 20, 100)).unwrap();
    assert!(zonal.confidence < Confidence::C && regional.confidence == Confidence::C);
}

/// Regression test: a machine whose row has no IOPS had no limit of IOPS.
#[test]
fn unknown_machine_iops_carry_no_need() {
    let scope = Scope {
        machines: vec!["c4".to_owned()],
        types: vec!["hyperdisk-balanced".to_owned()],
        ..Scope::default()
    };
    let need = Need { read_iops: 300_000.0, ..throughput(0.0) };
    let answer = current().cheapest(&need, &scope, &Prices::default(), (1000, false)).unwrap();
    assert!(answer.found.iter().all(|found| !found.machine.name.starts_with("c4-standard-288")));
    let line =
        answer.not_known.iter().find(|line| line.starts_with("IOPS limits of hyperdisk-bal"));
    assert!(line.is_some_and(|line| line.contains("c4-standard-288")), "{:?}", answer.not_known);

    let machine = "c4-standard-288";
    let disk = DiskConfiguration::new(current(), "hyperdisk-balanced", 1 << 40, machine).unwrap();
    let found = current().predict(&disk, &Workload::random(4096, 100)).unwrap();
    let gap = "the limit of c4-standard-288 for the IOPS of hyperdisk-balanced";
    assert!(found.not_known.iter().any(|what| what == gap), "{:?}", found.not_known);
    assert_eq!(found.confidence, Confidence::C);
}

/// Regression test: the machine without a known limit was recommended, with endless IOPS.
#[test]
fn unknown_machine_is_not_recommended() {
    let machine = "c4-standard-192";
    let disk = DiskConfiguration::new(current(), "hyperdisk-balanced", 1 << 40, machine).unwrap();
    let disk = DiskConfiguration { disks: 8, provisioned_iops: Some(100_000.0), ..disk };
    let found = current().predict(&disk, &Workload::random(4096, 100)).unwrap();
    assert!(!format!("{found:?}").contains("workload_iops: inf }"), "{:?}", found.binding);
}

/// Regression test: writes on a machine of unknown egress had none.
#[test]
fn unknown_egress_carries_no_written_throughput() {
    let scope = Scope { machines: vec!["f1".to_owned(), "g1".to_owned()], ..Scope::default() };
    let ask = |need| current().cheapest(&need, &scope, &Prices::default(), (9, false)).unwrap();
    let answer = ask(Need { write_iops: 10.0, bytes_per_s: 1e6, ..throughput(0.0) });
    assert!(answer.found.iter().all(|found| found.kind != "pd-ssd"), "{:?}", answer.found);
    let written = Need { write_iops: 10.0, ..throughput(0.0) };
    assert!(ask(written).found.iter().all(|found| found.confidence == Confidence::C));
}

/// Regression test: only machines named FAMILY-standard-N had a price, and typing mistakes passed.
#[test]
fn every_priced_machine_is_searched() {
    let price = |machine: &str| {
        let text = format!("machine_usd_per_month = {{ n2-standard-8 = 300, {machine} = 1 }}");
        Prices::parse("p.toml", &text).unwrap()
    };
    let prices = price("n2-highcpu-8");
    let catalog = prices.apply("p.toml", current()).unwrap();
    let need = Need { read_iops: 1000.0, ..throughput(0.0) };
    let found = |scope: &Scope| {
        let answer = catalog.cheapest(&need, scope, &prices, (1, false)).unwrap();
        answer.found[0].machine.name.clone()
    };
    assert_eq!(found(&Scope::default()), "n2-highcpu-8");
    let of = |machine: &str| Scope { machines: vec![machine.to_owned()], ..Scope::default() };
    assert_eq!(
        (found(&of("n2")), found(&of("n2-standard-8"))),
        ("n2-highcpu-8".to_owned(), "n2-standard-8".to_owned())
    );
    let error = price("n2-stadnart-16").apply("p.toml", current()).unwrap_err().to_string();
    assert!(error.contains("did you mean `n2-standard-16`?"), "{error}");
}

/// Regression test: separate reads and writes were one load of the throughput.
#[test]
fn separate_reads_and_writes_of_throughput() {
    let catalog = Catalog::parse("small", SMALL).unwrap();
    let scope = Scope { types: vec!["scaled".to_owned()], disks_max: 1, ..Scope::default() };
    let size = |at_once| {
        let need = Need { at_once, ..need(1, 1, 1, 1) };
        catalog.cheapest(&need, &scope, &Prices::default(), (1, false)).unwrap().found[0].size
    };
    // 10 requests a second of 100 KB share one budget, or 5 writes have it alone.
    assert_eq!((size(true), size(false)), (15.0, 8.0));
}

/// Regression test: a price of a GiB was taken for one of a GB.
#[test]
fn price_units_are_the_catalogs() {
    let apply = |catalog: &str, key: &str| {
        let text = format!("[disk.pd-ssd]\n{key} = 0.2\n");
        let prices = Prices::parse("p.toml", &text).unwrap();
        prices.apply("p.toml", Catalog::builtin(catalog).unwrap()).map_err(|e| e.to_string())
    };
    assert!(apply("gcp-2019", "usd_per_gb").is_ok() && apply("gcp-current", "usd_per_gib").is_ok());
    let error = apply("gcp-2019", "usd_per_gib").expect_err("another unit");
    assert!(error.contains("`usd_per_gib` of `pd-ssd`") && error.contains("usd_per_gb"), "{error}");
    assert!(apply("gcp-current", "usd_per_gb").is_err());
    let both = "[disk.pd-ssd]\nusd_per_gib = 0.2\nusd_per_gb = 0.2";
    assert!(Prices::parse("p.toml", both).is_err());
    let other = "[disk.pd-ssd]\nusd_per_gb = 0.2\nusd_per_mib_per_s = 0.1";
    let other = Prices::parse("p.toml", other).unwrap();
    assert!(other.apply("p.toml", Catalog::builtin("gcp-2019").unwrap()).is_err());
}

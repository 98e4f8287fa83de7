//! Curves and comparisons equal predictions at every position, for every type of both catalogs.

use flagstone_cloud::catalog::Catalog;
use flagstone_cloud::compare::ComparisonRequest;
use flagstone_cloud::curve::{Over, Sweep};
use flagstone_cloud::{DiskConfiguration, PlanError, Workload};

const OVER: [Over; 4] = [Over::Size, Over::Vcpus, Over::Block, Over::Depth];

fn at(
    catalog: &Catalog,
    over: Over,
    place: u64,
    configuration: &DiskConfiguration,
    workload: &Workload,
) -> (DiskConfiguration, Workload) {
    let (mut configuration, mut workload) = (configuration.clone(), workload.clone());
    match over {
        Over::Size => configuration.size_bytes = place * catalog.units.size_bytes,
        Over::Vcpus => {
            let name = format!("{}-standard-{place}", configuration.machine.family);
            configuration.machine = catalog.machine(&name).unwrap();
        }
        Over::Block => workload.block_bytes = place,
        Over::Depth => workload.depth = Some(place as u32),
    }
    (configuration, workload)
}

#[test]
fn curve_points_equal_predictions() {
    let mut curves = 0;
    for name in Catalog::builtin_names() {
        let catalog = Catalog::builtin(name).unwrap();
        for kind in catalog.types.keys() {
            for (machine, read, over) in ["n2-standard-8", "c2-standard-16"]
                .iter()
                .flat_map(|machine| [0, 70, 100].map(|read| (*machine, read)))
                .flat_map(|(machine, read)| OVER.map(|over| (machine, read, over)))
            {
                let size = 1000 * catalog.units.size_bytes;
                let local = catalog.types[kind].size_gb_each.is_some();
                let size = if local { 0 } else { size };
                let configuration = DiskConfiguration::new(catalog, kind, size, machine).unwrap();
                let workload = Workload::random(8 << 10, read);
                let all = [configuration.clone()];
                let sweep = Sweep::new(catalog, over, &all, (None, None)).unwrap();
                let Ok(curve) = catalog.curve(&configuration, &workload, &sweep) else {
                    continue;
                };
                curves += 1;
                assert!(curve.points.windows(2).all(|pair| pair[0].at < pair[1].at));
                for point in curve.points.iter().step_by(5) {
                    let (configuration, workload) =
                        at(catalog, over, point.at, &configuration, &workload);
                    let found = catalog.predict(&configuration, &workload).unwrap();
                    assert_eq!(found.total.iops, point.iops, "{kind} {over:?} {point:?}");
                    assert_eq!(found.binding.kind, point.binding, "{kind} {over:?} {point:?}");
                    assert_eq!(found.binding.dimension, point.dimension, "{kind} {over:?}");
                }
                for pair in curve.spans.windows(2) {
                    let apart = pair[1].from.at - pair[0].to.at;
                    assert!(sweep.step == 0 || apart == sweep.step, "{kind} {over:?} {pair:?}");
                    assert_ne!(pair[0].binding(), pair[1].binding());
                }
            }
        }
    }
    assert!(curves > 60, "{curves}");
}

#[test]
fn curves_are_monotonic() {
    let catalog = Catalog::builtin("gcp-2019").unwrap();
    let size = 500 * catalog.units.size_bytes;
    for over in [Over::Size, Over::Vcpus, Over::Depth] {
        let disk = DiskConfiguration::new(catalog, "pd-ssd", size, "n1-standard-8").unwrap();
        let sweep = Sweep::new(catalog, over, std::slice::from_ref(&disk), (None, None)).unwrap();
        let curve = catalog.curve(&disk, &Workload::random(4096, 100), &sweep).unwrap();
        assert!(curve.points.windows(2).all(|pair| pair[0].iops <= pair[1].iops), "{over:?}");
        assert!(curve.points.last().unwrap().iops > curve.points[0].iops, "{over:?}");
    }
}

#[test]
fn impossible_positions_are_absent() {
    let catalog = Catalog::builtin("gcp-current").unwrap();
    let small = DiskConfiguration::new(catalog, "pd-ssd", 0, "n2-standard-8").unwrap();
    let mut large =
        DiskConfiguration::new(catalog, "hyperdisk-throughput", 0, "n2-standard-8").unwrap();
    large.provisioned_bytes_per_s = Some(170.0 * 1_048_576.0);
    let both = [small, large];
    let sweep = Sweep::new(catalog, Over::Size, &both, (None, None)).unwrap();
    let workload = Workload::random(4096, 100);
    let of = |index: usize| catalog.curve(&both[index], &workload, &sweep).unwrap();
    assert_eq!(of(0).points[0].at, 10);
    // 2 TiB to 32 TiB, exact to the GiB.
    assert_eq!(of(1).points[0].at, 2048);
    assert_eq!(of(1).points.last().unwrap().at, 32_768);
    // Without any possible position, the error concerns a requested size.
    let unbought = DiskConfiguration { provisioned_bytes_per_s: None, ..both[1].clone() };
    let error = catalog.curve(&unbought, &workload, &sweep).unwrap_err().to_string();
    assert!(error.contains("--throughput is missing"), "{error}");
    // Unknown queue depth rules produce no points.
    let balanced =
        DiskConfiguration::new(catalog, "pd-balanced", 1 << 40, "n2-standard-8").unwrap();
    let sweep =
        Sweep::new(catalog, Over::Depth, std::slice::from_ref(&balanced), (None, None)).unwrap();
    let error = catalog.curve(&balanced, &workload, &sweep).unwrap_err();
    assert!(matches!(error, PlanError::NotKnown(_)), "{error}");
}

#[test]
fn impossible_types_are_columns_with_reason() {
    for name in Catalog::builtin_names() {
        let catalog = Catalog::builtin(name).unwrap();
        let kinds: Vec<String> = catalog.types.keys().cloned().collect();
        for machine in ["n2-standard-8", "n1-standard-32", "c2-standard-4"] {
            for regional in [false, true] {
                let request = ComparisonRequest {
                    capacity_bytes: 1_000_000_000_000,
                    machine: catalog.machine(machine).unwrap(),
                    regional,
                    other_egress_gbit_per_s: 1.0,
                    tier1_networking: false,
                    provisioned_iops: None,
                    provisioned_bytes_per_s: None,
                    workloads: vec![Workload::random(4096, 100), Workload::random(4096, 0)],
                };
                let columns = catalog.compare(&kinds, &request).unwrap();
                assert_eq!(columns.len(), kinds.len());
                assert!(columns.iter().any(|column| column.error.is_none()), "{machine}");
                for column in columns {
                    let results = if column.error.is_none() { 2 } else { 0 };
                    assert_eq!(column.results.len(), results, "{}", column.kind);
                    if results == 0 {
                        continue;
                    }
                    let held = column.size * f64::from(column.disks);
                    assert!(held * 1.000_001 >= catalog.units.size_of(request.capacity_bytes));
                    let priced =
                        column.results.iter().all(|results| results.usd_per_iops.is_some());
                    assert_eq!(column.cost.is_some(), priced, "{}", column.kind);
                }
            }
        }
    }
}

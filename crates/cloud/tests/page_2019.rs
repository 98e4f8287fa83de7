//! Every cell of the 2019 page, by the model and by the printed tables.
//!
//! `page-2019.toml` holds the cells as the page prints them, separate from the catalog, so that a
//! mistake in one cannot hide in the other.

use flagstone_cloud::catalog::Catalog;
use flagstone_cloud::table::PlanTable;
use flagstone_cloud::{
    Demand, DiskConfiguration, LimitKind, Placement, Prediction, Rates, Workload, WorkloadMix,
};
use toml_edit::{Document, Value};

const KB: u64 = 1024;
/// Deep and large enough that only throughput limits.
const LARGE: u64 = 1024 * KB;
const GB: u64 = 1_000_000_000;

fn catalog() -> &'static Catalog {
    Catalog::builtin("gcp-2019").expect("it is in the program")
}

/// Rows of a page table as text.
fn cells(name: &str) -> Vec<Vec<String>> {
    let document = Document::parse(include_str!("page-2019.toml")).expect("it is TOML");
    let rows = document.get(name).and_then(|item| item.as_array()).expect(name);
    let text = |value: &Value| match value {
        Value::String(text) => text.value().clone(),
        Value::Integer(number) => number.value().to_string(),
        Value::Float(number) => number.value().to_string(),
        other => panic!("{other:?}"),
    };
    rows.iter().map(|row| row.as_array().expect(name).iter().map(text).collect()).collect()
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or_else(|_| panic!("{text}"))
}

/// Common columns of the limit tables: block size and reads or writes.
const COLUMNS: [(u64, bool); 5] =
    [(16 * KB, true), (8 * KB, false), (16 * KB, false), (LARGE, true), (LARGE, false)];

fn predict(kind: &str, size_gb: u64, machine: &str, workload: &Workload) -> Prediction {
    let configuration =
        DiskConfiguration::new(catalog(), kind, size_gb * GB, machine).expect("right");
    catalog().predict(&configuration, workload).unwrap_or_else(|error| panic!("{error}"))
}

/// Value of a limit table's column: IOPS of small blocks, MB/s of large ones.
fn column(prediction: &Prediction) -> f64 {
    match prediction.workload.block_bytes {
        LARGE => page_mb(&prediction.allowed),
        _ => prediction.allowed.iops,
    }
}

#[track_caller]
fn assert_near(value: f64, wanted: f64, what: &str) {
    assert!((value - wanted).abs() <= 1e-6 * wanted.max(1.0), "{what}: {value}, printed {wanted}");
}

fn table(title: &str) -> PlanTable {
    let tables = catalog().tables(None).expect("no type was named");
    tables.into_iter().find(|table| table.title == title).unwrap_or_else(|| panic!("{title}"))
}

/// Cells of a table in the page's form: without commas.
fn printed(table: &PlanTable) -> Vec<Vec<String>> {
    let row = |row: &Vec<flagstone_cloud::table::PlanCell>| {
        row.iter().map(|cell| cell.text.replace(',', "")).collect()
    };
    table.rows.iter().map(row).collect()
}

#[test]
fn per_instance_cells_of_pd_ssd() {
    let mut seen = 0;
    for row in cells("n1_pd_ssd") {
        let (first, last) = (number(&row[1]) as u32, number(&row[2]) as u32);
        for vcpus in first..=last {
            let machine = format!("n1-custom-{vcpus}-1024");
            for (cell, (block, reads)) in row[3..].iter().zip(COLUMNS) {
                let workload = Workload::random(block, if reads { 100 } else { 0 });
                let prediction = predict("pd-ssd", 65536, &machine, &workload);
                let wanted = match cell.strip_suffix("/vCPU") {
                    Some(each) => number(each) * f64::from(vcpus),
                    None => number(cell),
                };
                assert_near(column(&prediction), wanted, &format!("{vcpus} vCPUs, {block}"));
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 96 * 5);
}

#[test]
fn per_instance_table_as_printed() {
    let made = table("SSD persistent disk, by number of vCPUs (all machine types except C2)");
    let wanted: Vec<Vec<String>> = cells("n1_pd_ssd")
        .into_iter()
        .map(|row| std::iter::once(row[0].clone()).chain(row[3..].iter().cloned()).collect())
        .collect();
    assert_eq!(printed(&made), wanted);
}

/// C2's tables are about the machine; the volume's own limits apply in addition (I08).
#[test]
fn per_instance_cells_of_c2() {
    for (name, kind, title) in [
        ("c2_pd_standard", "pd-standard", "Standard persistent disk, C2 machine types"),
        ("c2_pd_ssd", "pd-ssd", "SSD persistent disk, C2 machine types"),
    ] {
        let rows = cells(name);
        assert_eq!(rows.len(), 5);
        for row in &rows {
            let machine = catalog().machine(&format!("c2-standard-{}", row[0])).expect("it is one");
            let placement =
                Placement::new(catalog(), kind, &machine, false, 0.0, false).expect("right");
            let demand = Demand { size: 65536.0, disks: 1, iops: None, throughput: None };
            for (cell, (block, reads)) in row[1..].iter().zip(COLUMNS) {
                let workload = Workload::random(block, if reads { 100 } else { 0 });
                let mix = WorkloadMix::new(&workload, &catalog().units, placement.sharing());
                let caps = placement.hard_caps(&demand, block);
                let of_machine = caps.iter().filter(|cap| {
                    let throughput =
                        cap.dimension == flagstone_cloud::prediction::Dimension::Throughput;
                    matches!(cap.kind, LimitKind::Vm | LimitKind::Egress)
                        && (block != LARGE || throughput)
                });
                let iops = mix.iops_under(of_machine);
                let value = if block == LARGE { iops * mix.throughput_per_io } else { iops };
                assert_near(value, number(cell), &format!("{name} {} {block}", row[0]));
            }
        }
        let labeled: Vec<Vec<String>> = rows
            .into_iter()
            .map(|mut row| {
                row[0] += " vCPUs";
                row
            })
            .collect();
        assert_eq!(printed(&table(title)), labeled);
    }
}

#[test]
fn c2_with_16_kb_writes_is_volume_limited() {
    let workload = Workload::random(16 * KB, 0);
    for (machine, iops) in
        [("c2-standard-16", 4000.0), ("c2-standard-30", 7500.0), ("c2-standard-60", 7500.0)]
    {
        let prediction = predict("pd-standard", 10000, machine, &workload);
        assert_near(prediction.allowed.iops, iops, machine);
        let reported = prediction.inconsistencies.iter().any(|touched| touched.id == "I08");
        assert_eq!(reported, iops == 7500.0, "{machine}");
    }
    let bound = predict("pd-standard", 10000, "c2-standard-60", &workload);
    assert_eq!(bound.binding.kind, LimitKind::BlockSize);
}

#[test]
fn volume_cells() {
    let mut seen = 0;
    for (name, kind) in [("volume_pd_standard", "pd-standard"), ("volume_pd_ssd", "pd-ssd")] {
        for row in cells(name) {
            let size = number(&row[0]) as u64;
            for (cell, (block, reads)) in row[1..].iter().zip(COLUMNS) {
                if cell == "*" {
                    continue;
                }
                let workload = Workload::random(block, if reads { 100 } else { 0 });
                let prediction = predict(kind, size, "n1-standard-64", &workload);
                let value = column(&prediction);
                // The page rounds down: IOPS to a thousand if the row is no multiple (I13),
                // throughput to a whole number except in the 10 GB row (I14).
                let wanted = number(cell);
                let below = match (block, kind, size) {
                    (LARGE, "pd-ssd", 10) => 1e-6,
                    (LARGE, _, _) => 1.0,
                    (_, "pd-ssd", 834 | 1334 | 1667) => 1000.0,
                    _ => 1e-6,
                };
                assert!(
                    value >= wanted - 1e-6 && value < wanted + below,
                    "{kind} {size} GB, {block}: {value}, printed {wanted}"
                );
                let reported: Vec<_> =
                    prediction.inconsistencies.iter().map(|touched| touched.id.as_str()).collect();
                if kind == "pd-ssd" {
                    assert_eq!(
                        reported.contains(&"I13"),
                        [834, 1334, 1667].contains(&size),
                        "{size}"
                    );
                    assert_eq!(reported.contains(&"I14"), size == 10, "{size}");
                }
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 75 + 80);
}

#[test]
fn volume_tables_as_printed() {
    for (name, title) in [
        ("volume_pd_standard", "Standard persistent disk, by size"),
        ("volume_pd_ssd", "SSD persistent disk, by size"),
    ] {
        assert_eq!(printed(&table(title)), cells(name), "{name}");
    }
}

#[test]
fn simultaneous_reads_and_writes() {
    for (name, kind, machine) in [
        ("simultaneous_pd_standard", "pd-standard", "n1-standard-8"),
        ("simultaneous_pd_ssd_8_vcpu", "pd-ssd", "n1-standard-8"),
        ("simultaneous_pd_ssd_32plus_vcpu", "pd-ssd", "n1-standard-32"),
        ("simultaneous_pd_ssd_32plus_vcpu", "pd-ssd", "n1-standard-96"),
    ] {
        let rows = cells(name);
        assert_eq!(rows.len(), 5);
        for row in rows {
            let (read, write) = (number(&row[0]), number(&row[1]));
            assert_point(kind, machine, 8 * KB, (read, write), (1.0, read + write));
        }
    }
    for row in cells("simultaneous_throughput_pd_standard") {
        let (read, write) = (number(&row[0]), number(&row[1]));
        let per_io = LARGE as f64 / (1000.0 * KB as f64);
        assert_point("pd-standard", "n1-standard-8", LARGE, (read, write), (per_io, read + write));
    }
    for row in cells("simultaneous_throughput_pd_ssd") {
        let machine = format!("n1-standard-{}", row[0]);
        let (read, write) = (number(&row[1]), number(&row[2]));
        let per_io = LARGE as f64 / (1000.0 * KB as f64);
        assert_point("pd-ssd", &machine, LARGE, (read, write), (per_io, read + write));
    }
}

/// A mix with the proportions of a printed point reaches exactly that point.
fn assert_point(
    kind: &str,
    machine: &str,
    block: u64,
    (read, write): (f64, f64),
    (unit, total): (f64, f64),
) {
    let machine = catalog().machine(machine).expect("it is one");
    let placement = Placement::new(catalog(), kind, &machine, false, 0.0, false).expect("right");
    let demand = Demand { size: 65536.0, disks: 1, iops: None, throughput: None };
    let workload = Workload::random(block, 50);
    let mix = WorkloadMix {
        read: read / (read + write),
        write: write / (read + write),
        ..WorkloadMix::new(&workload, &catalog().units, placement.sharing())
    };
    let iops = mix.iops_under(placement.hard_caps(&demand, block).iter());
    assert_near(iops * unit, total, &format!("{kind} on {}: {read} / {write}", machine.name));
}

#[test]
fn simultaneous_tables_as_printed() {
    for (title, iops, throughput) in [
        (
            "Standard persistent disk",
            "simultaneous_pd_standard",
            Some("simultaneous_throughput_pd_standard"),
        ),
        ("SSD persistent disk, 8 vCPUs", "simultaneous_pd_ssd_8_vcpu", None),
        (
            "SSD persistent disk, 32 and more vCPUs (throughput: 16 and more)",
            "simultaneous_pd_ssd_32plus_vcpu",
            None,
        ),
    ] {
        let rows = printed(&table(title));
        let part =
            |from: usize| rows.iter().map(|row| row[from..from + 2].to_vec()).collect::<Vec<_>>();
        assert_eq!(part(0), cells(iops), "{title}");
        match throughput {
            Some(name) => assert_eq!(part(2), cells(name), "{title}"),
            None => {
                let of = if title.contains("8 vCPUs") { 0 } else { 1 };
                let wanted = cells("simultaneous_throughput_pd_ssd")[of][1..].to_vec();
                assert_eq!(part(2), vec![wanted; 5], "{title}");
            }
        }
    }
}

#[test]
fn egress_cells() {
    for row in cells("egress") {
        let (first, last) = match row[0].strip_suffix('+') {
            Some(first) => (number(first) as u32, 96),
            None => (number(&row[0]) as u32, number(&row[0]) as u32),
        };
        for vcpus in first..=last {
            for (kind, part) in [("pd-standard", &row[1..4]), ("pd-ssd", &row[4..7])] {
                let machine = format!("n1-custom-{vcpus}-1024");
                let size = number(&part[2]) as u64;
                let workload = Workload::random(LARGE, 0);
                let mut configuration =
                    DiskConfiguration::new(catalog(), kind, size * GB, &machine).expect("right");
                let limit = catalog().predict(&configuration, &workload).expect("right");
                // The size is the smallest whole number that reaches the limit; the page prints the
                // limit rounded down from that size.
                let wanted = number(&part[0]);
                let egress = limit.limits.iter().find(|limit| limit.kind == LimitKind::Egress);
                let egress = egress.and_then(|limit| limit.write).expect("it bounds writes");
                // Limits are in MB/s of 10^6 bytes, the page counts 1,024,000.
                let egress = egress / 1.024;
                let most = if kind == "pd-ssd" && vcpus >= 8 { 400.0 } else { 240.0 };
                assert_near(egress.min(most), wanted, &format!("{kind} {vcpus}"));
                assert_near(page_mb(&limit.allowed), wanted, &format!("{kind} {vcpus} {size} GB"));
                configuration.size_bytes -= GB;
                let less = catalog().predict(&configuration, &workload).expect("right");
                assert!(
                    page_mb(&less.allowed) < wanted,
                    "{kind} {vcpus}: {size} GB is not the least"
                );

                configuration.size_bytes = 65536 * GB;
                configuration.other_egress_gbit_per_s = f64::from(2 * vcpus.min(8));
                let busy = catalog().predict(&configuration, &workload).expect("right");
                assert_near(
                    page_mb(&busy.allowed),
                    number(&part[1]),
                    &format!("{kind} {vcpus} busy"),
                );
                let reported = busy.inconsistencies.iter().any(|touched| touched.id == "I05");
                assert_eq!(reported, vcpus > 8 && kind == "pd-ssd", "{kind} {vcpus}");
            }
        }
    }
}

#[test]
fn egress_table_as_printed() {
    let made = table("Write throughput that the network's egress leaves");
    assert_eq!(printed(&made), cells("egress"));
}

#[test]
fn worked_examples_of_egress() {
    let workload = Workload::random(LARGE, 0);
    let mut configuration =
        DiskConfiguration::new(catalog(), "pd-ssd", 1000 * GB, "n1-standard-1").expect("right");
    for (regional, wanted) in [(false, 72.0), (true, 36.0)] {
        configuration.regional = regional;
        let prediction = catalog().predict(&configuration, &workload).expect("right");
        assert_near(page_mb(&prediction.allowed), wanted, "1 vCPU");
        assert_eq!(prediction.binding.kind, LimitKind::Egress);
        assert!(prediction.inconsistencies.iter().any(|touched| touched.id == "I02"));
    }
    configuration.regional = false;
    configuration.machine = catalog().machine("n1-standard-8").expect("it is one");
    configuration.other_egress_gbit_per_s = 4.0;
    // (16 - 4) Gbit/s x 119 / 3.3 = 432 MB/s, above the machine's 400.
    let prediction = catalog().predict(&configuration, &workload).expect("right");
    assert_near(page_mb(&prediction.allowed), 400.0, "4 Gbit/s of other traffic");
}

#[test]
fn sizes_that_match_a_hard_disk() {
    let rows = printed(&table("Sizes that match a 7200 RPM SATA drive"));
    let sizes: Vec<_> = rows.iter().map(|row| row[1..].to_vec()).collect();
    assert_eq!(sizes, cells("hdd"));
}

#[test]
fn overview_as_printed() {
    let made = table("Performance by disk type");
    let wanted = cells("overview");
    assert_eq!(made.rows.len(), wanted.len());
    for row in wanted {
        let label = match row[0].rsplit_once('-') {
            Some((kind, zone @ ("zonal" | "regional"))) => format!("{kind} {zone}"),
            _ => row[0].clone(),
        };
        let found = printed(&made).into_iter().find(|made| made[0] == label).expect(&label);
        // Per GB: IOPS, then throughput; then the same per instance.
        assert_eq!(found[1..], row[1..], "{label}");
    }
    let odd: Vec<_> = made
        .rows
        .iter()
        .flatten()
        .filter_map(|cell| cell.inconsistency.as_deref().zip(cell.computed.as_deref()))
        .collect();
    assert_eq!(odd, [("I02", "72-240"), ("I02", "36-200"), ("I02", "72-400"), ("I02", "36-200")]);
}

#[test]
fn prices_as_printed_and_exact() {
    let made = table("Price per GB and month, and per read IOPS");
    for wanted in cells("price") {
        let row = made.rows.iter().find(|row| row[0].text == wanted[0]).expect("it has a price");
        assert_near(row[1].value.expect("a price"), number(&wanted[1]), "per GB");
        assert_near(number(&row[2].text), number(&wanted[2]), "as printed");
        let right = row[2].computed.as_ref().unwrap_or(&row[2].text);
        assert_near(number(right), number(&wanted[3]), "as it is");
    }
    assert!(made.inconsistencies.iter().any(|touched| touched.id == "I01"));
}

#[test]
fn inconsistencies_are_complete() {
    let ids: Vec<_> = catalog().inconsistencies.iter().map(|entry| entry.id.clone()).collect();
    let wanted: Vec<_> = (1..=23).map(|number| format!("I{number:02}")).collect();
    assert_eq!(ids, wanted);
}

/// Throughput in the page's unit of 1,024,000 bytes; all results are in 10^6.
fn page_mb(rates: &Rates) -> f64 {
    assert!((rates.mb_per_s * 1e6 - rates.bytes_per_s).abs() < 1e-3);
    rates.mb_per_s / 1.024
}

/// NetApp's walk-through has other maxima; they are shown where they would matter.
#[test]
fn netapp_maxima_are_shown_beside_ours() {
    for (kind, id, gb, read_percent, shown) in [
        ("pd-standard", "I22", 10_000, 100, true),
        ("pd-standard", "I22", 500, 100, false),
        ("pd-ssd", "I23", 4_000, 100, true),
        ("pd-ssd", "I23", 4_000, 0, false),
        ("pd-ssd", "I23", 500, 100, false),
    ] {
        let size = gb * 1_000_000_000;
        let disk = DiskConfiguration::new(catalog(), kind, size, "n1-standard-64").unwrap();
        let found = catalog().predict(&disk, &Workload::random(4096, read_percent)).unwrap();
        let is =
            found.inconsistencies.iter().any(|one| one.id == id && one.place.contains("NetApp"));
        assert_eq!(is, shown, "{kind} of {gb} GB");
    }
}

/// Experiment A: 24 writes in flight on 500 GB of pd-ssd and an N2 with 8 vCPUs, without a mirror.
/// Queue latency limits the two small blocks, the disk the large one.
#[test]
fn published_experiment_of_block_sizes() {
    for (kb, measured_mb_per_s, measured_ms, bound) in [
        (64, 240.02, 6.248, LimitKind::Volume),
        (8, 96.80, 1.935, LimitKind::QueueDepth),
        (4, 37.54, 2.495, LimitKind::QueueDepth),
    ] {
        let workload = Workload { depth: Some(3), jobs: 8, ..Workload::random(kb * KB, 0) };
        let found = predict("pd-ssd", 500, "n2-standard-8", &workload);
        assert_eq!(found.binding.kind, bound, "{kb} KB");
        // diskspd's MB is 2^20 bytes.
        let measured_iops = measured_mb_per_s * 1024.0 / kb as f64;
        let best = found.at_best.unwrap_or(found.total).iops;
        match bound {
            LimitKind::Volume => assert_near_by(found.total.iops, 3750.0, measured_iops, 0.03),
            _ => assert!(
                (found.total.iops * 0.99..=best).contains(&measured_iops),
                "{kb} KB: {} to {best}, measured {measured_iops}",
                found.total.iops
            ),
        }
        let latency_ms = found.latency_us.expect("the depth is given") / 1000.0;
        assert!((measured_ms / latency_ms - 1.0).abs() < 0.3, "{kb} KB: {latency_ms} ms");
    }
}

#[track_caller]
fn assert_near_by(value: f64, wanted: f64, measured: f64, part: f64) {
    assert_near(value, wanted, "predicted");
    assert!((measured / value - 1.0).abs() < part, "{value}, measured {measured}");
}

/// Experiment C: what was measured is twice, and 1.7 times, the formula.
#[test]
fn published_experiment_of_sizes() {
    for (size, formula, measured, ratio) in [(200, 150.0, 309.0, 2.06), (600, 450.0, 745.0, 1.66)] {
        let workload = Workload { depth: Some(256), ..Workload::random(4 * KB, 100) };
        let found = predict("pd-standard", size, "n1-standard-8", &workload);
        assert_near(found.total.iops, formula, "the formula");
        assert!((measured / found.total.iops - ratio).abs() < 0.005);
        assert_eq!(found.binding.kind, LimitKind::Volume);
        assert!(found.inconsistencies.iter().any(|touched| touched.id == "I19"));
    }
}

/// Equal limits are lifted together: each says what brings the workload past both.
#[test]
fn equal_limits_are_lifted_together() {
    let workload = Workload::random(8 * KB, 0);
    let found = predict("pd-ssd", 500, "n1-standard-8", &workload);
    assert_near(found.total.iops, 15000.0, "both");
    assert_eq!(found.binding.kind, LimitKind::Volume);
    assert_eq!(found.next.as_ref().map(|next| next.kind), Some(LimitKind::Vm));
    // CPU is next: 20,000 writes a second of 8 vCPUs.
    let recommendation = found.binding.recommendations.first().expect("there is one").to_string();
    assert_eq!(recommendation, "a volume of 667 GB");
    let recommendation = found
        .next
        .expect("there is one")
        .recommendations
        .first()
        .expect("there is one")
        .to_string();
    assert_eq!(recommendation, "n1 with 16-31 vCPUs (allows 25,000 IOPS)");
}

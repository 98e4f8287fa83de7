//! Published tables of the experiments, and the same tables from own results. The table of a mirror
//! is [`Comparison::overhead`].

use std::collections::BTreeMap;

use flagstone_units::{format_block_size, grouped};

use crate::compare::{ComparedMetric, Comparison, JobRow};
use crate::job::AccessPattern;
use crate::table::{Table, UNKNOWN, cell, is_known};

fn tables() -> BTreeMap<String, Table> {
    toml_edit::de::from_str(include_str!("published.toml")).expect("a test reads it")
}

/// Published results of a suite, if there are any.
pub fn published(suite: &str) -> Option<Table> {
    tables().remove(suite)
}

/// Local disks against the fabric by number of disks: one table for each block size and depth that
/// was measured on several numbers of disks.
pub fn by_disks(comparison: &Comparison, other: usize) -> Vec<Table> {
    let Some(base) = comparison.base(other) else { return Vec::new() };
    let [first, name] = [base, other].map(|at| &comparison.names()[at]);
    let key = |row: &JobRow| (row.block_bytes, row.depth, row.threads);
    let mut tables = Vec::new();
    let mut seen = Vec::new();
    for row in comparison.rows() {
        if seen.contains(&key(row)) {
            continue;
        }
        seen.push(key(row));
        let same: Vec<&JobRow> = comparison.rows().iter().filter(|r| key(r) == key(row)).collect();
        let mut disks: Vec<u32> = same.iter().map(|row| row.disks).collect();
        disks.sort_unstable();
        disks.dedup();
        let mut patterns: Vec<AccessPattern> = same.iter().map(|row| row.rw).collect();
        // Writes precede reads, as published.
        patterns.sort_unstable_by_key(|pattern| std::cmp::Reverse(*pattern));
        patterns.dedup();
        if disks.len() < 2 {
            continue;
        }
        let title = format!(
            "thousands of IOPS by disks: {}, {} in flight on each disk",
            format_block_size(row.block_bytes),
            row.in_flight()
        );
        let mut table = Table { title, head: vec!["disks".to_owned()], rows: Vec::new() };
        for pattern in &patterns {
            table.head.push(format!("{pattern}, {first}"));
            table.head.push(format!("{pattern}, {name}"));
            table.head.push("of the first".to_owned());
        }
        for count in disks {
            let mut cells = vec![count.to_string()];
            for pattern in &patterns {
                let found = same.iter().find(|row| (row.disks, row.rw) == (count, *pattern));
                let found = found.copied().filter(|row| comparison.base_of(row, other).is_some());
                cells.extend(thousands(found, base, other));
            }
            // A row without any result is omitted.
            if cells[1..].iter().any(|cell| is_known(cell)) {
                table.rows.push(cells);
            }
        }
        if !table.rows.is_empty() {
            tables.push(table);
        }
    }
    tables
}

fn thousands(row: Option<&JobRow>, base: usize, other: usize) -> [String; 3] {
    let iops = |at| row.and_then(|row| row.median(at, ComparedMetric::Iops));
    let text = |value| cell(value, |value| grouped(value / 1e3, 1));
    let (first, other) = (iops(base), iops(other));
    let share = match (first, other) {
        (Some(first), Some(other)) if first > 0.0 => format!("{:.0} %", 100.0 * other / first),
        _ => UNKNOWN.to_owned(),
    };
    [text(first), text(other), share]
}

/// IOPS by disk size: `gb` is the size of each target in GB (10^9 bytes), where known. The formula
/// is that of standard persistent disks in the published walk-through.
pub fn by_size(comparison: &Comparison, gb: &[Option<f64>]) -> Option<Table> {
    let head =
        ["on", "job", "size, GB", "IOPS", "IOPS a GB", "0.75 IOPS a GB", "measured over that"];
    let mut table =
        Table::new("IOPS by size (0.75 IOPS a GB is a standard persistent disk's)", &head);
    for row in comparison.rows() {
        for (at, name) in comparison.names().iter().enumerate() {
            let size = gb.get(at).copied().flatten().filter(|gb| *gb > 0.0);
            let (Some(gb), Some(iops)) = (size, row.median(at, ComparedMetric::Iops)) else {
                continue;
            };
            let small = |value: f64| grouped(value, if value < 10.0 { 2 } else { 0 });
            table.rows.push(vec![
                name.clone(),
                row.job.clone(),
                small(gb),
                grouped(iops, 0),
                format!("{:.2}", iops / gb),
                small(0.75 * gb),
                format!("{:.2}", iops / (0.75 * gb)),
            ]);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::BenchJob;
    use crate::measurement::Measurement;
    use crate::provenance::Provenance;
    use crate::results::ResultRecord;
    use crate::suite;
    use crate::target::BenchTarget;

    fn record(target: &str, pattern: AccessPattern, disks: u32, iops: f64) -> ResultRecord {
        let target: BenchTarget = format!("{target}=/a,/b,/c,/d").parse().unwrap();
        let name = format!("{pattern}-x{disks}");
        let job = BenchJob { name, pattern, disks, depth: 32, ..BenchJob::default() };
        let mut measurement = Measurement::default();
        measurement.total.iops = iops;
        ResultRecord {
            provenance: Provenance::Real,
            ..ResultRecord::new("fabric", &job, &target, measurement)
        }
    }

    #[test]
    fn fabric_table_by_disks() {
        let mut all = Vec::new();
        let measured = [
            (1, [100e3, 100e3, 180e3, 180e3]),
            (2, [200e3, 199e3, 360e3, 360e3]),
            (3, [299e3, 299e3, 522e3, 413e3]),
            (4, [398e3, 368e3, 659e3, 384e3]),
        ];
        for (disks, [write, write_tcp, read, read_tcp]) in measured {
            all.push(record("local", AccessPattern::RandWrite, disks, write));
            all.push(record("NVMe/TCP", AccessPattern::RandWrite, disks, write_tcp));
            all.push(record("local", AccessPattern::RandRead, disks, read));
            all.push(record("NVMe/TCP", AccessPattern::RandRead, disks, read_tcp));
        }
        let comparison = Comparison::of_targets(all);
        let [table] = &by_disks(&comparison, 1)[..] else { panic!("one block size and depth") };
        let theirs = published("fabric").unwrap();
        assert_eq!(table.rows.len(), theirs.rows.len());
        for (ours, theirs) in table.rows.iter().zip(&theirs.rows) {
            for (mine, published) in ours.iter().zip(theirs) {
                assert_eq!(mine.trim_end_matches(".0"), published);
            }
        }
    }

    /// Rows of runs of several suites side by side.
    #[test]
    fn unmeasured_disk_counts_have_no_row() {
        let all = vec![
            record("first", AccessPattern::Read, 1, 1e3),
            record("fabric", AccessPattern::RandWrite, 1, 2e3),
            record("fabric", AccessPattern::RandWrite, 2, 4e3),
            record("other", AccessPattern::Read, 1, 1e3),
            record("part", AccessPattern::RandWrite, 1, 1e3),
        ];
        let comparison = Comparison::of_targets(all);
        let rows = |other| by_disks(&comparison, other).iter().map(|t| t.rows.len()).collect();
        let found: [Vec<usize>; 3] = [rows(1), rows(2), rows(3)];
        assert_eq!(found, [vec![2], vec![1], vec![1]], "first and other read one disk alone");
        let of_fabric = vec![
            record("first", AccessPattern::Read, 4, 1e3),
            record("second", AccessPattern::Read, 4, 1e3),
            record("fabric", AccessPattern::RandWrite, 1, 2e3),
            record("fabric", AccessPattern::RandWrite, 2, 4e3),
        ];
        let rows = by_disks(&Comparison::of_targets(of_fabric), 1);
        assert!(rows.len() == 1 && rows[0].rows.len() == 1 && rows[0].rows[0][0] == "4");
        assert!(by_disks(&comparison, 9).is_empty());
    }

    #[test]
    fn iops_table_by_disk_size() {
        let mut all = vec![record("small", AccessPattern::RandRead, 1, 309.0)];
        all.push(record("large", AccessPattern::RandRead, 1, 745.0));
        let comparison = Comparison::of_targets(all);
        let table = by_size(&comparison, &[Some(200.0), Some(600.0)]).unwrap();
        for (ours, theirs) in table.rows.iter().zip(published("provisioned-iops").unwrap().rows) {
            assert_eq!(
                [&ours[2], &ours[3], &ours[5], &ours[6]],
                [&theirs[0], &theirs[1], &theirs[2], &theirs[3]]
            );
        }
        assert_eq!(by_size(&comparison, &[None, None]), None);
    }

    #[test]
    fn published_tables_name_existing_suites() {
        assert_eq!(tables().len(), 3);
        for (suite, table) in tables() {
            assert!(suite::find(&suite).is_ok());
            assert!(table.rows.iter().all(|row| row.len() == table.head.len()));
        }
        assert_eq!(published("quick"), None);
    }
}

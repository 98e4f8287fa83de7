//! Summary of results: medians and CPU time of each job on each target.

use flagstone_units::grouped;

use crate::compare::{Comparison, median_of};
use crate::measurement::are_enough;
use crate::results::ResultRecord;
use crate::stats::{coefficient_of_variation_percent, median};
use crate::table::{Table, UNKNOWN, cell, is_known};

impl Comparison {
    /// One row for each job, with the medians of each target.
    pub fn summary(&self) -> Table {
        let head = [
            "job",
            "on",
            "n",
            "IOPS",
            "MB/s",
            "CV",
            "mean ms",
            "p50 ms",
            "p99 ms",
            "p99.9 ms",
            "p99.99 ms",
            "CPU",
        ];
        let mut table = Table::new("medians of n repetitions", &head);
        for row in self.rows() {
            let named = self.names().iter().zip(&row.records);
            // A target without enough disks has no results of a job.
            for (name, records) in named.filter(|(_, records)| !records.is_empty()) {
                let text = |value, decimals| cell(value, |value| grouped(value, decimals));
                let ms = |pick: fn(&ResultRecord) -> Option<f64>| {
                    text(median_of(records, |r| Some(pick(r)? / 1e3)), 3)
                };
                // Percentiles with few slower requests are omitted, as in the plots. 0 requests
                // means unknown.
                let ios =
                    median_of(records, |r| Some(r.measurement.total.ios as f64)).unwrap_or(0.0);
                let rare = |percent, pick: fn(&ResultRecord) -> Option<f64>| match ios {
                    ios if ios > 0.0 && !are_enough(ios, percent) => UNKNOWN.to_owned(),
                    _ => ms(pick),
                };
                let iops: Vec<f64> = records.iter().map(|record| record.iops).collect();
                let cpu = median_of(records, |r| Some(r.measurement.cpu.as_ref()?.busy_percent()));
                let percent = |value| cell(value, |value| format!("{value:.1} %"));
                table.rows.push(vec![
                    row.job.clone(),
                    name.clone(),
                    records.len().to_string(),
                    text(median(&iops), 0),
                    text(median_of(records, |r| Some(r.mb_per_s)), 2),
                    percent(coefficient_of_variation_percent(&iops)),
                    ms(|r| Some(r.latency_mean_us)),
                    ms(|r| r.latency_p50_us),
                    rare(99.0, |r| r.latency_p99_us),
                    rare(99.9, |r| r.latency_p99_9_us),
                    rare(99.99, |r| r.latency_p99_99_us),
                    percent(cpu),
                ]);
            }
        }
        table
    }

    /// CPU time, where known: of the machine that measured, per request of the generator, and of
    /// the serving processes on the same machine.
    pub fn cpu(&self) -> Option<Table> {
        let head = [
            "job",
            "on",
            "this machine",
            "generator, µs a request",
            "server",
            "server, of one CPU",
            "server, µs a request",
        ];
        let mut table = Table::new("CPU use (medians)", &head);
        for row in self.rows() {
            for (name, records) in self.names().iter().zip(&row.records) {
                let text = |unit: &str, pick: fn(&ResultRecord) -> Option<f64>| {
                    cell(median_of(records, pick), |value| format!("{value:.1}{unit}"))
                };
                let server = records.iter().find_map(|r| r.measurement.server.as_ref());
                let all = [
                    text(" %", |r| Some(r.measurement.cpu.as_ref()?.busy_percent())),
                    text("", |r| r.measurement.cpu_us_per_io),
                    server.map_or_else(|| UNKNOWN.to_owned(), |server| server.program.clone()),
                    text(" %", |r| Some(r.measurement.server.as_ref()?.busy_percent())),
                    text("", |r| r.measurement.server.as_ref()?.us_per_io(r.iops)),
                ];
                if all.iter().any(|cell| is_known(cell)) {
                    let mut cells = vec![row.job.clone(), name.clone()];
                    cells.extend(all);
                    table.rows.push(cells);
                }
            }
        }
        (!table.rows.is_empty()).then_some(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::BenchJob;
    use crate::measurement::Measurement;

    #[test]
    fn unmeasured_targets_have_no_summary_row() {
        let record = |job: &str, target: &str| {
            let job = BenchJob { name: job.to_owned(), ..BenchJob::default() };
            ResultRecord::new("s", &job, &target.parse().unwrap(), Measurement::default())
        };
        let records =
            vec![record("one", "a=/x"), record("one", "b=/y,/z"), record("two", "b=/y,/z")];
        let rows = Comparison::of_targets(records).summary().rows;
        let named: Vec<_> = rows.iter().map(|row| (row[0].as_str(), &row[1][..1])).collect();
        assert_eq!(named, [("one", "a"), ("one", "b"), ("two", "b")]);
    }

    #[test]
    fn rare_percentiles_are_not_in_summary() {
        let of = |ios: u64| {
            let mut measurement = Measurement::default();
            measurement.total.ios = ios;
            for (name, us) in [("50", 1e3), ("99", 2e3), ("99.9", 3e3), ("99.99", 4e3)] {
                measurement.total.percentiles_us.insert(name.to_owned(), us);
            }
            let target = "a=/x".parse().unwrap();
            let records = vec![ResultRecord::new("s", &BenchJob::default(), &target, measurement)];
            Comparison::of_targets(records).summary().rows[0][7..11].to_vec()
        };
        assert_eq!(of(50_000), ["1.000", "2.000", "3.000", "4.000"]);
        assert_eq!(of(5_000), ["1.000", "2.000", "3.000", "-"]);
        assert_eq!(of(499), ["1.000", "-", "-", "-"]);
    }
}

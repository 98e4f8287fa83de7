//! Results of the savings experiment, as data, tables and a picture.

use flagstone_bench::report::{AdditionalSections, Plot};
use flagstone_bench::stats::median;
use flagstone_bench::table::Table;
use flagstone_plot::{Axis, Figure, Group, NumberFormat, Panel};
use flagstone_pool::Compression;
use flagstone_units::grouped;
use serde::Serialize;

use super::{LARGE, MeasuredSavings, READS, SMALL, SavingsData, target_name};
use crate::bed::{self, SCHEMA_VERSION, suffix};
use crate::figures::{Figures, matching, or_dash, table};

/// Bytes of a block, to which CPU times refer.
const BLOCK_BYTES: f64 = 4096.0;

/// A job on a volume.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SavingsJob {
    pub figures: Figures,
    /// CPU time of this process per 4 KiB, in µs; the load's own is included.
    pub cpu_us_per_block: Option<f64>,
    /// IOPS divided by those without compression.
    pub ratio: Option<f64>,
    /// Space of the data before the job, divided by its size.
    pub stored_share: Option<f64>,
}

/// A kind of data with a compression.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SavingsRow {
    pub data: String,
    pub compression: &'static str,
    /// Sequential writes of 128 KiB, to a volume that was written sequentially.
    pub large_writes: Option<SavingsJob>,
    /// Random reads of 4 KiB, one at a time, of a volume that was overwritten randomly.
    pub small_reads: Option<SavingsJob>,
    /// Random writes of 4 KiB, 32 in flight, to such a volume.
    pub small_writes: Option<SavingsJob>,
}

impl SavingsRow {
    fn jobs(&self) -> impl Iterator<Item = &SavingsJob> {
        [&self.large_writes, &self.small_reads, &self.small_writes].into_iter().flatten()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SavingsSummary {
    pub schema_version: u32,
    pub experiment: &'static str,
    pub emulated: bool,
    pub rows: Vec<SavingsRow>,
    pub caveats: Vec<String>,
}

impl SavingsSummary {
    pub(super) fn new(kinds: &[SavingsData], measured: &MeasuredSavings) -> SavingsSummary {
        let mut rows = Vec::new();
        for data in kinds {
            for compression in Compression::ALL {
                let of = |job| measured.job(job, data, compression);
                let row = SavingsRow {
                    data: data.name.clone(),
                    compression: compression.name(),
                    large_writes: of(LARGE),
                    small_reads: of(READS),
                    small_writes: of(SMALL),
                };
                if row.jobs().next().is_some() {
                    rows.push(row);
                }
            }
        }
        let figures: Vec<&Figures> =
            rows.iter().flat_map(SavingsRow::jobs).map(|job| &job.figures).collect();
        let mut caveats = bed::caveats(None, &figures);
        caveats.push(
            "CPU time is of the whole process, load and emulation included: compare it with the row \
             off"
                .to_owned(),
        );
        let emulated = figures.iter().any(|figures| bed::is_emulated(figures.provenance));
        let experiment = "savings";
        SavingsSummary { schema_version: SCHEMA_VERSION, experiment, emulated, rows, caveats }
    }

    fn figures(&self) -> impl Iterator<Item = &Figures> {
        self.rows.iter().flat_map(SavingsRow::jobs).map(|job| &job.figures)
    }
}

impl MeasuredSavings {
    fn job(&self, job: &str, data: &SavingsData, compression: Compression) -> Option<SavingsJob> {
        let target = target_name(data, compression);
        let figures = Figures::of(&self.records, job, &target)?;
        let per_block = matching(&self.records, job, &target).into_iter().filter_map(|record| {
            let blocks = record.mb_per_s * 1e6 / record.iops / BLOCK_BYTES;
            Some(record.measurement.cpu_us_per_io? / blocks)
        });
        let plain = Figures::of(&self.records, job, &target_name(data, Compression::Off));
        let shares = self.stored.iter().filter(|one| one.job == job && one.target == target);
        Some(SavingsJob {
            figures,
            cpu_us_per_block: median(&per_block.collect::<Vec<_>>()),
            ratio: plain.map(|plain| figures.iops / plain.iops),
            stored_share: median(&shares.map(|one| one.share).collect::<Vec<_>>()),
        })
    }
}

/// Space, and the cost of large and of small I/Os.
pub fn tables(summary: &SavingsSummary) -> Vec<Table> {
    let mark = suffix(summary.figures());
    let mut large = table(
        format!("sequential writes of 128 KiB{mark}"),
        "data|compression|space|MB/s|ratio|CPU µs per 4 KiB",
    );
    let mut small = table(
        format!("random I/Os of 4 KiB, after random overwrites{mark}"),
        "data|compression|space|read ms|CPU µs per read|writes IOPS|ratio|CPU µs per write",
    );
    let number = |value: Option<f64>, decimals| or_dash(value, |value| grouped(value, decimals));
    let share = |job: Option<&SavingsJob>| {
        or_dash(job.and_then(|job| job.stored_share), |share| format!("{:.0} %", 100.0 * share))
    };
    for row in &summary.rows {
        let named = || vec![row.data.clone(), row.compression.to_owned()];
        let job = row.large_writes.as_ref();
        let of = |of: fn(&SavingsJob) -> Option<f64>, decimals| number(job.and_then(of), decimals);
        let mut cells = named();
        cells.extend([
            share(job),
            of(|job| Some(job.figures.mib_per_s * 1.048_576), 0),
            of(|job| job.ratio, 2),
            of(|job| job.cpu_us_per_block, 1),
        ]);
        large.rows.push(cells);
        let (reads, writes) = (row.small_reads.as_ref(), row.small_writes.as_ref());
        let mut cells = named();
        cells.extend([
            share(writes.or(reads)),
            number(reads.map(|job| job.figures.latency_ms), 3),
            number(reads.and_then(|job| job.cpu_us_per_block), 1),
            number(writes.map(|job| job.figures.iops), 0),
            number(writes.and_then(|job| job.ratio), 2),
            number(writes.and_then(|job| job.cpu_us_per_block), 1),
        ]);
        small.rows.push(cells);
    }
    vec![large, small]
}

/// Tables, picture and caveats.
pub fn sections(summary: &SavingsSummary) -> AdditionalSections {
    let mark = suffix(summary.figures());
    AdditionalSections::new(format!("Savings by compression{mark}"))
        .with_picture(drawing(summary, mark))
        .with_tables("savings", tables(summary))
        .with_caveats(&summary.caveats)
}

fn drawing(summary: &SavingsSummary, mark: &str) -> Plot {
    let names = Compression::ALL.map(|compression| compression.name().to_owned());
    let mut kinds: Vec<&str> = summary.rows.iter().map(|row| row.data.as_str()).collect();
    kinds.dedup();
    let panel = |y: Axis, of: &dyn Fn(&SavingsRow) -> Option<f64>| {
        let group = |kind: &&str| {
            let value = |compression: Compression| {
                let is_it =
                    |row: &&SavingsRow| row.data == *kind && row.compression == compression.name();
                Some(of(summary.rows.iter().find(is_it)?)?.into())
            };
            Group { name: (*kind).to_owned(), values: Compression::ALL.map(value).to_vec() }
        };
        Panel::bars("data", y, &names, kinds.iter().map(group).collect())
    };
    let plain = |label: &str| Axis { format: NumberFormat::Plain, ..Axis::linear(label) };
    let picture = Figure {
        title: format!("Compression by kind of data{mark}"),
        subtitle: "a volume of a pool on 500 GB of SSD persistent disk".to_owned(),
        panels: vec![
            panel(plain("space, % of the data"), &|row| {
                Some(100.0 * row.large_writes.as_ref()?.stored_share?)
            }),
            panel(plain("sequential writes, MB/s"), &|row| {
                Some(row.large_writes.as_ref()?.figures.mib_per_s * 1.048_576)
            }),
            panel(plain("4 KiB random writes per second"), &|row| {
                Some(row.small_writes.as_ref()?.figures.iops)
            }),
        ],
        footer: format!("flagstone lab savings {}", env!("CARGO_PKG_VERSION")),
    };
    Plot { id: "savings-by-data".to_owned(), picture }
}

#[cfg(test)]
mod tests {
    use flagstone_bench::job::BenchJob;
    use flagstone_bench::measurement::Measurement;
    use flagstone_bench::provenance::Provenance;
    use flagstone_bench::results::ResultRecord;
    use flagstone_bench::target::{BenchTarget, DiskAddress};

    use super::super::StoredShare;
    use super::*;

    fn record(job: &str, target: &str, iops: f64) -> ResultRecord {
        let disks = vec![DiskAddress::Path("/x".into())];
        let target = BenchTarget { name: target.to_owned(), disks };
        let mut measurement = Measurement { cpu_us_per_io: Some(64.0), ..Measurement::default() };
        measurement.total.iops = iops;
        measurement.total.bytes_per_s = iops * 131_072.0;
        let job = BenchJob { name: job.to_owned(), ..BenchJob::default() };
        ResultRecord {
            provenance: Provenance::Emulated,
            ..ResultRecord::new("savings", &job, &target, measurement)
        }
    }

    #[test]
    fn summary_relates_rows_to_no_compression() {
        let kinds = SavingsData::builtin();
        let stored = |target: &str, share| StoredShare {
            job: LARGE.to_owned(),
            target: target.to_owned(),
            share,
        };
        let measured = MeasuredSavings {
            records: vec![record(LARGE, "2:1 off", 1000.0), record(LARGE, "2:1 lz4", 1800.0)],
            stored: vec![stored("2:1 off", 1.0), stored("2:1 lz4", 0.53)],
        };
        let summary = SavingsSummary::new(&kinds, &measured);
        assert!(summary.emulated);
        assert_eq!(summary.rows.len(), 2, "what was not measured has no row");
        let lz4 = summary.rows[1].large_writes.as_ref().unwrap();
        assert_eq!((lz4.ratio, lz4.stored_share), (Some(1.8), Some(0.53)));
        assert_eq!(lz4.cpu_us_per_block, Some(2.0));
        let sections = sections(&summary);
        assert!(sections.title.contains("EMULATED"));
        let cells: Vec<&str> =
            sections.tables[0].table.rows[1].iter().map(String::as_str).collect();
        assert_eq!(cells, ["2:1", "lz4", "53 %", "236", "1.80", "2.0"]);
    }
}

//! Results of the pool experiment, as data, tables and a picture.

use flagstone_bench::campaign::CampaignPlan;
use flagstone_bench::report::{AdditionalSections, Plot};
use flagstone_bench::table::Table;
use flagstone_plot::{Axis, Figure, Group, NumberFormat, Panel};
use flagstone_units::grouped;
use serde::Serialize;

use super::emulated::{TYPES, random_targets};
use super::{MeasuredPool, PoolBed, PoolSide};
use crate::bed::{self, SCHEMA_VERSION, suffix};
use crate::figures::{Figures, or_dash, table};

/// A job on a disk and on a pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolJobRow {
    pub job: String,
    /// The disk below.
    pub disk: String,
    pub raw: Option<Figures>,
    pub pool: Option<Figures>,
    /// Writes of the pool divided by writes of the raw disk.
    pub ratio: Option<f64>,
    /// Blocks that the cleaner copied per block written, in the last repetition.
    pub copied_per_block: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolSummary {
    pub schema_version: u32,
    pub experiment: &'static str,
    pub emulated: bool,
    /// Whether disk and volume are the user's.
    pub real_nodes: bool,
    pub rows: Vec<PoolJobRow>,
    pub caveats: Vec<String>,
}

impl PoolSummary {
    pub(super) fn new(bed: &PoolBed, plan: &CampaignPlan, measured: &MeasuredPool) -> PoolSummary {
        let is_given = matches!(bed, PoolBed::Given(_));
        let pairs: Vec<(String, [String; 2])> = match bed {
            PoolBed::Emulated(_) => {
                TYPES.iter().map(|of| (of.name.to_owned(), random_targets(of).1)).collect()
            }
            PoolBed::Given(bed) => {
                vec![(bed.disk.address(), PoolSide::ALL.map(|side| side.name().to_owned()))]
            }
        };
        let mut rows = Vec::new();
        for job in &plan.jobs {
            for (disk, targets) in &pairs {
                rows.extend(row(&job.name, disk, targets, measured));
            }
        }
        let figures: Vec<&Figures> =
            rows.iter().flat_map(|row| row.raw.iter().chain(&row.pool)).collect();
        let machine = match bed {
            PoolBed::Emulated(_) => None,
            PoolBed::Given(bed) => bed.targets.machine.as_ref(),
        };
        let mut caveats = bed::caveats(machine, &figures);
        if !is_given {
            caveats.extend([
                "the pools are smaller than the disks whose limits they have, so their maps fit the \
                 cache: flagstone plan pool shows what larger ones cost"
                    .to_owned(),
                "a transfer counts as one I/O per 256 KiB, as clouds other than Google document it; \
                 the latency of the standard disk is an assumption"
                    .to_owned(),
            ]);
        }
        PoolSummary {
            schema_version: SCHEMA_VERSION,
            experiment: "pool",
            emulated: figures.iter().any(|figures| bed::is_emulated(figures.provenance)),
            real_nodes: is_given,
            caveats,
            rows,
        }
    }

    fn figures(&self) -> impl Iterator<Item = &Figures> {
        self.rows.iter().flat_map(|row| row.raw.iter().chain(&row.pool))
    }
}

fn row(
    job: &str,
    disk: &str,
    [raw, pool]: &[String; 2],
    measured: &MeasuredPool,
) -> Option<PoolJobRow> {
    let of = |target: &str| Figures::of(&measured.records, job, target);
    let (raw, pooled) = (of(raw), of(pool));
    raw.as_ref().or(pooled.as_ref())?;
    let copied = measured.copied.iter().rev().find(|(at, target, _)| at == job && target == pool);
    Some(PoolJobRow {
        job: job.to_owned(),
        disk: disk.to_owned(),
        ratio: raw.zip(pooled).map(|(raw, pool)| pool.iops / raw.iops),
        raw,
        pool: pooled,
        copied_per_block: copied.map(|(.., copied)| *copied),
    })
}

/// Writes and latency with and without a pool.
pub fn tables(summary: &PoolSummary) -> Vec<Table> {
    let mark = suffix(summary.figures());
    let title = format!("random writes of a pool that is half full, against the raw disk{mark}");
    let heads = "writes|disk|raw IOPS|pool IOPS|ratio|raw mean ms|pool mean ms|raw p99 ms|pool p99 ms|\
                 copied per block";
    let mut table = table(title, heads);
    for row in &summary.rows {
        let number = |figures: &Option<Figures>, of: fn(&Figures) -> Option<f64>, decimals| {
            or_dash(figures.as_ref().and_then(of), |value| grouped(value, decimals))
        };
        let both = |of: fn(&Figures) -> Option<f64>, decimals| {
            [number(&row.raw, of, decimals), number(&row.pool, of, decimals)]
        };
        let mut cells = vec![row.job.clone(), row.disk.clone()];
        cells.extend(both(|figures| Some(figures.iops), 0));
        cells.push(or_dash(row.ratio, |ratio| format!("{ratio:.2}")));
        cells.extend(both(|figures| Some(figures.latency_ms), 2));
        cells.extend(both(|figures| figures.latency_p99_ms, 2));
        cells.push(or_dash(row.copied_per_block, |copied| format!("{copied:.2}")));
        table.rows.push(cells);
    }
    vec![table]
}

/// Tables, picture and caveats.
pub fn sections(summary: &PoolSummary) -> AdditionalSections {
    let mark = suffix(summary.figures());
    AdditionalSections::new(format!("Gain of a pool{mark}"))
        .with_picture(drawing(summary, mark))
        .with_tables("pool", tables(summary))
        .with_caveats(&summary.caveats)
}

fn drawing(summary: &PoolSummary, mark: &str) -> Plot {
    let names = PoolSide::ALL.map(|side| format!("{}{mark}", side.name()));
    let panel = |y: Axis, of: fn(&Figures) -> f64| {
        let group = |row: &PoolJobRow| {
            let values = [row.raw.as_ref()?, row.pool.as_ref()?].map(|side| Some(of(side).into()));
            Some(Group { name: format!("{} {}", row.disk, row.job), values: values.to_vec() })
        };
        Panel::bars("writes", y, &names, summary.rows.iter().filter_map(group).collect())
    };
    let plain = |label: &str| Axis { format: NumberFormat::Plain, ..Axis::linear(label) };
    let picture = Figure {
        title: format!("A pool against the disk below it{mark}"),
        subtitle: "random writes, the pool half full and being cleaned".to_owned(),
        panels: vec![
            panel(Axis::log("writes per second"), |figures| figures.iops),
            panel(plain("mean latency, ms"), |figures| figures.latency_ms),
        ],
        footer: format!("flagstone lab pool {}", env!("CARGO_PKG_VERSION")),
    };
    Plot { id: "pool-by-disk".to_owned(), picture }
}

#[cfg(test)]
pub(crate) mod tests {
    use flagstone_bench::provenance::Provenance;

    use super::*;

    fn figures(iops: f64) -> Figures {
        Figures {
            provenance: Provenance::Emulated,
            repetitions: 1,
            mib_per_s: iops / 256.0,
            iops,
            latency_ms: 32e3 / iops,
            latency_p99_ms: None,
            coefficient_of_variation_percent: None,
            cpu_percent: None,
        }
    }

    pub(crate) fn example() -> PoolSummary {
        let row = |disk: &str, raw: f64, pool: f64| PoolJobRow {
            job: "4k".to_owned(),
            disk: disk.to_owned(),
            raw: Some(figures(raw)),
            pool: Some(figures(pool)),
            ratio: Some(pool / raw),
            copied_per_block: Some(0.4),
        };
        PoolSummary {
            schema_version: SCHEMA_VERSION,
            experiment: "pool",
            emulated: true,
            real_nodes: false,
            rows: vec![row("pd-standard", 750.0, 7500.0), row("pd-ssd", 15e3, 45e3)],
            caveats: vec!["x".to_owned()],
        }
    }

    #[test]
    fn pool_sections_are_marked_as_emulated() {
        let sections = sections(&example());
        assert!(sections.title.contains("EMULATED"));
        assert!(sections.pictures[0].picture.title.contains("EMULATED"));
        let table = &sections.tables[0].table;
        assert!(table.title.contains("EMULATED"));
        let cells: Vec<&str> = table.rows[0].iter().map(String::as_str).collect();
        assert_eq!(cells[..5], ["4k", "pd-standard", "750", "7,500", "10.00"]);
        assert_eq!(cells[9], "0.40");
    }
}

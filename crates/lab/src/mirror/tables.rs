//! Tables: the published one with the figures measured here, and all setups.

use flagstone_bench::compare::ComparedMetric;
use flagstone_bench::table::Table;

use super::customer;
use super::published::PublishedFigures;
use super::summary::{MirrorCell, MirrorRow, MirrorSummary, NetworkShare};
use crate::bed::{here, suffix};
use crate::figures::{Figures, or_dash, percent, table};

/// Throughput, latency, the customer's log, and every setup.
pub fn tables(summary: &MirrorSummary) -> Vec<Table> {
    let mut tables = vec![
        beside_published(summary, &THROUGHPUT),
        beside_published(summary, &LATENCY),
        customer::log_table(summary),
        customer::machine_table(summary),
        all_setups(summary),
    ];
    tables.retain(|table| !table.rows.is_empty());
    tables
}

struct PublishedColumn {
    title: &'static str,
    decimals: usize,
    published: fn(&PublishedFigures) -> f64,
    measured: fn(&Figures) -> f64,
    metric: ComparedMetric,
    network_share: fn(&NetworkShare) -> f64,
}

const THROUGHPUT: PublishedColumn = PublishedColumn {
    title: "throughput, MiB/s, of 24 random writes in flight",
    decimals: 2,
    published: |figures| figures.mib_per_s,
    measured: |figures| figures.mib_per_s,
    metric: ComparedMetric::Throughput,
    network_share: |share| share.throughput_percent,
};

const LATENCY: PublishedColumn = PublishedColumn {
    title: "average latency, ms",
    decimals: 3,
    published: |figures| figures.latency_ms,
    measured: |figures| figures.latency_ms,
    metric: ComparedMetric::Latency,
    network_share: |share| share.latency_percent,
};

fn place(summary: &MirrorSummary) -> String {
    here(&summary.figures(), summary.machine.as_ref().filter(|_| summary.real_nodes))
}

fn beside_published(summary: &MirrorSummary, column: &PublishedColumn) -> Table {
    let mark = |name: &str, pick: fn(&MirrorRow) -> &Option<MirrorCell>| {
        let cells = summary.table.iter().filter_map(|row| pick(row).as_ref());
        format!("{name}{}", suffix(cells.map(|cell| &cell.figures)))
    };
    let head = [
        "write size".to_owned(),
        mark("mirror", |row| &row.mirror),
        "published".to_owned(),
        mark("no mirror", |row| &row.plain),
        "published".to_owned(),
        mark("overhead", |row| &row.mirror),
        "published".to_owned(),
        "network share".to_owned(),
        mark("remote disk, no mirror", |row| &row.remote_disk),
    ];
    let number = |value: f64| format!("{value:.*}", column.decimals);
    let or_dash = |value: Option<f64>| or_dash(value, number);
    let rows = summary.table.iter().filter(|row| row.mirror.is_some() || row.plain.is_some());
    let rows = rows.map(|row| {
        let measured = |cell: &Option<MirrorCell>| Some((column.measured)(&cell.as_ref()?.figures));
        let (mirror, plain, remote_disk) =
            (measured(&row.mirror), measured(&row.plain), measured(&row.remote_disk));
        let overhead = |other: Option<f64>| column.metric.overhead_percent(other?, plain?);
        let (theirs, alone) =
            ((column.published)(&row.published.mirror), (column.published)(&row.published.plain));
        vec![
            row.published.size.to_owned(),
            or_dash(mirror),
            number(theirs),
            or_dash(plain),
            number(alone),
            percent(overhead(mirror), 2),
            percent(column.metric.overhead_percent(theirs, alone), 2),
            percent(row.network_share.as_ref().map(column.network_share), 2),
            percent(overhead(remote_disk), 2),
        ]
    });
    let title = format!(
        "{}: {}, and as SIOS published it; overheads are relative to no mirror",
        column.title,
        place(summary)
    );
    Table { title, head: head.into(), rows: rows.collect() }
}

fn all_setups(summary: &MirrorSummary) -> Table {
    let title = format!(
        "all setups{}: medians; overheads are relative to no mirror with the same writes",
        suffix(summary.figures())
    );
    let heads = "write size|setup|MiB/s|overhead|mean ms|overhead|p99 ms|IOPS|n|CV|run-to-run|CPU";
    let mut table = table(title, heads);
    for cell in &summary.cells {
        let figures = &cell.figures;
        let variation = cell.run_to_run_variation_percent;
        table.rows.push(vec![
            cell.job(),
            cell.setup.to_owned(),
            format!("{:.2}", figures.mib_per_s),
            percent(cell.throughput_overhead_percent, 2),
            format!("{:.3}", figures.latency_ms),
            percent(cell.latency_overhead_percent, 2),
            or_dash(figures.latency_p99_ms, |ms| format!("{ms:.3}")),
            format!("{:.0}", figures.iops),
            figures.repetitions.to_string(),
            percent(figures.coefficient_of_variation_percent, 1),
            or_dash(variation, |value| format!("± {value:.1} %")),
            percent(figures.cpu_percent, 0),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::{example, given_example};
    use super::*;
    use flagstone_bench::table::Form;

    #[test]
    fn emulated_figures_stand_beside_published_ones() {
        let tables = tables(&example());
        assert_eq!(tables.len(), 4);
        for table in &tables {
            assert!(table.title.contains("EMULATED"), "{}", table.title);
        }
        let [throughput, latency, _, all] = &tables[..] else { panic!("four") };
        assert_eq!(throughput.rows.len(), 1, "sizes without measurements are omitted");
        assert_eq!(
            latency.rows,
            [[
                "8K", "2.500", "3.183", "2.000", "1.935", "25.00 %", "64.50 %", "15.00 %",
                "20.00 %"
            ]]
        );
        assert_eq!(
            throughput.rows,
            [[
                "8K", "75.00", "58.87", "93.75", "96.80", "20.00 %", "39.18 %", "13.04 %",
                "16.67 %"
            ]]
        );
        let text = all.write(Form::Markdown);
        assert!(text.contains("| 8K cold | cold, log on persistent disk |"), "{text}");
    }

    #[test]
    fn given_figures_are_marked_by_provenance() {
        let tables = tables(&given_example(None));
        let [_, latency, all] = &tables[..] else { panic!("three tables") };
        assert!(!latency.title.contains("EMULATED") && latency.title.contains("served"));
        assert_eq!((&*latency.head[1], &*latency.head[3]), ("mirror [served]", "no mirror"));
        assert_eq!(
            latency.rows,
            [["8K", "2.500", "3.183", "2.000", "1.935", "25.00 %", "64.50 %", "-", "-"]]
        );
        assert_eq!(all.rows.len(), 2);
    }
}

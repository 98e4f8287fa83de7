//! The published table with ours beside it, and all set-ups.

use flagstone_bench::nature::Nature;
use flagstone_bench::table::Table;

use super::customer;
use super::published::{Figures, latency_overhead, throughput_overhead};
use super::summary::{Cell, Side, Summary};

/// Throughput, latency, and every set-up.
pub fn tables(summary: &Summary) -> Vec<Table> {
    let mut tables = vec![
        beside(summary, &THROUGHPUT),
        beside(summary, &LATENCY),
        customer::log_table(summary),
        customer::machine_table(summary),
        everything(summary),
    ];
    tables.retain(|table| !table.rows.is_empty());
    tables
}

/// One figure of the published table.
struct Column {
    title: &'static str,
    decimals: usize,
    published: fn(&Figures) -> f64,
    ours: fn(&Cell) -> f64,
    overhead: fn(f64, f64) -> f64,
    link: fn(&Side) -> Option<f64>,
}

const THROUGHPUT: Column = Column {
    title: "throughput, MiB/s, of 24 random writes in flight",
    decimals: 2,
    published: |figures| figures.mib_per_s,
    ours: |cell| cell.mib_per_s,
    overhead: throughput_overhead,
    link: |side| Some(side.link?.throughput_percent),
};

const LATENCY: Column = Column {
    title: "average latency, ms",
    decimals: 3,
    published: |figures| figures.latency_ms,
    ours: |cell| cell.latency_ms,
    overhead: latency_overhead,
    link: |side| Some(side.link?.latency_percent),
};

fn beside(summary: &Summary, column: &Column) -> Table {
    let ours = |what: &str| format!("{what}{}", Nature::Emulated.suffix());
    let title = format!("{}: here on EMULATED disks, and as SIOS published it", column.title);
    let head = vec![
        "write size".to_owned(),
        ours("mirror"),
        "published".to_owned(),
        ours("no mirror"),
        "published".to_owned(),
        ours("overhead"),
        "published".to_owned(),
        ours("of it the link"),
        ours("a disk over it"),
    ];
    let rows = summary.table.iter().filter_map(|side| {
        let (mirror, plain) = (side.mirror.as_ref()?, side.plain.as_ref()?);
        let number = |value: f64| format!("{value:.*}", column.decimals);
        let figure = |cell: &Cell| number((column.ours)(cell));
        let (theirs, alone) = (&side.published.mirror, &side.published.plain);
        let (theirs, alone) = ((column.published)(theirs), (column.published)(alone));
        let overhead = |cell: &Cell| (column.overhead)((column.ours)(cell), (column.ours)(plain));
        Some(vec![
            side.published.size.to_owned(),
            figure(mirror),
            number(theirs),
            figure(plain),
            number(alone),
            percent(Some(overhead(mirror))),
            percent(Some((column.overhead)(theirs, alone))),
            percent((column.link)(side)),
            percent(side.far.as_ref().map(overhead)),
        ])
    });
    Table { title, head, rows: rows.collect() }
}

fn everything(summary: &Summary) -> Table {
    let title = format!(
        "every set-up{}: medians; overheads are of no mirror with the same writes",
        Nature::Emulated.suffix()
    );
    let head = [
        "write size",
        "set-up",
        "MiB/s",
        "overhead",
        "mean ms",
        "overhead",
        "p99 ms",
        "IOPS",
        "n",
        "noise",
        "another run",
        "CPU",
    ];
    let mut table = Table::new(title, &head);
    let dash = || "-".to_owned();
    let rough = |percent: f64| format!("{percent:.1} %");
    for cell in &summary.cells {
        table.rows.push(vec![
            cell.job(),
            cell.setup.to_owned(),
            format!("{:.2}", cell.mib_per_s),
            percent(cell.throughput_overhead_percent),
            format!("{:.3}", cell.latency_ms),
            percent(cell.latency_overhead_percent),
            cell.latency_p99_ms.map_or_else(dash, |ms| format!("{ms:.3}")),
            format!("{:.0}", cell.iops),
            cell.repetitions.to_string(),
            cell.noise_percent.map_or_else(dash, rough),
            cell.another_run_percent.map_or_else(dash, |percent| format!("± {}", rough(percent))),
            cell.cpu_percent.map_or_else(dash, |percent| format!("{percent:.0} %")),
        ]);
    }
    table
}

/// As the published table has them: two digits. What rounds to nothing has no sign.
fn percent(value: Option<f64>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    match format!("{value:.2} %") {
        zero if zero == "-0.00 %" => "0.00 %".to_owned(),
        text => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_bench::table::Form;

    #[test]
    fn ours_stands_beside_the_published_and_says_that_it_is_emulated() {
        let tables = tables(&super::super::summary::tests::example());
        assert_eq!(tables.len(), 4);
        for table in &tables {
            assert!(table.title.contains("EMULATED"), "{}", table.title);
        }
        let [throughput, latency, _, all] = &tables[..] else { panic!("four") };
        assert_eq!(throughput.rows.len(), 1, "what was not measured is left out");
        let cells: Vec<_> = latency.rows[0].iter().map(String::as_str).collect();
        assert_eq!(
            cells,
            ["8K", "2.500", "3.183", "2.000", "1.935", "20.00 %", "39.21 %", "13.04 %", "16.67 %"]
        );
        let cells: Vec<_> = throughput.rows[0].iter().map(String::as_str).collect();
        assert_eq!(
            cells,
            ["8K", "75.00", "58.87", "93.75", "96.80", "20.00 %", "39.18 %", "13.04 %", "16.67 %"]
        );
        let text = all.write(Form::Text);
        assert!(text.contains("8K cold     cold, log on persistent disk"), "{text}");
    }

    #[test]
    fn nothing_has_no_sign() {
        assert_eq!(percent(Some(-0.001)), "0.00 %");
        assert_eq!(percent(Some(-0.02)), "-0.02 %");
        assert_eq!(percent(None), "-");
    }
}

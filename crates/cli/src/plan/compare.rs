//! `flagstone plan compare`.

use std::fmt::Write as _;
use std::path::Path;

use flagstone_cloud::catalogue::Catalogue;
use flagstone_cloud::cheapest::Prices;
use flagstone_cloud::compare::{Asked, Column, Does};
use flagstone_cloud::prediction::{Dimension, Limit, SourceUse};
use flagstone_cloud::{PlanError, Workload, block_text, grouped};
use flagstone_control::units::parse_size;
use serde::Serialize;

use super::paint::Paint;
use super::predict::{contradictions, decimals, list};
use super::several::CompareArgs;
use super::{CatalogueHead, SCHEMA_VERSION, head, json, usage};
use crate::columns::{Side, lines, wrapped};
use crate::exit::Exit;
use crate::output::{complain, print};

/// Widest cell before it goes on in the next line.
const CELL_MAX: usize = 34;

/// Runs the command.
pub(super) fn run(args: &CompareArgs) -> Exit {
    let compared = compared(args);
    let (catalogue, asked, columns) = match compared {
        Ok(found) => found,
        Err(error) => return usage(&error),
    };
    if let Some(exit) = nothing(&catalogue, &columns) {
        return exit;
    }
    if args.json {
        return json(&Report {
            schema_version: SCHEMA_VERSION,
            catalogue: (&catalogue).into(),
            asked: &asked,
            size_unit: catalogue.units.size.name(),
            throughput_unit: catalogue.units.throughput.name(),
            columns: &columns,
        });
    }
    print(&text(&catalogue, &asked, &columns, Paint::stdout()), Exit::Success)
}

/// Where no type at all can be had so: why, on one line.
fn nothing(catalogue: &Catalogue, columns: &[Column]) -> Option<Exit> {
    let errors: Option<Vec<&PlanError>> = columns.iter().map(|c| c.cannot.as_ref()).collect();
    let errors = errors?;
    let mut why: Vec<String> = Vec::new();
    for text in errors.iter().map(|error| error.to_string()) {
        if !why.contains(&text) {
            why.push(text);
        }
    }
    let why = why.join("; ");
    Some(match errors.iter().all(|error| matches!(error, PlanError::NotKnown(_))) {
        true => {
            complain(&format!("flagstone: {why} (catalogue {})\n", catalogue.name));
            Exit::Failed
        }
        false => usage(&why),
    })
}

/// The report of `--json`, documented in `docs/plan-json.md`.
#[derive(Serialize)]
struct Report<'a> {
    schema_version: u32,
    catalogue: CatalogueHead<'a>,
    asked: &'a Asked,
    size_unit: &'static str,
    throughput_unit: &'static str,
    columns: &'a [Column],
}

fn compared(args: &CompareArgs) -> Result<(Catalogue, Asked, Vec<Column>), String> {
    let mut catalogue = args.catalogue.open()?;
    if let Some(file) = &args.price_file {
        let prices = Prices::read(Path::new(file)).map_err(|error| error.to_string())?;
        catalogue = prices.apply(file, &catalogue).map_err(|error| error.to_string())?;
    }
    let types = args.types.types(&catalogue)?;
    let capacity = parse_size(&args.capacity)
        .map_err(|error| format!("--capacity {}: {error}", args.capacity))?;
    if capacity == 0 {
        return Err("--capacity 0: write a size above 0, such as 1TB".to_owned());
    }
    let asked = Asked {
        capacity_bytes: capacity,
        machine: types.machine,
        regional: args.types.regional,
        network_gbit_per_s: types.network_gbit_per_s,
        tier1: args.types.tier1,
        provisioned_iops: types.iops,
        provisioned_bytes_per_s: types.bytes_per_s,
        workloads: workloads(args)?,
    };
    let columns = catalogue.compare(&types.kinds, &asked).map_err(|error| error.to_string())?;
    Ok((catalogue, asked, columns))
}

/// The loads: first those that IOPS are counted of, then those for MB/s.
fn workloads(args: &CompareArgs) -> Result<Vec<Workload>, String> {
    let patterns = match &args.rw {
        Some(rw) => vec![rw.as_str()],
        None if args.loads.read_percent.is_some() => {
            return Err("--read-percent is for readwrite and randrw: write --rw randrw".to_owned());
        }
        None => vec!["randread", "randwrite"],
    };
    let both: Result<Vec<_>, String> = patterns.iter().map(|rw| args.loads.loads(rw)).collect();
    let both = both?;
    Ok((0..2).flat_map(|index| both.iter().map(move |pair| pair[index].clone())).collect())
}

fn text(catalogue: &Catalogue, asked: &Asked, columns: &[Column], paint: Paint) -> String {
    let mut out = head(catalogue);
    let _ = writeln!(out, "{}\n", question(asked));
    let sources = sources(columns);
    let rows = rows(catalogue, asked, columns, &sources);
    let mut heads: Vec<(&str, Side)> = vec![("", Side::Left)];
    heads.extend(columns.iter().map(|column| (column.kind.as_str(), Side::Left)));
    for (number, line) in lines(&heads, &rows).into_iter().enumerate() {
        let line = match number {
            0 => paint.bold(&line),
            1 => paint.dim(&line),
            _ => line,
        };
        let _ = writeln!(out, "  {line}");
    }
    let numbered: Vec<String> = sources
        .iter()
        .enumerate()
        .map(|(index, source)| {
            let SourceUse { key, date, address, .. } = source;
            format!("{} {key} ({date}): {address}", index + 1)
        })
        .collect();
    list("sources", &numbered, paint, &mut out);
    let mut touched = Vec::new();
    for one in columns.iter().flat_map(|column| &column.inconsistencies) {
        if !touched.contains(one) {
            touched.push(one.clone());
        }
    }
    contradictions(&touched, paint, &mut out);
    let mut unknown: Vec<String> = Vec::new();
    for what in columns.iter().flat_map(|column| &column.not_known) {
        if !unknown.contains(what) {
            unknown.push(what.clone());
        }
    }
    list("not known", &unknown, paint, &mut out);
    out
}

fn question(asked: &Asked) -> String {
    let machine = &asked.machine;
    let vcpus = machine.vcpus.map(|n| format!(" ({n} vCPUs)")).unwrap_or_default();
    let zones = if asked.regional { " in two zones" } else { "" };
    let network = match asked.network_gbit_per_s {
        0.0 => String::new(),
        gbit => format!(", {gbit} Gbit/s of other traffic"),
    };
    let depth = asked.workloads.first().and_then(Workload::in_flight);
    let depth = match depth {
        Some(in_flight) => format!("{in_flight} in flight"),
        None => "as many in flight as it takes".to_owned(),
    };
    let capacity = grouped(asked.capacity_bytes as f64 / 1e9);
    format!("{capacity} GB{zones} on {}{vcpus}{network}; {depth}", machine.name)
}

/// What a load is called in a row: `read`, `written`, or both at once.
fn load_name(workload: &Workload) -> String {
    let access = match workload.access {
        flagstone_cloud::Access::Random => "random",
        flagstone_cloud::Access::Sequential => "sequential",
    };
    match workload.read_percent {
        100 => format!("{access} reads"),
        0 => format!("{access} writes"),
        percent => format!("{access}, {percent} % reads"),
    }
}

/// All sources of all columns, each once.
fn sources(columns: &[Column]) -> Vec<SourceUse> {
    let mut all: Vec<SourceUse> = Vec::new();
    for source in columns.iter().flat_map(|column| &column.sources) {
        if !all.iter().any(|known| known.key == source.key) {
            all.push(source.clone());
        }
    }
    all
}

/// The rows under the names of the types; long cells are several lines.
fn rows(
    catalogue: &Catalogue,
    asked: &Asked,
    columns: &[Column],
    sources: &[SourceUse],
) -> Vec<Vec<String>> {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |name: &str, cell: &dyn Fn(&Column) -> String| {
        let mut cells = vec![vec![name.to_owned()]];
        cells.extend(columns.iter().map(|column| wrapped(&cell(column), CELL_MAX)));
        let height = cells.iter().map(Vec::len).max().unwrap_or(0);
        let line =
            |at: usize| cells.iter().map(move |cell| cell.get(at).cloned().unwrap_or_default());
        rows.extend((0..height).map(|at| line(at).collect()));
    };
    row("disks", &|column| disks(catalogue, column));
    let of = |column: &Column, what: &dyn Fn(&Column) -> String| match column.cannot {
        Some(_) => "-".to_owned(),
        None => what(column),
    };
    let unit = catalogue.units.throughput.name();
    let half = asked.workloads.len() / 2;
    for (index, workload) in asked.workloads.iter().enumerate() {
        let iops = index < half;
        let what = if iops { "IOPS" } else { unit };
        let name = format!("{what}, {}", load_name(workload));
        let number = move |does: &Does| {
            if iops { grouped(does.total.iops) } else { decimals(does.total.throughput) }
        };
        row(&name, &|c| of(c, &|c| number(&c.does[index])));
        let block = format!("  of {}, limited by", block_text(workload.block_bytes));
        row(&block, &|c| of(c, &|c| limit(&c.does[index].binding, unit)));
    }
    row("USD a month", &|c| {
        let known = |c: &Column| c.cost.as_ref().map(|cost| format!("{:.2}", cost.usd_per_month));
        of(c, &|c| known(c).unwrap_or_else(|| "not known".to_owned()))
    });
    for (index, workload) in asked.workloads.iter().enumerate().take(half) {
        let name = match workload.read_percent {
            100 => "USD a read IOPS",
            0 => "USD a write IOPS",
            _ => "USD an IOPS",
        };
        row(name, &|c| {
            let usd = |c: &Column| c.does[index].usd_per_iops.map(|usd| format!("{usd:.4}"));
            of(c, &|c| usd(c).unwrap_or_else(|| "not known".to_owned()))
        });
    }
    row("confidence", &|c| of(c, &confidence));
    row("sources", &|c| of(c, &|c| numbers(c, sources)));
    row("  of", &|c| of(c, &|c| dates(&c.sources)));
    rows
}

/// The disks, or why there are none.
fn disks(catalogue: &Catalogue, column: &Column) -> String {
    if let Some(why) = &column.cannot {
        return format!("none: {why}");
    }
    let unit = catalogue.units.size.name();
    let mut text = format!("{} x {} {unit}", column.disks, grouped(column.size));
    if let Some(iops) = column.iops {
        let _ = write!(text, ", {} IOPS", grouped(iops));
    }
    if let Some(throughput) = column.throughput {
        let _ = write!(text, ", {} {}", grouped(throughput), catalogue.units.throughput.name());
    }
    if column.by_request {
        text.push_str(" (ask first)");
    }
    text
}

/// A limit and what it is in: `volume, 15,000 IOPS`.
fn limit(limit: &Limit, unit: &str) -> String {
    let in_what = match limit.dimension {
        Dimension::Iops => "IOPS",
        Dimension::Throughput => unit,
    };
    format!("{} ({in_what})", limit.kind)
}

fn confidence(column: &Column) -> String {
    let known = column.confidence.map(|c| c.to_string()).unwrap_or_default();
    match &column.cost {
        Some(cost) if Some(cost.confidence) != column.confidence => {
            format!("{known}, of the price {}", cost.confidence)
        }
        _ => known,
    }
}

fn numbers(column: &Column, sources: &[SourceUse]) -> String {
    let number = |source: &SourceUse| {
        sources.iter().position(|known| known.key == source.key).map_or(0, |index| index + 1)
    };
    let mut numbers: Vec<usize> = column.sources.iter().map(number).collect();
    numbers.sort_unstable();
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// The years and months that sources are of, from the first to the last.
fn dates(sources: &[SourceUse]) -> String {
    let mut months: Vec<String> = Vec::new();
    let mut undated = 0;
    for source in sources {
        let found = months_in(&source.date);
        undated += usize::from(found.is_empty());
        months.extend(found);
    }
    months.sort();
    let range = match (months.first(), months.last()) {
        (Some(first), Some(last)) if first == last => first.clone(),
        (Some(first), Some(last)) => format!("{first} to {last}"),
        _ => return "undated".to_owned(),
    };
    if undated > 0 { format!("{range}, {undated} undated") } else { range }
}

/// What looks like a year, with its month if there is one.
fn months_in(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !(c.is_ascii_digit() || c == '-'));
    let year = |word: &str| matches!(word.parse::<u32>(), Ok(1990..=2099)) && word.len() == 4;
    let found = words.filter_map(|word| {
        let mut parts = word.split('-');
        let first = parts.next().filter(|part| year(part))?;
        let month = parts.next().filter(|part| part.len() == 2);
        Some(month.map_or(first.to_owned(), |month| format!("{first}-{month}")))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::months_in;

    #[test]
    fn dates_are_found_in_words() {
        for (text, wanted) in [
            (
                "files last changed 2024-07-06 / 2024-08-21 (snapshot 2026-08-07)",
                &["2024-07", "2024-08", "2026-08"][..],
            ),
            ("undated copy (after pd-extreme; 2024-2025)", &["2024"]),
            ("about 2019, inferred; the text carries none", &["2019"]),
            ("undated", &[]),
            ("generated 2025-03-06 from the Cloud Billing API", &["2025-03"]),
        ] {
            assert_eq!(months_in(text), wanted, "{text}");
        }
    }
}

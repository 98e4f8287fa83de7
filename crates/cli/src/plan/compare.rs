//! `flagstone plan compare`.

use std::fmt::Write as _;
use std::path::Path;

use flagstone_cloud::Workload;
use flagstone_cloud::catalog::Catalog;
use flagstone_cloud::cheapest::Prices;
use flagstone_cloud::compare::{ComparisonColumn, ComparisonRequest, WorkloadResult};
use flagstone_cloud::prediction::{Dimension, PredictedLimit, SourceUse};
use flagstone_units::{display::size, grouped};
use serde::Serialize;

use super::args::{NOT_MIXED, bytes};
use super::disk_types::{PlanCompareArgs, none_can};
use super::paint::Paint;
use super::predict::{contradictions, decimals, list};
use super::{bold_table, head, in_flight_text, json, machine_text, once};
use crate::exit::{Exit, Failure};
use crate::output::print;
use flagstone_units::columns::wrapped_lines;

const CELL_MAX: u16 = 34;

pub(super) fn run(args: &PlanCompareArgs) -> Result<Exit, Failure> {
    let (catalog, request, columns) = compared(args)?;
    none_can(&catalog, columns.iter().map(|of| of.error.as_ref()))?;
    if args.catalog.json {
        let report = Report {
            request: &request,
            size_unit: catalog.units.size.name(),
            throughput_unit: catalog.units.throughput.name(),
            columns: &columns,
        };
        return Ok(json(&catalog, report));
    }
    Ok(print(&text(&catalog, &request, &columns, Paint::stdout()), Exit::Success))
}

#[derive(Serialize)]
struct Report<'a> {
    request: &'a ComparisonRequest,
    size_unit: &'static str,
    throughput_unit: &'static str,
    columns: &'a [ComparisonColumn],
}

fn compared(
    args: &PlanCompareArgs,
) -> Result<(Catalog, ComparisonRequest, Vec<ComparisonColumn>), Failure> {
    let mut catalog = args.catalog.open()?;
    if let Some(file) = &args.price_file {
        let prices = Prices::read(Path::new(file)).map_err(|error| error.to_string())?;
        catalog = prices.apply(file, &catalog).map_err(|error| error.to_string())?;
    }
    let (kinds, on) = args.types.types(&catalog)?;
    let capacity = bytes("--capacity", &args.capacity)?;
    if capacity == 0 {
        return Err(Failure::usage("--capacity 0: write a size above 0, such as 1TB"));
    }
    let request = ComparisonRequest {
        capacity_bytes: capacity,
        machine: on.machine,
        regional: on.regional,
        other_egress_gbit_per_s: on.other_egress_gbit_per_s,
        tier1_networking: on.tier1_networking,
        provisioned_iops: on.provisioned_iops,
        provisioned_bytes_per_s: on.provisioned_bytes_per_s,
        workloads: workloads(args)?,
    };
    let columns = catalog.compare(&kinds, &request).map_err(|error| error.to_string())?;
    Ok((catalog, request, columns))
}

/// The workloads: those for IOPS first, then those for MB/s.
fn workloads(args: &PlanCompareArgs) -> Result<Vec<Workload>, String> {
    let patterns = match &args.rw {
        Some(rw) => vec![rw.as_str()],
        None if args.loads.jobs.read_percent.is_some() => {
            return Err(NOT_MIXED.to_owned());
        }
        None => vec!["randread", "randwrite"],
    };
    let both: Result<Vec<_>, String> = patterns.iter().map(|rw| args.loads.loads(rw)).collect();
    let both = both?;
    Ok((0..2).flat_map(|index| both.iter().map(move |pair| pair[index].clone())).collect())
}

fn text(
    catalog: &Catalog,
    request: &ComparisonRequest,
    columns: &[ComparisonColumn],
    paint: Paint,
) -> String {
    let mut out = head(catalog);
    let _ = writeln!(out, "{}\n", question(request));
    let sources = sources(columns);
    let rows = rows(catalog, request, columns, &sources);
    let mut heads = vec![""];
    heads.extend(columns.iter().map(|column| column.kind.as_str()));
    bold_table(wrapped_lines(&heads, &rows, CELL_MAX), paint, &mut out);
    let numbered: Vec<String> = sources
        .iter()
        .enumerate()
        .map(|(index, source)| {
            let SourceUse { key, date, address, .. } = source;
            format!("{} {key} ({date}): {address}", index + 1)
        })
        .collect();
    list("sources", &numbered, paint, &mut out);
    let touched = once(columns.iter().flat_map(|column| column.inconsistencies.clone()));
    contradictions(&touched, paint, &mut out);
    let unknown = once(columns.iter().flat_map(|column| column.not_known.clone()));
    list("not known", &unknown, paint, &mut out);
    out
}

fn question(request: &ComparisonRequest) -> String {
    let zones = if request.regional { " in two zones" } else { "" };
    let machine = machine_text(&request.machine, request.other_egress_gbit_per_s);
    let depth = in_flight_text(request.workloads.first());
    let capacity = grouped(request.capacity_bytes as f64 / 1e9, 0);
    format!("{capacity} GB{zones} on {machine}; {depth}")
}

fn load_name(workload: &Workload) -> String {
    let access = match workload.access {
        flagstone_cloud::AccessOrder::Random => "random",
        flagstone_cloud::AccessOrder::Sequential => "sequential",
    };
    match workload.read_percent {
        100 => format!("{access} reads"),
        0 => format!("{access} writes"),
        percent => format!("{access}, {percent} % reads"),
    }
}

fn sources(columns: &[ComparisonColumn]) -> Vec<SourceUse> {
    let mut all: Vec<SourceUse> = Vec::new();
    for source in columns.iter().flat_map(|column| &column.sources) {
        if !all.iter().any(|known| known.key == source.key) {
            all.push(source.clone());
        }
    }
    all
}

fn rows(
    catalog: &Catalog,
    request: &ComparisonRequest,
    columns: &[ComparisonColumn],
    sources: &[SourceUse],
) -> Vec<Vec<String>> {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |name: &str, cell: &dyn Fn(&ComparisonColumn) -> String| {
        let mut cells = vec![name.to_owned()];
        cells.extend(columns.iter().map(cell));
        rows.push(cells);
    };
    row("disks", &|column| disks(catalog, column));
    let of = |column: &ComparisonColumn, what: &dyn Fn(&ComparisonColumn) -> String| match column
        .error
    {
        Some(_) => "-".to_owned(),
        None => what(column),
    };
    let unit = catalog.units.throughput.name();
    let half = request.workloads.len() / 2;
    for (index, workload) in request.workloads.iter().enumerate() {
        let iops = index < half;
        let what = if iops { "IOPS" } else { unit };
        let name = format!("{what}, {}", load_name(workload));
        let number = move |results: &WorkloadResult| match iops {
            true => grouped(results.total.iops, 0),
            false => decimals(results.total.bytes_per_s / catalog.units.throughput.bytes()),
        };
        row(&name, &|c| of(c, &|c| number(&c.results[index])));
        let block = format!("  of {}, limited by", size(workload.block_bytes));
        row(&block, &|c| of(c, &|c| limit(&c.results[index].binding, unit)));
    }
    row("USD a month", &|c| {
        let known =
            |c: &ComparisonColumn| c.cost.as_ref().map(|cost| format!("{:.2}", cost.usd_per_month));
        of(c, &|c| known(c).unwrap_or_else(|| "not known".to_owned()))
    });
    for (index, workload) in request.workloads.iter().enumerate().take(half) {
        let name = match workload.read_percent {
            100 => "USD a read IOPS",
            0 => "USD a write IOPS",
            _ => "USD an IOPS",
        };
        row(name, &|c| {
            let usd =
                |c: &ComparisonColumn| c.results[index].usd_per_iops.map(|usd| format!("{usd:.4}"));
            of(c, &|c| usd(c).unwrap_or_else(|| "not known".to_owned()))
        });
    }
    row("confidence", &|c| of(c, &confidence));
    row("sources", &|c| of(c, &|c| source_numbers(c, sources)));
    row("  of", &|c| of(c, &|c| dates(&c.sources)));
    rows
}

fn disks(catalog: &Catalog, column: &ComparisonColumn) -> String {
    if let Some(why) = &column.error {
        return format!("none: {why}");
    }
    let unit = catalog.units.size.name();
    let mut text = format!("{} x {} {unit}", column.disks, grouped(column.size, 0));
    if let Some(iops) = column.iops {
        let _ = write!(text, ", {} IOPS", grouped(iops, 0));
    }
    if let Some(throughput) = column.throughput {
        let _ = write!(text, ", {} {}", grouped(throughput, 0), catalog.units.throughput.name());
    }
    if column.by_request {
        text.push_str(" (ask first)");
    }
    text
}

/// A limit with its dimension: `volume (IOPS)`.
fn limit(limit: &PredictedLimit, unit: &str) -> String {
    let in_what = match limit.dimension {
        Dimension::Iops => "IOPS",
        Dimension::Throughput => unit,
    };
    format!("{} ({in_what})", limit.kind)
}

fn confidence(column: &ComparisonColumn) -> String {
    let known = column.confidence.map(|c| c.to_string()).unwrap_or_default();
    match &column.cost {
        Some(cost) if Some(cost.confidence) != column.confidence => {
            format!("{known}, of the price {}", cost.confidence)
        }
        _ => known,
    }
}

fn source_numbers(column: &ComparisonColumn, sources: &[SourceUse]) -> String {
    let number = |source: &SourceUse| {
        sources.iter().position(|known| known.key == source.key).map_or(0, |index| index + 1)
    };
    let mut numbers: Vec<usize> = column.sources.iter().map(number).collect();
    numbers.sort_unstable();
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// Range of years and months of the sources.
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

/// Words that look like a year, with the month if present.
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
    fn years_and_months_are_found_in_text() {
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

//! `flagstone plan predict`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use flagstone_cloud::catalog::{Catalog, Inconsistency, ThroughputUnit};
use flagstone_cloud::prediction::SourceUse;
use flagstone_cloud::{
    Confidence, DiskConfiguration, JointPrediction, PredictedLimit, Prediction, Rates, size_text,
};
use flagstone_units::{
    display::{latency, size},
    grouped,
};

use super::args::PredictArgs;
use super::paint::Paint;
use super::{bold_table, head, in_flight_text, json, machine_text, plan_failure};
use crate::exit::{Exit, Failure};
use crate::output::print;
use flagstone_units::columns::{self, CellAlignment, Left, Right};

pub(super) fn run(args: &PredictArgs) -> Result<Exit, Failure> {
    let catalog = args.catalog.open()?;
    let workload = args
        .workload
        .jobs
        .workload(&args.workload.rw, &args.workload.bs)
        .map_err(Failure::usage)?;
    if !args.unlike.is_empty() {
        let configurations = args.disk.unlike(&catalog, &args.unlike)?;
        let found = catalog
            .predict_together(&configurations, &workload)
            .map_err(|error| plan_failure(&error, &catalog))?;
        if args.catalog.json {
            return Ok(json(&catalog, BTreeMap::from([("together", &found)])));
        }
        return Ok(print(&joint_text(&catalog, &found, Paint::stdout()), Exit::Success));
    }
    let configuration = args.disk.configuration(&catalog)?;
    let prediction = catalog
        .predict(&configuration, &workload)
        .map_err(|error| plan_failure(&error, &catalog))?;
    if args.catalog.json {
        return Ok(json(&catalog, BTreeMap::from([("prediction", &prediction)])));
    }
    let pattern = args.workload.pattern_text(&workload);
    Ok(print(&text(&catalog, &prediction, &pattern, Paint::stdout()), Exit::Success))
}

/// Disks that are used at once: each alone and with the others, and what they share.
fn joint_text(catalog: &Catalog, found: &JointPrediction, paint: Paint) -> String {
    let unit = catalog.units.throughput;
    let mut lines = Vec::new();
    for disk in &found.disks {
        let own = format!("{} by itself", grouped(disk.own.iops, 0));
        lines.push(rates_row(&disks_text(catalog, &disk.configuration), &disk.together, unit, own));
    }
    lines.push(rates_row("together", &found.total, unit, String::new()));
    let mut out = head(catalog) + "\n";
    for line in columns::rows(&RATES, &lines) {
        let _ = writeln!(out, "  {line}");
    }
    for limit in &found.binding {
        let (kind, types) = (limit.kind, limit.types.join(" and "));
        let iops = grouped(limit.iops, 0);
        let _ = writeln!(out, "\n  binds: {kind} allows {types} {iops} IOPS of this workload");
    }
    list("not known", &found.not_known, paint, &mut out);
    out
}

type StyledLine = (fn(Paint, &str) -> String, Vec<String>);

fn text(catalog: &Catalog, found: &Prediction, pattern: &str, paint: Paint) -> String {
    let mut out = head(catalog);
    let _ = writeln!(out, "{}\n", asked(catalog, found, pattern));
    rates(found, paint, &mut out);
    limits(found, paint, &mut out);
    if let Some(cost) = &found.cost {
        let (usd, region, confidence) = (cost.usd_per_month, &cost.region, cost.confidence);
        let text = format!("{usd:.2} USD a month for the disks, in {region}");
        let _ = writeln!(out, "\n{}  {text} (confidence {confidence})", paint.bold("price"));
    }
    rests_on(found.confidence, &found.sources, paint, &mut out);
    contradictions(&found.inconsistencies, paint, &mut out);
    list("not known", &found.not_known, paint, &mut out);
    list("note", &found.notes, paint, &mut out);
    list("advice of the source", &found.advice, paint, &mut out);
    out
}

fn asked(catalog: &Catalog, found: &Prediction, pattern: &str) -> String {
    let depth = in_flight_text(Some(&found.workload));
    let disks = disks_text(catalog, &found.configuration);
    format!("{disks}: {pattern}, {} blocks, {depth}", size(found.workload.block_bytes))
}

pub(super) fn disks_text(catalog: &Catalog, configuration: &DiskConfiguration) -> String {
    let units = &catalog.units;
    let each = catalog.types.get(&configuration.kind).and_then(|disk| disk.size_gb_each);
    let size = each.unwrap_or(units.size_of(configuration.size_bytes));
    let size = size_text(size, units.size.name());
    let disks = match configuration.disks {
        1 => String::new(),
        n => format!("{n} x "),
    };
    let regional = if configuration.regional { "regional " } else { "" };
    let machine = machine_text(&configuration.machine, configuration.other_egress_gbit_per_s);
    format!("{disks}{size} of {regional}{} on {machine}", configuration.kind)
}

fn rates(found: &Prediction, paint: Paint, out: &mut String) {
    let unit = found.throughput_unit;
    let row = |label: &str, rates: &Rates, rest: String| rates_row(label, rates, unit, rest);
    let mut lines = vec![row("sustained", &found.total, String::new())];
    if (1..100).contains(&found.workload.read_percent) {
        lines.push(row("  reads", &found.read, String::new()));
        lines.push(row("  writes", &found.write, String::new()));
    }
    lines.extend(found.at_best.as_ref().map(|best| row("at best", best, String::new())));
    let depth =
        found.depth_needed.map(|depth| format!(", with {} in flight", grouped(depth as f64, 0)));
    let rest = format!("allowed by the cloud{}", depth.unwrap_or_default());
    lines.push(row("allowed", &found.allowed, rest));
    let latency = match found.latency_us {
        Some(us) => format!("{} on average (Little's law)", latency(us)),
        None if found.workload.depth.is_none() => "depends on --depth".to_owned(),
        None => "not known".to_owned(),
    };
    bold_table(columns::rows(&RATES, &lines), paint, out);
    let _ = writeln!(out, "  latency    {latency}");
}

pub(super) const RATES: [CellAlignment; 4] = [Left, Right, Right, Left];

/// Label, IOPS, throughput and a remark.
pub(super) fn rates_row(
    label: &str,
    rates: &Rates,
    unit: ThroughputUnit,
    remark: String,
) -> Vec<String> {
    let iops = format!("{} IOPS", grouped(rates.iops, 0));
    let throughput = decimals(rates.bytes_per_s / unit.bytes());
    vec![label.to_owned(), iops, format!("{throughput} {}", unit.name()), remark]
}

fn limits(found: &Prediction, paint: Paint, out: &mut String) {
    let _ = writeln!(out, "\n{}", paint.bold("limits"));
    let mut lines: Vec<StyledLine> = Vec::new();
    for limit in &found.limits {
        let next = found.next.as_ref().is_some_and(|next| same(limit, next));
        let (mark, color): (_, fn(Paint, &str) -> String) = match same(limit, &found.binding) {
            true => ("binds", Paint::red),
            false if next => ("next", Paint::yellow),
            // Only limits that bind, come next, or equal one of these have recommendations.
            false if limit.recommendations.is_empty() => ("", |_, text| text.to_owned()),
            false => ("equal", |_, text| text.to_owned()),
        };
        let iops = format!("{} IOPS", grouped(limit.workload_iops, 0));
        let name = limit.kind.to_string();
        lines.push((color, vec![mark.to_owned(), name, iops, limit.explanation.clone()]));
        for (index, recommendation) in limit.recommendations.iter().enumerate() {
            let word = if index == 0 { "raised by" } else { "or" };
            let cells = ["", "", word].map(str::to_owned).into_iter();
            let cells = cells.chain([recommendation.to_string()]).collect();
            lines.push((Paint::dim, cells));
        }
    }
    let (colors, cells): (Vec<_>, Vec<_>) = lines.into_iter().unzip();
    for (color, line) in colors.iter().zip(columns::rows(&[Left, Left, Right, Left], &cells)) {
        let _ = writeln!(out, "  {}", color(paint, &line));
    }
}

fn same(a: &PredictedLimit, b: &PredictedLimit) -> bool {
    a.kind == b.kind && a.dimension == b.dimension
}

/// Decimals for small numbers only.
pub(super) fn decimals(number: f64) -> String {
    match number {
        n if n < 10.0 => format!("{n:.2}"),
        n if n < 1000.0 => format!("{n:.1}"),
        n => grouped(n, 0),
    }
}

pub(super) fn rests_on(
    confidence: Confidence,
    sources: &[SourceUse],
    paint: Paint,
    out: &mut String,
) {
    let _ = writeln!(out, "\n{} (confidence {confidence})", paint.bold("sources"));
    for SourceUse { key, date, confidence, address, .. } in sources {
        let _ = writeln!(out, "  {key} ({date}, confidence {confidence}): {address}");
    }
}

pub(super) fn contradictions(touched: &[Inconsistency], paint: Paint, out: &mut String) {
    if touched.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", paint.bold("contradictions of the sources"));
    for entry in touched {
        let _ = writeln!(out, "  {} {}", paint.yellow(&entry.id), entry.place);
        let _ = writeln!(out, "      {}", entry.why);
        if let Some(used) = &entry.used {
            let _ = writeln!(out, "      used here: {used}");
        }
    }
}

/// A list under a heading, if it is not empty.
/// Width of a line of a list, without its indentation.
const LIST_WIDTH: usize = 94;

/// Lines below a heading, wrapped at spaces: an address stays whole, so that it can be followed.
pub(super) fn list(heading: &str, lines: &[String], paint: Paint, out: &mut String) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", paint.bold(heading));
    for line in lines {
        let _ = writeln!(out, "  {}", columns::filled(line, LIST_WIDTH).replace('\n', "\n      "));
    }
}

//! `flagstone plan curve`: limits along one dimension, as a plot, as text and as JSON.

mod picture;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use flagstone_cloud::catalog::{Catalog, SizeUnit, Units};
use flagstone_cloud::curve::{CurvePoint, LimitCurve, Over, Sweep};
use flagstone_cloud::prediction::Dimension;
use flagstone_cloud::{DiskConfiguration, LimitKind, PlanError, Workload};
use flagstone_plot::Theme;
use flagstone_units::{display::size, grouped};
use serde::Serialize;

use super::args::{block_bytes, bytes, count, optional, printable};
use super::disk_types::{CurveArgs, none_can};
use super::paint::Paint;
use super::predict::{contradictions, decimals, list};
use super::{head, json, once, source_lines};
use crate::exit::{Exit, Failure};
use crate::output::print;
use flagstone_units::columns::{Left, Right, lines};

struct OfType {
    configuration: DiskConfiguration,
    /// The curve of the IOPS workload and the curve of the throughput workload; one if both are the
    /// same.
    curves: Result<Vec<LimitCurve>, PlanError>,
}

struct CurveSet {
    over: Over,
    loads: Vec<Workload>,
    types: Vec<OfType>,
}

impl CurveSet {
    fn curves(&self) -> impl Iterator<Item = &LimitCurve> {
        self.types.iter().filter_map(|of| of.curves.as_ref().ok()).flatten()
    }

    fn not_known(&self) -> Vec<String> {
        once(self.curves().flat_map(|curve| curve.not_known.clone()))
    }
}

pub(super) fn run(args: &CurveArgs) -> Result<Exit, Failure> {
    let (catalog, found) = found(args)?;
    none_can(&catalog, found.types.iter().map(|of| of.curves.as_ref().err()))?;
    let file = match (&args.output, args.catalog.json) {
        (None, true) => None,
        (output, _) => {
            Some(picture_file(output.as_deref().unwrap_or("curve")).map_err(Failure::usage)?)
        }
    };
    if let Some(file) = &file {
        let figure = picture::figure(&catalog, &found, &args.rw);
        std::fs::write(file, figure.svg(Theme::Auto)).map_err(|error| {
            Failure::failed(format!("cannot write {}: {error}", file.display()))
        })?;
    }
    if args.catalog.json {
        return Ok(json(&catalog, report(&catalog, &found)));
    }
    Ok(print(&text(&catalog, &found, file.as_slice(), Paint::stdout()), Exit::Success))
}

/// Path of the picture; adds `.svg` to a name without it.
pub(super) fn picture_file(output: &str) -> Result<PathBuf, String> {
    let ending = Path::new(output).extension().and_then(|ending| ending.to_str());
    match ending {
        Some("svg") => Ok(PathBuf::from(output)),
        Some("png" | "jpg" | "jpeg" | "pdf" | "gif" | "webp") => {
            Err(format!("--output {}: pictures are SVG: write FILE.svg", printable(output)))
        }
        _ => Ok(PathBuf::from(format!("{output}.svg"))),
    }
}

fn found(args: &CurveArgs) -> Result<(Catalog, CurveSet), Failure> {
    let catalog = args.catalog.open()?;
    let over = match args.over.as_str() {
        "size" => Over::Size,
        "vcpus" => Over::Vcpus,
        "bs" => Over::Block,
        "depth" => Over::Depth,
        other => {
            let other = printable(other);
            let text = format!("--over {other}: write size, vcpus, bs or depth");
            return Err(Failure::usage(text));
        }
    };
    if over == Over::Depth && args.loads.jobs.depth.is_some() {
        let text = "--depth is what --over depth changes: leave it out, or write --to";
        return Err(Failure::usage(text));
    }
    let [small, large] = args.loads.loads(&args.rw)?;
    // Over block sizes, or with one block size, both panels show the same workload.
    let loads = match over == Over::Block || small == large {
        true => vec![small],
        false => vec![small, large],
    };
    let configurations = args.configurations(&catalog, over == Over::Size)?;
    let end = |option: &str, text: &str| place(option, text, over, &catalog.units);
    let range = (optional("--from", &args.from, end)?, optional("--to", &args.to, end)?);
    let wide = Sweep::new(&catalog, over, &configurations, range);
    let wide = wide.map_err(|error| error.to_string())?;
    let mut found = follow(&catalog, &configurations, &loads, &wide);
    if range.1.is_none() && matches!(over, Over::Size | Over::Depth) {
        let last = found.curves().filter_map(|curve| Some(curve.spans.last()?.from.at)).max();
        let to =
            beyond(last.unwrap_or(0), over, &catalog.units).min(*wide.places.last().unwrap_or(&0));
        if wide.places.first().is_some_and(|first| to > *first) {
            found = follow(&catalog, &configurations, &loads, &wide.up_to(to));
        }
    }
    Ok((catalog, found))
}

/// A round position well beyond the last change.
fn beyond(last: u64, over: Over, units: &Units) -> u64 {
    let far = last.saturating_mul(3);
    if over == Over::Size && units.size == SizeUnit::Gb {
        let decade = 10u64.saturating_pow(far.max(1000).ilog10());
        let round = [1, 2, 5, 10].map(|factor| decade.saturating_mul(factor));
        return round.into_iter().find(|round| *round >= far).unwrap_or(u64::MAX);
    }
    let least = if over == Over::Depth { 64 } else { 1024 };
    far.max(least).checked_next_power_of_two().unwrap_or(u64::MAX)
}

fn follow(
    catalog: &Catalog,
    configurations: &[DiskConfiguration],
    loads: &[Workload],
    sweep: &Sweep,
) -> CurveSet {
    let of = |configuration: &DiskConfiguration| {
        let curves = loads.iter().map(|load| catalog.curve(configuration, load, sweep));
        OfType { configuration: configuration.clone(), curves: curves.collect() }
    };
    CurveSet {
        over: sweep.over,
        loads: loads.to_vec(),
        types: configurations.iter().map(of).collect(),
    }
}

fn place(option: &str, text: &str, over: Over, units: &Units) -> Result<u64, String> {
    match over {
        Over::Size => Ok(units.size_of(bytes(option, text)?).round() as u64),
        Over::Block => block_bytes(option, text),
        Over::Vcpus | Over::Depth => count(option, text, 1 << 20).map(u64::from),
    }
}

#[derive(Serialize)]
struct Report<'a> {
    over: Over,
    at_unit: &'static str,
    throughput_unit: &'static str,
    workloads: &'a [Workload],
    types: Vec<TypeReport<'a>>,
}

#[derive(Serialize)]
struct TypeReport<'a> {
    configuration: &'a DiskConfiguration,
    error: Option<String>,
    curves: &'a [LimitCurve],
}

fn report<'a>(catalog: &'a Catalog, found: &'a CurveSet) -> Report<'a> {
    let of = |of: &'a OfType| TypeReport {
        configuration: &of.configuration,
        error: of.curves.as_ref().err().map(PlanError::to_string),
        curves: of.curves.as_deref().unwrap_or(&[]),
    };
    Report {
        over: found.over,
        at_unit: match found.over {
            Over::Size => catalog.units.size.name(),
            Over::Vcpus => "vCPUs",
            Over::Block => "bytes",
            Over::Depth => "I/Os in flight of each job",
        },
        throughput_unit: catalog.units.throughput.name(),
        workloads: &found.loads,
        types: found.types.iter().map(of).collect(),
    }
}

fn at_text(over: Over, units: &Units, at: u64) -> String {
    match over {
        Over::Size => format!("{} {}", grouped(at as f64, 0), units.size.name()),
        Over::Vcpus => format!("{at} vCPUs"),
        Over::Block => size(at),
        Over::Depth => grouped(at as f64, 0),
    }
}

/// A limit, with its dimension unless the kind implies it.
pub(super) fn limit_text(kind: LimitKind, dimension: Dimension, unit: &str) -> String {
    match (kind, dimension) {
        (LimitKind::Volume | LimitKind::Vm | LimitKind::SharedDisks, Dimension::Iops) => {
            format!("{kind}, IOPS")
        }
        (LimitKind::Volume | LimitKind::Vm | LimitKind::SharedDisks, Dimension::Throughput) => {
            format!("{kind}, {unit}")
        }
        _ => kind.to_string(),
    }
}

fn text(catalog: &Catalog, found: &CurveSet, files: &[PathBuf], paint: Paint) -> String {
    let mut out = head(catalog);
    let unit = catalog.units.throughput.name();
    for of in &found.types {
        let Ok(curves) = &of.curves else { continue };
        for curve in curves {
            let block = match found.over {
                Over::Block => String::new(),
                _ => format!(", blocks of {}", size(curve.block_bytes)),
            };
            let _ = writeln!(out, "\n{}", paint.bold(&format!("{}{block}", curve.kind)));
            let columns = [
                ("from", Right),
                ("to", Right),
                ("IOPS", Right),
                (unit, Right),
                ("limited by", Left),
            ];
            let range = |of: &dyn Fn(&CurvePoint) -> String, from: &CurvePoint, to: &CurvePoint| {
                let (from, to) = (of(from), of(to));
                if from == to { from } else { format!("{from} to {to}") }
            };
            let throughput = |point: &CurvePoint| {
                decimals(point.mb_per_s * 1e6 / catalog.units.throughput.bytes())
            };
            let rows: Vec<Vec<String>> = curve
                .spans
                .iter()
                .map(|span| {
                    vec![
                        at_text(found.over, &catalog.units, span.from.at),
                        at_text(found.over, &catalog.units, span.to.at),
                        range(&|point| grouped(point.iops, 0), &span.from, &span.to),
                        range(&throughput, &span.from, &span.to),
                        limit_text(span.from.binding, span.from.dimension, unit),
                    ]
                })
                .collect();
            for line in lines(&columns, &rows) {
                let _ = writeln!(out, "  {line}");
            }
        }
    }
    let none: Vec<String> = found
        .types
        .iter()
        .filter_map(|of| Some(format!("{}: {}", of.configuration.kind, of.curves.as_ref().err()?)))
        .collect();
    list("no curve", &none, paint, &mut out);
    let touched = once(found.curves().flat_map(|curve| curve.inconsistencies.clone()));
    contradictions(&touched, paint, &mut out);
    list("not known", &found.not_known(), paint, &mut out);
    let sources = source_lines(found.curves().flat_map(|curve| &curve.sources));
    list("sources", &sources, paint, &mut out);
    let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    list("written", &files, paint, &mut out);
    out
}

//! `flagstone plan pool`.

use std::fmt::Write as _;

use flagstone_cloud::Catalog;
use flagstone_cloud::catalog::ThroughputUnit;
use flagstone_cloud::pool::{EqualDisk, PoolPrediction, PoolQuestion, PoolRate};
use flagstone_cloud::prediction::{Cost, Dimension};
use flagstone_plot::{Figure, Panel, Theme};
use flagstone_units::{display::size, grouped};

use super::args::{PlanPoolArgs, block_bytes, bytes, count, count_from, optional, printable};
use super::curve::{limit_text, picture_file};
use super::paint::Paint;
use super::predict::{disks_text, list};
use super::{head, json, plan_failure, source_lines};
use crate::exit::{Exit, Failure};
use crate::output::print;
use flagstone_units::columns::{Left, Right, lines};

/// Fullness along the picture's axis, in percent.
const PICTURE_PERCENT: std::ops::RangeInclusive<u32> = 5..=95;

pub(super) fn run(args: &PlanPoolArgs) -> Result<Exit, Failure> {
    let catalog = args.catalog.open()?;
    let configuration = args.disk.configuration(&catalog)?;
    let question = question(args)?;
    let predict = |question: &PoolQuestion| {
        let found = catalog.predict_pool(&configuration, question);
        found.map_err(|error| plan_failure(&error, &catalog))
    };
    let found = predict(&question)?;
    let mut written = Vec::new();
    if let Some(output) = &args.output {
        let file = picture_file(output).map_err(Failure::usage)?;
        let all = PoolQuestion {
            fullness_percent: PICTURE_PERCENT.step_by(5).collect(),
            ..question.clone()
        };
        let svg = figure(&catalog, &predict(&all)?).svg(Theme::Auto);
        std::fs::write(&file, svg).map_err(|error| {
            Failure::failed(format!("cannot write {}: {error}", file.display()))
        })?;
        written.push(file.display().to_string());
    }
    if args.catalog.json {
        return Ok(json(&catalog, std::collections::BTreeMap::from([("pool", &found)])));
    }
    Ok(print(&text(&catalog, &found, &written, Paint::stdout()), Exit::Success))
}

fn question(args: &PlanPoolArgs) -> Result<PoolQuestion, String> {
    let fullness = args.fullness.split(',').map(str::trim).filter(|word| !word.is_empty());
    let percent = |word: &str| count_from("--fullness", word, 1, 97);
    let fullness_percent = fullness.map(percent).collect::<Result<Vec<_>, _>>()?;
    if fullness_percent.is_empty() {
        let text = printable(&args.fullness);
        return Err(format!("--fullness {text}: write percentages with commas, such as 50,75,90"));
    }
    Ok(PoolQuestion {
        block_bytes: block_bytes("--bs", &args.bs)?,
        depth: args.depth.as_ref().map(|text| count("--depth", text, 1 << 20)).transpose()?,
        fullness_percent,
        working_set_bytes: optional("--working-set", &args.working_set, bytes)?,
        cache_bytes: block_bytes("--cache", &args.cache)?,
    })
}

fn usd(cost: Option<&Cost>) -> String {
    cost.map_or_else(|| "not known".to_owned(), |cost| format!("{:.2}", cost.usd_per_month))
}

/// The larger disk, by what is larger.
fn equal_disk(catalog: &Catalog, equal: Option<&EqualDisk>) -> [String; 2] {
    let Some(equal) = equal else { return ["none".to_owned(), "-".to_owned()] };
    let configuration = &equal.configuration;
    let units = &catalog.units;
    let size = grouped(units.size_of(configuration.size_bytes).ceil(), 0);
    let size = format!("{size} {}", units.size.name());
    let disk = match configuration.provisioned_iops {
        Some(iops) => format!("{} IOPS bought", grouped(iops, 0)),
        None => size,
    };
    [disk, usd(equal.cost.as_ref())]
}

fn rate(found: &PoolRate, unit: ThroughputUnit) -> [String; 3] {
    let limit = limit_text(found.binding, found.dimension, unit.name());
    [grouped(found.rates.iops, 0), format!("{:.2}", found.ratio), limit]
}

fn text(catalog: &Catalog, found: &PoolPrediction, written: &[String], paint: Paint) -> String {
    let (mut out, unit, question) = (head(catalog), found.throughput_unit, &found.question);
    let depth = match question.depth {
        Some(depth) => format!("{depth} in flight"),
        None => "any number in flight".to_owned(),
    };
    let set = match question.working_set_bytes {
        Some(set) => format!("over {} GB", grouped(set as f64 / 1e9, 0)),
        None => "over everything in use".to_owned(),
    };
    let block = size(question.block_bytes);
    let cache = question.cache_bytes >> 20;
    let _ = writeln!(
        out,
        "a pool on {}: random I/O of {block}, {depth}, {set}; map cache {cache} MiB\n",
        disks_text(catalog, &found.configuration)
    );
    let columns = [
        ("full", Right),
        ("writes/s", Right),
        ("of raw", Right),
        ("limited by", Left),
        ("amplification", Right),
        ("reads/s", Right),
        ("of raw", Right),
        ("raw disk with as many writes", Left),
        ("USD/month", Right),
    ];
    let raw = &found.raw;
    let binding = limit_text(raw.binding.kind, raw.binding.dimension, unit.name());
    let mut rows = vec![
        ["raw disk", &grouped(raw.writes.iops, 0), "1", &binding, "1"]
            .map(str::to_owned)
            .into_iter()
            .chain([grouped(raw.reads.iops, 0), "1".to_owned(), "this one".to_owned()])
            .chain([usd(raw.cost.as_ref())])
            .collect::<Vec<_>>(),
    ];
    for row in &found.rows {
        let [writes, writes_ratio, limit] = rate(&row.writes, unit);
        let [reads, reads_ratio, _] = rate(&row.reads, unit);
        let [disk, price] = match row.writes.ratio > 1.0 {
            true => equal_disk(catalog, row.equal_disk.as_ref()),
            false => ["this one".to_owned(), usd(raw.cost.as_ref())],
        };
        let full = format!("{} %", row.fullness_percent);
        let amplification = format!("{:.2}", row.write_amplification);
        let cells = [full, writes, writes_ratio, limit, amplification];
        rows.push(cells.into_iter().chain([reads, reads_ratio, disk, price]).collect());
    }
    for (at, line) in lines(&columns, &rows).iter().enumerate() {
        let line = if at == 0 { paint.bold(line) } else { line.clone() };
        let _ = writeln!(out, "  {line}");
    }
    list("note", &found.notes, paint, &mut out);
    list("not known", &found.not_known, paint, &mut out);
    list("sources", &source_lines(&found.sources), paint, &mut out);
    list("written", written, paint, &mut out);
    out
}

/// Writes and reads by fullness, and the raw disk as flat lines.
fn figure(catalog: &Catalog, found: &PoolPrediction) -> Figure {
    let line = |name: &str, of: &dyn Fn(usize) -> f64| {
        let points = found.rows.iter().enumerate();
        let points = points.map(|(at, row)| (f64::from(row.fullness_percent), of(at)));
        (name.to_owned(), points.collect::<Vec<_>>())
    };
    let writes = vec![
        line("pool", &|at| found.rows[at].writes.rates.iops),
        line("raw disk", &|_| found.raw.writes.iops),
    ];
    let reads = vec![
        line("pool", &|at| found.rows[at].reads.rates.iops),
        line("raw disk", &|_| found.raw.reads.iops),
    ];
    let block = size(found.question.block_bytes);
    let bound = match found.raw.binding.dimension {
        Dimension::Iops => "IOPS",
        Dimension::Throughput => "throughput",
    };
    Figure {
        title: format!("A pool on {}", disks_text(catalog, &found.configuration)),
        subtitle: format!("random I/O of {block}; {bound} limit the raw disk"),
        panels: vec![
            Panel::lines("pool full, %", "random writes/s", writes),
            Panel::lines("pool full, %", "random reads/s", reads),
        ],
        footer: format!(
            "flagstone plan pool, catalog {}: a model, not a measurement",
            found.catalog
        ),
    }
}

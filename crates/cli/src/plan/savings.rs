//! `flagstone plan savings`: what existing data would save in a pool.

use std::fmt::Write as _;
use std::io;

use flagstone_cloud::{CapacityPrice, Catalog};
use flagstone_config::device_spec::DeviceSpec;
use flagstone_runtime::{RuntimeConfig, run as run_cores};
use flagstone_savings::{
    Bounds, FileSource, Method, SampleSize, Selection, Source, SurveyReport, survey,
};
use flagstone_stack::{OpenOptions, open_device};
use flagstone_units::display::{count, size};
use flagstone_units::{exact_size, grouped, parse_size};
use serde::Serialize;

use super::args::{PlanSavingsArgs, PriceArgs, printable};
use super::paint::Paint;
use super::predict::list;
use super::{bold_table, json, source_lines};
use crate::exit::{Exit, Failure};
use crate::logging::{self, LogFormat};
use crate::output::{print, progress_bar};
use flagstone_units::columns::{Left, Right, lines};

/// Upper limit of the pooled buffers, in bytes: remote devices receive into them.
const MEMORY_BYTES: usize = 256 << 20;

/// The reason that nothing is said of cold data.
const COLDNESS: &str = "not known: nothing records when data of this device was last accessed";

pub(super) fn run(args: &PlanSavingsArgs) -> Result<Exit, Failure> {
    let catalog = args.catalog.open()?;
    let price = price(&catalog, &args.price)?;
    let size = sample_size(&args.sample)?;
    logging::init(LogFormat::Text)?;
    let config =
        RuntimeConfig { cores: 1, buffer_memory_bytes: MEMORY_BYTES, ..RuntimeConfig::default() };
    let report = run_cores(&config, || measure(args, size)).map_err(Failure::failed)??;
    let rows = rows(&report, price.as_ref());
    if args.catalog.json {
        let body = Body {
            device: args.target.to_string(),
            survey: &report,
            savings: rows.iter().map(Row::money).collect(),
            price,
            cold: None,
            cold_reason: COLDNESS,
        };
        let exit = json(&catalog, std::collections::BTreeMap::from([("savings", body)]));
        return Ok(worst(exit, &report));
    }
    let text = text(args, &report, &rows, price.as_ref(), Paint::stdout());
    Ok(worst(print(&text, Exit::Success), &report))
}

/// A survey without any data has failed, whatever it prints.
fn worst(printed: Exit, report: &SurveyReport) -> Exit {
    match printed {
        Exit::Success if report.read_bytes == 0 => Exit::Failed,
        other => other,
    }
}

/// Price of the capacity of the disks that the options name, if they name some.
pub(crate) fn price(catalog: &Catalog, args: &PriceArgs) -> Result<Option<CapacityPrice>, Failure> {
    let Some(kind) = &args.kind else {
        return match args.regional {
            true => Err(Failure::usage("--regional is for prices: write --type too")),
            false => Ok(None),
        };
    };
    let price = catalog.capacity_price(kind, args.regional);
    price
        .map(Some)
        .map_err(|error| Failure::usage(format!("--type {}: {}", printable(kind), error.0)))
}

/// Note on what a price is of.
pub(crate) fn price_note(price: &CapacityPrice) -> String {
    let regional = if price.regional { "regional " } else { "" };
    format!(
        "prices: capacity of {regional}{} in {}, without provisioned performance",
        price.kind, price.region
    )
}

fn sample_size(text: &str) -> Result<SampleSize, Failure> {
    let wrong = || {
        let text = printable(text);
        Failure::usage(format!(
            "--sample {text}: write all, a share such as 5%, or a size such as 2GiB"
        ))
    };
    if text == "all" {
        return Ok(SampleSize::All);
    }
    if let Some(percent) = text.strip_suffix('%') {
        let percent = percent.trim_end().parse::<f64>().map_err(|_| wrong())?;
        let valid = percent > 0.0 && percent <= 100.0;
        return if valid { Ok(SampleSize::Percent(percent)) } else { Err(wrong()) };
    }
    parse_size(text).ok().filter(|bytes| *bytes > 0).map(SampleSize::Bytes).ok_or_else(wrong)
}

async fn measure(args: &PlanSavingsArgs, size: SampleSize) -> Result<SurveyReport, Failure> {
    let source = open(&args.target).await?;
    if source.size_bytes() == 0 {
        return Err(Failure::failed(format!("{}: it is empty", args.target)));
    }
    let selection = Selection::of(source.size_bytes(), size, args.seed).map_err(Failure::usage)?;
    let bar = progress_bar(Some(selection.runs), "{bar:30} {percent} % {elapsed} (left: {eta})");
    let report = survey(&source, selection, |progress| bar.set_position(progress.runs)).await;
    bar.finish_and_clear();
    report.map_err(Failure::failed)
}

/// Opens the data without a lock: the survey may read a disk that is in use.
async fn open(target: &DeviceSpec) -> Result<Source, Failure> {
    let DeviceSpec::Path(path) = target else {
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        return open_device(target, &options).await.map(Source::Device).map_err(Failure::failed);
    };
    FileSource::open(path).map(Source::File).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => {
                "; a volume is read through its export, such as nbd://localhost/NAME"
            }
            io::ErrorKind::PermissionDenied => "; reading a disk needs its group, or root",
            _ => "",
        };
        Failure::failed(format!("{}: {error}{hint}", path.display()))
    })
}

#[derive(Debug, Serialize)]
struct Body<'a> {
    device: String,
    survey: &'a SurveyReport,
    savings: Vec<Money>,
    price: Option<CapacityPrice>,
    cold: Option<Bounds>,
    cold_reason: &'static str,
}

/// Bytes and money of one measure.
#[derive(Debug, Serialize)]
struct Money {
    measure: &'static str,
    saved_bytes: Bounds,
    usd_per_month: Option<Bounds>,
}

struct Row {
    measure: &'static str,
    title: &'static str,
    share: Bounds,
    size_bytes: u64,
    usd_per_byte: Option<f64>,
}

impl Row {
    fn money(&self) -> Money {
        let size = self.size_bytes as f64;
        Money {
            measure: self.measure,
            saved_bytes: scaled(self.share, size),
            usd_per_month: self.usd_per_byte.map(|usd| scaled(self.share, size * usd)),
        }
    }
}

fn scaled(share: Bounds, by: f64) -> Bounds {
    Bounds {
        estimate: share.estimate.map(|share| share * by),
        low: share.low * by,
        high: share.high * by,
    }
}

fn rows(report: &SurveyReport, price: Option<&CapacityPrice>) -> Vec<Row> {
    let of = |share: flagstone_savings::SavedShare| Bounds {
        estimate: Some(share.estimate),
        low: share.low,
        high: share.high,
    };
    [
        ("zeroes", "zeroes", of(report.zeroes)),
        ("lz4", "zeroes, lz4", of(report.lz4)),
        ("zstd", "zeroes, zstd", of(report.zstd)),
        ("dedup", "zeroes, deduplication", report.dedup),
        ("dedup-zstd", "zeroes, deduplication, zstd", report.dedup_and_zstd),
    ]
    .map(|(measure, title, share)| Row {
        measure,
        title,
        share,
        size_bytes: report.size_bytes,
        usd_per_byte: price.map(|price| price.usd_per_byte),
    })
    .into()
}

fn text(
    args: &PlanSavingsArgs,
    report: &SurveyReport,
    rows: &[Row],
    price: Option<&CapacityPrice>,
    paint: Paint,
) -> String {
    let mut out = String::new();
    let method = &report.method;
    let read = match method.everything {
        true => "read whole".to_owned(),
        false => format!(
            "a sample of {} in {} of {} runs, seed {}",
            size(report.read_bytes),
            count(method.runs),
            count(method.runs_total),
            method.seed
        ),
    };
    let _ = writeln!(out, "{}: {}, {read}\n", args.target, size(report.size_bytes));
    let mut head =
        vec![("saved by", Left), ("share", Right), ("95 % interval", Right), ("bytes", Right)];
    if price.is_some() {
        head.push(("USD/month", Right));
        head.push(("interval", Right));
    }
    let is_whole = method.everything && report.unreadable_bytes == 0;
    let cells = rows.iter().map(|row| cells(row, price.is_some(), is_whole)).collect::<Vec<_>>();
    bold_table(lines(&head, &cells), paint, &mut out);
    list("method", &notes(method, price), paint, &mut out);
    list(
        "not known",
        &[format!("cold data: {}", &COLDNESS["not known: ".len()..])],
        paint,
        &mut out,
    );
    let failed = report.unreadable.iter().map(|range| {
        format!("{} at {}: {}", exact_size(range.bytes), range.offset_bytes, range.error)
    });
    let mut failed: Vec<String> = failed.collect();
    if report.unreadable_bytes > 0 {
        failed.push(format!("{} in all, left out", exact_size(report.unreadable_bytes)));
    }
    list("unreadable", &failed, paint, &mut out);
    if let Some(price) = price {
        list("sources", &source_lines(&price.sources), paint, &mut out);
    }
    out
}

/// `is_whole`: all of the data was read. Bounds of a sample may only look equal.
fn cells(row: &Row, priced: bool, is_whole: bool) -> Vec<String> {
    let percent = |share: f64| format!("{:.1}", share * 100.0);
    let (share, money) = (row.share, row.money());
    let is_exact = is_whole && share.low == share.high;
    let range = |low: String, high: String| match is_exact {
        true => "exact".to_owned(),
        false => format!("{low} to {high}"),
    };
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "not known".to_owned());
    let bytes = match money.saved_bytes.estimate {
        Some(bytes) => size(bytes as u64),
        None => format!("at least {}", size(money.saved_bytes.low as u64)),
    };
    let mut cells = vec![
        row.title.to_owned(),
        or_unknown(share.estimate.map(|share| percent(share) + " %")),
        range(percent(share.low), percent(share.high)),
        bytes,
    ];
    if let (true, Some(usd)) = (priced, money.usd_per_month) {
        let dollars = |usd: f64| grouped(usd, 2);
        cells.push(or_unknown(usd.estimate.map(dollars)));
        cells.push(range(dollars(usd.low), dollars(usd.high)));
    }
    cells
}

fn notes(method: &Method, price: Option<&CapacityPrice>) -> Vec<String> {
    let mut notes = vec![format!(
        "lz4 and zstd (level 3) in units of {}, kept at 7/8 or less, stored in blocks of {}",
        size(method.compression_unit_bytes),
        size(method.dedup_block_bytes)
    )];
    if !method.everything {
        notes.push(format!(
            "runs of {}, one at random from each equal part; intervals from the spread of the runs",
            size(method.run_bytes)
        ));
        notes.push("a sample only bounds duplicates: --sample all counts them".to_owned());
    }
    notes.push("deduplication, zstd: if duplicates compress like the rest".to_owned());
    notes.extend(price.map(price_note));
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: a sample whose bounds round to the same number was called exact.
    #[test]
    fn only_whole_surveys_are_exact() {
        let row = |low, high| Row {
            measure: "lz4",
            title: "lz4",
            share: Bounds { estimate: Some(low), low, high },
            size_bytes: 1 << 30,
            usd_per_byte: Some(1e-9),
        };
        let intervals = |row: &Row, is_whole| {
            let cells = cells(row, true, is_whole);
            [cells[2].clone(), cells[5].clone()]
        };
        assert_eq!(intervals(&row(0.25, 0.25), true), ["exact", "exact"]);
        assert_eq!(intervals(&row(0.25, 0.25), false)[0], "25.0 to 25.0");
        assert_eq!(intervals(&row(0.25, 0.250_001), true)[0], "25.0 to 25.0");
    }

    #[test]
    fn sample_sizes_are_shares_or_bytes() {
        assert_eq!(sample_size("all").ok(), Some(SampleSize::All));
        assert_eq!(sample_size("2.5%").ok(), Some(SampleSize::Percent(2.5)));
        assert_eq!(sample_size("1GiB").ok(), Some(SampleSize::Bytes(1 << 30)));
        for wrong in ["", "0", "0%", "101%", "-1%", "NaN%", "many"] {
            assert!(sample_size(wrong).is_err(), "{wrong}");
        }
    }
}

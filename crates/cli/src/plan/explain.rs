//! `flagstone plan explain`: a fio result compared with the model.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;

use flagstone_bench::fio::output;
use flagstone_bench::fio::phases::{FioPhase, PhaseRate, phases};
use flagstone_bench::limits::FIO_OUTPUT_BYTES;
use flagstone_bench::os::read_text;
use flagstone_cloud::catalog::{Catalog, Inconsistency};
use flagstone_cloud::judge::{
    Bottleneck, JudgmentVerdict, LimitUtilization, MeasuredRates, MeasuredSpread, count_text,
    judge_together,
};
use flagstone_cloud::prediction::SourceUse;
use flagstone_cloud::{AccessOrder, Confidence, Judgment, MeasuredRun, Rates};
use flagstone_units::{
    display::{latency, size},
    grouped,
};
use serde::Serialize;

use super::args::{ExplainArgs, printable};
use super::paint::Paint;
use super::predict::{RATES, contradictions, disks_text, list, rates_row, rests_on};
use super::{head, json, once, plan_failure};
use crate::exit::{Exit, Failure};
use crate::output::print;
use flagstone_units::columns::{self, Left, Right};

const STDIN: &str = "-";

pub(super) fn run(args: &ExplainArgs) -> Result<Exit, Failure> {
    let catalog = args.catalog.open()?;
    let configuration = args.disk.configuration(&catalog)?;
    let tolerance = args.tolerance()?;
    let mut version = String::new();
    let mut judged = Vec::new();
    for result in &args.results {
        let phases;
        (version, phases) = read(result)
            .map_err(|error| Failure::usage(format!("{}: {error}", printable(result))))?;
        let before = judged.len();
        for phase in phases {
            let judgment = (!phase.is_idle())
                .then(|| catalog.judge(&configuration, &measured(&phase), tolerance))
                .transpose()
                .map_err(|error| plan_failure(&error, &catalog))?;
            judged.push(Judged { phase, judgment });
        }
        has_io(result, &judged[before..])?;
    }
    let all = judged.iter_mut().filter_map(|judged| judged.judgment.as_mut());
    judge_together(all);
    if args.catalog.json {
        let judgments = judged.iter().map(Entry::from).collect();
        return Ok(json(&catalog, Report { fio_version: &version, judgments }));
    }
    Ok(print(&text(&catalog, &version, &judged, Paint::stdout()), Exit::Success))
}

fn has_io(file: &str, judged: &[Judged]) -> Result<(), Failure> {
    if judged.iter().any(|judged| judged.judgment.is_some()) {
        return Ok(());
    }
    let said = judged.iter().flat_map(|judged| failures(&judged.phase)).next();
    let said = said.map(|text| format!("; {text}")).unwrap_or_default();
    let text = format!("{}: no reads and no writes in the result{said}", printable(file));
    Err(Failure::usage(text))
}

struct Judged {
    phase: FioPhase,
    judgment: Option<Judgment>,
}

fn read(file: &str) -> Result<(String, Vec<FioPhase>), String> {
    let text = match file {
        STDIN => {
            let mut text = String::new();
            let most = FIO_OUTPUT_BYTES + 1;
            std::io::stdin()
                .lock()
                .take(most)
                .read_to_string(&mut text)
                .map_err(|error| error.to_string())?;
            if text.len() as u64 == most {
                return Err(format!("it is larger than {FIO_OUTPUT_BYTES} bytes"));
            }
            text
        }
        _ => read_text(Path::new(file), FIO_OUTPUT_BYTES).map_err(|error| error.to_string())?,
    };
    let output = output::parse(&text).map_err(|error| {
        format!("{error}: give the output of fio 3 with --output-format=json or json+")
    })?;
    let version = printable(&output.version);
    Ok((version, phases(&output)?))
}

fn measured(phase: &FioPhase) -> MeasuredRun {
    let part = |rate: &PhaseRate| MeasuredRates {
        iops: rate.iops,
        bytes_per_s: rate.bytes_per_s,
        latency_us: rate.latency_us,
    };
    MeasuredRun {
        read: part(&phase.read),
        write: part(&phase.write),
        access: match phase.random {
            Some(false) => AccessOrder::Sequential,
            _ => AccessOrder::Random,
        },
        jobs: phase.jobs,
        in_flight: phase.in_flight,
        seconds: phase.seconds,
        cached: phase.cached.unwrap_or(false),
        one_at_a_time: phase.one_at_a_time.clone(),
        throttled_by: phase.paced_by.map(str::to_owned),
        flushed: phase.flushed,
        same_offsets: phase.same_places,
        reach_bytes: phase.reach_bytes,
        cpus: phase.cpus,
        busiest_percent: phase.busiest_percent,
        spread: MeasuredSpread {
            percentiles: phase.percentiles.clone(),
            iops_deviation: phase.iops_deviation,
        },
    }
}

#[derive(Serialize)]
struct Report<'a> {
    fio_version: &'a str,
    judgments: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    jobs: &'a [String],
    threads: u32,
    pattern: Option<&'a str>,
    seconds: f64,
    in_flight_requested: Option<u64>,
    errors: Vec<JobError<'a>>,
    judgment: Option<&'a Judgment>,
}

#[derive(Serialize)]
struct JobError<'a> {
    job: &'a str,
    error: i64,
}

impl<'a> From<&'a Judged> for Entry<'a> {
    fn from(judged: &'a Judged) -> Entry<'a> {
        let phase = &judged.phase;
        let error = |(job, error): &'a (String, i64)| JobError { job, error: *error };
        Entry {
            jobs: &phase.names,
            threads: phase.jobs,
            pattern: phase.pattern.as_deref(),
            seconds: phase.seconds,
            in_flight_requested: phase.in_flight,
            errors: phase.errors.iter().map(error).collect(),
            judgment: judged.judgment.as_ref(),
        }
    }
}

fn text(catalog: &Catalog, version: &str, all: &[Judged], paint: Paint) -> String {
    let mut out = head(catalog);
    let found: Vec<_> = all.iter().filter_map(|judged| judged.judgment.as_ref()).collect();
    let disks = found.first().map(|first| disks_text(catalog, &first.configuration));
    let _ = writeln!(out, "{}; measured with {version}", disks.unwrap_or_default());
    for judged in all {
        let _ = writeln!(out, "\n{}", paint.bold(&title(&judged.phase)));
        match &judged.judgment {
            Some(judgment) => one(judgment, paint, &mut out),
            None => out.push_str("  no reads and no writes\n"),
        }
        for line in failures(&judged.phase) {
            let _ = writeln!(out, "  {}", paint.red(&line));
        }
        if judged.phase.seconds_least < 0.9 * judged.phase.seconds {
            let _ = writeln!(
                out,
                "  jobs ran for {:.0} to {:.0} s: rates cover the time when all ran",
                judged.phase.seconds_least, judged.phase.seconds
            );
        }
    }
    let confidence = found.iter().map(|judgment| judgment.confidence).max();
    let sources: Vec<SourceUse> = once(found.iter().flat_map(|one| one.sources.clone()));
    rests_on(confidence.unwrap_or(Confidence::C), &sources, paint, &mut out);
    let touched: Vec<Inconsistency> =
        once(found.iter().flat_map(|one| one.inconsistencies.clone()));
    contradictions(&touched, paint, &mut out);
    list("not known", &once(found.iter().flat_map(|one| one.not_known.clone())), paint, &mut out);
    list("note", &once(found.iter().flat_map(|one| one.notes.clone())), paint, &mut out);
    out
}

const NAMES_SHOWN: usize = 4;

fn title(phase: &FioPhase) -> String {
    let mut names = phase.names.iter().take(NAMES_SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if phase.names.len() > NAMES_SHOWN {
        let _ = write!(names, " and {} more", phase.names.len() - NAMES_SHOWN);
    }
    let mut words = Vec::new();
    words.extend(phase.pattern.clone());
    let block = |rate: &PhaseRate| (rate.ios > 0).then(|| rate.bytes_per_s / rate.iops);
    let size = |bytes: f64| size(bytes.round() as u64);
    words.extend(match (block(&phase.read), block(&phase.write)) {
        (Some(read), Some(write)) if (read - write).abs() >= 1.0 => {
            Some(format!("blocks of {} read and {} written", size(read), size(write)))
        }
        (read, write) => read.or(write).map(|bytes| format!("{} blocks", size(bytes))),
    });
    words.extend(phase.in_flight.map(|asked| format!("{asked} requested in flight")));
    words.extend((phase.jobs > 1).then(|| format!("{} jobs", phase.jobs)));
    words.push(format!("{} s", count_text(phase.seconds)));
    format!("{names}: {}", words.join(", "))
}

fn failures(phase: &FioPhase) -> Vec<String> {
    let line = |(job, error): &(String, i64)| format!("job {job} ended with error {error}");
    phase.errors.iter().take(NAMES_SHOWN).map(line).collect()
}

fn verdict(found: &Judgment, paint: Paint) -> String {
    let held = match found.bottleneck {
        Bottleneck::Limit => format!("bottleneck: limit of the {}", found.limits[0].limit.kind),
        Bottleneck::NotKnown => "bottleneck not known".to_owned(),
        other => format!("bottleneck: {other}"),
    };
    let text = found.verdict.to_string();
    let predicted = match found.verdict {
        JudgmentVerdict::Above => &found.predicted_high,
        _ => &found.predicted_low,
    };
    let against = format!(
        "{:.2} times the prediction: {} IOPS instead of {}",
        found.ratio,
        grouped(found.measured.total.iops, 0),
        grouped(predicted.iops, 0)
    );
    match found.verdict {
        JudgmentVerdict::AsPredicted => format!("{}, {held}", paint.bold(&text)),
        // Above a limit, that limit was not the bottleneck.
        JudgmentVerdict::Above if found.bottleneck == Bottleneck::Limit => {
            format!("{}, {against}", paint.yellow(&text))
        }
        JudgmentVerdict::Above => format!("{}, {against}; {held}", paint.yellow(&text)),
        JudgmentVerdict::Below => format!("{}, {against}; {held}", paint.red(&text)),
    }
}

fn one(found: &Judgment, paint: Paint, out: &mut String) {
    let _ = writeln!(out, "  {}\n", verdict(found, paint));
    rates(found, out);
    causes("causes", &found.causes, paint, out);
    causes("hypotheses", &found.hypotheses, paint, out);
    causes("recommendations", &found.recommendations, paint, out);
    let _ = writeln!(out, "\n  {}", paint.dim("utilization of each limit"));
    let row = |LimitUtilization { utilization, limit }: &LimitUtilization| {
        let percent = format!("{:.0} %", utilization * 100.0);
        let iops = format!("{} IOPS", grouped(limit.workload_iops, 0));
        vec![percent, limit.kind.to_string(), iops, limit.explanation.clone()]
    };
    let rows: Vec<_> = found.limits.iter().map(row).collect();
    for line in columns::rows(&[Right, Left, Right, Left], &rows) {
        let _ = writeln!(out, "    {line}");
    }
}

fn rates(found: &Judgment, out: &mut String) {
    let unit = found.throughput_unit;
    let row = |label: &str, rates: &Rates, rest: String| rates_row(label, rates, unit, rest);
    let latency = found.measured.latency_us.map(|us| format!("{} on average", latency(us)));
    let in_flight =
        found.measured.in_flight.map(|number| format!("{} in flight", count_text(number)));
    let rest: Vec<String> = latency.into_iter().chain(in_flight).collect();
    let mut rows = vec![row("measured", &found.measured.total, rest.join(", "))];
    if (1..100).contains(&found.workload.read_percent) {
        rows.push(row("  reads", &found.measured.read, String::new()));
        rows.push(row("  writes", &found.measured.write, String::new()));
    }
    let (low, high) = (&found.predicted_low, &found.predicted_high);
    if high.iops > low.iops * 1.0001 {
        rows.push(row("predicted", low, "at least".to_owned()));
        rows.push(row("", high, "at best".to_owned()));
    } else {
        rows.push(row("predicted", low, String::new()));
    }
    let utilization = format!("{:.0} % utilization", found.utilization * 100.0);
    rows.push(row("allowed", &found.allowed, utilization));
    for line in columns::rows(&RATES, &rows) {
        let _ = writeln!(out, "  {line}");
    }
}

fn causes<T: std::fmt::Display>(heading: &str, all: &[T], paint: Paint, out: &mut String) {
    if all.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n  {}", paint.dim(heading));
    for one in all {
        let _ = writeln!(out, "    {one}");
    }
}

//! `flagstone plan predict`.

use std::fmt::Write as _;

use flagstone_cloud::catalogue::Catalogue;
use flagstone_cloud::prediction::{SourceUse, Touched};
use flagstone_cloud::{
    Confidence, Configuration, Limit, PlanError, Prediction, Rates, block_text, grouped,
};
use serde::Serialize;

use super::args::PredictArgs;
use super::paint::Paint;
use super::{CatalogueHead, SCHEMA_VERSION, head, json, usage};
use crate::exit::Exit;
use crate::output::{complain, print};

/// Runs the command.
pub(super) fn run(args: &PredictArgs) -> Exit {
    let catalogue = match args.catalogue.open() {
        Ok(catalogue) => catalogue,
        Err(error) => return usage(&error),
    };
    let asked = args
        .workload
        .workload()
        .and_then(|workload| Ok((args.disk.configuration(&catalogue)?, workload)));
    let (configuration, workload) = match asked {
        Ok(asked) => asked,
        Err(error) => return usage(&error),
    };
    match catalogue.predict(&configuration, &workload) {
        Ok(prediction) if args.json => json(&Report {
            schema_version: SCHEMA_VERSION,
            catalogue: (&catalogue).into(),
            prediction: &prediction,
        }),
        Ok(prediction) => {
            let pattern = args.workload.pattern_text(&workload);
            print(&text(&catalogue, &prediction, &pattern, Paint::stdout()), Exit::Success)
        }
        Err(error @ PlanError::Input { .. }) => usage(&error.to_string()),
        Err(error @ PlanError::NotKnown(_)) => {
            complain(&format!("flagstone: {error} (catalogue {})\n", catalogue.name));
            Exit::Failed
        }
    }
}

/// The report of `--json`, documented in `docs/plan-json.md`.
#[derive(Serialize)]
struct Report<'a> {
    schema_version: u32,
    catalogue: CatalogueHead<'a>,
    prediction: &'a Prediction,
}

fn text(catalogue: &Catalogue, found: &Prediction, pattern: &str, paint: Paint) -> String {
    let mut out = head(catalogue);
    let _ = writeln!(out, "{}\n", asked(catalogue, found, pattern));
    rates(found, paint, &mut out);
    limits(found, paint, &mut out);
    if let Some(cost) = &found.cost {
        let _ = writeln!(
            out,
            "\n{}  {:.2} USD a month for the disks, in {} (confidence {})",
            paint.bold("price"),
            cost.usd_per_month,
            cost.region,
            cost.confidence
        );
    }
    rests_on(found.confidence, &found.sources, paint, &mut out);
    contradictions(&found.inconsistencies, paint, &mut out);
    list("not known", &found.not_known, paint, &mut out);
    list("note", &found.notes, paint, &mut out);
    out
}

fn asked(catalogue: &Catalogue, found: &Prediction, pattern: &str) -> String {
    let depth = match found.workload.in_flight() {
        Some(in_flight) => format!("{in_flight} in flight"),
        None => "as many in flight as it takes".to_owned(),
    };
    let disks = disks_text(catalogue, &found.configuration);
    format!("{disks}: {pattern}, {} blocks, {depth}", block_text(found.workload.block_bytes))
}

/// The disks and the machine, in words.
pub(super) fn disks_text(catalogue: &Catalogue, configuration: &Configuration) -> String {
    let units = &catalogue.units;
    let each = catalogue.types.get(&configuration.kind).and_then(|disk| disk.size_gb_each);
    let size = each.unwrap_or(units.size_of(configuration.size_bytes));
    let size = format!("{} {}", (size * 100.0).round() / 100.0, units.size.name());
    let disks = match configuration.disks {
        1 => String::new(),
        n => format!("{n} x "),
    };
    let regional = if configuration.regional { "regional " } else { "" };
    let machine = &configuration.machine;
    let vcpus = machine.vcpus.map(|n| format!(" ({n} vCPUs)")).unwrap_or_default();
    let network = match configuration.network_gbit_per_s {
        0.0 => String::new(),
        gbit => format!(", {gbit} Gbit/s of other traffic"),
    };
    format!("{disks}{size} of {regional}{} on {}{vcpus}{network}", configuration.kind, machine.name,)
}

fn rates(found: &Prediction, paint: Paint, out: &mut String) {
    let unit = found.throughput_unit;
    let line = |label: &str, rates: &Rates, rest: &str| {
        let iops = grouped(rates.iops);
        format!("  {label:<11}{iops:>12} IOPS {:>12} {unit}{rest}", decimals(rates.throughput))
    };
    let _ = writeln!(out, "{}", paint.bold(&line("sustained", &found.total, "")));
    if (1..100).contains(&found.workload.read_percent) {
        let _ = writeln!(out, "{}", line("  reads", &found.read, ""));
        let _ = writeln!(out, "{}", line("  writes", &found.write, ""));
    }
    if let Some(best) = &found.at_best {
        let _ = writeln!(out, "{}", line("at best", best, ""));
    }
    let depth =
        found.depth_needed.map(|depth| format!(", with {} in flight", grouped(depth as f64)));
    let rest = format!("  what the cloud allows{}", depth.unwrap_or_default());
    let _ = writeln!(out, "{}", line("allowed", &found.allowed, &rest));
    let latency = match found.latency_us {
        Some(us) => format!("{:.2} ms on average (Little's law)", us / 1000.0),
        None if found.workload.depth.is_none() => "depends on --depth".to_owned(),
        None => "not known".to_owned(),
    };
    let _ = writeln!(out, "  {:<11}{latency}", "latency");
}

fn limits(found: &Prediction, paint: Paint, out: &mut String) {
    let _ = writeln!(out, "\n{}", paint.bold("limits"));
    for limit in &found.limits {
        let binds = same(limit, &found.binding);
        let next = found.next.as_ref().is_some_and(|next| same(limit, next));
        let (mark, name) = match (binds, next) {
            (true, _) => ("binds", paint.red(&format!("{:<29}", limit.kind.to_string()))),
            (false, true) => ("next", paint.yellow(&format!("{:<29}", limit.kind.to_string()))),
            (false, false) => {
                // What is lifted beside those two is equal to one of them.
                let mark = if limit.lifts.is_empty() { "" } else { "equal" };
                (mark, format!("{:<29}", limit.kind.to_string()))
            }
        };
        let iops = grouped(limit.workload_iops);
        let _ = writeln!(out, "  {mark:<6}{name}{iops:>12} IOPS  {}", limit.because);
        for (index, lift) in limit.lifts.iter().enumerate() {
            let word = if index == 0 { "lifted by" } else { "or" };
            let _ = writeln!(out, "  {}", paint.dim(&format!("{:>44}  {lift}", word)));
        }
    }
}

fn same(a: &Limit, b: &Limit) -> bool {
    a.kind == b.kind && a.dimension == b.dimension
}

/// With a decimal where the number is small enough for one to matter.
pub(super) fn decimals(number: f64) -> String {
    match number {
        n if n < 10.0 => format!("{n:.2}"),
        n if n < 1000.0 => format!("{n:.1}"),
        n => grouped(n),
    }
}

/// The sources of a result.
pub(super) fn rests_on(
    confidence: Confidence,
    sources: &[SourceUse],
    paint: Paint,
    out: &mut String,
) {
    let _ = writeln!(out, "\n{} (confidence {confidence})", paint.bold("rests on"));
    for source in sources {
        let _ = writeln!(
            out,
            "  {} ({}, confidence {}): {}",
            source.key, source.date, source.confidence, source.address
        );
    }
}

/// Where the sources contradict themselves.
pub(super) fn contradictions(touched: &[Touched], paint: Paint, out: &mut String) {
    if touched.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", paint.bold("the sources contradict themselves here"));
    for entry in touched {
        let _ = writeln!(out, "  {} {}", paint.yellow(&entry.id), entry.place);
        let _ = writeln!(out, "      {}", entry.why);
        if let Some(used) = &entry.used {
            let _ = writeln!(out, "      taken here: {used}");
        }
    }
}

/// A list under a heading, if there is anything in it.
pub(super) fn list(heading: &str, lines: &[String], paint: Paint, out: &mut String) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", paint.bold(heading));
    for line in lines {
        let _ = writeln!(out, "  {line}");
    }
}

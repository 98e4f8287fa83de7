//! `flagstone plan cheapest`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use flagstone_cloud::catalog::Catalog;
use flagstone_cloud::cheapest::{
    Cheaper, CheapestPlan, CheapestReport, Headroom, Need, Prices, Requirement, Scope, Shortfall,
};
use flagstone_units::{display::size, grouped};

use super::args::{CheapestArgs, block_bytes, bytes, bytes_per_s, count, decimal, optional};
use super::paint::Paint;
use super::predict::list;
use super::{bold_table, head, json, source_lines};
use crate::exit::{Exit, Failure};
use crate::output::print;
use flagstone_units::columns::{Left, Right, folded, lines};

pub(super) fn run(args: &CheapestArgs) -> Result<Exit, Failure> {
    let (catalog, answer) = answer(args)?;
    let exit = if answer.found.is_empty() { Exit::Failed } else { Exit::Success };
    if args.catalog.json {
        let printed = json(&catalog, BTreeMap::from([("answer", &answer)]));
        return Ok(if printed == Exit::Success { exit } else { printed });
    }
    Ok(print(&text(&catalog, &answer, Paint::stdout()), exit))
}

fn answer(args: &CheapestArgs) -> Result<(Catalog, CheapestReport), Failure> {
    let mut catalog = args.catalog.open()?;
    let mut prices = Prices::default();
    if let Some(file) = &args.price_file {
        prices = Prices::read(Path::new(file)).map_err(|error| error.to_string())?;
        catalog = prices.apply(file, &catalog).map_err(|error| error.to_string())?;
    }
    let most = count("--top", &args.top, 1000)?;
    let (need, scope) = (need(args)?, scope(args)?);
    let answer = catalog.cheapest(&need, &scope, &prices, (most as usize, !args.variants));
    Ok((catalog.clone(), answer.map_err(|error| error.to_string())?))
}

fn need(args: &CheapestArgs) -> Result<Need, String> {
    Ok(Need {
        read_iops: optional("--read-iops", &args.read_iops, decimal)?.unwrap_or(0.0),
        write_iops: optional("--write-iops", &args.write_iops, decimal)?.unwrap_or(0.0),
        bytes_per_s: optional("--throughput", &args.throughput, bytes_per_s)?.unwrap_or(0.0),
        capacity_bytes: optional("--capacity", &args.capacity, bytes)?.unwrap_or(0),
        block_bytes: block_bytes("--bs", &args.bs)?,
        at_once: !args.not_at_once,
    })
}

fn scope(args: &CheapestArgs) -> Result<Scope, String> {
    let words = |text: &Option<String>| -> Vec<String> {
        let words = text.iter().flat_map(|text| text.split(','));
        words.map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
    };
    let local_ssd = match args.local_ssd.as_str() {
        "ok" => true,
        "no" => false,
        other => return Err(format!("--local-ssd {other}: write ok or no")),
    };
    Ok(Scope {
        machines: words(&args.machines),
        types: words(&args.kinds),
        regional: args.regional,
        local_ssd,
        tier1_networking: args.tier1_networking,
        other_egress_gbit_per_s: decimal("--other-egress-gbps", &args.other_egress_gbps)?,
        disks_max: count("--disks-max", &args.disks_max, 128)?,
    })
}

fn text(catalog: &Catalog, answer: &CheapestReport, paint: Paint) -> String {
    let mut out = head(catalog);
    let _ = writeln!(out, "{}\n", asked(&answer.need, &answer.scope));
    if answer.found.is_empty() {
        let _ = writeln!(out, "{}", paint.red("nothing in the catalog is sufficient"));
        out +=
            &answer.shortfall.as_ref().map(|short| why_nothing(answer, short)).unwrap_or_default();
    } else {
        found(answer, paint, &mut out);
        others(answer, paint, &mut out);
    }
    if !answer.cheaper.is_empty() {
        let _ = writeln!(out, "\n{}", paint.bold("cheaper, but insufficient"));
        for cheaper in &answer.cheaper {
            sentence(&lacks(answer, cheaper), &mut out);
        }
    }
    if !answer.machines_priced {
        let _ = writeln!(
            out,
            "\nPrices exclude machines, which the catalog does not price: give --price-file."
        );
    }
    list("not known", &answer.not_known, paint, &mut out);
    list("sources", &source_lines(&answer.sources), paint, &mut out);
    out
}

fn asked(need: &Need, scope: &Scope) -> String {
    let mut parts = Vec::new();
    let block = size(need.block_bytes);
    let iops = [(need.read_iops, "read"), (need.write_iops, "write")];
    let iops: Vec<String> = iops
        .iter()
        .filter(|(iops, _)| *iops > 0.0)
        .map(|(iops, what)| format!("{} {what}", grouped(*iops, 0)))
        .collect();
    if !iops.is_empty() {
        let once = match (iops.len(), need.at_once) {
            (1, _) => "",
            (_, true) => " at once",
            (_, false) => ", each alone",
        };
        parts.push(format!("{} IOPS of {block}{once}", iops.join(" and ")));
    }
    if need.bytes_per_s > 0.0 {
        parts.push(format!("{} MB/s of large I/O", grouped(need.bytes_per_s / 1e6, 0)));
    }
    if need.capacity_bytes > 0 {
        parts.push(format!("{} GB", grouped(need.capacity_bytes as f64 / 1e9, 0)));
    }
    let zones = if scope.regional { ", in two zones" } else { "" };
    format!("needed: {}{zones}", parts.join("; "))
}

/// Widths of the columns that wrap, so that a row fits 100 characters.
const DISKS_WIDTH: usize = 20;
const MACHINE_WIDTH: usize = 16;
const DECIDED_WIDTH: usize = 10;

/// Width of a sentence, without its indentation.
const SENTENCE_WIDTH: usize = 94;

/// A sentence in indented lines.
fn sentence(text: &str, out: &mut String) {
    for (number, line) in folded(text, SENTENCE_WIDTH).lines().enumerate() {
        let indent = if number == 0 { "  " } else { "      " };
        let _ = writeln!(out, "{indent}{line}");
    }
}

fn found(answer: &CheapestReport, paint: Paint, out: &mut String) {
    let mut columns = vec![("USD/month", Right), ("disks", Left)];
    let priced = answer.machines_priced;
    columns.push(if priced { ("machine", Left) } else { ("smallest machine", Left) });
    if answer.found.iter().any(|found| found.usd_per_iops.is_some()) {
        columns.push(("USD/IOPS", Right));
    }
    columns.extend([("to spare", Left), ("decided by", Left), ("sure", Left)]);
    let rows: Vec<Vec<String>> = answer
        .found
        .iter()
        .map(|found| {
            let mut row = vec![
                format!("{:.2}", found.usd_per_month),
                folded(&disks(answer, found), DISKS_WIDTH),
                folded(&machine(found), MACHINE_WIDTH),
            ];
            row.extend(found.usd_per_iops.map(|usd| format!("{usd:.4}")));
            // A reserve is one line, so that its percentage stands beside it.
            row.push(found.headroom.iter().map(spare).collect::<Vec<_>>().join(",\n"));
            let decided: Vec<_> = found.decided_by.iter().map(Requirement::to_string).collect();
            row.push(folded(&decided.join(", "), DECIDED_WIDTH));
            row.push(found.confidence.to_string());
            row
        })
        .collect();
    bold_table(lines(&columns, &rows), paint, out);
}

/// The requirement that nothing meets, and the nearest configuration.
fn why_nothing(answer: &CheapestReport, shortfall: &Shortfall) -> String {
    let unmet: Vec<_> = shortfall.unmet.iter().map(Requirement::to_string).collect();
    let mut out = match unmet.is_empty() {
        true => "  each part of the need can be met alone, but not all together\n".to_owned(),
        false => format!("  no configuration has the {}\n", unmet.join(", and none the ")),
    };
    if let Some(nearest) = &shortfall.nearest {
        let text = format!(
            "nearest: {} % of the IOPS and throughput, with the capacity, by {} on {}, for {:.2} USD a month",
            shortfall.percent,
            disks(answer, nearest),
            machine(nearest),
            nearest.usd_per_month
        );
        sentence(&text, &mut out);
    }
    out
}

/// The configurations that a row represents.
fn others(answer: &CheapestReport, paint: Paint, out: &mut String) {
    let hidden = answer.found.iter().filter_map(|found| Some((found, found.others?)));
    for (found, others) in hidden {
        let numbers = match others.count {
            1 => format!("{} disks, for", others.disks_min),
            count => format!(
                "{count} other numbers of disks, {} to {}, for up to",
                others.disks_min, others.disks_max
            ),
        };
        let line = format!(
            "also {} on {}: {numbers} {:.2} USD a month (--variants shows all)",
            found.kind, found.machine.family, others.usd_per_month_max
        );
        let mut lines = String::new();
        sentence(&line, &mut lines);
        for line in lines.lines() {
            let _ = writeln!(out, "{}", paint.dim(line));
        }
    }
}

fn disks(answer: &CheapestReport, found: &CheapestPlan) -> String {
    let zones = if found.regional { "regional " } else { "" };
    let size = format!("{} {}", grouped(found.size, 0), answer.size_unit);
    let mut text = format!("{} x {size} {zones}{}", found.disks, found.kind);
    if let Some(iops) = found.iops {
        let _ = write!(text, ", {} IOPS", grouped(iops, 0));
    }
    if let Some(throughput) = found.throughput {
        let _ = write!(text, ", {} {}", grouped(throughput, 0), answer.throughput_unit);
    }
    if found.disks > 1 && (found.iops.is_some() || found.throughput.is_some()) {
        text.push_str(" each");
    }
    text
}

const MACHINES_SHOWN: usize = 2;

fn machine(found: &CheapestPlan) -> String {
    let mut text = found.machine.name.clone();
    if found.by_request {
        text.push_str(" (ask first)");
    }
    if let Some(usd) = found.usd_machine {
        let _ = write!(text, ", {usd:.2} USD");
    }
    for name in found.or_machines.iter().take(MACHINES_SHOWN) {
        let _ = write!(text, ", {name}");
    }
    match found.or_machines.len().saturating_sub(MACHINES_SHOWN) {
        0 => {}
        more => {
            let _ = write!(text, ", {more} more");
        }
    }
    text
}

fn spare(headroom: &Headroom) -> String {
    // Rounding up would promise a reserve that does not exist.
    let percent = headroom.percent.max(0.0).floor();
    let of = match (headroom.of, headroom.read_percent) {
        (Requirement::Iops, Some(100.0)) => "read IOPS",
        (Requirement::Iops, Some(0.0)) => "write IOPS",
        (Requirement::Iops, _) => "IOPS",
        (Requirement::Throughput, Some(100.0)) => "read MB/s",
        (Requirement::Throughput, Some(0.0)) => "write MB/s",
        (Requirement::Throughput, _) => "MB/s",
        (Requirement::Capacity, _) => "capacity",
    };
    format!("{of} {} %", grouped(percent, 0))
}

fn lacks(answer: &CheapestReport, cheaper: &Cheaper) -> String {
    let Cheaper { kind, disks, size, usd_per_month, explanation, .. } = cheaper;
    let (has, needs) = match cheaper.lacks {
        Requirement::Throughput => {
            // The IOPS of this load are of large blocks; only their proportion is meaningful.
            let mb = answer.need.bytes_per_s / 1e6;
            let has = mb * cheaper.has_iops / cheaper.needs_iops;
            (format!("{} MB/s", grouped(has.floor(), 0)), format!("{} MB/s", grouped(mb, 0)))
        }
        _ => (
            format!("{} IOPS", grouped(cheaper.has_iops.floor(), 0)),
            format!("{} IOPS", grouped(cheaper.needs_iops, 0)),
        ),
    };
    let enough = match cheaper.enough_usd_per_month {
        Some(usd) => format!("a sufficient amount costs {usd:.2} USD"),
        None => "no size or number is sufficient".to_owned(),
    };
    let size = format!("{} {}", grouped(*size, 0), answer.size_unit);
    format!(
        "{disks} x {size} {kind}, {usd_per_month:.2} USD: {has} of {needs} ({explanation}); {enough}"
    )
}

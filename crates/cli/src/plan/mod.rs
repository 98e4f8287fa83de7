//! `flagstone plan`: performance and price of cloud disks, predicted from a catalog, and savings of
//! existing data. Only `savings` reads a device; the others are arithmetic.

pub(crate) mod args;
mod cheapest;
mod compare;
mod curve;
pub(crate) mod disk_types;
mod explain;
mod paint;
mod pool;
mod predict;
mod savings;
mod table;

use std::fmt::Write as _;

use flagstone_cloud::catalog::Catalog;
use flagstone_cloud::prediction::SourceUse;
use flagstone_cloud::{Machine, PlanError, Workload};
use flagstone_units::grouped;
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::output::{self, print};
use args::{CatalogArgs, PlanArgs, PlanCommand};
use flagstone_units::columns::{self, Left};
use paint::Paint;
pub(crate) use savings::{price, price_note};

/// Version of the JSON of every command of `flagstone plan`; `docs/plan-json.md`.
pub(crate) const SCHEMA_VERSION: u32 = 1;

pub(crate) fn run(args: &PlanArgs) -> Result<Exit, Failure> {
    match &args.command {
        PlanCommand::Predict(args) => predict::run(args),
        PlanCommand::Cheapest(args) => cheapest::run(args),
        PlanCommand::Explain(args) => explain::run(args),
        PlanCommand::Compare(args) => compare::run(args),
        PlanCommand::Curve(args) => curve::run(args),
        PlanCommand::Pool(args) => pool::run(args),
        PlanCommand::Savings(args) => savings::run(args),
        PlanCommand::Table(args) => table::run(args),
        PlanCommand::Catalog(args) => catalog(args),
    }
}

fn catalog(args: &CatalogArgs) -> Result<Exit, Failure> {
    let names = Catalog::builtin_names();
    let Some(name) = &args.name else {
        let row = |name: &str| {
            let catalog = Catalog::builtin(name).expect("it is in the program");
            vec![name.to_owned(), catalog.title.clone()]
        };
        let lines = columns::rows(&[Left, Left], &names.map(row));
        return Ok(print(&(lines.join("\n") + "\n"), Exit::Success));
    };
    let text = Catalog::builtin_text(name).ok_or_else(|| {
        Failure::usage(format!("unknown catalog `{name}`: write {}", names.join(" or ")))
    })?;
    Ok(print(text, Exit::Success))
}

/// An error of the model: a wrong option, or a gap of the catalog.
fn plan_failure(error: &PlanError, catalog: &Catalog) -> Failure {
    match error {
        PlanError::Input { .. } => Failure::usage(error),
        PlanError::NotKnown(_) => Failure::failed(format!("{error} (catalog {})", catalog.name)),
    }
}

/// The catalog's part of every report.
#[derive(Debug, Serialize)]
pub(crate) struct CatalogHead<'a> {
    name: &'a str,
    title: &'a str,
    date: &'a str,
    confidence: flagstone_cloud::Confidence,
    about: &'a str,
    units: &'a flagstone_cloud::catalog::Units,
}

impl<'a> From<&'a Catalog> for CatalogHead<'a> {
    fn from(catalog: &'a Catalog) -> CatalogHead<'a> {
        CatalogHead {
            name: &catalog.name,
            title: &catalog.title,
            date: &catalog.date,
            confidence: catalog.confidence,
            about: &catalog.about,
            units: &catalog.units,
        }
    }
}

pub(crate) fn head(catalog: &Catalog) -> String {
    let mut out = title(catalog);
    let (unit, bytes) = (catalog.units.throughput, catalog.units.throughput_bytes() as f64);
    if bytes != unit.bytes() {
        let _ = writeln!(
            out,
            "rates are in {0} of {1} bytes; the source's own figures are in {0} of {2} bytes",
            unit.name(),
            grouped(unit.bytes(), 0),
            grouped(bytes, 0)
        );
    }
    out
}

/// The head of tables that repeat the figures of the source's page.
pub(crate) fn head_of_page(catalog: &Catalog) -> String {
    let mut out = title(catalog);
    let (unit, bytes) = (catalog.units.throughput, catalog.units.throughput_bytes() as f64);
    if bytes != unit.bytes() {
        let (name, bytes) = (unit.name(), grouped(bytes, 0));
        let _ = writeln!(out, "the tables repeat the source's {name}, of {bytes} bytes each");
    }
    out
}

fn title(catalog: &Catalog) -> String {
    let Catalog { name, title, date, confidence, .. } = catalog;
    format!("catalog {name}: {title}; date: {date}; confidence {confidence}\n")
}

/// A report of `--json`, documented in `docs/plan-json.md`.
#[derive(Debug, Serialize)]
struct JsonReport<'a, T> {
    schema_version: u32,
    catalog: CatalogHead<'a>,
    #[serde(flatten)]
    body: T,
}

pub(crate) fn json(catalog: &Catalog, body: impl Serialize) -> Exit {
    let catalog = catalog.into();
    print(
        &output::json(&JsonReport { schema_version: SCHEMA_VERSION, catalog, body }),
        Exit::Success,
    )
}

fn bold_table(lines: Vec<String>, paint: Paint, out: &mut String) {
    for (number, line) in lines.into_iter().enumerate() {
        let line = if number == 0 { paint.bold(&line) } else { line };
        let _ = writeln!(out, "  {line}");
    }
}

fn once<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut out: Vec<T> = Vec::new();
    for one in all {
        if !out.contains(&one) {
            out.push(one);
        }
    }
    out
}

/// One line for each source, without duplicates.
fn source_lines<'a>(sources: impl IntoIterator<Item = &'a SourceUse>) -> Vec<String> {
    once(sources.into_iter().map(|source| {
        format!("{} ({}, {}): {}", source.key, source.confidence, source.date, source.address)
    }))
}

fn machine_text(machine: &Machine, other_egress_gbit_per_s: f64) -> String {
    let vcpus = machine.vcpus.map(|n| format!(" ({n} vCPUs)")).unwrap_or_default();
    let network = match other_egress_gbit_per_s {
        0.0 => String::new(),
        gbit => format!(", {gbit} Gbit/s of other traffic"),
    };
    format!("{}{vcpus}{network}", machine.name)
}

fn in_flight_text(workload: Option<&Workload>) -> String {
    match workload.and_then(Workload::in_flight) {
        Some(in_flight) => format!("{in_flight} in flight"),
        None => "any number in flight".to_owned(),
    }
}

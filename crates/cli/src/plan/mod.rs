//! `flagstone plan`: performance and price of cloud disks, predicted from a catalogue. Pure
//! arithmetic; it measures nothing and contacts no service.

pub mod args;
mod cheapest;
mod compare;
mod curve;
mod explain;
mod paint;
mod predict;
pub mod several;
mod table;

use flagstone_cloud::catalogue::Catalogue;
use serde::Serialize;

use crate::columns::{self, Left};
use crate::exit::Exit;
use crate::output::{complain, print};
use args::{CatalogArgs, PlanArgs, PlanCommand};

/// Version of the JSON of every command of `flagstone plan`; `docs/plan-json.md`.
pub const SCHEMA_VERSION: u32 = 1;

/// Runs the command.
pub fn run(args: &PlanArgs) -> Exit {
    match &args.command {
        PlanCommand::Predict(args) => predict::run(args),
        PlanCommand::Cheapest(args) => cheapest::run(args),
        PlanCommand::Explain(args) => explain::run(args),
        PlanCommand::Compare(args) => compare::run(args),
        PlanCommand::Curve(args) => curve::run(args),
        PlanCommand::Table(args) => table::run(args),
        PlanCommand::Catalog(args) => catalog(args),
    }
}

fn catalog(args: &CatalogArgs) -> Exit {
    let names = Catalogue::builtin_names();
    match &args.name {
        None => {
            let row = |name: &str| {
                let catalogue = Catalogue::builtin(name).expect("it is in the program");
                vec![name.to_owned(), catalogue.title.clone()]
            };
            let lines = columns::rows(&[Left, Left], &names.map(row));
            print(&(lines.join("\n") + "\n"), Exit::Success)
        }
        Some(name) => match Catalogue::builtin_text(name) {
            Some(text) => print(text, Exit::Success),
            None => usage(&format!("unknown catalogue `{name}`: write {}", names.join(" or "))),
        },
    }
}

/// Reports a command-line mistake in one line.
pub(crate) fn usage(text: &str) -> Exit {
    complain(&format!("flagstone: error: {text}\n"));
    Exit::Usage
}

/// The catalogue's part of every report.
#[derive(Debug, Serialize)]
pub(crate) struct CatalogueHead<'a> {
    name: &'a str,
    title: &'a str,
    date: &'a str,
    confidence: flagstone_cloud::Confidence,
    about: &'a str,
    units: &'a flagstone_cloud::catalogue::Units,
}

impl<'a> From<&'a Catalogue> for CatalogueHead<'a> {
    fn from(catalogue: &'a Catalogue) -> CatalogueHead<'a> {
        CatalogueHead {
            name: &catalogue.name,
            title: &catalogue.title,
            date: &catalogue.date,
            confidence: catalogue.confidence,
            about: &catalogue.about,
            units: &catalogue.units,
        }
    }
}

/// First line of every report.
pub(crate) fn head(catalogue: &Catalogue) -> String {
    format!(
        "catalogue {}: {}; date: {}; confidence {}\n",
        catalogue.name, catalogue.title, catalogue.date, catalogue.confidence
    )
}

/// A report as JSON.
pub(crate) fn json(report: &impl Serialize) -> Exit {
    let text = serde_json::to_string_pretty(report).expect("reports are always JSON");
    print(&(text + "\n"), Exit::Success)
}

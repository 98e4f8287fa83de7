//! `flagstone plan table`.

use std::fmt::Write as _;

use flagstone_cloud::catalogue::Catalogue;
use flagstone_cloud::table::{PlanCell, PlanTable};
use serde::Serialize;

use super::args::TableArgs;
use super::paint::Paint;
use super::predict::{contradictions, list};
use super::{CatalogueHead, SCHEMA_VERSION, head, json, usage};
use crate::columns::{Left, Right, lines};
use crate::exit::Exit;
use crate::output::print;

/// Runs the command.
pub(super) fn run(args: &TableArgs) -> Exit {
    let catalogue = match args.catalogue.open() {
        Ok(catalogue) => catalogue,
        Err(error) => return usage(&error),
    };
    match catalogue.tables(args.kind.as_deref()) {
        Ok(tables) if args.json => json(&Report {
            schema_version: SCHEMA_VERSION,
            catalogue: (&catalogue).into(),
            not_known: &catalogue.not_known,
            tables: &tables,
        }),
        Ok(tables) => print(&text(&catalogue, &tables, Paint::stdout()), Exit::Success),
        Err(error) => usage(&error.to_string()),
    }
}

/// The report of `--json`, documented in `docs/plan-json.md`.
#[derive(Serialize)]
struct Report<'a> {
    schema_version: u32,
    catalogue: CatalogueHead<'a>,
    not_known: &'a [String],
    tables: &'a [PlanTable],
}

fn text(catalogue: &Catalogue, tables: &[PlanTable], paint: Paint) -> String {
    let mut out = head(catalogue);
    for table in tables {
        one(table, paint, &mut out);
    }
    list("not known", &catalogue.not_known, paint, &mut out);
    out
}

/// A cell's text, with the inconsistency that it shows.
fn shown(cell: &PlanCell) -> String {
    match &cell.inconsistency {
        Some(id) => format!("{} ({id})", cell.text),
        None => cell.text.clone(),
    }
}

fn one(table: &PlanTable, paint: Paint, out: &mut String) {
    let _ = writeln!(out, "\n{}", paint.bold(&table.title));
    let rows: Vec<Vec<String>> =
        table.rows.iter().map(|row| row.iter().map(shown).collect()).collect();
    // The first column names the row; numbers align to the right.
    let alignment = |index| if index == 0 { Left } else { Right };
    let columns: Vec<_> =
        table.columns.iter().enumerate().map(|(at, name)| (name.as_str(), alignment(at))).collect();
    for (at, line) in lines(&columns, &rows).iter().enumerate() {
        let line = if at == 0 { paint.dim(line) } else { line.clone() };
        let _ = writeln!(out, "  {line}");
    }
    for note in &table.footnotes {
        let _ = writeln!(out, "  {note}");
    }
    let sources: Vec<_> = table
        .sources
        .iter()
        .map(|source| format!("{} ({}, confidence {})", source.key, source.date, source.confidence))
        .collect();
    let _ = writeln!(out, "  {}", paint.dim(&format!("from {}", sources.join("; "))));
    contradictions(&table.inconsistencies, paint, out);
}

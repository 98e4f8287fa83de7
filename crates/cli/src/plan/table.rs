//! `flagstone plan table`.

use std::fmt::Write as _;

use flagstone_cloud::catalog::Catalog;
use flagstone_cloud::table::{PlanCell, PlanTable};
use serde::Serialize;

use super::args::TableArgs;
use super::paint::Paint;
use super::predict::{contradictions, list};
use super::{head_of_page, json};
use crate::exit::{Exit, Failure};
use crate::output::print;
use flagstone_units::columns::{Left, Right, lines};

pub(super) fn run(args: &TableArgs) -> Result<Exit, Failure> {
    let catalog = args.catalog.open()?;
    let tables = catalog.tables(args.kind.as_deref()).map_err(Failure::usage)?;
    Ok(match args.catalog.json {
        true => json(&catalog, Report { not_known: &catalog.not_known, tables: &tables }),
        false => print(&text(&catalog, &tables, Paint::stdout()), Exit::Success),
    })
}

#[derive(Serialize)]
struct Report<'a> {
    not_known: &'a [String],
    tables: &'a [PlanTable],
}

fn text(catalog: &Catalog, tables: &[PlanTable], paint: Paint) -> String {
    let mut out = head_of_page(catalog);
    for table in tables {
        one(table, paint, &mut out);
    }
    list("not known", &catalog.not_known, paint, &mut out);
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

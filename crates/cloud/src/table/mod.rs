//! Regenerated page tables: the model computes every number, with the rows and the rounding of the
//! page ([`PageTable`]).
//!
//! A catalog without a layout for a kind of table gets a plain table of all its rows.

mod cells;
mod limits;
mod money;

use serde::Serialize;

use crate::catalog::{Catalog, DiskType, Inconsistency, PageTable, TableKind};
use crate::input::PlanError;
use crate::prediction::SourceUse;

pub use cells::PlanCell;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanTable {
    pub table: TableKind,
    pub title: String,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub family: Option<String>,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<PlanCell>>,
    pub footnotes: Vec<String>,
    pub inconsistencies: Vec<Inconsistency>,
    pub sources: Vec<SourceUse>,
}

const ORDER: [TableKind; 8] = [
    TableKind::Overview,
    TableKind::Vm,
    TableKind::Volume,
    TableKind::Count,
    TableKind::Simultaneous,
    TableKind::Egress,
    TableKind::Hdd,
    TableKind::Price,
];

/// Row sizes of a volume table without a layout, in the catalog's unit.
const PLAIN_SIZES: [f64; 11] =
    [32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 65536.0];

pub(crate) struct TableBuilder<'a> {
    pub(crate) catalog: &'a Catalog,
    /// The only type to show, in tables about several.
    pub(crate) only: Option<&'a str>,
}

impl Catalog {
    /// The tables of a disk type, or all tables.
    pub fn tables(&self, kind: Option<&str>) -> Result<Vec<PlanTable>, PlanError> {
        if let Some(kind) = kind {
            self.disk_type(kind)?;
        }
        let maker = TableBuilder { catalog: self, only: kind };
        let mut tables = Vec::new();
        for table in ORDER {
            let own: Vec<_> = self.page_tables.iter().filter(|spec| spec.table == table).collect();
            if own.is_empty() {
                for spec in maker.plain(table) {
                    tables.extend(maker.known(&spec, false)?);
                }
            }
            for spec in own {
                tables.extend(maker.known(spec, true)?);
            }
        }
        Ok(tables)
    }
}

impl<'a> TableBuilder<'a> {
    pub(crate) fn shows(&self, kind: &str) -> bool {
        self.only.is_none_or(|only| only == kind)
    }

    pub(crate) fn types_of(&self, spec: &PageTable) -> Vec<(&'a str, &'a DiskType)> {
        let catalog = self.catalog;
        let all = || catalog.types.keys().map(String::as_str).collect::<Vec<_>>();
        let names = match spec.types.is_empty() {
            true => all(),
            false => spec.types.iter().map(String::as_str).collect(),
        };
        let found = names.into_iter().filter_map(|name| catalog.types.get_key_value(name));
        found
            .map(|(name, disk)| (name.as_str(), disk))
            .filter(|(name, _)| self.shows(name))
            .collect()
    }

    /// The table of a layout; `None` without one, and where the catalog cannot answer.
    fn known(&self, spec: &PageTable, of_page: bool) -> Result<Option<PlanTable>, PlanError> {
        match self.make(spec, of_page) {
            Err(PlanError::NotKnown(_)) => Ok(None),
            made => made,
        }
    }

    /// The table of a layout; `None` if it is about another type, or empty.
    fn make(&self, spec: &PageTable, of_page: bool) -> Result<Option<PlanTable>, PlanError> {
        if spec.kind.as_ref().is_some_and(|kind| !self.shows(kind)) {
            return Ok(None);
        }
        let table = match spec.table {
            TableKind::Overview => self.overview(spec)?,
            TableKind::Volume => self.volume(spec)?,
            TableKind::Vm if of_page => self.machines(spec)?,
            TableKind::Vm => self.machine_rows(spec),
            TableKind::Simultaneous => self.simultaneous(spec)?,
            TableKind::Egress if spec.by_type => self.egress_by_type(spec)?,
            TableKind::Egress => self.egress(spec)?,
            TableKind::Hdd => self.hdd(spec),
            TableKind::Price if of_page => self.price(spec),
            TableKind::Price => self.prices(spec),
            TableKind::Count => self.count(spec),
        };
        Ok(Some(table).filter(|table| !table.rows.is_empty() && table.columns.len() > 1))
    }

    fn plain(&self, table: TableKind) -> Vec<PageTable> {
        let spec = |title: String, kind: Option<&str>, family: Option<&str>| PageTable {
            table,
            title,
            kind: kind.map(str::to_owned),
            family: family.map(str::to_owned),
            ..PageTable::default()
        };
        let types = self.catalog.types.iter();
        match table {
            TableKind::Overview => vec![spec("Performance by disk type".to_owned(), None, None)],
            TableKind::Volume => types
                .filter(|(_, disk)| disk.volume.is_some() && disk.size_gb_each.is_none())
                .map(|(name, disk)| PageTable {
                    sizes_gb: PLAIN_SIZES.to_vec(),
                    ..spec(format!("{}, by size", disk.title), Some(name), None)
                })
                .collect(),
            TableKind::Vm => {
                let mut specs = Vec::new();
                for rows in &self.catalog.per_vm {
                    for kind in &rows.types {
                        for family in &rows.families {
                            let title = format!("{kind} on {family}, by machine");
                            specs.push(spec(title, Some(kind), Some(family)));
                        }
                    }
                }
                specs
            }
            TableKind::Price => vec![spec("Prices".to_owned(), None, None)],
            TableKind::Count => {
                let mut names: Vec<_> =
                    self.catalog.per_count.iter().map(|table| table.kind.as_str()).collect();
                names.dedup();
                names
                    .into_iter()
                    .map(|name| spec(format!("{name}, by number of disks"), Some(name), None))
                    .collect()
            }
            TableKind::Simultaneous | TableKind::Egress | TableKind::Hdd => Vec::new(),
        }
    }

    pub(crate) fn table(
        &self,
        spec: &PageTable,
        columns: Vec<String>,
        rows: Vec<Vec<PlanCell>>,
        sources: Vec<SourceUse>,
    ) -> PlanTable {
        let kind = spec.kind.as_deref().or(self.only);
        let family = spec.family.as_deref();
        let mut table = PlanTable {
            table: spec.table,
            title: spec.title.clone(),
            kind: spec.kind.clone(),
            family: spec.family.clone(),
            columns,
            rows,
            footnotes: spec.footnotes.clone(),
            inconsistencies: self.catalog.inconsistencies_of_table(spec.table, kind, family),
            sources,
        };
        table.put_exceptions(spec);
        table
    }
}

impl PlanTable {
    /// Overwrites the exceptional cells with the page's text.
    fn put_exceptions(&mut self, spec: &PageTable) {
        for exception in &spec.exceptions {
            let column = self.columns.iter().position(|column| *column == exception.column);
            let row = self.rows.iter_mut().find(|row| row[0].text == exception.row);
            if let Some((column, row)) = column.zip(row) {
                let cell = &mut row[column];
                cell.computed = Some(std::mem::replace(&mut cell.text, exception.printed.clone()));
                cell.inconsistency = Some(exception.id.clone());
            }
        }
    }
}

/// Column heads, separated by `|`.
fn heads(text: &str) -> Vec<String> {
    text.split('|').map(str::to_owned).collect()
}

//! Checks across values: names exist, ranges do not overlap, keys use the catalog's units, and
//! every number is finite and not negative.

use std::collections::{BTreeMap, BTreeSet};

use toml_edit::{Document, Item, Key, TableLike, Value};

use super::error::{CatalogError, UnitWords, line_of, shown};
use super::model::{Catalog, SourceKeys, VmRow, VmTable};
use super::select::{CountRange, NamePattern};
use crate::input::listed;

pub(crate) const FORMAT: u32 = 1;

#[derive(Debug, Clone)]
pub(super) enum PathStep {
    Key(String),
    Entry(usize),
}

type CatalogMistake = (Vec<PathStep>, String, String);

type Checked = Result<(), CatalogMistake>;

fn mistake(path: Vec<PathStep>, message: impl Into<String>, help: impl Into<String>) -> Checked {
    Err((path, message.into(), help.into()))
}

pub(super) fn check(
    catalog: &Catalog,
    document: &Document<&str>,
    file: &str,
    text: &str,
) -> Result<(), CatalogError> {
    let at = |offset: Option<usize>, message: String, help: String| CatalogError {
        file: file.to_owned(),
        line: offset.map(|offset| line_of(text, offset)),
        message,
        help,
    };
    let mut walk = Walk { words: UnitWords::of_units(&catalog.units), found: None };
    walk.table(document.as_table());
    if let Some((offset, message, help)) = walk.found {
        return Err(at(offset, message, help));
    }
    let meaning = meaning(catalog);
    meaning.map_err(|(path, message, help)| at(offset_of(document, &path), message, help))
}

struct Walk {
    words: UnitWords,
    found: Option<(Option<usize>, String, String)>,
}

impl Walk {
    fn table(&mut self, table: &dyn TableLike) {
        for (key, item) in table.iter() {
            let right = self.words.corrected(key);
            if right != key {
                let message = format!("`{}` is not in the units of this catalog", shown(key));
                let span = table.key(key).and_then(Key::span);
                self.report(span, message, format!("write {right}, as [units] says"));
            }
            match item {
                Item::Table(table) => self.table(table),
                Item::ArrayOfTables(tables) => tables.iter().for_each(|table| self.table(table)),
                Item::Value(value) => self.value(value),
                Item::None => {}
            }
        }
    }

    fn value(&mut self, value: &Value) {
        let good = match value {
            Value::Float(number) => number.value().is_finite() && *number.value() >= 0.0,
            Value::Integer(number) => *number.value() >= 0,
            Value::Array(values) => return values.iter().for_each(|value| self.value(value)),
            Value::InlineTable(table) => return self.table(table),
            _ => true,
        };
        if !good {
            let help = "write a number from 0, and leave out what is not known";
            self.report(value.span(), "a negative or endless number".to_owned(), help.to_owned());
        }
    }

    fn report(&mut self, span: Option<std::ops::Range<usize>>, message: String, help: String) {
        self.found.get_or_insert((span.map(|span| span.start), message, help));
    }
}

fn offset_of(document: &Document<&str>, path: &[PathStep]) -> Option<usize> {
    let mut item = document.as_item();
    let mut offset = None;
    for step in path {
        let (next, span) = match step {
            PathStep::Key(key) => {
                let table = item.as_table_like();
                (item.get(key), table.and_then(|table| table.key(key)?.span()))
            }
            PathStep::Entry(index) => (item.get(*index), item.get(*index).and_then(Item::span)),
        };
        offset = span.map(|span| span.start).or(offset);
        let Some(next) = next else { break };
        item = next;
    }
    offset
}

fn below(here: &[PathStep], step: impl Into<PathStep>) -> Vec<PathStep> {
    here.iter().cloned().chain([step.into()]).collect()
}

macro_rules! path {
    ($($step:expr),*) => { vec![$(PathStep::from($step)),*] };
}

impl From<&str> for PathStep {
    fn from(key: &str) -> PathStep {
        PathStep::Key(key.to_owned())
    }
}

impl From<usize> for PathStep {
    fn from(index: usize) -> PathStep {
        PathStep::Entry(index)
    }
}

fn meaning(catalog: &Catalog) -> Checked {
    if catalog.format != FORMAT {
        let message = format!("format {} is unknown", catalog.format);
        return mistake(path!["format"], message, format!("write format = {FORMAT}"));
    }
    units(catalog)?;
    types(catalog)?;
    families(catalog)?;
    for (index, table) in catalog.per_vm.iter().enumerate() {
        per_vm(catalog, index, table)?;
    }
    for (index, table) in catalog.per_count.iter().enumerate() {
        let here = path!["per_count", index];
        known(&catalog.types, "type", &here, "type", &table.kind)?;
        known_sources(catalog, &here, &table.source)?;
    }
    rules(catalog)?;
    for (index, price) in catalog.prices.iter().enumerate() {
        let here = path!["price", index];
        known(&catalog.types, "type", &here, "type", &price.kind)?;
        known_sources(catalog, &here, &price.source)?;
    }
    for (index, observation) in catalog.observations.iter().enumerate() {
        let here = path!["observation", index];
        known(&catalog.types, "type", &here, "type", &observation.kind)?;
        known_sources(catalog, &here, &observation.source)?;
    }
    references(catalog)
}

fn units(catalog: &Catalog) -> Checked {
    let units = &catalog.units;
    for (key, bytes) in [
        ("size_bytes", units.size_bytes),
        ("block_bytes", units.block_bytes),
        ("blocks_per_throughput", units.blocks_per_throughput),
    ] {
        if !(1..=1 << 40).contains(&bytes) {
            let help = "write a whole number from 1 to 2^40";
            return mistake(path!["units", key], format!("{key} = {bytes} is no unit"), help);
        }
    }
    Ok(())
}

fn known_sources(catalog: &Catalog, here: &[PathStep], sources: &SourceKeys) -> Checked {
    if sources.is_empty() {
        let help = "write source = [\"KEY\"] with keys of [source.KEY] tables";
        return mistake(below(here, "source"), "no source is named", help);
    }
    sources.iter().try_for_each(|key| known(&catalog.sources, "source", here, "source", key))
}

/// Checks that the value of `key` is the name of a table `[kind.NAME]`.
fn known<T>(
    tables: &BTreeMap<String, T>,
    kind: &str,
    here: &[PathStep],
    key: &str,
    name: &str,
) -> Checked {
    if tables.contains_key(name) {
        return Ok(());
    }
    let message = format!("no table [{kind}.{}]", shown(name));
    let names = listed(tables.keys().map(String::as_str));
    mistake(below(here, key), message, format!("add it, or write one of {names}"))
}

fn types(catalog: &Catalog) -> Checked {
    for (name, disk) in &catalog.types {
        let here = path!["type", name.as_str()];
        known_sources(catalog, &here, &disk.source)?;
        for (key, sources) in [
            ("volume", disk.volume.as_ref().map(|part| &part.source)),
            ("regional", disk.regional.as_ref().map(|part| &part.source)),
            ("provisioned", disk.provisioned.as_ref().map(|part| &part.source)),
            ("mixing", disk.mixing.as_ref().map(|part| &part.source)),
            ("queue", disk.queue.as_ref().map(|part| &part.source)),
        ] {
            if let Some(sources) = sources {
                known_sources(catalog, &below(&here, key), sources)?;
            }
        }
        if let (Some(min), Some(max)) = (disk.size_gb_min, disk.size_gb_max)
            && min > max
        {
            let help = "write the smaller one as the smallest";
            let message = format!("[type.{name}]: the smallest size exceeds the largest");
            return mistake(here, message, help);
        }
        if let Some(queue) = &disk.queue
            && (queue.iops_per_io_low <= 0.0
                || queue.iops_per_io_high.is_some_and(|high| high < queue.iops_per_io_low))
        {
            let path = path!["type", name.as_str(), "queue", "iops_per_io_low"];
            let help = "write a number above 0 and not above iops_per_io_high";
            return mistake(path, "iops_per_io_low is out of order", help);
        }
        let rows = disk.provisioned.iter().flat_map(|part| part.iops_max_by_size.windows(2));
        for two in rows {
            if two[0].size_gb_min >= two[1].size_gb_min || two[0].iops > two[1].iops {
                let path = path!["type", name.as_str(), "provisioned", "iops_max_by_size"];
                let help = "write the smaller sizes first, and no fewer IOPS for larger ones";
                return mistake(path, "iops_max_by_size is out of order", help);
            }
        }
        for family in disk.provisioned.iter().flat_map(|part| part.vcpus_min.keys()) {
            known(&catalog.families, "family", &below(&here, "provisioned"), "vcpus_min", family)?;
        }
    }
    Ok(())
}

fn families(catalog: &Catalog) -> Checked {
    for (name, family) in &catalog.families {
        let here = path!["family", name.as_str()];
        known_sources(catalog, &here, &family.source)?;
        for kind in family.disks.keys() {
            known(&catalog.types, "type", &here, "disks", kind)?;
        }
        if let Some(local) = &family.local_ssd {
            let here = below(&here, "local_ssd");
            known_sources(catalog, &here, &local.source)?;
            for kind in &local.types {
                known(&catalog.types, "type", &here, "types", kind)?;
            }
            let rows = local.rows.iter().map(|row| (row.vcpus.as_ref(), row.machine.as_ref()));
            selectors(&below(&here, "rows"), rows)?;
        }
        let rows = family.egress.iter().map(|row| (row.vcpus.as_ref(), row.machine.as_ref()));
        selectors(&below(&here, "egress"), rows)?;
    }
    Ok(())
}

/// Checks that each row selects vCPUs or a machine, and that no two rows overlap.
fn selectors<'a>(
    here: &[PathStep],
    rows: impl Iterator<Item = (Option<&'a CountRange>, Option<&'a NamePattern>)>,
) -> Checked {
    let mut ranges: Vec<&CountRange> = Vec::new();
    let mut names = BTreeSet::new();
    for (index, (range, machine)) in rows.enumerate() {
        let path = below(here, index);
        match (range, machine) {
            (Some(range), None) => {
                if let Some(other) = ranges.iter().find(|other| other.overlaps(range)) {
                    let message = format!("vcpus \"{range}\" overlaps \"{other}\" of a row above");
                    let help = "write rows that share no number of vCPUs";
                    return mistake(path, message, help);
                }
                ranges.push(range);
            }
            (None, Some(machine)) => {
                if !names.insert(machine.0.as_str()) {
                    let message = format!("a second row for \"{}\"", shown(&machine.0));
                    return mistake(path, message, "write one row for each machine");
                }
            }
            _ => {
                let message = "a row is for vCPUs or for a machine";
                let help = "write either vcpus = \"2-7\" or machine = \"NAME\"";
                return mistake(path, message, help);
            }
        }
    }
    Ok(())
}

fn per_vm(catalog: &Catalog, index: usize, table: &VmTable) -> Checked {
    let here = path!["per_vm", index];
    known_sources(catalog, &here, &table.source)?;
    for kind in &table.types {
        known(&catalog.types, "type", &here, "types", kind)?;
    }
    for family in table.families.iter().filter(|family| *family != "*") {
        known(&catalog.families, "family", &here, "families", family)?;
    }
    let rows_path = below(&here, "rows");
    selectors(&rows_path, table.rows.iter().map(|row| (row.vcpus.as_ref(), row.machine.as_ref())))?;
    for (number, row) in table.rows.iter().enumerate() {
        vm_row(catalog, below(&rows_path, number), row)?;
    }
    for (other_index, other) in catalog.per_vm.iter().enumerate().take(index) {
        let both = |a: &[String], b: &[String]| a.iter().find(|name| b.contains(name)).cloned();
        let (kind, family) =
            (both(&table.types, &other.types), both(&table.families, &other.families));
        if let (Some(kind), Some(family)) = (kind, family) {
            let first = other_index + 1;
            let message =
                format!("a second table for {kind} on {family}; table {first} is the first");
            return mistake(here, message, "join the rows of the two");
        }
    }
    Ok(())
}

fn vm_row(catalog: &Catalog, path: Vec<PathStep>, row: &VmRow) -> Checked {
    let together = row.iops.is_some() || row.mb_per_s.is_some();
    let apart = [row.read_iops, row.write_iops, row.read_mb_per_s, row.write_mb_per_s];
    let apart = apart.iter().any(Option::is_some);
    if together == apart {
        let message = "a row limits reads and writes together, or each";
        let help = "write iops and throughput, or read_ and write_ of both";
        return mistake(path, message, help);
    }
    match &row.source {
        Some(sources) => known_sources(catalog, &path, sources),
        None => Ok(()),
    }
}

fn rules(catalog: &Catalog) -> Checked {
    if let Some(egress) = &catalog.egress {
        let here = path!["egress"];
        known_sources(catalog, &here, &egress.source)?;
        for (key, value) in [
            ("multiplier_zonal", egress.multiplier_zonal),
            ("multiplier_regional", egress.multiplier_regional),
            ("throughput_per_gbit", egress.throughput_per_gbit),
            ("throughput_bytes", egress.throughput_bytes as f64),
        ] {
            if value <= 0.0 {
                let help = "write a number above 0";
                return mistake(path!["egress", key], format!("{key} = {value}"), help);
            }
        }
        if egress.disk_share > 1.0 {
            let message = format!("disk_share = {}", egress.disk_share);
            let help = "write a part: 0 to 1";
            return mistake(path!["egress", "disk_share"], message, help);
        }
    }
    if let Some(cpu) = &catalog.cpu {
        let here = path!["cpu"];
        known_sources(catalog, &here, &cpu.source)?;
        for kind in &cpu.types {
            known(&catalog.types, "type", &here, "types", kind)?;
        }
    }
    Ok(())
}

fn references(catalog: &Catalog) -> Checked {
    let mut ids = BTreeSet::new();
    for (index, inconsistency) in catalog.inconsistencies.iter().enumerate() {
        let here = path!["inconsistency", index];
        if !ids.insert(&inconsistency.id) {
            let message = format!("a second inconsistency {}", shown(&inconsistency.id));
            return mistake(here, message, "give each its own id");
        }
        let here = below(&here, "touches");
        if let Some(touches) = &inconsistency.touches {
            for kind in touches.types.iter().flatten() {
                known(&catalog.types, "type", &here, "types", kind)?;
            }
            for family in touches.families.iter().flatten() {
                known(&catalog.families, "family", &here, "families", family)?;
            }
        }
    }
    for (index, table) in catalog.page_tables.iter().enumerate() {
        let here = path!["page_table", index];
        for kind in &table.types {
            known(&catalog.types, "type", &here, "types", kind)?;
        }
        if let Some(kind) = &table.kind {
            known(&catalog.types, "type", &here, "type", kind)?;
        }
        if let Some(family) = &table.family {
            known(&catalog.families, "family", &here, "family", family)?;
        }
    }
    Ok(())
}

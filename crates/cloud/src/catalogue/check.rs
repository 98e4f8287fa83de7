//! Checks across values: names exist, ranges do not overlap, keys use the catalogue's units, and
//! every number is finite and not negative.

use std::collections::BTreeMap;

use toml_edit::{Document, Item, Table, Value};

use super::error::{CatalogueError, line_of, shown};
use super::model::{Catalogue, SizeUnit, SourceKeys, ThroughputUnit, VmRow, VmTable};
use super::select::{CountRange, NamePattern};

/// The supported version of the format.
pub(crate) const FORMAT: u32 = 1;

/// One step of the path to a value.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Key(String),
    Entry(usize),
}

/// Path, message and help of a mistake.
type Mistake = (Vec<Step>, String, String);

/// Checks a catalogue parsed from `text`.
pub(super) fn check(
    catalogue: &Catalogue,
    document: &Document<&str>,
    file: &str,
    text: &str,
) -> Result<(), CatalogueError> {
    let at = |offset: Option<usize>, message: String, help: String| CatalogueError {
        file: file.to_owned(),
        line: offset.map(|offset| line_of(text, offset)),
        message,
        help,
    };
    let mut walk = Walk { units: Suffixes::of(catalogue), found: None };
    walk.table(document.as_table());
    if let Some((offset, message, help)) = walk.found {
        return Err(at(offset, message, help));
    }
    match meaning(catalogue) {
        Ok(()) => Ok(()),
        Err((path, message, help)) => Err(at(offset_of(document, &path), message, help)),
    }
}

/// Unit words that the catalogue's keys must not have, and their replacements.
struct Suffixes {
    wrong: Vec<(&'static str, &'static str)>,
}

impl Suffixes {
    fn of(catalogue: &Catalogue) -> Suffixes {
        let mut wrong = vec![match catalogue.units.size {
            SizeUnit::Gb => ("gib", "gb"),
            SizeUnit::Gib => ("gb", "gib"),
        }];
        wrong.push(match catalogue.units.throughput {
            ThroughputUnit::Mb => ("mib", "mb"),
            ThroughputUnit::Mib => ("mb", "mib"),
        });
        wrong.push(match catalogue.units.block {
            super::model::BlockUnit::Kb => ("kib", "kb"),
            super::model::BlockUnit::Kib => ("kb", "kib"),
        });
        Suffixes { wrong }
    }

    /// The corrected key; `None` if its units are right.
    fn corrected(&self, key: &str) -> Option<String> {
        let mut changed = false;
        let words: Vec<_> = key
            .split('_')
            .map(|word| match self.wrong.iter().find(|(wrong, _)| *wrong == word) {
                Some((_, right)) => {
                    changed = true;
                    right
                }
                None => word,
            })
            .collect();
        changed.then(|| words.join("_"))
    }
}

/// Visitor of every key and number.
struct Walk {
    units: Suffixes,
    found: Option<(Option<usize>, String, String)>,
}

impl Walk {
    fn table(&mut self, table: &Table) {
        for (key, item) in table.iter() {
            self.key(key, table.key(key).and_then(toml_edit::Key::span));
            match item {
                Item::Table(table) => self.table(table),
                Item::ArrayOfTables(tables) => tables.iter().for_each(|table| self.table(table)),
                Item::Value(value) => self.value(value),
                Item::None => {}
            }
        }
    }

    fn key(&mut self, key: &str, span: Option<std::ops::Range<usize>>) {
        if let Some(right) = self.units.corrected(key) {
            let message = format!("`{}` is not in the units of this catalogue", shown(key));
            self.report(span, message, format!("write {right}, as [units] says"));
        }
    }

    fn value(&mut self, value: &Value) {
        let good = match value {
            Value::Float(number) => number.value().is_finite() && *number.value() >= 0.0,
            Value::Integer(number) => *number.value() >= 0,
            Value::Array(values) => {
                values.iter().for_each(|value| self.value(value));
                true
            }
            Value::InlineTable(table) => {
                for (key, value) in table.iter() {
                    self.key(key, table.key(key).and_then(toml_edit::Key::span));
                    self.value(value);
                }
                true
            }
            _ => true,
        };
        if !good {
            let help = "write a number from 0, and leave out what is not known".to_owned();
            self.report(value.span(), "a negative or endless number".to_owned(), help);
        }
    }

    fn report(&mut self, span: Option<std::ops::Range<usize>>, message: String, help: String) {
        self.found.get_or_insert((span.map(|span| span.start), message, help));
    }
}

/// Byte offset of a value, or of its nearest container.
fn offset_of(document: &Document<&str>, path: &[Step]) -> Option<usize> {
    let mut item: Option<&Item> = None;
    let mut value: Option<&Value> = None;
    let mut offset = None;
    let mut table: Option<&Table> = Some(document.as_table());
    for step in path {
        match step {
            Step::Key(key) => {
                let (next, key_span) = match (table, value.and_then(Value::as_inline_table)) {
                    (Some(table), _) => {
                        (table.get(key), table.key(key).and_then(toml_edit::Key::span))
                    }
                    (None, Some(inline)) => {
                        value = inline.get(key);
                        offset = value.and_then(Value::span).map(|span| span.start).or(offset);
                        continue;
                    }
                    (None, None) => return offset,
                };
                offset = key_span.map(|span| span.start).or(offset);
                item = next;
                table = item.and_then(Item::as_table);
                value = item.and_then(Item::as_value);
            }
            Step::Entry(index) => {
                if let Some(entry) =
                    item.and_then(Item::as_array_of_tables).and_then(|list| list.get(*index))
                {
                    table = Some(entry);
                    value = None;
                    offset = entry.span().map(|span| span.start).or(offset);
                } else if let Some(entry) =
                    value.and_then(Value::as_array).and_then(|list| list.get(*index))
                {
                    table = None;
                    value = Some(entry);
                    offset = entry.span().map(|span| span.start).or(offset);
                }
            }
        }
    }
    offset
}

macro_rules! path {
    ($($step:expr),*) => { vec![$(Step::from($step)),*] };
}

impl From<&str> for Step {
    fn from(key: &str) -> Step {
        Step::Key(key.to_owned())
    }
}

impl From<usize> for Step {
    fn from(index: usize) -> Step {
        Step::Entry(index)
    }
}

fn meaning(catalogue: &Catalogue) -> Result<(), Mistake> {
    if catalogue.format != FORMAT {
        let message = format!("format {} is unknown", catalogue.format);
        return Err((path!["format"], message, format!("write format = {FORMAT}")));
    }
    units(catalogue)?;
    types(catalogue)?;
    families(catalogue)?;
    for (index, table) in catalogue.per_vm.iter().enumerate() {
        per_vm(catalogue, index, table)?;
    }
    for (index, table) in catalogue.per_count.iter().enumerate() {
        let here = path!["per_count", index];
        known_type(catalogue, &here, "type", &table.kind)?;
        known_sources(catalogue, &here, &table.source)?;
    }
    rules(catalogue)?;
    for (index, price) in catalogue.prices.iter().enumerate() {
        let here = path!["price", index];
        known_type(catalogue, &here, "type", &price.kind)?;
        known_sources(catalogue, &here, &price.source)?;
    }
    for (index, observation) in catalogue.observations.iter().enumerate() {
        let here = path!["observation", index];
        known_type(catalogue, &here, "type", &observation.kind)?;
        known_sources(catalogue, &here, &observation.source)?;
    }
    references(catalogue)
}

fn units(catalogue: &Catalogue) -> Result<(), Mistake> {
    let units = &catalogue.units;
    for (key, bytes) in [
        ("size_bytes", units.size_bytes),
        ("block_bytes", units.block_bytes),
        ("blocks_per_throughput", units.blocks_per_throughput),
    ] {
        if !(1..=1 << 40).contains(&bytes) {
            let help = "write a whole number from 1 to 2^40".to_owned();
            return Err((path!["units", key], format!("{key} = {bytes} is no unit"), help));
        }
    }
    Ok(())
}

fn known_sources(
    catalogue: &Catalogue,
    here: &[Step],
    sources: &SourceKeys,
) -> Result<(), Mistake> {
    let mut path = here.to_vec();
    path.push("source".into());
    if sources.is_empty() {
        let help = "write source = [\"KEY\"] with keys of [source.KEY] tables".to_owned();
        return Err((path, "no source is named".to_owned(), help));
    }
    match sources.iter().find(|key| !catalogue.sources.contains_key(*key)) {
        None => Ok(()),
        Some(key) => {
            let names: Vec<_> = catalogue.sources.keys().map(String::as_str).collect();
            let message = format!("no table [source.{}]", shown(key));
            Err((path, message, format!("add it, or write one of {}", names.join(", "))))
        }
    }
}

fn known_type(catalogue: &Catalogue, here: &[Step], key: &str, name: &str) -> Result<(), Mistake> {
    if catalogue.types.contains_key(name) {
        return Ok(());
    }
    let mut path = here.to_vec();
    path.push(key.into());
    let names: Vec<_> = catalogue.types.keys().map(String::as_str).collect();
    let message = format!("no table [type.{}]", shown(name));
    Err((path, message, format!("add it, or write one of {}", names.join(", "))))
}

fn known_family(
    catalogue: &Catalogue,
    here: &[Step],
    key: &str,
    name: &str,
) -> Result<(), Mistake> {
    if catalogue.families.contains_key(name) {
        return Ok(());
    }
    let mut path = here.to_vec();
    path.push(key.into());
    let names: Vec<_> = catalogue.families.keys().map(String::as_str).collect();
    let message = format!("no table [family.{}]", shown(name));
    Err((path, message, format!("add it, or write one of {}", names.join(", "))))
}

fn types(catalogue: &Catalogue) -> Result<(), Mistake> {
    for (name, disk) in &catalogue.types {
        let here = path!["type", name.as_str()];
        known_sources(catalogue, &here, &disk.source)?;
        let parts: [(&str, Option<&SourceKeys>); 5] = [
            ("volume", disk.volume.as_ref().map(|part| &part.source)),
            ("regional", disk.regional.as_ref().map(|part| &part.source)),
            ("provisioned", disk.provisioned.as_ref().map(|part| &part.source)),
            ("mixing", disk.mixing.as_ref().map(|part| &part.source)),
            ("queue", disk.queue.as_ref().map(|part| &part.source)),
        ];
        for (key, sources) in parts {
            let mut here = here.clone();
            here.push(key.into());
            if let Some(sources) = sources {
                known_sources(catalogue, &here, sources)?;
            }
        }
        if let (Some(min), Some(max)) = (disk.size_gb_min, disk.size_gb_max)
            && min > max
        {
            let help = "write the smaller one as the smallest".to_owned();
            return Err((
                here,
                format!("[type.{name}]: the smallest size exceeds the largest"),
                help,
            ));
        }
        if let Some(queue) = &disk.queue
            && (queue.iops_per_io_low <= 0.0
                || queue.iops_per_io_high.is_some_and(|high| high < queue.iops_per_io_low))
        {
            let mut here = here.clone();
            here.extend(path!["queue", "iops_per_io_low"]);
            let help = "write a number above 0 and not above iops_per_io_high".to_owned();
            return Err((here, "iops_per_io_low is out of order".to_owned(), help));
        }
        for family in disk.provisioned.iter().flat_map(|part| part.vcpus_min.keys()) {
            let mut here = here.clone();
            here.push("provisioned".into());
            known_family(catalogue, &here, "vcpus_min", family)?;
        }
    }
    Ok(())
}

fn families(catalogue: &Catalogue) -> Result<(), Mistake> {
    for (name, family) in &catalogue.families {
        let here = path!["family", name.as_str()];
        known_sources(catalogue, &here, &family.source)?;
        for kind in family.disks.keys() {
            known_type(catalogue, &here, "disks", kind)?;
        }
        let rows = family.egress.iter().map(|row| (row.vcpus.as_ref(), row.machine.as_ref()));
        let mut here = here.clone();
        here.push("egress".into());
        selectors(&here, rows)?;
    }
    Ok(())
}

/// Checks that each row selects vCPUs or a machine, and that no two rows overlap.
fn selectors<'a>(
    here: &[Step],
    rows: impl Iterator<Item = (Option<&'a CountRange>, Option<&'a NamePattern>)>,
) -> Result<(), Mistake> {
    let mut ranges: Vec<&CountRange> = Vec::new();
    let mut names: BTreeMap<&str, ()> = BTreeMap::new();
    for (index, (range, machine)) in rows.enumerate() {
        let mut path = here.to_vec();
        path.push(index.into());
        match (range, machine) {
            (Some(range), None) => {
                if let Some(other) = ranges.iter().find(|other| other.overlaps(range)) {
                    let message = format!("vcpus \"{range}\" overlaps \"{other}\" of a row above");
                    let help = "write rows that share no number of vCPUs".to_owned();
                    return Err((path, message, help));
                }
                ranges.push(range);
            }
            (None, Some(machine)) => {
                if names.insert(machine.0.as_str(), ()).is_some() {
                    let message = format!("a second row for \"{}\"", shown(&machine.0));
                    return Err((path, message, "write one row for each machine".to_owned()));
                }
            }
            _ => {
                let message = "a row is for vCPUs or for a machine".to_owned();
                let help = "write either vcpus = \"2-7\" or machine = \"NAME\"".to_owned();
                return Err((path, message, help));
            }
        }
    }
    Ok(())
}

fn per_vm(catalogue: &Catalogue, index: usize, table: &VmTable) -> Result<(), Mistake> {
    let here = path!["per_vm", index];
    known_sources(catalogue, &here, &table.source)?;
    for kind in &table.types {
        known_type(catalogue, &here, "types", kind)?;
    }
    for family in table.families.iter().filter(|family| *family != "*") {
        known_family(catalogue, &here, "families", family)?;
    }
    let mut rows_path = here.clone();
    rows_path.push("rows".into());
    selectors(&rows_path, table.rows.iter().map(|row| (row.vcpus.as_ref(), row.machine.as_ref())))?;
    for (number, row) in table.rows.iter().enumerate() {
        let mut path = rows_path.clone();
        path.push(number.into());
        vm_row(catalogue, path, row)?;
    }
    for (other_index, other) in catalogue.per_vm.iter().enumerate().take(index) {
        let both = |a: &[String], b: &[String]| a.iter().find(|name| b.contains(name)).cloned();
        let (kind, family) =
            (both(&table.types, &other.types), both(&table.families, &other.families));
        if let (Some(kind), Some(family)) = (kind, family) {
            let message = format!(
                "a second table for {kind} on {family}; table {} is the first",
                other_index + 1
            );
            return Err((here, message, "join the rows of the two".to_owned()));
        }
    }
    Ok(())
}

fn vm_row(catalogue: &Catalogue, path: Vec<Step>, row: &VmRow) -> Result<(), Mistake> {
    let together = row.iops.is_some() || row.mb_per_s.is_some();
    let apart = row.read_iops.is_some()
        || row.write_iops.is_some()
        || row.read_mb_per_s.is_some()
        || row.write_mb_per_s.is_some();
    if together == apart {
        let message = "a row limits reads and writes together, or each".to_owned();
        let help = "write iops and throughput, or read_ and write_ of both".to_owned();
        return Err((path, message, help));
    }
    match &row.source {
        Some(sources) => known_sources(catalogue, &path, sources),
        None => Ok(()),
    }
}

fn rules(catalogue: &Catalogue) -> Result<(), Mistake> {
    if let Some(egress) = &catalogue.egress {
        let here = path!["egress"];
        known_sources(catalogue, &here, &egress.source)?;
        for (key, value) in [
            ("multiplier_zonal", egress.multiplier_zonal),
            ("multiplier_regional", egress.multiplier_regional),
            ("throughput_per_gbit", egress.throughput_per_gbit),
            ("throughput_bytes", egress.throughput_bytes as f64),
        ] {
            if value <= 0.0 {
                let help = "write a number above 0".to_owned();
                return Err((path!["egress", key], format!("{key} = {value}"), help));
            }
        }
        if egress.disk_share > 1.0 {
            let message = format!("disk_share = {}", egress.disk_share);
            return Err((
                path!["egress", "disk_share"],
                message,
                "write a part: 0 to 1".to_owned(),
            ));
        }
    }
    if let Some(cpu) = &catalogue.cpu {
        let here = path!["cpu"];
        known_sources(catalogue, &here, &cpu.source)?;
        for kind in &cpu.types {
            known_type(catalogue, &here, "types", kind)?;
        }
    }
    Ok(())
}

fn references(catalogue: &Catalogue) -> Result<(), Mistake> {
    let mut ids: BTreeMap<&str, ()> = BTreeMap::new();
    for (index, inconsistency) in catalogue.inconsistencies.iter().enumerate() {
        let mut here = path!["inconsistency", index];
        if ids.insert(&inconsistency.id, ()).is_some() {
            let message = format!("a second inconsistency {}", shown(&inconsistency.id));
            return Err((here, message, "give each its own id".to_owned()));
        }
        here.push("touches".into());
        if let Some(touches) = &inconsistency.touches {
            for kind in touches.types.iter().flatten() {
                known_type(catalogue, &here, "types", kind)?;
            }
            for family in touches.families.iter().flatten() {
                known_family(catalogue, &here, "families", family)?;
            }
        }
    }
    for (index, table) in catalogue.page_tables.iter().enumerate() {
        let here = path!["page_table", index];
        for kind in &table.types {
            known_type(catalogue, &here, "types", kind)?;
        }
        if let Some(kind) = &table.kind {
            known_type(catalogue, &here, "type", kind)?;
        }
        if let Some(family) = &table.family {
            known_family(catalogue, &here, "family", family)?;
        }
    }
    Ok(())
}

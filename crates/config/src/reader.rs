//! Reader of one table by its [`schema`](super::schema), which has type, range and default of each
//! key. Each mistake is reported at its source location.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use toml_edit::{Item, TableLike, Value};

use super::diagnostic::{DiagnosticText, Located, Report, SourceLocation, shown};
use super::schema::{Key, Section, SizeRule, ValueKind};
use flagstone_units::{
    format_duration, format_rate, format_size, missing_size_unit, nearest_name, parse_duration,
    parse_rate, parse_size,
};

/// A table of the file, or nothing where the table is absent and all defaults hold.
pub(crate) struct Reader<'a> {
    schema: &'static Section,
    /// Path of the table in the file, such as `volume.db.limit`.
    title: String,
    table: Option<&'a dyn TableLike>,
    place: SourceLocation,
    report: &'a Report,
}

/// A list: the entries that are right, and how many were written.
pub(crate) struct List<T> {
    pub(crate) entries: Vec<Located<T>>,
    pub(crate) written: usize,
    pub(crate) place: SourceLocation,
}

/// A list whose entries are texts or tables.
pub(crate) struct Entries<'a> {
    pub(crate) entries: Vec<ListEntry<'a>>,
    pub(crate) place: SourceLocation,
}

pub(crate) enum ListEntry<'a> {
    Text(Located<&'a str>),
    Table(Reader<'a>),
    /// A type that is no entry, which has been reported.
    Other(Located<&'static str>),
}

/// The place of an item, or of the table around it where the parser knows none.
pub(crate) fn place_of(
    span: Option<std::ops::Range<usize>>,
    otherwise: &SourceLocation,
) -> SourceLocation {
    span.map_or_else(|| otherwise.clone(), SourceLocation::Text)
}

impl<'a> Reader<'a> {
    /// Reads `item` as the table `schema`, after checking that all its keys are known.
    pub(crate) fn new(
        schema: &'static Section,
        title: String,
        item: &'a Item,
        place: SourceLocation,
        report: &'a Report,
    ) -> Option<Reader<'a>> {
        let Some(table) = item.as_table_like() else {
            let found = described(item.type_name());
            let place = place_of(item.span(), &place);
            let help = ValueKind::Table(schema).expected();
            let message = DiagnosticText::of_table(&title, schema.path, |title| {
                format!("`{title}` is a table, found {found}")
            });
            report.error(&place, message, help);
            return None;
        };
        let reader = Reader { schema, title, table: Some(table), place, report };
        reader.refuse_unknown_keys();
        Some(reader)
    }

    /// An absent table: every key has its default.
    pub(crate) fn absent(schema: &'static Section, report: &'a Report) -> Reader<'a> {
        Reader {
            schema,
            title: schema.path.to_owned(),
            table: None,
            place: SourceLocation::Whole,
            report,
        }
    }

    pub(crate) fn message(&self, write: impl Fn(&str) -> String) -> DiagnosticText {
        DiagnosticText::of_table(&self.title, self.schema.path, write)
    }

    fn unknown_keys(&self) -> impl Iterator<Item = &'a str> {
        let names = self.table.into_iter().flat_map(|table| table.iter().map(|(name, _)| name));
        names.filter(|name| self.schema.all_keys().all(|key| key.name != *name))
    }

    /// Returns true if the table has a key that the schema lacks, which is reported.
    pub(crate) fn has_unknown_keys(&self) -> bool {
        self.unknown_keys().next().is_some()
    }

    fn refuse_unknown_keys(&self) {
        let known: Vec<_> = self.schema.all_keys().map(|key| key.name).collect();
        for name in self.unknown_keys() {
            let message =
                self.message(|title| format!("unknown key `{}` in [{title}]", bare(name)));
            self.report.error(&self.key_place(name), message, suggestion(name, &known));
        }
    }

    pub(crate) fn place(&self) -> &SourceLocation {
        &self.place
    }

    /// Where the key `name` is written, or else its table.
    pub(crate) fn key_place(&self, name: &str) -> SourceLocation {
        let span = self.table.and_then(|table| table.key(name)).and_then(|key| key.span());
        place_of(span, &self.place)
    }

    /// Where the value of the key `name` is written, or else the key or its table.
    pub(crate) fn value_place(&self, name: &str) -> SourceLocation {
        place_of(self.item(name).and_then(Item::span), &self.key_place(name))
    }

    /// The table's keys and where each is written, in the order of the file.
    pub(crate) fn keys_in_order(&self) -> Vec<(&'a str, SourceLocation)> {
        let names = self.table.into_iter().flat_map(|table| table.iter());
        let mut keys: Vec<_> = names.map(|(name, _)| (name, self.key_place(name))).collect();
        keys.sort_by_key(|(_, place)| match place {
            SourceLocation::Text(span) => span.start,
            _ => 0,
        });
        keys
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.item(name).is_some()
    }

    /// Returns true if the schema has the key. Unknown keys are reported elsewhere.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.schema.key(name).is_some()
    }

    fn item(&self, name: &str) -> Option<&'a Item> {
        self.table.and_then(|table| table.get(name))
    }

    fn key(&self, name: &str) -> &'static Key {
        self.schema.key(name).expect("the parser asks for keys of its schema")
    }

    /// The value of a key and where it is, if it is written.
    fn value(&self, name: &str) -> Option<(&'a Item, SourceLocation)> {
        let item = self.item(name)?;
        Some((item, self.value_place(name)))
    }

    fn wrong_type(&self, key: &Key, item: &Item, place: &SourceLocation) {
        let message = format!("`{}` is {}", key.name, described(item.type_name()));
        self.report.error(place, message, key.kind.expected());
    }

    /// Reads a key of any kind by `convert`, which returns the value or describes the mistake.
    fn read<T>(
        &self,
        name: &str,
        convert: impl FnOnce(&Item, &ValueKind) -> Option<Result<T, String>>,
    ) -> Option<Located<T>> {
        let key = self.key(name);
        let (item, place) = self.value(name)?;
        match convert(item, &key.kind) {
            None => self.wrong_type(key, item, &place),
            Some(Err(help)) => self.report.error(&place, bad_value(name, item), help),
            Some(Ok(value)) => return Some(Located { value, place }),
        }
        None
    }

    pub(crate) fn boolean(&self, name: &str) -> bool {
        let value = self.read(name, |item, _| item.as_bool().map(Ok));
        value.map_or(self.key(name).default == "true", |value| value.value)
    }

    pub(crate) fn count(&self, name: &str) -> Option<Located<u64>> {
        self.read(name, |item, kind| item.as_integer().map(|n| count_in_range(n.into(), kind)))
    }

    pub(crate) fn count_or_default(&self, name: &str) -> u64 {
        self.count(name).map(|n| n.value).unwrap_or_else(|| {
            self.key(name).default.parse().expect("defaults are checked by a test")
        })
    }

    pub(crate) fn size(&self, name: &str) -> Option<Located<u64>> {
        self.read(name, |item, kind| match (item.as_integer(), item.as_str()) {
            (Some(n), _) => Some(match u64::try_from(n) {
                Ok(bytes) => size_from_text(&bytes.to_string(), kind),
                Err(_) => Err(kind.expected()),
            }),
            (_, Some(text)) => Some(size_from_text(text, kind)),
            _ => None,
        })
    }

    /// A size in bytes, or its default, with the place of the key or its table.
    pub(crate) fn size_or_default(&self, name: &str) -> Located<u64> {
        self.size(name).unwrap_or_else(|| Located {
            value: parse_size(self.key(name).default).expect("defaults are checked by a test"),
            place: self.key_place(name),
        })
    }

    pub(crate) fn rate(&self, name: &str) -> Option<Located<u64>> {
        self.read(name, |item, kind| item.as_str().map(|text| rate_from_text(text, kind)))
    }

    pub(crate) fn rate_or_default(&self, name: &str) -> u64 {
        self.rate(name).map(|rate| rate.value).unwrap_or_else(|| {
            let key = self.key(name);
            rate_from_text(key.default, &key.kind).expect("defaults are checked by a test")
        })
    }

    pub(crate) fn time(&self, name: &str) -> Option<Located<Duration>> {
        self.read(name, |item, kind| match (item.as_integer(), item.as_str()) {
            (Some(n), _) => Some(time_from_text(&n.to_string(), kind)),
            (_, Some(text)) => Some(time_from_text(text, kind)),
            _ => None,
        })
    }

    pub(crate) fn time_or_default(&self, name: &str) -> Duration {
        self.time(name).map(|time| time.value).unwrap_or_else(|| {
            parse_duration(self.key(name).default).expect("defaults are checked by a test")
        })
    }

    pub(crate) fn choice(&self, name: &str) -> String {
        let value =
            self.read(name, |item, kind| item.as_str().map(|text| word_from_text(text, kind)));
        value.map_or_else(|| self.key(name).default.to_owned(), |word| word.value)
    }

    /// The value of `all` whose name is written; the first after a mistake, which is reported.
    pub(crate) fn one_of<T: Copy>(
        &self,
        name: &str,
        all: &[T],
        name_of: impl Fn(T) -> &'static str,
    ) -> T {
        let written = self.choice(name);
        all.iter().copied().find(|value| name_of(*value) == written).unwrap_or(all[0])
    }

    /// A text in a grammar of its own, if written and right.
    pub(crate) fn parsed<T, E: Display>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<Located<T>> {
        self.read(name, |item, _| {
            item.as_str().map(|text| parse(text).map_err(|error| error.to_string()))
        })
    }

    /// A text that `check` accepts, if written.
    pub(crate) fn checked<E: Display>(
        &self,
        name: &str,
        check: impl Fn(&str) -> Result<(), E>,
    ) -> Option<Located<String>> {
        self.parsed(name, |text| check(text).map(|()| text.to_owned()))
    }

    /// A list of texts in a grammar of their own, if written: the entries that are right. More
    /// than `max` is a mistake.
    pub(crate) fn list<T, E: Display>(
        &self,
        name: &str,
        max: usize,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<List<T>> {
        let key = self.key(name);
        let (item, place) = self.value(name)?;
        let Some(array) = item.as_array() else {
            self.wrong_type(key, item, &place);
            return None;
        };
        if array.len() > max {
            let message = format!("`{name}` has {} entries", array.len());
            self.report.error(&self.key_place(name), message, format!("write at most {max}"));
        }
        let entry = |value: &Value| {
            let place = place_of(value.span(), &place);
            let Some(text) = value.as_str() else {
                let message = format!("an entry of `{name}` is {}", described(value.type_name()));
                self.report.error(&place, message, key.kind.expected());
                return None;
            };
            match parse(text) {
                Ok(value) => Some(Located { value, place }),
                Err(error) => {
                    let message = format!("bad entry in `{name}`: {}", shown(text));
                    self.report.error(&place, message, error);
                    None
                }
            }
        };
        let entries = array.iter().take(max).filter_map(entry).collect();
        Some(List { entries, written: array.len(), place })
    }

    /// A list of texts, or of tables as `[[…]]` or `{ … }`, if written. More than `max` is a
    /// mistake.
    pub(crate) fn entries(&self, name: &str, max: usize) -> Option<Entries<'a>> {
        let key = self.key(name);
        let ValueKind::Entries(_, section) = key.kind else {
            unreachable!("the parser asks for entries where its schema has entries")
        };
        let (item, place) = self.value(name)?;
        let title = format!("{}.{name}", self.title);
        let table = |table: &'a dyn TableLike, place| {
            let (schema, title, report) = (section, title.clone(), self.report);
            let reader = Reader { schema, title, table: Some(table), place, report };
            reader.refuse_unknown_keys();
            ListEntry::Table(reader)
        };
        let entries: Vec<_> = match item {
            Item::Value(Value::Array(array)) => array
                .iter()
                .map(|value| {
                    let place = place_of(value.span(), &place);
                    match value {
                        Value::InlineTable(inline) => table(inline, place),
                        Value::String(text) => {
                            ListEntry::Text(Located { value: text.value(), place })
                        }
                        other => ListEntry::Other(Located { value: other.type_name(), place }),
                    }
                })
                .collect(),
            Item::ArrayOfTables(tables) => {
                tables.iter().map(|one| table(one, place_of(one.span(), &place))).collect()
            }
            _ => {
                self.wrong_type(key, item, &place);
                return None;
            }
        };
        for entry in &entries {
            if let ListEntry::Other(other) = entry {
                let message = format!("an entry of `{name}` is {}", described(other.value));
                self.report.error(&other.place, message, key.kind.expected());
            }
        }
        if entries.len() > max {
            let message = format!("`{name}` has {} entries", entries.len());
            self.report.error(&self.key_place(name), message, format!("write at most {max}"));
        }
        Some(Entries { entries, place })
    }

    /// The table at a key, if it is written and is a table.
    pub(crate) fn table(&self, name: &str) -> Option<Reader<'a>> {
        let ValueKind::Table(schema) = self.key(name).kind else {
            unreachable!("the parser asks for tables where its schema has tables")
        };
        let item = self.item(name)?;
        let title = format!("{}.{name}", self.title);
        Reader::new(schema, title, item, self.key_place(name), self.report)
    }

    pub(crate) fn report(&self) -> &'a Report {
        self.report
    }
}

fn bad_value(name: &str, item: &Item) -> String {
    let found = match item {
        Item::Value(Value::String(text)) => shown(text.value()),
        Item::Value(Value::Integer(number)) => number.value().to_string(),
        other => described(other.type_name()),
    };
    format!("bad value for `{name}`: {found}")
}

fn described(type_name: &str) -> String {
    match type_name {
        "array" | "integer" | "inline table" => format!("an {type_name}"),
        "array of tables" => "a list of tables ([[…]])".to_owned(),
        "datetime" => "a date".to_owned(),
        other => format!("a {other}"),
    }
}

/// A key's name as it is repeated in a message.
pub(crate) fn bare(name: &str) -> String {
    let quoted = shown(name);
    quoted[1..quoted.len() - 1].to_owned()
}

/// Which known name was probably meant, or else all of them.
pub(crate) fn suggestion(name: &str, known: &[&str]) -> String {
    match nearest_name(name, known.iter().copied()) {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => format!("known here: {}", known.join(", ")),
    }
}

pub(crate) fn count_in_range(number: i128, kind: &ValueKind) -> Result<u64, String> {
    match (kind, u64::try_from(number)) {
        (ValueKind::Count(range), Ok(number)) if range.contains(&number) => Ok(number),
        _ => Err(kind.expected()),
    }
}

pub(crate) fn size_from_text(text: &str, kind: &ValueKind) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    match kind {
        ValueKind::Size(range, _) => missing_size_unit(text, range).map_or_else(
            || size_in_range(bytes, kind),
            |help| Err(format!("{help}; it is {}", kind.range())),
        ),
        _ => Err(kind.expected()),
    }
}

fn size_in_range(bytes: u64, kind: &ValueKind) -> Result<u64, String> {
    let ValueKind::Size(range, rule) = kind else { return Err(kind.expected()) };
    let (min, max) = (*range.start(), *range.end());
    // A size that fits, and the distance to the next one.
    let power = 1 << bytes.max(1).ilog2();
    let (below, unit) = match rule {
        SizeRule::MultipleOf(unit) => (bytes - bytes % unit, *unit),
        SizeRule::PowerOfTwo => (power, power),
        SizeRule::MinOrMax if bytes == min || bytes == max => return Ok(bytes),
        SizeRule::MinOrMax => return Err(format!("write {}", kind.range())),
    };
    if below == bytes && range.contains(&bytes) {
        return Ok(bytes);
    }
    let nearest = match bytes {
        bytes if bytes < min => format_size(min),
        bytes if bytes > max => format_size(max),
        _ => format!("{} or {}", format_size(below.max(min)), format_size((below + unit).min(max))),
    };
    Err(format!("write {nearest}: it is {}", kind.range()))
}

/// Refuses a value outside its key's range, with the nearest valid value.
fn in_range<T: Ord + Copy>(
    value: T,
    range: &RangeInclusive<T>,
    kind: &ValueKind,
    format: fn(T) -> String,
) -> Result<T, String> {
    match value.clamp(*range.start(), *range.end()) {
        nearest if nearest == value => Ok(value),
        nearest => Err(format!("write {}: it is {}", format(nearest), kind.range())),
    }
}

pub(crate) fn rate_from_text(text: &str, kind: &ValueKind) -> Result<u64, String> {
    let ValueKind::Rate(range) = kind else { return Err(kind.expected()) };
    let rate = parse_rate(text).map_err(|error| error.to_string())?;
    in_range(rate, range, kind, format_rate)
}

pub(crate) fn time_from_text(text: &str, kind: &ValueKind) -> Result<Duration, String> {
    let ValueKind::Time(range) = kind else { return Err(kind.expected()) };
    let time = parse_duration(text).map_err(|error| error.to_string())?;
    in_range(time, range, kind, format_duration)
}

pub(crate) fn word_from_text(text: &str, kind: &ValueKind) -> Result<String, String> {
    match kind {
        ValueKind::Choice(words) if words.contains(&text) => Ok(text.to_owned()),
        _ => Err(kind.expected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::SECTIONS;

    #[test]
    fn schema_defaults_are_valid() {
        for key in SECTIONS.iter().flat_map(|section| section.keys) {
            if key.default.is_empty() {
                continue;
            }
            let checked = match key.kind {
                ValueKind::Boolean => {
                    key.default.parse::<bool>().map(drop).map_err(|e| e.to_string())
                }
                ValueKind::Count(_) => {
                    count_in_range(key.default.parse().unwrap_or(-1), &key.kind).map(drop)
                }
                ValueKind::Size(..) => size_from_text(key.default, &key.kind).map(drop),
                ValueKind::Rate(_) => rate_from_text(key.default, &key.kind).map(drop),
                ValueKind::Time(_) => time_from_text(key.default, &key.kind).map(drop),
                ValueKind::Choice(_) => word_from_text(key.default, &key.kind).map(drop),
                ValueKind::Text("NQN") => crate::names::check_nqn(&format!("{}:x", key.default))
                    .map_err(|e| e.to_string()),
                ValueKind::Text("key prefix") => {
                    crate::arbiter::key_prefix(key.default).map(drop).map_err(str::to_owned)
                }
                _ => Err("this kind has no default".to_owned()),
            };
            assert_eq!(checked, Ok(()), "{} = {}", key.name, key.default);
        }
    }

    #[test]
    fn misspelled_name_suggests_nearest() {
        let known = ["device", "read_only", "nqn"];
        assert_eq!(suggestion("devise", &known), "did you mean `device`?");
        assert_eq!(suggestion("read-only", &known), "did you mean `read_only`?");
        assert_eq!(suggestion("NQN", &known), "did you mean `nqn`?");
        assert_eq!(suggestion("mirror", &known), "known here: device, read_only, nqn");
    }

    #[test]
    fn size_error_names_nearest_valid_size() {
        let kind = ValueKind::Size(4096..=1 << 20, SizeRule::PowerOfTwo);
        let help = size_from_text("5000", &kind).unwrap_err();
        assert!(help.starts_with("write 4KiB or 8KiB: "), "{help}");
        assert!(size_from_text("0", &kind).unwrap_err().starts_with("write 4KiB: "));
        assert!(size_from_text("9GiB", &kind).unwrap_err().starts_with("write 1MiB: "));
        let huge = size_from_text("18446744073709551615", &kind);
        assert!(huge.unwrap_err().starts_with("write 1MiB: "));
    }
}

//! Descriptions of keys and values for people: the tables of the documentation and the help line of
//! a diagnostic.

use std::ops::RangeInclusive;

use flagstone_units::display::plural;
use flagstone_units::{format_duration, format_rate, format_size};

use super::{Section, SizeRule, ValueKind};

impl Section {
    /// The keys as a list, with their values and defaults in parentheses.
    pub fn markdown(&self) -> String {
        // Keys in succession that differ in their names only share an item.
        let mut items: Vec<(String, String)> = Vec::new();
        for key in self.keys {
            let values = match (&key.kind, key.kind.range()) {
                (ValueKind::Boolean, _) => key.kind.noun(),
                (ValueKind::Choice(_), range) => range,
                (_, range) if range.is_empty() => key.kind.noun(),
                (_, range) => format!("{}, {}", key.kind.noun(), range.replace(" to ", "–")),
            };
            let default = match key.default {
                "" => String::new(),
                text => format!("; default `{}`", key.kind.as_toml(text)),
            };
            let rest = format!("({values}{default}): {}", key.description);
            match items.last_mut() {
                Some((names, last)) if *last == rest => *names += &format!(", `{}`", key.name),
                _ => items.push((format!("`{}`", key.name), rest)),
            }
        }
        let mut out = String::from("\n");
        for (names, rest) in items {
            out += &format!("- {names} {rest}\n");
        }
        out.push('\n');
        out
    }
}

impl ValueKind {
    /// The name of the kind, such as `size`.
    pub fn noun(&self) -> String {
        match self {
            ValueKind::Boolean => "boolean".into(),
            ValueKind::Count(_) => "number".into(),
            ValueKind::Size(..) => "size".into(),
            ValueKind::Rate(_) => "throughput".into(),
            ValueKind::Time(_) => "duration".into(),
            ValueKind::Choice(_) => "enum".into(),
            ValueKind::Text(form) => (*form).into(),
            ValueKind::List(form) => format!("list of {}", plural(form)),
            ValueKind::Command => format!("list of {}", plural("word")),
            ValueKind::Entries(form, _) => format!("list of {} or tables", plural(form)),
            ValueKind::Table(_) => "table".into(),
        }
    }

    /// The accepted values, for people; empty where the name of the kind says it all.
    pub fn range(&self) -> String {
        match self {
            ValueKind::Boolean => "true or false".into(),
            ValueKind::Count(range) => ends(range, |n| n.to_string()),
            ValueKind::Size(range, SizeRule::MultipleOf(unit)) => {
                format!("{}, a multiple of {}", ends(range, format_size), format_size(*unit))
            }
            ValueKind::Size(range, SizeRule::PowerOfTwo) => {
                format!("{}, a power of two", ends(range, format_size))
            }
            ValueKind::Size(range, SizeRule::MinOrMax) => {
                format!("{} or {}", format_size(*range.start()), format_size(*range.end()))
            }
            ValueKind::Rate(range) => ends(range, format_rate),
            ValueKind::Time(range) => ends(range, format_duration),
            ValueKind::Choice(words) => {
                words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
            }
            ValueKind::Text(_)
            | ValueKind::List(_)
            | ValueKind::Command
            | ValueKind::Entries(..)
            | ValueKind::Table(_) => String::new(),
        }
    }

    /// Accepted values, for the help line of a diagnostic.
    pub fn expected(&self) -> String {
        match self {
            ValueKind::Boolean => "write true or false, without quotes".into(),
            ValueKind::Count(_) => format!("write a whole number from {}", self.range()),
            ValueKind::Size(range, _) => {
                let example = format_size(4096_u64.clamp(*range.start(), *range.end()));
                format!("write a size such as \"{example}\": {}", self.range())
            }
            ValueKind::Rate(_) => {
                format!("write a throughput such as \"240MB/s\": {}", self.range())
            }
            ValueKind::Time(range) => {
                let example = format_duration(*range.end());
                format!("write a duration such as \"{example}\": {}", self.range())
            }
            ValueKind::Choice(words) => {
                let words: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
                format!("write one of {}", words.join(", "))
            }
            ValueKind::Text(form) => format!("write a text in quotes: {}", article(form)),
            ValueKind::List(form) => {
                format!("write a list of texts: [\"…\", \"…\"], each {}", article(form))
            }
            ValueKind::Command => ValueKind::List("word").expected(),
            ValueKind::Entries(form, section) => {
                let names: Vec<_> = section.all_keys().map(|key| key.name).collect();
                format!(
                    "write a list: [\"…\", \"…\"], each {}, or a table {{ … }} with any of {}",
                    article(form),
                    names.join(", ")
                )
            }
            ValueKind::Table(section) => {
                let names: Vec<_> = section.all_keys().map(|key| key.name).collect();
                format!("write a table: {{ … }} with any of {}", names.join(", "))
            }
        }
    }

    /// A value of this kind as it is written in the file.
    pub fn as_toml(&self, text: &str) -> String {
        match self {
            ValueKind::Boolean | ValueKind::Count(_) => text.to_owned(),
            _ => format!("\"{text}\""),
        }
    }
}

fn ends<T: Copy>(range: &RangeInclusive<T>, format: impl Fn(T) -> String) -> String {
    format!("{} to {}", format(*range.start()), format(*range.end()))
}

fn article(noun: &str) -> String {
    let vowel = noun.starts_with(['a', 'e', 'i', 'o', 'N']);
    format!("{} {noun}", if vowel { "an" } else { "a" })
}

//! Catalog errors: one line with the file, the line, the mistake and the accepted input.

use std::ops::Range;

use super::keys;
use super::model::Units;
use crate::limits::MAX_SHOWN_CHARS;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogError {
    /// The file, as given.
    pub file: String,
    /// Line number from 1; `None` for the whole file.
    pub line: Option<usize>,
    pub message: String,
    pub help: String,
}

impl std::fmt::Display for CatalogError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:", self.file)?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}: {}", self.message, self.help)
    }
}

impl std::error::Error for CatalogError {}

pub(super) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// Input quoted in a message: on one line, truncated.
pub(super) fn shown(text: &str) -> String {
    let mut out: String =
        text.chars().take(MAX_SHOWN_CHARS).map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.chars().nth(MAX_SHOWN_CHARS).is_some() {
        out.push('…');
    }
    out
}

pub(super) fn explain(error: &toml_edit::de::Error, file: &str, text: &str) -> CatalogError {
    let span: Option<Range<usize>> = error.span();
    let line = span.as_ref().map(|span| line_of(text, span.start));
    let said = error.message();
    let first = said.lines().next().unwrap_or(said);
    let (message, help) = reword(first, &place(text, span), &UnitWords::of_text(text));
    CatalogError { file: file.to_owned(), line, message, help }
}

fn place(text: &str, span: Option<Range<usize>>) -> String {
    let Some(span) = span else { return String::new() };
    let start = text[..span.start.min(text.len())].rfind('\n').map_or(0, |at| at + 1);
    text[start..].lines().next().unwrap_or("").trim().to_owned()
}

/// Units in key names: each wrong one and its replacement.
pub(super) struct UnitWords([(&'static str, &'static str); 3]);

impl UnitWords {
    pub(super) fn of_units(units: &Units) -> UnitWords {
        UnitWords::of_names([units.size.name(), units.throughput.name(), units.block.name()])
    }

    /// Of a file that did not parse, by its text, so that messages use the file's own units.
    fn of_text(text: &str) -> UnitWords {
        let binary = ["GiB", "MiB/s", "KiB"];
        UnitWords::of_names(
            binary.map(|name| if text.contains(&format!("\"{name}\"")) { name } else { "" }),
        )
    }

    fn of_names(names: [&str; 3]) -> UnitWords {
        let words = [("gb", "gib"), ("mb", "mib"), ("kb", "kib")];
        UnitWords(std::array::from_fn(|at| match words[at] {
            (decimal, binary) if names[at].contains("iB") => (decimal, binary),
            (decimal, binary) => (binary, decimal),
        }))
    }

    pub(super) fn corrected(&self, key: &str) -> String {
        let word = |word| self.0.iter().find(|(wrong, _)| *wrong == word).map_or(word, |(_, r)| *r);
        key.split('_').map(word).collect::<Vec<_>>().join("_")
    }
}

fn reword(said: &str, line: &str, words: &UnitWords) -> (String, String) {
    let backticked = |text: &str| text.split('`').nth(1).unwrap_or("").to_owned();
    if let Some((_, rest)) = said.split_once("missing field ") {
        let key = backticked(rest);
        let form = keys::form(&key).unwrap_or("a value");
        let key = words.corrected(&key);
        return (
            format!("`{key}` is missing in `{}`", shown(line)),
            format!("write {key} = {form}"),
        );
    }
    if let Some((_, rest)) = said.split_once("unknown field ") {
        let key = backticked(rest);
        let accepted = rest.split_once("expected ").map_or("none", |(_, names)| names);
        return (format!("unknown key `{}`", shown(&key)), accepted_keys(accepted, words));
    }
    for (start, verdict) in
        [("invalid type: ", "is not what belongs here"), ("invalid value: ", "cannot be")]
    {
        let rest = said.strip_prefix(start);
        if let Some((found, wanted)) = rest.and_then(|rest| rest.rsplit_once(", expected ")) {
            return (format!("{} {verdict}", shown(found)), expected(wanted));
        }
    }
    if let Some((_, rest)) = said.split_once("unknown variant ") {
        let wanted = rest.split_once("expected ").map_or("", |(_, names)| names);
        return (
            format!("unknown word \"{}\"", shown(&backticked(rest))),
            format!("write {}", wanted.replace('`', "\"")),
        );
    }
    let help = "a table begins with [name] on its own line, a key is written key = value";
    (format!("this is not a catalog in TOML: {}", shown(said)), help.to_owned())
}

fn accepted_keys(names: &str, words: &UnitWords) -> String {
    let names = names.strip_prefix("one of ").unwrap_or(names).replace('`', "");
    let names: Vec<_> = names
        .split([',', ' '])
        .filter(|name| !name.is_empty() && words.corrected(name) == *name)
        .collect();
    format!("accepted here: {}", names.join(", "))
}

fn expected(wanted: &str) -> String {
    let form = match wanted {
        "f64" => "a number without quotes, such as 0.75",
        "u32" | "u64" => "a whole number without quotes",
        "a string" => "a text in double quotes",
        "a boolean" => "true or false",
        "a sequence" => "a list: [\"…\", \"…\"]",
        "a map" => "a table",
        other => other.strip_prefix("struct ").map_or(other, |_| "a table"),
    };
    format!("write {form}")
}

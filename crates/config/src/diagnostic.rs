//! Diagnostics of a configuration, rendered in the manner of a compiler: line and column, the source
//! line, the problem, and the fix.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::ops::Range;

use crate::limits::{MAX_DIAGNOSTICS, MAX_SHOWN_LINE_CHARS, MAX_SHOWN_VALUE_CHARS};

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// Bytes of the file.
    Text(Range<usize>),
    /// An option of the command line, as written.
    Argument(String),
    /// Nowhere in particular: something is missing from the whole.
    Whole,
}

/// A value and where it was written.
#[derive(Debug, Clone)]
pub(crate) struct Located<T> {
    pub(crate) value: T,
    pub(crate) place: Place,
}

/// One mistake.
#[derive(Debug, Clone)]
struct Mistake {
    place: Place,
    message: String,
    help: String,
    related: Option<(&'static str, Place)>,
}

/// Collects mistakes while a configuration is read, so that all of them are reported at once.
#[derive(Debug, Default)]
pub(crate) struct Report {
    mistakes: RefCell<Vec<Mistake>>,
}

impl Report {
    /// Records a mistake with its problem and its fix.
    pub(crate) fn error(
        &self,
        place: &Place,
        message: impl Into<String>,
        help: impl std::fmt::Display,
    ) {
        self.push(place, message.into(), help.to_string(), None);
    }

    /// Records a mistake that involves a second place, such as the first of two that collide.
    pub(crate) fn error_with(
        &self,
        place: &Place,
        message: impl Into<String>,
        help: impl std::fmt::Display,
        related: (&'static str, &Place),
    ) {
        let related = (related.0, related.1.clone());
        self.push(place, message.into(), help.to_string(), Some(related));
    }

    fn push(
        &self,
        place: &Place,
        message: String,
        help: String,
        related: Option<(&'static str, Place)>,
    ) {
        let mut mistakes = self.mistakes.borrow_mut();
        if mistakes.len() < MAX_DIAGNOSTICS {
            mistakes.push(Mistake { place: place.clone(), message, help, related });
        }
    }

    /// Mistakes recorded so far.
    pub(crate) fn count(&self) -> usize {
        self.mistakes.borrow().len()
    }

    /// Returns true while there is no mistake.
    pub(crate) fn is_empty(&self) -> bool {
        self.mistakes.borrow().is_empty()
    }

    /// The mistakes in the order of the file; those of the command line come last.
    pub(crate) fn into_diagnostics(self, file: Option<(&str, &str)>) -> Diagnostics {
        let mut mistakes = self.mistakes.into_inner();
        mistakes.sort_by_key(|mistake| match &mistake.place {
            Place::Text(span) => (0, span.start),
            Place::Whole => (1, 0),
            Place::Argument(_) => (2, 0),
        });
        let items = mistakes.into_iter().map(|mistake| resolve(mistake, file)).collect();
        let source = file.map(|(name, _)| name.to_owned());
        Diagnostics { source, items }
    }
}

/// A value as it is repeated in a message: quoted, without control characters, cut if long.
pub(crate) fn shown(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars().take(MAX_SHOWN_VALUE_CHARS) {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    if text.chars().nth(MAX_SHOWN_VALUE_CHARS).is_some() {
        out.push('…');
    }
    out.push('"');
    out
}

/// Where a mistake is in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// The line, or the part of it around the mistake, without control characters.
    pub excerpt: String,
    /// Characters of `excerpt` before the mistake.
    pub excerpt_offset: usize,
    /// Characters of `excerpt` that are the mistake, at least 1.
    pub length: usize,
}

/// One mistake, ready to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Where in the file; `None` for the command line, or for the file as a whole.
    pub location: Option<Location>,
    /// The command line option it is about, as written.
    pub argument: Option<String>,
    /// The problem.
    pub message: String,
    /// The fix: the expected value, or the text to write instead.
    pub help: String,
    /// A second place that the mistake is about, such as `first given at flagstone.toml:3:1`.
    pub note: Option<String>,
}

/// Every mistake of a configuration; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostics {
    source: Option<String>,
    items: Vec<Diagnostic>,
}

impl std::fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Diagnostics {}

impl Diagnostics {
    /// A file that could not be read at all.
    pub(crate) fn unreadable(name: &str, message: String, help: &str) -> Diagnostics {
        let item = Diagnostic {
            location: None,
            argument: None,
            message,
            help: help.to_owned(),
            note: None,
        };
        Diagnostics { source: Some(name.to_owned()), items: vec![item] }
    }

    /// The file's name, as it was given; `None` if there is no file.
    pub fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    /// The mistakes, in the order of the file.
    pub fn items(&self) -> &[Diagnostic] {
        &self.items
    }

    /// All mistakes as text for a person, colored with ANSI sequences if asked to.
    pub fn render(&self, color: bool) -> String {
        let paint = Paint { color };
        let mut out = String::new();
        for item in &self.items {
            self.render_one(item, &paint, &mut out);
        }
        let count = match self.items.len() {
            1 => "1 mistake".to_owned(),
            n if n >= MAX_DIAGNOSTICS => format!("{n} mistakes or more"),
            n => format!("{n} mistakes"),
        };
        let source = self.source.as_deref().unwrap_or("command line");
        let _ = writeln!(out, "{source}: {count}");
        out
    }

    fn render_one(&self, item: &Diagnostic, paint: &Paint, out: &mut String) {
        let source = self.source.as_deref().unwrap_or("command line");
        let place = match (&item.location, &item.argument) {
            (Some(at), _) => format!("{source}:{}:{}", at.line, at.column),
            (None, Some(argument)) => argument.clone(),
            (None, None) => source.to_owned(),
        };
        let (error, message) = (paint.red("error:"), paint.bold(&item.message));
        let _ = writeln!(out, "{}: {error} {message}", paint.bold(&place));
        let gutter = match &item.location {
            Some(at) => render_excerpt(at, paint, out),
            None => 0,
        };
        let margin = paint.blue("=");
        let _ = writeln!(out, "{:gutter$} {margin} help: {}", "", item.help);
        if let Some(note) = &item.note {
            let _ = writeln!(out, "{:gutter$} {margin} note: {note}", "");
        }
        out.push('\n');
    }
}

/// Writes the source line and the marks under the mistake. Returns the width of the margin.
fn render_excerpt(at: &Location, paint: &Paint, out: &mut String) -> usize {
    let number = at.line.to_string();
    let gutter = number.len();
    let bar = paint.blue("|");
    let _ = writeln!(out, "{} {bar} {}", paint.blue(&number), at.excerpt);
    // A tab before the mistake stays one, so that the marks stand where the mistake does.
    let indent: String = at
        .excerpt
        .chars()
        .take(at.excerpt_offset)
        .map(|c| if c == '\t' { '\t' } else { ' ' })
        .collect();
    let _ = writeln!(out, "{:gutter$} {bar} {indent}{}", "", paint.red(&"^".repeat(at.length)));
    gutter
}

/// ANSI colors, or none.
struct Paint {
    color: bool,
}

impl Paint {
    fn with(&self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
    fn red(&self, text: &str) -> String {
        self.with("1;31", text)
    }
    fn blue(&self, text: &str) -> String {
        self.with("1;34", text)
    }
    fn bold(&self, text: &str) -> String {
        self.with("1", text)
    }
}

fn resolve(mistake: Mistake, file: Option<(&str, &str)>) -> Diagnostic {
    let note = mistake.related.map(|(words, place)| format!("{words} {}", spot(&place, file)));
    let (location, argument) = match (mistake.place, file) {
        (Place::Text(span), Some((_, text))) => (Some(locate(text, span)), None),
        (Place::Argument(argument), _) => (None, Some(printable(&argument))),
        _ => (None, None),
    };
    Diagnostic { location, argument, message: mistake.message, help: mistake.help, note }
}

fn spot(place: &Place, file: Option<(&str, &str)>) -> String {
    match (place, file) {
        (Place::Text(span), Some((name, text))) => {
            let at = locate(text, span.clone());
            format!("{name}:{}:{}", at.line, at.column)
        }
        (Place::Argument(argument), _) => printable(argument),
        _ => "the file".to_owned(),
    }
}

fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { '\u{FFFD}' } else { c }).collect()
}

/// The last boundary between characters at or before `index`.
fn char_boundary_before(text: &str, index: usize) -> usize {
    let index = index.min(text.len());
    (0..=index).rev().find(|index| text.is_char_boundary(*index)).unwrap_or(0)
}

/// Line, column and excerpt of a range of bytes of `text`. A range that ends beyond its first
/// line is marked to the end of that line.
fn locate(text: &str, span: Range<usize>) -> Location {
    let start = char_boundary_before(text, span.start);
    let end = char_boundary_before(text, span.end).max(start);
    let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
    let line_end = text[start..].find('\n').map_or(text.len(), |newline| start + newline);
    let line = text[..line_start].matches('\n').count() + 1;
    let before = text[line_start..start].chars().count();
    let marked = text[start..end.min(line_end)].trim_end().chars().count().max(1);

    // Of a long line, a window that begins a little before the mistake.
    let skipped = match before + marked <= MAX_SHOWN_LINE_CHARS {
        true => 0,
        false => before.saturating_sub(MAX_SHOWN_LINE_CHARS / 4),
    };
    let window = text[line_start..line_end].trim_end().chars().skip(skipped);
    let excerpt: String = window.take(MAX_SHOWN_LINE_CHARS).collect();
    let excerpt_offset = before - skipped;
    Location {
        line,
        column: before + 1,
        excerpt: printable(&excerpt),
        excerpt_offset,
        length: marked.min(MAX_SHOWN_LINE_CHARS.saturating_sub(excerpt_offset)).max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn columns_count_characters_from_one() {
        let at = locate("a = 1\nö = \"ü\" # x\n", 11..15);
        assert_eq!((at.line, at.column, at.length), (2, 5, 3));
        assert_eq!(at.excerpt, "ö = \"ü\" # x");
    }

    #[test]
    fn multiline_range_is_marked_on_first_line() {
        let at = locate("x = [\n 1,\n]\n", 4..11);
        assert_eq!((at.line, at.column, at.length), (1, 5, 1));
    }

    #[test]
    fn terminal_escapes_in_file_are_not_printed() {
        let at = locate("a = \"\x1b[2J\"", 0..1);
        assert!(!at.excerpt.contains('\x1b'));
        assert!(!shown("\x1b[2J").contains('\x1b'));
    }

    #[test]
    fn long_lines_and_values_are_cut() {
        let line = format!("{}x{}", " ".repeat(500), "y".repeat(500));
        let at = locate(&line, 500..501);
        assert_eq!((at.column, at.length), (501, 1));
        assert_eq!(at.excerpt.chars().nth(at.excerpt_offset), Some('x'));
        assert_eq!(at.excerpt.chars().count(), MAX_SHOWN_LINE_CHARS);
        assert_eq!(shown(&line).chars().count(), MAX_SHOWN_VALUE_CHARS + 3);
    }

    proptest! {
        #[test]
        fn any_range_of_any_text_has_a_place(text in any::<String>(), a in 0usize..200, b in 0usize..200) {
            let at = locate(&text, a..b);
            prop_assert!(at.line >= 1 && at.column >= 1 && at.length >= 1);
            prop_assert!(at.excerpt.chars().count() <= MAX_SHOWN_LINE_CHARS);
        }
    }
}

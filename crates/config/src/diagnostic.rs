//! Diagnostics of a configuration, rendered in the manner of a compiler: line and column, the
//! source line, the problem, and the fix. Nothing of a hostile file is shown at length or with
//! control characters.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};
use flagstone_units::display::counted;
use serde::{Serialize, Serializer};

use crate::limits::{
    MAX_DIAGNOSTICS, MAX_SHOWN_LINE_CHARS, MAX_SHOWN_PLACES, MAX_SHOWN_VALUE_CHARS, MAX_SIMILAR,
};
use crate::redact;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SourceLocation {
    Text(Range<usize>),
    /// An option of the command line, as written.
    Argument(String),
    /// Nowhere in particular: something is missing from the whole.
    Whole,
}

#[derive(Debug, Clone)]
pub(crate) struct Located<T> {
    pub(crate) value: T,
    pub(crate) place: SourceLocation,
}

/// Text of a configuration: one file, or the files of a directory one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConfigText<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
    /// First byte and name of each file of a directory, in order; empty for a single file.
    pub(crate) files: &'a [(usize, String)],
}

impl<'a> ConfigText<'a> {
    pub(crate) fn file(name: &'a str, text: &'a str) -> ConfigText<'a> {
        ConfigText { name, text, files: &[] }
    }

    /// Name and text of the file that `span` begins in, and the span in it.
    fn part(&self, span: &Range<usize>) -> (&'a str, &'a str, Range<usize>) {
        let after = self.files.partition_point(|(start, _)| *start <= span.start);
        let Some((start, name)) = after.checked_sub(1).map(|index| &self.files[index]) else {
            return (self.name, self.text, span.clone());
        };
        let end = self.files.get(after).map_or(self.text.len(), |(end, _)| *end);
        (name, &self.text[*start..end], span.start - start..span.end.min(end) - start)
    }
}

/// Whether a diagnostic refuses the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DiagnosticSeverity {
    Mistake,
    /// The configuration is accepted, but has no effect where the operator expects one.
    Warning,
}

/// Text of a mistake, and the text that it has in every table of the same kind. Mistakes of one
/// kind are reported together.
#[derive(Debug, Clone)]
pub(crate) struct DiagnosticText {
    text: String,
    kind: String,
}

impl DiagnosticText {
    /// `write` gets the name of the table: its own for the text, the schema's for the kind.
    pub(crate) fn of_table(
        name: &str,
        schema: &str,
        write: impl Fn(&str) -> String,
    ) -> DiagnosticText {
        DiagnosticText { text: write(name), kind: write(schema) }
    }
}

impl<T: Into<String>> From<T> for DiagnosticText {
    fn from(text: T) -> DiagnosticText {
        let text = text.into();
        DiagnosticText { kind: text.clone(), text }
    }
}

#[derive(Debug, Clone)]
struct Mistake {
    severity: DiagnosticSeverity,
    place: SourceLocation,
    message: DiagnosticText,
    help: String,
    related: Option<(&'static str, SourceLocation)>,
    /// Places of the same mistake, including the first.
    count: usize,
    /// The first few of the others.
    also_at: Vec<SourceLocation>,
    /// It stands for all mistakes that differ in their values only.
    is_collective: bool,
    /// Message and help without their values.
    form: String,
}

impl Mistake {
    fn is_same(&self, other: &Mistake) -> bool {
        self.severity == other.severity
            && self.message.kind == other.message.kind
            && self.help == other.help
    }

    /// True if only numbers and quoted values differ.
    fn is_similar(&self, other: &Mistake) -> bool {
        self.severity == other.severity && self.form == other.form
    }

    /// Counts the places of another mistake here.
    fn absorb(&mut self, other: Mistake) {
        self.count += other.count;
        self.also_at.extend(std::iter::once(other.place).chain(other.also_at));
        self.also_at.truncate(MAX_SHOWN_PLACES);
    }
}

/// Collects mistakes while a configuration is read, so that all of them are reported at once.
#[derive(Debug, Default)]
pub(crate) struct Report {
    mistakes: RefCell<Vec<Mistake>>,
    /// Mistakes at all places, including those beyond the bounds. Warnings are none.
    count: Cell<usize>,
}

impl Report {
    pub(crate) fn error(
        &self,
        place: &SourceLocation,
        message: impl Into<DiagnosticText>,
        help: impl std::fmt::Display,
    ) {
        self.add(DiagnosticSeverity::Mistake, place, message.into(), help.to_string(), None);
    }

    pub(crate) fn warn(
        &self,
        place: &SourceLocation,
        message: impl Into<DiagnosticText>,
        help: impl std::fmt::Display,
    ) {
        self.add(DiagnosticSeverity::Warning, place, message.into(), help.to_string(), None);
    }

    /// Records a mistake that involves a second place, such as the first of two that collide.
    pub(crate) fn error_with(
        &self,
        place: &SourceLocation,
        message: impl Into<DiagnosticText>,
        help: impl std::fmt::Display,
        (words, related): (&'static str, &SourceLocation),
    ) {
        let related = Some((words, related.clone()));
        self.add(DiagnosticSeverity::Mistake, place, message.into(), help.to_string(), related);
    }

    fn add(
        &self,
        severity: DiagnosticSeverity,
        place: &SourceLocation,
        message: DiagnosticText,
        help: String,
        related: Option<(&'static str, SourceLocation)>,
    ) {
        if severity == DiagnosticSeverity::Mistake {
            self.count.set(self.count.get() + 1);
        }
        let place = place.clone();
        let (count, also_at) = (1, Vec::new());
        let form = without_values(&format!("{}\n{help}", message.kind));
        let new = Mistake {
            severity,
            place,
            message,
            help,
            related,
            count,
            also_at,
            is_collective: false,
            form,
        };
        let mut mistakes = self.mistakes.borrow_mut();
        let is_full = mistakes.len() == MAX_DIAGNOSTICS;
        if let Some(first) = mistakes.iter_mut().find(|mistake| mistake.is_same(&new)) {
            return first.absorb(new);
        }
        let similar: Vec<_> =
            (0..mistakes.len()).filter(|at| mistakes[*at].is_similar(&new)).collect();
        match similar.as_slice() {
            [first, ..] if mistakes[*first].is_collective => mistakes[*first].absorb(new),
            [first, others @ ..] if similar.len() == MAX_SIMILAR => {
                for other in others.iter().rev() {
                    let other = mistakes.remove(*other);
                    mistakes[*first].absorb(other);
                }
                mistakes[*first].absorb(new);
                mistakes[*first].is_collective = true;
            }
            _ if is_full => {}
            _ => mistakes.push(new),
        }
    }

    /// Number of mistakes so far, at all places.
    pub(crate) fn count(&self) -> usize {
        self.count.get()
    }

    /// The mistakes in the order of the file, then of the command line. `None` if there are none.
    pub(crate) fn into_diagnostics(self, file: Option<ConfigText<'_>>) -> Option<Diagnostics> {
        let mut mistakes = self.mistakes.into_inner();
        mistakes.sort_by_key(|mistake| match &mistake.place {
            SourceLocation::Text(span) => (0, span.start),
            SourceLocation::Whole => (1, 0),
            SourceLocation::Argument(_) => (2, 0),
        });
        let items: Vec<_> =
            mistakes.into_iter().map(|mistake| Diagnostic::new(mistake, file)).collect();
        let source = source_name(file);
        (!items.is_empty()).then_some(Diagnostics { source, items, mistakes: self.count.get() })
    }
}

/// A text with its numbers and quoted values left out.
fn without_values(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut quoted, mut escaped) = (false, false);
    for c in text.chars() {
        let is_quote = c == '"' && !escaped;
        escaped = quoted && c == '\\' && !escaped;
        match (is_quote, quoted) {
            (true, _) => quoted = !quoted,
            (false, false) if c.is_ascii_digit() => {
                if !out.ends_with('#') {
                    out.push('#');
                }
            }
            (false, false) => out.push(c),
            (false, true) => {}
        }
    }
    out
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

/// One mistake or warning, ready to be shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    pub severity: DiagnosticSeverity,
    /// Line in the file, from 1; `None` for the command line, or for the file as a whole.
    pub line: Option<usize>,
    pub column: Option<usize>,
    pub message: String,
    /// The fix: the expected value, or the text to write instead.
    pub help: String,
    /// A second place that the mistake is about, such as `first given at flagstone.toml:3:1`.
    pub note: Option<String>,
    /// Number of places of the same mistake, including this one; from 1.
    pub count: usize,
    /// The first few other places, such as `flagstone.toml:7:1`.
    pub also_at: Vec<String>,
    /// File or command-line option; null for neither.
    #[serde(rename = "file", serialize_with = "text_or_null")]
    origin: String,
    #[serde(skip)]
    excerpt: Excerpt,
}

fn text_or_null<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    Some(text).filter(|text| !text.is_empty()).serialize(serializer)
}

impl Diagnostic {
    /// A warning that has no place in a file.
    pub fn warning(message: String, help: &str) -> Diagnostic {
        Diagnostic {
            severity: DiagnosticSeverity::Warning,
            line: None,
            column: None,
            message,
            help: help.to_owned(),
            note: None,
            count: 1,
            also_at: Vec::new(),
            origin: String::new(),
            excerpt: Excerpt::default(),
        }
    }
}

/// A source line, or the part of it around a mistake, without control characters.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Excerpt {
    text: String,
    /// Bytes of `text` that are the mistake.
    marked: Range<usize>,
    /// The beginning of the line is left out.
    cut: bool,
}

/// Mistakes and warnings of a configuration; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostics {
    source: String,
    items: Vec<Diagnostic>,
    mistakes: usize,
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
        let report = Report::default();
        report.error(&SourceLocation::Whole, message, help);
        report.into_diagnostics(Some(ConfigText::file(name, ""))).expect("a mistake was reported")
    }

    /// Mistakes in the files of a directory, before those in the configuration that the rest makes.
    pub(crate) fn join(name: &str, files: Vec<Diagnostics>, rest: Option<Diagnostics>) -> Self {
        let mut all = Diagnostics { source: printable(name), items: Vec::new(), mistakes: 0 };
        for part in files.into_iter().chain(rest) {
            all.mistakes += part.mistakes;
            all.items.extend(part.items);
        }
        all
    }

    /// The mistakes and warnings, in the order of the file; each once, however many places it has.
    pub fn items(&self) -> &[Diagnostic] {
        &self.items
    }

    /// All mistakes as text for a person, colored with ANSI sequences if asked to.
    pub fn render(&self, color: bool) -> String {
        let renderer = if color { Renderer::styled() } else { Renderer::plain() };
        let mut out = String::new();
        for item in &self.items {
            let others = item.others();
            out += &renderer.render(&[item.group(others.as_deref())]);
            out += "\n\n";
        }
        let warnings =
            self.items.iter().filter(|item| item.severity == DiagnosticSeverity::Warning);
        let warnings: usize = warnings.map(|item| item.count).sum();
        let counts: Vec<_> = [(self.mistakes, "mistake"), (warnings, "warning")]
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, noun)| counted(count as u64, noun))
            .collect();
        out + &format!("{}: {}\n", self.source, counts.join(", "))
    }
}

impl Diagnostic {
    fn new(mistake: Mistake, file: Option<ConfigText<'_>>) -> Diagnostic {
        let note = mistake.related.map(|(words, place)| format!("{words} {}", spot(&place, file)));
        let also_at = mistake.also_at.iter().map(|place| spot(place, file)).collect();
        let (origin, line, column, excerpt) = match (mistake.place, file) {
            (SourceLocation::Text(span), Some(source)) => {
                let (name, text, span) = source.part(&span);
                let (line, column, mut excerpt) = locate(text, span);
                // A key in the place of its path must not reach a log.
                excerpt.text = redact::mask(&excerpt.text);
                (name.to_owned(), Some(line), Some(column), excerpt)
            }
            (SourceLocation::Argument(argument), _) => (argument, None, None, Excerpt::default()),
            _ => (source_name(file), None, None, Excerpt::default()),
        };
        let Mistake { severity, message, help, count, .. } = mistake;
        let (message, origin) = (redact::text(&message.text), printable(&origin));
        Diagnostic { severity, line, column, message, help, note, count, also_at, origin, excerpt }
    }

    /// Other places of the same mistake, for people.
    fn others(&self) -> Option<String> {
        let others = self.count - 1;
        let places = self.also_at.join(", ");
        match others {
            0 => None,
            _ if others == self.also_at.len() => Some(format!("the same at {places}")),
            _ => Some(format!("the same at {others} more places, such as {places}")),
        }
    }

    fn group<'a>(&'a self, others: Option<&'a str>) -> Group<'a> {
        let level = match self.severity {
            DiagnosticSeverity::Mistake => Level::ERROR,
            DiagnosticSeverity::Warning => Level::WARNING,
        };
        let title = level.primary_title(&self.message);
        let origin = Origin::path(&self.origin);
        let group = match (self.line, self.column) {
            (Some(line), Some(column)) => {
                let mark = AnnotationKind::Primary.span(self.excerpt.marked.clone());
                let source = Snippet::source(&self.excerpt.text).line_start(line).annotation(mark);
                // The part of a long line would be numbered from its own start.
                match self.excerpt.cut {
                    true => title.element(origin.line(line).char_column(column)).element(source),
                    false => title.element(source.path(&self.origin)),
                }
            }
            _ => title.element(origin),
        };
        let note = self.note.as_ref().map(|note| Level::NOTE.message(note));
        let others = others.map(|others| Level::NOTE.message(others));
        group.element(Level::HELP.message(&self.help)).elements(note).elements(others)
    }
}

fn source_name(file: Option<ConfigText<'_>>) -> String {
    file.map_or("command line", |source| source.name).to_owned()
}

fn spot(place: &SourceLocation, file: Option<ConfigText<'_>>) -> String {
    match (place, file) {
        (SourceLocation::Text(span), Some(source)) => {
            let (name, text, span) = source.part(span);
            let (line, column, _) = locate(text, span);
            format!("{name}:{line}:{column}")
        }
        (SourceLocation::Argument(argument), _) => printable(argument),
        _ => "the file".to_owned(),
    }
}

/// Control characters could change the terminal. A tab becomes a space, so that columns agree.
fn printable(text: &str) -> String {
    let shown = |c: char| match c {
        '\t' => ' ',
        c if c.is_control() => '\u{FFFD}',
        c => c,
    };
    text.chars().map(shown).collect()
}

/// Line, column and excerpt of a range of bytes of `text`. A range that ends beyond its first
/// line is marked to the end of that line.
fn locate(text: &str, span: Range<usize>) -> (usize, usize, Excerpt) {
    let start = text.floor_char_boundary(span.start);
    let end = text.floor_char_boundary(span.end).max(start);
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
    let shown = printable(&window.take(MAX_SHOWN_LINE_CHARS).collect::<String>());
    let byte_at = |count: usize| shown.char_indices().nth(count).map_or(shown.len(), |(at, _)| at);
    let from = before - skipped;
    let marked = byte_at(from)..byte_at(from + marked);
    (line, before + 1, Excerpt { text: shown, marked, cut: skipped > 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn marked(text: &str, span: Range<usize>) -> (usize, usize, String) {
        let (line, column, excerpt) = locate(text, span);
        (line, column, excerpt.text[excerpt.marked].to_owned())
    }

    #[test]
    fn columns_count_characters_from_one() {
        assert_eq!(marked("a = 1\nö = \"ü\" # x\n", 11..15), (2, 5, "\"ü\"".to_owned()));
    }

    #[test]
    fn multiline_range_is_marked_on_first_line() {
        assert_eq!(marked("x = [\n 1,\n]\n", 4..11), (1, 5, "[".to_owned()));
    }

    #[test]
    fn terminal_escapes_in_file_are_not_printed() {
        let (_, _, excerpt) = locate("a = \"\x1b[2J\"", 0..1);
        assert!(!excerpt.text.contains('\x1b'));
        assert!(!shown("\x1b[2J").contains('\x1b'));
    }

    #[test]
    fn many_mistakes_that_differ_in_values_are_told_once() {
        let report = Report::default();
        let add = |value: i32| {
            let place = SourceLocation::Text(0..1);
            report.error(&place, format!("bad value for `iops`: {value}"), "at least 1");
        };
        (-3..0).for_each(add);
        report.error(&SourceLocation::Whole, "bad value for `size`: \"x\"", "at least 1");
        assert_eq!(report.mistakes.borrow().len(), 4, "a few are told one by one");
        (-1000..-3).for_each(add);
        let all = report.into_diagnostics(Some(ConfigText::file("f", "x = 1\n"))).unwrap();
        let counts: Vec<_> = all.items().iter().map(|item| item.count).collect();
        assert_eq!((counts, all.mistakes), (vec![1000, 1], 1001));
        assert_eq!(all.items()[0].also_at.len(), MAX_SHOWN_PLACES);
        assert!(all.render(false).lines().count() < 20);
    }

    #[test]
    fn values_are_left_out_of_the_form() {
        for (text, form) in [
            ("`a` is \"x\\\"1\": write 10 to 20", "`a` is : write # to #"),
            ("-12", "-#"),
            ("open \"quote", "open "),
        ] {
            assert_eq!(without_values(text), form);
        }
    }

    #[test]
    fn long_lines_and_values_are_cut() {
        let line = format!("{}x{}", " ".repeat(500), "y".repeat(500));
        assert_eq!(marked(&line, 500..501), (1, 501, "x".to_owned()));
        let (_, _, excerpt) = locate(&line, 500..501);
        assert_eq!(excerpt.text.chars().count(), MAX_SHOWN_LINE_CHARS);
        assert_eq!(shown(&line).chars().count(), MAX_SHOWN_VALUE_CHARS + 3);
    }

    proptest! {
        #[test]
        fn any_range_of_any_text_has_a_place(text in any::<String>(), a in 0usize..200, b in 0usize..200) {
            let (line, column, excerpt) = locate(&text, a..b);
            prop_assert!(line >= 1 && column >= 1);
            prop_assert!(excerpt.text.get(excerpt.marked).is_some());
            prop_assert!(excerpt.text.chars().count() <= MAX_SHOWN_LINE_CHARS);
        }
    }
}

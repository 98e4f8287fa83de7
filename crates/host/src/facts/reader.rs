//! Fact reader: facts with their evidence, and the list of failed reads.

use std::io::ErrorKind;

use serde::Serialize;

use crate::limits::{EVIDENCE_BYTES_MAX, NAME_BYTES_MAX};
use crate::root::Root;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Observed<T> {
    pub(crate) value: T,
    /// The file, or the command before `:`.
    pub(crate) file: String,
    pub(crate) text: String,
}

/// A fact that could not be read or parsed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unread {
    pub file: String,
    pub why: String,
}

pub(super) struct FactReader<'a> {
    pub(super) root: &'a Root,
    pub(super) unread: Vec<Unread>,
}

impl<'a> FactReader<'a> {
    pub(super) fn new(root: &'a Root) -> FactReader<'a> {
        FactReader { root, unread: Vec::new() }
    }

    pub(super) fn fail(&mut self, file: &str, why: impl ToString) {
        self.unread.push(Unread { file: clean(file), why: clean(&why.to_string()) });
    }

    /// Reads a file that every such host has; a missing file is a failure.
    pub(super) fn needed(&mut self, file: &str) -> Option<String> {
        self.root.read(file).map_err(|error| self.fail(file, error)).ok()
    }

    /// Reads a file that only some hosts have; a missing file is no failure.
    pub(super) fn text(&mut self, file: &str) -> Option<Observed<String>> {
        match self.root.read(file) {
            Ok(text) => Some(seen(text.clone(), file, &text)),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => {
                self.fail(file, error);
                None
            }
        }
    }

    /// Reads and parses a file; unparsable text is a failure.
    pub(super) fn parsed<T>(
        &mut self,
        file: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<Observed<T>> {
        let text = self.text(file)?.value;
        match parse(&text) {
            Some(value) => Some(seen(value, file, &text)),
            None => {
                self.fail(file, format!("not understood: {:?}", clean(&text)));
                None
            }
        }
    }

    pub(super) fn number(&mut self, file: &str) -> Option<Observed<u64>> {
        self.parsed(file, |text| text.parse().ok())
    }

    /// Names in a directory. Names that no kernel gives are skipped: names get into commands.
    pub(super) fn names(&mut self, directory: &str) -> Vec<String> {
        let names = match self.root.list(directory) {
            Ok(names) => names,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                self.fail(directory, error);
                Vec::new()
            }
        };
        let (good, odd): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| is_name(name));
        for name in odd {
            self.fail(&format!("{directory}/{name}"), "no name that a kernel gives");
        }
        good
    }
}

pub(super) fn seen<T>(value: T, file: &str, text: &str) -> Observed<T> {
    Observed { value, file: file.to_owned(), text: clean(text) }
}

/// Text on one short line without control characters, for a terminal.
pub(super) fn clean(text: &str) -> String {
    let mut line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(EVIDENCE_BYTES_MAX)
        .collect();
    if line.len() < text.len() {
        line.push('…');
    }
    line
}

/// Whether a kernel could give the name: safe in a path, a shell command and a udev rule.
pub(crate) fn is_name(name: &str) -> bool {
    let is_right = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.!:@".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(is_right)
        && !name.starts_with(['.', '-'])
}

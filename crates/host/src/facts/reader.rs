//! Reading of single facts, with the memory of where they came from and of what failed.

use std::io::ErrorKind;

use serde::Serialize;

use crate::limits::{EVIDENCE_BYTES_MAX, NAME_BYTES_MAX};
use crate::root::Root;

/// A fact, and where it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen<T> {
    /// The fact.
    pub value: T,
    /// The file, or the command in front of `:`.
    pub file: String,
    /// What it said, shortened and on one line.
    pub text: String,
}

/// Something that could not be read or understood.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unread {
    /// The file or the command.
    pub file: String,
    /// Why.
    pub why: String,
}

/// Reads facts from a host.
pub(super) struct Reader<'a> {
    pub(super) root: &'a Root,
    pub(super) unread: Vec<Unread>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(root: &'a Root) -> Reader<'a> {
        Reader { root, unread: Vec::new() }
    }

    pub(super) fn fail(&mut self, file: &str, why: impl ToString) {
        self.unread.push(Unread { file: clean(file), why: clean(&why.to_string()) });
    }

    /// A file that every such host has: if it is missing, that is told.
    pub(super) fn needed(&mut self, file: &str) -> Option<String> {
        self.root.read(file).map_err(|error| self.fail(file, error)).ok()
    }

    /// A file that some hosts have: if it is missing, the fact is absent and that is all.
    pub(super) fn text(&mut self, file: &str) -> Option<Seen<String>> {
        match self.root.read(file) {
            Ok(text) => Some(seen(text.clone(), file, &text)),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => {
                self.fail(file, error);
                None
            }
        }
    }

    /// A file as a fact; one that is there and not understood is told.
    pub(super) fn parsed<T>(
        &mut self,
        file: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<Seen<T>> {
        let text = self.text(file)?.value;
        match parse(&text) {
            Some(value) => Some(seen(value, file, &text)),
            None => {
                self.fail(file, format!("not understood: {:?}", clean(&text)));
                None
            }
        }
    }

    pub(super) fn number(&mut self, file: &str) -> Option<Seen<u64>> {
        self.parsed(file, |text| text.parse().ok())
    }

    /// Names in a directory; those that no kernel gives are told and left out, because they
    /// become parts of commands.
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

/// A fact with its evidence.
pub(super) fn seen<T>(value: T, file: &str, text: &str) -> Seen<T> {
    Seen { value, file: file.to_owned(), text: clean(text) }
}

/// One short line without control characters, for a terminal.
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

/// Whether it is a name as kernels give it: safe in a path, a shell and a udev rule.
pub(crate) fn is_name(name: &str) -> bool {
    let is_right = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.!:@".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(is_right)
        && !name.starts_with(['.', '-'])
}

//! What a table of the file is made of: keys, and the kinds of their values.

use std::time::Duration;

/// A table of the file.
#[derive(Debug)]
pub struct Section {
    /// As in the file, `NAME` standing for a name that the user chooses.
    pub path: &'static str,
    /// Its keys.
    pub keys: &'static [Key],
}

/// A key of a table.
#[derive(Debug)]
pub struct Key {
    /// As in the file.
    pub name: &'static str,
    /// What its value is.
    pub kind: Kind,
    /// The value when it is absent, without quotes; empty when there is none, and then `about`
    /// says what happens.
    pub default: &'static str,
    /// What it does.
    pub about: &'static str,
}

/// What a value is, and its range.
#[derive(Debug)]
pub enum Kind {
    /// `true` or `false`.
    Flag,
    /// A whole number.
    Count {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
    /// A size in bytes: text with a unit, or a whole number.
    Size {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
        /// What else it has to be.
        rule: SizeRule,
    },
    /// Bytes a second: text with a unit and `/s`.
    Rate {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
    /// A duration: text with a unit.
    Time {
        /// Shortest.
        min: Duration,
        /// Longest.
        max: Duration,
    },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A text of this form.
    Text(&'static str),
    /// A list of texts of this form.
    List(&'static str),
    /// A table with keys of its own.
    Table(&'static Section),
}

/// What a size has to be, besides in range.
#[derive(Debug)]
pub enum SizeRule {
    /// A multiple of so many bytes.
    MultipleOf(u64),
    /// A power of two.
    PowerOfTwo,
    /// Either of two sizes: the least or the most.
    MinOrMax,
}

impl Section {
    /// The key called `name`.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;
pub(super) const GIB: u64 = 1 << 30;
pub(super) const MINUTE_MS: u64 = 60_000;
pub(super) const DAY_MS: u64 = 24 * 60 * MINUTE_MS;

pub(super) const fn key(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    about: &'static str,
) -> Key {
    Key { name, kind, default, about }
}

pub(super) const fn time(min_ms: u64, max_ms: u64) -> Kind {
    Kind::Time { min: Duration::from_millis(min_ms), max: Duration::from_millis(max_ms) }
}

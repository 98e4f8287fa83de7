//! Tables of the configuration file: their keys, and the kinds of the values.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::PROFILE;

#[derive(Debug)]
pub struct Section {
    /// The path in the file; `NAME` stands for a name that the user chooses.
    pub path: &'static str,
    pub keys: &'static [Key],
    /// The keys of a disk profile belong to it too.
    pub profile: bool,
}

#[derive(Debug)]
pub struct Key {
    pub name: &'static str,
    pub kind: ValueKind,
    /// The value of an absent key, without quotes. Empty when there is none: then the
    /// description says what happens.
    pub default: &'static str,
    /// The effect of the key, in Markdown.
    pub description: &'static str,
}

/// Kind of a value, with its range.
#[derive(Debug)]
pub enum ValueKind {
    Boolean,
    Count(RangeInclusive<u64>),
    /// A size in bytes: text with a unit, or a whole number.
    Size(RangeInclusive<u64>, SizeRule),
    /// Bytes a second: text with a unit and `/s`.
    Rate(RangeInclusive<u64>),
    /// A duration: text with a unit.
    Time(RangeInclusive<Duration>),
    Choice(&'static [&'static str]),
    Text(&'static str),
    List(&'static str),
    /// A program and its arguments, which may hold passwords.
    Command,
    /// A list of texts, each of which may be a table instead.
    Entries(&'static str, &'static Section),
    Table(&'static Section),
}

/// Condition on a size, besides its range.
#[derive(Debug)]
pub enum SizeRule {
    MultipleOf(u64),
    PowerOfTwo,
    /// Either of two sizes: the least or the most.
    MinOrMax,
}

impl Section {
    pub fn all_keys(&self) -> impl Iterator<Item = &'static Key> {
        let profile = if self.profile { PROFILE.keys } else { &[] };
        self.keys.iter().chain(profile)
    }

    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.all_keys().find(|key| key.name == name)
    }
}

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;
pub(super) const GIB: u64 = 1 << 30;
pub(super) const MINUTE_MS: u64 = 60_000;
pub(super) const DAY_MS: u64 = 24 * 60 * MINUTE_MS;

/// The keys of a section: `NAME, KIND, DEFAULT => DESCRIPTION;` for each.
macro_rules! keys {
    ($($name:literal, $kind:expr, $default:expr => $description:literal;)*) => {
        &[$($crate::schema::Key {
            name: $name,
            kind: $kind,
            default: $default,
            description: $description,
        }),*]
    };
}
pub(super) use keys;

pub(super) const fn time(min_ms: u64, max_ms: u64) -> ValueKind {
    ValueKind::Time(RangeInclusive::new(
        Duration::from_millis(min_ms),
        Duration::from_millis(max_ms),
    ))
}

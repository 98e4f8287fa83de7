//! Where numbers come from, and how far they are trusted.

use serde::{Deserialize, Serialize};

/// How far a source is to be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Confidence {
    /// The provider's own page or repository, or a copy of it.
    A,
    /// A third party that restates the provider's page.
    B,
    /// A single mention by a third party, or a rule of an older page that nothing newer repeats.
    C,
}

impl std::fmt::Display for Confidence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Confidence::A => "A",
            Confidence::B => "B",
            Confidence::C => "C",
        })
    }
}

/// Where numbers come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// An address, or the title of a page.
    pub address: String,
    /// When it was written or stored, as far as it says.
    pub date: String,
    /// How far it is trusted.
    pub confidence: Confidence,
    /// Anything else worth knowing of it.
    pub note: Option<String>,
    /// The commit, of a repository.
    pub commit: Option<String>,
}

/// Which sources a table rests on, and how far it is trusted where that differs from theirs.
pub type SourceKeys = Vec<String>;

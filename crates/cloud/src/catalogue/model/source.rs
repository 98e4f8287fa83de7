//! Sources of the catalogue's numbers, and their confidence.

use serde::{Deserialize, Serialize};

/// Confidence in a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Confidence {
    /// The provider's own page or repository, or a copy of it.
    A,
    /// A third party that restates the provider's page.
    B,
    /// A single mention by a third party, or a rule of an older page that no newer page repeats.
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

/// A source of numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogueSource {
    /// An address, or the title of a page.
    pub address: String,
    /// Date of writing or storing, as far as it is known.
    pub date: String,
    /// Confidence.
    pub confidence: Confidence,
    /// Remark.
    pub note: Option<String>,
    /// Commit, for a repository.
    pub commit: Option<String>,
}

/// Keys of a table's sources.
pub type SourceKeys = Vec<String>;

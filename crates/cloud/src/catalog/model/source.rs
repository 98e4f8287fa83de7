//! Sources of the catalog's numbers, and their confidence.

use serde::{Deserialize, Serialize};

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

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogSource {
    /// Or the title of a page.
    pub address: String,
    /// Of writing or storing, if known.
    pub date: String,
    pub confidence: Confidence,
    pub note: Option<String>,
    pub commit: Option<String>,
}

pub(crate) type SourceKeys = Vec<String>;

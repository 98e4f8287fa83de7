//! Catalogue: limits and prices of a cloud's disks and machines, as data with sources.
//!
//! [`Catalogue::builtin`] returns the built-in catalogues, [`Catalogue::parse`] a user's. Both are
//! complete: names exist, ranges do not overlap, every number is finite and not negative, and every
//! table names its sources. `docs/catalogue.md` describes the format.

mod check;
mod error;
mod keys;
mod model;
mod select;

use std::io::Read as _;
use std::path::Path;
use std::sync::OnceLock;

pub use error::CatalogueError;
pub use model::*;
pub use select::{CountRange, NamePattern};

use crate::limits::MAX_CATALOGUE_BYTES;
use error::line_of;

/// Name and text of the built-in catalogues.
const BUILTIN: [(&str, &str); 2] = [
    ("gcp-2019", include_str!("../../catalogues/gcp-2019.toml")),
    ("gcp-current", include_str!("../../catalogues/gcp-current.toml")),
];

/// The default catalogue.
pub const DEFAULT_CATALOGUE: &str = "gcp-current";

impl Catalogue {
    /// Names of the built-in catalogues.
    pub fn builtin_names() -> [&'static str; 2] {
        BUILTIN.map(|(name, _)| name)
    }

    /// Text of a built-in catalogue, as a template.
    pub fn builtin_text(name: &str) -> Option<&'static str> {
        BUILTIN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    }

    /// A built-in catalogue, parsed on first use; `None` if the name is unknown.
    pub fn builtin(name: &str) -> Option<&'static Catalogue> {
        static READ: [OnceLock<Catalogue>; 2] = [const { OnceLock::new() }; 2];
        let index = BUILTIN.iter().position(|(known, _)| *known == name)?;
        Some(READ[index].get_or_init(|| {
            let (name, text) = BUILTIN[index];
            Catalogue::parse(name, text)
                .unwrap_or_else(|error| panic!("a catalogue in the program is wrong: {error}"))
        }))
    }

    /// Parses a catalogue. `file` is its name for messages.
    ///
    /// # Errors
    /// The first mistake.
    pub fn parse(file: &str, text: &str) -> Result<Catalogue, CatalogueError> {
        let document = document(file, text)?;
        let catalogue: Catalogue = deserialized(file, text)?;
        check::check(&catalogue, &document, file, text)?;
        Ok(catalogue)
    }

    /// Reads a catalogue file of at most 1 MiB.
    ///
    /// # Errors
    /// The file is unreadable, or its first mistake.
    pub fn read(path: &Path) -> Result<Catalogue, CatalogueError> {
        let text = read_text(path, "a catalogue")?;
        Catalogue::parse(&path.display().to_string(), &text)
    }

    /// Opens a catalogue by name or path, as for `--catalog`.
    ///
    /// # Errors
    /// As [`Catalogue::read`].
    pub fn open(name_or_path: &str) -> Result<Catalogue, CatalogueError> {
        match Catalogue::builtin(name_or_path) {
            Some(catalogue) => Ok(catalogue.clone()),
            None => Catalogue::read(Path::new(name_or_path)),
        }
    }
}

fn document<'t>(file: &str, text: &'t str) -> Result<toml_edit::Document<&'t str>, CatalogueError> {
    toml_edit::Document::parse(text).map_err(|error| CatalogueError {
        file: file.to_owned(),
        line: error.span().map(|span| line_of(text, span.start)),
        message: format!("this is not TOML: {}", error::shown(error.message().trim())),
        help: "a table begins with [name] on its own line, a key is written key = value".to_owned(),
    })
}

fn deserialized<T: serde::de::DeserializeOwned>(
    file: &str,
    text: &str,
) -> Result<T, CatalogueError> {
    toml_edit::de::from_str(text).map_err(|error| error::explain(&error, file, text))
}

/// Parses TOML with the error messages of catalogues.
pub(crate) fn from_toml<T: serde::de::DeserializeOwned>(
    file: &str,
    text: &str,
) -> Result<T, CatalogueError> {
    document(file, text)?;
    deserialized(file, text)
}

/// Text of a file of at most 1 MiB. `what` describes it for messages.
pub(crate) fn read_text(path: &Path, what: &str) -> Result<String, CatalogueError> {
    let unreadable = |message: String| CatalogueError {
        file: path.display().to_string(),
        line: None,
        message,
        help: match what {
            "a catalogue" => format!(
                "give {}, or the path of a catalogue that this user may read",
                Catalogue::builtin_names().join(" or ")
            ),
            _ => format!("give the path of {what} that this user may read"),
        },
    };
    let mut bytes = Vec::new();
    // The file is read once before anything runs. Simulated runs parse text.
    #[expect(clippy::disallowed_methods)]
    let opened = std::fs::File::open(path);
    opened
        .and_then(|file| file.take(MAX_CATALOGUE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| unreadable(format!("cannot read {what}: {error}")))?;
    if bytes.len() as u64 > MAX_CATALOGUE_BYTES {
        return Err(unreadable(format!("{what} is not larger than 1 MiB")));
    }
    String::from_utf8(bytes).map_err(|_| unreadable(format!("{what} is not UTF-8 text")))
}

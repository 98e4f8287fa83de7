//! Catalog: limits and prices of a cloud's disks and machines, as data with sources.
//!
//! [`Catalog::builtin`] returns the built-in catalogs, [`Catalog::parse`] a user's. Both are
//! complete: names exist, ranges do not overlap, every number is finite and not negative, and every
//! table names its sources. `docs/catalog.md` describes the format.

mod check;
mod error;
mod keys;
mod model;
mod select;

use std::io::Read as _;
use std::path::Path;
use std::sync::OnceLock;

pub use error::CatalogError;
pub use model::*;
pub use select::{CountRange, NamePattern};

use crate::limits::MAX_CATALOG_BYTES;
use error::line_of;

/// Name and text of the built-in catalogs.
const BUILTIN: [(&str, &str); 2] = [
    ("gcp-2019", include_str!("../../catalogs/gcp-2019.toml")),
    ("gcp-current", include_str!("../../catalogs/gcp-current.toml")),
];

pub const DEFAULT_CATALOG: &str = "gcp-current";

impl Catalog {
    pub fn builtin_names() -> [&'static str; 2] {
        BUILTIN.map(|(name, _)| name)
    }

    pub fn builtin_text(name: &str) -> Option<&'static str> {
        BUILTIN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    }

    /// A built-in catalog, parsed on first use; `None` if the name is unknown.
    pub fn builtin(name: &str) -> Option<&'static Catalog> {
        static READ: [OnceLock<Catalog>; 2] = [const { OnceLock::new() }; 2];
        let index = BUILTIN.iter().position(|(known, _)| *known == name)?;
        Some(READ[index].get_or_init(|| {
            let (name, text) = BUILTIN[index];
            Catalog::parse(name, text)
                .unwrap_or_else(|error| panic!("a catalog in the program is wrong: {error}"))
        }))
    }

    pub fn parse(file: &str, text: &str) -> Result<Catalog, CatalogError> {
        let document = document(file, text)?;
        let catalog: Catalog = deserialized(file, text)?;
        check::check(&catalog, &document, file, text)?;
        Ok(catalog)
    }

    /// Reads a catalog file of at most 1 MiB.
    ///
    /// # Errors
    /// The file is unreadable, or its first mistake.
    pub fn read(path: &Path) -> Result<Catalog, CatalogError> {
        let text = read_text(path, "a catalog")?;
        Catalog::parse(&path.display().to_string(), &text)
    }

    /// Opens a catalog by name or path, as for `--catalog`.
    pub fn open(name_or_path: &str) -> Result<Catalog, CatalogError> {
        match Catalog::builtin(name_or_path) {
            Some(catalog) => Ok(catalog.clone()),
            None => Catalog::read(Path::new(name_or_path)),
        }
    }
}

fn document<'t>(file: &str, text: &'t str) -> Result<toml_edit::Document<&'t str>, CatalogError> {
    toml_edit::Document::parse(text).map_err(|error| CatalogError {
        file: file.to_owned(),
        line: error.span().map(|span| line_of(text, span.start)),
        message: format!("this is not TOML: {}", error::shown(error.message().trim())),
        help: "a table begins with [name] on its own line, a key is written key = value".to_owned(),
    })
}

fn deserialized<T: serde::de::DeserializeOwned>(file: &str, text: &str) -> Result<T, CatalogError> {
    toml_edit::de::from_str(text).map_err(|error| error::explain(&error, file, text))
}

/// Parses TOML with the error messages of catalogs.
pub(crate) fn from_toml<T: serde::de::DeserializeOwned>(
    file: &str,
    text: &str,
) -> Result<T, CatalogError> {
    document(file, text)?;
    deserialized(file, text)
}

/// Text of a file of at most 1 MiB. `what` describes it for messages.
pub(crate) fn read_text(path: &Path, what: &str) -> Result<String, CatalogError> {
    let unreadable = |message: String| CatalogError {
        file: path.display().to_string(),
        line: None,
        message,
        help: match what {
            "a catalog" => format!(
                "give {}, or the path of a catalog that this user may read",
                Catalog::builtin_names().join(" or ")
            ),
            _ => format!("give the path of {what} that this user may read"),
        },
    };
    let mut bytes = Vec::new();
    // The file is read once before anything runs. Simulated runs parse text.
    #[expect(clippy::disallowed_methods)]
    let opened = std::fs::File::open(path);
    opened
        .and_then(|file| file.take(MAX_CATALOG_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| unreadable(format!("cannot read {what}: {error}")))?;
    if bytes.len() as u64 > MAX_CATALOG_BYTES {
        return Err(unreadable(format!("{what} is not larger than 1 MiB")));
    }
    String::from_utf8(bytes).map_err(|_| unreadable(format!("{what} is not UTF-8 text")))
}

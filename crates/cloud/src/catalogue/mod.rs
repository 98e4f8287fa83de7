//! The catalogue: what a cloud's disks and machines do, as data with its sources.
//!
//! [`Catalogue::builtin`] gives the ones in the program, [`Catalogue::parse`] one of a user's.
//! Either is whole: names refer to something, ranges do not overlap, every number is finite and
//! not negative, and every table names its sources. The format is in `docs/catalogue.md`.

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
pub use select::{Pattern, Range};

use crate::limits::MAX_CATALOGUE_BYTES;
use error::line_of;

/// The catalogues in the program: name and text.
const BUILTIN: [(&str, &str); 2] = [
    ("gcp-2019", include_str!("../../catalogues/gcp-2019.toml")),
    ("gcp-current", include_str!("../../catalogues/gcp-current.toml")),
];

/// The catalogue that is taken where none is named.
pub const DEFAULT_CATALOGUE: &str = "gcp-current";

impl Catalogue {
    /// The names of the catalogues in the program.
    pub fn builtin_names() -> [&'static str; 2] {
        BUILTIN.map(|(name, _)| name)
    }

    /// The text of a catalogue in the program, to begin one's own from.
    pub fn builtin_text(name: &str) -> Option<&'static str> {
        BUILTIN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    }

    /// A catalogue in the program; `None` if there is none of that name. It is read once.
    pub fn builtin(name: &str) -> Option<&'static Catalogue> {
        static READ: [OnceLock<Catalogue>; 2] = [const { OnceLock::new() }; 2];
        let index = BUILTIN.iter().position(|(known, _)| *known == name)?;
        Some(READ[index].get_or_init(|| {
            let (name, text) = BUILTIN[index];
            Catalogue::parse(name, text)
                .unwrap_or_else(|error| panic!("a catalogue in the program is wrong: {error}"))
        }))
    }

    /// Reads a catalogue from text; `file` is its name, for messages.
    ///
    /// # Errors
    /// The first mistake in it.
    pub fn parse(file: &str, text: &str) -> Result<Catalogue, CatalogueError> {
        let document = document(file, text)?;
        let catalogue: Catalogue = deserialized(file, text)?;
        check::check(&catalogue, &document, file, text)?;
        Ok(catalogue)
    }

    /// Reads the catalogue in a file of at most 1 MiB.
    ///
    /// # Errors
    /// That it cannot be read, or the first mistake in it.
    pub fn read(path: &Path) -> Result<Catalogue, CatalogueError> {
        let text = read_text(path, "a catalogue")?;
        Catalogue::parse(&path.display().to_string(), &text)
    }

    /// The catalogue of a name, or of a file: what `--catalog` takes.
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

/// What stands in a TOML text, mistakes told as those of catalogues are.
pub(crate) fn from_toml<T: serde::de::DeserializeOwned>(
    file: &str,
    text: &str,
) -> Result<T, CatalogueError> {
    document(file, text)?;
    deserialized(file, text)
}

/// The text of a file of at most 1 MiB; `what` is what it should be.
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
    // Such files are read once, before anything runs; simulated runs parse text.
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

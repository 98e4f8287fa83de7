//! Configuration: one TOML file, a directory of them, or the options of `flagstone serve`, or both.
//!
//! [`Config::parse`] returns either a configuration that is valid as a whole or all its mistakes
//! ([`Diagnostics`]), each at its line and column with the fix. Unknown keys are mistakes. Catalogs
//! named in the file are read with it. No input causes a panic, or memory use beyond a small
//! multiple of the file's size.
//!
//! [`schema`] has the keys, and `docs/configuration.md` is generated from it. The order of keys has
//! no meaning. [`device_spec`] and [`listen_spec`] parse devices and addresses, [`names`] checks
//! names, [`starter`] writes a first file.

#![allow(missing_docs, reason = "the names of most members say it")]

mod access;
mod api;
pub mod api_spec;
mod arbiter;
mod arguments;
mod changes;
mod check;
mod describe_performance;
pub mod device_spec;
mod diagnostic;
mod files;
mod layers;
pub mod limits;
pub mod listen_spec;
mod mirror;
mod model;
pub mod names;
mod performance;
mod pool_leg;
mod profile;
mod read;
mod reader;
pub mod redact;
mod run_time;
pub mod schema;
pub mod starter;
pub mod uri;

use std::path::Path;

pub use access::Exposure;
pub use arbiter::BucketOptions;
pub use arguments::Arguments;
pub use diagnostic::{Diagnostic, DiagnosticSeverity, Diagnostics};
pub use model::{
    ApiRole, ApiTls, ApiUser, ArbiterStore, ArbiterTls, Backing, BucketStore, BucketUrl, Cloud,
    Config, DiskProfile, EtcdStore, HostAccess, LayerConfig, LimitConfig, MirrorConfig, Nbd, Nvme,
    Peer, PeerDemand, Provisioned, ServerSettings, Subsystem, Volume,
};

pub use flagstone_runtime::IoEngine;
pub use run_time::pool_volume_keys;

use check::RawConfig;
use diagnostic::{ConfigText, Report, SourceLocation};
use files::ConfigTexts;

/// A valid configuration, and what is suspicious about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    pub config: Config,
    /// Parts that have no effect, if there are any.
    pub warnings: Option<Diagnostics>,
}

impl Config {
    /// Reads a configuration from the text of a file; `name` is the file's, for the messages.
    ///
    /// # Errors
    /// Every mistake in it; of the syntax of TOML, the first.
    pub fn parse(name: &str, text: &str) -> Result<Config, Diagnostics> {
        Config::parse_with(name, text, &Arguments::default())
    }

    /// As [`Config::parse`], with command-line options: volumes are added to the file's, other
    /// options override the file.
    pub fn parse_with(
        name: &str,
        text: &str,
        arguments: &Arguments,
    ) -> Result<Config, Diagnostics> {
        Config::check_text(name, text, arguments).map(|checked| checked.config)
    }

    /// As [`Config::parse_with`], with warnings.
    pub fn check_text(
        name: &str,
        text: &str,
        arguments: &Arguments,
    ) -> Result<Checked, Diagnostics> {
        check_source(ConfigText::file(name, text), arguments)
    }

    pub fn from_args(arguments: &Arguments) -> Result<Config, Diagnostics> {
        let report = Report::default();
        let raw = read::read_root(&toml_edit::Table::new(), &report);
        finish(Some(raw), report, arguments, None).map(|checked| checked.config)
    }

    /// Reads the file at `path`, at most 1 MiB, with command-line options. Of a directory, reads
    /// the files `*.toml` in the order of their names, as one text: a table is in one of them only.
    ///
    /// # Errors
    /// As [`Config::parse_with`]; or that the file cannot be read, or is no text.
    pub fn read(path: &Path, arguments: &Arguments) -> Result<Config, Diagnostics> {
        Config::check(path, arguments).map(|checked| checked.config)
    }

    /// As [`Config::read`], with warnings.
    pub fn check(path: &Path, arguments: &Arguments) -> Result<Checked, Diagnostics> {
        let name = path.display().to_string();
        let ConfigTexts { text, files, mistakes } = files::read_texts(path, &name)?;
        let checked =
            check_source(ConfigText { name: &name, text: &text, files: &files }, arguments);
        match mistakes.is_empty() {
            true => checked,
            false => Err(Diagnostics::join(&name, mistakes, checked.err())),
        }
    }
}

fn check_source(source: ConfigText<'_>, arguments: &Arguments) -> Result<Checked, Diagnostics> {
    let report = Report::default();
    let raw = parse_toml(source.text, &report);
    finish(raw, report, arguments, Some(source))
}

/// `None` when the syntax is broken: nothing more can be said of such a file.
fn parse_toml(text: &str, report: &Report) -> Option<RawConfig> {
    match toml_edit::Document::parse(text) {
        Ok(document) => Some(read::read_root(document.as_table(), report)),
        Err(error) => {
            let place = error.span().map_or(SourceLocation::Whole, SourceLocation::Text);
            let message = format!("this is not TOML: {}", error.message());
            report.error(&place, message, syntax_help(error.message()));
            None
        }
    }
}

fn syntax_help(message: &str) -> &'static str {
    match message {
        m if m.contains("duplicate key") => "a key or table is written once; remove or join one",
        m if m.contains("string") => "a text is in double quotes: key = \"text\"",
        _ => {
            "a table begins with [name] on its own line; a key is written key = value, texts in double quotes"
        }
    }
}

fn finish(
    raw: Option<RawConfig>,
    report: Report,
    arguments: &Arguments,
    file: Option<ConfigText<'_>>,
) -> Result<Checked, Diagnostics> {
    let config = raw.and_then(|mut raw| {
        arguments.apply(&mut raw, &report);
        check::finish(raw, &report)
    });
    let diagnostics = report.into_diagnostics(file);
    match (config, diagnostics) {
        (Some(config), warnings) => Ok(Checked { config, warnings }),
        (None, Some(mistakes)) => Err(mistakes),
        (None, None) => unreachable!("a refused configuration has a mistake"),
    }
}

//! Logs: structured, on standard error, filtered by `RUST_LOG`.

use std::io;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use crate::output::wants_color;

/// Format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text for people, colored on a terminal.
    Text,
    /// One JSON object per line.
    Json,
}

const DEFAULT_FILTER: &str = "info";

/// Starts logging. Call once, before the first message.
///
/// # Errors
/// `RUST_LOG` is invalid, or logging has already started. The error is a message for people.
pub fn init(format: LogFormat) -> Result<(), String> {
    let directives = std::env::var("RUST_LOG").unwrap_or_default();
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter(&directives)?).with_writer(io::stderr);
    let started = match format {
        LogFormat::Text => builder.with_ansi(wants_color(&io::stderr())).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_ansi(false).try_init(),
    };
    started.map_err(|error| format!("cannot start logging: {error}"))
}

fn filter(directives: &str) -> Result<EnvFilter, String> {
    let directives = match directives.trim() {
        "" => DEFAULT_FILTER,
        given => given,
    };
    EnvFilter::try_new(directives).map_err(|error| {
        format!("RUST_LOG is not understood: {error}; write a level (error, warn, info, debug, trace) or target=level, …")
    })
}

#[cfg(test)]
mod tests {
    use super::filter;

    #[test]
    fn log_filter_is_validated() {
        assert_eq!(filter("").expect("the default").to_string(), "info");
        assert_eq!(filter("warn").expect("a level").to_string(), "warn");
        assert!(filter("flagstone_nvmf_target=debug,warn").is_ok());
        let error = filter("flagstone_nvmf_target=loud").expect_err("no such level");
        assert!(error.starts_with("RUST_LOG is not understood"), "{error}");
    }
}

//! Logs: structured, on standard error, filtered by `RUST_LOG`. Audit lines stay unless it names
//! them.

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

/// Target of the audit lines of the API.
const AUDIT: &str = "audit";

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
    let filter = EnvFilter::try_new(directives).map_err(|error| {
        format!("RUST_LOG is not understood: {error}; write a level (error, warn, info, debug, trace) or target=level, …")
    })?;
    if directives.split(',').any(names_audit) {
        return Ok(filter);
    }
    let lines = "audit=info".parse().expect("a directive");
    Ok(filter.add_directive(lines))
}

/// True for a directive whose target is the audit lines.
fn names_audit(directive: &str) -> bool {
    directive.split(['=', '[']).next().is_some_and(|target| target.trim() == AUDIT)
}

#[cfg(test)]
mod tests {
    use super::filter;

    #[test]
    fn audit_lines_stay_unless_they_are_named() {
        let shown = |text: &str| filter(text).expect("a filter").to_string();
        assert_eq!(shown("warn"), "audit=info,warn");
        assert_eq!(shown("flagstone_mirror=debug,off"), "flagstone_mirror=debug,audit=info,off");
        for named in ["warn,audit=off", "audit=warn", "warn,audit=error"] {
            assert!(!shown(named).contains("audit=info"), "{named}: {}", shown(named));
        }
    }

    #[test]
    fn log_filter_is_validated() {
        let shown = |text: &str| filter(text).expect("a filter").to_string();
        assert_eq!(shown(""), "audit=info,info");
        assert!(filter("flagstone_nvmf_target=debug,warn").is_ok());
        let error = filter("flagstone_nvmf_target=loud").expect_err("no such level");
        assert!(error.starts_with("RUST_LOG is not understood"), "{error}");
    }
}

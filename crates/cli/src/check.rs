//! `flagstone check FILE`: validates a configuration without serving anything.

use std::io;

use flagstone_config::{Arguments, Checked, Config, Diagnostic, Diagnostics};
use flagstone_server::api::check_users;
use flagstone_stack::{keys, tls_files};
use flagstone_units::display::counted;
use serde::Serialize;

use crate::args::CheckArgs;
use crate::exit::{Exit, Failure};
use crate::output::{self, complain, print, wants_color};

/// Runs the command. Mistakes and warnings go to standard error as text, or to standard output as
/// JSON.
pub(crate) fn run(args: &CheckArgs) -> Result<Exit, Failure> {
    let name = args.file.display().to_string();
    let show = |diagnostics: &Diagnostics| {
        complain(&diagnostics.render(wants_color(&io::stderr())));
    };
    Ok(match (Config::check(&args.file, &Arguments::default()), args.json) {
        (Ok(Checked { config, warnings }), false) => {
            warnings.iter().for_each(show);
            for warning in further_warnings(&config) {
                complain(&format!("warning: {}\n  help: {}\n", warning.message, warning.help));
            }
            print(&summary(&name, &config), Exit::Success)
        }
        (Ok(checked), true) => print(&json(&name, Ok(&checked)), Exit::Success),
        (Err(diagnostics), false) => {
            show(&diagnostics);
            Exit::Usage
        }
        (Err(diagnostics), true) => print(&json(&name, Err(&diagnostics)), Exit::Usage),
    })
}

/// Files of keys that cannot be used, and what needs no key.
fn further_warnings(config: &Config) -> Vec<Diagnostic> {
    let keys = keys::check(config).into_iter().map(|error| {
        let help = "correct the file before the server starts; `flagstone key generate PATH` \
                    makes a key";
        Diagnostic::warning(error.to_string(), help)
    });
    let tls = tls_files::check(config).map(|error| error.to_string());
    let others = tls.into_iter().chain(check_users(config));
    let others =
        others.map(|error| Diagnostic::warning(error, "correct the file before the server starts"));
    let files = keys.chain(others);
    let insecure = config.insecure_access().into_iter().map(|access| {
        let help = "use keys (docs/guides/keys.md), or accept that";
        Diagnostic::warning(format!("insecure: {access}"), help)
    });
    files.chain(insecure).collect()
}

fn summary(name: &str, config: &Config) -> String {
    let mut text = format!(
        "{name}: ok: {}, {}, {}\n",
        counted(config.volumes.len() as u64, "volume"),
        counted(config.subsystems.len() as u64, "subsystem"),
        counted(config.server.listen.len() as u64, "address"),
    );
    for volume in &config.volumes {
        for line in config.performance(volume) {
            text += &format!("  {}: {line}\n", volume.name);
        }
    }
    text
}

#[derive(Serialize)]
struct JsonReport<'a> {
    file: &'a str,
    ok: bool,
    mistakes: &'a [Diagnostic],
    warnings: Vec<Diagnostic>,
    volumes: Vec<JsonVolume<'a>>,
}

#[derive(Serialize)]
struct JsonVolume<'a> {
    name: &'a str,
    performance: Vec<String>,
}

fn json(file: &str, read: Result<&Checked, &Diagnostics>) -> String {
    let mistakes = read.err().map_or(&[][..], Diagnostics::items);
    let warnings = read.map_or(Vec::new(), |Checked { config, warnings }| {
        let written = warnings.iter().flat_map(Diagnostics::items).cloned();
        written.chain(further_warnings(config)).collect()
    });
    let volumes = read.ok().into_iter().flat_map(|Checked { config, .. }| {
        config
            .volumes
            .iter()
            .map(move |one| JsonVolume { name: &one.name, performance: config.performance(one) })
    });
    let (ok, volumes) = (read.is_ok(), volumes.collect());
    output::json(&JsonReport { file, ok, mistakes, warnings, volumes })
}

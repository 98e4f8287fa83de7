//! `flagstone reload`: has a running server read its configuration and its key files again.

use std::fmt::Write as _;

use clap::Args;
use flagstone_server::api::document::ReloadDocument;
use flagstone_units::counted;

use crate::exit::{Exit, Failure};
use crate::output::print;
use crate::status::run_client;
use crate::status::server::{ApiArgs, read};

#[derive(Debug, Clone, Args)]
pub(crate) struct ReloadArgs {
    /// Print the server's JSON document (docs/api.md)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn run(args: &ReloadArgs) -> Result<Exit, Failure> {
    run_client(async || {
        let body = args.api.connect()?.post_text("/v1/reload", "")?;
        let text = if args.json { body } else { shown(&read(body.as_bytes())?) };
        Ok(print(&text, Exit::Success))
    })
}

fn shown(reloaded: &ReloadDocument) -> String {
    let ReloadDocument { limits_changed, withdrawn_hosts, next_start_keys } = reloaded;
    let mut text = format!(
        "reloaded: new connections use the keys in the files, and {} changed\n",
        counted(*limits_changed as u64, "limit")
    );
    for (what, names) in [
        ("removed hosts, which are disconnected", withdrawn_hosts),
        ("take effect at the next start", next_start_keys),
    ] {
        if !names.is_empty() {
            let _ = writeln!(text, "{what}: {}", names.join(", "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_for_the_next_start_are_shown() {
        let document = |keys: &[&str]| ReloadDocument {
            limits_changed: 1,
            withdrawn_hosts: Vec::new(),
            next_start_keys: keys.iter().map(ToString::to_string).collect(),
        };
        let text = "reloaded: new connections use the keys in the files, and 1 limit changed\n";
        assert_eq!(shown(&document(&[])), text);
        assert!(
            shown(&document(&["server.cores", "limit.x"])).ends_with(": server.cores, limit.x\n")
        );
        let withdrawn_hosts = vec!["db1".to_owned()];
        let removed = ReloadDocument { withdrawn_hosts, ..document(&[]) };
        assert!(shown(&removed).ends_with("\nremoved hosts, which are disconnected: db1\n"));
    }
}

//! `flagstone reload`: has a running server read its configuration and its key files again.

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
    let begin = format!(
        "reloaded: new connections use the keys in the files, and {} changed\n",
        counted(reloaded.limits_changed as u64, "limit")
    );
    match reloaded.next_start_keys.is_empty() {
        true => begin,
        false => {
            format!(
                "{begin}take effect at the next start: {}\n",
                reloaded.next_start_keys.join(", ")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_for_the_next_start_are_shown() {
        let document = |keys: &[&str]| ReloadDocument {
            limits_changed: 1,
            next_start_keys: keys.iter().map(ToString::to_string).collect(),
        };
        let text = "reloaded: new connections use the keys in the files, and 1 limit changed\n";
        assert_eq!(shown(&document(&[])), text);
        assert!(
            shown(&document(&["server.cores", "limit.x"])).ends_with(": server.cores, limit.x\n")
        );
    }
}

//! `flagstone mirror`: shows and controls the mirrors of the server on this machine.
//!
//! An action that may lose data needs confirmation. The server computes the loss from the current
//! state as a dry run; a person on a terminal confirms it, and a script passes `--yes`.

pub mod args;
mod request;
mod show;
mod show_all;

use std::io::{self, IsTerminal as _, Write as _};

use flagstone_runtime::{IoEngine, RuntimeConfig, run as run_cores, time};
use flagstone_server::api::document::VolumesDocument;
use flagstone_server::api::mirror_document::{ActionDocument, MirrorAction, MirrorDocument};
use flagstone_server::http::encode;

use crate::exit::Exit;
use crate::output::{complain, print};
use crate::status::CLEAR;
use crate::status::server::{ApiClient, ApiError, read};
use args::{MirrorArgs, MirrorCommand, MirrorStatusArgs, QueryArgs};
use request::{ActionRequest, is_settled, request};
use show::MirrorSample;

/// Runs the command.
pub fn run(args: &MirrorArgs) -> Exit {
    // Threads start faster than rings, and the command makes few requests.
    let config = RuntimeConfig { io_engine: IoEngine::Threads, ..RuntimeConfig::default() };
    let result = match run_cores(&config, || asked(args)) {
        Ok(result) => result,
        Err(error) => Err(ApiError(error.to_string())),
    };
    result.unwrap_or_else(|ApiError(text)| {
        complain(&format!("flagstone: error: {text}\n"));
        Exit::Failed
    })
}

async fn asked(args: &MirrorArgs) -> Result<Exit, ApiError> {
    match &args.command {
        MirrorCommand::Status(args) => status(args).await,
        command => match request(command) {
            Some(request) => act(&request).await,
            None => Ok(Exit::Usage),
        },
    }
}

fn path(volume: &str) -> String {
    format!("/v1/volumes/{}/mirror", encode(volume))
}

async fn status(args: &MirrorStatusArgs) -> Result<Exit, ApiError> {
    match &args.volume {
        Some(volume) => {
            watch(&args.query, volume, |_| !args.query.watch).await?;
            Ok(Exit::Success)
        }
        None => watch_all(&args.query).await,
    }
}

/// Shows the mirror of a volume until `is_last` accepts its document. Returns the last document.
async fn watch(
    query: &QueryArgs,
    volume: &str,
    is_last: impl Fn(&MirrorDocument) -> bool,
) -> Result<MirrorDocument, ApiError> {
    let mut server = ApiClient::find(query.api.as_ref())?;
    let mut last = None;
    loop {
        let body = server.get_text(&path(volume))?;
        let document: MirrorDocument = read(body.as_bytes())?;
        let look = MirrorSample { at: time::now(), wall: time::wall_clock().as_secs(), document };
        let text = match query.json {
            true => as_json(query, body)?,
            false => show::mirror(&look, last.as_ref()),
        };
        let seen = shown(query, &text)?;
        if !seen || is_last(&look.document) {
            return Ok(look.document);
        }
        last = Some(look);
        time::sleep(query.interval).await;
    }
}

async fn watch_all(query: &QueryArgs) -> Result<Exit, ApiError> {
    let mut server = ApiClient::find(query.api.as_ref())?;
    loop {
        let volumes: VolumesDocument = server.get("/v1/volumes")?;
        let mirrors = volumes.volumes.into_iter().filter_map(|volume| volume.mirror);
        let mirrors: Vec<MirrorDocument> = mirrors.collect();
        let text = match query.json {
            true if query.watch => serde_json::to_string(&mirrors).expect("it came as JSON") + "\n",
            true => serde_json::to_string_pretty(&mirrors).expect("it came as JSON") + "\n",
            false => show_all::mirrors(&mirrors),
        };
        if !shown(query, &text)? || !query.watch {
            return Ok(Exit::Success);
        }
        time::sleep(query.interval).await;
    }
}

/// The document as received; with `--watch` one per line.
fn as_json(query: &QueryArgs, body: String) -> Result<String, ApiError> {
    if !query.watch {
        return Ok(body);
    }
    let value: serde_json::Value = read(body.as_bytes())?;
    Ok(format!("{value}\n"))
}

/// Prints a sample. Returns false if the reader has closed the pipe.
fn shown(query: &QueryArgs, text: &str) -> Result<bool, ApiError> {
    let mut out = io::stdout().lock();
    let clear = if query.watch && !query.json && out.is_terminal() { CLEAR } else { "" };
    let written = out.write_all(clear.as_bytes()).and_then(|()| out.write_all(text.as_bytes()));
    match written.and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(ApiError(format!("cannot write the result: {error}"))),
    }
}

/// Exit status of a watched verify. Differences without repair fail, and so does a verify that
/// stopped early.
fn verified(document: &MirrorDocument) -> Exit {
    match &document.verify {
        Some(verify) if verify.running => Exit::Success,
        Some(verify) if verify.error.is_some() => Exit::Failed,
        Some(verify) if verify.differing_bytes > 0 && !verify.repair => Exit::VerifyFailed,
        Some(_) => Exit::Success,
        // The replica was deleted, or the server restarted.
        None => Exit::Failed,
    }
}

/// Exit status of a watched grow: whether the volume reached its new size.
fn grown(began: &MirrorDocument, last: &MirrorDocument) -> Exit {
    let wanted = began.replica.as_ref().and_then(|replica| replica.growing_to_bytes);
    let has = last.replica.as_ref().map_or(0, |replica| replica.size_bytes);
    if wanted.is_none_or(|wanted| has >= wanted) {
        return Exit::Success;
    }
    complain(&format!(
        "flagstone: error: {} did not grow: a node or a device failed while the new space was being zeroed (see the server's log); repeat when all nodes are reachable\n",
        last.volume
    ));
    Exit::Failed
}

async fn act(request: &ActionRequest) -> Result<Exit, ApiError> {
    tell_of_wait(request)?;
    if request.asks_first && !request.dry_run {
        let (_, answer) = send(request, true)?;
        if let Some(data_loss) = answer.data_loss.as_ref().filter(|_| answer.changed)
            && !is_agreed(request, &answer.outcome, data_loss)
        {
            return Ok(Exit::Usage);
        }
    }
    let (body, answer) = send(request, request.dry_run)?;
    let query = &request.query;
    if query.json {
        let text = as_json(query, body)?;
        let exit = print(&text, Exit::Success);
        if exit != Exit::Success {
            return Ok(exit);
        }
    } else if print(&show::action(&answer), Exit::Success) != Exit::Success {
        return Ok(Exit::Failed);
    }
    if !query.watch || request.dry_run {
        return Ok(Exit::Success);
    }
    let peer = request.peer.as_deref();
    let settled = |now: &MirrorDocument| is_settled(request.action, peer, now);
    let last = watch(query, &request.volume, settled).await?;
    // Differences of an earlier verify do not count.
    Ok(match request.action {
        MirrorAction::Verify => verified(&last),
        MirrorAction::Grow => grown(&answer.mirror, &last),
        _ => Exit::Success,
    })
}

/// Announces the wait of a failover for an attached source.
fn tell_of_wait(request: &ActionRequest) -> Result<(), ApiError> {
    if request.action != MirrorAction::Failover || request.body.contains_key("force") {
        return Ok(());
    }
    let mut server = ApiClient::find(request.query.api.as_ref())?;
    let now: MirrorDocument = server.get(&path(&request.volume))?;
    if now.replica.is_some_and(|replica| replica.has_source) {
        complain(&format!(
            "a source is attached to {}: waiting up to the link's timeout for its death\n",
            now.node
        ));
    }
    Ok(())
}

fn send(request: &ActionRequest, dry_run: bool) -> Result<(String, ActionDocument), ApiError> {
    let mut body = request.body.clone();
    if dry_run {
        body.insert("dry_run".to_owned(), true.into());
    }
    let body = serde_json::Value::Object(body).to_string();
    let path = format!("{}/{}", path(&request.volume), request.action);
    let mut server = ApiClient::find(request.query.api.as_ref())?;
    let text = server.post_text(&path, &body)?;
    let answer = read(text.as_bytes())?;
    Ok((text, answer))
}

/// Asks a person to confirm the data loss. Without a terminal the answer is no.
fn is_agreed(request: &ActionRequest, outcome: &str, data_loss: &str) -> bool {
    complain(&format!("{outcome}\ndata loss: {data_loss}\n"));
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        complain(&format!(
            "flagstone: error: nothing was done: confirm with `flagstone mirror {} {} --yes`\n",
            request.action, request.volume
        ));
        return false;
    }
    complain("continue? Type yes: ");
    let mut answer = String::new();
    let agreed = io::stdin().read_line(&mut answer).is_ok() && answer.trim() == "yes";
    if !agreed {
        complain("nothing was done\n");
    }
    agreed
}

#[cfg(test)]
mod tests {
    use flagstone_server::api::mirror_document::{ReplicaDocument, VerifyDocument};

    use super::*;

    #[test]
    fn unfinished_verify_fails() {
        let done = VerifyDocument { compared_bytes: 9, total_bytes: 9, ..Default::default() };
        let differs = VerifyDocument { differing_bytes: 1, ..done.clone() };
        let early = VerifyDocument { error: Some("the peer is gone".into()), ..done.clone() };
        for (verify, exit) in [
            (Some(done), Exit::Success),
            (Some(VerifyDocument { repair: true, ..differs.clone() }), Exit::Success),
            (Some(differs), Exit::VerifyFailed),
            (Some(VerifyDocument { repair: true, ..early.clone() }), Exit::Failed),
            (Some(early), Exit::Failed),
            (None, Exit::Failed),
        ] {
            let document = MirrorDocument { verify: verify.clone(), ..MirrorDocument::default() };
            assert_eq!(verified(&document), exit, "{verify:?}");
        }
    }

    #[test]
    fn grow_checks_final_size() {
        let of = |size_bytes, growing_to_bytes| {
            let replica =
                ReplicaDocument { size_bytes, growing_to_bytes, ..ReplicaDocument::default() };
            MirrorDocument { replica: Some(replica), ..MirrorDocument::default() }
        };
        for (began, last, exit) in [
            (of(4096, None), of(4096, None), Exit::Success),
            (of(4096, Some(8192)), of(8192, None), Exit::Success),
            (of(4096, Some(8192)), of(4096, None), Exit::Failed),
            (of(4096, Some(8192)), MirrorDocument::default(), Exit::Failed),
        ] {
            assert_eq!(grown(&began, &last), exit, "{began:?}");
        }
    }
}

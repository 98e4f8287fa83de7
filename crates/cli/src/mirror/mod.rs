//! `flagstone mirror`: shows and controls the mirrors of the server on this machine.
//!
//! An action that may lose data needs confirmation. The server computes the loss from the current
//! state as a dry run; a person on a terminal confirms it, and a script passes `--yes`.

pub(crate) mod args;
mod request;
mod show;
mod show_all;

use flagstone_runtime::time;
use flagstone_server::api::document::VolumesDocument;
use flagstone_server::api::mirror_document::{ActionDocument, MirrorAction, MirrorDocument};
use flagstone_server::http::encode;
use serde_json::Value;

use crate::confirm::is_agreed;
use crate::exit::{Exit, Failure};
use crate::output::{complain, json, print};
use crate::status::server::{ApiClient, read};
use crate::status::{QueryArgs, StatusArgs, run_client};
use args::{MirrorArgs, MirrorCommand};
use request::{ActionRequest, is_settled, request};
use show::MirrorSample;

pub(crate) fn run(args: &MirrorArgs) -> Result<Exit, Failure> {
    run_client(|| asked(args))
}

async fn asked(args: &MirrorArgs) -> Result<Exit, Failure> {
    match (&args.command, request(&args.command)) {
        (_, Some(request)) => act(&in_group(request)?).await,
        (MirrorCommand::Status(StatusArgs { volume: Some(name), query }), None) => {
            if leader(query, name)?.is_some() {
                return watch_all(query, Some(name)).await;
            }
            watch(query, name, |_| false).await?;
            Ok(Exit::Success)
        }
        (MirrorCommand::Status(args), None) => watch_all(&args.query, None).await,
        (_, None) => Ok(Exit::Usage),
    }
}

/// The first volume of the consistency group of this name; `None` if none has the name.
fn leader(query: &QueryArgs, name: &str) -> Result<Option<String>, Failure> {
    let volumes: VolumesDocument = query.server()?.get("/v1/volumes")?;
    let mirrors = volumes.volumes.into_iter().filter_map(|volume| volume.mirror);
    let mut groups = mirrors.filter_map(|mirror| mirror.group);
    let group = groups.find(|group| group.name == name);
    Ok(group.and_then(|group| group.volumes.into_iter().next()))
}

/// An order that names a consistency group goes to its first volume.
fn in_group(request: ActionRequest) -> Result<ActionRequest, Failure> {
    let Some(volume) = leader(&request.query, &request.volume)? else { return Ok(request) };
    if request.action.concerns_group() {
        return Ok(ActionRequest { volume, ..request });
    }
    let ActionRequest { action, volume: group, .. } = request;
    Err(Failure::usage(format!(
        "{group} is a consistency group, and `{action}` concerns one volume: name the volume"
    )))
}

fn path(volume: &str) -> String {
    format!("/v1/volumes/{}/mirror", encode(volume))
}

/// Shows the mirror of a volume until `is_last` accepts its document. Returns the last document.
async fn watch(
    query: &QueryArgs,
    volume: &str,
    is_last: impl Fn(&MirrorDocument) -> bool,
) -> Result<MirrorDocument, Failure> {
    let mut server = query.server()?;
    let mut last = None;
    loop {
        let body = server.get_text(&path(volume))?;
        let document: MirrorDocument = read(body.as_bytes())?;
        let look = MirrorSample { at: time::now(), wall: time::wall_clock().as_secs(), document };
        let text = match query.json {
            true => query.as_json(body)?,
            false => show::mirror(&look, last.as_ref()),
        };
        if !query.show(&text)? || is_last(&look.document) {
            return Ok(look.document);
        }
        last = Some(look);
        time::sleep(query.interval).await;
    }
}

/// Shows all mirrors, or the mirrors of a consistency group.
async fn watch_all(query: &QueryArgs, group: Option<&str>) -> Result<Exit, Failure> {
    let is_shown = |mirror: &MirrorDocument| match group {
        Some(name) => mirror.group.as_ref().is_some_and(|group| group.name == name),
        None => true,
    };
    let sample = |server: &mut ApiClient| {
        let volumes: VolumesDocument = server.get("/v1/volumes")?;
        let mirrors = volumes.volumes.into_iter().filter_map(|volume| volume.mirror);
        let mirrors: Vec<MirrorDocument> = mirrors.filter(is_shown).collect();
        match query.json {
            true => query.as_json(json(&mirrors)),
            false => Ok(show_all::mirrors(&mirrors)),
        }
    };
    query.repeat(sample).await
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

async fn act(request: &ActionRequest) -> Result<Exit, Failure> {
    if request.asks_first && !request.dry_run {
        let (_, answer) = send(request, true)?;
        if let Some(data_loss) = answer.data_loss.as_ref().filter(|_| answer.changed)
            && !is_agreed(&answer.outcome, data_loss)
        {
            return Ok(Exit::Usage);
        }
    }
    let (body, answer) = send(request, request.dry_run)?;
    let query = &request.query;
    if query.json {
        let exit = print(&query.as_json(body)?, Exit::Success);
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

fn send(request: &ActionRequest, dry_run: bool) -> Result<(String, ActionDocument), Failure> {
    let mut body = request.body.clone();
    if dry_run {
        body.insert("dry_run".to_owned(), true.into());
    }
    let body = Value::Object(body).to_string();
    let path = format!("{}/{}", path(&request.volume), request.action);
    let mut server = request.query.server()?;
    if request.waits {
        server.wait_longer();
    }
    let text = server.post_text(&path, &body)?;
    let answer = read(text.as_bytes())?;
    Ok((text, answer))
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

//! `flagstone mirror`: what is asked of the mirrors of the server that runs on this machine.
//!
//! What loses something is asked about first: the server says, from the present state, what is lost;
//! a person on a terminal agrees to just that, and a script says `--yes`.

pub mod args;
mod request;
mod show;
mod show_all;

use std::io::{self, IsTerminal as _, Write as _};

use flagstone_api::head::encode;
use flagstone_control::api::document::VolumesDocument;
use flagstone_control::api::mirror_document::{ActionDocument, MirrorDocument};
use flagstone_runtime::{Config as RuntimeConfig, DriverChoice, run as run_cores, time};

use crate::exit::Exit;
use crate::output::{complain, print};
use crate::status::CLEAR;
use crate::status::server::{Problem, Server, read};
use args::{Asking, MirrorArgs, MirrorCommand, StatusArgs};
use request::{Request, is_settled, request};
use show::Look;

/// Runs the command.
pub fn run(args: &MirrorArgs) -> Exit {
    // It asks a question now and then: threads start faster than rings.
    let config = RuntimeConfig { driver: DriverChoice::Threads, ..RuntimeConfig::default() };
    let result = match run_cores(&config, || asked(args)) {
        Ok(result) => result,
        Err(error) => Err(Problem(error.to_string())),
    };
    result.unwrap_or_else(|Problem(text)| {
        complain(&format!("flagstone: error: {text}\n"));
        Exit::Failed
    })
}

async fn asked(args: &MirrorArgs) -> Result<Exit, Problem> {
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

async fn status(args: &StatusArgs) -> Result<Exit, Problem> {
    match &args.volume {
        Some(volume) => {
            watch(&args.asking, volume, |_| !args.asking.watch).await?;
            Ok(Exit::Success)
        }
        None => watch_all(&args.asking).await,
    }
}

/// Shows the mirror of a volume until `is_last` says that it has been seen enough, and gives what
/// was seen last.
async fn watch(
    asking: &Asking,
    volume: &str,
    is_last: impl Fn(&MirrorDocument) -> bool,
) -> Result<MirrorDocument, Problem> {
    let mut server = Server::find(asking.api.as_ref()).await?;
    let mut last = None;
    loop {
        let body = server.get_text(&path(volume)).await?;
        let document: MirrorDocument = read(body.as_bytes())?;
        let look = Look { at: time::now(), wall: time::wall_clock().as_secs(), document };
        let text = match asking.json {
            true => as_json(asking, body)?,
            false => show::mirror(&look, last.as_ref()),
        };
        let seen = shown(asking, &text)?;
        if !seen || is_last(&look.document) {
            return Ok(look.document);
        }
        last = Some(look);
        time::sleep(asking.interval).await;
    }
}

async fn watch_all(asking: &Asking) -> Result<Exit, Problem> {
    let mut server = Server::find(asking.api.as_ref()).await?;
    loop {
        let volumes: VolumesDocument = server.get("/v1/volumes").await?;
        let told = volumes.volumes.into_iter().filter_map(|mut one| one.parts.remove("mirror"));
        let told: Vec<_> = told.collect();
        let text = match asking.json {
            true if asking.watch => format!("{}\n", serde_json::Value::Array(told)),
            true => {
                let text = serde_json::to_string_pretty(&told).expect("it came as JSON");
                text + "\n"
            }
            false => {
                let mirrors = told.into_iter().map(serde_json::from_value).collect();
                let mirrors: Result<Vec<MirrorDocument>, serde_json::Error> = mirrors;
                let mirrors = mirrors.map_err(|error| {
                    Problem(format!("the server's answer is not understood: {error}"))
                })?;
                show_all::mirrors(&mirrors)
            }
        };
        if !shown(asking, &text)? || !asking.watch {
            return Ok(Exit::Success);
        }
        time::sleep(asking.interval).await;
    }
}

/// The document as it came; of many, one a line.
fn as_json(asking: &Asking, body: String) -> Result<String, Problem> {
    if !asking.watch {
        return Ok(body);
    }
    let value: serde_json::Value = read(body.as_bytes())?;
    Ok(format!("{value}\n"))
}

/// Writes a look; false when its reader has seen enough.
fn shown(asking: &Asking, text: &str) -> Result<bool, Problem> {
    let mut out = io::stdout().lock();
    let clear = if asking.watch && !asking.json && out.is_terminal() { CLEAR } else { "" };
    let written = out.write_all(clear.as_bytes()).and_then(|()| out.write_all(text.as_bytes()));
    match written.and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Problem(format!("cannot write the result: {error}"))),
    }
}

/// How a verify that was watched has ended: one that found differences is not a success, and one
/// that did not come to its end has not found out.
fn verified(document: &MirrorDocument) -> Exit {
    match &document.verify {
        Some(verify) if verify.running => Exit::Success,
        Some(verify) if verify.error.is_some() => Exit::Failed,
        Some(verify) if verify.differing_bytes > 0 && !verify.repair => Exit::VerifyFailed,
        Some(_) => Exit::Success,
        // The replica was deleted, or the server began anew.
        None => Exit::Failed,
    }
}

/// Whether a volume that was growing has come to the size that it was to have.
fn grown(began: &MirrorDocument, last: &MirrorDocument) -> Exit {
    let wanted = began.replica.as_ref().and_then(|replica| replica.growing_to_bytes);
    let has = last.replica.as_ref().map_or(0, |replica| replica.size_bytes);
    if wanted.is_none_or(|wanted| has >= wanted) {
        return Exit::Success;
    }
    complain(&format!(
        "flagstone: error: {} has the size that it had: a node was lost, or a device failed, while \
         what is new was being zeroed; the server's log says more. Ask again when all can be reached\n",
        last.volume
    ));
    Exit::Failed
}

async fn act(request: &Request) -> Result<Exit, Problem> {
    tell_of_wait(request).await?;
    if request.asks_first && !request.dry_run {
        let (_, answer) = send(request, true).await?;
        if let Some(loses) = answer.loses.as_ref().filter(|_| answer.changed)
            && !is_agreed(request, &answer.said, loses)
        {
            return Ok(Exit::Usage);
        }
    }
    let (body, answer) = send(request, request.dry_run).await?;
    let asking = &request.asking;
    if asking.json {
        let text = as_json(asking, body)?;
        let exit = print(&text, Exit::Success);
        if exit != Exit::Success {
            return Ok(exit);
        }
    } else if print(&show::action(&answer), Exit::Success) != Exit::Success {
        return Ok(Exit::Failed);
    }
    if !asking.watch || request.dry_run {
        return Ok(Exit::Success);
    }
    let peer = request.peer.as_deref();
    let settled = |now: &MirrorDocument| is_settled(request.action, peer, now);
    let last = watch(asking, &request.volume, settled).await?;
    // Differences that an earlier verify found are not what was asked for.
    Ok(match request.action {
        "verify" => verified(&last),
        "grow" => grown(&answer.mirror, &last),
        _ => Exit::Success,
    })
}

/// Says what a failover waits for, where it does.
async fn tell_of_wait(request: &Request) -> Result<(), Problem> {
    if request.action != "failover" || request.body.contains_key("force") {
        return Ok(());
    }
    let mut server = Server::find(request.asking.api.as_ref()).await?;
    let now: MirrorDocument = server.get(&path(&request.volume)).await?;
    if now.replica.is_some_and(|replica| replica.has_source) {
        complain(&format!(
            "a source is attached to {}: waiting for it to be found dead, for the link's time-out \
             at most\n",
            now.node
        ));
    }
    Ok(())
}

async fn send(request: &Request, dry_run: bool) -> Result<(String, ActionDocument), Problem> {
    let mut body = request.body.clone();
    if dry_run {
        body.insert("dry_run".to_owned(), true.into());
    }
    let body = serde_json::Value::Object(body).to_string();
    let path = format!("{}/{}", path(&request.volume), request.action);
    let mut server = Server::find(request.asking.api.as_ref()).await?;
    let text = server.post_text(&path, &body).await?;
    let answer = read(text.as_bytes())?;
    Ok((text, answer))
}

/// A person agrees to what is lost. Where there is none, nothing is done.
fn is_agreed(request: &Request, said: &str, loses: &str) -> bool {
    complain(&format!("{said}\nthis loses: {loses}\n"));
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        complain(&format!(
            "flagstone: error: nothing was done: to have it done, add --yes to `flagstone mirror \
             {} {}`\n",
            request.action, request.volume
        ));
        return false;
    }
    complain("do it? Write yes: ");
    let mut answer = String::new();
    let agreed = io::stdin().read_line(&mut answer).is_ok() && answer.trim() == "yes";
    if !agreed {
        complain("nothing was done\n");
    }
    agreed
}

#[cfg(test)]
mod tests {
    use flagstone_control::api::mirror_document::{ReplicaDocument, VerifyDocument};

    use super::*;

    #[test]
    fn a_verify_that_found_nothing_out_is_no_success() {
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
    fn a_volume_that_does_not_come_to_its_size_has_not_grown() {
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

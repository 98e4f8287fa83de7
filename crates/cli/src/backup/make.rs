//! `flagstone volume backup`: reads a snapshot through the server's API, a part ahead of the
//! uploads.

use std::sync::{Arc, Mutex};

use flagstone_backup::document::{BackupEntry, Head, SnapshotIdentity};
use flagstone_backup::{BackupError, Plan, SameName, SnapshotSource, back_up, plan};
use flagstone_pool::stream::frame::{FrameBody, StreamFrame};
use flagstone_server::api::pool_document::{SnapshotDocument, SnapshotsDocument};
use flagstone_server::http::encode;
use serde_json::json;
use tokio::task::{JoinHandle, spawn_blocking};

use super::args::MakeBackupArgs;
use super::{Session, show};
use crate::exit::{Exit, Failure};
use crate::output::{complain, print, progress_bar};
use crate::status::server::ApiClient;

const TEMPLATE: &str = "{bytes} of {total_bytes} {wide_bar} {bytes_per_sec} {eta}";

fn path(name: &str, since: Option<&str>, offset: u64) -> String {
    let since = since.map(|since| format!("&since={}", encode(since))).unwrap_or_default();
    format!("/v1/snapshots/{}/stream?offset_bytes={offset}{since}", encode(name))
}

/// Identity of a snapshot, from the beginning of its stream.
fn identify(
    server: &mut ApiClient,
    document: &SnapshotDocument,
) -> Result<SnapshotIdentity, Failure> {
    let name = &document.name;
    let (volume, _) = name.split_once('@').unwrap_or((name, ""));
    let part = server.get_bytes(&path(name, None, 0))?;
    let frame = StreamFrame::decode(&part)
        .map_err(|error| Failure::failed(format!("the server's stream of {name}: {error}")))?;
    let Some((StreamFrame { snapshot, source, body: FrameBody::Begin(start), .. }, _)) = frame
    else {
        return Err(Failure::failed(format!("the server's stream of {name} has no beginning")));
    };
    Ok(SnapshotIdentity {
        volume: volume.to_owned(),
        volume_id: document.volume_id.clone(),
        pool_id: document.pool_id.clone(),
        encrypted: document.encrypted,
        snapshot: start.name,
        snapshot_id: snapshot.to_string(),
        source,
        size_bytes: start.size_bytes,
        created_seconds: start.created_s,
    })
}

/// Name of the pool's snapshot of which `entry` is a backup, if the pool still has it.
fn name_in_pool(
    server: &mut ApiClient,
    snapshots: &SnapshotsDocument,
    entry: &BackupEntry,
) -> Result<Option<String>, Failure> {
    let of_volume = |name: &str| name.split('@').next() == Some(&entry.snapshot.volume);
    for snapshot in &snapshots.snapshots {
        if snapshot.id == entry.snapshot.snapshot_id
            && of_volume(&snapshot.name)
            && identify(server, snapshot)?.is_same(&entry.snapshot)
        {
            return Ok(Some(snapshot.name.clone()));
        }
    }
    Ok(None)
}

/// Part of a stream that was asked for.
type Asked = JoinHandle<Result<Vec<u8>, String>>;

/// Stream of a snapshot from the server. The next part is asked for while the last one is used.
struct ServerSource {
    server: Arc<Mutex<ApiClient>>,
    name: String,
    since: Option<String>,
    /// Part that was asked for, and its offset.
    next: Option<(u64, Asked)>,
}

impl ServerSource {
    fn ask(&self, offset: u64) -> Asked {
        let (server, path) = (self.server.clone(), path(&self.name, self.since.as_deref(), offset));
        spawn_blocking(move || {
            let mut server = server.lock().map_err(|_| "the client failed".to_owned())?;
            server.get_bytes(&path).map_err(|Failure(_, text)| text)
        })
    }
}

/// Offset after the frames of a part; `None` if they end the stream.
fn end_of(part: &[u8]) -> Option<u64> {
    let (mut rest, mut end) = (part, None);
    while let Ok(Some((frame, len))) = StreamFrame::decode(rest) {
        end = match frame.body {
            FrameBody::End => None,
            _ => Some(frame.offset + frame.covered_bytes()),
        };
        rest = &rest[len..];
    }
    end
}

impl SnapshotSource for ServerSource {
    async fn part(&mut self, offset: u64) -> Result<Vec<u8>, String> {
        let asked = match self.next.take() {
            Some((at, asked)) if at == offset => asked,
            _ => self.ask(offset),
        };
        let part = asked.await.map_err(|error| error.to_string())??;
        self.next = end_of(&part).map(|end| (end, self.ask(end)));
        Ok(part)
    }
}

/// Refuses to store a volume that is encrypted at rest without encryption, unless it is asked for.
fn check_encryption(
    args: &MakeBackupArgs,
    snapshot: &SnapshotIdentity,
    head: &Head,
) -> Result<(), Failure> {
    let is_plain = head.encryption.is_none() && args.store.backup_key_file.is_none();
    if args.plaintext || !is_plain || !snapshot.encrypted {
        return Ok(());
    }
    let volume = &snapshot.volume;
    let prefix = if head.backups.is_empty() { "" } else { " and another prefix" };
    Err(Failure::failed(format!(
        "volume {volume} is encrypted at rest, and backups in {} are not: give \
         --backup-key-file{prefix}, or --plaintext",
        args.store.url
    )))
}

fn choose(
    args: &MakeBackupArgs,
    server: &mut ApiClient,
    head: &Head,
    snapshots: &SnapshotsDocument,
    snapshot: &SnapshotIdentity,
) -> Result<(Plan, Option<String>), Failure> {
    check_encryption(args, snapshot, head)?;
    let mut since = None;
    let chosen = plan(head, snapshot, args.full, |entry| {
        since = name_in_pool(server, snapshots, entry)?;
        Ok::<_, Failure>(since.is_some())
    })?;
    let since = match &chosen {
        Plan::Make { base: Some(_), .. } => since,
        _ => None,
    };
    Ok((chosen, since))
}

pub(crate) fn make(args: &MakeBackupArgs) -> Result<Exit, Failure> {
    let session = Session::open(&args.store)?;
    let mut server = args.api.connect()?;
    let snapshots: SnapshotsDocument = server.get("/v1/snapshots")?;
    let named = snapshots.snapshots.iter().find(|snapshot| snapshot.name == args.name);
    let Some(named) = named else {
        // The server says which snapshots there are.
        server.get_bytes(&path(&args.name, None, 0))?;
        let name = &args.name;
        return Err(Failure::failed(format!("{name} was taken meanwhile: repeat the command")));
    };
    let snapshot = identify(&mut server, named)?;
    let head = session.runtime.block_on(session.repository.head())?.unwrap_or_default();
    let (chosen, since) = choose(args, &mut server, &head, &snapshots, &snapshot)?;
    let base = match chosen {
        Plan::Exists(entry) => return Ok(report(args, &entry, "exists already", false)),
        Plan::Make { base, continues } => {
            let has_earlier =
                head.backups.iter().any(|entry| entry.snapshot.is_of_same_volume(&snapshot));
            if continues {
                complain(&format!("continuing the unfinished backup of {}\n", args.name));
            } else if base.is_none() && has_earlier && !args.full {
                complain(&format!(
                    "no snapshot of an earlier backup of {} is left in the pool: this backup \
                     stores everything\n",
                    snapshot.volume
                ));
            }
            base
        }
    };
    let bar = progress_bar(Some(snapshot.size_bytes), TEMPLATE);
    let (server, name) = (Arc::new(Mutex::new(server)), args.name.clone());
    let mut source = ServerSource { server, name, since: since.clone(), next: None };
    let progress = |at| bar.set_position(at);
    let same_name = if args.separate { SameName::Separate } else { SameName::Refuse };
    let (repository, base_entry) = (&session.repository, base.as_ref());
    let made = back_up(repository, &snapshot, base_entry, same_name, &mut source, progress);
    let entry = session.runtime.block_on(made).map_err(|error| {
        let advice = match &error {
            BackupError::Store { .. } | BackupError::Access { .. } | BackupError::Snapshot(_) => {
                "\n  the same command continues with what was stored"
            }
            error if error.is_damage() && base.is_some() => {
                "\n  the earlier backup cannot be used: make one with --full"
            }
            _ => "",
        };
        let Failure(exit, text) = error.into();
        Failure(exit, text + advice)
    })?;
    bar.finish_and_clear();
    let outcome = match &since {
        Some(since) => format!("is stored, changes since {since}"),
        None => "is stored in full".to_owned(),
    };
    Ok(report(args, &entry, &outcome, true))
}

fn report(args: &MakeBackupArgs, entry: &BackupEntry, outcome: &str, changed: bool) -> Exit {
    let outcome = format!("backup {} {outcome}: {}", args.name, show::space(entry));
    let text = match args.json {
        true => {
            crate::output::json(&json!({"outcome": outcome, "changed": changed, "backup": entry}))
        }
        false => outcome + "\n",
    };
    print(&text, Exit::Success)
}

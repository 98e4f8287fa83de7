//! `flagstone snapshot`: orders on snapshots, and their output.

use std::fmt::Write as _;

use flagstone_server::api::pool_document::{
    DiffDocument, RangeDocument, SnapshotDocument, SnapshotPeerDocument, SnapshotPeerState,
    SnapshotsDocument,
};
use flagstone_server::http::encode;
use flagstone_units::display::size;
use flagstone_units::format_time;
use serde_json::json;

use super::args::{DiffArgs, ListSnapshotsArgs, SnapshotArgs, SnapshotCommand};
use super::{PoolRequest, act, losing, object};
use crate::exit::{Exit, Failure};
use crate::output::print;
use crate::status::run_client;
use crate::status::server::{ApiClient, read};
use flagstone_units::columns::{Left, Right, lines};

pub(crate) fn run(args: &SnapshotArgs) -> Result<Exit, Failure> {
    run_client(async || match &args.command {
        SnapshotCommand::List(args) => list(args).await,
        SnapshotCommand::Diff(args) => diff(args),
        command => act(order(command)),
    })
}

fn order(command: &SnapshotCommand) -> PoolRequest {
    let (action, name, body, asks_first, args) = match command {
        SnapshotCommand::Create(args) => {
            let (first, with) = args.names.split_first().expect("clap asks for one");
            let mut body = json!({"with": with});
            if args.local_only {
                body["local_only"] = true.into();
            }
            ("create", first, body, false, &args.order)
        }
        SnapshotCommand::Rollback(args) => losing("rollback", &args.name, &args.loss),
        SnapshotCommand::Delete(args) => {
            let body = match args.local_only {
                true => json!({"local_only": true}),
                false => json!({}),
            };
            ("delete", &args.name, body, !args.yes, &args.order)
        }
        SnapshotCommand::List(_) | SnapshotCommand::Diff(_) => unreachable!("they are no orders"),
    };
    let (body, args) = (object(body), args.clone());
    PoolRequest { kind: "snapshot", name: name.clone(), action, body, asks_first, args }
}

async fn list(args: &ListSnapshotsArgs) -> Result<Exit, Failure> {
    let sample = |server: &mut ApiClient| {
        let body = server.get_text("/v1/snapshots")?;
        let mut found = read::<SnapshotsDocument>(body.as_bytes())?.snapshots;
        if let Some(volume) = &args.volume {
            found.retain(|snapshot| {
                let own = snapshot.name.split('@').next() == Some(volume);
                own || snapshot.mirrored.as_ref() == Some(volume)
            });
        }
        match args.query.json {
            true => {
                let document = SnapshotsDocument { snapshots: found };
                args.query.as_json(serde_json::to_string_pretty(&document).expect("JSON"))
            }
            false => Ok(table(&found)),
        }
    };
    args.query.repeat(sample).await
}

fn table(snapshots: &[SnapshotDocument]) -> String {
    if snapshots.is_empty() {
        return "no snapshots; next: flagstone snapshot create VOLUME@SNAPSHOT\n".to_owned();
    }
    let head = [
        ("snapshot", Left),
        ("taken", Left),
        ("size", Right),
        ("refers to", Right),
        ("pool", Left),
        ("nodes", Left),
        ("clones", Left),
    ];
    let row = |snapshot: &SnapshotDocument| {
        vec![
            snapshot.name.clone(),
            format_time(snapshot.created_seconds as f64, "%Y-%m-%d %H:%M"),
            size(snapshot.size_bytes),
            size(snapshot.referenced_bytes),
            snapshot.pool.clone(),
            nodes(snapshot),
            snapshot.clones.join(", "),
        ]
    };
    let rows: Vec<Vec<String>> = snapshots.iter().map(row).collect();
    lines(&head, &rows).iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The nodes that have a snapshot of a mirrored volume.
fn nodes(snapshot: &SnapshotDocument) -> String {
    if snapshot.mirrored.is_none() {
        return String::new();
    }
    let have = |peer: &&SnapshotPeerDocument| peer.state == SnapshotPeerState::Present;
    let having = snapshot.peers.iter().filter(have).map(|peer| peer.name.clone());
    let having: Vec<String> = std::iter::once("this node".to_owned()).chain(having).collect();
    let others = snapshot.peers.iter().filter_map(|peer| match peer.state {
        SnapshotPeerState::Present | SnapshotPeerState::Missing => None,
        SnapshotPeerState::Waiting => Some(format!("; {} takes it later", peer.name)),
        SnapshotPeerState::Silent => Some(format!("; {} does not answer", peer.name)),
        SnapshotPeerState::Unknown => Some(format!("; {} is in an unknown state", peer.name)),
    });
    let others: String = others.collect();
    match (&snapshot.peers[..], having.len(), others.is_empty()) {
        // Only the source knows more.
        ([_, ..], 1, true) => "this node only".to_owned(),
        _ => having.join(", ") + &others,
    }
}

/// Asks for part after part.
fn diff(args: &DiffArgs) -> Result<Exit, Failure> {
    let mut server = args.api.connect()?;
    let mut ranges: Vec<RangeDocument> = Vec::new();
    let mut offset = Some(0);
    while let Some(from) = offset {
        let (old, new) = (encode(&args.from), encode(&args.to));
        let path = format!("/v1/snapshots/{old}/diff/{new}?offset_bytes={from}");
        let part: DiffDocument = server.get(&path)?;
        for range in part.ranges {
            match ranges.last_mut() {
                Some(last) if last.offset_bytes + last.len_bytes == range.offset_bytes => {
                    last.len_bytes += range.len_bytes;
                }
                _ => ranges.push(range),
            }
        }
        offset = part.next_offset_bytes;
    }
    if args.json {
        let document = DiffDocument { ranges, next_offset_bytes: None };
        let text = serde_json::to_string_pretty(&document).expect("documents are JSON") + "\n";
        return Ok(print(&text, Exit::Success));
    }
    let mut text = String::new();
    for range in &ranges {
        let _ = writeln!(text, "{} at {}", size(range.len_bytes), range.offset_bytes);
    }
    let bytes = ranges.iter().map(|range| range.len_bytes).sum();
    let _ = writeln!(text, "{} differ, in {} ranges", size(bytes), ranges.len());
    Ok(print(&text, Exit::Success))
}

//! Snapshots of the API: their documents, the orders on them, and what differs between two.

use std::rc::Rc;

use flagstone_config::redact;
use flagstone_pool::SnapshotInfo;
use flagstone_runtime::spawn;
use schemars::JsonSchema;
use serde::Deserialize;

use super::pool_document::{
    DiffDocument, OrderDocument, RangeDocument, ReceiveDocument, SnapshotAction, SnapshotDocument,
    SnapshotPeerDocument, SnapshotsDocument,
};
use super::pools::{body, run, unknown_action};
use super::{Api, on};
use crate::http::limits::{STREAM_PATTERN, STREAM_TYPE};
use crate::http::router::StreamBytes;
use crate::http::{Call, Problem, Router};
use crate::pools::{ReceivePart, SnapshotPeer, SnapshotPlaces};

/// Body of an order on a snapshot. `create` takes `with` and `local_only`, `delete` takes
/// `local_only`, `rollback` takes `force`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "SnapshotOrder")]
struct SnapshotBody {
    dry_run: bool,
    /// Further snapshots, `VOLUME@SNAPSHOT`, to be taken at the same point of the order of writes.
    with: Vec<String>,
    force: bool,
    /// Only on this node, for snapshots of mirrored volumes.
    local_only: bool,
}

pub(super) fn routes(api: &Rc<Api>, router: &mut Router) {
    let all = async |api: Rc<Api>, _| {
        let found = api.server.snapshots();
        let snapshots = documents(&api, found).await;
        Ok(SnapshotsDocument { snapshots })
    };
    router.get("/v1/snapshots", "All snapshots of volumes of pools.", on(api, all));
    let description = "One snapshot.";
    let one = async |api: Rc<Api>, call: Call| {
        let (found, info) = api.server.find_snapshot(call.text("name"))?;
        let mut documents = documents(&api, vec![(found.pool_name, info)]).await;
        documents.pop().ok_or_else(|| Problem::not_found("there is no such snapshot"))
    };
    router.get("/v1/snapshots/{name}", description, on(api, one));
    let description = "What differs between two snapshots of a pool, from `offset_bytes` on.";
    router.get("/v1/snapshots/{name}/diff/{to}", description, on(api, Api::diff));
    let description = "A part of the stream of a snapshot from `offset_bytes` on, with `since` of \
                       what differs from that snapshot.";
    router.get("/v1/snapshots/{name}/stream", description, on(api, Api::send_part)).reads_data();
    let description = "Receives frames of a stream, for a new volume in `pool` with `compression` \
                       and `encryption_key_file`, or with `force` although hosts are attached, or changes or a part of \
                       another stream are discarded. After the first frame, frames before \
                       `position_bytes` may be left out.";
    router.post(STREAM_PATTERN, description, on(api, Api::receive_part));
    let description = "Takes or deletes a snapshot, or rolls a volume back to it, or previews the \
                       outcome.";
    router
        .post("/v1/snapshots/{name}/{action}", description, on(api, Api::order_snapshot))
        .takes::<SnapshotBody>();
}

/// Asks the peers of mirrored volumes whether they have the snapshots, too.
async fn documents(api: &Api, found: Vec<(String, SnapshotInfo)>) -> Vec<SnapshotDocument> {
    let places = api.server.snapshot_places(&found).await;
    let with_places = found.into_iter().zip(places);
    with_places.map(|((pool, info), places)| document(pool, info, places)).collect()
}

fn document(pool: String, info: SnapshotInfo, places: Option<SnapshotPlaces>) -> SnapshotDocument {
    let (mirrored, peers) = match places {
        Some(SnapshotPlaces { mirrored, peers }) => (Some(mirrored), peers),
        None => (None, Vec::new()),
    };
    let peers =
        peers.into_iter().map(|SnapshotPeer { name, state }| SnapshotPeerDocument { name, state });
    SnapshotDocument {
        mirrored,
        peers: peers.collect(),
        name: info.name,
        pool,
        id: info.id.to_string(),
        volume_id: info.volume_id.to_string(),
        pool_id: info.pool_id.to_string(),
        created_seconds: info.created_s,
        size_bytes: info.size_bytes,
        referenced_bytes: info.referenced_bytes,
        encrypted: info.is_encrypted,
        clones: info.clones,
    }
}

impl Api {
    async fn diff(self: Rc<Self>, call: Call) -> Result<DiffDocument, Problem> {
        let offset = call.number("offset_bytes")?.unwrap_or_default();
        let (from, to) = (call.text("name"), call.text("to"));
        let (found, _) = self.server.find_snapshot(from)?;
        let (other, _) = self.server.find_snapshot(to)?;
        if found.pool_name != other.pool_name {
            return Err(Problem::conflict(format!("{from} and {to} are in different pools")));
        }
        let diff = found.pool.diff(from, to, offset).await;
        let diff = diff.map_err(|error| crate::pools::problem(&found.pool_name, error))?;
        let range = |range: std::ops::Range<u64>| RangeDocument {
            offset_bytes: range.start,
            len_bytes: range.end - range.start,
        };
        let ranges = diff.ranges.into_iter().map(range).collect();
        Ok(DiffDocument { ranges, next_offset_bytes: diff.next })
    }

    async fn send_part(self: Rc<Self>, call: Call) -> Result<StreamBytes, Problem> {
        let [offset, since] = call.parameters(["offset_bytes", "since"])?;
        let bad = || Problem::invalid("`offset_bytes` is no number");
        let offset = offset.unwrap_or("0").parse().map_err(|_| bad())?;
        let part = self.server.send_part(call.text("name"), since, offset).await?;
        Ok(StreamBytes(part.bytes))
    }

    async fn receive_part(self: Rc<Self>, call: Call) -> Result<ReceiveDocument, Problem> {
        let server = self.server.clone();
        // The order survives its client.
        let work = spawn(async move {
            let [pool, compression, key_file, force] =
                call.parameters(["pool", "compression", "encryption_key_file", "force"])?;
            let (name, bytes) = (call.text("name"), call.bytes(STREAM_TYPE)?);
            let force = boolean("force", force)?;
            let part = ReceivePart { name, pool, compression, key_file, force, bytes };
            server.receive_part(part).await
        });
        let stopping = || {
            Problem::stopping(
                "the server is stopping: the volume keeps what it has; run the same commands again \
                 when the server runs",
            )
        };
        work.await.unwrap_or_else(|_| Err(stopping()))
    }

    async fn order_snapshot(self: Rc<Self>, call: Call) -> Result<OrderDocument, Problem> {
        let (name, word) = (call.text("name").to_owned(), call.text("action"));
        let known = SnapshotAction::ALL.map(SnapshotAction::name);
        let action = SnapshotAction::ALL.into_iter().find(|action| action.name() == word);
        let action = action.ok_or_else(|| unknown_action(word, known))?;
        let takes: &[&str] = match action {
            SnapshotAction::Create => &["with", "local_only"],
            SnapshotAction::Rollback => &["force"],
            SnapshotAction::Delete => &["local_only"],
        };
        let SnapshotBody { dry_run, with, force, local_only } = body(&call, takes)?;
        let snapshot = redact::text(&name);
        tracing::info!(caller = %call.caller, snapshot, %action, dry_run, "snapshot order requested");
        let (server, of) = (self.server.clone(), name.clone());
        let work = async move {
            match action {
                SnapshotAction::Create => {
                    let names: Vec<String> = std::iter::once(of).chain(with).collect();
                    server.order_snapshots(&names, local_only, dry_run).await
                }
                SnapshotAction::Rollback => server.rollback(&of, force, dry_run).await,
                SnapshotAction::Delete => server.order_deletion(&of, local_only, dry_run).await,
            }
        };
        run(name, dry_run, work).await
    }
}

/// The boolean parameter `name` of a query; false without it.
fn boolean(name: &str, text: Option<&str>) -> Result<bool, Problem> {
    match text {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => {
            let problem = Problem::invalid(format!("`{name}` is no boolean: `{other}`"));
            Err(problem.accepting(["true", "false"]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `force=no` discarded changes.
    #[test]
    fn force_is_a_boolean_or_refused() {
        for (text, expected) in [(None, false), (Some("false"), false), (Some("true"), true)] {
            assert_eq!(boolean("force", text).ok(), Some(expected), "{text:?}");
        }
        for text in ["no", "0", "", "False", "1", "yes"] {
            assert_eq!(boolean("force", Some(text)).unwrap_err().status, 422, "{text:?}");
        }
    }
}

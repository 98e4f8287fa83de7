//! The mirrors: their documents, and everything that an operator has them do.
//!
//! An action goes on to its end whether or not its asker waits for it: half a change of role is
//! nothing to leave behind.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_api::{Call, Exposition, Problem, Response, Router};
use flagstone_mirror::peer::{AskError, Refusal};
use flagstone_mirror::{CommandError, Mirror, PeerOptions, RoleError};
use flagstone_runtime::spawn;
use serde_json::{Map, Value};

use super::Part;
use super::mirror_document::{ActionDocument, MirrorDocument};
use super::mirror_foresee::{Deed, Foreseen, foresee};
use super::mirror_order::{Action, Order};
use super::mirror_verify::Verify;
use super::mirror_view::{Named, document};
use crate::mirrors::{CreateError, CreateRole, Mirrored};
use crate::serve::Server;
use crate::units::format_size;

/// See the module.
pub(super) struct Mirrors {
    server: Rc<Server>,
    /// By the volume's index: the verify that runs, or the last one.
    verifies: RefCell<BTreeMap<usize, Verify>>,
}

impl Mirrors {
    pub(super) fn new(server: Rc<Server>) -> Mirrors {
        Mirrors { server, verifies: RefCell::default() }
    }

    fn named(&self, mirrored: &Mirrored) -> Named {
        Named {
            volume: self.server.config.volumes[mirrored.volume].name.clone(),
            node: mirrored.node.clone(),
            peers: mirrored.peers.clone(),
            mirror: mirrored.mirror(),
            missing: mirrored.missing(),
            without_log: mirrored.is_without_log(),
            reopening: mirrored.reopening(),
            reopens: mirrored.reopens(),
            flush_failed: mirrored.has_failed_flush(),
        }
    }

    fn document(&self, mirrored: &Mirrored) -> MirrorDocument {
        let verify = self.verifies.borrow().get(&mirrored.volume).map(Verify::document);
        let mut document = document(&self.named(mirrored), verify);
        if let Some(replica) = &mut document.replica {
            replica.growing_to_bytes = mirrored.growing_to();
        }
        document
    }

    /// The mirror of a volume that a path names.
    fn find(&self, call: &Call) -> Result<Rc<Mirrored>, Problem> {
        let name = call.text("name");
        let index = self.server.find_volume(name)?;
        if let Some(reason) = self.server.waiting.reason(index) {
            let detail = format!("`{name}` waits for its device, and its mirror with it: {reason}");
            return Err(Problem::conflict(detail));
        }
        self.server.mirror_of(index).ok_or_else(|| {
            let mirrors = self.server.mirrors.borrow();
            let names = mirrors.iter();
            let names = names.map(|one| self.server.config.volumes[one.volume].name.as_str());
            let detail =
                format!("`{name}` is not mirrored: its configuration has no `mirror = {{ … }}`");
            Problem::not_found(detail).accepting(names)
        })
    }

    async fn act(self: Rc<Self>, call: Call) -> Result<Response, Problem> {
        call.without_query()?;
        let mirrored = self.find(&call)?;
        let body: Map<String, Value> = call.json()?;
        let action = call.text("action").to_owned();
        let order = Order::parse(&action, body)?;
        let volume = call.text("name").to_owned();
        tracing::info!(user = ?call.request.user, volume, ?order, "asked to act on a mirror");
        let this = self.clone();
        let work = async move {
            let (order, mirrored) = (order, mirrored);
            let foreseen = this.carry_out(&mirrored, &order).await?;
            Ok(ActionDocument {
                volume,
                action,
                changed: foreseen.changed,
                dry_run: order.dry_run,
                said: foreseen.said,
                loses: foreseen.loses,
                mirror: this.document(&mirrored),
            })
        };
        let ended = spawn(work).await.unwrap_or_else(|_| {
            let title = "The server ends";
            Err(Problem::new(503, "busy", title, "the server is about to end"))
        });
        Ok(Response::ok(&ended?))
    }

    async fn carry_out(
        self: &Rc<Self>,
        mirrored: &Rc<Mirrored>,
        order: &Order,
    ) -> Result<Foreseen, Problem> {
        if let Action::Create { source, anew } = order.action {
            return create(mirrored, source, anew, order.dry_run).await;
        }
        if let Action::Grow { size_bytes } = order.action {
            return grow(mirrored, size_bytes, order.dry_run).await;
        }
        if order.action == (Action::Failover { force: false }) {
            mirrored.wait_for_loss().await;
        }
        let now = self.document(mirrored);
        let foreseen = foresee(&now, order)?;
        let Some(deed) = foreseen.deed else { return Ok(foreseen) };
        if order.dry_run {
            return foresee_further(mirrored, &now, foreseen, deed).await;
        }
        match (deed, mirrored.mirror()) {
            (Deed::Delete { force }, _) => {
                mirrored.delete(force, false).await.map_err(refused)?;
                self.verifies.borrow_mut().remove(&mirrored.volume);
            }
            (Deed::StopVerify, _) => self.stop_verify(mirrored.volume),
            (Deed::Verify { leg, repair, bytes_per_second }, Some(mirror)) => {
                let peer = now.peers[leg].name.clone();
                let verify = Verify::begin(mirror, leg, peer, repair, bytes_per_second);
                self.verifies.borrow_mut().insert(mirrored.volume, verify);
            }
            (deed, Some(mirror)) => {
                let done = apply(&mirror, deed).await;
                done.map_err(|error| problem(&now, deed, error))?;
            }
            (_, None) => return Err(super::mirror_foresee::not_created(&now.volume)),
        }
        Ok(foreseen)
    }

    fn stop_verify(&self, volume: usize) {
        if let Some(verify) = self.verifies.borrow_mut().get_mut(&volume) {
            verify.stop();
        }
    }
}

/// What a dry run says where a mirror's document does not tell: the peer is asked, or the devices.
async fn foresee_further(
    mirrored: &Mirrored,
    now: &MirrorDocument,
    foreseen: Foreseen,
    deed: Deed,
) -> Result<Foreseen, Problem> {
    match (deed, mirrored.mirror()) {
        (Deed::Resolve { leg, keep_mine }, Some(mirror)) => {
            match mirror.foresee_resolve(leg, keep_mine).await {
                Ok(()) => Ok(foreseen),
                Err(CommandError::NoSplitBrain) => {
                    // As `resolved` has it.
                    let said =
                        "the split brain has ended meanwhile: nothing is to be done".to_owned();
                    Ok(Foreseen { changed: false, said, loses: None, deed: None })
                }
                Err(error) => Err(problem(now, deed, error)),
            }
        }
        (Deed::Delete { force }, _) => {
            mirrored.delete(force, true).await.map_err(refused)?;
            Ok(foreseen)
        }
        _ => Ok(foreseen),
    }
}

async fn create(
    mirrored: &Rc<Mirrored>,
    source: bool,
    anew: bool,
    dry_run: bool,
) -> Result<Foreseen, Problem> {
    let role = if source { CreateRole::Source } else { CreateRole::Target };
    let created = mirrored.create(role, anew, dry_run).await.map_err(refused)?;
    let usable = format_size(created.usable_bytes);
    let reserved = format_size(created.reserved_bytes);
    let kind = if source { "source" } else { "target" };
    if created.already {
        let said = format!("there is a replica of {usable} here already, made as a {kind} is");
        return Ok(Foreseen { changed: false, said, loses: None, deed: None });
    }
    let (said, loses) = match source {
        true => (
            format!("{usable} of the device are the volume, with the data that is there"),
            format!("what the last {reserved} of the device hold: they take the mirror's metadata"),
        ),
        false => (
            format!("the replica of {usable} waits for the data of the source"),
            "everything on the device: it is overwritten".to_owned(),
        ),
    };
    Ok(Foreseen { changed: true, said, loses: Some(loses), deed: None })
}

async fn grow(
    mirrored: &Rc<Mirrored>,
    size_bytes: Option<u64>,
    dry_run: bool,
) -> Result<Foreseen, Problem> {
    let grown = mirrored.grow(size_bytes, dry_run).await.map_err(refused)?;
    let (from, to) = (format_size(grown.from_bytes), format_size(grown.to_bytes));
    let changed = grown.to_bytes > grown.from_bytes;
    let older = grown.copied_to.join(" and ");
    let (nodes, copied) = match older.as_str() {
        "" => ("all nodes".to_owned(), String::new()),
        older => (
            format!("all nodes but {older}"),
            format!(
                ", and it is copied to {older}, whose version of Flagstone cannot zero it: until \
                 that has ended {older} cannot take over"
            ),
        ),
    };
    let said = match changed {
        true if grown.goes_on => format!(
            "the volume is growing from {from} to {to}: what is new is being zeroed on {nodes}, \
             which goes on; hosts are told when that has ended (see `flagstone mirror \
             status`){copied}"
        ),
        true => format!(
            "the volume grows from {from} to {to}: what is new is zeroed on {nodes}, then hosts are \
             told{copied}"
        ),
        false if size_bytes.is_some() => format!("the volume has {to} already"),
        false => format!(
            "the volume has {from}, and there is no room for more on {}: make its device larger first",
            grown.smallest
        ),
    };
    Ok(Foreseen { changed, said, loses: None, deed: None })
}

/// What a replica that was not made, or not forgotten, is to the asker.
fn refused(error: CreateError) -> Problem {
    match error {
        CreateError::Refused(why) => Problem::conflict(why),
        CreateError::Failed(why) => failed(why),
    }
}

fn failed(why: impl Into<String>) -> Problem {
    Problem::new(500, "failed", "A device or the peer failed", why)
}

/// Does it.
async fn apply(mirror: &Mirror, deed: Deed) -> Result<(), CommandError> {
    match deed {
        Deed::Wish { leg, wish } => mirror.set_wish(leg, wish).await,
        Deed::Resync { leg, full, compare } => {
            if let Some(compare) = compare {
                let options = mirror.options(leg).ok_or(CommandError::NoPeer)?;
                mirror.set_options(leg, PeerOptions { compare, ..options })?;
            }
            if full {
                mirror.resync_all(leg)?;
            }
            mirror.set_wish(leg, flagstone_mirror::state::Wish::Mirror).await
        }
        Deed::Switchover { leg } => mirror.switchover(leg).await,
        Deed::Failover { force: false } => Ok(mirror.failover().await?),
        Deed::Failover { force: true } => Ok(mirror.failover_in_doubt().await?),
        Deed::Resolve { leg, keep_mine: true } => resolved(mirror.resolve_keep_mine(leg).await),
        Deed::Resolve { leg, keep_mine: false } => resolved(mirror.resolve_keep_peers(leg).await),
        Deed::Demote => Ok(mirror.demote().await?),
        // Not the mirror's own.
        Deed::Verify { .. } | Deed::StopVerify | Deed::Delete { .. } => Ok(()),
    }
}

/// A split brain that has ended meanwhile is what was asked for.
fn resolved(result: Result<(), CommandError>) -> Result<(), CommandError> {
    match result {
        Err(CommandError::NoSplitBrain) => Ok(()),
        other => other,
    }
}

/// Why the mirror did not do it, with what to do next.
fn problem(now: &MirrorDocument, deed: Deed, error: CommandError) -> Problem {
    let (volume, node) = (&now.volume, &now.node);
    let leg = match deed {
        Deed::Wish { leg, .. }
        | Deed::Resync { leg, .. }
        | Deed::Switchover { leg }
        | Deed::Resolve { leg, .. } => leg,
        _ => 0,
    };
    let peer = now.peers.get(leg);
    let name = peer.map_or("the peer", |peer| peer.name.as_str());
    match error {
        CommandError::NotInSync => match peer {
            Some(peer) if peer.state != "mirroring" => {
                super::mirror_foresee::not_in_sync(now, peer)
            }
            _ => Problem::conflict(format!("{name} is not in sync any more: nothing was changed")),
        },
        CommandError::Role(RoleError::Io(error)) => {
            failed(format!("the device of {node}, or its log, fails: {error}"))
        }
        CommandError::Unknown => failed(format!(
            "{name} was lost while it took {volume} over: {node} serves nobody until it hears of \
             {name}; see what `flagstone mirror status {volume}` says there"
        )),
        CommandError::Peer(AskError::Refused(Refusal::Active)) => Problem::conflict(format!(
            "{name} serves hosts itself: first `flagstone mirror demote {volume}` there"
        )),
        CommandError::Peer(AskError::Refused(Refusal::NotNow)) => Problem::conflict(format!(
            "{name} does not serve {volume}, or {node} is not in sync with it: see `flagstone \
             mirror status {volume}` there"
        )),
        CommandError::Peer(AskError::NoCommonVersion(none)) => {
            Problem::conflict(format!("{name}: {none}"))
        }
        CommandError::Peer(AskError::Refused(refusal)) => {
            Problem::conflict(format!("{name} refuses: {refusal}"))
        }
        CommandError::Peer(error) => failed(format!(
            "{name} cannot be asked ({error}): see that flagstone serves there and that its \
             address can be reached"
        )),
        other => Problem::conflict(format!("nothing was changed: {other}")),
    }
}

impl Part for Mirrors {
    fn routes(self: Rc<Self>, router: &mut Router) {
        let this = self.clone();
        let about = "The mirror of a volume: its state, peers, log and verify.";
        router.get("/v1/volumes/{name}/mirror", about, move |call: Call| {
            let found = this.find(&call).map(|mirrored| this.document(&mirrored));
            async move { Ok(Response::ok(&found?)) }
        });
        let about = "Acts on the mirror of a volume, or says what that would come to.";
        router.post("/v1/volumes/{name}/mirror/{action}", about, move |call: Call| {
            self.clone().act(call)
        });
    }

    fn volume(&self, index: usize) -> Option<(&'static str, Value)> {
        let document = self.document(&*self.server.mirror_of(index)?);
        Some(("mirror", serde_json::to_value(document).expect("its keys are texts")))
    }

    fn metrics(&self, out: &mut Exposition) {
        let documents: Vec<_> =
            self.server.mirrors.borrow().iter().map(|mirrored| self.document(mirrored)).collect();
        super::mirror_metrics::write(&documents, out);
    }
}

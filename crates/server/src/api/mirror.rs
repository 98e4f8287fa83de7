//! Mirrors of the API: their documents, metrics and actions.
//!
//! An action survives its client: a half-finished change of role leaves no node in charge.

use std::rc::Rc;

use flagstone_config::redact;
use flagstone_mirror::ondisk::superblock::ReplicaRole;
use flagstone_mirror::state::machine::{
    Answers, Event, OperatorOrder, OrderRefusal, next, next_in_group,
};
use flagstone_mirror::state::status::DesiredState;
use flagstone_mirror::wire::peer::{PeerRefusal, RequestError};
use flagstone_mirror::{CommandError, Mirror, PeerOptions, RoleError};
use flagstone_runtime::{spawn, time};
use flagstone_units::exact_size;

use super::mirror_action::{ActionBody, ActionRequest, ParsedAction};
use super::mirror_document::{
    ActionDocument, MirrorAction, MirrorDocument, ReportedState, ResolveKeep,
};
use super::mirror_preview::{
    ActionPreview, Effect, Facts, failed_over, not_created, not_in_sync, preview,
};
use super::mirror_verify::VerifyTask;
use super::{Api, mirror_metrics, mirror_status, on};
use crate::http::{Call, Exposition, Problem, Router};
use crate::mirrors::{CreateError, LogMove, MirroredVolume, PeersChanged};
use flagstone_config::Peer;
use flagstone_config::device_spec::DeviceSpec;

pub(super) fn routes(api: &Rc<Api>, router: &mut Router) {
    let description = "The mirror of a volume: its state, peers, log and verify.";
    router.get(
        "/v1/volumes/{name}/mirror",
        description,
        on(api, async |api, call| Ok(api.mirror_document(&*api.find_mirror(&call)?))),
    );
    let description = "Acts on the mirror of a volume, or previews the outcome.";
    let path = "/v1/volumes/{name}/mirror/{action}";
    router.post(path, description, on(api, Api::act)).takes::<ActionBody>();
}

pub(super) fn metrics(api: &Api, out: &mut Exposition) {
    let mirrors = api.server.mirrors.borrow();
    let documents: Vec<_> = mirrors.iter().map(|mirror| api.mirror_document(mirror)).collect();
    mirror_metrics::write(&documents, out);
}

impl Api {
    pub(super) fn mirror_document(&self, mirrored: &MirroredVolume) -> MirrorDocument {
        let verify = self.verifies.borrow().get(&mirrored.volume).map(VerifyTask::document);
        mirror_status::document(mirrored, verify)
    }

    fn find_mirror(&self, call: &Call) -> Result<Rc<MirroredVolume>, Problem> {
        let name = call.text("name");
        let index = self.server.find_volume(name)?.number;
        if let Some(reason) = self.server.pending.reason(index) {
            return Err(Problem::conflict(format!(
                "`{name}` is pending, and so is its mirror, because its device is not open: {reason}"
            )));
        }
        self.server.mirror_of(index).ok_or_else(|| {
            let mirrors = self.server.mirrors.borrow();
            let detail =
                format!("`{name}` has no mirror: its configuration has no `mirror = {{ … }}`");
            Problem::not_found(detail).accepting(mirrors.iter().map(|one| one.name.as_str()))
        })
    }

    async fn act(self: Rc<Self>, call: Call) -> Result<ActionDocument, Problem> {
        call.without_query()?;
        let mirrored = self.find_mirror(&call)?;
        let body = call.json()?;
        let action = MirrorAction::parse(call.text("action"))?;
        let request = ActionRequest::parse(action, body)?;
        let volume = call.text("name").to_owned();
        let shown = redact::text(&format!("{request:?}"));
        tracing::info!(caller = %call.caller, volume, request = shown, "mirror action requested");
        let work = async move {
            let preview = self.execute(&mirrored, action, &request).await?;
            Ok(ActionDocument {
                volume,
                action,
                changed: preview.changed,
                dry_run: request.dry_run,
                outcome: preview.outcome,
                data_loss: preview.data_loss,
                mirror: self.mirror_document(&mirrored),
            })
        };
        spawn(work).await.unwrap_or_else(|_| {
            Err(Problem::stopping("the server is stopping: nothing was confirmed"))
        })
    }

    /// Effect of a request on a volume, or on all volumes of its consistency group.
    async fn preview(
        &self,
        mirrored: &Rc<MirroredVolume>,
        action: MirrorAction,
        request: &ActionRequest,
    ) -> Result<ActionPreview, Problem> {
        let group = mirrored.group().filter(|_| action.concerns_group());
        let Some(group) = group else { return self.preview_alone(mirrored, request).await };
        let refused = |name: &str, problem: Problem| Problem {
            detail: format!(
                "the volumes of group {} move together, and `{name}` refuses: {}",
                group.name(),
                problem.detail
            ),
            ..problem
        };
        let own = self.preview_alone(mirrored, request).await;
        let mut joined = own.map_err(|problem| refused(&mirrored.name, problem))?;
        for name in group.volumes().iter().filter(|name| **name != mirrored.name) {
            let member = self.server.mirrors.borrow().iter().find(|one| one.name == *name).cloned();
            let Some(member) = member else {
                let missing = Problem::conflict(OrderRefusal::GroupIncomplete.to_string());
                return Err(refused(name, missing));
            };
            let other = self.preview_alone(&member, request).await;
            joined = join(joined, other.map_err(|problem| refused(name, problem))?);
        }
        if joined.effect.is_some() {
            let volumes = group.volumes().join(", ");
            joined.outcome = format!("group {} ({volumes}): {}", group.name(), joined.outcome);
        }
        Ok(joined)
    }

    async fn preview_alone(
        &self,
        mirrored: &Rc<MirroredVolume>,
        request: &ActionRequest,
    ) -> Result<ActionPreview, Problem> {
        let mirror = mirrored.mirror();
        let answers = match (&request.action, &mirror) {
            (ParsedAction::Failover { force: false }, Some(mirror)) => mirror.ask_peers().await,
            _ => Answers::default(),
        };
        let now = self.mirror_document(mirrored);
        let decide = |order| match &mirror {
            Some(mirror) if mirrored.group().is_some() => {
                next_in_group(&mirror.machine_state(), order)
            }
            Some(mirror) => next(&mirror.machine_state(), Event::Order(order)),
            None => Err(OrderRefusal::Closed),
        };
        let wall_seconds = time::wall_clock().as_secs();
        preview(&now, &Facts { decide: &decide, answers, wall_seconds }, request)
    }

    async fn execute(
        self: &Rc<Self>,
        mirrored: &Rc<MirroredVolume>,
        action: MirrorAction,
        request: &ActionRequest,
    ) -> Result<ActionPreview, Problem> {
        if let ParsedAction::Create { role, overwrite, empty } = request.action {
            return Ok(create(mirrored, role, (overwrite, empty), request.dry_run).await?);
        }
        if let ParsedAction::Grow { size_bytes } = request.action {
            return Ok(grow(mirrored, size_bytes, request.dry_run).await?);
        }
        if let ParsedAction::MoveLog { to } = &request.action {
            return Ok(move_log(mirrored, to.clone(), request.dry_run).await?);
        }
        let dry_run = request.dry_run;
        if request.action == ParsedAction::Fence {
            let outcome = mirrored.fence(dry_run).await?;
            let data_loss = Some("whatever that machine has not written to its disks".to_owned());
            return Ok(ActionPreview { changed: true, outcome, data_loss, effect: None });
        }
        let peers = match &request.action {
            ParsedAction::AddPeer { name, address, insecure } => {
                let config = &self.server.config;
                let is_allowed = |peer: &Peer| *insecure || !config.forbids_peer(peer);
                Some(mirrored.add_peer(name, address.as_deref(), is_allowed, dry_run).await?)
            }
            ParsedAction::RemovePeer { name } => Some(mirrored.remove_peer(name, dry_run).await?),
            _ => None,
        };
        if let Some(PeersChanged { changed, outcome }) = peers {
            if changed && !dry_run {
                // Its legs have other numbers.
                self.verifies.borrow_mut().remove(&mirrored.volume);
            }
            return Ok(ActionPreview { changed, outcome, data_loss: None, effect: None });
        }
        let mut preview = self.preview(mirrored, action, request).await?;
        let now = self.mirror_document(mirrored);
        let Some(effect) = preview.effect else { return Ok(preview) };
        if request.dry_run {
            return check(mirrored, &now, preview, effect).await;
        }
        match (effect, mirrored.mirror()) {
            (Effect::Delete { force }, _) => {
                mirrored.delete(force, false).await?;
                self.verifies.borrow_mut().remove(&mirrored.volume);
            }
            (Effect::StopVerify, _) => {
                if let Some(verify) = self.verifies.borrow_mut().get_mut(&mirrored.volume) {
                    verify.stop();
                }
            }
            (Effect::Verify { leg, repair, bytes_per_second }, Some(mirror)) => {
                let peer = now.peers[leg].name.clone();
                let verify = VerifyTask::begin(mirror, leg, peer, repair, bytes_per_second);
                self.verifies.borrow_mut().insert(mirrored.volume, verify);
            }
            (Effect::Maintenance { on }, Some(mirror)) => {
                let done = mirror.suspend_failover(on).await;
                done.map_err(|error| Problem::conflict(error.to_string()))?;
            }
            (effect, Some(mirror)) => {
                let done = apply(&mirror, effect).await;
                if let (Effect::Resolve { .. }, Err(CommandError::NoSplitBrain)) = (effect, &done) {
                    return Ok(no_split_brain());
                }
                done.map_err(|error| problem(&now, effect, error))?;
                if let Effect::Order(OperatorOrder::ForceFailover { .. }) = effect {
                    preview.outcome = failed_over(&self.mirror_document(mirrored));
                }
            }
            (_, None) => return Err(not_created(&now.volume)),
        }
        Ok(preview)
    }
}

/// Adds the preview for another volume of the group to that for the volume which the request names.
fn join(own: ActionPreview, other: ActionPreview) -> ActionPreview {
    let effect = own.effect.or(other.effect);
    let outcome =
        if own.effect.is_none() && effect.is_some() { other.outcome } else { own.outcome };
    let data_loss = match (own.data_loss, other.data_loss) {
        (Some(own), Some(other)) if own != other => Some(format!("{own}; {other}")),
        (own, other) => own.or(other),
    };
    ActionPreview { changed: own.changed || other.changed, outcome, data_loss, effect }
}

/// Checks of a dry run that the mirror's document cannot answer: asks the peer, or the devices.
async fn check(
    mirrored: &Rc<MirroredVolume>,
    now: &MirrorDocument,
    preview: ActionPreview,
    effect: Effect,
) -> Result<ActionPreview, Problem> {
    match (effect, mirrored.mirror()) {
        (Effect::Resolve { leg, keep }, Some(mirror)) => {
            match mirror.check_resolve(leg, keep == ResolveKeep::Mine).await {
                Ok(()) => Ok(preview),
                Err(CommandError::NoSplitBrain) => Ok(no_split_brain()),
                Err(error) => Err(problem(now, effect, error)),
            }
        }
        (Effect::Delete { force }, _) => {
            mirrored.delete(force, true).await?;
            Ok(preview)
        }
        (
            Effect::Order(OperatorOrder::SetDesired(
                leg,
                DesiredState::Paused | DesiredState::Detached,
            )),
            _,
        ) => match now.failover.as_ref().and_then(|failover| failover.obstacle) {
            None => Ok(preview),
            Some(obstacle) => Err(Problem::conflict(format!(
                "the arbiter must record first that {} is out of date, and {}: see `flagstone mirror status \
                 {}`",
                now.peers[leg].name,
                obstacle.explanation(),
                now.volume
            ))),
        },
        _ => Ok(preview),
    }
}

async fn create(
    mirrored: &Rc<MirroredVolume>,
    role: ReplicaRole,
    (overwrite, empty): (bool, bool),
    dry_run: bool,
) -> Result<ActionPreview, CreateError> {
    let created = mirrored.create_from(role, overwrite, empty, dry_run).await?;
    let usable = exact_size(created.usable_bytes);
    let reserved = exact_size(created.reserved_bytes);
    if created.already {
        return Ok(ActionPreview::unchanged(format!(
            "this node already has a replica of {usable}, which is the {}",
            created.role.name()
        )));
    }
    let name = &mirrored.name;
    let (outcome, data_loss) = match role {
        ReplicaRole::Source if empty => (
            format!(
                "the volume has {usable} of the device, which is empty: with `flagstone mirror create \
                 {name} --target --empty` on the peer, only what hosts write is copied"
            ),
            format!("the last {reserved} of the device: they hold the mirror's metadata"),
        ),
        ReplicaRole::Target | ReplicaRole::Deposed if empty => (
            format!("the empty replica of {usable} receives what hosts have written to the source"),
            format!("the last {reserved} of the device: they hold the mirror's metadata"),
        ),
        ReplicaRole::Source => (
            format!("the volume has {usable} of the device and keeps the data there"),
            format!("the last {reserved} of the device: they hold the mirror's metadata"),
        ),
        ReplicaRole::Target | ReplicaRole::Deposed => (
            format!("the replica of {usable} is ready to receive the data of the source"),
            "everything on the device: it is overwritten".to_owned(),
        ),
    };
    Ok(ActionPreview { changed: true, outcome, data_loss: Some(data_loss), effect: None })
}

async fn grow(
    mirrored: &Rc<MirroredVolume>,
    size_bytes: Option<u64>,
    dry_run: bool,
) -> Result<ActionPreview, CreateError> {
    let grown = mirrored.grow(size_bytes, dry_run).await?;
    let (from, to) = (exact_size(grown.from_bytes), exact_size(grown.to_bytes));
    let changed = grown.to_bytes > grown.from_bytes;
    let older = grown.copied_to.join(" and ");
    let (nodes, copied) = match older.as_str() {
        "" => ("all nodes".to_owned(), String::new()),
        older => (
            format!("all nodes but {older}"),
            format!(
                ", and copied to {older}, whose version of Flagstone cannot zero it: {older} cannot \
                 take over until that completes"
            ),
        ),
    };
    let outcome = match changed {
        true if grown.in_progress => format!(
            "the volume is growing from {from} to {to}: the new space is still being zeroed on \
             {nodes}; hosts see the new size after that (see `flagstone mirror status`){copied}"
        ),
        true => format!(
            "the volume grows from {from} to {to}: the new space is zeroed on {nodes}, then hosts see \
             the new size{copied}"
        ),
        false if size_bytes.is_some() => format!("the volume already has {to}"),
        false => format!(
            "the volume has {from}, and {} has no more room: first enlarge its device",
            grown.smallest
        ),
    };
    Ok(ActionPreview { changed, outcome, data_loss: None, effect: None })
}

async fn move_log(
    mirrored: &Rc<MirroredVolume>,
    to: Option<DeviceSpec>,
    dry_run: bool,
) -> Result<ActionPreview, CreateError> {
    let LogMove { from, to, already, configure } = mirrored.move_log(to, dry_run).await?;
    if already {
        let outcome = format!("the write-intent log is on {to} already: nothing to do");
        return Ok(ActionPreview::unchanged(outcome));
    }
    let outcome = format!(
        "the write-intent log moves from {from} to {to} while hosts are served, and nothing has to be \
         copied to the peers. Then {configure}: with the old line, the next start of the server does not \
         serve the volume"
    );
    Ok(ActionPreview { changed: true, outcome, data_loss: None, effect: None })
}

impl From<CreateError> for Problem {
    fn from(error: CreateError) -> Problem {
        match error {
            CreateError::Refused(why) => Problem::conflict(why),
            CreateError::Failed(why) => failed(why),
        }
    }
}

/// Answer to an order about a split brain that has ended, whichever data was kept.
fn no_split_brain() -> ActionPreview {
    ActionPreview::unchanged(
        "there is no split brain any more, so nothing was discarded by this order; `mirror status` shows \
         which data is kept",
    )
}

fn failed(why: impl Into<String>) -> Problem {
    Problem::new(500, "failed", "A device or the peer failed", why)
}

fn keeps_mine(effect: Effect) -> bool {
    matches!(effect, Effect::Resolve { keep: ResolveKeep::Mine, .. })
}

async fn apply(mirror: &Mirror, effect: Effect) -> Result<(), CommandError> {
    match effect {
        Effect::Order(order) => mirror.order(order).await,
        Effect::Resync { leg, full, compare } => {
            // First, as it may be refused, and then nothing is to be changed.
            mirror.set_desired_state(leg, DesiredState::Connected).await?;
            if let Some(compare) = compare {
                let options = mirror.options(leg).ok_or(CommandError::NoPeer)?;
                mirror.set_options(leg, PeerOptions { compare, ..options })?;
            }
            match full {
                true => mirror.resync_all(leg),
                false => Ok(()),
            }
        }
        Effect::Resolve { leg, keep } => match keep {
            ResolveKeep::Mine => mirror.resolve_keep_mine(leg).await,
            ResolveKeep::Peer => mirror.resolve_keep_peers(leg).await,
        },
        // `execute` applies these.
        Effect::Verify { .. }
        | Effect::StopVerify
        | Effect::Maintenance { .. }
        | Effect::Delete { .. } => Ok(()),
    }
}

fn problem(now: &MirrorDocument, effect: Effect, error: CommandError) -> Problem {
    let (volume, node) = (&now.volume, &now.node);
    let leg = match effect {
        Effect::Order(
            OperatorOrder::SetDesired(leg, _)
            | OperatorOrder::HandOver(leg)
            | OperatorOrder::TakeOver(leg),
        )
        | Effect::Resync { leg, .. }
        | Effect::Resolve { leg, .. } => leg,
        _ => 0,
    };
    let peer = now.peers.get(leg);
    let name = peer.map_or("the peer", |peer| peer.name.as_str());
    match error {
        CommandError::NotInSync => match peer {
            Some(peer) if peer.state != ReportedState::Mirroring => not_in_sync(now, peer),
            _ => Problem::conflict(format!("{name} is not in sync any more: nothing was changed")),
        },
        CommandError::Role(RoleError::Io(error)) => {
            failed(format!("the data or log device of {node} failed: {error}"))
        }
        CommandError::Role(RoleError::Refused(OrderRefusal::PeerServes))
            if matches!(effect, Effect::Resolve { .. }) =>
        {
            Problem::conflict(format!(
                "{node} discards no data, because the node that serves {volume} counts on it as its target: \
                 see `flagstone mirror status {volume}`"
            ))
        }
        // Decided after the peers were informed.
        CommandError::Role(RoleError::Refused(
            refusal @ (OrderRefusal::Overtaken
            | OrderRefusal::Unconfirmed
            | OrderRefusal::PeerServes
            | OrderRefusal::PeerSilent
            | OrderRefusal::OtherArbiter
            | OrderRefusal::PeerTooOld),
        )) => Problem::conflict(format!(
            "{node} does not serve {volume}: {refusal}. A peer that was reached may have stopped: see \
             `flagstone mirror status {volume}` on every node, and repeat the order if none serves"
        )),
        CommandError::DeviceBusy => failed(format!(
            "the data or log device of {node} does not answer: the order takes effect when it does"
        )),
        CommandError::NotExcluded => Problem::conflict(format!(
            "the order was not carried out: {error}. Repeat it when the arbiter answers: see `flagstone \
             mirror status {volume}`"
        )),
        CommandError::OutcomeUnknown => failed(format!(
            "{name} was lost during the switchover: {node} serves no hosts until it reaches {name}; see \
             `flagstone mirror status {volume}` there"
        )),
        CommandError::GroupServes => Problem::conflict(format!(
            "{node} serves a volume of the consistency group of {volume}, which would keep the data of \
             {node}: first run `flagstone mirror demote {volume}`, which concerns the group"
        )),
        CommandError::GroupPartly => failed(format!(
            "{name} serves the first volume of the consistency group of {volume}, and not all others, \
             which follow as soon as their replicas can serve: see `flagstone mirror status` on {name}"
        )),
        CommandError::Peer(RequestError::Refused(PeerRefusal::Serving)) => {
            Problem::conflict(format!(
                "{name} serves hosts itself: first run `flagstone mirror demote {volume}` there"
            ))
        }
        CommandError::Peer(RequestError::Refused(PeerRefusal::NotNow)) if keeps_mine(effect) => {
            Problem::conflict(format!(
                "{name} discards no data: another resolution runs there, or a source is attached to \
                 it; see `flagstone mirror status {volume}` there"
            ))
        }
        CommandError::Peer(RequestError::Refused(PeerRefusal::NotNow)) => {
            Problem::conflict(format!(
                "{name} does not serve {volume}, or {node} is not in sync with it: see `flagstone \
                 mirror status {volume}` there"
            ))
        }
        CommandError::Role(RoleError::Refused(
            refusal @ (OrderRefusal::Resolving | OrderRefusal::PeerDiscards),
        )) => Problem::conflict(format!(
            "no data of {node} was discarded, but it may not serve any more: {refusal}; see `flagstone \
             mirror status {volume}` on both nodes"
        )),
        CommandError::Peer(RequestError::NoCommonVersion(none)) => {
            Problem::conflict(format!("{name}: {none}"))
        }
        CommandError::Peer(RequestError::Refused(refusal)) => {
            Problem::conflict(format!("{name} refuses: {refusal}"))
        }
        CommandError::Peer(error) if keeps_mine(effect) => failed(format!(
            "{name} does not answer ({error}), and may still discard its data if it got the order: \
             repeat it, or look at `flagstone mirror status {volume}` there before the opposite order"
        )),
        CommandError::Peer(error) => failed(format!(
            "{name} does not answer ({error}): check that flagstone runs there and that its address is \
             reachable"
        )),
        other => Problem::conflict(format!("nothing was changed: {other}")),
    }
}

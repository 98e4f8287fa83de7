//! Preview of an action on a mirror: a pure function from the mirror's document to the action's
//! outcome and effect. A dry run stops here; otherwise the effect is then applied.
//!
//! An action whose outcome is already the case has no effect and is no error. Whether an order is
//! allowed is decided by the mirror's state machine, which also decides when the order is carried
//! out; this module adds names and advice.

use flagstone_mirror::Mode;
use flagstone_mirror::ondisk::superblock::ReplicaRole;
use flagstone_mirror::state::machine::{Answers, OperatorOrder, OrderRefusal, Transition};
use flagstone_mirror::state::status::DesiredState;
use flagstone_units::display::{counted, duration};
use flagstone_units::exact_size;

use super::mirror_action::{ActionRequest, ParsedAction};
use super::mirror_document::{
    MirrorAction, MirrorDocument, PeerDocument, ReplicaDocument, ReportedState, ResolveKeep,
};
use super::mirror_status::peer_option;
use crate::http::Problem;

/// Effect of an action on the mirror. `leg` is the peer's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Order(OperatorOrder),
    Resync { leg: usize, full: bool, compare: Option<bool> },
    Verify { leg: usize, repair: bool, bytes_per_second: Option<u64> },
    StopVerify,
    Maintenance { on: bool },
    Resolve { leg: usize, keep: ResolveKeep },
    Delete { force: bool },
}

/// Decisions and facts that are not in the document.
pub(super) struct Facts<'a> {
    /// The decision of the mirror's state machine about an order, which changes nothing.
    pub(super) decide: &'a dyn Fn(OperatorOrder) -> Transition,
    /// Answers of the peers, for a failover.
    pub(super) answers: Answers,
    /// Time since the Unix epoch, in seconds.
    pub(super) wall_seconds: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ActionPreview {
    pub(super) changed: bool,
    /// The state after the action, for people.
    pub(super) outcome: String,
    /// Data lost by the action, for people.
    pub(super) data_loss: Option<String>,
    pub(super) effect: Option<Effect>,
}

impl ActionPreview {
    pub(super) fn unchanged(outcome: impl Into<String>) -> ActionPreview {
        ActionPreview { changed: false, outcome: outcome.into(), data_loss: None, effect: None }
    }

    fn with_effect(effect: Effect, outcome: impl Into<String>) -> ActionPreview {
        let outcome = outcome.into();
        ActionPreview { changed: true, outcome, data_loss: None, effect: Some(effect) }
    }

    fn losing(self, data_loss: impl Into<String>) -> ActionPreview {
        ActionPreview { data_loss: Some(data_loss.into()), ..self }
    }
}

pub(super) fn not_created(volume: &str) -> Problem {
    Problem::conflict(format!(
        "this node has no replica of `{volume}` yet: run `flagstone mirror create {volume} --source` \
         on the node whose data is kept, then `--target` on the other"
    ))
    .accepting([MirrorAction::Create.name()])
}

/// Outcome of a request on a mirror in state `now`; not for [`ParsedAction::Create`], `Grow`,
/// `MoveLog`, `AddPeer`, `RemovePeer` and `Fence`.
pub(super) fn preview(now: &MirrorDocument, facts: &Facts, request: &ActionRequest) -> Previewed {
    let volume = &now.volume;
    let Some(replica) = &now.replica else {
        return match request.action {
            ParsedAction::Delete { .. } => {
                Ok(ActionPreview::unchanged(format!("this node has no replica of {volume}")))
            }
            _ => Err(not_created(volume)),
        };
    };
    let peer = || find_peer(now, request.peer.as_deref());
    let open = (now, replica, facts);
    match &request.action {
        ParsedAction::Create { .. }
        | ParsedAction::Grow { .. }
        | ParsedAction::MoveLog { .. }
        | ParsedAction::AddPeer { .. }
        | ParsedAction::RemovePeer { .. }
        | ParsedAction::Fence => {
            Err(Problem::conflict(format!("this node already has a replica of `{volume}`")))
        }
        ParsedAction::Pause => set_desired_state(open, peer()?, DesiredState::Paused),
        ParsedAction::Break => set_desired_state(open, peer()?, DesiredState::Detached),
        ParsedAction::Continue => set_desired_state(open, peer()?, DesiredState::Connected),
        ParsedAction::Resync { full, compare } => resync((now, replica), peer()?, *full, *compare),
        ParsedAction::Switchover { to } => switchover(open, request, to.as_deref()),
        ParsedAction::Failover { force } => failover(open, *force),
        ParsedAction::Verify { stop: true, .. } => stop_verify(now, request.peer.as_deref()),
        ParsedAction::Verify { repair, bytes_per_second, .. } => {
            verify((now, replica), peer()?, *repair, *bytes_per_second)
        }
        ParsedAction::Resolve { keep } => Ok(resolve(now, peer()?, *keep)),
        ParsedAction::Demote => demote(open),
        ParsedAction::Maintenance { on } => maintenance((now, replica), *on),
        ParsedAction::Delete { force } => delete((now, replica), *force),
    }
}

type Previewed = Result<ActionPreview, Problem>;

type OpenMirror<'a> = (&'a MirrorDocument, &'a ReplicaDocument);

/// A mirror with a replica, and decisions about it.
type Decided<'a> = (&'a MirrorDocument, &'a ReplicaDocument, &'a Facts<'a>);

type IndexedPeer<'a> = (usize, &'a PeerDocument);

/// The peer of this name; the only peer if no name is given.
fn find_peer<'a>(now: &'a MirrorDocument, name: Option<&str>) -> Result<IndexedPeer<'a>, Problem> {
    let names = || now.peers.iter().map(|peer| peer.name.as_str());
    let found = match name {
        None if now.peers.len() == 1 => now.peers.first().map(|peer| (0, peer)),
        None => {
            let detail =
                format!("`{}` has several peers: name one as `peer` (`--peer NAME`)", now.volume);
            return Err(Problem::invalid(detail).accepting(names()));
        }
        Some(name) => now.peers.iter().enumerate().find(|(_, peer)| peer.name == name),
    };
    found.ok_or_else(|| {
        let name = name.unwrap_or_default();
        Problem::not_found(format!("`{}` has no peer `{name}`", now.volume)).accepting(names())
    })
}

/// The source among the peers: attached, or else serving hosts at its last handshake.
fn source(now: &MirrorDocument) -> Option<IndexedPeer<'_>> {
    let attached = now.replica.as_ref().and_then(|replica| replica.source.as_deref());
    now.peers.iter().enumerate().find(|(_, peer)| match attached {
        Some(name) => peer.name == name,
        None => peer.last_handshake.as_ref().is_some_and(|handshake| handshake.serving),
    })
}

fn must_be_source((now, replica): OpenMirror<'_>) -> Result<(), Problem> {
    match replica.role == ReplicaRole::Source {
        true => Ok(()),
        false => Err(not_the_source(now)),
    }
}

fn not_the_source(now: &MirrorDocument) -> Problem {
    let source = source(now).map_or("the node that serves it", |(_, peer)| peer.name.as_str());
    Problem::conflict(format!(
        "{} is not the source of `{}`: repeat the command on the source, {source}",
        now.node, now.volume
    ))
}

/// The problem of an order that the state machine refuses.
fn refused(now: &MirrorDocument, peer: Option<&PeerDocument>, refusal: OrderRefusal) -> Problem {
    match (refusal, peer) {
        (OrderRefusal::NotSource, _) => not_the_source(now),
        (OrderRefusal::SplitBrain, Some(peer)) => split_brain(now, peer),
        (OrderRefusal::NotInSync, Some(peer)) => not_in_sync(now, peer),
        (OrderRefusal::Inconsistent, Some(peer)) => Problem::conflict(format!(
            "the resync from {} has not completed: {} can serve {} after it",
            peer.name, now.node, now.volume
        )),
        _ => Problem::conflict(format!("nothing was changed: {refusal}")),
    }
}

fn set_desired_state(
    (now, _, facts): Decided<'_>,
    (leg, peer): IndexedPeer<'_>,
    state: DesiredState,
) -> Previewed {
    let (node, name) = (&now.node, &peer.name);
    let order = OperatorOrder::SetDesired(leg, state);
    let decided = (facts.decide)(order).map_err(|refusal| refused(now, Some(peer), refusal))?;
    if decided.1.is_empty() {
        // Only the source knows whether it has paused or broken the mirror.
        if now.replica.as_ref().is_some_and(|replica| replica.role != ReplicaRole::Source) {
            return Err(not_the_source(now));
        }
        return Ok(ActionPreview::unchanged(match state {
            DesiredState::Connected => {
                format!("the mirror with {name} is neither paused nor broken: it is {}", peer.state)
            }
            DesiredState::Paused => format!("the mirror with {name} is already paused"),
            DesiredState::Detached => format!("the mirror with {name} is already broken"),
        }));
    }
    let outcome = match state {
        DesiredState::Paused if peer.desired_state == Some(DesiredState::Detached) => format!(
            "the mirror with {name} is paused instead of broken: `continue` copies everything; until \
             then {node} has the only current copy"
        ),
        DesiredState::Paused => format!(
            "the mirror with {name} is paused: changes are tracked, and copied after `continue`; until \
             then {node} has the only current copy"
        ),
        DesiredState::Detached => format!(
            "the mirror with {name} is broken: `continue` copies everything; until then \
             {node} has the only current copy"
        ),
        DesiredState::Connected if peer.desired_state == Some(DesiredState::Detached) => {
            format!("the mirror with {name} continues: everything is copied to it")
        }
        DesiredState::Connected => {
            format!("the mirror with {name} continues: its out-of-sync blocks are copied to it")
        }
    };
    Ok(ActionPreview::with_effect(Effect::Order(order), outcome))
}

fn resync(
    (now, replica): OpenMirror<'_>,
    (leg, peer): IndexedPeer<'_>,
    full: bool,
    compare: Option<bool>,
) -> Previewed {
    must_be_source((now, replica))?;
    let name = &peer.name;
    match peer.state {
        ReportedState::SplitBrain => return Err(split_brain(now, peer)),
        ReportedState::Mismatch => {
            let detail = format!(
                "{name} is incompatible (another volume, size, block size or release): `flagstone \
                 mirror status {}` shows the difference, and what to do",
                now.volume
            );
            return Err(Problem::conflict(detail));
        }
        _ => {}
    }
    let other_compare = compare.is_some_and(|compare| compare != peer.compare);
    let runs = matches!(peer.state, ReportedState::Mirroring | ReportedState::Resynchronizing);
    let connected = peer.desired_state == Some(DesiredState::Connected);
    if let Some(group) = now.group.as_ref().filter(|_| !connected) {
        let detail = format!(
            "{name} is paused or broken, as for all volumes of group {group}: `flagstone mirror continue \
             {group}` continues them, and then this volume can be resynchronized",
            group = group.name
        );
        return Err(Problem::conflict(detail));
    }
    let under_way = connected && if full { peer.full_resync } else { runs };
    if under_way && !other_compare {
        return Ok(ActionPreview::unchanged(match peer.state {
            _ if full => format!("a full resync of {name} is already running or due"),
            ReportedState::Mirroring => format!("{name} is in sync: there is nothing to copy"),
            _ => format!("a resync of {name} is already running"),
        }));
    }
    let copied = match (full, compare.unwrap_or(peer.compare)) {
        (true, true) => "all blocks are compared by checksum, and those that differ are copied",
        (true, false) => "everything is copied",
        (false, true) => {
            "the out-of-sync blocks are compared by checksum, and those that differ are copied"
        }
        (false, false) => "the out-of-sync blocks are copied",
    };
    let mut outcome = format!("{copied} to {name}");
    if full {
        let node = &now.node;
        outcome += &format!("; until the resync completes {node} has the only consistent copy");
    }
    // Reconnecting now instead of later is no change.
    let changed = full || other_compare || !connected;
    let effect = Effect::Resync { leg, full, compare };
    Ok(ActionPreview { changed, ..ActionPreview::with_effect(effect, outcome) })
}

fn switchover(
    (now, replica, facts): Decided<'_>,
    request: &ActionRequest,
    to: Option<&str>,
) -> Previewed {
    let (volume, node) = (&now.volume, &now.node);
    let named = request.peer.as_deref().map(|name| find_peer(now, Some(name))).transpose()?;
    match to.filter(|to| *to != node.as_str()) {
        None if replica.serving => {
            let others = now.peers.iter().map(|peer| peer.name.as_str());
            let others = others.collect::<Vec<_>>().join(" or ");
            let outcome = format!(
                "{node} already serves {volume}; to move it to a peer: `flagstone mirror switchover \
                 {volume} --to {others}`"
            );
            Ok(ActionPreview::unchanged(outcome))
        }
        None => take_over((now, replica, facts), named),
        Some(to) => match (find_node(now, to)?, named) {
            (found, Some((_, peer))) if found.1.name != peer.name => {
                let detail = format!(
                    "`to` is {to} but `peer` is {}: name the same node, or omit `peer`",
                    peer.name
                );
                Err(Problem::invalid(detail))
            }
            (found, _) => hand_over((now, replica, facts), found),
        },
    }
}

fn find_node<'a>(now: &'a MirrorDocument, to: &str) -> Result<IndexedPeer<'a>, Problem> {
    find_peer(now, Some(to)).map_err(|problem| {
        let nodes = now.peers.iter().map(|peer| peer.name.as_str()).chain([now.node.as_str()]);
        Problem { accepted: Vec::new(), ..problem }.accepting(nodes)
    })
}

fn take_over((now, replica, facts): Decided<'_>, named: Option<IndexedPeer<'_>>) -> Previewed {
    if let (Some((_, peer)), Some(source)) = (named, &replica.source)
        && peer.name != *source
    {
        let detail = format!("{source} serves {}, not {}", now.volume, peer.name);
        return Err(Problem::conflict(detail));
    }
    let (leg, peer) = match named.or(source(now)) {
        Some(found) => found,
        None if now.peers.len() == 1 => find_peer(now, None)?,
        None => return Err(no_source(now, "a peer")),
    };
    let (volume, node, name) = (&now.volume, &now.node, &peer.name);
    let order = OperatorOrder::TakeOver(leg);
    (facts.decide)(order).map_err(|refusal| refused(now, Some(peer), refusal))?;
    if !replica.has_source {
        return Err(no_source(now, name));
    }
    let outcome = format!(
        "{node} serves {volume}, and {name} becomes its target: host I/O pauses briefly, no data is \
         lost"
    );
    Ok(ActionPreview::with_effect(Effect::Order(order), outcome))
}

fn no_source(now: &MirrorDocument, name: &str) -> Problem {
    let (volume, node) = (&now.volume, &now.node);
    Problem::conflict(format!(
        "{name} is not attached to {node} as the source of {volume}, so it cannot hand it over: see \
         `flagstone mirror status {volume}` on the other nodes; if the source has failed, run \
         `flagstone mirror failover {volume}`"
    ))
}

fn hand_over((now, replica, facts): Decided<'_>, (leg, peer): IndexedPeer<'_>) -> Previewed {
    let (volume, node, name) = (&now.volume, &now.node, &peer.name);
    if !replica.serving {
        let serves = source(now).is_some_and(|(_, source)| source.name == *name);
        // Right after a switchover the next handshake with the peer is still to come.
        let was_handed_over = replica.role == ReplicaRole::Target
            && peer.state == ReportedState::Target
            && now.peers.len() == 1;
        if serves || was_handed_over {
            let outcome = format!("{name} is already the source of {volume}");
            return Ok(ActionPreview::unchanged(outcome));
        }
        return Err(Problem::conflict(format!(
            "{node} does not serve {volume}, so it cannot hand it over: repeat the command on {name}"
        )));
    }
    let order = OperatorOrder::HandOver(leg);
    (facts.decide)(order).map_err(|refusal| refused(now, Some(peer), refusal))?;
    let outcome = format!(
        "{name} serves {volume}, and {node} becomes its target: host I/O pauses briefly, no data is \
         lost"
    );
    Ok(ActionPreview::with_effect(Effect::Order(order), outcome))
}

pub(super) fn not_in_sync(now: &MirrorDocument, peer: &PeerDocument) -> Problem {
    let next = match peer.state {
        ReportedState::Resynchronizing => {
            "wait for the resync: `flagstone mirror status --watch` shows its progress"
        }
        ReportedState::SplitBrain => return split_brain(now, peer),
        _ => "see `flagstone mirror status`",
    };
    Problem::conflict(format!(
        "{} is {}, not in sync, and lacks acknowledged writes: {next}",
        peer.name, peer.state
    ))
}

/// Problem of an action that has to wait for the end of a split brain.
fn split_brain(now: &MirrorDocument, peer: &PeerDocument) -> Problem {
    let (volume, node, name) = (&now.volume, &now.node, &peer.name);
    let option = peer_option(now, peer);
    Problem::conflict(format!(
        "split brain: {node} and {name} were written independently; first choose the data to keep, \
         with `flagstone mirror resolve {volume}{option} --keep mine` or `--keep peer`"
    ))
}

fn bad_bytes(replica: &ReplicaDocument) -> String {
    let bytes: u64 = replica.bad_ranges.iter().map(|bad| bad.bytes).sum();
    let ranges = counted(replica.bad_ranges.len() as u64, "range");
    format!("{} in {ranges} that its source could not copy", exact_size(bytes))
}

/// Outcome of a forced failover that has happened: `now` is the state after it.
pub(super) fn failed_over(now: &MirrorDocument) -> String {
    let peer = |peer: &PeerDocument| format!("{} is {}", peer.name, peer.state);
    let peers: Vec<_> = now.peers.iter().map(peer).collect();
    format!("{} now serves {}; {}", now.node, now.volume, peers.join(", "))
}

fn failover(decided: Decided<'_>, force: bool) -> Previewed {
    let (now, replica, facts) = decided;
    let (volume, node) = (&now.volume, &now.node);
    let order = match force {
        true => OperatorOrder::ForceFailover { unverified: true },
        false => OperatorOrder::Failover { answers: facts.answers },
    };
    let (_, actions) =
        (facts.decide)(order).map_err(|refusal| not_failed_over(decided, refusal))?;
    if actions.is_empty() {
        return Ok(ActionPreview::unchanged(format!("{node} already serves {volume}")));
    }
    let names: Vec<&str> = now.peers.iter().map(|peer| peer.name.as_str()).collect();
    let (names, any) = (names.join(" and "), names.join(" or "));
    let outcome = match force {
        true => format!(
            "{node} serves {volume}; {any} has to stop serving first if it can be reached, and is \
             not asked otherwise"
        ),
        false => format!("{node} serves {volume}: {names} answered, and serves no hosts"),
    };
    let mut data_loss = behind((now, replica, facts), &names);
    if force {
        data_loss.push_str(&format!(
            ". If {any} serves hosts and cannot be reached, both are written independently (split \
             brain), and the data of one has to be discarded: power it off first"
        ));
    }
    if !replica.bad_ranges.is_empty() {
        data_loss.push_str(&format!(". {} get older data", bad_bytes(replica)));
    }
    if replica.removed {
        data_loss.push_str(". It was removed from the mirror, so it lacks all later writes");
    }
    if replica.unverified {
        data_loss.push_str(". A flush of its device failed, so a power loss may take recent data");
    }
    Ok(ActionPreview::with_effect(Effect::Order(order), outcome).losing(data_loss))
}

/// Acknowledged writes that this node may lack, as text.
fn behind((now, replica, facts): Decided<'_>, names: &str) -> String {
    let node = &now.node;
    let lagging = match now.peers.iter().any(|peer| peer.mode == Some(Mode::Async)) {
        true => ", and in asynchronous mode those still queued",
        false => "",
    };
    let last = now.peers.iter().filter_map(|peer| peer.last_in_sync_seconds).max();
    let when = match (replica.has_source, last) {
        (true, _) => "from now on".to_owned(),
        (false, Some(then)) => format!(
            "since {node} was last in sync, {} ago",
            duration(facts.wall_seconds.saturating_sub(then) as f64)
        ),
        (false, None) => format!("before {node} started: it was not in sync since"),
    };
    format!("writes that {names} completed for hosts {when}{lagging}")
}

fn not_failed_over((now, replica, _): Decided<'_>, refusal: OrderRefusal) -> Problem {
    let (volume, node) = (&now.volume, &now.node);
    let forced = format!("flagstone mirror failover {volume} --force");
    let serving = source(now).map_or("a peer", |(_, peer)| peer.name.as_str());
    match refusal {
        OrderRefusal::PeerServes => Problem::conflict(format!(
            "{serving} serves {volume} and responds: `flagstone mirror switchover {volume}` loses no \
             data. If that is impossible, `--force` stops it, and loses what {node} does not have"
        ))
        .accepting([format!("flagstone mirror switchover {volume}"), forced]),
        OrderRefusal::PeerSilent => Problem::conflict(format!(
            "a peer does not answer, and may still serve hosts, so nothing was changed. Power it off \
             or make sure that it has failed; then run `{forced}`"
        ))
        .accepting([forced]),
        OrderRefusal::PeerLeads => Problem::conflict(format!(
            "a peer has newer data than {node} and becomes the source when it is reached: see \
             `flagstone mirror status {volume}` there"
        ))
        .accepting([forced]),
        OrderRefusal::Inconsistent => Problem::conflict(format!(
            "a resync to {node} has not completed: its data is inconsistent and is never served; \
             restore the node that was the source"
        )),
        OrderRefusal::Incomplete => Problem::conflict(format!(
            "{node} lacks {}: `flagstone mirror status {volume}` lists the bad ranges. Restore the \
             node that was the source; if it is gone for good, `--force` serves older data in them",
            bad_bytes(replica)
        ))
        .accepting([forced]),
        OrderRefusal::Removed => Problem::conflict(format!(
            "the source has removed {node} from the mirror of {volume}, whose other nodes may have newer \
             data: `--force` serves the data of the time of its removal"
        ))
        .accepting([forced]),
        OrderRefusal::Blank => Problem::conflict(format!(
            "the replica of {volume} on {node} holds no data yet: wait for its first resync"
        )),
        OrderRefusal::Unverified => Problem::conflict(format!(
            "a flush of the device of {node} failed, so recent data may not survive a power loss: \
             restore the node that was the source, or use what the device returns with `{forced}`"
        ))
        .accepting([forced]),
        other => refused(now, None, other),
    }
}

fn stop_verify(now: &MirrorDocument, peer: Option<&str>) -> Previewed {
    let named = peer.map(|name| find_peer(now, Some(name))).transpose()?;
    let Some(verify) = now.verify.as_ref().filter(|verify| verify.running) else {
        return Ok(ActionPreview::unchanged("no verify is running"));
    };
    let with = &verify.peer;
    Ok(match named {
        Some((_, peer)) if peer.name != *with => ActionPreview::unchanged(format!(
            "no verify with {} is running, only one with {with}",
            peer.name
        )),
        _ => {
            let outcome = format!("the verify with {with} is stopped");
            ActionPreview::with_effect(Effect::StopVerify, outcome)
        }
    })
}

fn verify(
    (now, replica): OpenMirror<'_>,
    (leg, peer): IndexedPeer<'_>,
    repair: bool,
    bytes_per_second: Option<u64>,
) -> Previewed {
    must_be_source((now, replica))?;
    let name = &peer.name;
    if let Some(verify) = now.verify.as_ref().filter(|verify| verify.running) {
        let same = verify.repair == repair && verify.bytes_per_second == bytes_per_second;
        if verify.peer == *name && same {
            let outcome = format!("a verify with {name} is already running");
            return Ok(ActionPreview::unchanged(outcome));
        }
        return Err(Problem::conflict(format!(
            "another verify is running, with {}: wait for it, or stop it with `flagstone mirror verify \
             {} --stop`",
            verify.peer, now.volume
        )));
    }
    if peer.state != ReportedState::Mirroring {
        return Err(not_in_sync(now, peer));
    }
    let then = match repair {
        true => format!("; differences are then copied to {name}"),
        false => String::new(),
    };
    let outcome = format!("{} and {name} are compared while hosts continue{then}", now.node);
    Ok(ActionPreview::with_effect(Effect::Verify { leg, repair, bytes_per_second }, outcome))
}

fn resolve(now: &MirrorDocument, (leg, peer): IndexedPeer<'_>, keep: ResolveKeep) -> ActionPreview {
    let (node, name) = (&now.node, &peer.name);
    if peer.state != ReportedState::SplitBrain {
        return ActionPreview::unchanged(format!(
            "there is no split brain with {name}: the mirror is {}",
            peer.state
        ));
    }
    let effect = Effect::Resolve { leg, keep };
    match keep {
        // The peer is asked later whether it serves hosts, which forbids this.
        ResolveKeep::Mine => {
            let outcome = format!("{name} takes the data of {node}");
            let data_loss = format!("all writes on {name} since the split");
            ActionPreview::with_effect(effect, outcome).losing(data_loss)
        }
        ResolveKeep::Peer => {
            let serving = now.replica.as_ref().is_some_and(|replica| replica.serving);
            let stops = if serving { " and stops serving" } else { "" };
            let outcome = format!("{node} takes the data of {name}{stops}");
            let amount = match peer.out_of_sync_bytes {
                0 => String::new(),
                bytes => format!(", in regions of {} in all", exact_size(bytes)),
            };
            let data_loss = format!("all writes on {node} since the split{amount}");
            ActionPreview::with_effect(effect, outcome).losing(data_loss)
        }
    }
}

fn demote((now, replica, facts): Decided<'_>) -> Previewed {
    let (volume, node) = (&now.volume, &now.node);
    let (_, actions) =
        (facts.decide)(OperatorOrder::Demote).map_err(|refusal| refused(now, None, refusal))?;
    if actions.is_empty() {
        return Ok(ActionPreview::unchanged(format!("{node} is already a target of {volume}")));
    }
    let stops = match replica.serving {
        true => {
            ": it stops serving hosts. A peer with current data may become the source by itself; \
             otherwise run `failover` on the node that is to serve"
        }
        false => "",
    };
    let outcome = format!("{node} is a target of {volume}{stops}");
    Ok(ActionPreview::with_effect(Effect::Order(OperatorOrder::Demote), outcome))
}

fn maintenance((now, replica): OpenMirror<'_>, on: bool) -> Previewed {
    let (volume, node) = (&now.volume, &now.node);
    let Some(failover) = &now.failover else {
        let detail =
            format!("an operator decides on failovers of {volume} (failover = \"manual\")");
        return Err(Problem::conflict(detail));
    };
    if !replica.serving {
        return Err(not_the_source(now));
    }
    let outcome = match (on, failover.suspended == on) {
        (true, true) => {
            let outcome = format!("automatic failover of {volume} is already suspended");
            return Ok(ActionPreview::unchanged(outcome));
        }
        (true, false) => format!(
            "automatic failover of {volume} is suspended: no peer takes over if {node} fails, \
             unless only its disk fails, until `flagstone mirror maintenance {volume} off`"
        ),
        // Resumed at the arbiter even if this node has not seen that it was suspended.
        (false, _) => format!("automatic failover of {volume} is in effect"),
    };
    Ok(ActionPreview::with_effect(Effect::Maintenance { on }, outcome))
}

fn delete((now, replica): OpenMirror<'_>, force: bool) -> Previewed {
    let (volume, node) = (&now.volume, &now.node);
    if replica.serving && !force {
        return Err(Problem::conflict(format!(
            "{node} serves {volume}: first move it to a peer, with `flagstone mirror switchover \
             {volume} --to PEER`, or use --force"
        ))
        .accepting([
            format!("flagstone mirror switchover {volume} --to PEER"),
            format!("flagstone mirror delete {volume} --force"),
        ]));
    }
    let in_sync = now.peers.iter().any(|peer| peer.state == ReportedState::Mirroring);
    let only = match in_sync || !replica.serving {
        true => "",
        false => "; it may be the only current copy",
    };
    let hosts = if replica.serving { "; its hosts are disconnected" } else { "" };
    let data_loss = format!(
        "the mirror's metadata and write-intent log of {volume} on {node}: everything is copied if it \
         becomes a replica again. Its data stays{only}{hosts}"
    );
    let outcome = format!("the replica of {volume} on {node} is deleted");
    Ok(ActionPreview::with_effect(Effect::Delete { force }, outcome).losing(data_loss))
}

#[cfg(test)]
#[path = "mirror_preview_tests.rs"]
mod tests;

//! What an action comes to, from the present state: a pure function, and so what a dry run says.
//!
//! An action whose effect is there already changes nothing and is no mistake. What a mirror itself
//! finds when it is asked to act has the last word.

use flagstone_api::Problem;
use flagstone_mirror::state::Wish;

use super::mirror_document::{MirrorDocument, PeerDocument, ReplicaDocument};
use super::mirror_order::{Action, Order};
use super::mirror_view::{of_peer, wish_name};

/// What to do to the mirror itself; peers are by the place of their leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Wish { leg: usize, wish: Wish },
    Resync { leg: usize, full: bool, compare: Option<bool> },
    Switchover { leg: usize },
    Failover { force: bool },
    Verify { leg: usize, repair: bool, bytes_per_second: Option<u64> },
    StopVerify,
    Resolve { leg: usize, keep_mine: bool },
    Demote,
    Delete { force: bool },
}

/// What an action comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Foreseen {
    pub(super) changed: bool,
    /// For people: what is so after it.
    pub(super) said: String,
    /// What is lost by it.
    pub(super) loses: Option<String>,
    pub(super) deed: Option<Deed>,
}

impl Foreseen {
    fn already(said: impl Into<String>) -> Foreseen {
        Foreseen { changed: false, said: said.into(), loses: None, deed: None }
    }

    fn does(deed: Deed, said: impl Into<String>) -> Foreseen {
        Foreseen { changed: true, said: said.into(), loses: None, deed: Some(deed) }
    }

    fn losing(self, what: impl Into<String>) -> Foreseen {
        Foreseen { loses: Some(what.into()), ..self }
    }
}

/// The problem of a mirror without a replica.
pub(super) fn not_created(volume: &str) -> Problem {
    Problem::conflict(format!(
        "this node has no replica of `{volume}` yet: `flagstone mirror create {volume} --source` \
         on the node whose data is kept, then `--target` on the other"
    ))
    .accepting(["create"])
}

/// What `order` comes to for a mirror that is as `now` says. Not of [`Action::Create`] and
/// [`Action::Grow`], for which devices are looked at.
pub(super) fn foresee(now: &MirrorDocument, order: &Order) -> Result<Foreseen, Problem> {
    let volume = &now.volume;
    let Some(replica) = &now.replica else {
        return match order.action {
            Action::Delete { .. } => {
                Ok(Foreseen::already(format!("there is no replica of {volume} here")))
            }
            _ => Err(not_created(volume)),
        };
    };
    let peer = || find(now, order.peer.as_deref());
    match &order.action {
        // For these the devices are looked at.
        Action::Create { .. } | Action::Grow { .. } => {
            Err(Problem::conflict("there is a replica here already"))
        }
        Action::Pause => wish(now, replica, peer()?, Wish::Pause),
        Action::Break => wish(now, replica, peer()?, Wish::Break),
        Action::Continue => wish(now, replica, peer()?, Wish::Mirror),
        Action::Resync { full, compare } => resync(now, replica, peer()?, *full, *compare),
        Action::Switchover { to } => switchover(now, replica, order, to.as_deref()),
        Action::Failover { force } => failover(now, replica, *force),
        Action::Verify { stop: true, .. } => stop_verify(now, order.peer.as_deref()),
        Action::Verify { repair, bytes_per_second, .. } => {
            verify(now, replica, peer()?, *repair, *bytes_per_second)
        }
        Action::Resolve { keep_mine } => Ok(resolve(now, peer()?, *keep_mine)),
        Action::Demote => Ok(demote(now, replica)),
        Action::Delete { force } => delete(now, replica, *force),
    }
}

type Found<'a> = (usize, &'a PeerDocument);

/// The peer of this name; the only one when none is given.
fn find<'a>(now: &'a MirrorDocument, name: Option<&str>) -> Result<Found<'a>, Problem> {
    let names = || now.peers.iter().map(|peer| peer.name.as_str());
    let found = match name {
        None if now.peers.len() == 1 => now.peers.first().map(|peer| (0, peer)),
        None => {
            let detail =
                format!("`{}` has several peers: say which, as `peer` (`--peer NAME`)", now.volume);
            return Err(Problem::invalid(detail).accepting(names()));
        }
        Some(name) => now.peers.iter().enumerate().find(|(_, peer)| peer.name == name),
    };
    found.ok_or_else(|| {
        let name = name.unwrap_or_default();
        Problem::not_found(format!("`{}` has no peer `{name}`", now.volume)).accepting(names())
    })
}

/// The peer that is the source: the one that is attached, else one that served hosts when it was
/// met last, which may be long ago.
fn source(now: &MirrorDocument) -> Option<Found<'_>> {
    let attached = now.replica.as_ref().and_then(|replica| replica.source.as_deref());
    now.peers.iter().enumerate().find(|(_, peer)| match attached {
        Some(name) => peer.name == name,
        None => peer.met.as_ref().is_some_and(|met| met.active),
    })
}

/// It is for the source to say what happens to its peers.
fn must_be_source(now: &MirrorDocument, replica: &ReplicaDocument) -> Result<(), Problem> {
    if replica.role == "source" {
        return Ok(());
    }
    let there = source(now).map_or("the node that serves it", |(_, peer)| peer.name.as_str());
    Err(Problem::conflict(format!(
        "{} is a target of `{}`: ask on {there}, the source",
        now.node, now.volume
    )))
}

fn wish(
    now: &MirrorDocument,
    replica: &ReplicaDocument,
    (leg, peer): Found<'_>,
    wish: Wish,
) -> Result<Foreseen, Problem> {
    let name = &peer.name;
    if peer.wish == wish_name(wish) {
        return Ok(Foreseen::already(match wish {
            Wish::Mirror => {
                format!("nothing holds the mirror with {name} back: it is {}", peer.state)
            }
            Wish::Pause => format!("the mirror with {name} is paused already"),
            Wish::Break => format!("the mirror with {name} is broken already"),
        }));
    }
    if wish != Wish::Mirror {
        must_be_source(now, replica)?;
    }
    let said = match wish {
        Wish::Pause => format!(
            "the mirror with {name} is paused: what {name} lacks is tracked, and copied when it \
             continues; until then {} has the only current copy",
            now.node
        ),
        Wish::Break => format!(
            "the mirror with {name} is broken: what {name} lacks is not tracked, and everything is \
             copied if it ever continues; until then {} has the only current copy",
            now.node
        ),
        Wish::Mirror if peer.wish == "break" => {
            format!("the mirror with {name} goes on: everything is copied to it")
        }
        Wish::Mirror => format!("the mirror with {name} goes on: what it lacks is copied to it"),
    };
    Ok(Foreseen::does(Deed::Wish { leg, wish }, said))
}

fn resync(
    now: &MirrorDocument,
    replica: &ReplicaDocument,
    (leg, peer): Found<'_>,
    full: bool,
    compare: Option<bool>,
) -> Result<Foreseen, Problem> {
    must_be_source(now, replica)?;
    let name = &peer.name;
    match peer.state.as_str() {
        "split-brain" => return Err(split_brain(now, peer)),
        "mismatch" => {
            let detail = format!(
                "{name} holds another volume, or one of another size or other blocks, or is of another \
                 release: `flagstone mirror status {}` says which, and what to do",
                now.volume
            );
            return Err(Problem::conflict(detail));
        }
        _ => {}
    }
    let other_compare = compare.is_some_and(|compare| compare != peer.compare);
    let runs = matches!(peer.state.as_str(), "mirroring" | "resynchronizing");
    let goes_on = peer.wish == "mirror" && if full { peer.full_resync } else { runs };
    if goes_on && !other_compare {
        return Ok(Foreseen::already(match peer.state.as_str() {
            _ if full => format!("a full resync of {name} is under way or due already"),
            "mirroring" => format!("{name} is in sync: there is nothing to copy"),
            _ => format!("a resync of {name} is under way already"),
        }));
    }
    let how = match compare.unwrap_or(peer.compare) {
        true => ", after comparing checksums",
        false => "",
    };
    let said = match full {
        true => format!(
            "everything is copied to {name}{how}; until that has ended {} has the only whole copy",
            now.node
        ),
        false => format!("what {name} lacks is copied to it{how}"),
    };
    // To ask again at once is no change.
    let changed = full || other_compare || peer.wish != "mirror";
    Ok(Foreseen { changed, ..Foreseen::does(Deed::Resync { leg, full, compare }, said) })
}

fn switchover(
    now: &MirrorDocument,
    replica: &ReplicaDocument,
    order: &Order,
    to: Option<&str>,
) -> Result<Foreseen, Problem> {
    let (volume, node) = (&now.volume, &now.node);
    let named = order.peer.as_deref().map(|name| find(now, Some(name))).transpose()?;
    match to.filter(|to| *to != node.as_str()) {
        None if replica.active => {
            let others = now.peers.iter().map(|peer| peer.name.as_str());
            let others = others.collect::<Vec<_>>().join(" or ");
            let said = format!(
                "{node} serves {volume} already; to have a peer serve it: `flagstone mirror \
                 switchover {volume} --to {others}`"
            );
            Ok(Foreseen::already(said))
        }
        None => take_over(now, replica, named),
        Some(to) => match (find_node(now, to)?, named) {
            (found, Some((_, peer))) if found.1.name != peer.name => {
                let detail =
                    format!("`to` names {to} and `peer` {}: the one to serve is one", peer.name);
                Err(Problem::invalid(detail))
            }
            (found, _) => hand_over(now, replica, found),
        },
    }
}

fn find_node<'a>(now: &'a MirrorDocument, to: &str) -> Result<Found<'a>, Problem> {
    find(now, Some(to)).map_err(|problem| {
        let nodes = now.peers.iter().map(|peer| peer.name.as_str()).chain([now.node.as_str()]);
        Problem { accepted: Vec::new(), ..problem }.accepting(nodes)
    })
}

fn take_over(
    now: &MirrorDocument,
    replica: &ReplicaDocument,
    named: Option<Found<'_>>,
) -> Result<Foreseen, Problem> {
    if let (Some((_, peer)), Some(source)) = (named, &replica.source)
        && peer.name != *source
    {
        let detail = format!("{source} serves {}, and not {}", now.volume, peer.name);
        return Err(Problem::conflict(detail));
    }
    let (leg, peer) = match named.or(source(now)) {
        Some(found) => found,
        None if now.peers.len() == 1 => find(now, None)?,
        None => return Err(no_source(now, "a peer")),
    };
    let (volume, node, name) = (&now.volume, &now.node, &peer.name);
    if replica.inconsistent || peer.state == "split-brain" {
        return Err(match replica.inconsistent {
            true => Problem::conflict(format!(
                "the resync from {name} has not ended: {node} can serve {volume} when it has"
            )),
            false => split_brain(now, peer),
        });
    }
    if !replica.has_source {
        return Err(no_source(now, name));
    }
    let said = format!(
        "{node} serves {volume}, and {name} is its target: hosts wait for a moment and follow, \
         nothing is lost"
    );
    Ok(Foreseen::does(Deed::Switchover { leg }, said))
}

/// The problem of a switchover from a source that is not attached.
fn no_source(now: &MirrorDocument, name: &str) -> Problem {
    let (volume, node) = (&now.volume, &now.node);
    Problem::conflict(format!(
        "{name} is not attached to {node} as the source of {volume}, and cannot hand it over: \
         see `flagstone mirror status {volume}` on the others; if the node that served it is gone, \
         `flagstone mirror failover {volume}`"
    ))
}

fn hand_over(
    now: &MirrorDocument,
    replica: &ReplicaDocument,
    (leg, peer): Found<'_>,
) -> Result<Foreseen, Problem> {
    let (volume, node, name) = (&now.volume, &now.node, &peer.name);
    if !replica.active {
        let serves = source(now).is_some_and(|(_, source)| source.name == *name);
        // Just after it was handed over the peer has not been asked again.
        let was_given = replica.role == "target" && peer.state == "target" && now.peers.len() == 1;
        if serves || was_given {
            return Ok(Foreseen::already(format!("{name} is the source of {volume} already")));
        }
        return Err(Problem::conflict(format!(
            "{node} does not serve {volume}, so it cannot hand it over: ask on {name}"
        )));
    }
    if peer.state != "mirroring" {
        return Err(not_in_sync(now, peer));
    }
    let said = format!(
        "{name} serves {volume}, and {node} is its target: hosts wait for a moment and follow, \
         nothing is lost"
    );
    Ok(Foreseen::does(Deed::Switchover { leg }, said))
}

/// The problem of what needs a peer that is in sync.
pub(super) fn not_in_sync(now: &MirrorDocument, peer: &PeerDocument) -> Problem {
    let next = match peer.state.as_str() {
        "resynchronizing" => "wait until the resync has ended: `flagstone mirror status --watch`",
        "split-brain" => return split_brain(now, peer),
        _ => "`flagstone mirror status` says what to do",
    };
    Problem::conflict(format!(
        "{} is not in sync but {}, and lacks what hosts rely on: {next}",
        peer.name, peer.state
    ))
}

/// The problem of what cannot be done before a split brain has ended.
fn split_brain(now: &MirrorDocument, peer: &PeerDocument) -> Problem {
    let (volume, node, name) = (&now.volume, &now.node, &peer.name);
    let of = of_peer(now, peer);
    Problem::conflict(format!(
        "{node} and {name} were both written without the other: first choose whose data is kept, \
         with `flagstone mirror resolve {volume}{of} --keep mine` or `--keep peer`"
    ))
}

fn failover(
    now: &MirrorDocument,
    replica: &ReplicaDocument,
    force: bool,
) -> Result<Foreseen, Problem> {
    let (volume, node) = (&now.volume, &now.node);
    if replica.active {
        return Ok(Foreseen::already(format!("{node} serves {volume} already")));
    }
    if replica.inconsistent {
        return Err(Problem::conflict(format!(
            "a resync to {node} has not ended: its data is of no moment in time and is never \
             served; bring back the node that was the source"
        )));
    }
    if replica.holds_nothing() {
        return Err(Problem::conflict(format!(
            "the replica of {volume} on {node} holds no data yet: wait for its first resync"
        )));
    }
    if replica.has_source && !force {
        return Err(Problem::conflict(format!(
            "a source is attached to {node} and does not fall silent, so it is alive: `flagstone \
             mirror switchover {volume}` loses nothing"
        ))
        .accepting([
            format!("flagstone mirror switchover {volume}"),
            format!("flagstone mirror failover {volume} --force"),
        ]));
    }
    let names: Vec<&str> = now.peers.iter().map(|peer| peer.name.as_str()).collect();
    let (names, any) = (names.join(" and "), names.join(" or "));
    let late = match now.peers.iter().any(|peer| peer.mode == "async") {
        true => "in asynchronous mode its latest writes are",
        false => "unless it was in sync when it was lost, its latest writes are",
    };
    let loses = format!(
        "what {names} completed for hosts and {node} does not have: {late}. If {any} still \
         serves hosts, both are written without the other, and the data of one will have to be \
         given up (split brain)"
    );
    let said = format!("{node} serves {volume} without asking {names}");
    Ok(Foreseen::does(Deed::Failover { force }, said).losing(loses))
}

fn stop_verify(now: &MirrorDocument, peer: Option<&str>) -> Result<Foreseen, Problem> {
    let named = peer.map(|name| find(now, Some(name))).transpose()?;
    let Some(verify) = now.verify.as_ref().filter(|verify| verify.running) else {
        return Ok(Foreseen::already("no verify runs"));
    };
    let with = &verify.peer;
    Ok(match named {
        Some((_, peer)) if peer.name != *with => {
            let said = format!("no verify with {} runs, but one with {with}", peer.name);
            Foreseen::already(said)
        }
        _ => Foreseen::does(Deed::StopVerify, format!("the verify with {with} is stopped")),
    })
}

fn verify(
    now: &MirrorDocument,
    replica: &ReplicaDocument,
    (leg, peer): Found<'_>,
    repair: bool,
    bytes_per_second: Option<u64>,
) -> Result<Foreseen, Problem> {
    must_be_source(now, replica)?;
    let name = &peer.name;
    if let Some(verify) = now.verify.as_ref().filter(|verify| verify.running) {
        let same = verify.repair == repair && verify.bytes_per_second == bytes_per_second;
        if verify.peer == *name && same {
            return Ok(Foreseen::already(format!("a verify with {name} runs already")));
        }
        return Err(Problem::conflict(format!(
            "another verify runs, with {}: wait for it, or stop it with `flagstone mirror verify {} \
             --stop`",
            verify.peer, now.volume
        )));
    }
    if peer.state != "mirroring" {
        return Err(not_in_sync(now, peer));
    }
    let then = match repair {
        true => format!("; what differs is copied to {name} then"),
        false => String::new(),
    };
    let said = format!("{} and {name} are compared, while hosts go on{then}", now.node);
    Ok(Foreseen::does(Deed::Verify { leg, repair, bytes_per_second }, said))
}

fn resolve(now: &MirrorDocument, (leg, peer): Found<'_>, keep_mine: bool) -> Foreseen {
    let (node, name) = (&now.node, &peer.name);
    if peer.state != "split-brain" {
        return Foreseen::already(format!(
            "there is no split brain with {name}: the mirror is {}",
            peer.state
        ));
    }
    let deed = Deed::Resolve { leg, keep_mine };
    if keep_mine {
        // Whether it serves hosts, which forbids it, the peer is asked.
        let said = format!("{name} takes the data of {node}");
        let loses = format!("everything that was written on {name} since the two parted");
        return Foreseen::does(deed, said).losing(loses);
    }
    let ends = if replica_active(now) { ", and is not served from here any more" } else { "" };
    let said = format!("{node} takes the data of {name}{ends}");
    let amount = match peer.out_of_date_bytes {
        0 => String::new(),
        bytes => format!(" (in parts of it of {bytes} bytes together)"),
    };
    let loses = format!("everything that was written on {node} since the two parted{amount}");
    Foreseen::does(deed, said).losing(loses)
}

fn replica_active(now: &MirrorDocument) -> bool {
    now.replica.as_ref().is_some_and(|replica| replica.active)
}

fn demote(now: &MirrorDocument, replica: &ReplicaDocument) -> Foreseen {
    let (volume, node) = (&now.volume, &now.node);
    if replica.role == "target" && !replica.active {
        return Foreseen::already(format!("{node} is a target of {volume} already"));
    }
    let ends = match replica.active {
        true => ": hosts are not served from here any more, until one node is made the source",
        false => "",
    };
    Foreseen::does(Deed::Demote, format!("{node} is a target of {volume}{ends}"))
}

fn delete(
    now: &MirrorDocument,
    replica: &ReplicaDocument,
    force: bool,
) -> Result<Foreseen, Problem> {
    let (volume, node) = (&now.volume, &now.node);
    if replica.active && !force {
        return Err(Problem::conflict(format!(
            "{node} serves {volume}: hand it to the peer first, with `flagstone mirror switchover \
             {volume} --to PEER`, or force it"
        ))
        .accepting([
            format!("flagstone mirror switchover {volume} --to PEER"),
            format!("flagstone mirror delete {volume} --force"),
        ]));
    }
    let only = match now.peers.iter().any(|peer| peer.state == "mirroring") || !replica.active {
        true => "",
        false => "; it may be the only current copy",
    };
    let serves = if replica.active { "; hosts that it serves are cut off" } else { "" };
    let loses = format!(
        "that the device of {volume} on {node} is a replica, and what its log knows: everything is \
         copied if it becomes one again. Its data stays{only}{serves}"
    );
    let said = format!("the replica of {volume} on {node} is forgotten");
    Ok(Foreseen::does(Deed::Delete { force }, said).losing(loses))
}

#[cfg(test)]
#[path = "mirror_foresee_tests.rs"]
mod tests;

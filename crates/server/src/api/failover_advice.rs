//! Advice about automatic failover: the decisions that are left to the operator.

use super::mirror_document::{
    FailoverDocument, FencingState, MirrorDocument, Obstacle, ReplicaDocument, ReportedState,
};

pub(super) fn advice(document: &MirrorDocument, replica: &ReplicaDocument) -> Option<String> {
    let failover = document.failover.as_ref()?;
    match replica.serving {
        true => serving(document, failover),
        false if replica.has_source => None,
        false => idle(document, failover),
    }
}

/// The problem, in the arbiter's own words if it was asked.
fn cause(failover: &FailoverDocument, obstacle: Obstacle) -> String {
    match (&failover.denial, &failover.fencing_failure) {
        (_, Some(failure)) if obstacle == Obstacle::Unfenced => {
            format!("fence_command has failed ({failure})")
        }
        (Some(denial), _) if asks_arbiter(obstacle) => denial.clone(),
        _ => obstacle.explanation().to_owned(),
    }
}

const fn asks_arbiter(obstacle: Obstacle) -> bool {
    matches!(obstacle, Obstacle::ArbiterSilent | Obstacle::RecordUnusable | Obstacle::Lost)
}

fn serving(document: &MirrorDocument, failover: &FailoverDocument) -> Option<String> {
    let (volume, node) = (&document.volume, &document.node);
    if failover.suspended {
        return Some(format!(
            "automatic failover of {volume} is suspended: no peer takes over if {node} fails, \
             unless only its disk fails. `flagstone mirror maintenance {volume} off` resumes it"
        ));
    }
    let Some(obstacle) = failover.obstacle else {
        return failover.peer_obstacle.and_then(|obstacle| peer_advice(document, obstacle));
    };
    let cause = cause(failover, obstacle);
    Some(match obstacle {
        Obstacle::RecordUnusable => format!(
            "{cause}: hosts are served, but if the nodes lose each other now, both stop serving. The record is \
             written again as soon as both nodes are in sync, unless it belongs to something else: then \
             remove it, or set another `prefix`"
        ),
        Obstacle::OtherArbiter => format!(
            "{cause}: hosts are served, but if the nodes lose each other now, {node} stops serving. It records \
             {volume} at the new arbiter as soon as both nodes are in sync"
        ),
        _ => format!(
            "{cause}: hosts are served, but if the nodes lose each other now, both stop serving until it \
             answers. Check [arbiter] and its store"
        ),
    })
}

/// The target cannot take over, although it is in sync.
fn peer_advice(document: &MirrorDocument, obstacle: Obstacle) -> Option<String> {
    let (volume, node) = (&document.volume, &document.node);
    let peers: Vec<&str> = document.peers.iter().map(|peer| peer.name.as_str()).collect();
    let peer = peers.join(", ");
    let explained = obstacle.explanation();
    match obstacle {
        Obstacle::Manual => Some(format!(
            "{peer} does not take {volume} over if {node} fails: {explained}. Write failover = \"automatic\" \
             there and restart it"
        )),
        Obstacle::ArbiterSilent | Obstacle::RecordUnusable => Some(format!(
            "{peer} does not take {volume} over if {node} fails: for it, {explained}. Check [arbiter] there: \
             its password, its prefix, its permission to write and the way to the store, which must be the \
             same one for both nodes"
        )),
        _ => None,
    }
}

/// True if an order makes a node serve whose peer answers and does not serve, whatever the arbiter
/// would decide.
const fn needs_no_force(obstacle: Obstacle) -> bool {
    matches!(
        obstacle,
        Obstacle::ArbiterSilent
            | Obstacle::RecordUnusable
            | Obstacle::Behind
            | Obstacle::NotInSync
            | Obstacle::Lost
            | Obstacle::Suspended
            | Obstacle::NeverRecorded
            | Obstacle::Manual
    )
}

/// The node does not serve, and no source is attached to it. `None` if advice about the replica or
/// the peer says what to do.
fn idle(document: &MirrorDocument, failover: &FailoverDocument) -> Option<String> {
    let (volume, node) = (&document.volume, &document.node);
    if failover.fencing == Some(FencingState::Running) {
        return Some(format!(
            "{node} has won at the arbiter and runs fence_command: it serves {volume} when the command \
             has stopped the other machine. Wait, because an order to serve would not"
        ));
    }
    let Some(obstacle) = failover.obstacle else {
        return Some(format!(
            "{node} asks the arbiter when the other node has not answered for failover_after, and serves \
             {volume} if the arbiter agrees: wait, or bring back the other node"
        ));
    };
    let cause = cause(failover, obstacle);
    if needs_no_force(obstacle)
        && document.peers.iter().all(|peer| peer.state == ReportedState::NoSource)
    {
        return Some(format!(
            "{cause}, and the other node, which answers, does not serve {volume} either: run `flagstone mirror \
             failover {volume}` on the node that is to become the source"
        ));
    }
    let decide = format!(
        "bring back the other node; if it is gone for good and the data of {node} is good enough, run \
         `flagstone mirror failover {volume} --force`"
    );
    Some(match obstacle {
        Obstacle::ArbiterSilent => format!(
            "{cause}: {node} serves {volume} as soon as the arbiter agrees or the other node is back. Check \
             [arbiter] and its store. If neither comes back, {decide}"
        ),
        Obstacle::RecordUnusable => format!(
            "{cause}, so it does not say who has every acknowledged write: {node} does not serve {volume} \
             by itself. To decide, {decide}"
        ),
        Obstacle::OtherArbiter => format!(
            "{cause}: {node} does not serve {volume} by itself, because the other node may be granted the role \
             at the former arbiter. Name that one again in [arbiter] and restart {node}, or bring back the other \
             node. If both are gone for good, set failover = \"manual\", restart {node}, and run `flagstone \
             mirror failover {volume} --force`, which is refused before"
        ),
        Obstacle::Unfenced => format!(
            "{cause}: {node} serves {volume} as soon as the command succeeds, which is repeated, or the other \
             node answers. Check it with `flagstone mirror fence {volume} --dry-run`. If the other machine is \
             certainly stopped, run `flagstone mirror failover {volume} --force`"
        ),
        Obstacle::Absent => {
            let lacking = failover.obstacle_volume.as_deref().unwrap_or(volume);
            format!(
                "{lacking} has no open replica on {node}, so no volume of its group is served there: make it \
                 work, or {decide}"
            )
        }
        Obstacle::Behind => format!(
            "{cause}: if {node} takes {volume} over, more of the source's last writes may be lost than its \
             failover_max_lag allows. If the source does not come back, {decide}"
        ),
        Obstacle::NotInSync | Obstacle::Lost => format!(
            "{cause}: {node} may lack acknowledged writes, and does not serve {volume} by itself. To decide, \
             {decide}"
        ),
        Obstacle::Suspended => format!(
            "{cause}: {node} does not serve {volume} by itself. End the maintenance on the node that serves \
             (`flagstone mirror maintenance {volume} off`); if none does, {decide}"
        ),
        Obstacle::NeverRecorded | Obstacle::SeveralPeers | Obstacle::Manual | Obstacle::Unknown => {
            format!("{cause}: {node} does not serve {volume} by itself. To decide, {decide}")
        }
        Obstacle::Inconsistent
        | Obstacle::Device
        | Obstacle::Removed
        | Obstacle::Deposed
        | Obstacle::Promised => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::mirror_advice::next;
    use super::super::mirror_document::PeerDocument;
    use super::*;

    fn with(state: ReportedState, serving: bool, failover: FailoverDocument) -> MirrorDocument {
        MirrorDocument {
            volume: "db".into(),
            node: "a".into(),
            state,
            peers: vec![PeerDocument { name: "b".into(), state, ..PeerDocument::default() }],
            replica: Some(ReplicaDocument { serving, ..ReplicaDocument::default() }),
            failover: Some(failover),
            ..MirrorDocument::default()
        }
    }

    fn blocked(obstacle: Obstacle) -> FailoverDocument {
        let denial = asks_arbiter(obstacle).then(|| "etcd does not answer".to_owned());
        FailoverDocument { obstacle: Some(obstacle), denial, ..FailoverDocument::default() }
    }

    /// States of the peer of a node that does not serve and has no source.
    const LOST: [ReportedState; 4] = [
        ReportedState::Disconnected,
        ReportedState::ResyncPending,
        ReportedState::Target,
        ReportedState::NoSource,
    ];

    /// Regression: beside the arbiter's decision, the advice about the lost peer was to wait for it
    /// for ever, or to serve by force.
    #[test]
    fn advice_does_not_contradict_the_arbiter() {
        for state in LOST {
            let healthy = FailoverDocument { would_win: true, ..FailoverDocument::default() };
            let fencing =
                FailoverDocument { fencing: Some(FencingState::Running), ..healthy.clone() };
            for (failover, part) in [(healthy, "asks the arbiter"), (fencing, "fence_command")] {
                let advice = next(&with(state, false, failover.clone()));
                assert!(matches!(&advice[..], [one] if one.contains(part)), "{state}: {advice:?}");
                assert!(!advice.concat().contains("--force"), "{state}: {advice:?}");
                // The address is another problem.
                let mut unknown = with(state, false, failover);
                unknown.peers[0].link.name_unknown = true;
                let advice = next(&unknown);
                let named = advice.concat().contains("address of b is unknown");
                assert!(named && advice.len() == 2, "{state}: {advice:?}");
                assert!(!advice.concat().contains("--force"), "{state}: {advice:?}");
            }
            for obstacle in [Obstacle::ArbiterSilent, Obstacle::Unfenced, Obstacle::Suspended] {
                let advice = next(&with(state, false, blocked(obstacle)));
                assert_eq!(advice.len(), 1, "{state}: {advice:?}");
            }
        }
    }

    /// Regression: the other node was reached and did not serve either, and the advice was to bring
    /// it back, or to serve by force.
    #[test]
    fn nodes_without_source_need_no_force() {
        let obstacles = [Obstacle::ArbiterSilent, Obstacle::Suspended, Obstacle::NotInSync];
        for obstacle in obstacles.into_iter().chain([Obstacle::Lost, Obstacle::RecordUnusable]) {
            let advice = next(&with(ReportedState::NoSource, false, blocked(obstacle)));
            assert_eq!(advice.len(), 1, "{obstacle}: {advice:?}");
            let advice = advice.concat();
            assert!(advice.contains("`flagstone mirror failover db` on the node"), "{advice}");
            assert!(!advice.contains("--force"), "{obstacle}: {advice}");
            let named = if asks_arbiter(obstacle) { "etcd does not answer" } else { "it" };
            assert!(advice.contains(named), "{obstacle}: {advice}");
        }
    }

    /// Regression: while the command ran again after a failure, the advice was to serve by force.
    #[test]
    fn node_that_fences_again_is_waited_for() {
        for state in LOST {
            let failure = Some("it ended with status 1".to_owned());
            let fencing = FailoverDocument {
                fencing: Some(FencingState::Running),
                fencing_failure: failure,
                ..blocked(Obstacle::Unfenced)
            };
            let advice = next(&with(state, false, fencing));
            let waits = matches!(&advice[..], [one] if one.contains("runs fence_command"));
            assert!(waits && !advice.concat().contains("--force"), "{state}: {advice:?}");
        }
    }

    #[test]
    fn every_obstacle_has_advice() {
        for obstacle in Obstacle::ALL {
            let state = ReportedState::Disconnected;
            let advice = next(&with(state, false, blocked(obstacle))).join("\n");
            assert!(advice.contains("failover db --force"), "{obstacle}: {advice}");
            let named = if asks_arbiter(obstacle) { "etcd does not answer" } else { "db" };
            assert!(advice.contains(named), "{obstacle}: {advice}");
        }
    }

    #[test]
    fn peer_without_arbiter_is_reported_by_source() {
        for (obstacle, named) in [
            (Obstacle::Manual, "failover = \"automatic\""),
            (Obstacle::ArbiterSilent, "[arbiter]"),
            (Obstacle::RecordUnusable, "prefix"),
        ] {
            let peer_obstacle = Some(obstacle);
            let failover =
                FailoverDocument { would_win: true, peer_obstacle, ..FailoverDocument::default() };
            let advice = next(&with(ReportedState::Mirroring, true, failover)).join("\n");
            assert!(
                advice.contains(named) && advice.contains("b does not take db over"),
                "{advice}"
            );
        }
    }

    #[test]
    fn silent_arbiter_is_reported_while_hosts_are_served() {
        let healthy = FailoverDocument { would_win: true, ..FailoverDocument::default() };
        assert!(next(&with(ReportedState::Mirroring, true, healthy.clone())).is_empty());
        for obstacle in [Obstacle::ArbiterSilent, Obstacle::RecordUnusable] {
            let advice = next(&with(ReportedState::Mirroring, true, blocked(obstacle))).join("\n");
            assert!(advice.contains("hosts are served"), "{advice}");
        }
        let suspended = FailoverDocument { suspended: true, ..healthy };
        let advice = next(&with(ReportedState::Mirroring, true, suspended)).join("\n");
        assert!(advice.contains("`flagstone mirror maintenance db off`"), "{advice}");
    }
}

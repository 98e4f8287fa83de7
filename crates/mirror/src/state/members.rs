//! Members: what the other volumes of a consistency group add to the situation of their leader,
//! which alone asks the arbiter, for all of them. Pure.
//!
//! Invariants:
//! - a node asks for the role only if each member may be served there: its data is consistent, and
//!   its own records say that it is the last source, or was in sync at the last contact;
//! - a peer is recorded as in sync only while each member is in sync with it;
//! - a source whose members have different rights to serve compares the record at once.

use super::arbitration::{PeerExclusion, ServingRight, Situation};
use super::machine::{DiskState, NodeRole};
use super::status::LegPhase;
use crate::ondisk::superblock::RecordedRight;

/// The other members of the group, combined. [`Members::Ready`] without a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Members {
    /// Each is served here, or may be.
    #[default]
    Ready,
    /// As `Ready`, at a source that is alone: one is not served here, or without the right that the
    /// arbiter has granted.
    Behind,
    /// As `Ready`, at a target: the source is still attached to one.
    Attached,
    /// One may not be served here.
    Unready,
    /// The device of one that is served here has failed.
    Failed,
}

/// Another member of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its role.
    pub role: NodeRole,
    /// State of its data.
    pub disk: DiskState,
    /// True if it has promised its role to a peer.
    pub is_promised: bool,
    /// Phase of its leg.
    pub phase: LegPhase,
    /// See [`Situation::is_admitted`].
    pub is_admitted: bool,
    /// True if the peer of its present session is in the arbiter's record.
    pub is_published: bool,
    /// Its right to serve.
    pub serving_right: ServingRight,
    /// See [`Situation::write_waits`].
    pub write_waits: bool,
    /// Right recorded in its superblock.
    pub mark: RecordedRight,
    /// See [`Situation::source_asks`].
    pub source_asks: bool,
    /// See [`Situation::is_other_store`].
    pub is_other_store: bool,
}

impl Member {
    /// True if it may be served here by a grant to its leader: it is the last source, or a target
    /// that was in sync.
    pub fn may_be_granted(&self) -> bool {
        let entitled = match self.role {
            NodeRole::Waiting { .. } => true,
            NodeRole::Target { attached: false, .. } => self.mark == RecordedRight::InSync,
            _ => false,
        };
        entitled && self.disk == DiskState::Consistent && !self.is_promised && !self.is_other_store
    }

    /// State beside a leader that serves.
    fn beside_source(&self, leader: &Situation) -> Members {
        let is_alone = |right| matches!(right, ServingRight::Alone(PeerExclusion::Recorded { .. }));
        let is_behind = match self.role {
            NodeRole::Serving { .. } if self.disk == DiskState::Failed => return Members::Failed,
            NodeRole::Serving { .. } => !is_alone(self.serving_right),
            // Not at once: a volume that was stopped is not served again at once.
            _ if self.may_be_granted() => leader.now_ns >= leader.ask_not_before_ns,
            _ => return Members::Unready,
        };
        match is_behind && is_alone(leader.serving_right) {
            true => Members::Behind,
            false => Members::Ready,
        }
    }

    /// State beside a leader that does not serve, and may ask for the role.
    fn beside_candidate(&self, leader: NodeRole) -> Members {
        let sound = self.disk == DiskState::Consistent && !self.is_promised && !self.is_other_store;
        match self.role {
            _ if !sound => Members::Unready,
            NodeRole::Waiting { .. } => Members::Ready,
            NodeRole::Target { attached: true, .. } => Members::Attached,
            NodeRole::Target { attached: false, .. } => match self.mark {
                RecordedRight::InSync => Members::Ready,
                // Only an earlier grant to this node is claimed: see `combine`.
                RecordedRight::Unknown
                    if self.source_asks && matches!(leader, NodeRole::Target { .. }) =>
                {
                    Members::Ready
                }
                _ => Members::Unready,
            },
            NodeRole::Serving { .. } | NodeRole::Deposed { .. } | NodeRole::Closed => {
                Members::Unready
            }
        }
    }
}

/// The situation of a group: that of its leader, with its other members; `None` for one that is not
/// open.
pub fn combine(leader: Situation, others: &[Option<Member>]) -> Situation {
    let mut all = leader;
    let serves = matches!(leader.state.role, NodeRole::Serving { .. });
    for other in others {
        let Some(member) = other else {
            all.members = all.members.max(Members::Unready);
            if serves {
                // Not attached.
                all.is_admitted = false;
            }
            continue;
        };
        all.is_other_store |= member.is_other_store;
        if serves {
            all.members = all.members.max(member.beside_source(&leader));
            all.is_admitted &= member.is_admitted;
            all.write_waits |= member.write_waits;
            if !member.is_published {
                all.published_until_ns = None;
            }
            if let Some(leg) = &mut all.state.legs[0] {
                leg.phase = slower(leg.phase, member.phase);
            }
        } else {
            all.members = all.members.max(member.beside_candidate(leader.state.role));
            let is_target = matches!(member.role, NodeRole::Target { .. });
            if is_target
                && member.mark == RecordedRight::Unknown
                && all.mark == RecordedRight::InSync
            {
                all.mark = RecordedRight::Unknown;
            }
        }
    }
    all
}

/// The phase that is further from being in sync.
fn slower(one: LegPhase, other: LegPhase) -> LegPhase {
    match (one, other) {
        (LegPhase::InSync, phase) | (phase, LegPhase::InSync) => phase,
        (LegPhase::Resync(_), phase) | (phase, LegPhase::Resync(_)) => phase,
        (phase, _) => phase,
    }
}

#[cfg(test)]
#[path = "members_tests.rs"]
mod tests;

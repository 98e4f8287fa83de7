//! Outlook: which node would win at the arbiter if the nodes lost contact now, and the obstacles,
//! as one pure function. For status documents and advice; [`step`](super::arbitration::step) makes
//! the decisions.

use flagstone_arbiter::race::Denial;

use super::arbitration::{ServingRight, Situation};
use super::machine::{DiskState, NodeRole};
use crate::failover::StoreProof;
use crate::named;
use crate::ondisk::superblock::RecordedRight;
use crate::wire::peer::LossPermission;

named! {
    /// Why a node does not serve, or take over, when it loses its peer.
    #[derive(Default)]
    pub enum Obstacle {
        /// A resync to it has not ended.
        Inconsistent = "inconsistent",
        /// Its device has failed, or its contents are unverified.
        Device = "device",
        /// It was removed from the mirror.
        Removed = "removed",
        /// It was deposed: its data may differ from that of the source.
        Deposed = "deposed",
        /// It promised its role to a peer.
        Promised = "promised",
        /// The mirror has several peers.
        SeveralPeers = "several-peers",
        /// The mirror was never in sync with an arbiter.
        NeverRecorded = "never-recorded",
        /// Its source has not recorded it as in sync.
        NotInSync = "not-in-sync",
        /// An operator decides there.
        Manual = "manual",
        /// The operator has suspended automatic failover.
        Suspended = "suspended",
        /// The arbiter does not answer.
        ArbiterSilent = "arbiter-silent",
        /// The arbiter's record is missing, older than this node's, or unusable.
        RecordUnusable = "record-unusable",
        /// Another node has won.
        Lost = "lost",
        /// It has won, and the command that fences its peer fails.
        Unfenced = "unfenced",
        /// Its asynchronous replica is further behind than `failover_max_lag`, or has not been
        /// attached since its start.
        Behind = "behind",
        /// A volume of its consistency group has no open replica there.
        Absent = "absent",
        /// Its record is at another arbiter than the configured one.
        OtherArbiter = "other-arbiter",
        _ => Unknown
    }
}

impl Obstacle {
    /// Explanation of the obstacle, as a part of a sentence.
    pub const fn explanation(self) -> &'static str {
        match self {
            Obstacle::Inconsistent => "its data is inconsistent until a resync ends",
            Obstacle::Device => "its device has failed, or its contents are unverified",
            Obstacle::Removed => "it was removed from the mirror",
            Obstacle::Deposed => "it was deposed, and its data may differ",
            Obstacle::Promised => "it has promised its role to a peer",
            Obstacle::SeveralPeers => "the mirror has several peers",
            Obstacle::NeverRecorded => "the mirror was never in sync with an arbiter",
            Obstacle::NotInSync => "its source has not recorded it as in sync",
            Obstacle::Manual => "an operator decides there (failover = \"manual\")",
            Obstacle::Suspended => "automatic failover is suspended for maintenance",
            Obstacle::ArbiterSilent => "the arbiter does not answer, or takes no writes",
            Obstacle::RecordUnusable => "the arbiter's record cannot be used",
            Obstacle::Lost => "the arbiter has decided for another node",
            Obstacle::Unfenced => "the command that fences its peer has failed",
            Obstacle::Behind => {
                "it is further behind its source than failover_max_lag, or has lost the proof"
            }
            Obstacle::Absent => "it has no open replica",
            Obstacle::OtherArbiter => {
                "the configuration names another arbiter than its record is at"
            }
            Obstacle::Unknown => "a later release knows why",
        }
    }
}

/// Input of an outlook, besides the situation.
#[derive(Clone, Copy, Debug)]
pub struct Outlook<'a> {
    /// Last offer of the source.
    pub offer: Option<LossPermission>,
    /// Last denial of the arbiter.
    pub denial: Option<&'a Denial>,
    /// True if the replica was removed from the mirror.
    pub is_removed: bool,
    /// True if a source is attached here.
    pub is_attached: bool,
    /// True if the command that fences the peer has failed.
    pub is_unfenced: bool,
    /// True if the test of the local devices before a race has failed.
    pub is_device_failed: bool,
    /// True for a target without proof of being close enough to its source.
    pub is_behind: bool,
}

/// Reason why the attached peer of a source would not take over if the source were lost now.
pub const fn peer_obstacle(offer: LossPermission) -> Option<Obstacle> {
    match offer {
        LossPermission::Unrecorded { .. } => Some(Obstacle::NotInSync),
        LossPermission::Recorded(_) => None,
        LossPermission::Suspended => Some(Obstacle::Suspended),
        LossPermission::Behind => Some(Obstacle::Behind),
    }
}

/// Reason why this node would not serve, or take over, if it lost its peer now; `None` if it would.
pub fn obstacle(situation: &Situation, outlook: &Outlook<'_>) -> Option<Obstacle> {
    let state = &situation.state;
    if outlook.is_removed {
        return Some(Obstacle::Removed);
    }
    match state.disk {
        DiskState::Consistent => {}
        DiskState::Blank | DiskState::Inconsistent | DiskState::Incomplete => {
            return Some(Obstacle::Inconsistent);
        }
        DiskState::Removed => return Some(Obstacle::Removed),
        DiskState::Unverified | DiskState::Failed => return Some(Obstacle::Device),
    }
    if state.promised > 0 {
        return Some(Obstacle::Promised);
    }
    if state.legs.iter().flatten().count() > 1 {
        return Some(Obstacle::SeveralPeers);
    }
    let denied = outlook.denial.map(|denial| match denial {
        Denial::Lost { .. } => Obstacle::Lost,
        Denial::Missing | Denial::Older { .. } | Denial::Unreadable(_) | Denial::Foreign => {
            Obstacle::RecordUnusable
        }
        Denial::Maintenance => Obstacle::Suspended,
        Denial::NotSole => Obstacle::NotInSync,
        Denial::Silent(_) => Obstacle::ArbiterSilent,
    });
    match state.role {
        NodeRole::Target { .. } | NodeRole::Waiting { .. } if outlook.is_device_failed => {
            Some(Obstacle::Device)
        }
        NodeRole::Target { .. } | NodeRole::Waiting { .. } if outlook.is_unfenced => {
            Some(Obstacle::Unfenced)
        }
        NodeRole::Serving { .. } => match situation.serving_right {
            // It continues to serve, and needs no arbiter.
            ServingRight::Manual | ServingRight::Alone(_) => None,
            ServingRight::Contested { .. } if situation.is_other_store => {
                Some(Obstacle::OtherArbiter)
            }
            ServingRight::Contested { .. } => denied,
        },
        NodeRole::Deposed { .. } => Some(Obstacle::Deposed),
        NodeRole::Closed => Some(Obstacle::Device),
        NodeRole::Waiting { .. } if situation.revision == 0 => Some(Obstacle::NeverRecorded),
        NodeRole::Waiting { .. } if situation.is_other_store => Some(Obstacle::OtherArbiter),
        NodeRole::Waiting { .. } => denied,
        NodeRole::Target { .. } if situation.is_other_store && !outlook.is_attached => {
            Some(Obstacle::OtherArbiter)
        }
        NodeRole::Target { .. } if outlook.is_behind => Some(Obstacle::Behind),
        NodeRole::Target { .. } => match (situation.mark, outlook.offer) {
            // It has not compared the record yet.
            (RecordedRight::InSync, _) if outlook.is_attached && situation.watched_ns == 0 => {
                denied.or(Some(Obstacle::ArbiterSilent))
            }
            (RecordedRight::InSync, _) => denied,
            // It has not read the source's latest record yet, or has read an older one.
            (_, Some(LossPermission::Recorded(_)))
                if outlook.is_attached && situation.proof != StoreProof::NotNeeded =>
            {
                let refuted = matches!(situation.proof, StoreProof::Refuted(_));
                let unread =
                    if refuted { Obstacle::RecordUnusable } else { Obstacle::ArbiterSilent };
                denied.or(Some(unread))
            }
            (_, Some(LossPermission::Suspended)) => Some(Obstacle::Suspended),
            _ if outlook.is_attached => Some(Obstacle::NotInSync),
            _ if situation.revision == 0 => Some(Obstacle::NeverRecorded),
            _ => denied.or(Some(Obstacle::NotInSync)),
        },
    }
}

#[cfg(test)]
#[path = "outlook_tests.rs"]
mod tests;

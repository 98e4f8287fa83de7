//! Versions of the replication link. Two nodes use the highest version in common.
//!
//! - 2: everything in [`peer`](crate::wire::peer) except for the additions below; earlier versions
//!   are not supported.
//! - 3: adds [zeroing new space](PeerRequest::ZeroNewSpace), [deposing](PeerRequest::Depose) a
//!   source, [claiming](PeerRequest::Claim) its role, [removing](PeerRequest::Remove) a replica,
//!   [bad ranges](PeerRequest::BadRange), [consistency groups](PeerRequest::JoinGroup), and
//!   [renewing](PeerRequest::Renew).
//! - 4: adds [snapshots](PeerRequest::Snapshot).
//!
//! Each node announces the lowest and highest version that it speaks in its identity. A node of
//! version 2 announces none. The asking side chooses, and states the version when it attaches. The
//! choice is valid for that session: after a node is replaced by a newer or older release, a new
//! handshake takes place, and results of earlier sessions are not reused.

use std::fmt;

#[cfg(doc)]
use crate::wire::peer::PeerRequest;

/// A version of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkVersion(pub u16);

impl LinkVersion {
    /// First version in which a target can be asked to zero new space.
    pub const ZEROES_NEW_SPACE: LinkVersion = LinkVersion(3);
    /// First version in which a source can be [deposed](PeerRequest::Depose), and its role
    /// [claimed](PeerRequest::Claim).
    pub const DEPOSES: LinkVersion = LinkVersion(3);
    /// First version in which a replica is informed that it was [removed](PeerRequest::Remove).
    pub const REMOVES: LinkVersion = LinkVersion(3);
    /// First version in which a source reports the ranges that a resync could not copy.
    pub const REPORTS_BAD_RANGES: LinkVersion = LinkVersion(3);
    /// First version in which volumes can be mirrored as a consistency group.
    pub const JOINS_GROUPS: LinkVersion = LinkVersion(3);
    /// First version in which a source [renews](PeerRequest::Renew) its right to
    /// serve reads, which automatic failover needs.
    pub const RENEWS: LinkVersion = LinkVersion(3);
    /// First version in which a target takes [snapshots](PeerRequest::Snapshot).
    pub const SNAPSHOTS: LinkVersion = LinkVersion(4);
}

impl fmt::Display for LinkVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Range of versions that a node speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkVersions {
    lowest: LinkVersion,
    highest: LinkVersion,
}

impl LinkVersions {
    /// Versions of this program.
    pub const SPOKEN: LinkVersions =
        LinkVersions { lowest: LinkVersion(2), highest: LinkVersion(4) };

    /// From `lowest`, which is not 0, to `highest`; `None` for an invalid range.
    pub fn new(lowest: u16, highest: u16) -> Option<LinkVersions> {
        let sound = 0 < lowest && lowest <= highest;
        sound.then_some(LinkVersions { lowest: LinkVersion(lowest), highest: LinkVersion(highest) })
    }

    /// The lowest version.
    pub const fn lowest(self) -> LinkVersion {
        self.lowest
    }

    /// The highest version.
    pub const fn highest(self) -> LinkVersion {
        self.highest
    }

    /// Whether this version is in the range.
    pub fn contains(self, version: LinkVersion) -> bool {
        (self.lowest..=self.highest).contains(&version)
    }

    /// The version to use with a peer that speaks `peers`. The peer computes the same.
    ///
    /// # Errors
    /// [`NoCommonVersion`] when there is none.
    pub fn highest_common(self, peers: LinkVersions) -> Result<LinkVersion, NoCommonVersion> {
        let highest = self.highest.min(peers.highest);
        if highest < self.lowest.max(peers.lowest) {
            return Err(NoCommonVersion { ours: self, peers });
        }
        Ok(highest)
    }
}

impl fmt::Display for LinkVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lowest == self.highest {
            return write!(f, "version {}", self.lowest);
        }
        write!(f, "versions {} to {}", self.lowest, self.highest)
    }
}

/// Two nodes have no version in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the peer speaks {peers} of the replication link, and this node {ours}: upgrade Flagstone on {}",
    if ours.highest < peers.lowest { "this node" } else { "the peer" }
)]
pub struct NoCommonVersion {
    /// Versions of this node.
    pub ours: LinkVersions,
    /// Versions of the peer.
    pub peers: LinkVersions,
}

impl NoCommonVersion {
    /// True when this node has the older release and has to be upgraded, not the peer.
    pub fn is_ours_older(&self) -> bool {
        self.ours.highest < self.peers.lowest
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn versions(range: (u16, u16)) -> LinkVersions {
        LinkVersions::new(range.0, range.1).expect("a range")
    }

    #[test]
    fn highest_common_version_is_used() {
        let max = u16::MAX;
        for (one, other, used) in [
            // The same release.
            ((2, 2), (2, 2), Some(2)),
            ((2, 3), (2, 3), Some(3)),
            // One is upgraded and still speaks the other's version.
            ((2, 3), (2, 2), Some(2)),
            ((2, 4), (2, 3), Some(3)),
            // The newer node has dropped the oldest version.
            ((3, 4), (2, 3), Some(3)),
            ((3, 5), (2, 9), Some(5)),
            // Too far apart, by one and by many.
            ((2, 2), (3, 3), None),
            ((2, 3), (4, 9), None),
            ((1, 1), (2, 3), None),
            ((2, 3), (max, max), None),
            // Extreme values.
            ((2, 3), (1, max), Some(3)),
            ((1, max), (1, max), Some(max)),
        ] {
            for (one, other) in [(one, other), (other, one)] {
                let found = versions(one).highest_common(versions(other)).ok();
                assert_eq!(found, used.map(LinkVersion), "{one:?} and {other:?}");
            }
        }
    }

    #[test]
    fn invalid_version_range_is_refused() {
        for (lowest, highest) in [(0, 0), (0, 3), (0, u16::MAX), (3, 2), (1, 0), (u16::MAX, 2)] {
            assert_eq!(LinkVersions::new(lowest, highest), None, "{lowest} to {highest}");
        }
    }

    #[test]
    fn no_common_version_message_names_older_node() {
        let said = |ours, peers| {
            let none = versions(ours).highest_common(versions(peers));
            none.expect_err("nothing in common").to_string()
        };
        assert_eq!(
            said((2, 3), (4, 6)),
            "the peer speaks versions 4 to 6 of the replication link, and this node versions 2 to \
             3: upgrade Flagstone on this node"
        );
        assert_eq!(
            said((2, 3), (1, 1)),
            "the peer speaks version 1 of the replication link, and this node versions 2 to 3: \
             upgrade Flagstone on the peer"
        );
    }

    fn any_versions() -> impl Strategy<Value = LinkVersions> {
        let number = || prop_oneof![1..8u16, 1..=u16::MAX];
        (number(), number()).prop_map(|(a, b)| versions((a.min(b), a.max(b))))
    }

    proptest! {
        #[test]
        fn highest_common_is_symmetric_and_maximal(one in any_versions(), other in any_versions()) {
            let both = |version| one.contains(version) && other.contains(version);
            match (one.highest_common(other), other.highest_common(one)) {
                (Ok(found), Ok(again)) => {
                    prop_assert_eq!(found, again);
                    prop_assert!(both(found));
                    prop_assert!(found.0 == u16::MAX || !both(LinkVersion(found.0 + 1)));
                }
                (Err(_), Err(_)) => prop_assert!(!both(one.lowest().max(other.lowest()))),
                other => prop_assert!(false, "{other:?}"),
            }
        }
    }
}

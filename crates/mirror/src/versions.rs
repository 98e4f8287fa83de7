//! Which version of the replication link two nodes use: the highest that both speak.
//!
//! | version | is |
//! | --- | --- |
//! | 2 | what [`peer`](crate::peer) says, but for what is named below; no earlier one is spoken |
//! | 3 | the same, and a target can be asked to [zero what the volume grows over](Request::ClearRoom) |
//!
//! Each node says the lowest and the highest that it speaks whenever it is asked who it is, and says
//! nothing of versions if it is of version 2. The one that asks chooses, and names its choice when it
//! attaches. What was chosen holds for that one session: a node that is replaced by a newer or an
//! older one is met anew, and nothing that an earlier session found is used by a later one.
//!
//! [`Request::ClearRoom`]: crate::peer::Request::ClearRoom

use std::fmt;

/// A version of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u16);

impl Version {
    /// The first of which targets can be asked to zero what the volume grows over.
    pub const CLEARS_ROOM: Version = Version(3);
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The versions that a node speaks: all from the lowest to the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    lowest: Version,
    highest: Version,
}

impl Versions {
    /// What this program speaks.
    pub const SPOKEN: Versions = Versions { lowest: Version(2), highest: Version(3) };

    /// From `lowest` to `highest`; `None` where that cannot be: there is no version 0, and none
    /// between a number and a lower one.
    #[must_use]
    pub fn new(lowest: u16, highest: u16) -> Option<Versions> {
        let sound = 0 < lowest && lowest <= highest;
        sound.then_some(Versions { lowest: Version(lowest), highest: Version(highest) })
    }

    /// The lowest.
    #[must_use]
    pub const fn lowest(self) -> Version {
        self.lowest
    }

    /// The highest.
    #[must_use]
    pub const fn highest(self) -> Version {
        self.highest
    }

    /// Whether this version is one of them.
    #[must_use]
    pub fn contains(self, version: Version) -> bool {
        (self.lowest..=self.highest).contains(&version)
    }

    /// The version that this node uses with a peer that speaks `peers`. The peer finds the same.
    ///
    /// # Errors
    /// [`NoCommonVersion`] when there is none.
    pub fn highest_common(self, peers: Versions) -> Result<Version, NoCommonVersion> {
        let highest = self.highest.min(peers.highest);
        if highest < self.lowest.max(peers.lowest) {
            return Err(NoCommonVersion { ours: self, peers });
        }
        Ok(highest)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lowest == self.highest {
            return write!(f, "version {}", self.lowest);
        }
        write!(f, "versions {} to {}", self.lowest, self.highest)
    }
}

/// Two nodes that speak no version in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCommonVersion {
    /// What this node speaks.
    pub ours: Versions,
    /// What the peer speaks.
    pub peers: Versions,
}

impl std::error::Error for NoCommonVersion {}

impl NoCommonVersion {
    /// This node is to be upgraded, and not the peer.
    #[must_use]
    pub fn is_ours_older(&self) -> bool {
        self.ours.highest < self.peers.lowest
    }
}

impl fmt::Display for NoCommonVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoCommonVersion { ours, peers } = self;
        let older = if self.is_ours_older() { "this node" } else { "the peer" };
        write!(
            f,
            "the peer speaks {peers} of the replication link, and this node {ours}: upgrade \
             Flagstone on {older}"
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn versions(range: (u16, u16)) -> Versions {
        Versions::new(range.0, range.1).expect("a range")
    }

    #[test]
    fn the_highest_that_both_speak_is_used() {
        let max = u16::MAX;
        for (one, other, used) in [
            // Equal releases.
            ((2, 2), (2, 2), Some(2)),
            ((2, 3), (2, 3), Some(3)),
            // One is upgraded: it still speaks what the other does.
            ((2, 3), (2, 2), Some(2)),
            ((2, 4), (2, 3), Some(3)),
            // It has given up the oldest.
            ((3, 4), (2, 3), Some(3)),
            ((3, 5), (2, 9), Some(5)),
            // Too far apart, by one and by many.
            ((2, 2), (3, 3), None),
            ((2, 3), (4, 9), None),
            ((1, 1), (2, 3), None),
            ((2, 3), (max, max), None),
            // Nothing is too high to be named.
            ((2, 3), (1, max), Some(3)),
            ((1, max), (1, max), Some(max)),
        ] {
            for (one, other) in [(one, other), (other, one)] {
                let found = versions(one).highest_common(versions(other)).ok();
                assert_eq!(found, used.map(Version), "{one:?} and {other:?}");
            }
        }
    }

    #[test]
    fn what_is_no_range_is_none() {
        for (lowest, highest) in [(0, 0), (0, 3), (0, u16::MAX), (3, 2), (1, 0), (u16::MAX, 2)] {
            assert_eq!(Versions::new(lowest, highest), None, "{lowest} to {highest}");
        }
    }

    #[test]
    fn who_has_to_be_upgraded_is_said_with_both_ranges() {
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

    fn any_versions() -> impl Strategy<Value = Versions> {
        let number = || prop_oneof![1..8u16, 1..=u16::MAX];
        (number(), number()).prop_map(|(a, b)| versions((a.min(b), a.max(b))))
    }

    proptest! {
        #[test]
        fn both_find_the_same_and_nothing_higher(one in any_versions(), other in any_versions()) {
            let both = |version| one.contains(version) && other.contains(version);
            match (one.highest_common(other), other.highest_common(one)) {
                (Ok(found), Ok(again)) => {
                    prop_assert_eq!(found, again);
                    prop_assert!(both(found));
                    prop_assert!(found.0 == u16::MAX || !both(Version(found.0 + 1)));
                }
                (Err(_), Err(_)) => prop_assert!(!both(one.lowest().max(other.lowest()))),
                other => prop_assert!(false, "{other:?}"),
            }
        }
    }
}

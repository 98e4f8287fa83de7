//! Replies of a replica: its state, and reasons for refusals.

use std::ops::RangeInclusive;

use crate::codes::codes;
use crate::status::{Status, sct};
use crate::wire::{U16, U32, U64, wire};

/// Base generations in [`IdentifyReplica`].
pub const BASES: usize = 4;
/// Past generations in [`IdentifyReplica`].
pub const HISTORY: usize = 16;
/// Range of the bytes per bit of a bitmap.
const BIT_BYTES: RangeInclusive<u32> = 4 << 10..=16 << 20;

wire! {
    /// Data of Replica Identify.
    pub struct IdentifyReplica [512] {
        /// Lowest supported version of the link protocol; see [`IdentifyReplica::versions`].
        0 => pub lowest_version: U16;
        2 => pub role: u8, "Role; see [`Role`].";
        3 => pub flags: u8, "Flags; see the constants of [`IdentifyReplica`].";
        4 => pub bit_bytes: U32, "Bytes per bit of its bitmap: a power of two, 4 KiB to 16 MiB.";
        8 => pub usable_bytes: U64, "Size of the volume, in bytes.";
        16 => pub volume: [u8; 16], "UUID of the volume.";
        32 => pub replica: [u8; 16], "UUID of the replica.";
        48 => pub epoch: U64, "Highest role epoch that it has durably seen.";
        56 => pub current: U64, "Generation of its data; 0 for none.";
        /// Base generations: if the requester has one of them, the bitmap covers the differences. 0
        /// fills the rest.
        64 => pub bases: [U64; 4];
        /// Earlier generations of its data, newest first; 0 fills the rest.
        96 => pub history: [U64; 16];
        /// Supported codecs of Compressed Write: [`super::Codec::bit`]. Readers ignore unknown
        /// bits.
        224 => pub codecs: u8;
        /// [`IdentifyReplica::DISCARDS`], [`IdentifyReplica::HAS_SOURCE`] and
        /// [`IdentifyReplica::KEEPS_RESERVATIONS`]. Readers ignore unknown bits.
        225 => pub resolution: u8;
        /// Highest supported version of the link protocol; 0 if not reported, which means only the
        /// lowest.
        226 => pub highest_version: U16;
        228 => _reserved228: [u8; 4];
        /// Largest size to which it could grow, in bytes; 0 if not reported, which means no growth.
        232 => pub room_bytes: U64;
        240 => _reserved240: [u8; 272];
    }
}

/// Role of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireRole {
    /// It receives the writes of the source (0).
    Target = 0,
    /// It serves hosts (1).
    Source = 1,
}

/// Invalid content of a Replica Identify reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentifyError {
    /// Range of versions of the link protocol, first to last.
    #[error("the peer's range of versions of the link, {0} to {1}, cannot be")]
    Versions(u16, u16),
    /// Name of a value out of range.
    #[error("the peer's {0} cannot be")]
    Field(&'static str),
}

impl IdentifyReplica {
    /// Hosts may read its data.
    pub const SERVING: u8 = 1 << 0;
    /// It was the source when it crashed.
    pub const CRASHED: u8 = 1 << 1;
    /// A resync to it has not completed.
    pub const INCONSISTENT: u8 = 1 << 2;
    /// Its bitmap has out-of-sync blocks.
    pub const DIRTY: u8 = 1 << 3;
    /// It serves hosts at this moment.
    pub const ACTIVE: u8 = 1 << 4;
    /// A power loss may lose completed writes until a flush.
    pub const VOLATILE_CACHE: u8 = 1 << 5;
    /// In `resolution`: it discards its data, or is about to.
    pub const DISCARDS: u8 = 1 << 0;
    /// In `resolution`: a source is attached to it, for which it keeps its data.
    pub const HAS_SOURCE: u8 = 1 << 1;
    /// In `resolution`: it keeps the volume's reservations.
    pub const KEEPS_RESERVATIONS: u8 = 1 << 2;
    const FLAGS: u8 = (1 << 6) - 1;

    /// A reply with this role and these versions of the link protocol, all else 0.
    pub fn new(role: WireRole, versions: RangeInclusive<u16>) -> IdentifyReplica {
        IdentifyReplica {
            lowest_version: U16::new(*versions.start()),
            highest_version: U16::new(*versions.end()),
            role: role as u8,
            ..IdentifyReplica::default()
        }
    }

    /// Supported versions of the link protocol. They have the same location in all versions; the
    /// other fields are meaningful only if one of the versions is known.
    ///
    /// # Errors
    /// [`IdentifyError::Versions`] for an invalid range, or a range from 0.
    pub fn versions(&self) -> Result<RangeInclusive<u16>, IdentifyError> {
        let lowest = self.lowest_version.get();
        let highest = match self.highest_version.get() {
            0 => lowest,
            version => version,
        };
        if lowest == 0 || highest < lowest {
            return Err(IdentifyError::Versions(lowest, highest));
        }
        Ok(lowest..=highest)
    }

    /// Its role, if it supports a known version.
    ///
    /// # Errors
    /// [`IdentifyError`] for invalid content.
    pub fn check(&self) -> Result<WireRole, IdentifyError> {
        self.versions()?;
        let bit_bytes = self.bit_bytes.get();
        if !BIT_BYTES.contains(&bit_bytes) || !bit_bytes.is_power_of_two() {
            return Err(IdentifyError::Field("granularity"));
        }
        if self.volume == [0; 16] || self.replica == [0; 16] {
            return Err(IdentifyError::Field("name"));
        }
        if self.flags & !IdentifyReplica::FLAGS != 0 {
            return Err(IdentifyError::Field("state"));
        }
        match self.role {
            0 => Ok(WireRole::Target),
            1 => Ok(WireRole::Source),
            _ => Err(IdentifyError::Field("role")),
        }
    }

    /// Whether the flag is set.
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

codes! {
    /// Reason for a refusal: status code of status code type 7h (vendor specific).
    pub struct ReplicaRefusal(u8) {
        UNRELATED = 0x01, "Unrelated";
        SERVING = 0x02, "Serving";
        FENCED = 0x03, "Fenced";
        CHANGED = 0x04, "Changed";
        NOT_ATTACHED = 0x05, "Not attached";
        INCONSISTENT = 0x06, "Inconsistent";
        RANGE = 0x07, "Range";
        FAILED = 0x08, "Failed";
        NOT_NOW = 0x09, "Not now";
        VERSION = 0x0a, "Version";
        GROUP = 0x0b, "Other consistency group";
        NO_SNAPSHOTS = 0x0c, "No snapshots";
        SNAPSHOT_EXISTS = 0x0d, "Snapshot exists";
        SNAPSHOT_IN_USE = 0x0e, "Snapshot in use";
        SNAPSHOT_FAILED = 0x0f, "Snapshot failed";
        SNAPSHOT_MISSING = 0x10, "Snapshot missing";
    }
}

impl ReplicaRefusal {
    /// Status of the completion, with do not retry. The result of [`ReplicaRefusal::FENCED`]
    /// (dwords 0 and 1) is the epoch that the replica has seen.
    pub const fn status(self) -> Status {
        Status::new(sct::VENDOR, self.0).dnr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Wire;
    use proptest::prelude::*;

    fn sound() -> IdentifyReplica {
        IdentifyReplica {
            bit_bytes: U32::new(65_536),
            volume: [1; 16],
            replica: [2; 16],
            ..IdentifyReplica::new(WireRole::Source, 2..=3)
        }
    }

    #[test]
    fn invalid_replies_are_refused() {
        assert_eq!(sound().check(), Ok(WireRole::Source));
        let with = |change: fn(&mut IdentifyReplica)| {
            let mut about = sound();
            change(&mut about);
            about.check()
        };
        let no_range = with(|about| about.lowest_version = U16::new(4));
        assert_eq!(no_range, Err(IdentifyError::Versions(4, 3)));
        for (field, change) in [
            ("role", (|about| about.role = 2) as fn(&mut IdentifyReplica)),
            ("state", |about| about.flags = 0x40),
            ("granularity", |about| about.bit_bytes = U32::new(0)),
            ("granularity", |about| about.bit_bytes = U32::new(65_537)),
            ("granularity", |about| about.bit_bytes = U32::new(32 << 20)),
            ("name", |about| about.volume = [0; 16]),
            ("name", |about| about.replica = [0; 16]),
        ] {
            assert_eq!(with(change), Err(IdentifyError::Field(field)));
        }
    }

    #[test]
    fn version_range_is_readable_by_old_peers() {
        let bytes = |versions| {
            let about = IdentifyReplica::new(WireRole::Target, versions);
            let bytes = about.bytes();
            ([bytes[0], bytes[1]], [bytes[226], bytes[227]])
        };
        // Nodes of version 2 check only the first number, which was the only one, and require a 2.
        assert_eq!(bytes(2..=3), ([2, 0], [3, 0]));
        assert_eq!(bytes(0x102..=0x304), ([2, 1], [4, 3]));
        let said = |lowest, highest| {
            let (lowest_version, highest_version) = (U16::new(lowest), U16::new(highest));
            IdentifyReplica { lowest_version, highest_version, ..sound() }.versions()
        };
        // They do not report a highest version.
        assert_eq!(said(2, 0), Ok(2..=2));
        assert_eq!(said(2, 3), Ok(2..=3));
        assert_eq!(said(7, u16::MAX), Ok(7..=u16::MAX));
        for (lowest, highest) in [(0, 0), (0, 3), (3, 2), (u16::MAX, 1)] {
            assert_eq!(said(lowest, highest), Err(IdentifyError::Versions(lowest, highest)));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_checked(bytes in prop::collection::vec(any::<u8>(), 512)) {
            let about = IdentifyReplica::view(&bytes).unwrap();
            if about.check().is_ok() {
                prop_assert!(about.bit_bytes.get().is_power_of_two());
                let versions = about.versions().unwrap();
                prop_assert!(*versions.start() > 0 && !versions.is_empty());
            }
        }
    }
}

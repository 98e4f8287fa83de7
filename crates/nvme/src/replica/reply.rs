//! Replies of a replica: its state, and reasons for refusals.

use std::ops::RangeInclusive;

use crate::status::{Status, sct};
use crate::wire::{U16, U32, U64, wire};

/// Base generations in [`About`].
pub const BASES: usize = 4;
/// Past generations in [`About`].
pub const HISTORY: usize = 16;
/// Range of the bytes per bit of a bitmap.
const BIT_BYTES: RangeInclusive<u32> = 4 << 10..=16 << 20;

wire! {
    /// Data of Replica Identify.
    pub struct About [512] {
        /// Lowest supported version of the link protocol; see [`About::versions`].
        0 => pub lowest_version: U16,
        /// Role; see [`Role`].
        2 => pub role: u8,
        /// Flags; see the constants of [`About`].
        3 => pub flags: u8,
        /// Bytes per bit of its bitmap: a power of two, 4 KiB to 16 MiB.
        4 => pub bit_bytes: U32,
        /// Size of the volume, in bytes.
        8 => pub usable_bytes: U64,
        /// UUID of the volume.
        16 => pub volume: [u8; 16],
        /// UUID of the replica.
        32 => pub replica: [u8; 16],
        /// Highest role epoch that it has durably seen.
        48 => pub epoch: U64,
        /// Generation of its data; 0 for none.
        56 => pub current: U64,
        /// Base generations: if the requester has one of them, the bitmap covers the differences. 0
        /// fills the rest.
        64 => pub bases: [U64; 4],
        /// Earlier generations of its data, newest first; 0 fills the rest.
        96 => pub history: [U64; 16],
        /// Supported codecs of Compressed Write: [`super::Codec::bit`]. Readers ignore unknown
        /// bits.
        224 => pub codecs: u8,
        #[doc(hidden)]
        225 => _reserved225: [u8; 1],
        /// Highest supported version of the link protocol; 0 if not reported, which means only the
        /// lowest.
        226 => pub highest_version: U16,
        #[doc(hidden)]
        228 => _reserved228: [u8; 4],
        /// Largest size to which it could grow, in bytes; 0 if not reported, which means no growth.
        232 => pub room_bytes: U64,
        #[doc(hidden)]
        240 => _reserved240: [u8; 272],
    }
}

/// Role of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It receives the writes of the source (0).
    Target,
    /// It serves hosts (1).
    Source,
}

/// Invalid content of a Replica Identify reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AboutError {
    /// Range of versions of the link protocol, first to last.
    #[error("the peer's range of versions of the link, {0} to {1}, cannot be")]
    Versions(u16, u16),
    /// Name of a value out of range.
    #[error("the peer's {0} cannot be")]
    Field(&'static str),
}

impl About {
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
    const FLAGS: u8 = (1 << 6) - 1;

    /// A reply with this role and these versions of the link protocol, all else 0.
    #[must_use]
    pub fn new(role: Role, versions: RangeInclusive<u16>) -> About {
        let role = match role {
            Role::Target => 0,
            Role::Source => 1,
        };
        let (lowest_version, highest_version) =
            (U16::new(*versions.start()), U16::new(*versions.end()));
        About { lowest_version, highest_version, role, ..About::default() }
    }

    /// Supported versions of the link protocol. They have the same location in all versions; the
    /// other fields are meaningful only if one of the versions is known.
    ///
    /// # Errors
    /// [`AboutError::Versions`] for an invalid range, or a range from 0.
    pub fn versions(&self) -> Result<RangeInclusive<u16>, AboutError> {
        let lowest = self.lowest_version.get();
        let highest = match self.highest_version.get() {
            0 => lowest,
            said => said,
        };
        if lowest == 0 || highest < lowest {
            return Err(AboutError::Versions(lowest, highest));
        }
        Ok(lowest..=highest)
    }

    /// Its role, if it supports a known version.
    ///
    /// # Errors
    /// [`AboutError`] for invalid content.
    pub fn check(&self) -> Result<Role, AboutError> {
        self.versions()?;
        let bit_bytes = self.bit_bytes.get();
        if !BIT_BYTES.contains(&bit_bytes) || !bit_bytes.is_power_of_two() {
            return Err(AboutError::Field("granularity"));
        }
        if self.volume == [0; 16] || self.replica == [0; 16] {
            return Err(AboutError::Field("name"));
        }
        if self.flags & !About::FLAGS != 0 {
            return Err(AboutError::Field("state"));
        }
        match self.role {
            0 => Ok(Role::Target),
            1 => Ok(Role::Source),
            _ => Err(AboutError::Field("role")),
        }
    }

    /// Whether the flag is set.
    #[must_use]
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Reason for a refusal: status code type 7h (vendor specific), with do not retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// 01h.
    #[error("the peer holds another volume")]
    Unrelated,
    /// 02h.
    #[error("the peer serves hosts itself")]
    Active,
    /// 03h; the epoch that it has seen is the result of the completion (dwords 0 and 1).
    #[error("the peer has seen epoch {0}, which is later")]
    Fenced(u64),
    /// 04h.
    #[error("the peer has changed since it was asked")]
    Changed,
    /// 05h.
    #[error("the connection is not attached")]
    NotAttached,
    /// 06h.
    #[error("the peer's data is inconsistent")]
    Inconsistent,
    /// 07h.
    #[error("the peer refuses the range")]
    Range,
    /// 08h.
    #[error("the peer's own device fails")]
    Failed,
    /// 09h.
    #[error("the peer is not in a state to do this")]
    NotNow,
    /// 0Ah.
    #[error("the peer does not speak the version of the link that this needs")]
    Version,
}

impl Refusal {
    /// Status and result of the completion.
    #[must_use]
    pub const fn completion(self) -> (Status, u64) {
        let (code, result) = match self {
            Refusal::Unrelated => (1, 0),
            Refusal::Active => (2, 0),
            Refusal::Fenced(epoch) => (3, epoch),
            Refusal::Changed => (4, 0),
            Refusal::NotAttached => (5, 0),
            Refusal::Inconsistent => (6, 0),
            Refusal::Range => (7, 0),
            Refusal::Failed => (8, 0),
            Refusal::NotNow => (9, 0),
            Refusal::Version => (10, 0),
        };
        (Status::new(sct::VENDOR, code).dnr(), result)
    }

    /// The refusal reported by a completion; `None` for any other completion.
    #[must_use]
    pub const fn of(status: Status, result: u64) -> Option<Refusal> {
        if status.sct() != sct::VENDOR {
            return None;
        }
        Some(match status.sc() {
            1 => Refusal::Unrelated,
            2 => Refusal::Active,
            3 => Refusal::Fenced(result),
            4 => Refusal::Changed,
            5 => Refusal::NotAttached,
            6 => Refusal::Inconsistent,
            7 => Refusal::Range,
            8 => Refusal::Failed,
            9 => Refusal::NotNow,
            10 => Refusal::Version,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Wire;
    use proptest::prelude::*;

    fn sound() -> About {
        About {
            bit_bytes: U32::new(65_536),
            volume: [1; 16],
            replica: [2; 16],
            ..About::new(Role::Source, 2..=3)
        }
    }

    #[test]
    fn invalid_replies_are_refused() {
        assert_eq!(sound().check(), Ok(Role::Source));
        let with = |change: fn(&mut About)| {
            let mut about = sound();
            change(&mut about);
            about.check()
        };
        let no_range = with(|about| about.lowest_version = U16::new(4));
        assert_eq!(no_range, Err(AboutError::Versions(4, 3)));
        for (field, change) in [
            ("role", (|about| about.role = 2) as fn(&mut About)),
            ("state", |about| about.flags = 0x40),
            ("granularity", |about| about.bit_bytes = U32::new(0)),
            ("granularity", |about| about.bit_bytes = U32::new(65_537)),
            ("granularity", |about| about.bit_bytes = U32::new(32 << 20)),
            ("name", |about| about.volume = [0; 16]),
            ("name", |about| about.replica = [0; 16]),
        ] {
            assert_eq!(with(change), Err(AboutError::Field(field)));
        }
    }

    #[test]
    fn refusals_are_distinct() {
        for refusal in [
            Refusal::Unrelated,
            Refusal::Active,
            Refusal::Fenced(u64::MAX),
            Refusal::Changed,
            Refusal::NotAttached,
            Refusal::Inconsistent,
            Refusal::Range,
            Refusal::Failed,
            Refusal::NotNow,
            Refusal::Version,
        ] {
            let (status, result) = refusal.completion();
            assert!(status.is_dnr());
            assert_eq!(Refusal::of(status, result), Some(refusal));
        }
        assert_eq!(Refusal::of(Status::new(sct::VENDOR, 11), 0), None);
        assert_eq!(Refusal::of(Status::INVALID_FIELD, 0), None);
    }

    #[test]
    fn version_range_is_readable_by_old_peers() {
        let bytes = |versions| {
            let about = About::new(Role::Target, versions);
            let bytes = about.bytes();
            ([bytes[0], bytes[1]], [bytes[226], bytes[227]])
        };
        // Nodes of version 2 check only the first number, which was the only one, and require a 2.
        assert_eq!(bytes(2..=3), ([2, 0], [3, 0]));
        assert_eq!(bytes(0x102..=0x304), ([2, 1], [4, 3]));
        let said = |lowest, highest| {
            let (lowest_version, highest_version) = (U16::new(lowest), U16::new(highest));
            About { lowest_version, highest_version, ..sound() }.versions()
        };
        // They do not report a highest version.
        assert_eq!(said(2, 0), Ok(2..=2));
        assert_eq!(said(2, 3), Ok(2..=3));
        assert_eq!(said(7, u16::MAX), Ok(7..=u16::MAX));
        for (lowest, highest) in [(0, 0), (0, 3), (3, 2), (u16::MAX, 1)] {
            assert_eq!(said(lowest, highest), Err(AboutError::Versions(lowest, highest)));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_checked(bytes in prop::collection::vec(any::<u8>(), 512)) {
            let about = About::view(&bytes).unwrap();
            if about.check().is_ok() {
                prop_assert!(about.bit_bytes.get().is_power_of_two());
                let versions = about.versions().unwrap();
                prop_assert!(*versions.start() > 0 && !versions.is_empty());
            }
        }
    }
}

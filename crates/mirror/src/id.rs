//! Identifiers: of volumes, replicas and logs (UUIDs), and of generations of data.

use std::fmt;

use uuid::{Builder, Uuid};

/// A random UUID that identifies a volume, a replica or a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MirrorId(pub [u8; 16]);

impl MirrorId {
    /// A new identifier from the runtime's random generator.
    pub fn random() -> MirrorId {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&flagstone_runtime::random_u64().to_le_bytes());
        bytes[8..].copy_from_slice(&flagstone_runtime::random_u64().to_le_bytes());
        MirrorId(Builder::from_random_bytes(bytes).into_uuid().into_bytes())
    }

    /// True for the nil identifier.
    pub fn is_none(self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for MirrorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Uuid::from_bytes(self.0).fmt(f)
    }
}

/// Random number that identifies one state of a volume's data. Replicas of equal generation differ
/// at most where their logs say so. 0 is none: a replica that never held the volume's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

impl Generation {
    /// No data yet.
    pub const NONE: Generation = Generation(0);

    /// A new generation from the runtime's random generator.
    pub fn random() -> Generation {
        Generation(flagstone_runtime::random_u64().max(1))
    }

    /// Generation of a volume whose every block is zero, before its first write. A replica that is
    /// known to be zeroes has it without having met another.
    pub fn of_zeroes(volume: MirrorId) -> Generation {
        let mut text = *b"zeroes of volume................";
        text[16..].copy_from_slice(&volume.0);
        Generation(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &text).max(1))
    }

    /// True for [`Generation::NONE`].
    pub fn is_none(self) -> bool {
        self == Generation::NONE
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

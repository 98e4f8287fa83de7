//! Identifiers of pools, their devices and volumes.

use std::fmt;
use std::str::FromStr;

use uuid::{Builder, Uuid};

/// A random UUID that identifies a pool, a device of a pool, or a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub [u8; 16]);

impl PoolId {
    /// Random identifier.
    pub fn random() -> PoolId {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&flagstone_runtime::random_u64().to_le_bytes());
        bytes[8..].copy_from_slice(&flagstone_runtime::random_u64().to_le_bytes());
        PoolId(Builder::from_random_bytes(bytes).into_uuid().into_bytes())
    }
}

impl FromStr for PoolId {
    type Err = uuid::Error;

    /// Parses a UUID.
    ///
    /// # Errors
    /// For any other text.
    fn from_str(text: &str) -> Result<PoolId, uuid::Error> {
        text.parse::<Uuid>().map(|uuid| PoolId(uuid.into_bytes()))
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Uuid::from_bytes(self.0).fmt(f)
    }
}

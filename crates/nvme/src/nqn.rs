//! NVMe Qualified Names: the names of hosts and subsystems (Base 4.7).

use uuid::Uuid;

use crate::limits::{NQN_BYTES, NQN_FIELD_BYTES, NQN_MIN_BYTES};

/// The well-known name of the discovery subsystem (Base 3.1.3.3).
pub const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Prefix of a name made from a UUID.
pub const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// Reason that bytes are not an NVMe Qualified Name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NqnError {
    /// No byte before the terminator.
    #[error("the name is empty")]
    Empty,
    /// More than [`NQN_BYTES`] bytes, or a field without a terminator.
    #[error("the name is longer than 223 bytes")]
    TooLong,
    /// Not UTF-8, or with a control character in it.
    #[error("the name is not printable UTF-8")]
    NotText,
    /// Does not start with `nqn.yyyy-mm.` followed by at least one byte.
    #[error("the name does not start with nqn.yyyy-mm. and a reversed domain")]
    NotQualified,
    /// Starts like a name made from a UUID, but does not end with one.
    #[error("the name does not end with the UUID that nqn.2014-08.org.nvmexpress:uuid: announces")]
    BadUuid,
}

/// A valid NVMe Qualified Name, stored inline.
///
/// Names are equal if their bytes are equal, as the specification requires: case-sensitive, without
/// normalization.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn {
    // Bytes past `len` are 0, so that the derived comparisons compare the names.
    bytes: [u8; NQN_BYTES],
    len: u8,
}

impl Nqn {
    /// Accepts `nqn.yyyy-mm.` and a reversed domain with any printable text after it, or
    /// `nqn.2014-08.org.nvmexpress:uuid:` and a UUID; at most 223 bytes of UTF-8.
    ///
    /// # Errors
    /// The reason that the name is invalid.
    pub fn new(name: &str) -> Result<Self, NqnError> {
        Self::from_bytes(name.as_bytes())
    }

    /// The name made from `uuid`, which hosts without a configured name use.
    pub fn from_uuid(uuid: [u8; 16]) -> Self {
        let mut bytes = [0; NQN_BYTES];
        let (prefix, rest) = bytes.split_at_mut(UUID_PREFIX.len());
        prefix.copy_from_slice(UUID_PREFIX.as_bytes());
        let uuid = Uuid::from_bytes(uuid).hyphenated().encode_lower(rest);
        let len = UUID_PREFIX.len() + uuid.len();
        Self { bytes, len: len as u8 }
    }

    /// The name of the discovery subsystem, [`DISCOVERY`].
    pub fn discovery() -> Self {
        Self::from_valid(DISCOVERY.as_bytes())
    }

    /// The name in a wire field: the bytes before its first 0 byte.
    ///
    /// # Errors
    /// The errors of [`Nqn::new`], and [`NqnError::TooLong`] for a field without a 0 byte.
    pub fn from_field(field: &[u8; NQN_FIELD_BYTES]) -> Result<Self, NqnError> {
        let len = field.iter().position(|&byte| byte == 0).ok_or(NqnError::TooLong)?;
        Self::from_bytes(&field[..len])
    }

    /// The wire field: the name and 0 bytes.
    pub fn to_field(&self) -> [u8; NQN_FIELD_BYTES] {
        let mut field = [0; NQN_FIELD_BYTES];
        field[..NQN_BYTES].copy_from_slice(&self.bytes);
        field
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        // It was checked by the constructor: the fallback is never used.
        core::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }

    /// Whether it names the well-known discovery subsystem.
    pub fn is_discovery(&self) -> bool {
        self.as_str() == DISCOVERY
    }

    fn from_bytes(name: &[u8]) -> Result<Self, NqnError> {
        check(name)?;
        Ok(Self::from_valid(name))
    }

    fn from_valid(name: &[u8]) -> Self {
        let mut bytes = [0; NQN_BYTES];
        bytes[..name.len()].copy_from_slice(name);
        Self { bytes, len: name.len() as u8 }
    }
}

fn check(name: &[u8]) -> Result<(), NqnError> {
    if name.is_empty() {
        return Err(NqnError::Empty);
    }
    if name.len() > NQN_BYTES {
        return Err(NqnError::TooLong);
    }
    let text = core::str::from_utf8(name).map_err(|_| NqnError::NotText)?;
    if text.chars().any(char::is_control) {
        return Err(NqnError::NotText);
    }
    if name.len() < NQN_MIN_BYTES || !starts_with_date(name) {
        return Err(NqnError::NotQualified);
    }
    match text.strip_prefix(UUID_PREFIX) {
        // The only form of 36 characters is the one with hyphens.
        Some(uuid) if uuid.len() != 36 || Uuid::try_parse(uuid).is_err() => Err(NqnError::BadUuid),
        _ => Ok(()),
    }
}

/// `nqn.yyyy-mm.` with a month from 01 to 12.
fn starts_with_date(name: &[u8]) -> bool {
    let Some(date) = name.strip_prefix(b"nqn.").and_then(|rest| rest.first_chunk::<8>()) else {
        return false;
    };
    let digits = [0, 1, 2, 3, 5, 6].iter().all(|&at| date[at].is_ascii_digit());
    let month =
        (date[5].wrapping_sub(b'0')).wrapping_mul(10).wrapping_add(date[6].wrapping_sub(b'0'));
    digits && date[4] == b'-' && date[7] == b'.' && (1..=12).contains(&month)
}

impl core::fmt::Display for Nqn {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl core::fmt::Debug for Nqn {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Nqn({})", self.as_str())
    }
}

impl core::str::FromStr for Nqn {
    type Err = NqnError;

    fn from_str(name: &str) -> Result<Self, NqnError> {
        Self::new(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn valid_nqns() {
        for name in [
            DISCOVERY,
            "nqn.2014-08.org.nvmexpress:uuid:2cd2c43b-a90a-45c1-a8cd-86b33ab273b5",
            "nqn.2014-08.org.nvmexpress:uuid:2CD2C43B-A90A-45C1-A8CD-86B33AB273B5",
            "nqn.2014-08.org.nvmexpress:NVMf:uuid:a host of an old nvme-cli",
            "nqn.2016-06.io.spdk:cnode1",
            "nqn.2024-01.x",
            "nqn.2024-12.example:\u{3bb}",
        ] {
            assert_eq!(Nqn::new(name).unwrap().as_str(), name);
        }
        assert_eq!(Nqn::new(DISCOVERY).unwrap(), Nqn::discovery());
        assert!(Nqn::discovery().is_discovery());
    }

    #[test]
    fn invalid_nqns() {
        let long = format!("nqn.2024-01.{}", "x".repeat(212));
        for (name, error) in [
            ("", NqnError::Empty),
            (long.as_str(), NqnError::TooLong),
            ("nqn.2024-01.a\nb", NqnError::NotText),
            ("nqn.2024-01.", NqnError::NotQualified),
            ("nqn.2024-00.a", NqnError::NotQualified),
            ("nqn.2024-13.a", NqnError::NotQualified),
            ("nqn.20x4-01.a", NqnError::NotQualified),
            ("nqn.2024-0\u{e9}a", NqnError::NotQualified),
            ("nqn.2024.01.ab", NqnError::NotQualified),
            ("iqn.2024-01.ab", NqnError::NotQualified),
            ("hostname-of-a-machine", NqnError::NotQualified),
            ("nqn.2014-08.org.nvmexpress:uuid:", NqnError::BadUuid),
            (
                "nqn.2014-08.org.nvmexpress:uuid:2cd2c43b-a90a-45c1-a8cd-86b33ab273b",
                NqnError::BadUuid,
            ),
            (
                "nqn.2014-08.org.nvmexpress:uuid:2cd2c43b-a90a-45c1-a8cd+86b33ab273b5",
                NqnError::BadUuid,
            ),
        ] {
            assert_eq!(Nqn::new(name), Err(error), "{name}");
        }
        assert_eq!(Nqn::new(&long[..223]).unwrap().as_str().len(), 223);
        assert_eq!(Nqn::from_field(&[b'n'; 256]), Err(NqnError::TooLong));
        let mut field = Nqn::discovery().to_field();
        field[20] = 0xff;
        assert_eq!(Nqn::from_field(&field), Err(NqnError::NotText));
    }

    #[test]
    fn bytes_after_terminator_are_ignored() {
        let mut field = Nqn::discovery().to_field();
        field[200] = b'x';
        assert_eq!(Nqn::from_field(&field), Ok(Nqn::discovery()));
    }

    proptest! {
        #[test]
        fn uuid_nqn_round_trips(uuid: [u8; 16]) {
            let name = Nqn::from_uuid(uuid);
            prop_assert_eq!(Nqn::new(name.as_str()), Ok(name));
            prop_assert_eq!(Nqn::from_field(&name.to_field()), Ok(name));
        }

        #[test]
        fn nqn_order_is_text_order(left in "nqn\\.2024-0[1-9]\\.[a-c]{1,4}", right in "nqn\\.2024-0[1-9]\\.[a-c]{1,4}") {
            let order = Nqn::new(&left).unwrap().cmp(&Nqn::new(&right).unwrap());
            prop_assert_eq!(order, left.cmp(&right));
        }

        #[test]
        fn any_nqn_field_round_trips_or_fails(
            prefix in prop::sample::select(vec!["", "nqn.2014-08.", UUID_PREFIX]),
            tail in prop::collection::vec(any::<u8>(), 256),
        ) {
            let mut field: [u8; 256] = tail.try_into().unwrap();
            field[..prefix.len()].copy_from_slice(prefix.as_bytes());
            if let Ok(name) = Nqn::from_field(&field) {
                prop_assert_eq!(Nqn::new(name.as_str()), Ok(name));
            }
        }
    }
}

//! NVMe Qualified Names: the names of hosts and subsystems (Base 4.7).

use crate::limits::{NQN_BYTES, NQN_FIELD_BYTES, NQN_MIN_BYTES};

/// The name of the discovery subsystem that every host knows (Base 3.1.3.3).
pub const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// What a name made of a UUID starts with.
pub const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// Why bytes are not an NVMe Qualified Name.
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
    /// It does not start with `nqn.yyyy-mm.` and something after it.
    #[error("the name does not start with nqn.yyyy-mm. and a reversed domain")]
    NotQualified,
    /// It starts as a name made of a UUID and does not end with one.
    #[error("the name does not end with the UUID that nqn.2014-08.org.nvmexpress:uuid: announces")]
    BadUuid,
}

/// A valid NVMe Qualified Name, held in place.
///
/// Equal when its bytes are equal, as the specification compares names: with case, without any
/// normalisation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn {
    // Bytes past `len` are 0, so that the derived comparisons are those of the names.
    bytes: [u8; NQN_BYTES],
    len: u8,
}

impl Nqn {
    /// Takes a name that is `nqn.yyyy-mm.` and a reversed domain with anything printable after it,
    /// or `nqn.2014-08.org.nvmexpress:uuid:` and a UUID; 223 bytes of UTF-8 at most.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn new(name: &str) -> Result<Self, NqnError> {
        Self::from_bytes(name.as_bytes())
    }

    /// The name of the UUID `uuid`, in the form that hosts without a name of their own use.
    #[must_use]
    pub fn from_uuid(uuid: [u8; 16]) -> Self {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut bytes = [0; NQN_BYTES];
        bytes[..UUID_PREFIX.len()].copy_from_slice(UUID_PREFIX.as_bytes());
        let mut at = UUID_PREFIX.len();
        for (index, byte) in uuid.into_iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                bytes[at] = b'-';
                at += 1;
            }
            bytes[at] = HEX[usize::from(byte >> 4)];
            bytes[at + 1] = HEX[usize::from(byte & 15)];
            at += 2;
        }
        Self { bytes, len: at as u8 }
    }

    /// The name of the discovery subsystem, [`DISCOVERY`].
    #[must_use]
    pub fn discovery() -> Self {
        let mut bytes = [0; NQN_BYTES];
        bytes[..DISCOVERY.len()].copy_from_slice(DISCOVERY.as_bytes());
        Self { bytes, len: DISCOVERY.len() as u8 }
    }

    /// The name in a field of the wire: what precedes its first 0 byte.
    ///
    /// # Errors
    ///
    /// As [`Nqn::new`]; [`NqnError::TooLong`] also of a field without a 0 byte.
    pub fn from_field(field: &[u8; NQN_FIELD_BYTES]) -> Result<Self, NqnError> {
        let len = field.iter().position(|&byte| byte == 0).ok_or(NqnError::TooLong)?;
        Self::from_bytes(&field[..len])
    }

    /// The field of the wire: the name and 0 bytes.
    #[must_use]
    pub fn to_field(&self) -> [u8; NQN_FIELD_BYTES] {
        let mut field = [0; NQN_FIELD_BYTES];
        field[..NQN_BYTES].copy_from_slice(&self.bytes);
        field
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Checked when it was made: the fallback is never taken.
        core::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }

    /// Whether it names the well-known discovery subsystem.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.as_str() == DISCOVERY
    }

    fn from_bytes(name: &[u8]) -> Result<Self, NqnError> {
        check(name)?;
        let mut bytes = [0; NQN_BYTES];
        bytes[..name.len()].copy_from_slice(name);
        Ok(Self { bytes, len: name.len() as u8 })
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
        Some(uuid) if !is_uuid(uuid.as_bytes()) => Err(NqnError::BadUuid),
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

fn is_uuid(text: &[u8]) -> bool {
    text.len() == 36
        && text.iter().enumerate().all(|(at, &byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
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
    fn names_that_are_taken() {
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
    fn names_that_are_refused() {
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
    fn bytes_after_the_terminator_are_not_the_name() {
        let mut field = Nqn::discovery().to_field();
        field[200] = b'x';
        assert_eq!(Nqn::from_field(&field), Ok(Nqn::discovery()));
    }

    proptest! {
        #[test]
        fn a_uuid_name_is_valid_and_round_trips(uuid: [u8; 16]) {
            let name = Nqn::from_uuid(uuid);
            prop_assert_eq!(Nqn::new(name.as_str()), Ok(name));
            prop_assert_eq!(Nqn::from_field(&name.to_field()), Ok(name));
        }

        #[test]
        fn order_is_that_of_the_text(left in "nqn\\.2024-0[1-9]\\.[a-c]{1,4}", right in "nqn\\.2024-0[1-9]\\.[a-c]{1,4}") {
            let order = Nqn::new(&left).unwrap().cmp(&Nqn::new(&right).unwrap());
            prop_assert_eq!(order, left.cmp(&right));
        }

        #[test]
        fn any_field_is_a_name_that_round_trips_or_an_error(
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

//! Names and their rules: NVMe qualified names, UUIDs, serial numbers, volume and export names.
//!
//! Each check returns a reason that can follow "…: ", so that all callers refuse a name with the
//! same message.

pub use uuid::Uuid;
use uuid::fmt::Hyphenated;

use crate::limits::{MAX_EXPORT_NAME_BYTES, MAX_SERIAL_BYTES, MAX_VOLUME_NAME_BYTES, NQN_BYTES};

/// The NQN of every discovery subsystem (NVMe base 2.0, section 4.5). No volume has it.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Prefix of the NQNs that volumes get by default, followed by `:NAME`.
pub const DEFAULT_NQN_PREFIX: &str = "nqn.2026-01.io.flagstone";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error(
        "an NQN has the form nqn.YYYY-MM.REVERSED.DOMAIN:NAME, such as {DEFAULT_NQN_PREFIX}:db"
    )]
    NotAnNqn,
    #[error("an NQN has at most 223 bytes, this one has {0}")]
    NqnTooLong(usize),
    #[error("an NQN has no white space and no control characters")]
    NqnCharacter,
    #[error("this NQN is reserved for the discovery subsystem")]
    Reserved,
    #[error(
        "a volume name has 1 to {MAX_VOLUME_NAME_BYTES} letters, digits, `-`, `_` or `.`, \
         the first a letter or a digit"
    )]
    VolumeName,
    #[error(
        "the name of a node has 1 to {MAX_VOLUME_NAME_BYTES} letters, digits, `-`, `_` or `.`, \
         the first a letter or a digit"
    )]
    Node,
    #[error(
        "the name of a consistency group has 1 to {MAX_VOLUME_NAME_BYTES} letters, digits, `-`, `_` or \
         `.`, the first a letter or a digit"
    )]
    Group,
    #[error(
        "a serial number has 1 to {MAX_SERIAL_BYTES} printable ASCII characters, no space at either end"
    )]
    Serial,
    #[error(
        "an NBD export name has at most {MAX_EXPORT_NAME_BYTES} bytes and no control characters"
    )]
    Export,
    #[error("a UUID has the form 01234567-89ab-cdef-0123-456789abcdef and is not all zero")]
    Uuid,
}

/// Checks an NVMe qualified name: of a subsystem or a host.
pub fn check_nqn(nqn: &str) -> Result<(), NameError> {
    if nqn.len() > *NQN_BYTES.end() {
        return Err(NameError::NqnTooLong(nqn.len()));
    }
    if nqn.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(NameError::NqnCharacter);
    }
    let date_and_name = nqn.strip_prefix("nqn.").and_then(|rest| rest.split_once('.'));
    let well_formed = date_and_name.is_some_and(|(date, name)| {
        is_year_month(date) && !name.is_empty() && !name.starts_with(':')
    });
    if well_formed && NQN_BYTES.contains(&nqn.len()) { Ok(()) } else { Err(NameError::NotAnNqn) }
}

pub fn check_subsystem_nqn(nqn: &str) -> Result<(), NameError> {
    check_nqn(nqn)?;
    if nqn == DISCOVERY_NQN { Err(NameError::Reserved) } else { Ok(()) }
}

fn is_year_month(text: &str) -> bool {
    let Some((year, month)) = text.split_once('-') else { return false };
    let digits =
        |text: &str, length| text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit());
    digits(year, 4) && digits(month, 2) && ("01"..="12").contains(&month)
}

/// Checks the name of a volume: it becomes part of an NQN, a URI and log lines, so it is plain.
pub fn check_volume_name(name: &str) -> Result<(), NameError> {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    if plain && first && name.len() <= MAX_VOLUME_NAME_BYTES {
        Ok(())
    } else {
        Err(NameError::VolumeName)
    }
}

/// Checks a controller serial number (Identify Controller, SN).
pub fn check_serial(serial: &str) -> Result<(), NameError> {
    let printable = serial.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let length = (1..=MAX_SERIAL_BYTES).contains(&serial.len());
    if printable && length && serial.trim() == serial { Ok(()) } else { Err(NameError::Serial) }
}

/// Checks an NBD export name; the empty one is the default export.
pub fn check_export_name(name: &str) -> Result<(), NameError> {
    if name.len() <= MAX_EXPORT_NAME_BYTES && !name.chars().any(char::is_control) {
        Ok(())
    } else {
        Err(NameError::Export)
    }
}

/// A UUID that depends only on `parts`: the same parts, the same UUID, today and after any
/// update. Version 8 (RFC 9562, section 5.8) over a 128-bit FNV-1a hash; for telling namespaces
/// apart, not for secrets.
///
/// The first part should be the machine's own identity: two servers that both have a volume
/// `db` must not announce the same UUID, or a multipath host takes them for one disk.
pub fn derived_uuid(parts: &[&[u8]]) -> Uuid {
    uuid::Builder::from_custom_bytes(fnv1a_128(parts).to_be_bytes()).into_uuid()
}

/// A serial number of 20 characters made of a UUID.
pub fn serial_of(uuid: Uuid) -> String {
    format!("{:020X}", uuid.as_u128() & ((1 << 80) - 1))
}

/// Reads a UUID in its hyphenated form, which `urn:uuid:` may precede.
pub fn parse_uuid(text: &str) -> Result<Uuid, NameError> {
    let text = text.strip_prefix("urn:uuid:").unwrap_or(text);
    let uuid = text.parse::<Hyphenated>().map_err(|_| NameError::Uuid)?.into_uuid();
    if uuid.is_nil() { Err(NameError::Uuid) } else { Ok(uuid) }
}

/// FNV-1a with 128 bits (its published offset basis and prime); each part is followed by its
/// length, so that no two lists of parts are the same bytes.
fn fnv1a_128(parts: &[&[u8]]) -> u128 {
    const OFFSET_BASIS: u128 = 0x6C62_272E_07BB_0142_62B8_2175_6295_C58D;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013B;
    let mut hash = OFFSET_BASIS;
    for part in parts {
        for byte in part.iter().copied().chain((part.len() as u64).to_le_bytes()) {
            hash = (hash ^ u128::from(byte)).wrapping_mul(PRIME);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nqns_from_specification_are_accepted() {
        for nqn in [
            "nqn.2014-08.com.example:nvme.host.sys.xyz",
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
            "nqn.2016-06.io.spdk:cnode1",
            "nqn.2026-01.io.flagstone:db",
            DISCOVERY_NQN,
            "nqn.2014-08.com.example:größe",
        ] {
            assert_eq!(check_nqn(nqn), Ok(()), "{nqn}");
        }
        assert_eq!(check_subsystem_nqn(DISCOVERY_NQN), Err(NameError::Reserved));
    }

    #[test]
    fn broken_nqns_are_refused() {
        let long = format!("nqn.2026-01.x:{}", "a".repeat(210));
        for (nqn, error) in [
            ("", NameError::NotAnNqn),
            ("iqn.2026-01.io.flagstone:db", NameError::NotAnNqn),
            ("nqn.2026-13.io.flagstone:db", NameError::NotAnNqn),
            ("nqn.26-01.io.flagstone:db", NameError::NotAnNqn),
            ("nqn.2026-01.", NameError::NotAnNqn),
            ("nqn.2026-01.:db", NameError::NotAnNqn),
            ("nqn.2026-01.io.flagstone:d b", NameError::NqnCharacter),
            ("nqn.2026-01.io.flagstone:d\0b", NameError::NqnCharacter),
            (&long, NameError::NqnTooLong(224)),
        ] {
            assert_eq!(check_nqn(nqn), Err(error), "{nqn}");
        }
    }

    #[test]
    fn volume_names_serials_and_exports() {
        for name in ["db", "0", "a.b-c_D", &"a".repeat(64)] {
            assert_eq!(check_volume_name(name), Ok(()), "{name}");
        }
        for name in ["", "-a", ".a", "a b", "a:b", "ä", &"a".repeat(65)] {
            assert_eq!(check_volume_name(name), Err(NameError::VolumeName), "{name}");
        }
        assert_eq!(check_serial("FS 0001"), Ok(()));
        for serial in ["", " a", "a ", "ä", &"1".repeat(21)] {
            assert_eq!(check_serial(serial), Err(NameError::Serial), "{serial}");
        }
        assert_eq!(check_export_name(""), Ok(()));
        assert_eq!(check_export_name("/a b/ü"), Ok(()));
        assert_eq!(check_export_name("a\nb"), Err(NameError::Export));
    }

    #[test]
    fn derived_uuids_never_change() {
        let uuid = derived_uuid(&[b"machine", b"nqn.2026-01.io.flagstone:db"]);
        assert_eq!(uuid.to_string(), "ce9f5f87-c2e1-81ca-9edf-9013fdec9a44");
        assert_ne!(uuid, derived_uuid(&[b"machin", b"enqn.2026-01.io.flagstone:db"]));
        assert_eq!(check_serial(&serial_of(uuid)), Ok(()));
        assert_eq!(serial_of(uuid).len(), MAX_SERIAL_BYTES);
    }

    #[test]
    fn broken_uuids_are_refused() {
        for text in [
            "",
            "0123456789abcdef0123456789abcdef",
            "01234567-89ab-cdef-0123-456789abcdeg",
            "01234567-89ab-cdef-0123-456789abcdef-",
            "+1234567-89ab-cdef-0123-456789abcdef",
            "00000000-0000-0000-0000-000000000000",
        ] {
            assert_eq!(parse_uuid(text), Err(NameError::Uuid), "{text}");
        }
    }

    proptest! {
        #[test]
        fn uuids_round_trip(bytes in any::<[u8; 16]>()) {
            prop_assume!(bytes != [0; 16]);
            let uuid = Uuid::from_bytes(bytes);
            prop_assert_eq!(parse_uuid(&uuid.to_string()), Ok(uuid));
            prop_assert_eq!(parse_uuid(&uuid.to_string().to_uppercase()), Ok(uuid));
        }

        #[test]
        fn any_text_is_survived(text in any::<String>()) {
            let _ = check_nqn(&text);
            let _ = check_volume_name(&text);
            let _ = check_serial(&text);
            let _ = parse_uuid(&text);
        }
    }
}

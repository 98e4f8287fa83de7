//! Identifiers in names of objects, and checksums.

use std::fmt;
use std::str::FromStr;

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Number of a writer: of one run of a backup. Names of its objects begin with it.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WriterId(pub [u8; 16]);

/// SHA-256.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Checksum(pub [u8; 32]);

impl WriterId {
    /// A number that no other writer has.
    ///
    /// # Panics
    /// Without random numbers.
    pub fn random() -> WriterId {
        let mut bytes = [0; 16];
        let read = getrandom(&mut bytes, GetRandomFlags::empty());
        assert_eq!(read, Ok(bytes.len()), "the kernel has random numbers");
        WriterId(bytes)
    }
}

impl Checksum {
    /// Checksum of `bytes`.
    pub fn of(bytes: &[u8]) -> Checksum {
        Checksum(Sha256::digest(bytes).into())
    }
}

/// Hexadecimal digits of `bytes`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn parse_hex<const N: usize>(text: &str) -> Result<[u8; N], String> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else {
        return Err("an odd number of digits".to_owned());
    };
    if pairs.len() != N {
        return Err(format!("not {} hexadecimal digits", 2 * N));
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        let value = digit(*high).zip(digit(*low)).map(|(high, low)| high << 4 | low);
        *byte = value.ok_or("not lower-case hexadecimal digits")?;
    }
    Ok(bytes)
}

macro_rules! hexadecimal {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex(&self.0))
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<$name, String> {
                parse_hex(text).map($name)
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<$name, String> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.to_string()
            }
        }
    };
}

hexadecimal!(WriterId);
hexadecimal!(Checksum);

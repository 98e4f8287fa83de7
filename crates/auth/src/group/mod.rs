//! Diffie-Hellman groups of DH-HMAC-CHAP: none, or a finite field of RFC 7919.
//!
//! Invariant: a public value from a peer is used only if it is in 2 ..= p - 2, which leaves no
//! small subgroup but the one of order (p - 1) / 2 and the whole group, as p is a safe prime.

mod primes;

use std::sync::OnceLock;

use crypto_bigint::modular::{FixedMontyForm, FixedMontyParams};
use crypto_bigint::{Odd, U512, U2048, U3072, U4096, U6144, U8192, Uint};
use zeroize::Zeroizing;

/// Group, by its identifier on the wire (Base 8.3.5.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum DhGroup {
    /// No Diffie-Hellman: secrets can be tried against a recorded exchange.
    Null = 0,
    /// 2,048 bits.
    Ffdhe2048 = 1,
    /// 3,072 bits.
    Ffdhe3072 = 2,
    /// 4,096 bits.
    Ffdhe4096 = 3,
    /// 6,144 bits.
    Ffdhe6144 = 4,
    /// 8,192 bits.
    Ffdhe8192 = 5,
}

/// Bytes of a private exponent: 512 bits, more than twice the strength of the largest group, which
/// a safe prime permits (RFC 7919, 5.2).
pub const EXPONENT_BYTES: usize = 64;

/// Public value that is not in 2 ..= p - 2, or does not have the length of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer's Diffie-Hellman value is not valid in this group")]
pub struct InvalidPublicValue;

/// A group's shared secret, most significant byte first, as long as the prime; erased when dropped.
pub(crate) type SharedSecret = Zeroizing<Vec<u8>>;

impl DhGroup {
    /// All groups, the weakest first.
    pub const ALL: [Self; 6] = [
        Self::Null,
        Self::Ffdhe2048,
        Self::Ffdhe3072,
        Self::Ffdhe4096,
        Self::Ffdhe6144,
        Self::Ffdhe8192,
    ];

    /// Identifier on the wire.
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// Group with identifier `id`.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.id() == id)
    }

    /// Bytes of a public value; 0 for the null group.
    pub const fn value_bytes(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 256,
            Self::Ffdhe3072 => 384,
            Self::Ffdhe4096 => 512,
            Self::Ffdhe6144 => 768,
            Self::Ffdhe8192 => 1024,
        }
    }

    /// 2 to the power of `exponent`: the public value of that private exponent. Empty for the null
    /// group.
    pub(crate) fn public_value(self, exponent: &[u8; EXPONENT_BYTES]) -> Vec<u8> {
        match self {
            Self::Null => Vec::new(),
            Self::Ffdhe2048 => field2048().generate(exponent),
            Self::Ffdhe3072 => field3072().generate(exponent),
            Self::Ffdhe4096 => field4096().generate(exponent),
            Self::Ffdhe6144 => field6144().generate(exponent),
            Self::Ffdhe8192 => field8192().generate(exponent),
        }
    }

    /// The peer's public `value` to the power of `exponent`; `None` for the null group.
    ///
    /// # Errors
    /// The value is not one of the group.
    pub(crate) fn shared_secret(
        self,
        exponent: &[u8; EXPONENT_BYTES],
        value: &[u8],
    ) -> Result<Option<SharedSecret>, InvalidPublicValue> {
        if value.len() != self.value_bytes() {
            return Err(InvalidPublicValue);
        }
        match self {
            Self::Null => return Ok(None),
            Self::Ffdhe2048 => field2048().agree(exponent, value),
            Self::Ffdhe3072 => field3072().agree(exponent, value),
            Self::Ffdhe4096 => field4096().agree(exponent, value),
            Self::Ffdhe6144 => field6144().agree(exponent, value),
            Self::Ffdhe8192 => field8192().agree(exponent, value),
        }
        .map(Some)
    }
}

impl std::fmt::Display for DhGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Null => "null",
            Self::Ffdhe2048 => "ffdhe2048",
            Self::Ffdhe3072 => "ffdhe3072",
            Self::Ffdhe4096 => "ffdhe4096",
            Self::Ffdhe6144 => "ffdhe6144",
            Self::Ffdhe8192 => "ffdhe8192",
        })
    }
}

/// Prime field of `LIMBS` machine words.
#[derive(Debug)]
struct Field<const LIMBS: usize> {
    parameters: FixedMontyParams<LIMBS>,
}

impl<const LIMBS: usize> Field<LIMBS> {
    fn new(prime: Uint<LIMBS>) -> Self {
        let Some(odd) = Option::from(Odd::new(prime)) else { unreachable!("the primes are odd") };
        Self { parameters: FixedMontyParams::new(odd) }
    }

    fn power(&self, base: &Uint<LIMBS>, exponent: &[u8; EXPONENT_BYTES]) -> Vec<u8> {
        let exponent = Zeroizing::new(U512::from_be_slice(exponent));
        let base = FixedMontyForm::new(base, &self.parameters);
        let power = Zeroizing::new(base.pow(&*exponent).retrieve());
        // Words of the most significant end first.
        power.to_words().iter().rev().flat_map(|word| word.to_be_bytes()).collect()
    }

    fn generate(&self, exponent: &[u8; EXPONENT_BYTES]) -> Vec<u8> {
        self.power(&Uint::from_u8(2), exponent)
    }

    fn agree(
        &self,
        exponent: &[u8; EXPONENT_BYTES],
        value: &[u8],
    ) -> Result<SharedSecret, InvalidPublicValue> {
        let value = Uint::from_be_slice(value);
        let largest = self.parameters.modulus().get().wrapping_sub(&Uint::from_u8(2));
        if value < Uint::from_u8(2) || value > largest {
            return Err(InvalidPublicValue);
        }
        Ok(Zeroizing::new(self.power(&value, exponent)))
    }
}

/// Accessor of a field, prepared at its first use.
macro_rules! field {
    ($name:ident, $uint:ident, $prime:expr) => {
        fn $name() -> &'static Field<{ $uint::LIMBS }> {
            static FIELD: OnceLock<Field<{ $uint::LIMBS }>> = OnceLock::new();
            FIELD.get_or_init(|| Field::new($uint::from_be_hex($prime)))
        }
    };
}

field!(field2048, U2048, primes::FFDHE2048);
field!(field3072, U3072, primes::FFDHE3072);
field!(field4096, U4096, primes::FFDHE4096);
field!(field6144, U6144, primes::FFDHE6144);
field!(field8192, U8192, primes::FFDHE8192);

#[cfg(test)]
mod tests {
    use super::*;

    const FINITE: [DhGroup; 5] = [
        DhGroup::Ffdhe2048,
        DhGroup::Ffdhe3072,
        DhGroup::Ffdhe4096,
        DhGroup::Ffdhe6144,
        DhGroup::Ffdhe8192,
    ];

    #[test]
    fn both_sides_of_a_group_agree() {
        for group in FINITE {
            let (mine, theirs) = ([0x5a; EXPONENT_BYTES], [0xc3; EXPONENT_BYTES]);
            let (public, other) = (group.public_value(&mine), group.public_value(&theirs));
            assert_eq!(public.len(), group.value_bytes());
            let here = group.shared_secret(&mine, &other).unwrap().unwrap();
            assert_eq!(here, group.shared_secret(&theirs, &public).unwrap().unwrap());
            assert_eq!(here.len(), group.value_bytes());
        }
    }

    /// 0, 1, p - 1 and p would make the shared secret known to everybody.
    #[test]
    fn degenerate_public_values_are_refused() {
        for group in FINITE {
            let bytes = group.value_bytes();
            let with_last = |last: u8| {
                let mut value = vec![0; bytes];
                value[bytes - 1] = last;
                value
            };
            let primes = [
                primes::FFDHE2048,
                primes::FFDHE3072,
                primes::FFDHE4096,
                primes::FFDHE6144,
                primes::FFDHE8192,
            ];
            let prime: Vec<u8> = primes[usize::from(group.id()) - 1]
                .as_bytes()
                .chunks(2)
                .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
                .collect();
            let below = |amount: u8| {
                let mut value = prime.clone();
                value[bytes - 1] -= amount;
                value
            };
            let exponent = [7; EXPONENT_BYTES];
            let refused = [with_last(0), with_last(1), below(1), below(0), vec![0xff; bytes]];
            for value in refused.iter().chain([&vec![], &vec![2; bytes - 1]]) {
                assert_eq!(group.shared_secret(&exponent, value), Err(InvalidPublicValue));
            }
            for value in [with_last(2), below(2)] {
                assert!(group.shared_secret(&exponent, &value).is_ok());
            }
        }
    }

    /// Fermat's test with base 3 of p and of (p - 1) / 2: a wrong digit would be found.
    #[test]
    fn primes_of_rfc_7919_are_safe_primes() {
        fn passes<const LIMBS: usize>(number: Uint<LIMBS>) -> bool {
            let parameters = FixedMontyParams::new(Odd::new(number).unwrap());
            let base = FixedMontyForm::new(&Uint::from_u8(3), &parameters);
            base.pow_vartime(&number.wrapping_sub(&Uint::ONE)).retrieve() == Uint::ONE
        }
        fn safe<const LIMBS: usize>(prime: Uint<LIMBS>) -> bool {
            passes(prime) && passes(prime.shr_vartime(1))
        }
        assert!(safe(U2048::from_be_hex(primes::FFDHE2048)));
        assert!(safe(U3072::from_be_hex(primes::FFDHE3072)));
        assert!(safe(U4096::from_be_hex(primes::FFDHE4096)));
        assert!(safe(U6144::from_be_hex(primes::FFDHE6144)));
        assert!(safe(U8192::from_be_hex(primes::FFDHE8192)));
    }
}

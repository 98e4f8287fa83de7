//! Secure channel concatenation (Base 8.3.5.5.9): a TLS PSK from the session key of an exchange.
//!
//! Invariants: only an exchange with a Diffie-Hellman group has a session key, and so a PSK that an
//! eavesdropper cannot compute. SC_C is part of both responses, so an attacker in between cannot
//! remove it.

use crate::group::{DhGroup, SharedSecret};
use crate::hash::{Digest64, Hash};
use crate::response::Names;
use crate::tls::{self, Psk, PskHash};

/// SC_C of AUTH_Negotiate: use of the session key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Concatenation {
    /// NOSC: nothing.
    #[default]
    None = 0,
    /// NEWTLSPSK: a PSK for later connections, on an admin queue without TLS.
    NewPsk = 2,
    /// REPLACETLSPSK: a PSK that replaces the one of this admin queue with TLS.
    ReplacePsk = 3,
}

impl Concatenation {
    const ALL: [Self; 3] = [Self::None, Self::NewPsk, Self::ReplacePsk];

    /// Value on the wire.
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// Kind with value `id`. 1 is obsolete.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.id() == id)
    }

    /// True if an exchange of this kind may use `hash`: no PSK identity names SHA-512.
    pub(crate) fn fits_hash(self, hash: Hash) -> bool {
        self == Self::None || psk_hash(hash).is_some()
    }

    /// True if an exchange of this kind may use `group`.
    pub(crate) fn fits_group(self, group: DhGroup) -> bool {
        self == Self::None || group != DhGroup::Null
    }
}

fn psk_hash(hash: Hash) -> Option<PskHash> {
    PskHash::from_id(hash.id())
}

/// TLS PSK of an exchange: session key and both challenges give the generated PSK. `None` without a
/// Diffie-Hellman group, and with SHA-512.
pub(crate) fn tls_psk(
    hash: Hash,
    shared_secret: Option<&SharedSecret>,
    (c1, c2): (&[u8], &[u8]),
    names: &Names,
) -> Option<Psk> {
    let generated = generated(hash, &hash.digest(shared_secret?), c1, c2);
    tls::of_generated(&generated, psk_hash(hash)?, &names.host, &names.subsystem)
}

fn generated(hash: Hash, session_key: &[u8], c1: &[u8], c2: &[u8]) -> Digest64 {
    hash.hmac(session_key, &[c1, c2])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Known answers from Linux's tests (drivers/nvme/common/tests/auth_kunit.c). The form of the
    /// identity is that of drivers/nvme/common/keyring.c.
    #[test]
    fn generated_psks_match_linux() {
        let names = Names { host: "hostnqn".into(), subsystem: "subsysnqn".into() };
        let answers = [
            (
                Hash::Sha256,
                "1733c59fa7f48fcf37f5f26fc4ff0268ad4f78e030f4f3b0bfd1d47e7bb1447a",
                "OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI=",
                "3c17da628474a04d2247c4cab47968c915388193f7c071bd9489cc3666cd7cc8",
            ),
            (
                Hash::Sha384,
                "f14b2dd3234c459694d3bc63f8968bd6b37c2c6de849e22e118749001ce4bbe8\
                 640b9e3a748cb11ce4b1d71d359cce39",
                "cffMWk8TSS7HOQebjgYEIkrPrjWPV4JE5cdPB8WhEvY4JBW5YynKyv66XscN4A9n",
                "2774753233537b3fa50eb7d16a8e43457d85f4906c005b2236616c5d80939d08\
                 98fff15bb8b77119d2be0aac423e7590",
            ),
        ];
        for (hash, retained, digest, secret) in answers {
            let bytes = hash.digest_bytes() as u8;
            let key: Vec<u8> = (0..bytes).map(|at| b'A' + at).collect();
            let c1: Vec<u8> = (0..bytes).collect();
            let c2: Vec<u8> = (0..bytes).map(|at| 0xff - at).collect();
            let psk = generated(hash, &key, &c1, &c2);
            assert_eq!(hex(&psk), retained);
            let id = psk_hash(hash).unwrap();
            let psk = tls::of_generated(&psk, id, &names.host, &names.subsystem).unwrap();
            let identity = format!("NVMe1G{:02} hostnqn subsysnqn {digest}", hash.id());
            assert_eq!(String::from_utf8(psk.identity).unwrap(), identity);
            assert_eq!(hex(&psk.secret), secret);
        }
    }

    /// Linux up to 7.0 uses the shared secret itself as session key. HMAC hashes keys that are
    /// longer than its block, so the PSK is the same.
    #[test]
    fn shared_secret_as_session_key_gives_the_same_psk() {
        let shared = vec![7; DhGroup::Ffdhe2048.value_bytes()];
        for hash in [Hash::Sha256, Hash::Sha384] {
            let hashed = generated(hash, &hash.digest(&shared), &[1; 32], &[2; 32]);
            assert_eq!(hashed, generated(hash, &shared, &[1; 32], &[2; 32]));
        }
    }

    #[test]
    fn psk_needs_a_group_and_a_hash_of_tls() {
        let names = Names { host: "h".into(), subsystem: "s".into() };
        let shared = SharedSecret::new(vec![1; 256]);
        let made = |hash, shared| tls_psk(hash, shared, (&[1; 32], &[2; 32]), &names).is_some();
        assert!(made(Hash::Sha256, Some(&shared)) && made(Hash::Sha384, Some(&shared)));
        assert!(!made(Hash::Sha512, Some(&shared)) && !made(Hash::Sha256, None));
        assert_eq!(Concatenation::from_id(1), None);
        assert_eq!(Concatenation::from_id(3), Some(Concatenation::ReplacePsk));
    }
}

//! Identities of TLS PSKs, and the PSKs that belong to them (NVMe/TCP 3.6.1.3 and 3.6.1.4).
//!
//! `NVMe0R01 HOST SUBSYSTEM` names a host, a subsystem and a hash; `NVMe1R01 HOST SUBSYSTEM DIGEST`
//! also the key, and `NVMe1G01 HOST SUBSYSTEM DIGEST` a key that secure channel concatenation has
//! generated. Two keys may therefore belong to one identity of version 0, and libnvme derived
//! both versions in another way before 2025. So an identity leads to a few candidates, and the
//! binder of the ClientHello decides between them ([`super::Hello`]).

use base64ct::{Base64, Encoding};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::hkdf::{expand_compat, expand_label, extract_unsalted};
use super::key::{PskHash, TlsKey};

/// How PSKs are derived from a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Derivation {
    /// As NVMe/TCP specifies.
    Standard,
    /// As libnvme did before 1.14, and does with `--compat`.
    Compat,
}

/// A TLS PSK with its identity. The PSK is erased when it is dropped, and `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Psk {
    /// Identity, as it is sent.
    pub identity: Vec<u8>,
    /// Secret, 16 bytes or more.
    pub secret: Zeroizing<Vec<u8>>,
    /// Hash of the handshake.
    pub hash: PskHash,
}

impl std::fmt::Debug for Psk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Psk({}, {:?})", self.identity.escape_ascii(), self.hash)
    }
}

/// Identity, in its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity<'a> {
    /// Hash of the PSK.
    pub hash: PskHash,
    /// NQN of the host.
    pub host: &'a str,
    /// NQN of the subsystem.
    pub subsystem: &'a str,
    /// Version and type.
    pub form: IdentityForm<'a>,
}

/// Version and type of an identity (NVMe/TCP 3.6.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityForm<'a> {
    /// Version 0, type R: of a configured key.
    Names,
    /// Version 1, type R: of a configured key, with the digest of its retained PSK in base64.
    Retained(&'a str),
    /// Version 1, type G: of a PSK from secure channel concatenation, with its digest.
    Generated(&'a str),
}

impl<'a> Identity<'a> {
    /// Reads an identity. `None` if it has no [`IdentityForm`].
    pub fn parse(identity: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(identity).ok()?;
        let mut fields = text.split(' ');
        let (form, hash) = fields.next()?.split_at_checked(6)?;
        let hash = match hash {
            "01" => PskHash::Sha256,
            "02" => PskHash::Sha384,
            _ => return None,
        };
        let (host, subsystem) = (fields.next()?, fields.next()?);
        let form = match form {
            "NVMe0R" => IdentityForm::Names,
            "NVMe1R" => IdentityForm::Retained(fields.next()?),
            "NVMe1G" => IdentityForm::Generated(fields.next()?),
            _ => return None,
        };
        let is_whole = !host.is_empty() && !subsystem.is_empty() && fields.next().is_none();
        is_whole.then_some(Self { hash, host, subsystem, form })
    }
}

impl std::fmt::Display for Identity<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (form, digest) = match self.form {
            IdentityForm::Names => ("NVMe0R", None),
            IdentityForm::Retained(digest) => ("NVMe1R", Some(digest)),
            IdentityForm::Generated(digest) => ("NVMe1G", Some(digest)),
        };
        write!(f, "{form}{:02} {} {}", self.hash.id(), self.host, self.subsystem)?;
        digest.map_or(Ok(()), |digest| write!(f, " {digest}"))
    }
}

/// The PSKs of `key` that may belong to `identity`: none, or one for each derivation.
pub fn derived(key: &TlsKey, identity: &Identity<'_>) -> Vec<Psk> {
    let both = [Derivation::Standard, Derivation::Compat].into_iter();
    let found = both.filter_map(|derivation| {
        let retained = retained(key, identity.host, derivation);
        match identity.form {
            IdentityForm::Names => {}
            IdentityForm::Retained(digest) => {
                let own = digest_of(&retained, identity.hash, identity.host, identity.subsystem);
                if !bool::from(own.as_bytes().ct_eq(digest.as_bytes())) {
                    return None;
                }
            }
            // No configured key gives a generated PSK.
            IdentityForm::Generated(_) => return None,
        }
        psk(&retained, identity, derivation)
    });
    found.collect()
}

/// The PSKs that a host offers with `key`, the preferred one first: version 1, then version 0, the
/// only version of SPDK.
pub fn offered(key: &TlsKey, host: &str, subsystem: &str) -> Vec<Psk> {
    let hash = key.psk_hash();
    let retained = retained(key, host, Derivation::Standard);
    let digest = digest_of(&retained, hash, host, subsystem);
    let both = [IdentityForm::Retained(&digest), IdentityForm::Names].into_iter();
    let offered = both.filter_map(|form| {
        psk(&retained, &Identity { hash, host, subsystem, form }, Derivation::Standard)
    });
    offered.collect()
}

/// The identities by which a target knows `key`: version 1, version 0, and version 1 as libnvme
/// derived it before 1.14, if that differs.
pub fn identities(key: &TlsKey, host: &str, subsystem: &str) -> Vec<String> {
    let hash = key.psk_hash();
    let named = |form: IdentityForm<'_>| Identity { hash, host, subsystem, form }.to_string();
    let of_version_1 = |derivation| {
        let digest = digest_of(&retained(key, host, derivation), hash, host, subsystem);
        named(IdentityForm::Retained(&digest))
    };
    let [standard, compat] = [Derivation::Standard, Derivation::Compat].map(of_version_1);
    let compat = (compat != standard).then_some(compat);
    [standard, named(IdentityForm::Names)].into_iter().chain(compat).collect()
}

/// The PSK for a generated one, before its derivation. `None` if the names are too long for that.
pub(crate) fn of_generated(
    generated: &[u8],
    hash: PskHash,
    host: &str,
    subsystem: &str,
) -> Option<Psk> {
    let digest = digest_of(generated, hash, host, subsystem);
    let identity = Identity { hash, host, subsystem, form: IdentityForm::Generated(&digest) };
    psk(generated, &identity, Derivation::Standard)
}

/// Retained PSK.
fn retained(key: &TlsKey, host: &str, derivation: Derivation) -> Zeroizing<Vec<u8>> {
    let Some(hash) = key.transformation().map(PskHash::hash) else {
        return Zeroizing::new(key.bytes().to_vec());
    };
    let extracted = extract_unsalted(hash, key.bytes());
    let length = key.length() as u16;
    let standard = match derivation {
        Derivation::Standard => expand_label(hash, &extracted, "HostNQN", host.as_bytes(), length),
        Derivation::Compat => None,
    };
    standard.unwrap_or_else(|| expand_compat(hash, &extracted, "HostNQN", host.as_bytes(), length))
}

/// Digest of a retained or generated PSK in identities of version 1.
fn digest_of(retained: &[u8], hash: PskHash, host: &str, subsystem: &str) -> String {
    let parts = [host, " ", subsystem, " ", "NVMe-over-Fabrics"].map(str::as_bytes);
    Base64::encode_string(&hash.hash().hmac(retained, &parts))
}

/// TLS PSK of a retained or generated one. `None` if the names are too long for its derivation.
fn psk(retained: &[u8], identity: &Identity<'_>, derivation: Derivation) -> Option<Psk> {
    const LABEL: &str = "nvme-tls-psk";
    let hash = identity.hash.hash();
    let text = identity.to_string();
    let context = match identity.form {
        IdentityForm::Names => text.clone(),
        IdentityForm::Retained(digest) | IdentityForm::Generated(digest) => {
            format!("{:02} {digest}", identity.hash.id())
        }
    };
    let extracted = extract_unsalted(hash, retained);
    let length = hash.digest_bytes() as u16;
    let secret = match derivation {
        Derivation::Standard => expand_label(hash, &extracted, LABEL, context.as_bytes(), length)?,
        Derivation::Compat => expand_compat(hash, &extracted, LABEL, context.as_bytes(), length),
    };
    Some(Psk { identity: text.into_bytes(), secret, hash: identity.hash })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOST: &str = "nqn.psk-test-host";
    const SUBSYSTEM: &str = "nqn.psk-test-subsys";
    const SHA256: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const SHA384: &str =
        "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";

    /// Key, standard identity and compat identity, from libnvme's tests (test/psk.c).
    const LIBNVME: [(&str, &str, &str); 2] = [
        (
            SHA256,
            "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=",
            "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys 66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM=",
        ),
        (
            SHA384,
            "NVMe1R02 nqn.psk-test-host nqn.psk-test-subsys QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a",
            "NVMe1R02 nqn.psk-test-host nqn.psk-test-subsys RsKmYJ3nAn1ApjjMloJFbAkLPivONDAX/xW327YBUsn2eGShXSjCZvBaOxscLqmz",
        ),
    ];

    #[test]
    fn identities_match_libnvme() {
        for (text, standard, compat) in LIBNVME {
            let key = TlsKey::parse(text).unwrap();
            let offers = offered(&key, HOST, SUBSYSTEM);
            assert_eq!(String::from_utf8_lossy(&offers[0].identity), standard);
            let version_0 = format!("NVMe0R{:02} {HOST} {SUBSYSTEM}", key.psk_hash().id());
            assert_eq!(String::from_utf8_lossy(&offers[1].identity), version_0);
            assert_eq!(identities(&key, HOST, SUBSYSTEM), [standard, &version_0, compat]);
            for (identity, is_standard) in [(standard, true), (compat, false)] {
                let parsed = Identity::parse(identity.as_bytes()).unwrap();
                assert_eq!(parsed.to_string(), identity);
                let found = derived(&key, &parsed);
                assert_eq!(found.len(), 1, "{identity}");
                assert_eq!(found[0] == offers[0], is_standard);
            }
        }
    }

    #[test]
    fn version_0_has_a_candidate_for_each_derivation() {
        let key = TlsKey::parse(SHA256).unwrap();
        let offer = &offered(&key, HOST, SUBSYSTEM)[1];
        let found = derived(&key, &Identity::parse(&offer.identity).unwrap());
        assert_eq!(found.len(), 2);
        assert_eq!((&found[0], found[0] == found[1]), (offer, false));
        assert_eq!(format!("{offer:?}"), format!("Psk(NVMe0R01 {HOST} {SUBSYSTEM}, Sha256)"));
    }

    #[test]
    fn identity_of_another_key_or_host_has_no_candidate() {
        let key = TlsKey::new(&[7; 32], Some(PskHash::Sha256)).unwrap();
        for (_, standard, _) in LIBNVME {
            assert!(derived(&key, &Identity::parse(standard.as_bytes()).unwrap()).is_empty());
        }
        let mine = TlsKey::parse(SHA256).unwrap();
        let moved = LIBNVME[0].1.replace("test-host", "other-host");
        assert!(derived(&mine, &Identity::parse(moved.as_bytes()).unwrap()).is_empty());
        let generated = LIBNVME[0].1.replace("NVMe1R", "NVMe1G");
        assert!(derived(&mine, &Identity::parse(generated.as_bytes()).unwrap()).is_empty());
    }

    #[test]
    fn malformed_identities_are_refused() {
        for text in [
            "",
            "NVMe0R01",
            "NVMe0R01 a",
            "NVMe0R03 a b",
            "NVMe0R1 a b",
            "NVMe2R01 a b c",
            "NVMe0R01  b",
            "NVMe0R01 a ",
            "NVMe0R01 a b c",
            "NVMe1R01 a b",
            "NVMe1R01 a b c d",
            "NVMe0G01 a b",
            "NVMe1G01 a b",
            "NVMe1X01 a b c",
            "NVMe\u{e9}01 a b",
        ] {
            assert_eq!(Identity::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Identity::parse(b"NVMe0R01 a \xff"), None);
    }

    #[test]
    fn names_too_long_for_version_0_are_offered_as_version_1() {
        let (host, subsystem) = ("h".repeat(223), "s".repeat(223));
        let key = TlsKey::parse(SHA384).unwrap();
        let offers = offered(&key, &host, &subsystem);
        assert_eq!(offers.len(), 1);
        assert_eq!(derived(&key, &Identity::parse(&offers[0].identity).unwrap()), offers);
    }

    proptest! {
        #[test]
        fn offers_are_found_again(bytes in prop::collection::vec(any::<u8>(), 48), hash in 0..3u8,
                                  host in "nqn\\.[a-z]{1,100}", subsystem in "nqn\\.[a-z]{1,100}") {
            let hash = PskHash::from_id(hash);
            let key = TlsKey::new(&bytes[..hash.map_or(48, PskHash::bytes)], hash).unwrap();
            for offer in offered(&key, &host, &subsystem) {
                let found = derived(&key, &Identity::parse(&offer.identity).unwrap());
                prop_assert!(found.contains(&offer));
            }
        }

        #[test]
        fn arbitrary_identities_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let key = TlsKey::parse(SHA256).unwrap();
            Identity::parse(&bytes).map(|identity| derived(&key, &identity));
        }
    }
}

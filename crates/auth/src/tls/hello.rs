//! ClientHello with pre-shared keys (RFC 8446, sections 4.1.2 and 4.2.11): the identities that a
//! client offers, and the proof that it knows the PSK of one, the binder.
//!
//! A server looks at both before its TLS library does, for two reasons: several PSKs may belong to
//! one identity, and a refusal should say whether the identity is unknown or the key is wrong.

use subtle::ConstantTimeEq;

use super::hkdf::{expand_label, extract_unsalted};
use super::identity::Psk;

/// Most identities of one ClientHello that are looked at.
pub const IDENTITIES: usize = 8;

/// Largest ClientHello, in bytes with its header; the largest known ones have 2 KiB.
const HELLO_BYTES: usize = 16 << 10;

const CLIENT_HELLO: u8 = 1;
const PRE_SHARED_KEY: u16 = 41;

/// Why a message is no ClientHello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ClientHello is malformed")]
pub struct HelloError;

/// ClientHello that has been checked as far as its pre-shared keys go.
#[derive(Debug)]
pub struct Hello<'a> {
    /// Offered identities, in the order of the client's preference; at most [`IDENTITIES`].
    pub identities: Vec<&'a [u8]>,
    binders: Vec<&'a [u8]>,
    /// The message up to its binders.
    covered: &'a [u8],
}

impl<'a> Hello<'a> {
    /// Reads a handshake message, including its header of 4 bytes. Without pre-shared keys there
    /// are no identities.
    ///
    /// # Errors
    /// It is malformed where this function looks.
    pub fn parse(message: &'a [u8]) -> Result<Self, HelloError> {
        let mut all = Reader(message);
        if message.len() > HELLO_BYTES || all.u8()? != CLIENT_HELLO {
            return Err(HelloError);
        }
        let length = usize::from(all.u8()?) << 16 | usize::from(all.u16()?);
        let mut body = Reader(all.take(length)?);
        if !all.is_empty() {
            return Err(HelloError);
        }
        // Version and random.
        body.take(2 + 32)?;
        let session = body.u8()?;
        body.take(session.into())?;
        let suites = body.u16()?;
        body.take(suites.into())?;
        let compressions = body.u8()?;
        body.take(compressions.into())?;
        let none = Hello { identities: Vec::new(), binders: Vec::new(), covered: message };
        if body.is_empty() {
            return Ok(none);
        }
        let length = body.u16()?;
        let mut extensions = Reader(body.take(length.into())?);
        if !body.is_empty() {
            return Err(HelloError);
        }
        while !extensions.is_empty() {
            let kind = extensions.u16()?;
            let length = extensions.u16()?;
            let mut content = Reader(extensions.take(length.into())?);
            if kind != PRE_SHARED_KEY {
                continue;
            }
            // It has to be the last one, because the binders cover everything before them.
            if !extensions.is_empty() {
                return Err(HelloError);
            }
            let length = content.u16()?;
            let identities = identities(content.take(length.into())?)?;
            let covered = &message[..message.len() - content.0.len()];
            let length = content.u16()?;
            let binders = binders(content.take(length.into())?)?;
            if !content.is_empty() || binders.len() != identities.len() {
                return Err(HelloError);
            }
            return Ok(Hello { identities, binders, covered });
        }
        Ok(none)
    }

    /// True if the binder of the identity at `index` proves that the client knows `psk`.
    pub fn proves(&self, index: usize, psk: &Psk) -> bool {
        let (Some(binder), Some(identity)) = (self.binders.get(index), self.identities.get(index))
        else {
            return false;
        };
        let hash = psk.hash.hash();
        let length = hash.digest_bytes() as u16;
        let early = extract_unsalted(hash, &psk.secret);
        let expand = |key: &[u8], label, context: &[u8]| {
            expand_label(hash, key, label, context, length).unwrap_or_default()
        };
        let binder_key = expand(&early, "ext binder", &hash.digest(b""));
        let finished = expand(&binder_key, "finished", b"");
        let own = hash.hmac(&finished, &[&hash.digest(self.covered)]);
        *identity == psk.identity && bool::from(own.ct_eq(binder))
    }
}

/// Identities, each with an age that external PSKs do not use.
fn identities(list: &[u8]) -> Result<Vec<&[u8]>, HelloError> {
    let mut list = Reader(list);
    let mut found = Vec::new();
    while !list.is_empty() {
        let length = list.u16()?;
        found.push(list.take(length.into())?);
        list.take(4)?;
        if found.len() > IDENTITIES {
            return Err(HelloError);
        }
    }
    Ok(found)
}

fn binders(list: &[u8]) -> Result<Vec<&[u8]>, HelloError> {
    let mut list = Reader(list);
    let mut found = Vec::new();
    while !list.is_empty() && found.len() <= IDENTITIES {
        let length = list.u8()?;
        found.push(list.take(length.into())?);
    }
    Ok(found)
}

/// Rest of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], HelloError> {
        let (first, rest) = self.0.split_at_checked(bytes).ok_or(HelloError)?;
        self.0 = rest;
        Ok(first)
    }

    fn u8(&mut self) -> Result<u8, HelloError> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u16(&mut self) -> Result<u16, HelloError> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::PskHash;
    use proptest::prelude::*;
    use zeroize::Zeroizing;

    fn prefixed(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u16).to_be_bytes(), bytes].concat()
    }

    /// ClientHello that offers `identities`, with these bytes as binders.
    fn hello(identities: &[&[u8]], binders: &[&[u8]]) -> Vec<u8> {
        let offered: Vec<u8> =
            identities.iter().flat_map(|one| [prefixed(one), vec![0; 4]].concat()).collect();
        let proofs: Vec<u8> =
            binders.iter().flat_map(|one| [&[one.len() as u8][..], one].concat()).collect();
        let psk = [prefixed(&offered), prefixed(&proofs)].concat();
        let extensions = [
            &43_u16.to_be_bytes()[..],
            &prefixed(&[2, 3, 4]),
            &41_u16.to_be_bytes(),
            &prefixed(&psk),
        ]
        .concat();
        let body = [
            &[3, 3][..],
            &[9; 32],
            &[0],
            &prefixed(&[0x13, 0x01]),
            &[1, 0],
            &prefixed(&extensions),
        ]
        .concat();
        [&[1, 0][..], &prefixed(&body)].concat()
    }

    fn psk(identity: &[u8], byte: u8) -> Psk {
        let secret = Zeroizing::new(vec![byte; 32]);
        Psk { identity: identity.to_vec(), secret, hash: PskHash::Sha256 }
    }

    #[test]
    fn identities_are_found_in_order() {
        let message = hello(&[b"one", b"two"], &[&[1; 32], &[2; 48]]);
        let parsed = Hello::parse(&message).unwrap();
        assert_eq!(parsed.identities, [b"one", b"two"]);
        assert_eq!(parsed.covered.len(), message.len() - (2 + 1 + 32 + 1 + 48));
        // The binders are noise.
        assert!(!parsed.proves(0, &psk(b"one", 1)) && !parsed.proves(2, &psk(b"one", 1)));
    }

    #[test]
    fn hello_with_a_damaged_structure_is_refused() {
        let message = hello(&[b"one"], &[&[1; 32]]);
        for cut in 0..message.len() {
            assert!(Hello::parse(&message[..cut]).is_err(), "{cut}");
        }
        let many: Vec<&[u8]> = vec![b"x"; IDENTITIES + 1];
        let zeroes: Vec<&[u8]> = vec![&[0; 32]; IDENTITIES + 1];
        assert!(Hello::parse(&hello(&many, &zeroes)).is_err());
        assert!(Hello::parse(&hello(&many[1..], &zeroes[1..])).is_ok());
        assert!(Hello::parse(&hello(&[b"one"], &[])).is_err());
        assert!(Hello::parse(&[message, vec![0]].concat()).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_hellos_never_panic(at: prop::sample::Index, byte: u8) {
            let mut message = hello(&[b"one", b"two"], &[&[1; 32], &[2; 32]]);
            let at = at.index(message.len());
            message[at] = byte;
            if let Ok(parsed) = Hello::parse(&message) {
                for index in 0..3 {
                    parsed.proves(index, &psk(b"one", 1));
                }
            }
        }
    }
}

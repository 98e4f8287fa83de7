//! Pre-shared keys of a TLS server: the known keys of each identity that a ClientHello offers, and
//! the binder that proves one of them.

use std::sync::Arc;

use flagstone_auth::tls::{Hello, Psk, PskHash};
use flagstone_runtime::tls::{PskChoice, PskRefusal, PskServer, TlsFailure, TlsPsk, TlsPskHash};

use crate::failure_delays::FailureKind;

/// Pre-shared keys by identity.
pub trait PskKeys: Send + Sync {
    /// The keys that may belong to an identity, as received; none if it is unknown. Called off the
    /// cores.
    fn candidates(&self, identity: &[u8]) -> Vec<Psk>;
}

/// Server that takes the first key that a client proves.
#[derive(Debug)]
pub struct PskChooser<K>(pub Arc<K>);

impl<K: PskKeys> PskServer for PskChooser<K> {
    fn choose(&self, hello: &[u8]) -> PskChoice {
        let with_nothing = |psk: Psk| (psk, ());
        let keys =
            |identity: &[u8]| self.0.candidates(identity).into_iter().map(with_nothing).collect();
        psk_choice(proven_psk(hello, keys).map(|(psk, ())| psk))
    }
}

/// The first key that the client of `hello` proves, among the `candidates` of its identities. `T`
/// says where a key comes from.
///
/// # Errors
/// No key is proven.
pub fn proven_psk<T>(
    hello: &[u8],
    candidates: impl Fn(&[u8]) -> Vec<(Psk, T)>,
) -> Result<(Psk, T), PskRefusal> {
    let hello = Hello::parse(hello).map_err(|_| PskRefusal::Malformed)?;
    let first = hello.identities.first().ok_or(PskRefusal::NoneOffered)?;
    let mut known = None;
    for (index, identity) in hello.identities.iter().enumerate() {
        let candidates = candidates(identity);
        if !candidates.is_empty() {
            known = Some(identity.to_vec());
        }
        if let Some(proven) = candidates.into_iter().find(|(psk, _)| hello.proves(index, psk)) {
            return Ok(proven);
        }
    }
    Err(match known {
        Some(identity) => PskRefusal::WrongKey(identity),
        None => PskRefusal::UnknownIdentity(first.to_vec()),
    })
}

/// The choice of a server: a client without a key may go on with a certificate.
pub fn psk_choice(proven: Result<Psk, PskRefusal>) -> PskChoice {
    match proven {
        Ok(psk) => PskChoice::Use(tls_psk(psk)),
        Err(PskRefusal::NoneOffered) => PskChoice::NoneOffered,
        Err(refusal) => PskChoice::Refuse(refusal),
    }
}

/// How the failure of a handshake counts: `None` if it ended at the ClientHello, before this side
/// computed. Names are no secret, and a node whose peer does not have its key yet tries it at each
/// connection.
pub fn failure_kind(failure: &TlsFailure) -> Option<FailureKind> {
    match failure {
        TlsFailure::Psk(PskRefusal::WrongKey(_)) => Some(FailureKind::Guess),
        TlsFailure::Psk(_) => None,
        _ => Some(FailureKind::Unfinished),
    }
}

/// The same key, for handshakes.
pub fn tls_psk(psk: Psk) -> TlsPsk {
    let hash = match psk.hash {
        PskHash::Sha256 => TlsPskHash::Sha256,
        PskHash::Sha384 => TlsPskHash::Sha384,
    };
    TlsPsk { identity: psk.identity, secret: psk.secret, hash }
}

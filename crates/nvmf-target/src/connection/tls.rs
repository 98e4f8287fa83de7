//! Start of a connection: TLS or not, as its listener says, and what a host has proven with it.
//!
//! The first byte decides: a TLS record with a ClientHello begins with 16h, an ICReq with 00h.

use std::sync::Arc;

use flagstone_auth::KeyUse;
use flagstone_nvme::Status;
use flagstone_nvme::command::fabrics::{ConnectData, ConnectField};
use flagstone_runtime::net::{Socket, Stream};
use flagstone_runtime::time;
use flagstone_runtime::tls::{CLIENT_HELLO_FIRST_BYTE, PeerIdentity, TlsFailure};
use flagstone_transport::{FailureKind, Rx, failure_kind, source_of_peer};

use super::Connection;
use crate::concatenation::{ConcatenationRule, ConcatenationScope};
use crate::connect::ConnectRefusal;
use crate::handshakes::FailureReason;
use crate::tls::{ChannelProof, HandshakeKeys, KeyOrigin, ProvenNames, TlsFailureReason, TlsMode};
use crate::{Controller, Target};

/// Host authenticated by TLS.
pub(super) struct TlsHost {
    names: ProvenNames,
    key: ChannelKey,
}

/// Key of a host's TLS channel.
enum ChannelKey {
    /// A configured TLS key.
    Configured(KeyUse),
    /// The PSK with this identity, which concatenation has generated.
    Generated(Vec<u8>),
}

/// Socket of a connection, the names that its host has proven, and its receiver. `None` if the
/// connection is refused, which is logged.
pub(super) async fn secure(
    target: &Arc<Target>,
    stream: &Stream,
    mode: TlsMode,
) -> Option<(Socket, Option<TlsHost>, Rx)> {
    let mut rx = Rx::new(stream.clone());
    if mode == TlsMode::Off {
        return Some((stream.clone().into(), None, rx));
    }
    let timeout = target.config().handshake_timeout;
    let first = time::timeout(timeout, rx.more()).await;
    let failed = match first {
        Ok(Ok(())) if rx.front().first() == Some(&CLIENT_HELLO_FIRST_BYTE) => {
            let received = rx.unread(&mut Vec::new()).to_vec();
            match handshake(target, stream, mode, &received).await {
                Ok((socket, host)) => {
                    if let Some(tls) = socket.tls() {
                        target.tls.succeeded(tls.record_layer());
                    }
                    target.handshakes.delays().lock().succeeded(source_of_peer(&stream.peer()));
                    let rx = Rx::new(socket.clone());
                    return Some((socket, Some(host), rx));
                }
                Err(failed) => failed,
            }
        }
        Ok(Ok(())) if mode == TlsMode::Allowed => return Some((stream.clone().into(), None, rx)),
        Ok(Ok(())) => Failed::of(TlsFailureReason::Plain),
        // A host that connects and sends nothing is no news.
        Ok(Err(_)) => return None,
        Err(_) => Failed::of(TlsFailureReason::Timeout),
    };
    target.tls.failed(failed.reason);
    let text = failed.text.unwrap_or_else(|| failed.reason.to_string());
    target.tls_refusals.refused(&stream.peer(), &failed.name, &text);
    None
}

struct Failed {
    reason: TlsFailureReason,
    /// More for the log than the reason.
    text: Option<String>,
    /// Identity, as received.
    name: Vec<u8>,
    /// How it counts for the delay of its source.
    kind: Option<FailureKind>,
}

impl Failed {
    fn of(reason: TlsFailureReason) -> Failed {
        let kind = Some(FailureKind::Unfinished);
        Failed { reason, text: None, name: Vec::new(), kind }
    }

    /// Says more of a key that concatenation has made, or may have.
    fn explained(mut self, target: &Target, mode: TlsMode) -> Failed {
        let known = target.tls.generated.find(&self.name, time::now()).is_some();
        let names = ProvenNames::of(&self.name);
        let authenticates =
            names.is_some_and(|names| target.has_key(&names.subsystem, &names.host));
        if let Some(more) = hint(self.reason, known, authenticates, mode) {
            let reason = self.reason;
            self.text = Some(format!("{reason}; {more}"));
        }
        self
    }
}

/// Explanation of `reason` for a host that may `authenticate`, and so concatenate. `known` is true
/// if this side has a generated PSK with the identity. The identity contains a digest of the
/// generated PSK, from which TLS derives its key. So a known identity means that both sides
/// generated the same PSK.
fn hint(
    reason: TlsFailureReason,
    known: bool,
    authenticates: bool,
    mode: TlsMode,
) -> Option<&'static str> {
    match reason {
        TlsFailureReason::WrongKey if known => Some(
            "secure concatenation made it: Linux before 6.18 derives another one, and ktls-utils 1.0 cannot use SHA-384 (give the host a key made with --hmac sha256)",
        ),
        TlsFailureReason::UnknownIdentity if known => {
            Some("secure concatenation made it, and this listener requires a configured key")
        }
        TlsFailureReason::UnknownIdentity if authenticates && mode == TlsMode::Required => {
            Some("this listener requires a configured key; secure concatenation needs ?tls=allowed")
        }
        TlsFailureReason::UnknownIdentity if authenticates => {
            Some("if secure concatenation made it, it has ended")
        }
        _ => None,
    }
}

impl From<TlsFailure> for Failed {
    fn from(failure: TlsFailure) -> Failed {
        let reason = TlsFailureReason::of(&failure);
        let name = match &failure {
            TlsFailure::Psk(refusal) => refusal.identity().to_vec(),
            _ => Vec::new(),
        };
        Failed { reason, text: Some(failure.to_string()), name, kind: failure_kind(&failure) }
    }
}

async fn handshake(
    target: &Arc<Target>,
    stream: &Stream,
    mode: TlsMode,
    received: &[u8],
) -> Result<(Socket, TlsHost), Failed> {
    let failed = Failed::of;
    let timeout = target.config().handshake_timeout;
    let admitted = target.tls.admission.admit(source_of_peer(&stream.peer()), timeout / 2).await;
    let admitted = admitted.ok_or_else(|| failed(TlsFailureReason::Busy))?;
    let accepting = async {
        let keys = Arc::new(HandshakeKeys::new(target.tls.clone(), mode, time::now()));
        let server = target.tls_server(keys.clone()).map_err(|error| Failed {
            text: Some(error.to_string()),
            ..failed(TlsFailureReason::Protocol)
        })?;
        let accepted = server.accept(stream.clone(), received).await;
        let accepted = accepted.map_err(|failure| Failed::from(failure).explained(target, mode))?;
        let host = match accepted.peer_identity() {
            PeerIdentity::Psk(identity) => ProvenNames::of(identity).zip(keys.used()),
            PeerIdentity::Certificate(_) | PeerIdentity::Anonymous => None,
        };
        let (names, used) = host.ok_or_else(|| failed(TlsFailureReason::UnknownIdentity))?;
        let key = match (used, accepted.peer_identity()) {
            (KeyOrigin::Configured(used), _) => ChannelKey::Configured(used),
            (KeyOrigin::Generated, PeerIdentity::Psk(identity)) => {
                ChannelKey::Generated(identity.clone())
            }
            (KeyOrigin::Generated, _) => return Err(failed(TlsFailureReason::UnknownIdentity)),
        };
        Ok((accepted.into(), TlsHost { names, key }))
    };
    let accepted = admitted.run(timeout, accepting, |failed: &Failed| failed.kind).await;
    accepted.unwrap_or_else(|| Err(failed(TlsFailureReason::Timeout)))
}

impl Connection {
    /// Returns true if the first bytes of a connection without TLS begin a ClientHello.
    pub(super) fn is_hello(&self, offending: &[u8]) -> bool {
        let is_first = self.session.borrow().is_none() && self.tls_host.is_none();
        is_first && offending.first() == Some(&CLIENT_HELLO_FIRST_BYTE)
    }

    /// Records that the host begins TLS where its listener has none.
    pub(super) fn refuse_hello(&self) {
        let reason = TlsFailureReason::Off;
        self.target.tls.failed(reason);
        self.target.tls_refusals.refused(&self.stream.peer(), &[], &reason);
    }

    /// Proof of the host's identity by the channel.
    pub(super) fn channel(&self) -> ChannelProof<'_> {
        match self.tls_host.as_ref().map(|host| &host.key) {
            None => ChannelProof::Plain,
            Some(ChannelKey::Configured(key)) => ChannelProof::ConfiguredKey(key),
            Some(ChannelKey::Generated(identity)) => ChannelProof::GeneratedPsk(identity),
        }
    }

    /// Concatenation that the host may ask for on queue `qid`: a new PSK, or another one instead of
    /// the generated PSK of this connection.
    pub(super) fn concatenation(&self, controller: &Controller, qid: u16) -> ConcatenationRule {
        let (subsystem, host) = (&controller.subsystem.nqn, &controller.host.nqn);
        ConcatenationRule::of(ConcatenationScope {
            qid,
            channel: self.channel(),
            tls_mode: self.tls_mode,
            has_tls_key: self.target.tls.has_key(subsystem, host),
            has_io_queues: controller.has_io_queues(),
        })
    }

    /// Refuses a Connect that names another host or subsystem than the host has proven, and one
    /// without TLS where it is required.
    pub(super) fn check_names(&self, data: &ConnectData) -> Result<(), ConnectRefusal> {
        let (subsystem, host) = data.check()?;
        let authenticates = host.is_some_and(|host| self.target.has_key(&subsystem, &host));
        let (reason, field) = match self.tls_host.as_ref().map(|host| host.names) {
            Some(proven) if proven.subsystem != subsystem => {
                (FailureReason::OtherIdentity, ConnectField::SubNqn)
            }
            Some(proven) if Some(proven.host) != host => {
                (FailureReason::OtherIdentity, ConnectField::HostNqn)
            }
            None if self.target.tls.requires(&subsystem, host.as_ref(), authenticates) => {
                (FailureReason::NoTls, ConnectField::HostNqn)
            }
            Some(_) | None => return Ok(()),
        };
        self.target.handshakes.failed(self.source(), reason);
        Err(ConnectRefusal {
            status: Status::CONNECT_INVALID_HOST.dnr(),
            result: field.result(),
            reason: Some(reason),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshake_error_names_generated_psk_state() {
        let (wrong, unknown) = (TlsFailureReason::WrongKey, TlsFailureReason::UnknownIdentity);
        let hint = |reason, known, authenticates| {
            super::hint(reason, known, authenticates, TlsMode::Allowed)
        };
        assert!(hint(wrong, true, true).is_some_and(|text| text.contains("Linux before 6.18")));
        assert!(hint(unknown, true, true).is_some_and(|text| text.contains("requires")));
        assert!(hint(unknown, false, true).is_some_and(|text| text.contains("has ended")));
        let required = super::hint(unknown, false, true, TlsMode::Required);
        assert!(required.is_some_and(|text| text.contains("needs ?tls=allowed")));
        // A host with a configured key alone.
        assert_eq!((hint(wrong, false, true), hint(unknown, false, false)), (None, None));
        assert_eq!(hint(TlsFailureReason::Closed, true, true), None);
    }
}

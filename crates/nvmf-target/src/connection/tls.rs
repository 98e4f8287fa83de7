//! Start of a connection: TLS or not, as its listener says, and what a host has proven with it.
//!
//! The first byte decides: a TLS record with a ClientHello begins with 16h, an ICReq with 00h.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use flagstone_nvme::Status;
use flagstone_nvme::command::fabrics::{ConnectData, ConnectField};
use flagstone_runtime::net::{Socket, Stream};
use flagstone_runtime::time;
use flagstone_runtime::tls::{CLIENT_HELLO_FIRST_BYTE, PeerIdentity, TlsFailure};
use flagstone_transport::Rx;

use super::Connection;
use crate::Target;
use crate::connect::ConnectRefusal;
use crate::handshakes::FailureReason;
use crate::tls::{ProvenNames, TlsFailureReason, TlsMode};

/// Socket of a connection, the names that its host has proven, and its receiver. `None` if the
/// connection is refused, which is logged.
pub(super) async fn secure(
    target: &Arc<Target>,
    stream: &Stream,
    mode: TlsMode,
) -> Option<(Socket, Option<ProvenNames>, Rx)> {
    let mut rx = Rx::new(stream.clone());
    if mode == TlsMode::Off {
        return Some((stream.clone().into(), None, rx));
    }
    let patience = target.config().handshake_timeout;
    let first = time::timeout(patience, rx.more()).await;
    let failed = match first {
        Ok(Ok(())) if rx.front().first() == Some(&CLIENT_HELLO_FIRST_BYTE) => {
            let received = rx.unread(&mut Vec::new()).to_vec();
            match handshake(target, stream, &received).await {
                Ok((socket, names)) => {
                    target.tls.succeeded();
                    let rx = Rx::new(socket.clone());
                    return Some((socket, Some(names), rx));
                }
                Err(failed) => failed,
            }
        }
        Ok(Ok(())) if mode == TlsMode::Allowed => return Some((stream.clone().into(), None, rx)),
        Ok(Ok(())) => Failed { reason: TlsFailureReason::Plain, text: None, name: Vec::new() },
        // A host that connects and sends nothing is no news.
        Ok(Err(_)) => return None,
        Err(_) => Failed { reason: TlsFailureReason::Timeout, text: None, name: Vec::new() },
    };
    target.tls.failed(failed.reason);
    let is_guess = failed.is_guess();
    let text = failed.text.unwrap_or_else(|| failed.reason.to_string());
    target.tls_refusals.refused(&stream.peer(), &failed.name, &text);
    if is_guess {
        let source = source_of(stream);
        target.handshakes.delay_source(source);
    }
    None
}

struct Failed {
    reason: TlsFailureReason,
    /// More for the log than the reason.
    text: Option<String>,
    /// Identity, as received.
    name: Vec<u8>,
}

impl Failed {
    fn is_guess(&self) -> bool {
        matches!(self.reason, TlsFailureReason::UnknownIdentity | TlsFailureReason::WrongKey)
    }
}

impl From<TlsFailure> for Failed {
    fn from(failure: TlsFailure) -> Failed {
        let reason = TlsFailureReason::of(&failure);
        let name = match &failure {
            TlsFailure::Psk(refusal) => refusal.identity().to_vec(),
            _ => Vec::new(),
        };
        Failed { reason, text: Some(failure.to_string()), name }
    }
}

async fn handshake(
    target: &Arc<Target>,
    stream: &Stream,
    received: &[u8],
) -> Result<(Socket, ProvenNames), Failed> {
    let source = source_of(stream);
    let failed = |reason| Failed { reason, text: None, name: Vec::new() };
    let _place =
        target.tls.in_flight.begin(source).ok_or_else(|| failed(TlsFailureReason::Busy))?;
    let patience = target.config().handshake_timeout;
    let delay = target.handshakes.delay(source).min(patience / 2);
    if !delay.is_zero() {
        time::sleep(delay).await;
    }
    let server = target.tls_server().map_err(|error| Failed {
        text: Some(error.to_string()),
        ..failed(TlsFailureReason::Protocol)
    })?;
    let accepted = time::timeout(patience, server.accept(stream.clone(), received)).await;
    let accepted = accepted.map_err(|_| failed(TlsFailureReason::Timeout))??;
    let names = match accepted.peer_identity() {
        PeerIdentity::Psk(identity) => ProvenNames::of(identity),
        PeerIdentity::Certificate(_) | PeerIdentity::Anonymous => None,
    };
    let names = names.ok_or_else(|| failed(TlsFailureReason::UnknownIdentity))?;
    Ok((accepted.into(), names))
}

fn source_of(stream: &Stream) -> Option<IpAddr> {
    stream.peer().parse::<SocketAddr>().ok().map(|address| address.ip())
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

    /// Refuses a Connect that names another host or subsystem than the host has proven, and one
    /// without TLS where it is required.
    pub(super) fn check_names(&self, data: &ConnectData) -> Result<(), ConnectRefusal> {
        let (subsystem, host) = data.check()?;
        let authenticates = host.is_some_and(|host| self.target.has_key(&subsystem, &host));
        let (reason, field) = match &self.tls_host {
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

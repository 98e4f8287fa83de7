//! STARTTLS of the server ("NBD_OPT_STARTTLS").
//!
//! Nothing that a client negotiated in plain text is kept, and a client that sends anything between
//! the option and its answer is disconnected: an attacker on the way may have put it there.

use std::sync::Arc;
use std::time::Duration;

use flagstone_runtime::net::Socket;
use flagstone_runtime::tls::{PeerIdentity, TlsServer};
use flagstone_transport::{
    HandshakeAdmission, InFlight, Rx, SharedDelays, failure_kind, source_of_peer,
};
use parking_lot::RwLock;

use super::DisconnectReason;
use crate::handshake::{HandshakeError, Security};
use crate::limits::{TLS_HANDSHAKES, TLS_HANDSHAKES_PER_SOURCE};

/// TLS of a listener. Clones share the keys, which may be replaced for later connections.
#[derive(Clone, Debug)]
pub struct NbdTls {
    required: bool,
    server: Arc<RwLock<TlsServer>>,
    admission: Arc<HandshakeAdmission>,
}

impl NbdTls {
    /// TLS with the keys of `server`, for clients that begin it.
    pub fn new(server: TlsServer) -> NbdTls {
        let in_flight = InFlight::new(TLS_HANDSHAKES, TLS_HANDSHAKES_PER_SOURCE);
        let admission = HandshakeAdmission::new(in_flight, SharedDelays::default());
        NbdTls {
            required: false,
            server: Arc::new(RwLock::new(server)),
            admission: Arc::new(admission),
        }
    }

    /// The same TLS for all clients: nothing is negotiated without.
    #[must_use]
    pub fn required(self) -> NbdTls {
        NbdTls { required: true, ..self }
    }

    /// Replaces the keys for connections that are made later.
    pub fn replace(&self, server: TlsServer) {
        *self.server.write() = server;
    }
}

pub(super) fn security(tls: Option<&NbdTls>) -> Security {
    match tls {
        None => Security::Off,
        Some(tls) if tls.required => Security::Required,
        Some(_) => Security::Offered,
    }
}

/// Encrypts the connection after the answer to STARTTLS, within `timeout`, which comes after the
/// delay of a client that failed before. Returns the names that the client has proven.
pub(super) async fn begin(
    socket: &mut Socket,
    rx: &mut Rx,
    tls: Option<&NbdTls>,
    timeout: Duration,
) -> Result<Vec<String>, DisconnectReason> {
    let failed = |reason: String| DisconnectReason::Refused(HandshakeError::Tls(reason));
    let Some(tls) = tls else { return Err(failed("it is not configured".to_owned())) };
    if rx.available() > 0 {
        return Err(failed("data arrived before the answer to STARTTLS".to_owned()));
    }
    let source = source_of_peer(&socket.stream().peer());
    let admitted = tls.admission.admit(source, timeout / 2).await;
    let admitted =
        admitted.ok_or_else(|| failed("too many TLS handshakes in progress".to_owned()))?;
    let server = tls.server.read().clone();
    let accepting = server.accept(socket.stream().clone(), &[]);
    let accepted = admitted.run(timeout, accepting, failure_kind).await;
    let accepted = accepted.ok_or(DisconnectReason::TimedOut)?;
    let stream = accepted.map_err(|failure| failed(failure.to_string()))?;
    let names = match stream.peer_identity() {
        PeerIdentity::Psk(identity) => vec![String::from_utf8_lossy(identity).into_owned()],
        PeerIdentity::Certificate(names) => names.clone(),
        PeerIdentity::Anonymous => Vec::new(),
    };
    *socket = stream.into();
    *rx = Rx::new(socket.clone());
    Ok(names)
}

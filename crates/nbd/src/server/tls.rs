//! STARTTLS of the server ("NBD_OPT_STARTTLS").
//!
//! Nothing that a client negotiated in plain text is kept, and a client that sends anything between
//! the option and its answer is disconnected: an attacker on the way may have put it there.

use std::net::SocketAddr;
use std::sync::Arc;

use flagstone_runtime::net::Socket;
use flagstone_runtime::tls::{PeerIdentity, TlsServer};
use flagstone_transport::{InFlight, Rx};
use parking_lot::RwLock;

use super::DisconnectReason;
use crate::handshake::{HandshakeError, Security};
use crate::limits::{TLS_HANDSHAKES, TLS_HANDSHAKES_PER_SOURCE};

/// TLS of a listener. Clones share the keys, which may be replaced for later connections.
#[derive(Clone, Debug)]
pub struct NbdTls {
    required: bool,
    server: Arc<RwLock<TlsServer>>,
    in_flight: Arc<InFlight>,
}

impl NbdTls {
    /// TLS with the keys of `server`, for clients that begin it.
    pub fn new(server: TlsServer) -> NbdTls {
        NbdTls {
            required: false,
            server: Arc::new(RwLock::new(server)),
            in_flight: InFlight::new(TLS_HANDSHAKES, TLS_HANDSHAKES_PER_SOURCE),
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

/// Encrypts the connection after the answer to STARTTLS. Returns the names that the client has
/// proven.
pub(super) async fn begin(
    socket: &mut Socket,
    rx: &mut Rx,
    tls: Option<&NbdTls>,
) -> Result<Vec<String>, DisconnectReason> {
    let failed = |reason: String| DisconnectReason::Refused(HandshakeError::Tls(reason));
    let Some(tls) = tls else { return Err(failed("it is not configured".to_owned())) };
    if rx.available() > 0 {
        return Err(failed("data arrived before the answer to STARTTLS".to_owned()));
    }
    let source = socket.stream().peer().parse::<SocketAddr>().ok().map(|address| address.ip());
    let place = tls.in_flight.begin(source);
    let _place = place.ok_or_else(|| failed("too many TLS handshakes in progress".to_owned()))?;
    let server = tls.server.read().clone();
    let accepted = server.accept(socket.stream().clone(), &[]).await;
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

//! STARTTLS of the server ("NBD_OPT_STARTTLS").
//!
//! Nothing that a client negotiated in plain text is kept, and a client that sends anything between
//! the option and its answer is disconnected: an attacker on the way may have put it there.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flagstone_runtime::net::Socket;
use flagstone_runtime::tls::{PeerIdentity, PskChoice, PskServer, TlsServer};
use flagstone_transport::{
    HandshakeAdmission, InFlight, Psk, PskKeys, Rx, SharedDelays, failure_kind, proven_psk,
    psk_choice, source_of_peer,
};
use parking_lot::{Mutex, RwLock};

use super::DisconnectReason;
use super::stop::ConnectionStop;
use crate::handshake::{HandshakeError, Security};
use crate::limits::{TLS_HANDSHAKES, TLS_HANDSHAKES_PER_SOURCE};

/// TLS of a listener. Clones share the keys, which may be replaced for later connections.
#[derive(Clone, Debug)]
pub struct NbdTls {
    required: bool,
    keys: Arc<RwLock<NbdTlsKeys>>,
    sessions: Arc<Mutex<Sessions>>,
    admission: Arc<HandshakeAdmission>,
}

/// Keys of a listener.
#[derive(Clone)]
pub struct NbdTlsKeys {
    /// Its certificate and settings.
    pub server: TlsServer,
    /// Pre-shared keys of clients. If `None`, the keys of `server`, whose connections outlive them.
    pub psks: Option<Arc<dyn PskKeys>>,
}

impl NbdTlsKeys {
    fn has(&self, psk: &Psk) -> bool {
        self.psks.as_ref().is_some_and(|psks| psks.candidates(&psk.identity).contains(psk))
    }
}

impl From<TlsServer> for NbdTlsKeys {
    fn from(server: TlsServer) -> NbdTlsKeys {
        NbdTlsKeys { server, psks: None }
    }
}

impl std::fmt::Debug for NbdTlsKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NbdTlsKeys").field("server", &self.server).finish_non_exhaustive()
    }
}

/// Connections whose clients have proven a pre-shared key.
#[derive(Debug, Default)]
struct Sessions {
    open: BTreeMap<u64, (Psk, ConnectionStop)>,
    next: u64,
}

/// Entry of a connection, removed when dropped.
struct Session {
    id: u64,
    sessions: Arc<Mutex<Sessions>>,
}

impl Drop for Session {
    fn drop(&mut self) {
        let ended = self.sessions.lock().open.remove(&self.id);
        drop(ended);
    }
}

impl NbdTls {
    /// TLS with `keys`, for clients that begin it.
    pub fn new(keys: impl Into<NbdTlsKeys>) -> NbdTls {
        let in_flight = InFlight::new(TLS_HANDSHAKES, TLS_HANDSHAKES_PER_SOURCE);
        let admission = HandshakeAdmission::new(in_flight, SharedDelays::default());
        NbdTls {
            required: false,
            keys: Arc::new(RwLock::new(keys.into())),
            sessions: Arc::default(),
            admission: Arc::new(admission),
        }
    }

    /// The same TLS for all clients: nothing is negotiated without.
    #[must_use]
    pub fn required(self) -> NbdTls {
        NbdTls { required: true, ..self }
    }

    /// Replaces the keys for connections that are made later, and closes those whose pre-shared key
    /// is not among them any more. Returns the number of closed connections. Connections with a
    /// certificate stay. Call it on a core of the runtime.
    pub fn replace(&self, keys: impl Into<NbdTlsKeys>) -> usize {
        let keys = keys.into();
        *self.keys.write() = keys.clone();
        let sessions = self.sessions.lock();
        let withdrawn = sessions.open.values().filter(|(psk, _)| !keys.has(psk));
        withdrawn
            .map(|(psk, stop)| {
                let client = String::from_utf8_lossy(&psk.identity);
                let peer = stop.stream().peer();
                tracing::warn!(%peer, ?client, "closing: its key was withdrawn");
                stop.shutdown();
            })
            .count()
    }

    /// Registers a connection, unless its key was withdrawn meanwhile.
    fn register(&self, psk: Psk, stop: ConnectionStop) -> Option<Session> {
        let mut sessions = self.sessions.lock();
        // Under the lock: keys that are replaced later find the connection here.
        if !self.keys.read().has(&psk) {
            return None;
        }
        let id = sessions.next;
        sessions.next += 1;
        sessions.open.insert(id, (psk, stop));
        Some(Session { id, sessions: self.sessions.clone() })
    }
}

/// TLS of one connection, as long as it lasts.
pub(super) struct ConnectionTls {
    listener: Option<NbdTls>,
    stop: ConnectionStop,
    session: RefCell<Option<Session>>,
}

impl ConnectionTls {
    pub(super) fn new(listener: Option<NbdTls>, stop: ConnectionStop) -> ConnectionTls {
        ConnectionTls { listener, stop, session: RefCell::default() }
    }

    pub(super) fn security(&self) -> Security {
        security(self.listener.as_ref())
    }
}

/// Pre-shared keys for one handshake. Remembers the key that the client proves.
struct HandshakePsks {
    psks: Arc<dyn PskKeys>,
    proven: Mutex<Option<Psk>>,
}

impl PskServer for HandshakePsks {
    fn choose(&self, hello: &[u8]) -> PskChoice {
        let candidates = |identity: &[u8]| {
            self.psks.candidates(identity).into_iter().map(|psk| (psk, ())).collect()
        };
        psk_choice(proven_psk(hello, candidates).map(|(psk, ())| {
            *self.proven.lock() = Some(psk.clone());
            psk
        }))
    }
}

fn security(tls: Option<&NbdTls>) -> Security {
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
    connection: &ConnectionTls,
    timeout: Duration,
) -> Result<Vec<String>, DisconnectReason> {
    let failed = |reason: String| DisconnectReason::Refused(HandshakeError::Tls(reason));
    let Some(tls) = &connection.listener else {
        return Err(failed("it is not configured".to_owned()));
    };
    if rx.available() > 0 {
        return Err(failed("data arrived before the answer to STARTTLS".to_owned()));
    }
    let source = source_of_peer(&socket.stream().peer());
    let admitted = tls.admission.admit(source, timeout / 2).await;
    let admitted =
        admitted.ok_or_else(|| failed("too many TLS handshakes in progress".to_owned()))?;
    let keys = tls.keys.read().clone();
    let chooser = keys.psks.map(|psks| Arc::new(HandshakePsks { psks, proven: Mutex::default() }));
    let server = match &chooser {
        Some(chooser) => keys.server.choosing(chooser.clone()),
        None => keys.server,
    };
    let accepting = server.accept(socket.stream().clone(), &[]);
    let accepted = admitted.run(timeout, accepting, failure_kind).await;
    let accepted = accepted.ok_or(DisconnectReason::TimedOut)?;
    let stream = accepted.map_err(|failure| failed(failure.to_string()))?;
    let names = match stream.peer_identity() {
        PeerIdentity::Psk(identity) => vec![String::from_utf8_lossy(identity).into_owned()],
        PeerIdentity::Certificate(names) => names.clone(),
        PeerIdentity::Anonymous => Vec::new(),
    };
    if let Some(psk) = chooser.and_then(|chooser| chooser.proven.lock().take()) {
        let session = tls.register(psk, connection.stop.clone());
        let session = session.ok_or_else(|| failed("the client's key was withdrawn".to_owned()))?;
        connection.session.replace(Some(session));
    }
    *socket = stream.into();
    *rx = Rx::new(socket.clone());
    Ok(names)
}

//! Keys and certificates of servers and clients.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;
use s2n_tls::callbacks::{ClientHelloCallback, ConnectionFuture, VerifyHostNameCallback};
use s2n_tls::config::{Builder, Config};
use s2n_tls::connection::Connection;
use s2n_tls::enums::{Blinding, ClientAuthType, Mode, PskHmac};
use s2n_tls::error::Error;
use s2n_tls::psk::Psk;
use s2n_tls::security::Policy;
use zeroize::Zeroizing;

use super::error::TlsConfigError;
use super::traffic;

/// s2n's policy of only TLS 1.3, with the three suites of AES-GCM and ChaCha20. A PSK selects the
/// suite by its hash; [`super::handshake`] refuses ChaCha20.
const POLICY: &str = "AWS-CRT-SDK-TLSv1.3-2023";

/// s2n's policy of only TLS 1.3 with AES-256-GCM, for clients whose PSKs all have its hash: OpenSSL
/// chooses the suite first, and then refuses the handshake if no PSK fits.
const POLICY_SHA384: &str = "20250211";

/// Hash of a pre-shared key, which selects the cipher suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsPskHash {
    /// SHA-256: TLS_AES_128_GCM_SHA256.
    Sha256,
    /// SHA-384: TLS_AES_256_GCM_SHA384.
    Sha384,
}

/// External pre-shared key. `Debug` does not show the secret.
#[derive(Clone)]
pub struct TlsPsk {
    /// Identity, as it is sent.
    pub identity: Vec<u8>,
    /// Secret, 16 bytes or more.
    pub secret: Zeroizing<Vec<u8>>,
    /// Hash of the handshake.
    pub hash: TlsPskHash,
}

impl fmt::Debug for TlsPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsPsk({})", self.identity.escape_ascii())
    }
}

impl TlsPsk {
    fn append_to(&self, connection: &mut Connection) -> Result<(), Error> {
        let mut psk = Psk::builder()?;
        psk.set_identity(&self.identity)?;
        psk.set_secret(&self.secret)?;
        psk.set_hmac(match self.hash {
            TlsPskHash::Sha256 => PskHmac::SHA256,
            TlsPskHash::Sha384 => PskHmac::SHA384,
        })?;
        connection.append_psk(&psk.build()?)
    }
}

/// A server's choice among the pre-shared keys that a client offers.
#[derive(Debug)]
pub enum PskChoice {
    /// Continue with this one.
    Use(TlsPsk),
    /// The client offers none: continue with certificates, if there are any.
    NoneOffered,
    /// End the handshake.
    Refuse(PskRefusal),
}

/// Why the pre-shared keys of a client are refused. Identities are as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PskRefusal {
    /// The client offers none, and this side has no certificate.
    NoneOffered,
    /// The ClientHello is malformed.
    Malformed,
    /// No identity is known; the first one.
    UnknownIdentity(Vec<u8>),
    /// The identity is known, but the client has another key.
    WrongKey(Vec<u8>),
}

impl PskRefusal {
    /// Identity that the client offered, as received; empty if there is none.
    pub fn identity(&self) -> &[u8] {
        match self {
            PskRefusal::NoneOffered | PskRefusal::Malformed => &[],
            PskRefusal::UnknownIdentity(identity) | PskRefusal::WrongKey(identity) => identity,
        }
    }
}

impl fmt::Display for PskRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PskRefusal::NoneOffered => f.write_str("the client offers no pre-shared key"),
            PskRefusal::Malformed => f.write_str("the ClientHello is malformed"),
            PskRefusal::UnknownIdentity(_) => f.write_str("no key has this PSK identity"),
            PskRefusal::WrongKey(_) => {
                f.write_str("the client has another key for this PSK identity")
            }
        }
    }
}

/// Pre-shared keys of a server. Called off the cores.
pub trait PskServer: Send + Sync {
    /// Chooses the key for a ClientHello: the whole handshake message with its header of 4 bytes.
    fn choose(&self, hello: &[u8]) -> PskChoice;
}

/// Which certificates are trusted, and what a client or server proves with its own. Texts are PEM.
#[derive(Clone)]
pub struct ClientIdentity {
    /// Certificate chain, the own one first.
    pub chain: Vec<u8>,
    /// Private key.
    pub key: Zeroizing<Vec<u8>>,
}

/// How a client trusts a server with a certificate.
#[derive(Clone)]
pub struct ServerTrust {
    /// Certificates of authorities in PEM; `None` for the system's.
    pub authorities: Option<Vec<u8>>,
    /// Name in the server's certificate.
    pub server_name: String,
    /// Certificate that the client shows, if the server asks for one.
    pub identity: Option<ClientIdentity>,
}

/// Server side of handshakes. Cheap to clone.
#[derive(Clone)]
pub struct TlsServer {
    pub(super) config: Config,
    pub(super) psks: Option<Arc<dyn PskServer>>,
    pub(super) has_certificate: bool,
    pub(super) asks_certificate: bool,
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsServer(PSK: {}, X.509: {})", self.psks.is_some(), self.has_certificate)
    }
}

/// Client side of handshakes.
#[derive(Clone)]
pub struct TlsClient {
    pub(super) config: Config,
    pub(super) psks: Vec<TlsPsk>,
    pub(super) server_name: Option<String>,
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsClient({:?})", self.psks)
    }
}

impl TlsServer {
    /// Server of hosts with pre-shared keys.
    ///
    /// # Errors
    /// The library refuses.
    pub fn with_psks(psks: Arc<dyn PskServer>) -> Result<TlsServer, TlsConfigError> {
        TlsServer::new(Some(psks), None, None)
    }

    /// The same server, with the keys of `psks`.
    pub fn choosing(&self, psks: Arc<dyn PskServer>) -> TlsServer {
        TlsServer { psks: Some(psks), ..self.clone() }
    }

    /// Server of clients that trust its certificate. With `authorities` (PEM), clients have to show
    /// a certificate that those have signed. Clients may offer pre-shared keys instead, with
    /// `psks`.
    ///
    /// # Errors
    /// A certificate or key that cannot be used.
    pub fn with_certificate(
        own: &ClientIdentity,
        authorities: Option<&[u8]>,
        psks: Option<Arc<dyn PskServer>>,
    ) -> Result<TlsServer, TlsConfigError> {
        TlsServer::new(psks, Some(own), authorities)
    }

    fn new(
        psks: Option<Arc<dyn PskServer>>,
        own: Option<&ClientIdentity>,
        authorities: Option<&[u8]>,
    ) -> Result<TlsServer, TlsConfigError> {
        let mut builder = builder(POLICY)?;
        if let Some(own) = own {
            let loaded = builder.load_pem(&own.chain, &own.key);
            loaded.map_err(|error| TlsConfigError::new("certificate and key", &error))?;
        }
        if let Some(authorities) = authorities {
            trust_only(&mut builder, authorities)?;
            let asked = builder.set_client_auth_type(ClientAuthType::Required);
            asked.map_err(|error| TlsConfigError::new("client certificates", &error))?;
        }
        let called = builder.set_client_hello_callback(HelloCallback);
        called.map_err(|error| TlsConfigError::new("TLS", &error))?;
        Ok(TlsServer {
            config: builder.build().map_err(|error| TlsConfigError::new("TLS", &error))?,
            psks,
            has_certificate: own.is_some(),
            asks_certificate: authorities.is_some(),
        })
    }
}

impl TlsClient {
    /// Client that offers pre-shared keys, the preferred one first. The server has to take one.
    ///
    /// # Errors
    /// The library refuses.
    pub fn with_psks(psks: Vec<TlsPsk>) -> Result<TlsClient, TlsConfigError> {
        let only_sha384 = psks.iter().all(|psk| psk.hash == TlsPskHash::Sha384);
        let config = builder(if only_sha384 { POLICY_SHA384 } else { POLICY })?.build();
        let config = config.map_err(|error| TlsConfigError::new("TLS", &error))?;
        Ok(TlsClient { config, psks, server_name: None })
    }

    /// Client that trusts a server by its certificate.
    ///
    /// # Errors
    /// A certificate or key that cannot be used.
    pub fn with_trust(trust: &ServerTrust) -> Result<TlsClient, TlsConfigError> {
        let mut builder = builder(POLICY)?;
        match &trust.authorities {
            Some(authorities) => trust_only(&mut builder, authorities)?,
            None => {
                let trusted = builder.with_system_certs(true);
                trusted.map_err(|error| TlsConfigError::new("authorities", &error))?;
            }
        }
        if let Some(own) = &trust.identity {
            let loaded = builder.load_pem(&own.chain, &own.key);
            loaded.map_err(|error| TlsConfigError::new("certificate and key", &error))?;
            let shown = builder.set_client_auth_type(ClientAuthType::Optional);
            shown.map_err(|error| TlsConfigError::new("certificate and key", &error))?;
        }
        let config = builder.build().map_err(|error| TlsConfigError::new("TLS", &error))?;
        Ok(TlsClient { config, psks: Vec::new(), server_name: Some(trust.server_name.clone()) })
    }
}

fn builder(policy: &str) -> Result<Builder, TlsConfigError> {
    let made = || {
        let mut builder = Config::builder();
        builder.with_system_certs(false)?;
        builder.set_security_policy(&Policy::from_version(policy)?)?;
        // Blinding delays defend modes of TLS 1.2 that are not spoken here.
        builder.set_max_blinding_delay(0)?;
        traffic::log_keys(&mut builder)?;
        Ok(builder)
    };
    made().map_err(|error| TlsConfigError::new("TLS", &error))
}

fn trust_only(builder: &mut Builder, authorities: &[u8]) -> Result<(), TlsConfigError> {
    let trusted = builder.trust_pem(authorities).map(drop);
    trusted.map_err(|error| TlsConfigError::new("authorities", &error))
}

/// Answer of [`PskServer`] for one connection, which its connection carries.
#[derive(Default)]
pub(super) struct HelloOutcome {
    pub(super) refusal: Mutex<Option<PskRefusal>>,
    pub(super) chosen: Mutex<Option<Vec<u8>>>,
}

/// Context of a connection in the callback.
struct HelloContext {
    psks: Option<Arc<dyn PskServer>>,
    has_certificate: bool,
    outcome: Arc<HelloOutcome>,
}

struct HelloCallback;

#[derive(Debug, thiserror::Error)]
#[error("refused")]
struct RefusedHello;

impl ClientHelloCallback for HelloCallback {
    fn on_client_hello(
        &self,
        connection: &mut Connection,
    ) -> Result<Option<std::pin::Pin<Box<dyn ConnectionFuture>>>, Error> {
        let message = whole_hello(connection)?;
        let refused = || Error::application(Box::new(RefusedHello));
        let context = connection.application_context::<Arc<HelloContext>>().ok_or_else(refused)?;
        let context = context.clone();
        let choice =
            context.psks.as_ref().map_or(PskChoice::NoneOffered, |psks| psks.choose(&message));
        let refuse = |refusal| {
            *context.outcome.refusal.lock() = Some(refusal);
            Err(refused())
        };
        match choice {
            PskChoice::Use(psk) => {
                psk.append_to(connection)?;
                *context.outcome.chosen.lock() = Some(psk.identity.clone());
                Ok(None)
            }
            PskChoice::NoneOffered if context.has_certificate => Ok(None),
            PskChoice::NoneOffered => refuse(PskRefusal::NoneOffered),
            PskChoice::Refuse(refusal) => refuse(refusal),
        }
    }
}

/// The ClientHello as it was received. The library keeps it without its header, and its random
/// apart.
fn whole_hello(connection: &Connection) -> Result<Vec<u8>, Error> {
    const RANDOM_AT: usize = 2;
    let hello = connection.client_hello()?;
    let mut body = hello.raw_message()?;
    let random = hello.random()?;
    if let Some(place) = body.get_mut(RANDOM_AT..RANDOM_AT + random.len()) {
        place.copy_from_slice(&random);
    }
    let mut message = Vec::with_capacity(4 + body.len());
    message.push(1);
    message.extend_from_slice(&(body.len() as u32).to_be_bytes()[1..]);
    message.append(&mut body);
    Ok(message)
}

/// Accepts every name of a client's certificate: what a name may do is decided later.
struct AnyName;

impl VerifyHostNameCallback for AnyName {
    fn verify_host_name(&self, _: &str) -> bool {
        true
    }
}

/// Connection of a server, ready to negotiate.
pub(super) fn server_connection(
    server: &TlsServer,
) -> Result<(Connection, Arc<HelloOutcome>), Error> {
    let mut connection = Connection::new(Mode::Server);
    connection.set_config(server.config.clone())?;
    tune(&mut connection)?;
    // The callback answers at once, and the library asks for a waker all the same.
    connection.set_waker(Some(Waker::noop()))?;
    let outcome = Arc::new(HelloOutcome::default());
    connection.set_application_context(Arc::new(HelloContext {
        psks: server.psks.clone(),
        has_certificate: server.has_certificate,
        outcome: outcome.clone(),
    }));
    if server.asks_certificate {
        connection.set_verify_host_callback(AnyName)?;
    }
    Ok((connection, outcome))
}

/// Connection of a client, ready to negotiate.
pub(super) fn client_connection(client: &TlsClient) -> Result<Connection, Error> {
    let mut connection = Connection::new(Mode::Client);
    connection.set_config(client.config.clone())?;
    tune(&mut connection)?;
    for psk in &client.psks {
        psk.append_to(&mut connection)?;
    }
    if let Some(name) = &client.server_name {
        connection.set_server_name(name)?;
    }
    Ok(connection)
}

fn tune(connection: &mut Connection) -> Result<(), Error> {
    // Otherwise the library sleeps after errors, on the core.
    connection.set_blinding(Blinding::SelfService)?;
    // Records of 16 KiB.
    connection.prefer_throughput()?;
    Ok(())
}

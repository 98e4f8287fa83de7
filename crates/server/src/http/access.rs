//! Access to a listener: identity and role of a caller.
//!
//! Invariants:
//! - over TCP a request is answered only for a user with a token or a certificate, and a user with
//!   the role `read-only` changes nothing;
//! - a certificate is checked for each request: authorities are replaced and certificates expire
//!   while connections last. A refused request ends its connection;
//! - a token is compared by its SHA-256, with all hashes, in constant time;
//! - failures of a source address delay its next handshakes and requests before they are checked,
//!   so that giving up an attempt early gains nothing. A handshake that is not completed is no
//!   guess: others behind the same address wait little for it.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::http::{HeaderMap, Method, header};
use flagstone_config::ApiRole as Role;
use flagstone_runtime::net::PeerUser;
use flagstone_transport::{FailureDelays, FailureKind};
use parking_lot::{Mutex, RwLock};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::ClientCertVerifier;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::time::{Instant, sleep, sleep_until};

use crate::http::limits::HANDSHAKE_PERIOD;
use crate::http::problem::Problem;
use crate::http::response::Response;

/// SHA-256 of a token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenHash(pub [u8; 32]);

impl TokenHash {
    /// The hash of a token as its user sends it.
    pub fn of(token: &[u8]) -> TokenHash {
        TokenHash(Sha256::digest(token).into())
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A process of this machine, by the Unix socket; its user, if the kernel names it.
    Local(Option<PeerUser>),
    /// A user of `[api_user.NAME]`.
    User {
        /// Name of the table.
        name: Arc<str>,
        /// What the user may do.
        role: Role,
    },
    /// Anyone, on a listener that needs no proof.
    Anyone,
}

impl Caller {
    /// True unless the caller may only read documents.
    pub(crate) fn is_operator(&self) -> bool {
        match self {
            Caller::Local(_) | Caller::User { role: Role::Operator, .. } => true,
            Caller::User { role: Role::ReadOnly, .. } | Caller::Anyone => false,
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caller::Local(Some(user)) => {
                write!(f, "uid {} gid {}", user.user_id, user.group_id)?;
                match user.process_id {
                    Some(id) => write!(f, " pid {id}"),
                    None => Ok(()),
                }
            }
            Caller::Local(None) => f.write_str("unknown local user"),
            Caller::User { name, role } => write!(f, "{name} ({})", role.name()),
            Caller::Anyone => f.write_str("anyone"),
        }
    }
}

/// Access that a listener gives.
#[derive(Clone, Debug)]
pub enum ListenerAccess {
    /// To those who can open its Unix socket: everything.
    Local,
    /// To anyone, of routes that only read.
    Open,
    /// To its users, over TLS.
    Users(Arc<Users>),
}

/// A connection's claim to access, from its establishment.
#[derive(Clone, Debug)]
pub(crate) enum AccessClaim {
    Local(Option<PeerUser>),
    Anyone,
    /// `chain` is the certificate and its intermediate authorities; empty without one.
    Tls {
        users: Arc<Users>,
        source: IpAddr,
        chain: Vec<CertificateDer<'static>>,
    },
}

/// Why a call over TCP is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessRefusal {
    /// The TLS handshake failed, for example for a certificate of another authority.
    Handshake,
    /// Neither a token nor a certificate.
    NoProof,
    /// An unknown token.
    Token,
    /// A certificate of no user.
    Certificate,
    /// The user may only read.
    Role,
    /// A page of another site made a browser call.
    Site,
}

impl AccessRefusal {
    /// All reasons.
    pub const ALL: [Self; 6] =
        [Self::Handshake, Self::NoProof, Self::Token, Self::Certificate, Self::Role, Self::Site];

    /// Name, for metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::NoProof => "no-proof",
            Self::Token => "token",
            Self::Certificate => "certificate",
            Self::Role => "role",
            Self::Site => "site",
        }
    }

    /// The response to a call that was admitted. Has the refusal as an extension.
    pub(crate) fn response(self) -> Response {
        let mut response = self.problem().response();
        response.extensions_mut().insert(self);
        response
    }

    pub(crate) fn problem(self) -> Problem {
        let unauthorized =
            |detail: &str| Problem::new(401, "unauthorized", "The caller is not known", detail);
        let forbidden =
            |detail: &str| Problem::new(403, "forbidden", "The caller may not do this", detail);
        match self {
            Self::Handshake | Self::NoProof => unauthorized(
                "send a token (Authorization: Bearer TOKEN), or use a client certificate",
            ),
            Self::Token => unauthorized("no user has this token"),
            Self::Certificate => unauthorized(
                "no user has a name of this certificate, or it has expired, or its authority is not \
                 in `client_ca_file`",
            ),
            Self::Role => forbidden("the user has the role `read-only`, and this needs `operator`"),
            Self::Site => forbidden("the request was made by a page of another site"),
        }
    }
}

/// A user of the API.
#[derive(Clone, Debug)]
pub struct User {
    /// Name, for the audit lines.
    pub name: Arc<str>,
    /// What the user may do.
    pub role: Role,
    /// Hashes of the tokens.
    pub tokens: Vec<TokenHash>,
    /// DNS name in the user's certificate.
    pub certificate: Option<ServerName<'static>>,
}

/// The users, and the server's own certificate.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// For new connections.
    pub tls: Arc<rustls::ServerConfig>,
    /// Check of client certificates, at handshakes and for each request; `None` if there are none.
    pub verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// For each request.
    pub users: Vec<User>,
}

/// Users of a listener, shared by the threads. A reload replaces the credentials.
#[derive(Debug)]
pub struct Users {
    credentials: RwLock<Credentials>,
    delays: Mutex<FailureDelays<Instant>>,
    /// When the next handshake may begin. Connections wait for the lock in turn.
    next_handshake: tokio::sync::Mutex<Option<Instant>>,
    refused: [AtomicU64; AccessRefusal::ALL.len()],
}

impl Users {
    /// Users with these credentials.
    pub fn new(credentials: Credentials) -> Arc<Users> {
        Arc::new(Users {
            credentials: RwLock::new(credentials),
            delays: Mutex::default(),
            next_handshake: tokio::sync::Mutex::default(),
            refused: Default::default(),
        })
    }

    /// Replaces the credentials: of new connections, and of the next request of each user.
    pub fn replace(&self, credentials: Credentials) {
        *self.credentials.write() = credentials;
    }

    pub(crate) fn tls(&self) -> Arc<rustls::ServerConfig> {
        self.credentials.read().tls.clone()
    }

    /// Refusals since the start, in the order of [`AccessRefusal::ALL`].
    pub fn refused(&self) -> [u64; AccessRefusal::ALL.len()] {
        std::array::from_fn(|at| self.refused[at].load(Relaxed))
    }

    /// Counts a refusal, and delays the next attempts of a source that guesses.
    pub(crate) fn refuse(&self, source: IpAddr, refusal: AccessRefusal) {
        self.count(refusal);
        match refusal {
            AccessRefusal::Handshake | AccessRefusal::Token | AccessRefusal::Certificate => {
                self.delays.lock().failed(Some(source), FailureKind::Guess, Instant::now());
            }
            AccessRefusal::NoProof | AccessRefusal::Role | AccessRefusal::Site => {}
        }
    }

    /// Counts a failed handshake.
    pub(crate) fn handshake_failed(&self, source: IpAddr, kind: FailureKind) {
        self.count(AccessRefusal::Handshake);
        self.delays.lock().failed(Some(source), kind, Instant::now());
    }

    pub(crate) fn handshake_succeeded(&self, source: IpAddr) {
        self.delays.lock().succeeded(Some(source));
    }

    fn count(&self, refusal: AccessRefusal) {
        let at = AccessRefusal::ALL.iter().position(|known| *known == refusal);
        self.refused[at.expect("all reasons are listed")].fetch_add(1, Relaxed);
    }

    fn delay(&self, source: IpAddr) -> Duration {
        self.delays.lock().delay(Some(source), Instant::now())
    }

    /// Waits as long as the failures of a source demand.
    pub(crate) async fn wait_for(&self, source: IpAddr) {
        let delay = self.delay(source);
        if !delay.is_zero() {
            sleep(delay).await;
        }
    }

    /// Waits until the next handshake may begin: each costs this machine more than its peer. A
    /// connection that ends while it waits takes no time from the others.
    pub(crate) async fn pace_handshake(&self) {
        let mut next = self.next_handshake.lock().await;
        if let Some(begin) = *next {
            sleep_until(begin).await;
        }
        *next = Some(Instant::now() + HANDSHAKE_PERIOD);
    }

    fn user_with_token(&self, token: &[u8]) -> Option<Caller> {
        let hash = TokenHash::of(token);
        let credentials = self.credentials.read();
        let mut found = None;
        for user in &credentials.users {
            for known in &user.tokens {
                if bool::from(known.0.ct_eq(&hash.0)) {
                    found = Some(user);
                }
            }
        }
        found.map(caller)
    }

    /// The user of a certificate, which the handshake has checked, but perhaps long ago.
    pub(super) fn user_with_certificate(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Option<Caller> {
        let (certificate, authorities) = chain.split_first()?;
        let credentials = self.credentials.read();
        credentials.verifier.as_ref()?.verify_client_cert(certificate, authorities, now).ok()?;
        let certificate = ParsedCertificate::try_from(certificate).ok()?;
        let has_name = |user: &&User| {
            let name = user.certificate.as_ref();
            name.is_some_and(|name| rustls::client::verify_server_name(&certificate, name).is_ok())
        };
        credentials.users.iter().find(has_name).map(caller)
    }
}

fn caller(user: &User) -> Caller {
    Caller::User { name: user.name.clone(), role: user.role }
}

impl AccessClaim {
    /// Waits before a request is checked, if its source has guessed.
    pub(crate) async fn wait(&self) {
        if let AccessClaim::Tls { users, source, .. } = self {
            users.wait_for(*source).await;
        }
    }

    /// Counts the refusal of a request that was admitted.
    pub(crate) fn refuse(&self, refusal: AccessRefusal) {
        if let AccessClaim::Tls { users, source, .. } = self {
            users.refuse(*source, refusal);
        }
    }

    /// Finds out who makes a request, after [`AccessClaim::wait`].
    ///
    /// # Errors
    /// Why it is refused, and who it is if that is known.
    pub(crate) fn caller(
        &self,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<Caller, (AccessRefusal, Option<Caller>)> {
        let (users, source, chain) = match self {
            AccessClaim::Local(user) => return Ok(Caller::Local(*user)),
            AccessClaim::Anyone => return Ok(Caller::Anyone),
            AccessClaim::Tls { users, source, chain } => (users, *source, chain),
        };
        let refused = |refusal| users.refuse(source, refusal);
        let caller = identify(users, chain, headers);
        let caller = caller.map_err(|refusal| (refusal, None)).inspect_err(|one| refused(one.0))?;
        match check(&caller, method, headers) {
            Ok(()) => Ok(caller),
            Err(refusal) => {
                refused(refusal);
                Err((refusal, Some(caller)))
            }
        }
    }
}

/// The user with a token or certificate.
fn identify(
    users: &Users,
    chain: &[CertificateDer<'_>],
    headers: &HeaderMap,
) -> Result<Caller, AccessRefusal> {
    match (headers.get(header::AUTHORIZATION), chain) {
        (Some(value), _) => {
            let is_only = headers.get_all(header::AUTHORIZATION).iter().count() == 1;
            let token = bearer(value.as_bytes()).filter(|_| is_only).ok_or(AccessRefusal::Token)?;
            users.user_with_token(token).ok_or(AccessRefusal::Token)
        }
        (None, []) => Err(AccessRefusal::NoProof),
        (None, chain) => {
            users.user_with_certificate(chain, UnixTime::now()).ok_or(AccessRefusal::Certificate)
        }
    }
}

/// Checks that a user may make a request.
fn check(caller: &Caller, method: &Method, headers: &HeaderMap) -> Result<(), AccessRefusal> {
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
    match caller {
        Caller::User { role: Role::ReadOnly, .. } if !reads => Err(AccessRefusal::Role),
        // A browser adds a certificate to requests of any page.
        _ if !reads && is_cross_site(headers) => Err(AccessRefusal::Site),
        _ => Ok(()),
    }
}

/// The token of `Bearer TOKEN` (RFC 6750, section 2.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

/// Returns true for a request that a browser made for another site (Fetch Metadata, section 2.4).
fn is_cross_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(|value| value.as_bytes());
    site.is_some_and(|site| site != b"same-origin" && site != b"none")
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::Ipv4Addr;

    use axum::http::HeaderValue;
    use rustls::ServerConfig;
    use rustls::crypto::aws_lc_rs;
    use rustls::server::ResolvesServerCertUsingSni;

    use super::*;

    pub(crate) fn users() -> Arc<Users> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
        let user = |name: &str, role, tokens: &[&str]| User {
            name: name.into(),
            role,
            tokens: tokens.iter().map(|token| TokenHash::of(token.as_bytes())).collect(),
            certificate: None,
        };
        let users = vec![
            user("alice", Role::Operator, &["old", "new"]),
            user("bob", Role::ReadOnly, &["b"]),
            user("carol", Role::Operator, &[]),
        ];
        Users::new(Credentials { tls: Arc::new(config), verifier: None, users })
    }

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn tokens_and_roles_decide() {
        let users = users();
        let checked = |method: Method, fields: &[(&'static str, &str)]| {
            let headers = headers(fields);
            let caller = identify(&users, &[], &headers)?;
            check(&caller, &method, &headers).map(|()| caller.to_string())
        };
        let (alice, bob) = (Ok("alice (operator)".to_owned()), Ok("bob (read-only)".to_owned()));
        for (method, fields, expected) in [
            (Method::POST, &[("authorization", "Bearer old")][..], alice.clone()),
            (Method::POST, &[("authorization", "bearer  new")], alice.clone()),
            (Method::GET, &[("authorization", "Bearer b")], bob.clone()),
            (Method::HEAD, &[("authorization", "Bearer b")], bob.clone()),
            (Method::POST, &[("authorization", "Bearer b")], Err(AccessRefusal::Role)),
            (Method::DELETE, &[("authorization", "Bearer b")], Err(AccessRefusal::Role)),
            (Method::GET, &[("authorization", "Bearer c")], Err(AccessRefusal::Token)),
            (Method::GET, &[("authorization", "Bearer ")], Err(AccessRefusal::Token)),
            (Method::GET, &[("authorization", "Bearer")], Err(AccessRefusal::Token)),
            (Method::GET, &[("authorization", "Basic old")], Err(AccessRefusal::Token)),
            (
                Method::GET,
                &[("authorization", "Bearer x"), ("authorization", "Bearer old")],
                Err(AccessRefusal::Token),
            ),
            (Method::GET, &[], Err(AccessRefusal::NoProof)),
            (
                Method::POST,
                &[("authorization", "Bearer old"), ("sec-fetch-site", "cross-site")],
                Err(AccessRefusal::Site),
            ),
            (
                Method::POST,
                &[("authorization", "Bearer old"), ("sec-fetch-site", "same-origin")],
                alice,
            ),
            (Method::GET, &[("authorization", "Bearer b"), ("sec-fetch-site", "cross-site")], bob),
        ] {
            assert_eq!(checked(method.clone(), fields), expected, "{method} {fields:?}");
        }
    }

    #[test]
    fn wrong_tokens_delay_only_their_address() {
        let users = users();
        let source = |last| IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
        for _ in 0..3 {
            users.refuse(source(1), AccessRefusal::Token);
        }
        users.refuse(source(2), AccessRefusal::Role);
        users.refuse(source(2), AccessRefusal::NoProof);
        assert!(users.delay(source(1)) > Duration::ZERO);
        assert_eq!(users.delay(source(2)), Duration::ZERO, "no guess");
        assert_eq!(users.refused(), [0, 1, 3, 0, 1, 0]);
    }

    #[test]
    fn abandoned_handshakes_take_no_time_from_others() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let users = users();
            users.pace_handshake().await;
            // Together they would wait for 20 s.
            for _ in 0..1000 {
                let users = users.clone();
                let waiting = tokio::task::spawn_local(async move { users.pace_handshake().await });
                tokio::task::yield_now().await;
                waiting.abort();
            }
            let paced = tokio::time::timeout(Duration::from_secs(10), users.pace_handshake());
            assert!(paced.await.is_ok());
        });
    }

    #[test]
    fn secrets_are_not_shown() {
        let shown = format!("{:?}", users().credentials.read().users);
        assert!(shown.contains("alice") && shown.contains("TokenHash(..)"), "{shown}");
    }
}

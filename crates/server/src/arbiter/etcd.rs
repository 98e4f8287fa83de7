//! etcd as the arbiter, through the JSON form of its v3 API, which every member serves on its
//! client port.
//!
//! Reads are linearizable, which is etcd's default. A write is one transaction that compares the
//! revision of the last change of the key. Each call opens a connection to one member after the
//! other, until one answers: calls are rare, and a connection that is kept could be dead. A member
//! that does not answer costs its part of the call's time. A write is never sent to a second member
//! once a first one may have carried it out: its outcome is unknown, and the race reads it back.
//!
//! Answers are hostile: bounded, and checked field by field.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Method, Request, StatusCode, header};
use base64ct::{Base64, Encoding};
use flagstone_arbiter::limits::{CALL_MS, RECORD_BYTES_MAX};
use flagstone_arbiter::{NoAnswer, ReplicaId, Stored, StoredVersion, Written};
use flagstone_config::uri::{HostPort, UriHost};
use flagstone_config::{ArbiterTls, EtcdStore};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::http;
use crate::http::tls::{OwnCertificate, TlsError};

/// Longest answer, in bytes: a record in base64, and etcd's fields around it.
const REPLY_BYTES_MAX: usize = 16 << 10;
/// Longest password, in bytes.
const PASSWORD_BYTES_MAX: u64 = 1024;

/// Why a member was of no use.
enum Failure {
    /// It has not received the request.
    NotSent(String),
    /// It may have carried the request out.
    Unknown(String),
    /// It refused the request with this status.
    Refused(StatusCode, String),
}

impl Failure {
    const fn weight(&self) -> u8 {
        match self {
            Failure::NotSent(_) => 0,
            Failure::Unknown(_) => 1,
            Failure::Refused(..) => 2,
        }
    }
}

/// A client of one cluster.
pub(super) struct Etcd {
    endpoints: Vec<HostPort>,
    prefix: String,
    user: Option<(String, PathBuf)>,
    tls: Option<ArbiterTls>,
    /// The member that answered last.
    preferred: Cell<usize>,
    /// Token of the last authentication.
    token: RefCell<Option<String>>,
}

impl Etcd {
    /// Checks that the password and the certificates can be read. They are read again for each use.
    pub(super) fn new(store: &EtcdStore) -> io::Result<Etcd> {
        let user = store.user.clone();
        if let Some((_, file)) = &user {
            password(file)?;
        }
        if let Some(tls) = &store.tls {
            client_config(tls).map_err(io::Error::other)?;
        }
        Ok(Etcd {
            endpoints: store.etcd.clone(),
            prefix: store.prefix.clone(),
            user,
            tls: store.tls.clone(),
            preferred: Cell::new(0),
            token: RefCell::default(),
        })
    }

    /// TLS to a member, with the certificates as they are in the files now: they are renewed while
    /// the daemon runs, and connections are rare.
    fn tls(
        &self,
        member: &HostPort,
    ) -> Result<Option<(TlsConnector, ServerName<'static>)>, String> {
        let Some(tls) = &self.tls else { return Ok(None) };
        let config = client_config(tls).map_err(|error| error.to_string())?;
        let name = match &member.host {
            UriHost::Ip(address) => ServerName::IpAddress((*address).into()),
            UriHost::Name(name) => {
                ServerName::try_from(name.clone()).map_err(|error| error.to_string())?
            }
        };
        Ok(Some((TlsConnector::from(Arc::new(config)), name)))
    }

    fn key(&self, volume: ReplicaId) -> String {
        Base64::encode_string(format!("{}/failover/{volume}", self.prefix).as_bytes())
    }

    pub(super) async fn read(&self, volume: ReplicaId) -> Result<Option<Stored>, NoAnswer> {
        let reply = self.call("/v3/kv/range", &json!({ "key": self.key(volume) }), true).await?;
        stored(&reply).map_err(|what| NoAnswer(format!("etcd's answer is invalid: {what}")))
    }

    pub(super) async fn write(
        &self,
        volume: ReplicaId,
        expected: Option<Stored>,
        bytes: Vec<u8>,
    ) -> Result<Written, NoAnswer> {
        let key = self.key(volume);
        // Revision 0: the key does not exist.
        let revision = expected.as_ref().map_or("0", |stored| stored.version.as_str());
        let mut compare = vec![json!({
            "target": "MOD", "result": "EQUAL", "key": key, "mod_revision": revision
        })];
        // An etcd that was restored from a backup counts the same revisions again.
        if let Some(stored) = &expected {
            let value = Base64::encode_string(&stored.bytes);
            let same = json!({ "target": "VALUE", "result": "EQUAL", "key": key, "value": value });
            compare.push(same);
        }
        let value = Base64::encode_string(&bytes);
        let request = json!({
            "compare": compare,
            "success": [{ "requestPut": { "key": key, "value": value } }],
        });
        let reply = self.call("/v3/kv/txn", &request, false).await?;
        if reply.get("header").is_none() {
            return Err(NoAnswer("etcd's answer to a transaction has no header".to_owned()));
        }
        // The JSON form leaves out `false`.
        Ok(match reply.get("succeeded").and_then(Value::as_bool) {
            Some(true) => Written::Yes,
            _ => Written::Conflict,
        })
    }

    /// A transaction that puts `bytes`, and whose comparison is never true. etcd checks its space
    /// and the user's permission before it compares.
    pub(super) async fn probe_write(
        &self,
        volume: ReplicaId,
        bytes: &[u8],
    ) -> Result<(), NoAnswer> {
        let key = self.key(volume);
        let request = json!({
            "compare": [{ "target": "VERSION", "result": "LESS", "key": key, "version": "0" }],
            "success": [{ "requestPut": { "key": key, "value": Base64::encode_string(bytes) } }],
        });
        let reply = self.call("/v3/kv/txn", &request, true).await?;
        let compared = reply.get("succeeded").and_then(Value::as_bool);
        match reply.get("header").is_some() && compared != Some(true) {
            true => Ok(()),
            false => Err(NoAnswer("etcd's answer to a transaction is invalid".to_owned())),
        }
    }

    /// Sends a request, with a new token if the last one has expired.
    async fn call(&self, path: &str, body: &Value, repeatable: bool) -> Result<Value, NoAnswer> {
        if self.user.is_some() && self.token.borrow().is_none() {
            self.authenticate().await?;
        }
        match self.try_members(path, body, repeatable).await {
            // Expired, or (as a bad request) older than a change of users. Nothing was carried out.
            Err(Failure::Refused(..)) if self.user.is_some() => {
                self.authenticate().await?;
                self.try_members(path, body, repeatable).await
            }
            result => result,
        }
        .map_err(no_answer)
    }

    async fn authenticate(&self) -> Result<(), NoAnswer> {
        let Some((name, file)) = &self.user else { return Ok(()) };
        self.token.replace(None);
        let password =
            password(file).map_err(|error| NoAnswer(format!("{}: {error}", file.display())))?;
        let request = json!({ "name": name, "password": password });
        let reply = self.try_members("/v3/auth/authenticate", &request, true).await;
        let reply = reply.map_err(no_answer)?;
        let token = reply.get("token").and_then(Value::as_str).map(str::to_owned);
        let token = token.ok_or_else(|| NoAnswer("etcd returned no token".to_owned()))?;
        self.token.replace(Some(token));
        Ok(())
    }

    async fn try_members(
        &self,
        path: &str,
        body: &Value,
        repeatable: bool,
    ) -> Result<Value, Failure> {
        let count = self.endpoints.len();
        let share = Duration::from_millis(CALL_MS) / (count as u32 + 1);
        let mut last = Failure::NotSent("no endpoint is configured".to_owned());
        for attempt in 0..count {
            let index = (self.preferred.get() + attempt) % count;
            match self.ask(&self.endpoints[index], path, body, share).await {
                Ok(reply) => {
                    self.preferred.set(index);
                    return Ok(reply);
                }
                Err(failure @ Failure::Unknown(_)) if !repeatable => {
                    // The next call, which reads the outcome, begins with another member.
                    self.preferred.set((index + 1) % count);
                    return Err(failure);
                }
                Err(failure @ Failure::Refused(StatusCode::UNAUTHORIZED, _)) => {
                    return Err(failure);
                }
                // A member that answers says more than a dead one.
                Err(failure) if failure.weight() >= last.weight() => last = failure,
                Err(_) => {}
            }
        }
        Err(last)
    }

    async fn ask(
        &self,
        endpoint: &HostPort,
        path: &str,
        body: &Value,
        limit: Duration,
    ) -> Result<Value, Failure> {
        let not_sent = |error: &dyn std::fmt::Display| {
            Failure::NotSent(format!("{endpoint} cannot be reached: {error}"))
        };
        let opening = async {
            let stream =
                TcpStream::connect(endpoint.to_string()).await.map_err(|e| not_sent(&e))?;
            let _ = stream.set_nodelay(true);
            let Some((tls, name)) = self.tls(endpoint).map_err(|e| not_sent(&e))? else {
                return exchange(stream).await.map_err(|error| not_sent(&error));
            };
            let stream = tls.connect(name, stream).await.map_err(|error| not_sent(&error))?;
            exchange(stream).await.map_err(|error| not_sent(&error))
        };
        let opened = timeout(limit, opening).await;
        let (mut requests, connection) =
            opened.map_err(|_| not_sent(&"no connection in time"))??;
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::HOST, endpoint.to_string())
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &*self.token.borrow() {
            request = request.header(header::AUTHORIZATION, token);
        }
        let body = Full::new(Bytes::from(body.to_string()));
        let request = request.body(body).map_err(|error| not_sent(&error))?;
        let exchange = async {
            let response = requests.send_request(request).await.map_err(|e| e.to_string())?;
            let status = response.status();
            let body = Limited::new(response.into_body(), REPLY_BYTES_MAX).collect().await;
            let body = body.map_err(|error| error.to_string())?.to_bytes();
            Ok::<_, String>((status, body))
        };
        let answer = timeout(limit, exchange).await;
        connection.abort();
        let unknown = |what: String| Failure::Unknown(format!("{endpoint}: {what}"));
        let (status, body) =
            answer.map_err(|_| unknown("no answer in time".to_owned()))?.map_err(unknown)?;
        let text = || {
            let text = String::from_utf8_lossy(&body);
            text.chars().filter(|c| !c.is_control()).take(200).collect::<String>()
        };
        if status == StatusCode::UNAUTHORIZED || status == StatusCode::BAD_REQUEST {
            return Err(Failure::Refused(status, text()));
        }
        if !status.is_success() {
            // Such as a member without a leader, which may still complete the proposal, or without
            // space.
            return Err(unknown(format!("etcd refuses with status {status}: {}", text())));
        }
        serde_json::from_slice(&body).map_err(|error| unknown(error.to_string()))
    }
}

type Requests = http1::SendRequest<Full<Bytes>>;

/// Begins HTTP on a stream. The task that carries it ends with the handle.
async fn exchange<S>(stream: S) -> hyper::Result<(Requests, JoinHandle<hyper::Result<()>>)>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (requests, connection) = http1::handshake(TokioIo::new(stream)).await?;
    Ok((requests, spawn_local(connection)))
}

fn no_answer(failure: Failure) -> NoAnswer {
    NoAnswer(match failure {
        Failure::NotSent(what) | Failure::Unknown(what) => what,
        Failure::Refused(status, what) => format!("etcd refuses with status {status}: {what}"),
    })
}

/// The record in an answer to a range request.
fn stored(reply: &Value) -> Result<Option<Stored>, &'static str> {
    reply.get("header").and_then(Value::as_object).ok_or("no header")?;
    let Some(found) = reply.get("kvs") else { return Ok(None) };
    let [found] = found.as_array().map(Vec::as_slice).ok_or("kvs is no list")? else {
        return Err("not one key");
    };
    let revision = found.get("mod_revision").and_then(Value::as_str).ok_or("no revision")?;
    let digits = !revision.is_empty() && revision.bytes().all(|byte| byte.is_ascii_digit());
    let version = StoredVersion::new(revision).filter(|_| digits && revision != "0");
    let value = found.get("value").and_then(Value::as_str).unwrap_or_default();
    if value.len() > RECORD_BYTES_MAX * 2 {
        return Err("the value is too long");
    }
    let bytes = Base64::decode_vec(value).map_err(|_| "the value is no base64")?;
    Ok(Some(Stored { version: version.ok_or("an invalid revision")?, bytes }))
}

fn client_config(tls: &ArbiterTls) -> Result<ClientConfig, TlsError> {
    let own = tls.own.as_ref().map(|(certificate, key)| OwnCertificate { certificate, key });
    http::tls::client_config(tls.ca_file.as_deref(), own)
}

/// The first line of a file that only its owner can read.
#[expect(clippy::disallowed_methods, reason = "on the arbiter's thread, and at the start")]
fn password(file: &PathBuf) -> io::Result<String> {
    use std::io::Read as _;
    use std::os::unix::fs::PermissionsExt as _;
    let opened = std::fs::File::open(file)?;
    if opened.metadata()?.permissions().mode() & 0o077 != 0 {
        return Err(io::Error::other("others can read the password: set its mode to 0600"));
    }
    let mut text = String::new();
    opened.take(PASSWORD_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
#[path = "etcd_tests.rs"]
mod tests;

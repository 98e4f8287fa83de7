//! Object store for tests, in the protocols of three clouds, with faults that a real one has
//! rarely.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::rc::Rc;
use std::time::Duration;

use flagstone_arbiter::{ArbiterRecord, ReplicaId};
use flagstone_config::Cloud;
use percent_encoding::percent_decode_str;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;
use tokio::time::sleep;

pub(super) const VOLUME: ReplicaId = ReplicaId([9; 16]);

/// A fault of the next request for a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The connection ends before the request is carried out.
    ResetBefore,
    /// The request is carried out, and the connection ends.
    ResetAfter,
    /// The request is carried out, and nothing is answered.
    Silence,
    /// This status, and nothing is carried out.
    Status(u16),
    /// S3's status 409: nothing is carried out, and nothing is said about the object.
    Undecided,
    /// Carried out, and answered with status 503.
    LateFailure,
    /// Carried out, and answered with a conflict: the store has repeated its own request.
    OwnConflict,
    /// Half of an answer.
    Torn,
    /// An object that is no record.
    Garbage,
    /// An object without end.
    Endless,
    /// An object without a version.
    Untagged,
}

/// How the store breaks its promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    None,
    IgnoresIfNoneMatch,
    IgnoresIfMatch,
    /// Only the existence of the object counts.
    IgnoresTag,
    /// It compares, and stores later.
    ComparesFirst,
    /// Conditions are honored for the probe, and ignored for records.
    OnlyProbe,
    /// It refuses, and stores nevertheless.
    StoresRefused,
}

pub(super) struct Fake {
    pub(super) cloud: Cloud,
    pub(super) port: u16,
    flaw: Flaw,
    pub(super) objects: RefCell<BTreeMap<String, Vec<u8>>>,
    /// Of the next requests for a record.
    pub(super) faults: RefCell<VecDeque<Option<Fault>>>,
    /// Of the requests of the probe, again and again.
    pub(super) probe_faults: RefCell<VecDeque<Option<Fault>>>,
    /// Requests of the probe after which its object vanishes.
    pub(super) removals: RefCell<Vec<usize>>,
    pub(super) probe_requests: Cell<usize>,
    pub(super) probe_paths: RefCell<BTreeSet<String>>,
    /// Key IDs that signed requests.
    pub(super) signers: RefCell<Vec<String>>,
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// As S3: the same content has the same tag.
fn tag(bytes: &[u8]) -> String {
    format!("\"{:016x}\"", hash(bytes))
}

/// As Google: a number. Its tag says nothing.
fn generation(bytes: &[u8]) -> String {
    (hash(bytes) >> 1).to_string()
}

impl Fake {
    /// Headers of an answer about an object.
    fn versions(&self, bytes: &[u8]) -> String {
        let modified = "last-modified: Fri, 27 Nov 2026 12:00:00 GMT\r\n";
        match self.cloud {
            Cloud::S3 => format!("etag: {}\r\n", tag(bytes)),
            Cloud::Azure => format!("etag: {}\r\n{modified}", tag(bytes)),
            Cloud::Google => {
                let generation = generation(bytes);
                format!("etag: \"tag\"\r\nx-goog-generation: {generation}\r\n{modified}")
            }
        }
    }

    /// The condition of a write: the version that it expects, or `None` for no object.
    fn condition(&self, head: &str) -> Option<String> {
        let found = ["if-none-match", "if-match", "x-goog-if-generation-match"]
            .map(|name| header(head, name));
        match (self.cloud, found.each_ref().map(Option::as_deref)) {
            (Cloud::S3 | Cloud::Azure, [Some("*"), None, None]) => None,
            (Cloud::Google, [None, None, Some("0")]) => None,
            (Cloud::S3 | Cloud::Azure, [None, Some(version), None]) => Some(version.to_owned()),
            (Cloud::Google, [None, None, Some(version)]) => Some(version.to_owned()),
            (cloud, found) => panic!("{cloud:?}: a write without one condition: {found:?}"),
        }
    }

    fn version(&self, bytes: &[u8]) -> String {
        if self.cloud == Cloud::Google { generation(bytes) } else { tag(bytes) }
    }

    pub(super) async fn start(flaw: Flaw) -> Rc<Fake> {
        Fake::of(Cloud::S3, flaw).await
    }

    pub(super) async fn of(cloud: Cloud, flaw: Flaw) -> Rc<Fake> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let fake = Rc::new(Fake {
            cloud,
            port,
            flaw,
            objects: RefCell::default(),
            faults: RefCell::default(),
            probe_faults: RefCell::default(),
            removals: RefCell::default(),
            probe_requests: Cell::default(),
            probe_paths: RefCell::default(),
            signers: RefCell::default(),
        });
        let serving = fake.clone();
        spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let fake = serving.clone();
                spawn_local(async move { fake.serve(stream).await });
            }
        });
        fake
    }

    async fn serve(&self, mut stream: TcpStream) {
        let mut input = Vec::new();
        let (head, body) = loop {
            if stream.read_buf(&mut input).await.unwrap_or(0) == 0 {
                return;
            }
            let text = String::from_utf8_lossy(&input).into_owned();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = header(head, "content-length").and_then(|text| text.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                break (head.to_owned(), body.as_bytes().to_vec());
            }
        };
        let host = header(&head, "host").unwrap_or_default();
        assert_eq!(host, format!("127.0.0.1:{}", self.port));
        let path = head.split(' ').nth(1).unwrap_or_default();
        let path = percent_decode_str(path).decode_utf8_lossy().into_owned();
        let signer = header(&head, "authorization")
            .and_then(|text| Some(text.split_once("Credential=")?.1.split('/').next()?.to_owned()));
        self.signers.borrow_mut().push(signer.unwrap_or_default());
        let is_probe = path.contains("/failover/probe-");
        let fault = if is_probe {
            self.probe_paths.borrow_mut().insert(path.clone());
            self.probe_requests.set(self.probe_requests.get() + 1);
            let mut faults = self.probe_faults.borrow_mut();
            let next = faults.pop_front();
            faults.extend(next);
            next.flatten()
        } else {
            self.faults.borrow_mut().pop_front().flatten()
        };
        if is_probe && self.removals.borrow().contains(&self.probe_requests.get()) {
            self.objects.borrow_mut().remove(&path);
        }
        match fault {
            Some(Fault::ResetBefore) => return,
            Some(Fault::Undecided) => {
                let error = b"<Error><Code>ConditionalRequestConflict</Code></Error>";
                return answer(&mut stream, 409, "", error).await;
            }
            Some(Fault::Status(status)) => {
                let error = "<Error><Code>SlowDown</Code><Message>wait</Message>\
                             <AWSAccessKeyId>key-in-answer</AWSAccessKeyId></Error>";
                return answer(&mut stream, status, "", error.as_bytes()).await;
            }
            _ => {}
        }
        if head.starts_with("GET") {
            return self.get(stream, &path, fault).await;
        }
        let (status, code) = self.put(&head, &path, is_probe, body).await;
        match fault {
            Some(Fault::ResetAfter) => {}
            Some(Fault::Silence) => sleep(Duration::from_secs(60)).await,
            Some(Fault::LateFailure) => answer(&mut stream, 503, "", b"busy").await,
            Some(Fault::OwnConflict) => answer(&mut stream, 412, "", b"").await,
            _ => {
                let headers = self.versions(path.as_bytes());
                let error = format!("<Error><Code>{code}</Code><Message>m</Message></Error>");
                answer(&mut stream, status, &headers, error.as_bytes()).await;
            }
        }
    }

    async fn get(&self, mut stream: TcpStream, path: &str, fault: Option<Fault>) {
        let found = self.objects.borrow().get(path).cloned();
        let Some(bytes) = found else {
            let bucket = self.objects.borrow().contains_key("no bucket");
            let code = match (self.cloud, bucket) {
                (Cloud::Azure, true) => "ContainerNotFound",
                (Cloud::Azure, false) => "BlobNotFound",
                (_, true) => "NoSuchBucket",
                (_, false) => "NoSuchKey",
            };
            let error = format!("<Error><Code>{code}</Code><Message>gone</Message></Error>");
            return answer(&mut stream, 404, "", error.as_bytes()).await;
        };
        let headers = self.versions(&bytes);
        match fault {
            Some(Fault::Torn) => {
                let head = format!("HTTP/1.1 200 x\r\n{headers}content-length: 999\r\n\r\n");
                let _ = stream.write_all(head.as_bytes()).await;
                let _ = stream.write_all(&bytes).await;
            }
            Some(Fault::Garbage) => answer(&mut stream, 200, &headers, b"garbage").await,
            Some(Fault::Untagged) => answer(&mut stream, 200, "", &bytes).await,
            Some(Fault::Endless) => {
                let head = format!("HTTP/1.1 200 x\r\n{headers}content-length: 9999999999\r\n\r\n");
                let _ = stream.write_all(head.as_bytes()).await;
                while stream.write_all(&[b'x'; 65536]).await.is_ok() {}
            }
            Some(Fault::Silence) => sleep(Duration::from_secs(60)).await,
            Some(Fault::ResetAfter) => {}
            Some(Fault::LateFailure) => answer(&mut stream, 503, "", b"busy").await,
            _ => answer(&mut stream, 200, &headers, &bytes).await,
        }
    }

    async fn put(&self, head: &str, path: &str, probe: bool, body: Vec<u8>) -> (u16, &'static str) {
        let honest = self.flaw == Flaw::OnlyProbe && probe;
        let flaw = if honest { Flaw::None } else { self.flaw };
        let found = self.objects.borrow().get(path).cloned();
        let condition = self.condition(head);
        let creates = condition.is_none();
        let refused = match condition {
            None => found.is_some() && flaw != Flaw::IgnoresIfNoneMatch,
            Some(expected) => match flaw {
                Flaw::IgnoresIfMatch | Flaw::OnlyProbe => false,
                Flaw::IgnoresTag => found.is_none(),
                _ => found.is_none_or(|bytes| self.version(&bytes) != expected),
            },
        };
        if flaw == Flaw::ComparesFirst {
            tokio::task::yield_now().await;
            sleep(Duration::from_millis(20)).await;
        }
        if refused && flaw != Flaw::StoresRefused {
            return match (self.cloud, creates) {
                (Cloud::Azure, true) => (409, "BlobAlreadyExists"),
                _ => (412, "PreconditionFailed"),
            };
        }
        self.objects.borrow_mut().insert(path.to_owned(), body);
        if refused { (412, "PreconditionFailed") } else { (200, "") }
    }

    pub(super) fn record(&self) -> Option<ArbiterRecord> {
        let objects = self.objects.borrow();
        let bytes = objects.get(&format!("/bucket/prefix/failover/{VOLUME}"))?;
        Some(ArbiterRecord::decode(bytes).expect("a record"))
    }

    pub(super) fn store(&self, record: &ArbiterRecord) {
        let path = format!("/bucket/prefix/failover/{VOLUME}");
        self.objects.borrow_mut().insert(path, record.encode());
    }
}

fn header(head: &str, name: &str) -> Option<String> {
    let mut pairs = head.lines().filter_map(|line| line.split_once(": "));
    pairs.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
}

async fn answer(stream: &mut TcpStream, status: u16, headers: &str, body: &[u8]) {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} x\r\n{headers}content-length: {length}\r\n\r\n");
    let _ = stream.write_all(head.as_bytes()).await;
    let _ = stream.write_all(body).await;
}

//! Tests of the client against a server that has faults a real one has rarely. A race runs through
//! each, and grants only records that are stored. `tests/tests/failover_bucket.rs` asks a real server.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::rc::Rc;

use flagstone_arbiter::Record;
use flagstone_arbiter::race::{self, Action, Ask, Denial, Event, Goal, State};
use flagstone_config::BucketUrl;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use super::*;
use crate::arbiter::bounded;

const OWN: ReplicaId = ReplicaId([1; 16]);
const PEER: ReplicaId = ReplicaId([2; 16]);
const VOLUME: ReplicaId = ReplicaId([9; 16]);

/// A fault of the next request for a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
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
enum Flaw {
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

struct Fake {
    port: u16,
    flaw: Flaw,
    objects: RefCell<BTreeMap<String, Vec<u8>>>,
    /// Of the next requests for a record.
    faults: RefCell<VecDeque<Option<Fault>>>,
    /// Of the requests of the probe, again and again.
    probe_faults: RefCell<VecDeque<Option<Fault>>>,
    /// Requests of the probe after which its object vanishes.
    removals: RefCell<Vec<usize>>,
    probe_requests: Cell<usize>,
    probe_paths: RefCell<BTreeSet<String>>,
    /// Key IDs that signed requests.
    signers: RefCell<Vec<String>>,
}

/// As S3: the same content has the same tag.
fn tag(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

impl Fake {
    async fn start(flaw: Flaw) -> Rc<Fake> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let fake = Rc::new(Fake {
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
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
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
                let headers = format!("etag: {}\r\n", tag(path.as_bytes()));
                let error = format!("<Error><Code>{code}</Code><Message>m</Message></Error>");
                answer(&mut stream, status, &headers, error.as_bytes()).await;
            }
        }
    }

    async fn get(&self, mut stream: TcpStream, path: &str, fault: Option<Fault>) {
        let found = self.objects.borrow().get(path).cloned();
        let Some(bytes) = found else {
            let bucket = self.objects.borrow().contains_key("no bucket");
            let code = if bucket { "NoSuchBucket" } else { "NoSuchKey" };
            let error = format!("<Error><Code>{code}</Code><Message>gone</Message></Error>");
            return answer(&mut stream, 404, "", error.as_bytes()).await;
        };
        let headers = format!("etag: {}\r\n", tag(&bytes));
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
        let create = header(head, "if-none-match");
        let refused = match (&create, header(head, "if-match")) {
            (Some(star), None) => {
                assert_eq!(star, "*");
                found.is_some() && flaw != Flaw::IgnoresIfNoneMatch
            }
            (None, Some(expected)) => match flaw {
                Flaw::IgnoresIfMatch | Flaw::OnlyProbe => false,
                Flaw::IgnoresTag => found.is_none(),
                _ => found.is_none_or(|bytes| tag(&bytes) != expected),
            },
            other => panic!("a write without one condition: {other:?}"),
        };
        if flaw == Flaw::ComparesFirst {
            tokio::task::yield_now().await;
            sleep(Duration::from_millis(20)).await;
        }
        if refused && flaw != Flaw::StoresRefused {
            return (412, "PreconditionFailed");
        }
        self.objects.borrow_mut().insert(path.to_owned(), body);
        if refused { (412, "PreconditionFailed") } else { (200, "") }
    }

    fn record(&self) -> Option<Record> {
        let objects = self.objects.borrow();
        let bytes = objects.get(&format!("/bucket/prefix/failover/{VOLUME}"))?;
        Some(Record::decode(bytes).expect("a record"))
    }

    fn store(&self, record: &Record) {
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

/// A client, and its file of credentials.
struct Setup {
    bucket: Bucket,
    file: tempfile::NamedTempFile,
}

fn credentials(id: &str) -> String {
    format!("[default]\naws_access_key_id = {id}\naws_secret_access_key=secret-of-{id}\n")
}

fn settings(port: u16, file: &tempfile::NamedTempFile) -> BucketStore {
    BucketStore {
        object_store: BucketUrl {
            cloud: Cloud::S3,
            bucket: "bucket".into(),
            prefix: "prefix".into(),
        },
        region: "us-east-1".into(),
        account: String::new(),
        endpoint: Some(format!("http://127.0.0.1:{port}")),
        ca_file: None,
        credentials_file: Some(file.path().to_owned()),
    }
}

fn file_with(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(text.as_bytes()).expect("it can be written");
    file
}

fn setup(fake: &Fake) -> Setup {
    let file = file_with(&credentials("first"));
    let bucket = Bucket::new(&settings(fake.port, &file)).expect("it can be read");
    Setup { bucket, file }
}

async fn proven(fake: &Fake) -> Setup {
    let setup = setup(fake);
    setup.bucket.prove().await;
    setup.bucket.proven().expect("the store is honest");
    setup
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    tokio::task::LocalSet::new().block_on(&runtime.expect("a runtime"), test)
}

fn both() -> Record {
    let in_sync = vec![OWN, PEER];
    let (epoch, revision, writer) = (5, 7, 1);
    Record { volume: VOLUME, epoch, revision, source: OWN, in_sync, maintenance: false, writer }
}

fn ask(goal: Goal) -> Ask {
    let (volume, own, seen_revision, writer) = (VOLUME, OWN, 7, 2);
    Ask { volume, own, seen_revision, writer, suspended: false, succeeds: false, goal }
}

async fn decide(bucket: &Bucket, ask: Ask) -> Result<Record, Denial> {
    let (mut state, mut action) = race::start(ask);
    loop {
        let event = match action {
            Action::Read => Event::Read(bounded(bucket.read(VOLUME)).await),
            Action::Write { expected, record } => {
                let written = bucket.write(VOLUME, expected, record.encode());
                Event::Written(bounded(written).await)
            }
            Action::Rehearse(record) => {
                Event::Rehearsed(bounded(bucket.rehearse(VOLUME, record.encode())).await)
            }
            Action::Pause(_) => Event::Paused,
        };
        let (next, following) = race::next(state, event);
        match next {
            State::Ended(result) => return result,
            other => state = other,
        }
        action = following.expect("a race goes on or ends");
    }
}

/// Each fault, at each request of a race: it ends with a grant that is stored, or with a denial.
#[test]
fn race_grants_only_what_is_stored() {
    let faults = [
        Fault::ResetBefore,
        Fault::ResetAfter,
        Fault::Silence,
        Fault::Status(409),
        Fault::Undecided,
        Fault::Status(429),
        Fault::Status(503),
        Fault::LateFailure,
        Fault::OwnConflict,
        Fault::Torn,
        Fault::Garbage,
        Fault::Endless,
        Fault::Untagged,
    ];
    for (fault, at) in faults.into_iter().flat_map(|fault| (0..2).map(move |at| (fault, at))) {
        run(async {
            let fake = Fake::start(Flaw::None).await;
            let setup = proven(&fake).await;
            fake.store(&both());
            fake.faults.borrow_mut().extend(vec![None; at]);
            fake.faults.borrow_mut().push_back(Some(fault));
            let result =
                decide(&setup.bucket, ask(Goal::TakeOver { seen_epoch: 5, rank: 0 })).await;
            match result {
                Ok(granted) => {
                    assert_eq!(fake.record(), Some(granted.clone()), "{fault:?}");
                    assert_eq!((granted.revision, granted.in_sync), (8, vec![OWN]), "{fault:?}");
                }
                Err(Denial::Unreadable(_)) => {
                    assert_eq!((fault, at), (Fault::Garbage, 0));
                    assert_eq!(fake.record(), Some(both()), "nothing is written");
                }
                Err(denial) => panic!("{fault:?}: {denial}"),
            }
        });
    }
}

/// Two nodes race for the same record, while every second answer is lost: one wins.
#[test]
fn one_of_two_racing_nodes_wins() {
    run(async {
        for round in 0..20 {
            let fake = Fake::start(Flaw::None).await;
            let (one, two) = (proven(&fake).await, proven(&fake).await);
            fake.store(&both());
            let lost = [None, Some(Fault::ResetAfter)];
            fake.faults.borrow_mut().extend(lost.iter().cycle().skip(round % 2).take(8));
            let other =
                Ask { own: PEER, writer: 3, ..ask(Goal::TakeOver { seen_epoch: 5, rank: 1 }) };
            let results = tokio::join!(
                decide(&one.bucket, ask(Goal::GoAlone { epoch: 5 })),
                decide(&two.bucket, other)
            );
            let stored = fake.record().expect("a record");
            match results {
                (Ok(won), Err(Denial::Lost { .. })) | (Err(Denial::Lost { .. }), Ok(won)) => {
                    assert_eq!(won, stored);
                }
                results => panic!("{results:?}"),
            }
        }
    });
}

#[test]
fn store_that_ignores_conditions_is_refused() {
    for (flaw, named) in [
        (Flaw::IgnoresIfNoneMatch, "created an object that exists"),
        (Flaw::IgnoresIfMatch, "never existed"),
        (Flaw::IgnoresTag, "never existed"),
        (Flaw::ComparesFirst, "several writes"),
        (Flaw::StoresRefused, "although it refused"),
    ] {
        run(async {
            let fake = Fake::start(flaw).await;
            let setup = setup(&fake);
            fake.store(&both());
            setup.bucket.prove().await;
            let refused = setup.bucket.read(VOLUME).await.expect_err("refused").0;
            assert!(refused.contains(named), "{flaw:?}: {refused}");
            setup.bucket.write(VOLUME, None, b"x".to_vec()).await.expect_err("refused");
            setup.bucket.rehearse(VOLUME, b"x".to_vec()).await.expect_err("refused");
            assert_eq!(fake.record(), Some(both()), "the record is untouched");
        });
    }
}

/// A store that limits the rate, or loses requests, was never proven: each began the probe again.
#[test]
fn faults_during_the_probe_do_not_restart_it() {
    for fault in [
        Fault::Status(429),
        Fault::Status(503),
        Fault::Undecided,
        Fault::ResetBefore,
        Fault::ResetAfter,
        Fault::LateFailure,
    ] {
        run(async {
            let fake = Fake::start(Flaw::None).await;
            *fake.probe_faults.borrow_mut() = [None, None, Some(fault)].into();
            let setup = setup(&fake);
            let proven = timeout(Duration::from_secs(20), setup.bucket.prove()).await;
            proven.unwrap_or_else(|_| panic!("{fault:?}: it begins again and again"));
            setup.bucket.proven().unwrap_or_else(|refused| panic!("{fault:?}: {refused}"));
            let requests = fake.probe_requests.get();
            assert!(requests > 30, "{fault:?}: {requests} requests, some in vain");
        });
    }
}

/// A rule or an operator who removes the probe's object looked like a flaw, until the next restart.
#[test]
fn removed_probe_object_is_no_flaw() {
    for at in 1..=30 {
        run(async {
            let fake = Fake::start(Flaw::None).await;
            let setup = setup(&fake);
            fake.removals.borrow_mut().push(at);
            setup.bucket.prove().await;
            setup.bucket.proven().unwrap_or_else(|refused| panic!("request {at}: {refused}"));
        });
    }
}

/// A first create that is not decided yet must not count as an object that exists.
#[test]
fn undecided_create_of_the_probe_is_no_flaw() {
    run(async {
        let fake = Fake::start(Flaw::None).await;
        *fake.probe_faults.borrow_mut() = VecDeque::from([None; 200]);
        for at in [0, 1, 2] {
            fake.probe_faults.borrow_mut()[at] = Some(Fault::Undecided);
        }
        let setup = setup(&fake);
        setup.bucket.prove().await;
        setup.bucket.proven().expect("the store is honest");
        let paths = fake.probe_paths.borrow();
        let name = format!("/bucket/prefix/failover/probe-{}", node_name());
        assert_eq!(paths.iter().collect::<Vec<_>>(), [&name], "an object of this node");
    });
}

/// A store that is changed while the daemon runs is found out by the next rehearsal.
#[test]
fn rehearsal_that_succeeds_ends_use_of_store() {
    run(async {
        let fake = Fake::start(Flaw::OnlyProbe).await;
        let setup = proven(&fake).await;
        fake.store(&both());
        let refused = setup.bucket.rehearse(VOLUME, both().encode()).await.expect_err("refused");
        assert!(refused.0.contains("ignores conditional writes"), "{refused}");
        setup.bucket.read(VOLUME).await.expect_err("it is not used any more");
    });
}

#[test]
fn store_is_not_used_before_it_is_probed() {
    run(async {
        let fake = Fake::start(Flaw::None).await;
        let setup = setup(&fake);
        fake.store(&both());
        setup.bucket.read(VOLUME).await.expect_err("not probed yet");
        assert!(fake.signers.borrow().is_empty(), "nothing is sent");
        setup.bucket.prove().await;
        assert!(setup.bucket.read(VOLUME).await.is_ok_and(|found| found.is_some()));
        setup.bucket.rehearse(VOLUME, both().encode()).await.expect("it would be accepted");
        assert_eq!(fake.record(), Some(both()));
    });
}

/// It looked like a record that was lost.
#[test]
fn missing_bucket_is_no_missing_record() {
    run(async {
        let fake = Fake::start(Flaw::None).await;
        let setup = proven(&fake).await;
        assert_eq!(setup.bucket.read(VOLUME).await, Ok(None));
        fake.objects.borrow_mut().insert("no bucket".into(), Vec::new());
        let failed = setup.bucket.read(VOLUME).await.expect_err("no answer");
        assert!(failed.0.contains("NoSuchBucket"), "{failed}");
    });
}

#[test]
fn errors_name_cause_and_no_key() {
    run(async {
        let fake = Fake::start(Flaw::None).await;
        let setup = proven(&fake).await;
        fake.store(&both());
        for status in [400, 403, 503] {
            fake.faults.borrow_mut().push_back(Some(Fault::Status(status)));
            let failed = setup.bucket.read(VOLUME).await.expect_err("no answer").0;
            assert!(failed.contains(&status.to_string()), "{failed}");
            assert!(failed.contains("SlowDown: wait"), "{failed}");
            assert!(!failed.contains("key-in-answer") && !failed.contains("first"), "{failed}");
        }
        for (fault, cause) in
            [(Fault::ResetAfter, "connection failed"), (Fault::Endless, "length limit exceeded")]
        {
            fake.faults.borrow_mut().push_back(Some(fault));
            let failed = setup.bucket.read(VOLUME).await.expect_err("no answer").0;
            assert!(failed.contains(cause), "{failed}");
        }
    });
}

#[test]
fn changed_credentials_are_used() {
    run(async {
        let fake = Fake::start(Flaw::None).await;
        let mut setup = proven(&fake).await;
        assert!(fake.signers.borrow().iter().all(|id| id == "first"));
        setup.file.as_file().set_len(0).expect("it can be emptied");
        setup.bucket.read(VOLUME).await.expect_err("it is empty");
        let text = credentials("second");
        std::io::Seek::rewind(&mut setup.file).expect("a file");
        setup.file.write_all(text.as_bytes()).expect("it can be written");
        setup.bucket.read(VOLUME).await.expect("it has another key");
        assert_eq!(fake.signers.borrow().last().map(String::as_str), Some("second"));
    });
}

#[test]
fn credentials_are_checked_and_not_quoted() {
    let refused = |cloud, text: &str| {
        let file = file_with(text);
        let mut settings = settings(1, &file);
        settings.object_store.cloud = cloud;
        settings.account = "account".into();
        Bucket::new(&settings).err().map(|error| error.to_string())
    };
    for (cloud, text, named) in [
        (Cloud::S3, "", "has no aws_access_key_id"),
        (Cloud::S3, "aws_access_key_id = secret", "has no aws_secret_access_key"),
        (Cloud::S3, "aws_access_key_id = secret\naws_access_key_id = secret", "has more than one"),
        (Cloud::S3, "aws_access_key_id = \u{201c}k\naws_secret_access_key = s", "printable ASCII"),
        (Cloud::S3, "aws_access_key_id = k\naws_secret_access_key = s\u{200b}", "printable ASCII"),
        (
            Cloud::S3,
            "aws_access_key_id = k\naws_secret_access_key = s\naws_session_token = a\u{1}b",
            "printable ASCII",
        ),
        (
            Cloud::S3,
            "aws_access_key_id = k\naws_secret_access_key = s\naws_session_token =",
            "has an empty aws_session_token",
        ),
        (Cloud::Azure, "account_key = secret!\u{201d}", "printable ASCII"),
        (Cloud::Google, "{\"secret\": 1}", "do not have the form"),
        (Cloud::Google, "secret", "do not have the form"),
        (Cloud::Azure, "secret", "has no account_key"),
        (Cloud::Azure, "account_key = secret!", "do not have the form"),
        (Cloud::Azure, "sas_token = secret", "do not have the form"),
    ] {
        let refused = refused(cloud, text).expect(named);
        assert!(refused.contains(named), "{refused}");
        assert!(!refused.contains("secret!") && !refused.contains("= secret"), "{refused}");
    }
    assert_eq!(refused(Cloud::Azure, "account_key = c2VjcmV0"), None);
    assert_eq!(refused(Cloud::Azure, "sas_token = ?sv=2024&sig=c2VjcmV0"), None);
    let file = file_with(&credentials("first"));
    let open = std::fs::Permissions::from_mode(0o644);
    file.as_file().set_permissions(open).expect("own file");
    let refused = Bucket::new(&settings(1, &file)).err().expect("others may read it");
    assert!(refused.to_string().contains("chmod 600"), "{refused}");
}

//! Tests of the client against a server that has faults a real one has rarely. A race runs through
//! each, and grants only records that are stored. `tests/tests/failover_bucket.rs` asks a real
//! server.

use std::collections::VecDeque;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use flagstone_arbiter::ArbiterRecord;
use flagstone_arbiter::race::{self, Ask, Denial, Goal, RaceAction, RaceEvent, RaceState};
use flagstone_config::BucketUrl;

use super::fake::{Fake, Fault, Flaw, VOLUME};
use super::*;
use crate::arbiter::bounded;

const OWN: ReplicaId = ReplicaId([1; 16]);
const PEER: ReplicaId = ReplicaId([2; 16]);
const CLOUDS: [Cloud; 3] = [Cloud::S3, Cloud::Google, Cloud::Azure];

/// A client, and its file of credentials.
struct Setup {
    bucket: Bucket,
    file: tempfile::NamedTempFile,
}

fn credentials(id: &str) -> String {
    format!("[default]\naws_access_key_id = {id}\naws_secret_access_key=secret-of-{id}\n")
}

/// A file with credentials of this cloud.
fn credentials_of(cloud: Cloud) -> String {
    match cloud {
        Cloud::S3 => credentials("first"),
        Cloud::Azure => "account_key = c2VjcmV0\n".to_owned(),
        Cloud::Google => {
            let made = Command::new("openssl").args(["genpkey", "-algorithm", "RSA"]).output();
            let key = String::from_utf8(made.expect("openssl is installed").stdout).expect("PEM");
            let (email, id) = ("flagstone@project", "1");
            let account = serde_json::json!({
                "client_email": email, "private_key_id": id, "private_key": key
            });
            account.to_string()
        }
    }
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
    let file = file_with(&credentials_of(fake.cloud));
    let mut settings = settings(fake.port, &file);
    settings.object_store.cloud = fake.cloud;
    if fake.cloud == Cloud::Azure {
        settings.account = "account".into();
    }
    let bucket = Bucket::new(&settings).expect("it can be read");
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

fn both() -> ArbiterRecord {
    let in_sync = vec![OWN, PEER];
    let (epoch, revision, writer) = (5, 7, 1);
    ArbiterRecord {
        volume: VOLUME,
        epoch,
        revision,
        source: OWN,
        in_sync,
        maintenance: false,
        writer,
    }
}

fn ask(goal: Goal) -> Ask {
    let (volume, own, seen_revision, writer) = (VOLUME, OWN, 7, 2);
    Ask { volume, own, seen_revision, writer, suspended: false, succeeds: false, goal }
}

async fn decide(bucket: &Bucket, ask: Ask) -> Result<ArbiterRecord, Denial> {
    let (mut state, mut action) = race::start(ask);
    loop {
        let event = match action {
            RaceAction::Read => RaceEvent::Read(bounded(bucket.read(VOLUME)).await),
            RaceAction::Write { expected, record } => {
                let written = bucket.write(VOLUME, expected, record.encode());
                RaceEvent::Written(bounded(written).await)
            }
            RaceAction::ProbeWrite(record) => {
                RaceEvent::WriteProbed(bounded(bucket.probe_write(VOLUME, record.encode())).await)
            }
            RaceAction::Pause(_) => RaceEvent::Paused,
        };
        let (next, following) = race::next(state, event);
        match next {
            RaceState::Ended(result) => return result,
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
    let places = CLOUDS.into_iter().flat_map(|cloud| [(cloud, 0), (cloud, 1)]);
    for (fault, (cloud, at)) in
        faults.into_iter().flat_map(|fault| places.clone().map(move |place| (fault, place)))
    {
        run(async {
            let fake = Fake::of(cloud, Flaw::None).await;
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
            let fake = Fake::of(CLOUDS[round % 3], Flaw::None).await;
            let (one, two) = (proven(&fake).await, proven(&fake).await);
            fake.store(&both());
            let lost = [None, Some(Fault::ResetAfter)];
            fake.faults.borrow_mut().extend(lost.iter().cycle().skip(round % 2).take(8));
            let other =
                Ask { own: PEER, writer: 3, ..ask(Goal::TakeOver { seen_epoch: 5, rank: 1 }) };
            let results = tokio::join!(
                decide(&one.bucket, ask(Goal::RunDegraded { epoch: 5 })),
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
        for cloud in CLOUDS {
            run(async {
                let fake = Fake::of(cloud, flaw).await;
                let setup = setup(&fake);
                fake.store(&both());
                setup.bucket.prove().await;
                let refused = setup.bucket.read(VOLUME).await.expect_err("refused").0;
                assert!(refused.contains(named), "{cloud:?}, {flaw:?}: {refused}");
                setup.bucket.write(VOLUME, None, b"x".to_vec()).await.expect_err("refused");
                setup.bucket.probe_write(VOLUME, b"x".to_vec()).await.expect_err("refused");
                assert_eq!(fake.record(), Some(both()), "the record is untouched");
            });
        }
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

/// A store that is changed while the daemon runs is found out by the next write probe.
#[test]
fn write_probe_that_succeeds_ends_use_of_store() {
    run(async {
        let fake = Fake::start(Flaw::OnlyProbe).await;
        let setup = proven(&fake).await;
        fake.store(&both());
        let refused = setup.bucket.probe_write(VOLUME, both().encode()).await.expect_err("refused");
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
        setup.bucket.probe_write(VOLUME, both().encode()).await.expect("it would be accepted");
        assert_eq!(fake.record(), Some(both()));
    });
}

/// It looked like a record that was lost.
#[test]
fn missing_bucket_is_no_missing_record() {
    for cloud in CLOUDS {
        run(async {
            let fake = Fake::of(cloud, Flaw::None).await;
            let setup = proven(&fake).await;
            assert_eq!(setup.bucket.read(VOLUME).await, Ok(None), "{cloud:?}");
            fake.objects.borrow_mut().insert("no bucket".into(), Vec::new());
            let failed = setup.bucket.read(VOLUME).await.expect_err("no answer").0;
            let named = failed.contains("NoSuchBucket") || failed.contains("ContainerNotFound");
            assert!(named, "{cloud:?}: {failed}");
        });
    }
}

/// The fake checks that each write has one condition, in the header of its cloud.
#[test]
fn versions_of_each_cloud_are_compared() {
    for cloud in CLOUDS {
        run(async {
            let fake = Fake::of(cloud, Flaw::None).await;
            let setup = proven(&fake).await;
            let bucket = &setup.bucket;
            let write = async |expected, text: &str| {
                bucket.write(VOLUME, expected, text.as_bytes().to_vec()).await
            };
            assert_eq!(write(None, "one").await, Ok(Written::Yes), "{cloud:?}");
            assert_eq!(write(None, "two").await, Ok(Written::Conflict), "{cloud:?}");
            let one = bucket.read(VOLUME).await.expect("an answer").expect("an object");
            assert_eq!(one.bytes, b"one");
            assert_eq!(write(Some(one.clone()), "two").await, Ok(Written::Yes), "{cloud:?}");
            assert_eq!(write(Some(one), "three").await, Ok(Written::Conflict), "{cloud:?}");
            assert_eq!(bucket.probe_write(VOLUME, b"four".to_vec()).await, Ok(()), "{cloud:?}");
            let two = bucket.read(VOLUME).await.expect("an answer").expect("an object");
            assert_eq!(two.bytes, b"two");
            // The limit of the rate, a server in trouble, and a conflict that decides nothing.
            for status in [409, 429, 500, 503] {
                fake.faults.borrow_mut().push_back(Some(Fault::Status(status)));
                let failed = write(Some(two.clone()), "x").await.expect_err("no answer").0;
                assert!(failed.contains(&status.to_string()), "{cloud:?}: {failed}");
            }
        });
    }
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

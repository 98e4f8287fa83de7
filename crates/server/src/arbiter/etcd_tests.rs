//! Tests of the checks on etcd's answers. `tests/tests/failover.rs` asks a real etcd.

use proptest::prelude::*;

use super::*;

#[test]
fn record_in_range_answer_is_found() {
    let header = json!({ "cluster_id": "1", "revision": "8" });
    assert_eq!(stored(&json!({ "header": header })), Ok(None));
    let key = |found: Value| json!({ "header": header, "kvs": [found], "count": "1" });
    let found = stored(&key(json!({ "key": "a2V5", "mod_revision": "7", "value": "dGV4dA==" })));
    let found = found.expect("a valid answer").expect("a record");
    assert_eq!((found.version.as_str(), &found.bytes[..]), ("7", &b"text"[..]));
}

/// A server that gives each request the next of these answers, and ends.
async fn member(answers: Vec<(u16, &'static str)>) -> HostPort {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    spawn_local(async move {
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let reply =
                format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            let _ = stream.write_all(reply.as_bytes()).await;
        }
    });
    HostPort { host: UriHost::Ip(address.ip()), port: address.port() }
}

/// A token that expires is renewed, also if another member is dead: its silence, which came last,
/// hid the refusal.
#[test]
fn refusal_outranks_silence_of_dead_member() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = async {
        let answers = vec![
            (400, "{\"error\":\"auth: revision in header is old\"}"),
            (200, "{\"token\":\"new\"}"),
            (200, "{\"header\":{}}"),
        ];
        let alive = member(answers).await;
        // Bound and dropped, so that no server listens there.
        let dead = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = dead.local_addr().expect("it is bound").port();
        drop(dead);
        let file = std::env::temp_dir().join(format!("flagstone-password-{}", std::process::id()));
        std::fs::write(&file, "secret\n").expect("it can be written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, mode).expect("an own file");
        let etcd = Etcd {
            endpoints: vec![alive, HostPort { host: UriHost::Ip([127, 0, 0, 1].into()), port }],
            prefix: "/p".into(),
            user: Some(("u".into(), file.clone())),
            tls: None,
            preferred: Cell::new(0),
            token: RefCell::new(Some("expired".into())),
        };
        let read = etcd.read(ReplicaId([1; 16])).await;
        std::fs::remove_file(&file).expect("it exists");
        assert_eq!(read, Ok(None));
        assert_eq!(etcd.token.borrow().as_deref(), Some("new"));
    };
    tokio::task::LocalSet::new().block_on(&runtime.expect("a runtime"), done);
}

#[test]
fn invalid_range_answer_is_refused() {
    let header = json!({});
    let long = "A".repeat(4 * RECORD_BYTES_MAX);
    for kvs in [
        json!([]),
        json!({}),
        json!([{}, {}]),
        json!([{ "value": "dGV4dA==" }]),
        json!([{ "mod_revision": "0", "value": "dGV4dA==" }]),
        json!([{ "mod_revision": "-1", "value": "dGV4dA==" }]),
        json!([{ "mod_revision": 7, "value": "dGV4dA==" }]),
        json!([{ "mod_revision": "7", "value": "no base64" }]),
        json!([{ "mod_revision": "7", "value": long }]),
    ] {
        let reply = json!({ "header": header, "kvs": kvs });
        assert!(stored(&reply).is_err(), "{reply}");
    }
    assert!(stored(&json!({ "kvs": [] })).is_err(), "without a header");
    assert!(stored(&json!(7)).is_err());
}

proptest! {
    #[test]
    fn hostile_answer_is_no_panic(text in "\\PC{0,200}") {
        if let Ok(reply) = serde_json::from_str::<Value>(&text) {
            let _ = stored(&reply);
        }
    }
}

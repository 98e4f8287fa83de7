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

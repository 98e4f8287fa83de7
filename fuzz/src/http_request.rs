//! Fuzz target for HTTP API requests: the real service over a pipe.
//!
//! Input: the bytes of one connection, after which its sending side ends. The output is a sequence
//! of responses with statuses and lengths, and each error is a problem document, except where hyper
//! answers a head that it cannot parse. Nothing is left waiting.

use std::rc::Rc;

use flagstone_server::http::Router;
use flagstone_server::http::duplex::converse;
use serde_json::{Value, json};

/// Status lines begin with the version of the request, and a space.
const VERSIONS: [&str; 2] = ["HTTP/1.0 ", "HTTP/1.1 "];

/// Routes with every feature of a pattern, method and body.
fn router() -> Rc<Router> {
    let mut router = Router::new();
    router.get("/v1/volumes", "All.", |_| async { Ok(json!([])) });
    router.get("/v1/volumes/{name}", "One.", |call| async move {
        let name = call.text("name");
        assert!(!name.is_empty() && !name.chars().any(char::is_control));
        Ok(json!([name]))
    });
    router.post("/v1/volumes/{name}/mirror/{action}", "Act.", |call| async move {
        call.without_query()?;
        call.json::<Value>()
    });
    Rc::new(router)
}

/// Converses and checks every response.
pub fn run(input: &[u8]) {
    let output = converse(&router(), input);
    let mut rest = &output[..];
    while !rest.is_empty() {
        let end = rest.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        let end = end.expect("a response has a complete head") + 4;
        let head = std::str::from_utf8(&rest[..end]).expect("heads are ASCII");
        let status: u16 =
            VERSIONS.iter().find_map(|version| head.strip_prefix(version)).expect("the version")
                [..3]
                .parse()
                .unwrap();
        assert!((100..600).contains(&status), "{head}");
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.map_or(0, |length| length.parse::<usize>().unwrap());
        rest = &rest[end..];
        // The answer to HEAD has a length without a body: the next response follows at once.
        if rest.is_empty() || VERSIONS.iter().any(|version| rest.starts_with(version.as_bytes())) {
            continue;
        }
        let body = &rest[..length];
        rest = &rest[length..];
        if status >= 400 {
            let problem: Value = serde_json::from_slice(body).expect("a problem document");
            assert_eq!(problem["status"], status);
        }
    }
}

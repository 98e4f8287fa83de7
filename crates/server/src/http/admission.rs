//! Admission: checks of a request before it is routed, and the reading of its body.
//!
//! hyper has parsed the head and enforced its bounds. What remains is what hyper leaves to the
//! application: one `Host` field, known expectations, a readable target, a bounded body. Requests
//! that only read have none, so that a listener without credentials receives none.

use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri, Version, header};
use hyper::body::Body as _;
use percent_encoding::percent_decode_str;

use crate::http::access::{AccessClaim, Caller};
use crate::http::limits::{
    MAX_BODY_BYTES, MAX_PARAMETERS, MAX_SEGMENTS, MAX_STREAM_BODY_BYTES, STREAM_PATTERN,
    STREAM_TYPE,
};
use crate::http::problem::Problem;

/// Parameters of a query, decoded, in their order.
pub(crate) type Query = Vec<(String, String)>;

/// What a handler gets of a request besides its head: an extension of the request.
#[derive(Clone, Debug)]
pub(crate) struct RequestContext {
    pub(crate) caller: Caller,
    pub(crate) peer: Arc<str>,
    pub(crate) query: Query,
    pub(crate) body: Bytes,
}

/// A request that is not admitted.
#[derive(Debug)]
pub(crate) struct NotAdmitted {
    pub(crate) problem: Problem,
    /// `None` if it is not known.
    pub(crate) caller: Option<Caller>,
}

/// Checks a request of `peer` and receives its body, which becomes the extension
/// [`RequestContext`]. Nothing of a caller without access is received but the head. The caller is
/// `identified` before anything else, so that each refusal names it.
pub(crate) async fn admit(
    request: Request,
    claim: &AccessClaim,
    peer: Arc<str>,
    identified: impl FnOnce(&Caller),
) -> Result<Request, NotAdmitted> {
    let (mut parts, body) = request.into_parts();
    let caller = claim.caller(&parts.method, &parts.headers);
    let caller =
        caller.map_err(|(refusal, caller)| NotAdmitted { problem: refusal.problem(), caller })?;
    identified(&caller);
    let query = match check_head(&parts) {
        Ok(query) => query,
        Err(problem) => return Err(NotAdmitted { problem, caller: Some(caller) }),
    };
    let most = most_bytes(&parts, &caller);
    let body = match whole(body, most).await {
        Ok(body) => body,
        Err(problem) => return Err(NotAdmitted { problem, caller: Some(caller) }),
    };
    parts.extensions.insert(RequestContext { caller, peer, query, body });
    Ok(Request::from_parts(parts, Body::empty()))
}

/// Longest body that is received with a head, in bytes.
fn most_bytes(parts: &Parts, caller: &Caller) -> usize {
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(&parts.method);
    if reads || !caller.is_operator() {
        return 0;
    }
    let is_stream =
        parts.headers.get(header::CONTENT_TYPE).is_some_and(|given| given == STREAM_TYPE);
    match is_stream && fits(STREAM_PATTERN, parts.uri.path()) {
        true => MAX_STREAM_BODY_BYTES,
        false => MAX_BODY_BYTES,
    }
}

/// True if a path has the pattern of a route.
fn fits(pattern: &str, path: &str) -> bool {
    let path = path.strip_suffix('/').unwrap_or(path);
    pattern.split('/').count() == path.split('/').count()
        && pattern
            .split('/')
            .zip(path.split('/'))
            .all(|(part, given)| part == given || part.starts_with('{') && !given.is_empty())
}

/// Checks a head, and reads its query.
fn check_head(parts: &Parts) -> Result<Query, Problem> {
    if parts.version == Version::HTTP_11 {
        check_host(&parts.headers)?;
        check_expectation(&parts.headers)?;
    }
    read_target(&parts.uri)
}

fn bad(detail: impl Into<String>) -> Problem {
    Problem::new(400, "bad-request", "The request cannot be understood", detail)
}

/// RFC 9112, section 3.2.
fn check_host(headers: &HeaderMap) -> Result<(), Problem> {
    match headers.get_all(header::HOST).iter().count() {
        1 => Ok(()),
        count => Err(bad(format!("an HTTP/1.1 request has one Host field, this one has {count}"))
            .accepting(["Host: localhost"])),
    }
}

/// RFC 9110, section 10.1.1.
fn check_expectation(headers: &HeaderMap) -> Result<(), Problem> {
    let known = |value: &[u8]| value.eq_ignore_ascii_case(b"100-continue");
    if headers.get_all(header::EXPECT).iter().all(|value| known(value.as_bytes())) {
        return Ok(());
    }
    let detail = "the field Expect has an unknown value";
    Err(Problem::new(417, "expectation", "Unknown expectation", detail)
        .accepting(["Expect: 100-continue"]))
}

/// Receives a body. A body whose announced length is too large is refused before it is received.
async fn whole(body: Body, most: usize) -> Result<Bytes, Problem> {
    let announced = body.size_hint().lower();
    let too_large = || too_large(most);
    if announced > most as u64 {
        return Err(too_large());
    }
    to_bytes(body, most).await.map_err(|error| {
        let source = std::error::Error::source(&error);
        match source.is_some_and(|source| source.is::<http_body_util::LengthLimitError>()) {
            true => too_large(),
            false => bad(format!("the body ended early or has wrong chunks: {error}")),
        }
    })
}

fn too_large(most: usize) -> Problem {
    let detail = match most {
        0 => "requests that only read have no body".to_owned(),
        most => format!("the body is more than {most} bytes"),
    };
    Problem::new(413, "body-too-large", "The body is too large", detail)
}

/// Checks the path and reads the query of a target in origin or absolute form.
fn read_target(uri: &Uri) -> Result<Query, Problem> {
    let path = uri.path();
    if !path.starts_with('/') {
        return Err(bad("the target is not a path that begins with /").accepting(["/v1/"]));
    }
    if path.split('/').count() > MAX_SEGMENTS + 1 {
        return Err(bad(format!("the path has more than {MAX_SEGMENTS} segments")));
    }
    decoded(path)?;
    let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    if pairs.clone().count() > MAX_PARAMETERS {
        return Err(bad(format!("the query has more than {MAX_PARAMETERS} parameters")));
    }
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((decoded(&name.replace('+', " "))?, decoded(&value.replace('+', " "))?))
    };
    pairs.map(pair).collect()
}

/// Decodes percent-encoding. Refuses control characters and non-UTF-8: the text gets into logs.
fn decoded(text: &str) -> Result<String, Problem> {
    let is_code = |rest: &str| {
        rest.as_bytes().get(..2).is_some_and(|code| code.iter().all(u8::is_ascii_hexdigit))
    };
    if !text.split('%').skip(1).all(is_code) {
        return Err(bad("in the target, % is not followed by two hexadecimal digits"));
    }
    let text = percent_decode_str(text).decode_utf8();
    let text = text.map_err(|_| bad("the target is not UTF-8"))?.into_owned();
    if text.chars().any(char::is_control) {
        return Err(bad("the target has control characters in it"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use flagstone_config::ApiRole;
    use proptest::prelude::*;

    use super::*;
    use crate::http::encode;

    fn query(target: &str) -> Result<Query, u16> {
        let uri: Uri = target.parse().unwrap_or_else(|error| panic!("{target:?}: {error}"));
        read_target(&uri).map_err(|problem| problem.status)
    }

    #[test]
    fn query_parameters_are_decoded() {
        let read = query("/v1/volumes/a%20b?watch=1&x=a+b&&flag").unwrap();
        let expected = [("watch", "1"), ("x", "a b"), ("flag", "")];
        assert_eq!(read, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
        assert_eq!(query("http://x:1/?a=%2B").unwrap(), [("a".to_owned(), "+".to_owned())]);
        assert_eq!(query("/").unwrap(), []);
    }

    /// The metrics port received 2 MiB from anyone who named the type of a stream.
    #[test]
    fn only_streams_of_operators_are_large() {
        let most = |method: Method, path: &str, media_type: &str, caller: &Caller| {
            let request = Request::builder().method(method).uri(path);
            let request = request.header(header::CONTENT_TYPE, media_type).body(Body::empty());
            most_bytes(&request.unwrap().into_parts().0, caller)
        };
        let user = |role| Caller::User { name: "x".into(), role };
        let receive = "/v1/volumes/db/receive";
        for caller in [Caller::Local(None), user(ApiRole::Operator)] {
            let of = |path, media_type| most(Method::POST, path, media_type, &caller);
            assert_eq!(of(receive, STREAM_TYPE), MAX_STREAM_BODY_BYTES);
            assert_eq!(of("/v1/volumes/a%2Fb/receive/", STREAM_TYPE), MAX_STREAM_BODY_BYTES);
            assert_eq!(of(receive, "application/json"), MAX_BODY_BYTES);
            for other in ["/metrics", "/v1/volumes/db", "/v1/volumes//receive", "/v1/x/db/receive"]
            {
                assert_eq!(of(other, STREAM_TYPE), MAX_BODY_BYTES, "{other}");
            }
            assert_eq!(most(Method::GET, receive, STREAM_TYPE, &caller), 0);
        }
        for caller in [Caller::Anyone, user(ApiRole::ReadOnly)] {
            assert_eq!(most(Method::POST, receive, STREAM_TYPE, &caller), 0, "{caller}");
        }
    }

    #[test]
    fn unreadable_targets_are_refused() {
        for target in ["*", "x:1", "/%zz", "/%f", "/%ff", "/%00", "/?%0a", "/?a=%"] {
            assert_eq!(query(target), Err(400), "{target}");
        }
        assert_eq!(query(&"/x".repeat(MAX_SEGMENTS)), Ok(vec![]));
        assert_eq!(query(&"/x".repeat(MAX_SEGMENTS + 1)), Err(400));
        assert_eq!(query(&format!("/?{}", "a&".repeat(MAX_PARAMETERS + 1))), Err(400));
    }

    proptest! {
        #[test]
        fn encoded_text_is_decoded_to_the_same(text in "\\PC{0,40}") {
            let read = query(&format!("/{0}?x={0}", encode(&text))).unwrap();
            prop_assert_eq!(&read[0].1, &text);
        }
    }
}

//! Table of routes: method, pattern, description and handler.
//!
//! A pattern is a path whose segments are literals or `{names}`; a literal takes precedence over a
//! name. The axum service, the list of resources and the OpenAPI document are built from this
//! table. Handlers run on the core of the table, so they may use its state:
//!
//! ```
//! use flagstone_server::http::{Problem, Router};
//!
//! let mut router = Router::new();
//! let about = "Acts on a mirror.";
//! router.post("/v1/volumes/{volume}/mirror/{action}", about, |call| async move {
//!     let (volume, action) = (call.text("volume"), call.text("action"));
//!     if action != "pause" {
//!         return Err(Problem::not_found("no such action").accepting(["pause"]));
//!     }
//!     Ok(serde_json::json!({ "volume": volume }))
//! });
//! ```

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use axum::body::Bytes;
use axum::http::Method;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::http::access::{AccessRefusal, Caller};
use crate::http::admission::Query;
use crate::http::limits::STREAM_TYPE;
use crate::http::metrics::{self, Exposition};
use crate::http::problem::Problem;
use crate::http::response::{self, Response};

type PendingResponse = Pin<Box<dyn Future<Output = Response>>>;

struct Route {
    info: RouteInfo,
    handler: Rc<dyn Fn(Call) -> PendingResponse>,
}

type Describe = fn(&mut SchemaGenerator) -> Schema;

/// Answer of a handler: a JSON document, or the metrics.
pub trait HandlerAnswer: 'static {
    /// Value of `Content-Type`.
    const MEDIA_TYPE: &'static str;

    /// Its schema in the OpenAPI document.
    fn describe(schemas: &mut SchemaGenerator) -> Schema;

    /// The response with status 200.
    fn respond(self) -> Response;
}

impl<T: Serialize + JsonSchema + 'static> HandlerAnswer for T {
    const MEDIA_TYPE: &'static str = "application/json";

    fn describe(schemas: &mut SchemaGenerator) -> Schema {
        schemas.subschema_for::<T>()
    }

    fn respond(self) -> Response {
        response::json(200, Self::MEDIA_TYPE, &self)
    }
}

impl HandlerAnswer for Exposition {
    const MEDIA_TYPE: &'static str = metrics::CONTENT_TYPE;

    fn describe(schemas: &mut SchemaGenerator) -> Schema {
        schemas.subschema_for::<String>()
    }

    fn respond(self) -> Response {
        response::complete(200, Self::MEDIA_TYPE, self.finish().into_bytes())
    }
}

/// Frames of a stream of a snapshot.
pub struct StreamBytes(pub Vec<u8>);

impl HandlerAnswer for StreamBytes {
    const MEDIA_TYPE: &'static str = STREAM_TYPE;

    fn describe(schemas: &mut SchemaGenerator) -> Schema {
        schemas.subschema_for::<String>()
    }

    fn respond(self) -> Response {
        response::complete(200, Self::MEDIA_TYPE, self.0)
    }
}

/// A route, for the documents that list it.
#[derive(Clone, Debug)]
pub struct RouteInfo {
    /// Its method.
    pub method: Method,
    /// Path pattern: a `{name}` stands for any one segment.
    pub pattern: &'static str,
    /// Its effect, in a sentence.
    pub about: &'static str,
    pub(crate) media_type: &'static str,
    pub(crate) answer: Describe,
    pub(crate) body: Option<Describe>,
    /// It reads data of hosts: not for users who may only read documents, and audited as an order.
    pub(crate) reads_data: bool,
}

impl RouteInfo {
    /// Declares that the answer has data of hosts.
    pub fn reads_data(&mut self) {
        self.reads_data = true;
    }

    /// Declares the document of the request's body.
    pub fn takes<T: JsonSchema>(&mut self) {
        self.body = Some(|schemas| schemas.subschema_for::<T>());
    }
}

/// The routes of a listener. Lives on one core.
#[derive(Default)]
pub struct Router {
    routes: Vec<Route>,
}

/// An admitted request, whose body has arrived in full.
#[derive(Clone, Debug)]
pub struct Call {
    /// Who makes it.
    pub caller: Caller,
    /// Where it comes from, for log lines.
    pub(crate) peer: Arc<str>,
    pub(crate) method: Method,
    /// Path and query, as received.
    pub(crate) target: String,
    pub(crate) query: Query,
    pub(crate) content_type: Option<String>,
    pub(crate) body: Bytes,
    pub(crate) names: Vec<(String, String)>,
}

impl Call {
    /// The segment of the path under this name, decoded.
    ///
    /// # Panics
    /// If the route's pattern has no such name.
    pub fn text(&self, name: &str) -> &str {
        let found = self.names.iter().find(|(other, _)| *other == name);
        &found.unwrap_or_else(|| panic!("the pattern has no {{{name}}}")).1
    }

    /// Refuses a query, for routes that take everything in the body. Otherwise `?dry_run` would be
    /// ignored and the action carried out.
    ///
    /// # Errors
    /// 422 if there is a query.
    pub fn without_query(&self) -> Result<(), Problem> {
        match self.query.first() {
            None => Ok(()),
            Some((name, _)) => Err(Problem::invalid(format!(
                "`{name}` is in the query, which is not read here: put it into the body"
            ))),
        }
    }

    /// Parameters of the query; it may have no others.
    ///
    /// # Errors
    /// 422 for another parameter.
    pub fn parameters<const N: usize>(
        &self,
        known: [&str; N],
    ) -> Result<[Option<&str>; N], Problem> {
        if let Some((other, _)) = self.query.iter().find(|(name, _)| !known.contains(&&name[..])) {
            let problem = Problem::invalid(format!("the query has no parameter `{other}`"));
            return Err(problem.accepting(known));
        }
        Ok(known.map(|name| {
            let found = self.query.iter().find(|(other, _)| other == name);
            found.map(|(_, value)| value.as_str())
        }))
    }

    /// The body, which has this type.
    ///
    /// # Errors
    /// 415 for another type.
    pub fn bytes(&self, media_type: &'static str) -> Result<&[u8], Problem> {
        if self.content_type.as_deref() == Some(media_type) {
            return Ok(&self.body);
        }
        let title = "The type of the body is not supported";
        Err(Problem::new(415, "media-type", title, "the body is no stream").accepting([media_type]))
    }

    /// The number under this name in the query, which may have no other parameter.
    ///
    /// # Errors
    /// 422 for another parameter, or anything but one number.
    pub fn number(&self, name: &str) -> Result<Option<u64>, Problem> {
        match &self.query[..] {
            [] => Ok(None),
            [(given, value)] if given == name => match value.parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(Problem::invalid(format!("`{name}` is no number: `{value}`"))),
            },
            _ => Err(Problem::invalid("the query has an unknown parameter").accepting([name])),
        }
    }

    /// The body as a document. An empty body is `{}`.
    ///
    /// # Errors
    /// 415 if its type is given and is not JSON, 422 if it is not the document.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        let given = self.content_type.as_deref();
        if !is_json(given) {
            let detail = format!("the body is `{}`", given.map_or("", essence));
            let title = "The type of the body is not supported";
            return Err(
                Problem::new(415, "media-type", title, detail).accepting(["application/json"])
            );
        }
        let body = if self.body.is_empty() { b"{}" } else { &self.body[..] };
        serde_json::from_slice(body).map_err(|error| {
            Problem::invalid(format!("the body is not the expected document: {error}"))
        })
    }
}

/// A media type without its parameters.
fn essence(media_type: &str) -> &str {
    media_type.split(';').next().unwrap_or_default().trim()
}

/// True for a body that may be a JSON document, by the type that it was given.
pub(crate) fn is_json(media_type: Option<&str>) -> bool {
    // curl's default for --data, which is no statement about the body.
    let default = "application/x-www-form-urlencoded";
    media_type.map(essence).is_none_or(|essence| {
        essence == default || essence.eq_ignore_ascii_case("application/json")
    })
}

impl Router {
    /// An empty table.
    pub fn new() -> Router {
        Router::default()
    }

    /// Adds a route for GET and HEAD.
    ///
    /// # Panics
    /// If the table has one of this method and pattern, or the pattern does not begin with `/`:
    /// both are mistakes of the program.
    pub fn get<T: HandlerAnswer, Fut: Future<Output = Result<T, Problem>> + 'static>(
        &mut self,
        pattern: &'static str,
        about: &'static str,
        handler: impl Fn(Call) -> Fut + 'static,
    ) -> &mut RouteInfo {
        self.add(Method::GET, pattern, about, handler)
    }

    /// Adds a route for POST: an action, safe to repeat.
    ///
    /// # Panics
    /// As [`Router::get`].
    pub fn post<T: HandlerAnswer, Fut: Future<Output = Result<T, Problem>> + 'static>(
        &mut self,
        pattern: &'static str,
        about: &'static str,
        handler: impl Fn(Call) -> Fut + 'static,
    ) -> &mut RouteInfo {
        self.add(Method::POST, pattern, about, handler)
    }

    fn add<T: HandlerAnswer, Fut: Future<Output = Result<T, Problem>> + 'static>(
        &mut self,
        method: Method,
        pattern: &'static str,
        about: &'static str,
        handler: impl Fn(Call) -> Fut + 'static,
    ) -> &mut RouteInfo {
        assert!(pattern.starts_with('/'), "{pattern} is not a path");
        let taken = |route: &Route| route.info.method == method && route.info.pattern == pattern;
        assert!(!self.routes.iter().any(taken), "{method} {pattern} is a duplicate");
        let handler = move |call| -> PendingResponse {
            let answer = handler(call);
            Box::pin(async move {
                answer.await.map_or_else(|problem| problem.response(), HandlerAnswer::respond)
            })
        };
        let (media_type, answer) = (T::MEDIA_TYPE, T::describe as Describe);
        let (body, reads_data) = (None, false);
        let info = RouteInfo { method, pattern, about, media_type, answer, body, reads_data };
        self.routes.push(Route { info, handler: Rc::new(handler) });
        &mut self.routes.last_mut().expect("it was pushed").info
    }

    /// The routes, in the order in which they were added.
    pub fn routes(&self) -> Vec<RouteInfo> {
        self.routes.iter().map(|route| route.info.clone()).collect()
    }

    /// True if the answers of a route have data of hosts.
    pub(crate) fn reads_data(&self, index: usize) -> bool {
        self.routes[index].info.reads_data
    }

    /// Why a caller may not use a route, if it reads data of hosts.
    pub(crate) fn refusal(&self, index: usize, caller: &Caller) -> Option<AccessRefusal> {
        (self.reads_data(index) && !caller.is_operator()).then_some(AccessRefusal::Role)
    }

    pub(crate) fn answer(&self, index: usize, call: Call) -> PendingResponse {
        if let Some(refusal) = self.refusal(index, &call.caller) {
            return Box::pin(std::future::ready(refusal.response()));
        }
        (self.routes[index].handler)(call)
    }
}

#[cfg(test)]
mod tests {
    use flagstone_config::ApiRole;
    use serde_json::{Value, json};

    use super::*;
    use crate::http::duplex::converse;
    use crate::http::limits::{MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_HEADERS, MAX_SEGMENTS};

    fn router() -> Rc<Router> {
        let mut router = Router::new();
        let echo = |route: &'static str| {
            move |call: Call| async move {
                let names: Vec<_> = call.names.iter().map(|(_, value)| value.clone()).collect();
                Ok(json!([route, names]))
            }
        };
        router.get("/v1/", "The root.", echo("root"));
        router.get("/v1/volumes", "All.", echo("all"));
        router.get("/v1/volumes/{name}", "One.", echo("one"));
        router.post("/v1/volumes/{name}", "Change.", echo("change"));
        router.get("/v1/volumes/special", "The special one.", echo("special"));
        router.post("/v1/volumes/{name}/mirror/{action}", "Act.", echo("act"));
        router.post("/v1/body", "Read.", |call: Call| async move {
            #[derive(serde::Deserialize)]
            struct Body {
                number: u8,
            }
            call.without_query()?;
            Ok(json!(call.json::<Body>()?.number))
        });
        Rc::new(router)
    }

    #[test]
    fn only_operators_read_data_of_hosts() {
        let mut router = Router::new();
        router.get("/data", "Data.", |_| async { Ok(json!(1)) }).reads_data();
        router.get("/document", "A document.", |_| async { Ok(json!(1)) });
        let user = |role| Caller::User { name: "x".into(), role };
        for (caller, data) in [
            (Caller::Local(None), 200),
            (user(ApiRole::Operator), 200),
            (user(ApiRole::ReadOnly), 403),
            (Caller::Anyone, 403),
        ] {
            let call = Call {
                caller,
                peer: "10.0.0.9:1".into(),
                method: Method::GET,
                target: String::new(),
                query: Vec::new(),
                content_type: None,
                body: Bytes::new(),
                names: Vec::new(),
            };
            let status = |route: usize| {
                let answer = router.answer(route, call.clone());
                flagstone_runtime::block_on(answer).unwrap().status().as_u16()
            };
            assert_eq!((status(0), status(1)), (data, 200), "{}", call.caller);
        }
    }

    struct Answered {
        status: u16,
        head: String,
        body: Value,
    }

    fn converse_text(bytes: &[u8]) -> String {
        String::from_utf8(converse(&router(), bytes)).unwrap()
    }

    fn send(bytes: &[u8]) -> Answered {
        let text = converse_text(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
        let status = head.get(9..12).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("{text:?}"));
        let body = serde_json::from_str(body).unwrap_or_default();
        Answered { status, head: head.to_owned(), body }
    }

    fn ask(method: &str, target: &str) -> Answered {
        send(format!("{method} {target} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
    }

    #[test]
    fn literal_segments_take_precedence_over_names() {
        for (method, path, expected) in [
            ("GET", "/v1/", json!(["root", []])),
            ("GET", "/v1", json!(["root", []])),
            ("GET", "/v1/volumes/", json!(["all", []])),
            ("GET", "http://x/v1/volumes/a%20b", json!(["one", ["a b"]])),
            ("POST", "/v1/volumes/db", json!(["change", ["db"]])),
            ("GET", "/v1/volumes/special", json!(["special", []])),
            ("POST", "/v1/volumes/db/mirror/pause", json!(["act", ["db", "pause"]])),
        ] {
            let answer = ask(method, path);
            assert_eq!((answer.status, answer.body), (200, expected), "{path}");
        }
    }

    #[test]
    fn head_has_the_length_but_not_the_body() {
        let text = converse_text(b"HEAD /v1/volumes/db HTTP/1.1\r\nHost: x\r\n\r\n");
        let expected = serde_json::to_vec_pretty(&json!(["one", ["db"]])).unwrap().len() + 1;
        assert!(text.contains(&format!("Content-Length: {expected}\r\n")), "{text}");
        assert!(text.ends_with("\r\n\r\n"), "{text}");
    }

    #[test]
    fn unknown_paths_and_methods_list_the_known() {
        for path in ["/", "/v2", "/v1//volumes", "/v1/volumes/db/x", "/v1/volumes/db/mirror/"] {
            let answer = ask("GET", path);
            assert_eq!((answer.status, &answer.body["status"]), (404, &404.into()), "{path}");
            assert!(answer.body["accepted"].as_array().unwrap().len() > 3);
            assert!(answer.head.contains("Content-Type: application/problem+json"));
        }
        for method in ["DELETE", "PURGE"] {
            let answer = ask(method, "/v1/volumes/db");
            assert_eq!((answer.status, &answer.body["status"]), (405, &405.into()), "{method}");
            assert!(answer.head.contains("Allow: GET, POST, HEAD, OPTIONS"), "{}", answer.head);
        }
        let answer = ask("OPTIONS", "/v1/volumes/db/mirror/x");
        assert_eq!(answer.status, 204);
        assert!(answer.head.contains("Allow: POST, OPTIONS"), "{}", answer.head);
    }

    #[test]
    fn bodies_are_parsed_and_queries_refused() {
        let post = |text: &str, kind: Option<&str>, query: &str| {
            let kind = kind.map(|kind| format!("Content-Type: {kind}\r\n")).unwrap_or_default();
            let length = text.len();
            let head = format!("POST /v1/body{query} HTTP/1.1\r\nHost: x\r\n{kind}");
            send(format!("{head}Content-Length: {length}\r\n\r\n{text}").as_bytes())
        };
        let json = "{\"number\": 7}";
        assert_eq!(post(json, Some("Application/JSON; charset=utf-8"), "").body, json!(7));
        for (text, kind, query, status) in [
            (json, Some("text/plain"), "", 415),
            ("{\"number\": 700}", None, "", 422),
            ("", None, "", 422),
            ("\u{0}", None, "", 422),
            (json, None, "?dry_run", 422),
            (json, None, "?dry_run=true", 422),
        ] {
            assert_eq!(post(text, kind, query).status, status, "{text} {query}");
        }
    }

    #[test]
    fn bodies_are_bounded_whatever_their_framing() {
        let post = |fields: &str, body: &str| {
            let head = format!("POST /v1/body HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n");
            send(&[head.as_bytes(), body.as_bytes()].concat())
        };
        let chunked = |body: &str| format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        let good = post("Transfer-Encoding: chunked", &chunked("{\"number\": 7}"));
        assert_eq!(good.body, json!(7));
        let large = " ".repeat(MAX_BODY_BYTES + 1);
        for (fields, body, status) in [
            ("Transfer-Encoding: chunked".to_owned(), chunked(&large), 413),
            (format!("Content-Length: {}", large.len()), large.clone(), 413),
            ("Content-Length: 999999999999999999".to_owned(), String::new(), 413),
            ("Content-Length: 9".to_owned(), "12".to_owned(), 400),
            ("Transfer-Encoding: chunked".to_owned(), "zz\r\n".to_owned(), 400),
            ("Expect: cake".to_owned(), String::new(), 417),
            ("Host: y".to_owned(), String::new(), 400),
        ] {
            let answer = post(&fields, &body);
            assert_eq!(answer.status, status, "{fields}");
            assert_eq!(answer.body["status"], status, "{fields}");
            assert!(answer.head.contains("Connection: close"), "{}", answer.head);
        }
    }

    #[test]
    fn malformed_heads_are_refused_by_hyper() {
        let deep = "/x".repeat(MAX_SEGMENTS + 1);
        for (text, status) in [
            ("\x16\x03\x01\x02\r\n\r\n".to_owned(), 400),
            ("GET /v1/ HTTP/1.1\r\nHost: x\r\nBad Field: y\r\n\r\n".to_owned(), 400),
            ("GET /v1/ HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\n".to_owned(), 400),
            ("GET /v1/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".to_owned(), 400),
            (format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1)), 431),
            (format!("GET /{} HTTP/1.1\r\n", "x".repeat(MAX_HEAD_BYTES)), 431),
            ("GET v1 HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), 400),
            ("GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
            (format!("GET {deep} HTTP/1.1\r\nHost: x\r\n\r\n"), 400),
        ] {
            assert_eq!(send(text.as_bytes()).status, status, "{text:?}");
        }
    }

    #[test]
    #[should_panic(expected = "is a duplicate")]
    fn duplicate_routes_are_a_mistake() {
        let handler = |_| async { Ok(7) };
        let mut router = Router::new();
        router.get("/v1/volumes", "All.", handler);
        router.get("/v1/volumes", "Again.", handler);
    }
}

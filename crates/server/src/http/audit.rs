//! Audit lines: a line in the log when an order begins, and one with its result, each with its
//! user, address, path and query. An order that the end of the server interrupts has only the
//! first. Reading data of hosts counts as an order; it takes many calls, of which only the first
//! has lines ([`DataReads`]).
//!
//! The target is `audit`, so that `RUST_LOG` and log collectors can select these lines. Orders that
//! reach their action are written on core 0, all of them. Orders that are refused before that cost
//! their caller little, so their lines are limited for each user, and the rest is counted: no user
//! can fill the log, and no user's lines are lost to another's.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use flagstone_config::redact;
use flagstone_runtime::time::{self, Instant};
use percent_encoding::percent_decode_str;
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::http::access::Caller;
use crate::http::problem::RefusalReason;
use crate::http::response::Response;
use crate::http::router::{Call, is_json};

/// Most characters of an order's body, path or query in its line. The longest usual order has 200.
const BODY_BYTES: usize = 512;

/// Lines for refused orders of one user in each [`REFUSED_PERIOD`].
const REFUSED_LINES: u32 = 100;

/// See [`REFUSED_LINES`].
const REFUSED_PERIOD: Duration = Duration::from_secs(60);

/// Users whose refused orders are counted apart: more than the configuration can name. Further
/// ones, of the Unix socket, share a count.
const REFUSED_USERS: usize = 2048;

/// Reads of data that are known at once: far more than one machine can carry out.
const DATA_READS: usize = 256;

/// Time without a call after which a read of data has ended. A client that was interrupted sends
/// its next call within seconds.
const DATA_READ_PAUSE: Duration = Duration::from_secs(60);

/// An order that is being carried out.
pub(crate) struct AuditedOrder {
    who: String,
    from: std::sync::Arc<str>,
    what: String,
    body: String,
}

impl AuditedOrder {
    /// Writes the first line of an order. `None` for a call that only reads.
    pub(crate) fn begin(call: &Call) -> Option<AuditedOrder> {
        (call.method == Method::POST).then(|| AuditedOrder::of(call))
    }

    fn of(call: &Call) -> AuditedOrder {
        let order = AuditedOrder {
            who: call.caller.to_string(),
            from: call.peer.clone(),
            what: requested(&call.method, &call.target),
            body: shown_body(call.content_type.as_deref(), &call.body),
        };
        let AuditedOrder { who, from, what, body } = &order;
        tracing::info!(target: "audit", who, from = &**from, body, "{what}: begun");
        order
    }

    /// Writes the line, and marks the response.
    pub(crate) fn answered(self, response: &mut Response) {
        let AuditedOrder { who, from, what, body } = self;
        let status = response.status().as_u16();
        let reason = response.extensions().get().map_or("done", |RefusalReason(reason)| reason);
        tracing::info!(target: "audit", who, from = &*from, body, status, "{what}: {reason}");
        response.extensions_mut().insert(Audited);
    }
}

/// Reads of data of hosts that have their line, by caller and snapshot, with the time of their last
/// call.
#[derive(Debug, Default)]
pub(crate) struct DataReads(BTreeMap<String, Instant>);

impl DataReads {
    /// Writes the first line of a read that begins. `None` for the next call of a read that has its
    /// line. Call it on a core of the runtime.
    pub(crate) fn begin(&mut self, call: &Call) -> Option<AuditedOrder> {
        let now = time::now();
        self.0.retain(|_, last| now.since(*last) < DATA_READ_PAUSE);
        let path = call.target.split('?').next().unwrap_or_default();
        let since = call.query.iter().find(|(name, _)| name == "since");
        let key = format!("{} {path} {:?}", call.caller, since.map(|(_, value)| value));
        if let Some(last) = self.0.get_mut(&key) {
            *last = now;
            return None;
        }
        // Others have a line for each call.
        if self.0.len() < DATA_READS {
            self.0.insert(key, now);
        }
        Some(AuditedOrder::of(call))
    }
}

/// Mark of a response whose order has its line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Audited;

/// An order that was refused before it reached an action. Its body may not have been received.
pub(crate) struct RefusedOrder {
    /// `None` if it is not known.
    pub(crate) caller: Option<Caller>,
    pub(crate) from: Arc<str>,
    pub(crate) method: Method,
    /// Path and query, as received.
    pub(crate) target: String,
    pub(crate) status: u16,
    /// Title of the problem.
    pub(crate) reason: &'static str,
}

impl RefusedOrder {
    /// True for a method that would change something.
    pub(crate) fn is_order(method: &Method) -> bool {
        ![Method::GET, Method::HEAD, Method::OPTIONS].contains(method)
    }

    /// The user whose lines are limited together: a process of this machine has many numbers.
    fn user(&self) -> String {
        match &self.caller {
            Some(Caller::User { name, .. }) => format!("user {name}"),
            Some(Caller::Local(Some(user))) => format!("uid {}", user.user_id),
            Some(Caller::Local(None) | Caller::Anyone) | None => UNKNOWN.to_owned(),
        }
    }

    fn write(self) {
        let who = self.caller.map_or(UNKNOWN.to_owned(), |caller| caller.to_string());
        let (from, status, body) = (&*self.from, self.status, "");
        let what = requested(&self.method, &self.target);
        tracing::info!(target: "audit", who, from, body, status, "{what}: {}", self.reason);
    }
}

const UNKNOWN: &str = "unknown";

/// Lines of refused orders in this period, by user.
#[derive(Debug, Default)]
pub(crate) struct RefusedOrders(RefCell<BTreeMap<String, RefusedCount>>);

/// Refused orders of a user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RefusedCount {
    written: u32,
    suppressed: u64,
}

impl RefusedOrders {
    /// Writes the line, unless the user has had too many.
    pub(crate) fn refused(self: &Rc<Self>, order: RefusedOrder) {
        let user = self.key(&order);
        let is_first = !self.0.borrow().contains_key(&user);
        if self.admits(&user) {
            order.write();
        }
        if is_first {
            let this = self.clone();
            spawn_local(async move {
                sleep(REFUSED_PERIOD).await;
                this.end_period(&user);
            });
        }
    }

    /// Writes the counts of all users: the server ends before their periods.
    pub(crate) fn flush(&self) {
        let users: Vec<String> = self.0.borrow().keys().cloned().collect();
        users.iter().for_each(|user| self.end_period(user));
    }

    /// Lines written in this period, by user.
    #[cfg(test)]
    pub(crate) fn written(&self) -> Vec<(String, u32)> {
        self.0.borrow().iter().map(|(user, count)| (user.clone(), count.written)).collect()
    }

    fn key(&self, order: &RefusedOrder) -> String {
        let (user, users) = (order.user(), self.0.borrow());
        let is_full = users.len() >= REFUSED_USERS && !users.contains_key(&user);
        if is_full { UNKNOWN.to_owned() } else { user }
    }

    /// Counts an order. True if it has a line.
    fn admits(&self, user: &str) -> bool {
        let mut users = self.0.borrow_mut();
        let count = users.entry(user.to_owned()).or_default();
        let admits = count.written < REFUSED_LINES;
        match admits {
            true => count.written += 1,
            false => count.suppressed += 1,
        }
        admits
    }

    fn end_period(&self, user: &str) {
        let count = self.0.borrow_mut().remove(user).unwrap_or_default();
        if count.suppressed > 0 {
            let suppressed = count.suppressed;
            tracing::info!(target: "audit", who = user, suppressed, "further orders were refused");
        }
    }
}

/// Method, path and query, decoded, so that secrets in them are recognized. `target` is as
/// received. Characters that divide it stay encoded within a part.
pub(crate) fn requested(method: &Method, target: &str) -> String {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut line = format!("{} {}", shown(method.as_str()), decoded(path));
    // The path cannot displace the query, which may decide what the order does.
    let pairs: Vec<_> = query.split('&').filter(|pair| !pair.is_empty()).map(decoded).collect();
    if !pairs.is_empty() {
        line += "?";
        line += &shown(&pairs.join("&"));
    }
    line
}

fn decoded(part: &str) -> String {
    let bytes: Vec<u8> = percent_decode_str(part).collect();
    let text = bytes.escape_ascii().to_string();
    shown(&text.replace('%', "%25").replace('?', "%3F").replace('&', "%26"))
}

/// A document on one line. Other bodies may be data of hosts, such as frames of a stream: of these
/// only the media type and the length.
fn shown_body(media_type: Option<&str>, body: &[u8]) -> String {
    if body.is_empty() {
        return String::new();
    }
    let json = match is_json(media_type) {
        true => serde_json::from_slice::<serde_json::Value>(body).ok(),
        false => None,
    };
    match json {
        Some(json) => shown(&json.to_string()),
        None => {
            let media_type = media_type.unwrap_or("unknown type").as_bytes().escape_ascii();
            shown(&format!("({media_type}, {} bytes)", body.len()))
        }
    }
}

/// A text without secrets, shortened. Shortening comes last: a part of a secret is not recognized.
fn shown(text: &str) -> String {
    let text = redact::text(text);
    match text.char_indices().nth(BODY_BYTES) {
        None => text,
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use flagstone_config::ApiRole;
    use flagstone_runtime::sim::{SimConfig, Simulation};

    use super::*;
    use crate::http::limits::STREAM_TYPE;

    #[test]
    fn paths_are_shown_without_secrets_and_controls() {
        let key = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
        let of = |path: &str| requested(&Method::POST, path);
        assert_eq!(of("/v1/volumes/db/mirror/pause"), "POST /v1/volumes/db/mirror/pause");
        for path in [format!("/v1/{key}"), format!("/v1/{}", key.replace(':', "%3A"))] {
            assert!(!of(&path).contains("ia6zGodOr4"), "{}", of(&path));
        }
        assert_eq!(of("/v1/%0Aa\u{202e}"), "POST /v1/\\na\\xe2\\x80\\xae");
        assert!(of(&"a".repeat(9000)).len() < 600);
    }

    /// `force` and the pool of `volume receive` were not in the line.
    #[test]
    fn queries_are_shown_without_secrets_and_controls() {
        let of = |target: &str| requested(&Method::POST, target);
        let receive = "/v1/volumes/db/receive?force=true&pool=p";
        assert_eq!(of(receive), format!("POST {receive}"));
        assert_eq!(of("/a?pool=a%26force=true%0A"), "POST /a?pool=a%26force=true\\n");
        assert_eq!(of("/a%3Fb%25?&"), "POST /a%3Fb%25");
        let key = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
        let secret = of(&format!("/a?pool={}&force=true", key.replace(':', "%3A")));
        assert_eq!(secret, "POST /a?pool=(redacted)&force=true");
        assert_eq!(of("/a?x=https://u:p+q@h"), "POST /a?x=https://(redacted)@h");
        let long = of(&format!("/{}?force=true&{}", "a".repeat(4000), "b=c&".repeat(1000)));
        assert!(long.contains("...?force=true&b=c") && long.len() < 1100, "{long}");
    }

    #[test]
    fn refused_orders_are_limited_for_each_user() {
        let orders = RefusedOrders::default();
        let admitted = |user| (0..150).filter(|_| orders.admits(user)).count();
        assert_eq!((admitted("a"), admitted("b")), (100, 100));
        let count = orders.0.borrow()["a"];
        assert_eq!(count, RefusedCount { written: 100, suppressed: 50 });
        orders.end_period("a");
        assert_eq!((admitted("a"), admitted("b")), (100, 0));
        orders.flush();
        assert!(orders.0.borrow().is_empty());
    }

    /// Data of hosts could be read without a line.
    #[test]
    fn read_of_data_is_audited_once_until_it_pauses() {
        let call = |name: &str, offset: u64, since: &[&str]| Call {
            caller: Caller::User { name: name.into(), role: ApiRole::Operator },
            peer: "10.0.0.9:1".into(),
            method: Method::GET,
            target: format!("/v1/snapshots/db@a/stream?offset_bytes={offset}"),
            query: since.iter().map(|value| ("since".to_owned(), (*value).to_owned())).collect(),
            content_type: None,
            body: Default::default(),
            names: Vec::new(),
        };
        Simulation::new(1, SimConfig::default()).block_on(async {
            let mut reads = DataReads::default();
            let mut is_audited = |call| reads.begin(&call).is_some();
            assert!(is_audited(call("alice", 0, &[])) && !is_audited(call("alice", 9, &[])));
            assert!(is_audited(call("alice", 9, &["db@0"])) && is_audited(call("carol", 9, &[])));
            for _ in 0..3 {
                time::sleep(DATA_READ_PAUSE * 2 / 3).await;
                assert!(!is_audited(call("alice", 9, &[])));
            }
            time::sleep(DATA_READ_PAUSE).await;
            assert!(is_audited(call("alice", 9, &[])));
            for user in 0..2 * DATA_READS {
                assert!(is_audited(call(&user.to_string(), 0, &[])));
            }
            assert_eq!(reads.0.len(), DATA_READS);
        });
    }

    #[test]
    fn body_is_one_bounded_line_without_secrets() {
        let json = |body: &[u8]| shown_body(Some("application/json"), body);
        assert_eq!(json(b"{\n \"a\": [1,\n 2]}"), "{\"a\":[1,2]}");
        assert_eq!(json(b""), "");
        let long = format!("\"{}\"", "x".repeat(2000));
        assert_eq!(json(long.as_bytes()).len(), BODY_BYTES + 3);
        let secret = json(b"{\"device\": \"DHHC-1:00:canary:\"}");
        assert!(!secret.contains("canary"), "{secret}");
        // The end of the password is behind the cut.
        let url = format!("\"https://user:canary{}@host\"", "x".repeat(BODY_BYTES));
        assert!(!json(url.as_bytes()).contains("canary"), "{}", json(url.as_bytes()));
    }

    /// Frames of `volume receive` were in the log, with the data of hosts.
    #[test]
    fn bodies_of_other_types_are_not_shown() {
        for (media_type, body, expected) in [
            (Some(STREAM_TYPE), &b"canary"[..], format!("({STREAM_TYPE}, 6 bytes)")),
            (Some(STREAM_TYPE), b"\"canary\"", format!("({STREAM_TYPE}, 8 bytes)")),
            (None, b"\xff canary", "(unknown type, 8 bytes)".to_owned()),
            (Some("application/json"), b"{canary", "(application/json, 7 bytes)".to_owned()),
            (Some("a\nb"), b"canary", "(a\\nb, 6 bytes)".to_owned()),
            (None, b"", String::new()),
        ] {
            assert_eq!(shown_body(media_type, body), expected);
        }
        let form = Some("application/x-www-form-urlencoded");
        assert_eq!(shown_body(form, b"{}"), "{}");
    }
}

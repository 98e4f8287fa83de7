//! Audit lines: a line in the log when an order begins, and one with its result, each with its
//! user, address, path and query. An order that the end of the server interrupts has only the
//! first. Reading data of hosts counts as an order; it takes many calls, of which the first that
//! succeeds is the last to have lines ([`DataReads`]).
//!
//! The target is `audit`, so that `RUST_LOG` and log collectors can select these lines. Orders that
//! reach their action are written on core 0, all of them. Orders that are refused before that cost
//! their caller little, so their lines are limited for each user, and the rest is counted: no user
//! can fill the log, and no user's lines are lost to another's.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use flagstone_config::redact;
use flagstone_runtime::time::Instant;
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

/// Reads of data that are remembered at once: far more than one machine can carry out.
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
    /// The read that needs no further lines once it has succeeded.
    read: Option<(DataRead, Instant, Rc<DataReads>)>,
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
            read: None,
        };
        let AuditedOrder { who, from, what, body, .. } = &order;
        tracing::info!(target: "audit", who, from = &**from, body, "{what}: begun");
        order
    }

    /// Writes the line, and marks the response.
    pub(crate) fn answered(self, response: &mut Response) {
        let AuditedOrder { who, from, what, body, read } = self;
        if let Some((read, begun, reads)) = read.filter(|_| response.status().is_success()) {
            reads.succeeded(read, begun);
        }
        let status = response.status().as_u16();
        let reason = response.extensions().get().map_or("done", |RefusalReason(reason)| reason);
        tracing::info!(target: "audit", who, from = &*from, body, status, "{what}: {reason}");
        response.extensions_mut().insert(Audited);
    }
}

/// A read of data of hosts: who reads what, from where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DataRead {
    who: String,
    /// `None` for the Unix socket, where `who` names the process.
    address: Option<IpAddr>,
    path: String,
    since: Option<String>,
}

impl DataRead {
    fn of(call: &Call) -> DataRead {
        DataRead {
            who: call.caller.to_string(),
            address: call.peer.parse().ok().map(|peer: SocketAddr| peer.ip()),
            path: call.target.split('?').next().unwrap_or_default().to_owned(),
            since: parameter(call, "since").map(str::to_owned),
        }
    }
}

fn parameter<'a>(call: &'a Call, name: &str) -> Option<&'a str> {
    call.query.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
}

/// Reads of data of hosts that have their lines, with the time of their last call.
#[derive(Debug, Default)]
pub(crate) struct DataReads(RefCell<BTreeMap<DataRead, Instant>>);

impl DataReads {
    /// Writes the first line of a read that begins. `None` for the next call of a read that has its
    /// lines.
    pub(crate) fn begin(self: &Rc<Self>, call: &Call, now: Instant) -> Option<AuditedOrder> {
        self.0.borrow_mut().retain(|_, last| now.since(*last) < DATA_READ_PAUSE);
        // HEAD has no data, so that the lines of the read are still to come.
        if call.method != Method::GET {
            return Some(AuditedOrder::of(call));
        }
        let read = DataRead::of(call);
        let offset = parameter(call, "offset_bytes").and_then(|offset| offset.parse().ok());
        let is_first = offset.is_none_or(|offset: u64| offset == 0);
        if let Some(last) = self.0.borrow_mut().get_mut(&read).filter(|_| !is_first) {
            *last = now;
            return None;
        }
        Some(AuditedOrder { read: Some((read, now, self.clone())), ..AuditedOrder::of(call) })
    }

    /// A refused call shows only what was not read. Beyond [`DATA_READS`], each call has lines.
    fn succeeded(&self, read: DataRead, begun: Instant) {
        let mut reads = self.0.borrow_mut();
        if reads.len() < DATA_READS || reads.contains_key(&read) {
            reads.insert(read, begun);
        }
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
    use flagstone_runtime::{block_on, time};

    use super::*;
    use crate::http::limits::STREAM_TYPE;
    use crate::http::response::complete;

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

    fn read(name: &str, offset: Option<u64>, since: &[&str]) -> Call {
        let offset = offset.map(|offset| ("offset_bytes".to_owned(), offset.to_string()));
        let since = since.iter().map(|value| ("since".to_owned(), (*value).to_owned()));
        Call {
            caller: Caller::User { name: name.into(), role: ApiRole::Operator },
            peer: "10.0.0.9:1".into(),
            method: Method::GET,
            target: "/v1/snapshots/db@a/stream?".to_owned(),
            query: offset.into_iter().chain(since).collect(),
            content_type: None,
            body: Default::default(),
            names: Vec::new(),
        }
    }

    /// A time, and reads of which none is known.
    fn no_reads() -> (Instant, Rc<DataReads>) {
        (block_on(async { time::now() }).unwrap(), Rc::default())
    }

    /// True if a call that has this status has lines.
    fn is_audited((now, reads): &(Instant, Rc<DataReads>), call: &Call, status: u16) -> bool {
        let order = reads.begin(call, *now);
        let is_audited = order.is_some();
        if let Some(order) = order {
            order.answered(&mut complete(status, "", Vec::new()));
        }
        is_audited
    }

    /// Data of hosts could be read without a line.
    #[test]
    fn read_of_data_is_audited_once_until_it_pauses() {
        let mut reads = no_reads();
        let has_lines = |reads: &_, call| is_audited(reads, &call, 200);
        assert!(has_lines(&reads, read("alice", Some(0), &[])));
        assert!(!has_lines(&reads, read("alice", Some(9), &[])));
        assert!(has_lines(&reads, read("alice", Some(9), &["db@0"])));
        assert!(has_lines(&reads, read("carol", Some(9), &[])));
        for _ in 0..3 {
            reads.0 = reads.0 + DATA_READ_PAUSE * 2 / 3;
            assert!(!has_lines(&reads, read("alice", Some(9), &[])));
        }
        reads.0 = reads.0 + DATA_READ_PAUSE;
        assert!(has_lines(&reads, read("alice", Some(9), &[])));
        for user in 0..2 * DATA_READS {
            assert!(has_lines(&reads, read(&user.to_string(), Some(0), &[])));
        }
        assert_eq!(reads.1.0.borrow().len(), DATA_READS);
    }

    /// The log said that the read was refused, while all data was sent.
    #[test]
    fn refused_call_does_not_hide_the_read_after_it() {
        let reads = no_reads();
        let head = Call { method: Method::HEAD, ..read("alice", Some(9), &[]) };
        for (call, status) in [(head, 200), (read("alice", Some(9), &[]), 404)] {
            assert!(is_audited(&reads, &call, status));
            assert!(is_audited(&reads, &call, status));
        }
        assert!(is_audited(&reads, &read("alice", Some(9), &[]), 200));
        assert!(!is_audited(&reads, &read("alice", Some(9), &[]), 200));
    }

    /// A second read of everything, or of a new snapshot of the same name, had no line.
    #[test]
    fn read_from_the_start_is_always_audited() {
        let reads = no_reads();
        for offset in [None, Some(0), Some(0), None] {
            assert!(is_audited(&reads, &read("alice", offset, &[]), 200));
            assert!(!is_audited(&reads, &read("alice", Some(9), &[]), 200));
        }
    }

    /// Beside a backup, its stolen token read the same snapshot without a line.
    #[test]
    fn reads_from_other_addresses_are_audited_apart() {
        let reads = no_reads();
        for (peer, expected) in [
            ("10.0.0.9:1", true),
            ("10.0.0.9:2", false),
            ("10.0.0.66:1", true),
            ("[2001:db8::1]:1", true),
            ("[2001:db8::1]:2", false),
        ] {
            let call = Call { peer: peer.into(), ..read("alice", Some(9), &[]) };
            assert_eq!(is_audited(&reads, &call, 200), expected, "{peer}");
        }
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

//! Connection: one peer of the HTTP server, with time limits on everything that it may delay.
//!
//! hyper parses requests and writes responses. This module watches the bytes of the stream and
//! ends the connection when a time limit has passed: 10 s before the first byte, 60 s between
//! requests, 10 s from the first byte of a request to the last of its body (answered with 408), 10
//! s without progress of a response. A handler may take as long as it needs. Without a request in
//! progress, the connection may have to make room for another one before.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::http::{Method, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, sleep_until, timeout};
use tower::ServiceExt;

use crate::http::access::{AccessClaim, AccessRefusal, Caller};
use crate::http::admission::{NotAdmitted, RequestContext, admit};
use crate::http::audit::{Audited, RefusedOrder, RefusedOrders, requested};
use crate::http::limits::{
    LINGER_BYTES, LINGER_TIMEOUT, MAX_HEAD_BYTES, MAX_HEADERS, SEND_TIMEOUT,
};
use crate::http::problem::{Problem, RefusalReason};
use crate::http::response::{last_bytes, with};
use crate::http::server::HttpOptions;
use crate::http::service::target;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Between requests: ends without a word.
    Idle { until: Instant },
    /// Before the TLS handshake, which waits because its source has guessed: ends without a word.
    Delayed { until: Instant },
    /// Within a request: ends with 408.
    Receiving { until: Instant },
    /// The same, while the request waits because its source has guessed.
    Waiting { until: Instant },
    /// The handler works. `ahead`: bytes of another request have come.
    Handling { ahead: bool },
}

/// Silence of a connection, in the order in which connections make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// The peer sends nothing.
    OfPeer { since: Instant },
    /// The server has a request wait.
    OfServer,
}

/// The time limits of a connection, shared by its stream and its service.
pub(crate) struct Clock {
    options: HttpOptions,
    phase: Cell<Phase>,
    /// When the peer last sent or accepted bytes.
    progress: Cell<Instant>,
    /// Set while the peer accepts no bytes.
    stalled_until: Cell<Option<Instant>>,
    /// The order whose body is being received, as if it were refused.
    order: RefCell<Option<RefusedOrder>>,
}

impl Clock {
    pub(crate) fn new(options: HttpOptions) -> Clock {
        let now = Instant::now();
        let until = now + options.idle_timeout.min(options.request_timeout);
        let phase = Phase::Idle { until }.into();
        Clock {
            options,
            phase,
            progress: now.into(),
            stalled_until: Cell::default(),
            order: RefCell::default(),
        }
    }

    /// Whether the connection may have to make room; `None` while a handler works for it.
    pub(crate) fn silence(&self) -> Option<Silence> {
        match self.phase.get() {
            Phase::Handling { .. } => None,
            Phase::Delayed { .. } | Phase::Waiting { .. } => Some(Silence::OfServer),
            Phase::Idle { .. } | Phase::Receiving { .. } => {
                Some(Silence::OfPeer { since: self.progress.get() })
            }
        }
    }

    /// The handshake waits because its source has guessed.
    pub(crate) fn begin_delay(&self) {
        if let Phase::Idle { until } = self.phase.get() {
            self.phase.set(Phase::Delayed { until });
        }
    }

    /// The handshake begins.
    pub(crate) fn end_delay(&self) {
        if let Phase::Delayed { until } = self.phase.get() {
            self.progress.set(Instant::now());
            self.phase.set(Phase::Idle { until });
        }
    }

    /// A request waits because its source has guessed.
    fn begin_wait(&self) {
        if let Phase::Receiving { until } = self.phase.get() {
            self.phase.set(Phase::Waiting { until });
        }
    }

    fn end_wait(&self) {
        if let Phase::Waiting { until } = self.phase.get() {
            self.phase.set(Phase::Receiving { until });
        }
    }

    /// An order begins: its head has been received.
    fn begin_order(&self, method: &Method, target: &str, from: Arc<str>) {
        let (method, target) = (method.clone(), target.to_owned());
        let (caller, status, reason) = (None, 400, "The request ended early");
        self.order.replace(RefusedOrder::is_order(&method).then_some(RefusedOrder {
            caller,
            from,
            method,
            target,
            status,
            reason,
        }));
    }

    fn identified(&self, caller: &Caller) {
        if let Some(order) = self.order.borrow_mut().as_mut() {
            order.caller = Some(caller.clone());
        }
    }

    /// The order that ends before its last byte is received, with the connection.
    pub(crate) fn end_order(&self) -> Option<RefusedOrder> {
        self.order.take()
    }

    fn received(&self) {
        self.progress.set(Instant::now());
        self.phase.set(match self.phase.get() {
            Phase::Idle { .. } | Phase::Delayed { .. } => {
                Phase::Receiving { until: Instant::now() + self.options.request_timeout }
            }
            Phase::Handling { .. } => Phase::Handling { ahead: true },
            receiving @ (Phase::Receiving { .. } | Phase::Waiting { .. }) => receiving,
        });
    }

    fn request_complete(&self) {
        self.phase.set(Phase::Handling { ahead: false });
    }

    fn handled(&self) {
        let now = Instant::now();
        self.phase.set(match self.phase.get() {
            Phase::Handling { ahead: true } => {
                Phase::Receiving { until: now + self.options.request_timeout }
            }
            _ => Phase::Idle { until: now + self.options.idle_timeout },
        });
    }

    fn sent(&self) {
        self.progress.set(Instant::now());
        self.stalled_until.set(None);
        if let Phase::Idle { .. } = self.phase.get() {
            self.phase.set(Phase::Idle { until: Instant::now() + self.options.idle_timeout });
        }
    }

    fn stalled(&self) {
        if self.stalled_until.get().is_none() {
            self.stalled_until.set(Some(Instant::now() + SEND_TIMEOUT));
        }
    }

    /// Time at which the connection is closed unless it makes progress, and whether 408 is sent
    /// first.
    fn deadline(&self) -> Option<(Instant, bool)> {
        match (self.stalled_until.get(), self.phase.get()) {
            (Some(until), _) | (None, Phase::Idle { until } | Phase::Delayed { until }) => {
                Some((until, false))
            }
            (None, Phase::Receiving { until } | Phase::Waiting { until }) => Some((until, true)),
            (None, Phase::Handling { .. }) => None,
        }
    }
}

/// A stream that reports its progress to the clock.
struct Watched<S> {
    stream: S,
    clock: Rc<Clock>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if buf.filled().len() > before {
            self.clock.received();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        match written {
            Poll::Pending => self.clock.stalled(),
            Poll::Ready(_) => self.clock.sent(),
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A request that was refused, for the log.
pub(crate) struct RefusedRequest {
    pub(crate) peer: Arc<str>,
    /// Method and path, as received.
    pub(crate) name: String,
    pub(crate) reason: String,
}

/// Serves a connection of `peer`. Reports refused requests to `refused`, and orders among them to
/// `orders`.
pub(crate) async fn serve_connection<S>(
    stream: S,
    (peer, claim): (Arc<str>, AccessClaim),
    service: axum::Router,
    clock: Rc<Clock>,
    refused: impl Fn(RefusedRequest),
    orders: Rc<RefusedOrders>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let options = clock.options;
    let refuse = |name: &str, reason: String| {
        refused(RefusedRequest { peer: peer.clone(), name: name.to_owned(), reason });
    };
    let answer = |request: hyper::Request<Incoming>| {
        let (clock, service, refuse) = (clock.clone(), service.clone(), &refuse);
        let (claim, peer, orders) = (&claim, peer.clone(), &orders);
        let (method, target) = (request.method().clone(), target(request.uri()));
        // Decoded and without secrets, as in the audit line.
        let name = requested(&method, &target);
        // hyper needs a future that can be moved.
        Box::pin(async move {
            clock.begin_order(&method, &target, peer.clone());
            clock.begin_wait();
            claim.wait().await;
            clock.end_wait();
            let identified = |caller: &Caller| clock.identified(caller);
            let admitted = admit(request.map(Body::new), claim, peer.clone(), identified).await;
            clock.end_order();
            let (response, caller) = match admitted {
                Ok(admitted) => {
                    clock.request_complete();
                    let context = admitted.extensions().get::<RequestContext>();
                    let caller = context.map(|context| context.caller.clone());
                    let answered = service.oneshot(admitted).await;
                    (answered.unwrap_or_else(|never| match never {}), caller)
                }
                // The rest of a refused request is not received.
                Err(NotAdmitted { problem, caller }) => {
                    let response = with(problem.response(), header::CONNECTION, "close");
                    let response = match problem.status {
                        // RFC 9110, section 11.6.1.
                        401 => with(response, header::WWW_AUTHENTICATE, "Bearer"),
                        _ => response,
                    };
                    (response.map(Body::from), caller)
                }
            };
            clock.handled();
            if let Some(&RefusalReason(reason)) = response.extensions().get() {
                refuse(&name, format!("{}: {reason}", response.status()));
                let is_audited = response.extensions().get::<Audited>().is_some();
                let refusal = response.extensions().get::<AccessRefusal>().copied();
                if let Some(refusal) = refusal {
                    claim.refuse(refusal);
                }
                let is_order = RefusedOrder::is_order(&method) || refusal.is_some();
                if is_order && !is_audited {
                    let status = response.status().as_u16();
                    orders.refused(RefusedOrder {
                        caller,
                        from: peer,
                        method,
                        target,
                        status,
                        reason,
                    });
                }
            }
            Ok::<_, Infallible>(response)
        })
    };
    let watched = TokioIo::new(Watched { stream, clock: clock.clone() });
    let mut builder = http1::Builder::new();
    builder
        .half_close(true)
        .title_case_headers(true)
        .header_read_timeout(None)
        .max_headers(MAX_HEADERS)
        .max_header_size(MAX_HEAD_BYTES)
        .max_buf_size(MAX_HEAD_BYTES);
    let mut connection = builder.serve_connection(watched, service_fn(answer));
    let mut timer = pin!(sleep_until(Instant::now()));
    let late = poll_fn(|cx| {
        if let Poll::Ready(ended) = connection.poll_without_shutdown(cx) {
            match ended {
                Err(error) if error.is_parse() => refuse("", error.to_string()),
                Err(error) => tracing::debug!("a connection of the API failed: {error}"),
                Ok(()) => {}
            }
            return Poll::Ready(false);
        }
        let Some((until, is_reported)) = clock.deadline() else { return Poll::Pending };
        timer.as_mut().reset(until);
        timer.as_mut().poll(cx).map(|()| is_reported)
    })
    .await;
    let is_expired = clock.deadline().is_some_and(|(until, _)| until <= Instant::now());
    let mut stream = connection.into_parts().io.into_inner().stream;
    if let Some(order) = clock.end_order() {
        orders.refused(match late {
            true => RefusedOrder { status: 408, reason: TOO_LATE, ..order },
            false => order,
        });
    }
    if late {
        let seconds = options.request_timeout.as_secs();
        let detail = format!("the request was not complete within {seconds} s");
        refuse("", detail.clone());
        let problem = Problem::new(408, "timeout", TOO_LATE, detail);
        let bytes = last_bytes(problem.response());
        if !matches!(timeout(SEND_TIMEOUT, stream.write_all(&bytes)).await, Ok(Ok(()))) {
            return;
        }
    } else if is_expired {
        return;
    }
    let _ = timeout(LINGER_TIMEOUT, linger(&mut stream)).await;
}

/// Title of the problem of a request that is not complete in time.
const TOO_LATE: &str = "The request took too long";

/// Ends the sending side and discards input, so that the peer's kernel keeps the answer.
async fn linger(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
    stream.shutdown().await?;
    let mut block = vec![0; 4 << 10];
    let mut discarded = 0;
    while discarded < LINGER_BYTES {
        match stream.read(&mut block).await? {
            0 => break,
            count => discarded += count,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use flagstone_runtime::net::PeerUser;
    use tokio::io::duplex;
    use tokio::task::LocalSet;

    use super::*;
    use crate::http::access::tests::users;

    /// Serves what a peer sends before it sends no more. Returns the answer and the audited users.
    fn serve(sent: &str, closes: bool) -> (String, Vec<(String, u32)>) {
        let user = PeerUser { user_id: 7, group_id: 8, process_id: None };
        serve_claim(sent, closes, AccessClaim::Local(Some(user)), axum::Router::new())
    }

    fn serve_claim(
        sent: &str,
        closes: bool,
        claim: AccessClaim,
        service: axum::Router,
    ) -> (String, Vec<(String, u32)>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let orders = Rc::<RefusedOrders>::default();
        let served = async {
            let (mut peer, stream) = duplex(1 << 16);
            let options =
                HttpOptions { request_timeout: Duration::from_millis(20), ..Default::default() };
            let clock = Rc::new(Clock::new(options));
            peer.write_all(sent.as_bytes()).await.unwrap();
            if closes {
                peer.shutdown().await.unwrap();
            }
            let serving = serve_connection(
                stream,
                ("user 7".into(), claim),
                service,
                clock,
                |_| (),
                orders.clone(),
            );
            let mut answer = String::new();
            let (_, read) = tokio::join!(serving, peer.read_to_string(&mut answer));
            read.map(|_| answer).unwrap()
        };
        let answer = LocalSet::new().block_on(&runtime, served);
        (answer, orders.written())
    }

    #[test]
    fn orders_without_their_body_are_audited() {
        let of = |method: &str, host: &str| {
            format!("{method} /v1/x HTTP/1.1\r\n{host}Content-Length: 9\r\n\r\n{{")
        };
        let audited = vec![("uid 7".to_owned(), 1)];
        let (answer, users) = serve(&of("POST", "Host: x\r\n"), false);
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert_eq!(users, audited);
        assert_eq!(serve(&of("POST", "Host: x\r\n"), true).1, audited);
        // Refused for its head, by a caller who is known.
        let (answer, users) = serve(&of("POST", ""), false);
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert_eq!(users, audited);
        assert_eq!(serve(&of("GET", "Host: x\r\n"), false).1, []);
        assert_eq!(serve("POST /v1/x HT", false).1, []);
    }

    /// A read-only user could fill the log with reads of data, which no metric counted.
    #[test]
    fn refused_reads_of_data_are_limited_and_counted() {
        let users = users();
        let source = Ipv4Addr::new(192, 0, 2, 1).into();
        let claim = AccessClaim::Tls { users: users.clone(), source, chain: Vec::new() };
        let refused = || async { AccessRefusal::Role.response().map(Body::from) };
        let service = axum::Router::new().fallback(refused);
        let get = "GET /v1/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer b\r\n\r\n";
        let (answer, audited) = serve_claim(&get.repeat(150), true, claim, service);
        assert_eq!(answer.matches("HTTP/1.1 403").count(), 150, "{answer}");
        assert_eq!(audited, [("user bob".to_owned(), 100)]);
        assert_eq!(users.refused(), [0, 0, 0, 0, 150, 0]);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the API's thread is outside of the runtime")]
    fn phases_follow_bytes_and_handlers() {
        let clock = Clock::new(HttpOptions::default());
        let is_reported = |clock: &Clock| clock.deadline().map(|(_, is_reported)| is_reported);
        assert_eq!(is_reported(&clock), Some(false));
        let is_of_peer = |silence| matches!(silence, Some(Silence::OfPeer { .. }));
        assert!(is_of_peer(clock.silence()));
        let accepted = clock.deadline();
        clock.begin_delay();
        assert_eq!((clock.silence(), clock.deadline()), (Some(Silence::OfServer), accepted));
        clock.end_delay();
        assert!(is_of_peer(clock.silence()) && clock.deadline() == accepted);
        clock.received();
        let first = clock.deadline();
        clock.begin_wait();
        assert_eq!((clock.silence(), clock.deadline()), (Some(Silence::OfServer), first));
        clock.end_wait();
        assert!(is_of_peer(clock.silence()));
        assert_eq!(is_reported(&clock), Some(true));
        std::thread::sleep(Duration::from_millis(2));
        clock.received();
        assert_eq!(clock.deadline(), first, "each byte does not extend the limit");
        clock.request_complete();
        assert_eq!((clock.deadline(), clock.silence()), (None, None));
        clock.stalled();
        assert_eq!(is_reported(&clock), Some(false));
        clock.sent();
        assert_eq!(clock.deadline(), None);
        clock.received();
        clock.handled();
        assert_eq!(is_reported(&clock), Some(true), "a pipelined request has begun");
        clock.request_complete();
        clock.handled();
        assert_eq!(is_reported(&clock), Some(false));
    }
}

//! The server: accepts connections on this core, one task each, and answers one request after the
//! other by a [`Router`].
//!
//! Promises: connections, heads and bodies are bounded, and so is the patience with a peer, for a
//! request as a whole and not for each of its bytes; a request that was not understood is answered
//! and ends its connection; when the future of [`serve`] is dropped, every connection ends.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use flagstone_runtime::net::{Listener, PeerUser, Stream};
use flagstone_runtime::{spawn_detached, time};

use crate::head::{self, Head};
use crate::limits::{
    ACCEPT_PAUSE, IDLE_PATIENCE, LINGER_BYTES, LINGER_PATIENCE, MAX_CONNECTIONS, REQUEST_PATIENCE,
};
use crate::problem::Problem;
use crate::request::{Method, Request};
use crate::response::Response;
use crate::router::Router;
use crate::wire;

/// How patient a server is, and with how many.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Connections served at a time; more are told to come later.
    pub max_connections: usize,
    /// From the first byte of a request to its last.
    pub request_patience: Duration,
    /// Silence between two requests.
    pub idle_patience: Duration,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            max_connections: MAX_CONNECTIONS,
            request_patience: REQUEST_PATIENCE,
            idle_patience: IDLE_PATIENCE,
        }
    }
}

/// The connections of a server.
#[derive(Default)]
struct Open {
    streams: RefCell<BTreeMap<u64, Stream>>,
    next: Cell<u64>,
}

/// A connection's place; it leaves when dropped.
struct Place {
    id: u64,
    open: Rc<Open>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.streams.borrow_mut().remove(&self.id);
    }
}

/// Ends all connections when dropped.
struct EndAll(Rc<Open>);

impl Drop for EndAll {
    fn drop(&mut self) {
        self.0.streams.borrow().values().for_each(Stream::shutdown);
    }
}

/// Accepts and serves for ever, on this core.
pub async fn serve(listener: Listener, router: Rc<Router>, options: ServerOptions) {
    let open = Rc::new(Open::default());
    let _end = EndAll(open.clone());
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!("cannot accept on {}: {error}", listener.address());
                time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if open.streams.borrow().len() >= options.max_connections {
            // In a few bytes that the socket's own buffer takes: nobody is waited for.
            let max = options.max_connections;
            let detail = format!("{max} connections are served at a time");
            let problem = Problem::new(503, "busy", "Too many connections", detail);
            let bytes = whole(&problem.response(), false, true);
            let _ = time::timeout(ACCEPT_PAUSE, wire::send(&stream, &bytes)).await;
            continue;
        }
        let id = open.next.get();
        open.next.set(id + 1);
        open.streams.borrow_mut().insert(id, stream.clone());
        let place = Place { id, open: open.clone() };
        let router = router.clone();
        spawn_detached(async move {
            let user = stream.peer_user();
            let mut connection = Connection { stream, user, unread: Vec::new(), options };
            if let Err(error) = connection.run(&router).await {
                tracing::debug!("a connection of the API failed: {error}");
            }
            connection.stream.shutdown();
            drop(place);
        });
    }
}

/// What came of waiting for a request.
enum Next {
    Request(Request, Head),
    /// The peer closed, or was silent between requests.
    End,
    /// The bytes are no request; the connection ends.
    Refused(Problem),
}

struct Connection {
    stream: Stream,
    user: Option<PeerUser>,
    /// Bytes received and not taken: at most a head, a body and a block.
    unread: Vec<u8>,
    options: ServerOptions,
}

impl Connection {
    async fn run(&mut self, router: &Router) -> io::Result<()> {
        loop {
            match self.next().await? {
                Next::End => return Ok(()),
                Next::Refused(problem) => {
                    wire::send(&self.stream, &whole(&problem.response(), false, true)).await?;
                    return self.linger().await;
                }
                Next::Request(request, head) => {
                    let has_body = request.method != Method::Head;
                    let response = router.answer(request).await;
                    let bytes = whole(&response, head.keep_alive, has_body);
                    wire::send(&self.stream, &bytes).await?;
                    if !head.keep_alive {
                        return self.linger().await;
                    }
                }
            }
        }
    }

    /// Waits for a request.
    async fn next(&mut self) -> io::Result<Next> {
        if self.unread.is_empty() {
            // What an idle connection does not need goes back.
            self.unread = Vec::new();
            let first = wire::receive(&self.stream, &mut self.unread);
            match time::timeout(self.options.idle_patience, first).await {
                Err(_) | Ok(Ok(0)) => return Ok(Next::End),
                Ok(result) => result?,
            };
        }
        let patience = self.options.request_patience;
        match time::timeout(patience, self.whole_request()).await {
            Ok(next) => next,
            Err(_) => {
                let detail = format!("the request did not come whole in {} s", patience.as_secs());
                Ok(Next::Refused(Problem::new(408, "timeout", "The request took too long", detail)))
            }
        }
    }

    /// Receives until a request is whole.
    async fn whole_request(&mut self) -> io::Result<Next> {
        let head = loop {
            match head::parse(&self.unread) {
                Ok(Some(head)) => break head,
                Ok(None) => {}
                Err(problem) => return Ok(Next::Refused(problem)),
            }
            if wire::receive(&self.stream, &mut self.unread).await? == 0 {
                return Ok(Next::End);
            }
        };
        let bytes = head.head_bytes + head.body_bytes;
        if head.expects_continue && self.unread.len() < bytes {
            wire::send(&self.stream, b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        while self.unread.len() < bytes {
            if wire::receive(&self.stream, &mut self.unread).await? == 0 {
                return Ok(Next::End);
            }
        }
        let rest = self.unread.split_off(bytes);
        let mut body = std::mem::replace(&mut self.unread, rest);
        body.drain(..head.head_bytes);
        let request = Request {
            method: head.method,
            segments: head.segments.clone(),
            query: head.query.clone(),
            content_type: head.content_type.clone(),
            body,
            user: self.user,
        };
        Ok(Next::Request(request, head))
    }

    /// Ends the connection so that the peer can still read the answer: a close with bytes that were
    /// not received would have its system drop it (section 9.6).
    async fn linger(&mut self) -> io::Result<()> {
        self.stream.shutdown_sending();
        let drained = async {
            let mut thrown = 0;
            while thrown < LINGER_BYTES {
                self.unread.clear();
                match wire::receive(&self.stream, &mut self.unread).await? {
                    0 => break,
                    count => thrown += count,
                }
            }
            Ok(())
        };
        time::timeout(LINGER_PATIENCE, drained).await.unwrap_or(Ok(()))
    }
}

/// The bytes of an answer, so that a short one goes out at once.
fn whole(response: &Response, keep_alive: bool, has_body: bool) -> Vec<u8> {
    let mut bytes = response.head(keep_alive, time::wall_clock());
    if has_body {
        bytes.extend_from_slice(&response.body);
    }
    bytes
}

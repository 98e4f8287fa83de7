//! Per-core connection to the server, which survives reconnects.
//!
//! Requests wait in [`RequestSlots`]. While connected, a sender puts all waiting requests, within
//! the window, into one send ([`Tx`]). A receiver (`replies`) completes answered requests. After a
//! disconnect, the manager reconnects, and unanswered requests are resent. A clock that runs only
//! while requests are pending replaces stalled connections and fails requests that wait too long.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use flagstone_runtime::net::Stream;
use flagstone_runtime::sync::Notify;
use flagstone_runtime::time::{self, Backoff};
use flagstone_runtime::{spawn, spawn_detached};
use flagstone_transport::Tx;

use crate::client::replies;
use crate::client::slots::{RequestData, RequestResult, RequestSlots};
use crate::client::target::{EstablishedConnection, LinkWrites, RemoteExport};
use crate::limits::{CLIENT_WINDOW, RECONNECT_MAX, RECONNECT_MIN, SEND_BYTES, TICK};
use crate::wire::link::LinkId;
use crate::wire::request::{Cookie, NbdRequest, command};

/// Reconnecting link of one core.
pub(crate) struct ServerLink {
    pub(crate) target: Arc<RemoteExport>,
    pub(crate) writes: Arc<LinkWrites>,
    id: LinkId,
    pub(crate) slots: RefCell<RequestSlots>,
    /// Requests are queued, the window opened, a send has ended, or the device was closed.
    work: Rc<Notify>,
    /// Requests are pending.
    clock: Notify,
    clock_sleeps: Cell<bool>,
    /// Clock in ticks of a second; stops while no request is pending.
    now: Cell<u32>,
    stream: RefCell<Option<Stream>>,
    closed: Cell<bool>,
    /// Requests answered, which distinguishes a working connection from a useless one.
    pub(crate) answers: Cell<u64>,
}

impl ServerLink {
    /// Starts this core's link, on an existing connection or on one made when needed.
    pub(crate) fn start(
        target: Arc<RemoteExport>,
        id: LinkId,
        first: Option<EstablishedConnection>,
    ) -> Rc<ServerLink> {
        let link = Rc::new(ServerLink {
            writes: target.link_writes(),
            target,
            id,
            slots: RefCell::default(),
            work: Rc::default(),
            clock: Notify::new(),
            clock_sleeps: Cell::new(false),
            now: Cell::new(0),
            stream: RefCell::new(None),
            closed: Cell::new(false),
            answers: Cell::new(0),
        });
        spawn_detached(link.clone().manage(first));
        spawn_detached(link.clone().keep_time());
        link
    }

    /// Ends the link's tasks and its connection when no request is pending.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.work.notify();
        self.clock.notify();
    }

    /// Sends a request and waits for its outcome. Assigns the cookie.
    pub(crate) fn submit(
        self: &Rc<Self>,
        request: NbdRequest,
        data: RequestData,
    ) -> PendingRequest {
        let mut slots = self.slots.borrow_mut();
        let had_queued = slots.has_queued();
        let slot = slots.insert(request, data, self.now.get());
        drop(slots);
        if !had_queued {
            self.work.notify();
        }
        if self.clock_sleeps.get() {
            self.clock.notify();
        }
        PendingRequest { link: self.clone(), slot: Some(slot) }
    }

    fn has_work(&self) -> bool {
        self.slots.borrow().unfinished() > 0
    }

    /// Requests completed: the window may have opened, or the last one before closing has
    /// completed.
    pub(crate) fn advanced(&self) {
        if self.closed.get() || self.slots.borrow().has_queued() {
            self.work.notify();
        }
    }

    /// Connects whenever requests are queued, until the device is closed and all are done.
    async fn manage(self: Rc<Self>, first: Option<EstablishedConnection>) {
        let mut ready = first;
        let mut pauses = Backoff::new(RECONNECT_MIN, RECONNECT_MAX);
        loop {
            let wanted = || (self.has_work() || self.closed.get()).then_some(());
            let established = match ready.take() {
                Some(established) => established,
                None => {
                    self.work.wait_for(wanted).await;
                    if !self.has_work() {
                        return;
                    }
                    match self.connect_again(&mut pauses).await {
                        Some(established) => established,
                        None => continue,
                    }
                }
            };
            let before = self.answers.get();
            self.use_connection(established).await;
            if self.answers.get() != before {
                pauses.reset();
            } else if self.has_work() {
                // Connected but answered nothing: as bad as a failed attempt.
                pauses.sleep_with_jitter().await;
            }
            if self.closed.get() && !self.has_work() {
                return;
            }
        }
    }

    /// Retries until connected, or until no request is pending.
    async fn connect_again(&self, pauses: &mut Backoff) -> Option<EstablishedConnection> {
        loop {
            match self.target.connect(self.id).await {
                Ok(established) => return Some(established),
                Err(error) => tracing::debug!("{}: {error}", self.target.address),
            }
            pauses.sleep_with_jitter().await;
            if !self.has_work() {
                return None;
            }
        }
    }

    /// Sends and receives until the connection ends.
    async fn use_connection(self: &Rc<Self>, established: EstablishedConnection) {
        let EstablishedConnection { socket, mut rx, .. } = established;
        let stream = socket.stream().clone();
        *self.stream.borrow_mut() = Some(stream.clone());
        let tx = Tx::new(socket, self.work.clone()).with_send_limit(SEND_BYTES);
        let tx = Rc::new(tx);
        let sender = spawn(send(tx.clone(), stream.clone())).abort_on_drop();
        let queuer = spawn(self.clone().queue_requests(tx)).abort_on_drop();
        let end = replies::receive(self, &mut rx).await;
        stream.shutdown();
        drop((sender, queuer));
        *self.stream.borrow_mut() = None;
        self.slots.borrow_mut().requeue();
        if !self.closed.get() {
            tracing::warn!("NBD connection to {} lost: {end}", self.target.address);
            self.target.connection_lost();
        }
    }

    /// Hands queued requests to the sender, as many as the window allows.
    async fn queue_requests(self: Rc<Self>, tx: Rc<Tx>) {
        loop {
            let ready = || {
                let slots = self.slots.borrow();
                let window = slots.on_wire() < CLIENT_WINDOW && tx.queued_bytes() < SEND_BYTES;
                let last = self.closed.get() && slots.unfinished() == 0;
                (last || slots.has_queued() && window).then_some(last)
            };
            if self.work.wait_for(ready).await {
                let (cookie, command) = (Cookie(0), command::DISC);
                put(&tx, &NbdRequest { flags: 0, command, cookie, offset: 0, len: 0 });
                return tx.finish();
            }
            let mut slots = self.slots.borrow_mut();
            while tx.queued_bytes() < SEND_BYTES && slots.on_wire() < CLIENT_WINDOW {
                let Some(slot) = slots.next_to_send(self.now.get()) else { break };
                put(&tx, &slot.request);
                if let RequestData::Write(data) = &slot.data {
                    tx.push(data.clone());
                }
            }
        }
    }

    /// Counts ticks while requests are pending, and enforces the timeouts.
    async fn keep_time(self: Rc<Self>) {
        let options = self.target.options;
        let ticks = |span: Duration| span.as_secs().max(1) as u32;
        loop {
            self.clock_sleeps.set(true);
            let wanted = || (self.has_work() || self.closed.get()).then_some(());
            self.clock.wait_for(wanted).await;
            self.clock_sleeps.set(false);
            if !self.has_work() {
                return;
            }
            time::sleep(TICK).await;
            let now = self.now.get().wrapping_add(1);
            self.now.set(now);
            let stream = self.stream.borrow().clone();
            match stream {
                Some(stream) => {
                    let wait = self.slots.borrow().longest_wait(now);
                    if wait > ticks(options.stall_timeout) {
                        tracing::warn!("{} does not answer: reconnecting", self.target.address);
                        stream.shutdown();
                    }
                }
                None => {
                    let limit = ticks(options.request_timeout);
                    self.slots.borrow_mut().fail_queued(now, |age| age > limit);
                }
            }
        }
    }
}

/// Sends until the last request or an error. The receiver sees the end and handles it.
async fn send(tx: Rc<Tx>, stream: Stream) {
    let _ = tx.run().await;
    stream.shutdown();
}

/// Queues the header of a request.
fn put(tx: &Tx, request: &NbdRequest) {
    tx.header(NbdRequest::BYTES, |out| {
        out.copy_from_slice(&request.encode());
        Some(NbdRequest::BYTES)
    });
}

/// Future of a request's outcome. Dropping it does not cancel the request.
pub(crate) struct PendingRequest {
    link: Rc<ServerLink>,
    slot: Option<u32>,
}

impl Future for PendingRequest {
    type Output = RequestResult;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<RequestResult> {
        let slot = self.slot.expect("polled after completion");
        let polled = self.link.slots.borrow_mut().poll(slot, cx);
        if polled.is_ready() {
            self.slot = None;
        }
        polled
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.link.slots.borrow_mut().abandon(slot);
        }
    }
}

//! One core's way to the server: requests go in, and come out answered, whatever happens to the
//! connection meanwhile.
//!
//! Requests wait in [`Slots`]. While a connection is up, a sender puts all that wait into one send,
//! within the window, and a receiver (`replies`) completes what is answered. When it breaks, the
//! manager connects again and what was not answered is sent again. A clock, which stands still
//! while nothing is under way, replaces connections that stall and fails requests that wait too
//! long.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use flagstone_runtime::net::Stream;
use flagstone_runtime::sync::Notify;
use flagstone_runtime::{BufMut, SendList, buf, random_u64, spawn, spawn_detached, time};

use crate::client::replies;
use crate::client::slots::{Data, Done, Slots};
use crate::client::target::{Established, Target};
use crate::limits::{
    CLIENT_WINDOW, HEADER_BLOCK_BYTES, RECONNECT_MAX, RECONNECT_MIN, SEND_BYTES, TICK,
};
use crate::wire::link::LinkId;
use crate::wire::request::{Cookie, Request, command};

/// See the module.
pub(crate) struct Link {
    pub(crate) target: Arc<Target>,
    id: LinkId,
    pub(crate) slots: RefCell<Slots>,
    /// Something waits to be sent, the window opened, or the device was closed.
    work: Notify,
    /// Something is under way.
    clock: Notify,
    clock_parked: Cell<bool>,
    /// The clock, in ticks of a second; it stands still while nothing is under way.
    now: Cell<u32>,
    stream: RefCell<Option<Stream>>,
    closed: Cell<bool>,
    /// Requests answered, to tell a connection that works from one that does not.
    pub(crate) answers: Cell<u64>,
}

impl Link {
    /// A link of this core, on a connection that is there already or will be made when needed.
    pub(crate) fn start(target: Arc<Target>, id: LinkId, first: Option<Established>) -> Rc<Link> {
        let link = Rc::new(Link {
            target,
            id,
            slots: RefCell::default(),
            work: Notify::new(),
            clock: Notify::new(),
            clock_parked: Cell::new(false),
            now: Cell::new(0),
            stream: RefCell::new(None),
            closed: Cell::new(false),
            answers: Cell::new(0),
        });
        spawn_detached(link.clone().manage(first));
        spawn_detached(link.clone().keep_time());
        link
    }

    /// Ends the link's tasks and its connection once nothing is under way any more.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.work.notify();
        self.clock.notify();
    }

    /// Sends a request and waits for its outcome. The cookie is chosen here.
    pub(crate) fn submit(self: &Rc<Self>, request: Request, data: Data) -> Outcome {
        let mut slots = self.slots.borrow_mut();
        let had_queued = slots.has_queued();
        let slot = slots.insert(request, data, self.now.get());
        drop(slots);
        if !had_queued {
            self.work.notify();
        }
        if self.clock_parked.get() {
            self.clock.notify();
        }
        Outcome { link: self.clone(), slot: Some(slot) }
    }

    fn has_work(&self) -> bool {
        self.slots.borrow().unfinished() > 0
    }

    /// Some requests are done: the window may have opened, or all be done that the end waits for.
    pub(crate) fn advanced(&self) {
        if self.closed.get() || self.slots.borrow().has_queued() {
            self.work.notify();
        }
    }

    /// Connects whenever there is something to send, until the device is closed and all is done.
    async fn manage(self: Rc<Self>, first: Option<Established>) {
        let mut ready = first;
        let mut pause = RECONNECT_MIN;
        loop {
            let wanted = || (self.has_work() || self.closed.get()).then_some(());
            let established = match ready.take() {
                Some(established) => established,
                None => {
                    self.work.wait_for(wanted).await;
                    if !self.has_work() {
                        return;
                    }
                    match self.connect_again(&mut pause).await {
                        Some(established) => established,
                        None => continue,
                    }
                }
            };
            let before = self.answers.get();
            self.use_connection(established).await;
            if self.answers.get() != before {
                pause = RECONNECT_MIN;
            } else if self.has_work() {
                // It connects and is of no use: as bad as one that does not.
                rest(&mut pause).await;
            }
            if self.closed.get() && !self.has_work() {
                return;
            }
        }
    }

    /// Tries until it works or nobody waits any more.
    async fn connect_again(&self, pause: &mut Duration) -> Option<Established> {
        loop {
            match self.target.connect(self.id).await {
                Ok(established) => return Some(established),
                Err(error) => tracing::debug!("{}: {error}", self.target.address),
            }
            rest(pause).await;
            if !self.has_work() {
                return None;
            }
        }
    }

    /// Sends and receives until the connection ends.
    async fn use_connection(self: &Rc<Self>, established: Established) {
        let Established { stream, mut staging, .. } = established;
        *self.stream.borrow_mut() = Some(stream.clone());
        let sender = spawn(self.clone().send(stream.clone())).abort_on_drop();
        let end = replies::receive(self, &stream, &mut staging).await;
        stream.shutdown();
        drop(sender);
        *self.stream.borrow_mut() = None;
        self.slots.borrow_mut().requeue();
        if !self.closed.get() {
            tracing::warn!("NBD connection to {} lost: {end}", self.target.address);
            self.target.connection_lost();
        }
    }

    /// Sends what waits, as much as the window allows, in one send each time.
    async fn send(self: Rc<Self>, stream: Stream) {
        let mut list = SendList::new();
        let mut headers = None;
        loop {
            let ready = || {
                let slots = self.slots.borrow();
                let some = slots.has_queued() && slots.on_wire() < CLIENT_WINDOW;
                (some || (self.closed.get() && slots.unfinished() == 0)).then_some(())
            };
            self.work.wait_for(ready).await;
            let header_block = match headers.take() {
                Some(block) => block,
                // Not from the pool: the calls that wait for it may hold all of that.
                None => buf::alloc_small(HEADER_BLOCK_BYTES),
            };
            let (rest, last) = self.fill(&mut list, header_block);
            headers = rest;
            let (result, empty) = stream.send_all(list).await;
            list = empty;
            if result.is_err() || last {
                // The receiver sees the end, and deals with it.
                return stream.shutdown();
            }
        }
    }

    /// Fills the list; a DISC and true when the device is closed and nothing is left. Gives back
    /// what is left of the header block.
    fn fill(&self, list: &mut SendList, mut headers: BufMut) -> (Option<BufMut>, bool) {
        let mut slots = self.slots.borrow_mut();
        let mut open = 0;
        if slots.unfinished() == 0 {
            let disc =
                Request { flags: 0, command: command::DISC, cookie: Cookie(0), offset: 0, len: 0 };
            headers[..Request::BYTES].copy_from_slice(&disc.encode());
            headers.truncate(Request::BYTES);
            list.push(headers.freeze());
            return (None, true);
        }
        while headers.len() - open >= Request::BYTES
            && list.bytes() < SEND_BYTES
            && slots.on_wire() < CLIENT_WINDOW
        {
            let Some(slot) = slots.next_to_send(self.now.get()) else { break };
            headers[open..open + Request::BYTES].copy_from_slice(&slot.request.encode());
            open += Request::BYTES;
            if let Data::Write(data) = &slot.data {
                list.push(headers.split_to(open).freeze());
                open = 0;
                list.push(data.clone());
            }
        }
        if open > 0 {
            list.push(headers.split_to(open).freeze());
        }
        ((headers.len() >= Request::BYTES).then_some(headers), false)
    }

    /// Counts ticks while something is under way, and acts on what takes too long.
    async fn keep_time(self: Rc<Self>) {
        let options = self.target.options;
        let ticks = |span: Duration| span.as_secs().max(1) as u32;
        loop {
            self.clock_parked.set(true);
            let wanted = || (self.has_work() || self.closed.get()).then_some(());
            self.clock.wait_for(wanted).await;
            self.clock_parked.set(false);
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
                        tracing::warn!("{} does not answer: connecting anew", self.target.address);
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

/// Waits for about `pause`, and makes the next one longer. Not all clients of a server that came
/// back should come at the same moment.
async fn rest(pause: &mut Duration) {
    let half = pause.as_nanos() as u64 / 2;
    time::sleep(Duration::from_nanos(half + random_u64() % (half + 1))).await;
    *pause = (*pause * 2).min(RECONNECT_MAX);
}

/// The outcome of a request, now or later. Dropping it lets the request go on.
pub(crate) struct Outcome {
    link: Rc<Link>,
    slot: Option<u32>,
}

impl Future for Outcome {
    type Output = Done;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done> {
        let slot = self.slot.expect("polled after completion");
        let polled = self.link.slots.borrow_mut().poll(slot, cx);
        if polled.is_ready() {
            self.slot = None;
        }
        polled
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.link.slots.borrow_mut().abandon(slot);
        }
    }
}

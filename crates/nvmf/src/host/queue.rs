//! One queue: a connection, the commands in flight on it, and the tasks that send and receive.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use flagstone_nvme::digest::wire_digest;
use flagstone_nvme::pdu::{Encoder, Fatal, R2tHeader, Receiver, Rules, encode_term_req};
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::wire::U16;
use flagstone_nvme::{Cqe, Sqe};
use flagstone_runtime::net::Stream;
use flagstone_runtime::{Buf, spawn_detached, sync, time};

use super::HostError;
use super::command::{Data, Outcome, Request, Slots};
use crate::limits::{HEADER_BYTES_MAX, TERMINATE_TIMEOUT};
use crate::stream::rx::Rx;
use crate::stream::tx::Tx;

/// What ICReq and ICResp agreed on.
#[derive(Clone, Copy)]
pub(super) struct Agreement {
    pub(super) encoder: Encoder,
    pub(super) rules: Rules,
    /// Data in one H2CData at most, in bytes.
    pub(super) max_h2c_data_bytes: u32,
}

/// See the module.
pub(super) struct Queue {
    stream: Stream,
    pub(super) tx: Tx,
    agreement: Agreement,
    pub(super) slots: RefCell<Slots>,
    /// Data up to this goes in the capsule, in bytes.
    pub(super) in_capsule_bytes: Cell<u32>,
    command_timeout: Duration,
    /// Rung when a slot comes free, a send has ended, or the queue has broken.
    progress: Rc<sync::Notify>,
    broken: Cell<bool>,
}

impl Queue {
    /// A queue of `depth` commands over a connection that has been initialized, with its tasks.
    /// `on_end` is told once, when the connection breaks, and why.
    pub(super) fn start(
        stream: Stream,
        rx: Rx,
        agreement: Agreement,
        depth: u16,
        command_timeout: Duration,
        on_end: impl FnOnce(HostError) + 'static,
    ) -> Rc<Queue> {
        let progress = Rc::new(sync::Notify::new());
        let queue = Rc::new(Queue {
            tx: Tx::new(stream.clone(), progress.clone()),
            stream,
            agreement,
            slots: RefCell::new(Slots::new(depth)),
            in_capsule_bytes: Cell::new(flagstone_nvme::limits::ADMIN_IN_CAPSULE_BYTES),
            command_timeout,
            progress,
            broken: Cell::new(false),
        });
        let sender = queue.clone();
        spawn_detached(async move {
            if sender.tx.run().await.is_err() {
                sender.stream.shutdown();
            }
        });
        let receiver = queue.clone();
        spawn_detached(async move {
            let error = receiver.read(rx).await;
            receiver.end(&error).await;
            on_end(error);
        });
        queue
    }

    pub(super) fn rules(&self) -> &Rules {
        &self.agreement.rules
    }

    /// Breaks the queue: all commands end as lost.
    pub(super) fn close(&self) {
        self.broken.set(true);
        self.tx.close();
        self.stream.shutdown();
        self.slots.borrow_mut().lose_all();
        self.progress.notify();
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Commands in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.borrow().in_flight()
    }

    /// True when a command has waited beyond its time.
    pub(super) fn is_overdue(&self) -> bool {
        self.slots.borrow().overdue(time::now())
    }

    async fn end(&self, error: &HostError) {
        if let HostError::Protocol(fatal) = error {
            self.terminate(*fatal).await;
        }
        self.close();
    }

    /// Tells the target what it did wrong, in bounded time.
    async fn terminate(&self, fatal: Fatal) {
        self.tx.header(HEADER_BYTES_MAX, |out| encode_term_req(out, Receiver::Host, fatal, &[]));
        let _ = time::timeout(TERMINATE_TIMEOUT, self.tx.drained()).await;
    }

    /// Sends a command when a slot is free, and waits for its end. Its data comes back.
    pub(super) async fn run(self: &Rc<Self>, request: Request) -> (Outcome, Data) {
        self.run_until(request, Some(self.command_timeout)).await
    }

    /// As [`Queue::run`], without a time-out when `patience` is `None`.
    pub(super) async fn run_until(
        self: &Rc<Self>,
        request: Request,
        patience: Option<Duration>,
    ) -> (Outcome, Data) {
        let Request { command, data } = request;
        let mut data = Some(data);
        let deadline = patience.map(|patience| time::now() + patience);
        let cid = match self.begin(&mut data, deadline) {
            Some(cid) => cid,
            None => self.progress.wait_for(|| self.begin(&mut data, deadline)).await,
        };
        let Some(cid) = cid else {
            return (Outcome::Lost, data.unwrap_or_default());
        };
        self.send(command, cid);
        let mut guard = Guard { queue: self, cid: Some(cid) };
        let ended = poll_fn(|cx| self.slots.borrow_mut().poll(cid, cx.waker())).await;
        guard.cid = None;
        self.progress.notify();
        ended
    }

    /// Takes a slot: `Some(None)` when the queue is broken, `None` when all are taken.
    #[inline]
    fn begin(&self, data: &mut Option<Data>, deadline: Option<time::Instant>) -> Option<Option<u16>> {
        if self.broken.get() {
            return Some(None);
        }
        match self.slots.borrow_mut().insert(data.take().unwrap_or_default(), deadline) {
            Ok(cid) => Some(Some(cid)),
            Err(back) => {
                *data = Some(back);
                None
            }
        }
    }

    #[inline]
    fn send(&self, mut command: Sqe, cid: u16) {
        command.cid = U16::new(cid);
        let mut slots = self.slots.borrow_mut();
        let pending = slots.get(cid).expect("begun just now");
        let payload = match &pending.data {
            Data::Out(data) if data.len() as u32 <= self.in_capsule_bytes.get() => {
                command.data = SglDescriptor::in_capsule(data.len() as u32);
                Some(data.clone())
            }
            Data::Out(data) => {
                command.data = SglDescriptor::transport(data.len() as u32);
                None
            }
            Data::In(place) => {
                command.data = SglDescriptor::transport(place.len() as u32);
                None
            }
            Data::None => None,
        };
        drop(slots);
        let bytes = payload.as_ref().map_or(0, |payload| payload.len() as u32);
        let encoder = &self.agreement.encoder;
        self.tx.header(HEADER_BYTES_MAX, |out| encoder.capsule_cmd(out, &command, bytes));
        if let Some(payload) = payload {
            self.push_payload(payload);
        }
    }

    fn push_payload(&self, payload: Buf) {
        let digest =
            (self.agreement.encoder.data_digest_bytes() > 0).then(|| wire_digest(&payload));
        self.tx.push(payload);
        if let Some(digest) = digest {
            self.tx.header(digest.len(), |out| {
                out.copy_from_slice(&digest);
                Some(digest.len())
            });
        }
    }

    /// Sends what an R2T asks for, in pieces that the target takes.
    pub(super) fn answer(&self, r2t: &R2tHeader, data: &Buf) {
        let encoder = &self.agreement.encoder;
        let (cid, tag) = (r2t.cid.get(), r2t.transfer_tag.get());
        let end = r2t.offset.get() + r2t.data_bytes.get();
        let mut at = r2t.offset.get();
        while at < end {
            let part = (end - at).min(self.agreement.max_h2c_data_bytes);
            let last = at + part == end;
            self.tx.header(HEADER_BYTES_MAX, |out| encoder.h2c_data(out, cid, tag, at, part, last));
            self.push_payload(data.slice(at as usize..(at + part) as usize));
            at += part;
        }
    }

    /// Ends a command with the target's completion.
    #[inline]
    pub(super) fn complete(&self, completion: Cqe) {
        self.slots.borrow_mut().end(completion.cid.get(), Outcome::Completed(completion));
    }
}

/// Leaves the slot to the answer when the caller goes first.
struct Guard<'a> {
    queue: &'a Queue,
    cid: Option<u16>,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Some(cid) = self.cid {
            self.queue.slots.borrow_mut().orphan(cid);
        }
    }
}

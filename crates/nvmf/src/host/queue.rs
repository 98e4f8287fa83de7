//! One queue: a connection, the commands in flight on it, and the tasks that send and receive.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use flagstone_nvme::digest::wire_digest;
use flagstone_nvme::pdu::{Encoder, Fatal, R2tHeader, Receiver, Rules, encode_term_req};
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::wire::U16;
use flagstone_nvme::{Cqe, Sqe};
use flagstone_runtime::net::Stream;
use flagstone_runtime::{Buf, spawn, spawn_detached, sync, time};

use super::HostError;
use super::command::{Data, Outcome, Slots};
use super::connect::End;
use super::gate::Gate;
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

/// A connection that has been initialized and is no queue yet.
pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) rx: Rx,
    pub(super) agreement: Agreement,
}

/// See the module.
pub(super) struct Queue {
    stream: Stream,
    tx: Tx,
    agreement: Agreement,
    pub(super) slots: RefCell<Slots>,
    /// Data up to this goes in the capsule, in bytes.
    in_capsule_bytes: Cell<u32>,
    /// Counts the looks for commands that take too long.
    tick: Cell<u32>,
    /// Told of each slot that comes free.
    gate: Rc<Gate>,
    /// Of the whole link: with one of its queues all end.
    end: Rc<End>,
    broken: Cell<bool>,
    /// The target's end of the connection has come, or was waited for in vain.
    over: Cell<bool>,
    rung: sync::Notify,
}

impl Queue {
    /// A queue of `depth` commands over `connection`, with its tasks. `end` is told when the
    /// connection breaks, and why; the target may then take `patience` to end its side.
    pub(super) fn start(
        connection: Connection,
        depth: u16,
        gate: Rc<Gate>,
        end: Rc<End>,
        patience: Duration,
    ) -> Rc<Queue> {
        let Connection { stream, mut rx, agreement } = connection;
        let queue = Rc::new(Queue {
            tx: Tx::new(stream.clone(), Rc::new(sync::Notify::new())),
            stream,
            agreement,
            slots: RefCell::new(Slots::new(depth)),
            in_capsule_bytes: Cell::new(flagstone_nvme::limits::ADMIN_IN_CAPSULE_BYTES),
            tick: Cell::new(0),
            gate,
            end,
            broken: Cell::new(false),
            over: Cell::new(false),
            rung: sync::Notify::new(),
        });
        let sender = queue.clone();
        spawn_detached(async move {
            // Of a broken queue it is we who ended the sending; the target's end is still to come.
            if sender.tx.run().await.is_err() && !sender.broken.get() {
                sender.stream.shutdown();
            }
        });
        let guarded = queue.clone();
        let guard = spawn(async move { guarded.bound_end(patience).await }).abort_on_drop();
        let receiver = queue.clone();
        spawn_detached(async move {
            let error = receiver.read(&mut rx).await;
            if matches!(error, HostError::Protocol(_)) {
                receiver.see_off(&mut rx).await;
            }
            receiver.end.set(error);
            receiver.close();
            // When the target ends its side it has read all that was sent, and has no command of
            // this connection left.
            rx.until_closed().await;
            receiver.stream.shutdown();
            drop(guard);
            receiver.over.set(true);
            receiver.rung.notify();
        });
        queue
    }

    /// Gives up a target that does not end its side of a closed queue, with what is unsent.
    async fn bound_end(&self, patience: Duration) {
        self.rung.wait_for(|| self.broken.get().then_some(())).await;
        time::sleep(patience).await;
        tracing::debug!("the target does not end a connection that we ended");
        self.stream.abort();
    }

    /// Waits until the target has ended a queue that was closed: bounded in time.
    pub(super) async fn over(&self) {
        self.rung.wait_for(|| self.over.get().then_some(())).await;
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    pub(super) fn has_data_digests(&self) -> bool {
        self.agreement.encoder.data_digest_bytes() > 0
    }

    pub(super) fn rules(&self) -> &Rules {
        &self.agreement.rules
    }

    /// From now on data up to `bytes` goes in the capsule.
    pub(super) fn set_in_capsule_bytes(&self, bytes: u32) {
        self.in_capsule_bytes.set(bytes);
    }

    /// Breaks the queue, and with it the link: all commands end as lost. What was sent may still
    /// reach the target, which is told that no more comes.
    pub(super) fn close(&self) {
        if self.broken.replace(true) {
            return;
        }
        // Before callers hear of it: they must not send again over another queue what the target
        // may have yet to read from this one.
        self.end.begin();
        self.tx.close();
        self.stream.shutdown_sending();
        self.rung.notify();
        self.slots.borrow_mut().lose_all();
    }

    /// Slots that are taken.
    #[inline]
    pub(super) fn taken(&self) -> usize {
        self.slots.borrow().taken()
    }

    /// Whether a slot is free.
    pub(super) fn has_room(&self) -> bool {
        !self.is_broken() && self.slots.borrow().has_room()
    }

    /// Counts one more look; true when a command has waited through more than `looks`.
    pub(super) fn is_overdue(&self, looks: u32) -> bool {
        let tick = self.tick.get().saturating_add(1);
        self.tick.set(tick);
        self.slots.borrow().any_started_before(tick.saturating_sub(looks))
    }

    /// Tells the target what it did wrong: the last that is sent.
    pub(super) fn terminate(&self, fatal: Fatal, offending: &[u8]) {
        self.tx
            .header(HEADER_BYTES_MAX, |out| encode_term_req(out, Receiver::Host, fatal, offending));
        self.tx.finish();
    }

    /// Waits until the target has read why and has closed, in bounded time. Commands are lost only
    /// then: a target that closes has none of them left.
    async fn see_off(&self, rx: &mut Rx) {
        let closed = async {
            self.tx.drained().await;
            rx.until_closed().await;
        };
        let _ = time::timeout(TERMINATE_TIMEOUT, closed).await;
    }

    /// Sends a command and waits for its end. Its data comes back. For control paths: when no slot
    /// is free, or the queue is broken, the command is lost without having been sent.
    pub(super) async fn run(self: &Rc<Self>, command: &Sqe, data: Data) -> (Outcome, Data) {
        self.run_timed(command, data, true).await
    }

    /// As [`Queue::run`]; unless `timed` it may take for ever.
    pub(super) async fn run_timed(
        self: &Rc<Self>,
        command: &Sqe,
        mut data: Data,
        timed: bool,
    ) -> (Outcome, Data) {
        match self.begin(command, &mut data, timed) {
            Some(ended) => ended.await,
            None => (Outcome::Lost, data),
        }
    }

    /// Sends a command, unless the queue is broken or all slots are taken: then `data` stays.
    #[inline]
    pub(super) fn begin(
        self: &Rc<Self>,
        command: &Sqe,
        data: &mut Data,
        timed: bool,
    ) -> Option<Ended> {
        self.send(command, data, timed, Slots::insert)
    }

    /// The same in the slot that `seat` has for it.
    #[inline]
    fn send(
        self: &Rc<Self>,
        command: &Sqe,
        data: &mut Data,
        timed: bool,
        seat: impl FnOnce(&mut Slots, &mut Data, bool, Option<u32>) -> Option<u16>,
    ) -> Option<Ended> {
        if self.end.has_begun() {
            return None;
        }
        let bytes = data.bytes();
        let payload = match data {
            Data::Out(data) if bytes <= self.in_capsule_bytes.get() => Some(data.clone()),
            _ => None,
        };
        let started = timed.then(|| self.tick.get());
        let cid = seat(&mut self.slots.borrow_mut(), data, payload.is_some(), started)?;
        let mut command = *command;
        command.cid = U16::new(cid);
        let in_capsule = if payload.is_some() { bytes } else { 0 };
        // As Linux does, also where an entry has nothing there (Property Get): some targets look.
        command.data = match payload {
            Some(_) => SglDescriptor::in_capsule(bytes),
            None => SglDescriptor::transport(bytes),
        };
        let encoder = &self.agreement.encoder;
        self.tx.header(HEADER_BYTES_MAX, |out| encoder.capsule_cmd(out, &command, in_capsule));
        if let Some(payload) = payload {
            self.push_payload(payload);
        }
        Some(Ended { queue: self.clone(), cid: Some(cid) })
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

    /// Sends what an R2T asks for, in pieces that the target takes. The R2T has been checked.
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
        let freed =
            self.slots.borrow_mut().end(completion.cid.get(), Outcome::Completed(completion));
        if freed {
            self.gate.wake_one();
        }
    }
}

/// The end of a command that was begun. Dropped before, it leaves the slot to the answer.
pub(super) struct Ended {
    queue: Rc<Queue>,
    cid: Option<u16>,
}

impl Ended {
    /// Waits for the end, and keeps the slot: to send the command again, or to drop.
    pub(super) async fn keeping(mut self) -> (Outcome, Data, Kept) {
        let cid = self.cid.expect("not polled to its end");
        let ended = |cx: &mut Context<'_>| self.queue.slots.borrow_mut().poll_kept(cid, cx.waker());
        let (outcome, data) = poll_fn(ended).await;
        self.cid = None;
        (outcome, data, Kept { queue: self.queue.clone(), cid: Some(cid) })
    }
}

impl Future for Ended {
    type Output = (Outcome, Data);
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let cid = self.cid.expect("polled after completion");
        let ended = self.queue.slots.borrow_mut().poll(cid, cx.waker());
        if ended.is_ready() {
            self.cid = None;
            self.queue.gate.wake_one();
        }
        ended
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(cid) = self.cid
            && self.queue.slots.borrow_mut().orphan(cid)
        {
            self.queue.gate.wake_one();
        }
    }
}

/// The slot of a command that has ended and may be sent again. Dropped, it is free.
pub(super) struct Kept {
    queue: Rc<Queue>,
    cid: Option<u16>,
}

impl Kept {
    /// Sends the command again; `None` when the queue is broken.
    pub(super) fn send_again(mut self, command: &Sqe, data: &mut Data) -> Option<Ended> {
        let cid = self.cid?;
        let ended = self.queue.send(command, data, true, |slots, data, in_capsule, started| {
            slots.refill(cid, data, in_capsule, started);
            Some(cid)
        })?;
        self.cid = None;
        Some(ended)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(cid) = self.cid {
            self.queue.slots.borrow_mut().release(cid);
            self.queue.gate.wake_one();
        }
    }
}

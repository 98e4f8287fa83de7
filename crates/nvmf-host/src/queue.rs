//! Queue: one connection, its commands in flight, and its send and receive tasks.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use flagstone_nvme::digest::wire_digest;
use flagstone_nvme::pdu::{Encoder, Fatal, R2tHeader, Receiver, Rules, encode_term_req};
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::wire::U16;
use flagstone_nvme::{Cqe, FabricsType, Sqe};
use flagstone_runtime::net::{Socket, Stream};
use flagstone_runtime::{Buf, spawn, spawn_detached, sync, time};

use super::HostError;
use super::admission::CommandQueue;
use super::command::{CommandData, CommandOutcome, CommandSlots};
use super::connect::AssociationEnd;
use super::durability::CacheInstance;
use flagstone_nvme::limits::{ADMIN_IN_CAPSULE_BYTES, TERM_REQ_MAX_BYTES};
use flagstone_transport::limits::TERMINATE_TIMEOUT;
use flagstone_transport::{Rx, Tx};

/// Parameters negotiated by ICReq and ICResp.
#[derive(Clone, Copy)]
pub(super) struct Agreement {
    pub(super) encoder: Encoder,
    pub(super) rules: Rules,
    /// Largest data of one H2CData PDU, in bytes.
    pub(super) max_h2c_data_bytes: u32,
}

/// Initialized connection that is not yet a queue.
pub(super) struct InitializedConnection {
    pub(super) socket: Socket,
    pub(super) rx: Rx,
    pub(super) agreement: Agreement,
}

/// Queue over one connection.
pub(super) struct HostQueue {
    stream: Stream,
    tx: Tx,
    agreement: Agreement,
    pub(super) slots: RefCell<CommandSlots>,
    /// Largest in-capsule data of I/O commands, in bytes.
    in_capsule_bytes: Cell<u32>,
    /// Instance whose volatile cache its writes fill; unset if there is none.
    instance: OnceCell<Arc<CacheInstance>>,
    /// Its host has authenticated on it, and has to repeat that.
    reauthenticates: Cell<bool>,
    /// Counts the checks for overdue commands.
    tick: Cell<u32>,
    /// Notified of each freed slot.
    admission: Rc<CommandQueue>,
    /// End state of the whole link: if one queue breaks, all end.
    end: Rc<AssociationEnd>,
    broken: Cell<bool>,
    /// The target's end of the connection has arrived, or the wait for it timed out.
    over: Cell<bool>,
    rung: sync::Notify,
}

impl HostQueue {
    /// Starts a queue with `slots` over `connection`, with its tasks. `end` receives the cause when
    /// the connection breaks; the target may then take `timeout` to end its side.
    pub(super) fn start(
        connection: InitializedConnection,
        slots: CommandSlots,
        admission: Rc<CommandQueue>,
        end: Rc<AssociationEnd>,
        timeout: Duration,
    ) -> Rc<HostQueue> {
        let InitializedConnection { socket, mut rx, agreement } = connection;
        let stream = socket.stream().clone();
        let queue = Rc::new(HostQueue {
            tx: Tx::new(socket, Rc::new(sync::Notify::new())),
            stream,
            agreement,
            slots: RefCell::new(slots),
            in_capsule_bytes: Cell::new(ADMIN_IN_CAPSULE_BYTES),
            instance: OnceCell::new(),
            reauthenticates: Cell::new(false),
            tick: Cell::new(0),
            admission,
            end,
            broken: Cell::new(false),
            over: Cell::new(false),
            rung: sync::Notify::new(),
        });
        let sender = queue.clone();
        spawn_detached(async move {
            // On a broken queue, this host ended sending; the target's end is still to come.
            if sender.tx.run().await.is_err() && !sender.broken.get() {
                sender.stream.shutdown();
            }
        });
        let guarded = queue.clone();
        let guard = spawn(async move { guarded.bound_end(timeout).await }).abort_on_drop();
        let receiver = queue.clone();
        spawn_detached(async move {
            let error = receiver.read(&mut rx).await;
            if matches!(error, HostError::Protocol(_)) {
                receiver.see_off(&mut rx).await;
            }
            receiver.end.set(error);
            receiver.close();
            // Once the target ends its side, it has read everything sent and has no command of this
            // connection left.
            rx.until_closed().await;
            receiver.stream.shutdown();
            drop(guard);
            receiver.over.set(true);
            receiver.rung.notify();
        });
        queue
    }

    /// Aborts a closed queue whose target does not end its side, and discards unsent data.
    async fn bound_end(&self, timeout: Duration) {
        self.rung.wait_for(|| self.broken.get().then_some(())).await;
        time::sleep(timeout).await;
        tracing::debug!("the target did not close the connection in time");
        self.stream.abort();
    }

    /// Waits, in bounded time, until the target has ended a closed queue.
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

    /// Authentication has succeeded, and has to be repeated.
    pub(super) fn set_reauthenticates(&self) {
        self.reauthenticates.set(true);
    }

    pub(super) fn reauthenticates(&self) -> bool {
        self.reauthenticates.get()
    }

    /// Sets the largest in-capsule data of I/O commands, in bytes.
    pub(super) fn set_in_capsule_bytes(&self, bytes: u32) {
        self.in_capsule_bytes.set(bytes);
    }

    /// Sets the instance whose volatile cache its writes fill. Called once, before the first write.
    pub(super) fn set_instance(&self, instance: Arc<CacheInstance>) {
        self.instance.get_or_init(|| instance);
    }

    #[inline]
    pub(super) fn instance(&self) -> Option<&Arc<CacheInstance>> {
        self.instance.get()
    }

    /// Breaks the queue and thereby the link: all commands end as lost. Sent commands may still
    /// reach the target, which sees the end of the stream.
    pub(super) fn close(&self) {
        if self.broken.replace(true) {
            return;
        }
        // First, before callers see the loss: they must not resend over another queue what the
        // target may still read from this one.
        self.end.begin();
        self.tx.close();
        self.stream.shutdown_sending();
        self.rung.notify();
        self.slots.borrow_mut().fail_all();
    }

    /// Number of slots in use.
    #[inline]
    pub(super) fn taken(&self) -> usize {
        self.slots.borrow().taken()
    }

    /// True if a slot is free.
    pub(super) fn has_room(&self) -> bool {
        !self.is_broken() && self.slots.borrow().has_room()
    }

    /// Counts one check; true if a command has been in flight for more than `looks` checks.
    pub(super) fn is_overdue(&self, looks: u32) -> bool {
        let tick = self.tick.get().saturating_add(1);
        self.tick.set(tick);
        self.slots.borrow().any_started_before(tick.saturating_sub(looks))
    }

    /// Sends a TermReq, the last PDU of the connection.
    pub(super) fn terminate(&self, fatal: Fatal, offending: &[u8]) {
        self.tx.header(TERM_REQ_MAX_BYTES, |out| {
            encode_term_req(out, Receiver::Host, fatal, offending)
        });
        self.tx.finish();
    }

    /// Waits, in bounded time, until the target has closed. Only then are commands lost: a target
    /// that closes has none left.
    async fn see_off(&self, rx: &mut Rx) {
        let closed = async {
            self.tx.drained().await;
            rx.until_closed().await;
        };
        let _ = time::timeout(TERMINATE_TIMEOUT, closed).await;
    }

    /// Sends a command and waits for its end. Returns its data. For control paths: without a free
    /// slot, or on a broken queue, the command is lost without being sent.
    pub(super) async fn run(
        self: &Rc<Self>,
        command: &Sqe,
        data: CommandData,
    ) -> (CommandOutcome, CommandData) {
        self.run_timed(command, data, true).await
    }

    /// Like [`HostQueue::run`], but without a timeout unless `timed`.
    pub(super) async fn run_timed(
        self: &Rc<Self>,
        command: &Sqe,
        mut data: CommandData,
        timed: bool,
    ) -> (CommandOutcome, CommandData) {
        match self.begin(command, &mut data, timed) {
            Some(ended) => ended.await,
            None => (CommandOutcome::Lost, data),
        }
    }

    /// Like [`HostQueue::run`], in the slot for authentication and without a timeout.
    pub(super) async fn run_reserved(
        self: &Rc<Self>,
        command: &Sqe,
        mut data: CommandData,
    ) -> (CommandOutcome, CommandData) {
        match self.send(command, &mut data, false, CommandSlots::insert_reserved) {
            Some(ended) => ended.await,
            None => (CommandOutcome::Lost, data),
        }
    }

    /// Sends a command. `data` stays in place if the queue is broken or all slots are in use.
    #[inline]
    pub(super) fn begin(
        self: &Rc<Self>,
        command: &Sqe,
        data: &mut CommandData,
        timed: bool,
    ) -> Option<CommandEnd> {
        self.send(command, data, timed, CommandSlots::insert)
    }

    /// Sends a command in the slot described by `seat`.
    #[inline]
    fn send(
        self: &Rc<Self>,
        command: &Sqe,
        data: &mut CommandData,
        timed: bool,
        seat: impl FnOnce(&mut CommandSlots, &mut CommandData, bool, Option<u32>) -> Option<u16>,
    ) -> Option<CommandEnd> {
        if self.end.has_begun() {
            return None;
        }
        let bytes = data.bytes();
        let payload = match data {
            CommandData::Out(data)
                if bytes <= self.in_capsule_bytes.get() || is_fabrics(command) =>
            {
                Some(data.clone())
            }
            _ => None,
        };
        let started = timed.then(|| self.tick.get());
        let cid = seat(&mut self.slots.borrow_mut(), data, payload.is_some(), started)?;
        let mut command = *command;
        command.cid = U16::new(cid);
        let in_capsule = if payload.is_some() { bytes } else { 0 };
        // As Linux does, even where the entry has no data (Property Get), because some targets
        // check it.
        command.data = match payload {
            Some(_) => SglDescriptor::in_capsule(bytes),
            None => SglDescriptor::transport(bytes),
        };
        let encoder = &self.agreement.encoder;
        self.tx.header(TERM_REQ_MAX_BYTES, |out| encoder.capsule_cmd(out, &command, in_capsule));
        if let Some(payload) = payload {
            self.push_payload(payload);
        }
        Some(CommandEnd { queue: self.clone(), cid: Some(cid) })
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

    /// Sends the data requested by a validated R2T, in pieces that the target accepts.
    pub(super) fn answer(&self, r2t: &R2tHeader, data: &Buf) {
        let encoder = &self.agreement.encoder;
        let (cid, tag) = (r2t.cid.get(), r2t.transfer_tag.get());
        let end = r2t.offset.get() + r2t.data_bytes.get();
        let mut at = r2t.offset.get();
        while at < end {
            let part = (end - at).min(self.agreement.max_h2c_data_bytes);
            let last = at + part == end;
            self.tx
                .header(TERM_REQ_MAX_BYTES, |out| encoder.h2c_data(out, cid, tag, at, part, last));
            self.push_payload(data.slice(at as usize..(at + part) as usize));
            at += part;
        }
    }

    /// Ends a command with the target's completion.
    #[inline]
    pub(super) fn complete(&self, completion: Cqe) {
        let freed = self
            .slots
            .borrow_mut()
            .end(completion.cid.get(), CommandOutcome::Completed(completion));
        if freed {
            self.admission.wake_one();
        }
    }
}

/// True for fabrics commands, whose data is always in the capsule (NVMe/TCP 3.3.2.1.2), of at most
/// [`ADMIN_IN_CAPSULE_BYTES`] bytes on each queue.
fn is_fabrics(command: &Sqe) -> bool {
    command.opcode == FabricsType::OPCODE
}

/// Future of a started command's end. Dropping it leaves the slot to the completion.
pub(super) struct CommandEnd {
    queue: Rc<HostQueue>,
    cid: Option<u16>,
}

impl CommandEnd {
    /// Queue of the command.
    #[inline]
    pub(super) fn queue(&self) -> Rc<HostQueue> {
        self.queue.clone()
    }

    /// Waits for the end and keeps the slot, to resend the command or to drop.
    pub(super) async fn keeping(mut self) -> (CommandOutcome, CommandData, KeptSlot) {
        let cid = self.cid.expect("not polled to its end");
        let ended = |cx: &mut Context<'_>| self.queue.slots.borrow_mut().poll_kept(cid, cx.waker());
        let (outcome, data) = poll_fn(ended).await;
        self.cid = None;
        (outcome, data, KeptSlot { queue: self.queue.clone(), cid: Some(cid) })
    }
}

impl Future for CommandEnd {
    type Output = (CommandOutcome, CommandData);
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let cid = self.cid.expect("polled after completion");
        let ended = self.queue.slots.borrow_mut().poll(cid, cx.waker());
        if ended.is_ready() {
            self.cid = None;
            self.queue.admission.wake_one();
        }
        ended
    }
}

impl Drop for CommandEnd {
    fn drop(&mut self) {
        if let Some(cid) = self.cid
            && self.queue.slots.borrow_mut().orphan(cid)
        {
            self.queue.admission.wake_one();
        }
    }
}

/// Slot of an ended command that may be resent. Dropping it frees the slot.
pub(super) struct KeptSlot {
    queue: Rc<HostQueue>,
    cid: Option<u16>,
}

impl KeptSlot {
    /// Resends the command; `None` when the queue is broken.
    pub(super) fn send_again(
        mut self,
        command: &Sqe,
        data: &mut CommandData,
    ) -> Option<CommandEnd> {
        let cid = self.cid?;
        let ended = self.queue.send(command, data, true, |slots, data, in_capsule, started| {
            slots.refill(cid, data, in_capsule, started);
            Some(cid)
        })?;
        self.cid = None;
        Some(ended)
    }
}

impl Drop for KeptSlot {
    fn drop(&mut self) {
        if let Some(cid) = self.cid {
            self.queue.slots.borrow_mut().release(cid);
            self.queue.admission.wake_one();
        }
    }
}

//! Commands that wait for admission or memory: reads without a buffer, and writes that need an R2T.
//!
//! A command waits here without memory, and receiving continues meanwhile. Requested data arrives
//! behind commands that the host has already sent, so a connection that stopped receiving would
//! deadlock with its host. Queue entries bound the number of waiting commands.
//!
//! A command that waits here does not count as admitted, because its host decides how long it
//! waits: a Preempt, or the removal of the namespace, would wait for the host that it cuts off. The
//! checks of the command are repeated when it is served.
//!
//! Waiting commands are served in order. Each connection has at most one entry in the process-wide
//! memory queue (see [`flagstone_runtime::buf`]), so connections take turns.
//!
//! A connection with an outstanding R2T holds memory that is released only by receiving. Before the
//! requested data, it may receive commands with in-capsule data. If these waited for memory that
//! other connections hold for the same reason, all would deadlock. Therefore the first R2T also
//! allocates a reserve for the in-capsule data of one command: the receiver waits at most for the
//! device to release it.
//!
//! Namespaces with a [handler](crate::VendorHandler) carry the I/O of another node, whose hosts
//! wait with that node's memory. If these commands waited for memory held by local hosts, and those
//! waited for the other node in turn, both nodes would deadlock. Such commands share memory beyond
//! the ceiling: each core has one buffer for in-capsule data and one for requested data. The second
//! may wait for data that arrives behind capsules. The first waits only for the rest of its PDU and
//! for the device.

use std::rc::Rc;
use std::sync::Arc;

use flagstone_nvme::command::io::BlockCommand;
use flagstone_nvme::{Sqe, Status};
use flagstone_runtime::buf::{self, SharedReserve, TooLarge};
use flagstone_runtime::{BufMut, spawn_detached};

use super::Connection;
use super::fused::FusedPair;
use super::transfer::TransferHalf;
use crate::Namespace;
use crate::io::status_of;
use crate::limits::{LINK_CAPSULE_BYTES, LINK_TRANSFER_BYTES};

thread_local! {
    static CAPSULES: Rc<SharedReserve> = Rc::new(SharedReserve::new(LINK_CAPSULE_BYTES));
    static TRANSFERS: Rc<SharedReserve> = Rc::new(SharedReserve::new(LINK_TRANSFER_BYTES));
}

/// In-flight command that waits.
pub(super) struct WaitingCommand {
    /// Memory that it needs, in bytes.
    bytes: usize,
    work: Work,
}

enum Work {
    Read(Read),
    Transfer(TransferOf),
}

/// Command whose data is requested with R2Ts.
pub(super) enum TransferOf {
    Command(Sqe),
    /// A fused operation, which needs memory for both halves.
    Pair(Box<FusedPair>),
}

struct Read {
    command: Sqe,
    block_bytes: usize,
    /// Bytes that it adds to the payload budget once it has memory.
    payload: usize,
}

impl Connection {
    /// Begins a command whose `bytes` of data are requested with R2Ts as soon as memory is
    /// available.
    pub(super) fn take_transfer(self: &Rc<Self>, of: TransferOf, bytes: usize) {
        self.begin(0);
        if self.waiting.borrow().is_empty()
            && self.may_grant()
            && self.fits(bytes + self.missing_reserve())
            && let Some(data) = buf::try_alloc_with_reserve(bytes, &self.reserve, self.in_capsule())
        {
            return self.grant(of, data);
        }
        self.wait(WaitingCommand { bytes, work: Work::Transfer(of) });
    }

    /// Queues an in-flight read with `payload` bytes. It is not charged for them while it waits.
    #[cold]
    pub(crate) fn wait_to_read(
        self: &Rc<Self>,
        namespace: &Namespace,
        command: &Sqe,
        bytes: usize,
        payload: usize,
    ) {
        self.payload_bytes.set(self.payload_bytes.get() - payload);
        self.room.notify();
        let block_bytes = 1 << namespace.block_shift;
        let read = Read { command: *command, block_bytes, payload };
        self.wait(WaitingCommand { bytes, work: Work::Read(read) });
    }

    fn wait(self: &Rc<Self>, waiting: WaitingCommand) {
        let first = self.waiting.borrow().is_empty();
        self.waiting.borrow_mut().push_back(waiting);
        if first {
            let connection = self.clone();
            spawn_detached(async move { connection.serve_waiting().await });
        }
    }

    /// Serves waiting commands in order. The command being served stays in the queue, so that no
    /// second task starts.
    async fn serve_waiting(self: Rc<Self>) {
        loop {
            let part = self.room.wait_for(|| self.may_serve()).await;
            let Some((bytes, reads)) = self.first_waiting() else { return self.settled() };
            if reads && part < bytes {
                self.read_in_parts(part).await;
            } else {
                let memory = if reads {
                    buf::acquire(bytes).await
                } else if bytes <= LINK_TRANSFER_BYTES && self.is_link() {
                    let spare = TRANSFERS.with(Rc::clone);
                    Ok(spare.acquire(bytes).await)
                } else {
                    buf::acquire_with_reserve(bytes, &self.reserve, self.in_capsule()).await
                };
                // The connection may have ended meanwhile, which clears the queue.
                let Some(waiting) = self.waiting.borrow_mut().pop_front() else { return };
                self.serve(waiting, memory);
            }
            if self.waiting.borrow().is_empty() {
                return self.settled();
            }
        }
    }

    /// Executes the first command, a read, in parts, the first of which has `part` bytes.
    async fn read_in_parts(self: &Rc<Self>, mut part: usize) {
        let first = self.waiting.borrow().front().and_then(|first| {
            let Work::Read(read) = &first.work else { return None };
            Some((read.command, read.block_bytes, first.bytes))
        });
        let Some((command, block, bytes)) = first else { return };
        let mut at = 0;
        let result = loop {
            let Ok(place) = buf::acquire(part).await else {
                break Err(Status::INTERNAL_ERROR.dnr());
            };
            if self.ended.get() {
                return;
            }
            let (namespace, offset) = match self.checked_read(&command, bytes) {
                Ok(found) => found,
                Err(status) => break Err(status),
            };
            let admitted = self.admit_waiting();
            self.payload_bytes.set(self.payload_bytes.get() + part);
            let data = namespace.device.read(offset + at as u64, place).await;
            drop((admitted, namespace));
            self.payload_bytes.set(self.payload_bytes.get() - part);
            if self.ended.get() {
                // The queue was cleared, and the command is no longer counted.
                return;
            }
            match data {
                Ok(data) => self.send_part(&command, at, data.freeze(), at + part == bytes),
                Err(error) => break Err(status_of(error)),
            }
            at += part;
            if at == bytes {
                break Ok(());
            }
            let next = || match self.ended.get() {
                true => Some(0),
                false => self.readable_part(bytes - at, block),
            };
            part = self.room.wait_for(next).await;
            if part == 0 {
                return;
            }
        };
        drop(self.waiting.borrow_mut().pop_front());
        match result {
            Ok(()) => self.release(0),
            Err(status) => self.fail(&command, status, 0),
        }
    }

    /// Namespace and offset of a read of `bytes` that has waited, with all checks of a command that
    /// arrives: a reservation may exclude its host now, and the namespace may be gone.
    fn checked_read(&self, command: &Sqe, bytes: usize) -> Result<(Arc<Namespace>, u64), Status> {
        let namespace = self.checked(command)?.ok_or(Status::INVALID_NAMESPACE.dnr())?;
        let span = self.span(&namespace, &BlockCommand::parse(command))?;
        // Another namespace with other blocks has taken the identifier.
        if span.len != bytes {
            return Err(Status::INVALID_NAMESPACE.dnr());
        }
        Ok((namespace, span.offset))
    }

    /// Memory that the first command needs, in bytes, and whether it is a read.
    fn first_waiting(&self) -> Option<(usize, bool)> {
        let is_read = |first: &WaitingCommand| matches!(first.work, Work::Read(_));
        self.waiting.borrow().front().map(|first| (first.bytes, is_read(first)))
    }

    /// Bytes of the first command that may be served: all of them, or a part of a read. 0 if there
    /// is no command.
    fn may_serve(&self) -> Option<usize> {
        let waiting = self.waiting.borrow();
        let Some(first) = waiting.front() else { return Some(0) };
        match &first.work {
            Work::Read(read) => {
                let budget = self.target.config().connection_payload_bytes;
                (self.payload_bytes.get() < budget)
                    .then(|| self.readable_part(first.bytes, read.block_bytes))
                    .flatten()
            }
            Work::Transfer(_) => (self.may_grant()
                && self.fits(first.bytes + self.missing_reserve()))
            .then_some(first.bytes),
        }
    }

    /// Bytes that the reserve would take.
    fn missing_reserve(&self) -> usize {
        if self.reserve.is_filled() { 0 } else { self.in_capsule() }
    }

    /// Half of the budget is for transfers. The other half stays free for commands without R2T.
    fn may_grant(&self) -> bool {
        let budget = self.target.config().connection_payload_bytes;
        self.transfer_bytes.get() == 0 || self.payload_bytes.get() < budget / 2
    }

    fn serve(self: &Rc<Self>, waiting: WaitingCommand, memory: Result<BufMut, TooLarge>) {
        match (memory, waiting.work) {
            (Ok(place), Work::Read(Read { command, payload, .. })) => {
                match self.checked_read(&command, waiting.bytes) {
                    Ok((namespace, offset)) => {
                        self.payload_bytes.set(self.payload_bytes.get() + payload);
                        self.read_into(&namespace, command, offset, place, payload);
                    }
                    Err(status) => self.fail(&command, status, 0),
                }
            }
            (Ok(data), Work::Transfer(of)) => self.grant(of, data),
            // It will never fit. A pair is smaller than the smallest share.
            (
                Err(TooLarge),
                Work::Read(Read { command, .. }) | Work::Transfer(TransferOf::Command(command)),
            ) => self.fail(&command, Status::INTERNAL_ERROR.dnr(), 0),
            (Err(TooLarge), Work::Transfer(TransferOf::Pair(pair))) => {
                self.answer_fused(&pair, [Status::INTERNAL_ERROR.dnr(); 2], 0);
            }
        }
    }

    /// True if another node depends on a namespace of this controller.
    pub(super) fn is_link(&self) -> bool {
        let session = self.session.borrow();
        session.as_ref().is_some_and(|session| session.table.iter().any(|one| one.vendor.is_some()))
    }

    /// Largest in-capsule data, in bytes: the size of the reserve.
    fn in_capsule(&self) -> usize {
        self.in_capsule_bytes.get() as usize
    }

    fn grant(&self, of: TransferOf, mut data: BufMut) {
        self.payload_bytes.set(self.payload_bytes.get() + data.len());
        self.transfer_bytes.set(self.transfer_bytes.get() + data.len());
        match of {
            TransferOf::Command(command) => self.begin_transfer(command, data, None),
            TransferOf::Pair(pair) => {
                // The data to write comes first in the buffer, aligned for the device.
                let expected = data.split_off(data.len() / 2);
                let half = TransferHalf::First { second: pair.second, place: data };
                self.begin_transfer(pair.first, expected, Some(Box::new(half)));
            }
        }
    }

    /// Requests a command's data into `data`.
    pub(super) fn begin_transfer(
        &self,
        command: Sqe,
        data: BufMut,
        half: Option<Box<TransferHalf>>,
    ) {
        let wanted = data.len();
        let tag = self.transfers.borrow_mut().insert(command, data, half);
        let tag = tag.expect("as many as a queue has entries");
        self.request_data(command.cid.get(), tag, wanted as u32);
    }

    /// All `bytes` of a command's data have arrived: it is now an ordinary in-flight command.
    pub(super) fn transferred(&self, bytes: usize) {
        self.transfer_bytes.set(self.transfer_bytes.get() - bytes);
        if self.transfers.borrow().is_empty() {
            self.reserve.give_up();
        }
        self.room.notify();
    }

    /// Allocates a buffer for `len` bytes that the host is already sending. While R2T data is
    /// outstanding, this falls back to the reserve, which memory granted meanwhile may refill.
    pub(super) async fn place_for_capsule(&self, len: usize) -> Result<BufMut, TooLarge> {
        if self.fits(len)
            && let Some(place) = buf::try_alloc(len)
        {
            return Ok(place);
        }
        if len <= LINK_CAPSULE_BYTES && self.is_link() {
            let spare = CAPSULES.with(Rc::clone);
            return Ok(spare.acquire(len).await);
        }
        let mut reserved = std::pin::pin!(self.room.wait_for(|| self.reserve.try_alloc(len)));
        let mut acquired = std::pin::pin!(async {
            self.room.wait_for(|| self.fits(len).then_some(())).await;
            buf::acquire(len).await
        });
        let place = std::future::poll_fn(|cx| match acquired.as_mut().poll(cx) {
            std::task::Poll::Pending => reserved.as_mut().poll(cx).map(Ok),
            done => done,
        })
        .await;
        self.settled();
        place
    }

    /// Drops all waiting commands and all transfers: their data will not arrive.
    pub(super) fn give_up_waiting(&self) {
        self.ended.set(true);
        self.fused_first.take();
        for _ in self.waiting.take() {
            self.release(0);
        }
        self.transfers.borrow_mut().clear(|payload| self.release(payload));
        self.transfer_bytes.set(0);
        self.reserve.give_up();
    }
}

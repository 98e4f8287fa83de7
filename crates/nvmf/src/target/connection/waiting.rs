//! Commands that wait for room or for memory: reads when there is none, and writes whose data is to
//! be asked for with R2T.
//!
//! A command waits here without memory, and while it does receiving goes on: data that was asked
//! for arrives behind commands that the host has sent already, so neither side would ever go on if
//! those were not received. Commands that wait are bounded by the entries of the queue.
//!
//! They are served in order, and one of a connection at a time stands in the queue of the process
//! (see [`flagstone_runtime::buf`]), so that connections take turns there.
//!
//! A connection that is owed data holds memory that comes back by receiving. What it receives
//! before that data may be commands with data of their own, and these must not wait for memory that
//! others hold for the same reason. So with the first R2T comes a reserve, for one command's
//! in-capsule data: the receiver waits at most for the device to be done with it.
//!
//! Commands of a namespace with a [handler](crate::target::VendorHandler) are what another node's hosts
//! wait for, with memory of that node. If they waited here for memory of our hosts, which wait for that
//! node in the same way, neither would go on. So they have memory beyond the ceiling to take turns
//! with: a core has a buffer for data in a capsule, and one for data that is asked for. The second may
//! wait for data that comes behind capsules; the first waits for nothing but the rest of its PDU and the
//! device.

use std::rc::Rc;
use std::sync::Arc;

use flagstone_nvme::{Sqe, Status};
use flagstone_runtime::buf::{self, Spare, TooLarge};
use flagstone_runtime::{BufMut, spawn_detached};

use super::Connection;
use crate::limits::{LINK_CAPSULE_BYTES, LINK_TRANSFER_BYTES};
use crate::target::Namespace;
use crate::target::queue::Admitted;

thread_local! {
    static CAPSULES: Rc<Spare> = Rc::new(Spare::new(LINK_CAPSULE_BYTES));
    static TRANSFERS: Rc<Spare> = Rc::new(Spare::new(LINK_TRANSFER_BYTES));
}

/// A command in hand that waits.
pub(super) struct Waiting {
    command: Sqe,
    /// What it needs, in bytes.
    bytes: usize,
    /// Where it reads; `None` when its data is to be asked for.
    read: Option<Read>,
}

struct Read {
    namespace: Arc<Namespace>,
    offset: u64,
    /// It was admitted, as its namespace was found.
    admitted: Option<Admitted>,
    /// What it counts for in the connection's budget once it has memory, in bytes.
    payload: usize,
}

impl Connection {
    /// Takes a command in hand whose `bytes` of data are to be asked for: now, or when there is
    /// room.
    pub(super) fn take_transfer(self: &Rc<Self>, command: Sqe, bytes: usize) {
        self.begin(0);
        if self.waiting.borrow().is_empty()
            && self.may_grant()
            && let Some(data) = buf::try_alloc_with_reserve(bytes, &self.reserve, self.in_capsule())
        {
            return self.grant(command, data);
        }
        self.wait(Waiting { command, bytes, read: None });
    }

    /// Has a read wait that counts as in hand, with `payload` bytes: without them, while it waits.
    #[cold]
    pub(in crate::target) fn wait_to_read(
        self: &Rc<Self>,
        namespace: Arc<Namespace>,
        command: &Sqe,
        offset: u64,
        bytes: usize,
        payload: usize,
    ) {
        self.payload_bytes.set(self.payload_bytes.get() - payload);
        self.room.notify();
        let read = Some(Read { namespace, offset, admitted: self.admit_waiting(), payload });
        self.wait(Waiting { command: *command, bytes, read });
    }

    fn wait(self: &Rc<Self>, waiting: Waiting) {
        let first = self.waiting.borrow().is_empty();
        self.waiting.borrow_mut().push_back(waiting);
        if first {
            let connection = self.clone();
            spawn_detached(async move { connection.serve_waiting().await });
        }
    }

    /// Serves all commands that wait, in order. The one that is being looked after stays in the
    /// queue, so that no second task begins.
    async fn serve_waiting(self: Rc<Self>) {
        loop {
            self.room.wait_for(|| self.may_serve().then_some(())).await;
            let Some((bytes, reads)) = self.first_waiting() else { return };
            let memory = if reads {
                buf::acquire(bytes).await
            } else if bytes <= LINK_TRANSFER_BYTES && self.is_link() {
                let spare = TRANSFERS.with(Rc::clone);
                Ok(spare.acquire(bytes).await)
            } else {
                buf::acquire_with_reserve(bytes, &self.reserve, self.in_capsule()).await
            };
            // The connection may have ended meanwhile, and with it all that waits.
            let Some(waiting) = self.waiting.borrow_mut().pop_front() else { return };
            self.serve(waiting, memory);
            if self.waiting.borrow().is_empty() {
                return;
            }
        }
    }

    /// What the first needs, in bytes, and whether it is a read.
    fn first_waiting(&self) -> Option<(usize, bool)> {
        self.waiting.borrow().front().map(|first| (first.bytes, first.read.is_some()))
    }

    /// Whether there is room for the first; true when there is none, too.
    fn may_serve(&self) -> bool {
        match self.first_waiting() {
            Some((_, true)) => {
                self.payload_bytes.get() < self.target.config().connection_payload_bytes
            }
            Some((_, false)) => self.may_grant(),
            None => true,
        }
    }

    /// Half of the budget is for transfers: the other half is left for commands that need none.
    fn may_grant(&self) -> bool {
        let budget = self.target.config().connection_payload_bytes;
        self.transfer_bytes.get() == 0 || self.payload_bytes.get() < budget / 2
    }

    fn serve(self: &Rc<Self>, waiting: Waiting, memory: Result<BufMut, TooLarge>) {
        let command = waiting.command;
        match (memory, waiting.read) {
            (Ok(place), Some(Read { namespace, offset, admitted, payload })) => {
                self.payload_bytes.set(self.payload_bytes.get() + payload);
                self.read_into(&namespace, command, offset, place, payload);
                drop(admitted);
            }
            (Ok(data), None) => self.grant(command, data),
            // No time will come when it fits.
            (Err(TooLarge), _) => self.fail(&command, Status::INTERNAL_ERROR.dnr(), 0),
        }
    }

    /// Whether a namespace here has commands that another node waits for.
    fn is_link(&self) -> bool {
        let session = self.session.borrow();
        session.as_ref().is_some_and(|session| session.table.iter().any(|one| one.vendor.is_some()))
    }

    /// The longest data in a capsule, in bytes: what the reserve is for.
    fn in_capsule(&self) -> usize {
        self.in_capsule_bytes.get() as usize
    }

    fn grant(&self, command: Sqe, data: BufMut) {
        let wanted = data.len();
        self.payload_bytes.set(self.payload_bytes.get() + wanted);
        self.transfer_bytes.set(self.transfer_bytes.get() + wanted);
        let tag = self.transfers.borrow_mut().insert(command, data);
        let tag = tag.expect("as many as a queue has entries");
        self.request_data(command.cid.get(), tag, wanted as u32);
    }

    /// All of a command's data, `bytes` long, has arrived: it is in hand as any other.
    pub(super) fn transferred(&self, bytes: usize) {
        self.transfer_bytes.set(self.transfer_bytes.get() - bytes);
        if self.transfers.borrow().is_empty() {
            self.reserve.give_up();
        }
        self.room.notify();
    }

    /// A place for `len` bytes that the host is sending already. While others are asked for, the
    /// reserve will do, which may come with memory that is granted meanwhile.
    pub(super) async fn place_for_capsule(&self, len: usize) -> Result<BufMut, TooLarge> {
        if let Some(place) = buf::try_alloc(len) {
            return Ok(place);
        }
        if len <= LINK_CAPSULE_BYTES && self.is_link() {
            let spare = CAPSULES.with(Rc::clone);
            return Ok(spare.acquire(len).await);
        }
        let mut reserved = std::pin::pin!(self.room.wait_for(|| self.reserve.try_alloc(len)));
        let mut acquired = std::pin::pin!(buf::acquire(len));
        std::future::poll_fn(|cx| match acquired.as_mut().poll(cx) {
            std::task::Poll::Pending => reserved.as_mut().poll(cx).map(Ok),
            done => done,
        })
        .await
    }

    /// Forgets all commands that wait, and those whose data is not there: it will not come.
    pub(super) fn give_up_waiting(&self) {
        self.ended.set(true);
        for _ in self.waiting.take() {
            self.release(0);
        }
        self.transfers.borrow_mut().clear(|payload| self.release(payload));
        self.transfer_bytes.set(0);
        self.reserve.give_up();
    }
}

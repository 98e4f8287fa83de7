//! Asking for data with R2T, as far as there is room for it.
//!
//! Data that was asked for arrives behind commands that the host has sent already. So those must be
//! received even when transfers have taken all the room, or neither side would ever go on: commands
//! whose data does not fit wait here, without a buffer, and receiving goes on. They are bounded by
//! the entries of the queue.

use std::rc::Rc;

use flagstone_nvme::Sqe;
use flagstone_runtime::{BufMut, buf, spawn_detached};

use super::Connection;

impl Connection {
    /// Takes a command in hand whose `wanted` bytes of data are to be asked for: now, or when there
    /// is room.
    pub(super) fn take_transfer(self: &Rc<Self>, command: Sqe, wanted: usize) {
        self.begin(0);
        let first = self.ungranted.borrow().is_empty();
        if first
            && self.may_grant()
            && let Some(data) = buf::try_alloc(wanted)
        {
            return self.grant(command, data);
        }
        self.ungranted.borrow_mut().push_back((command, wanted));
        if first {
            let connection = self.clone();
            spawn_detached(async move { connection.grant_when_there_is_room().await });
        }
    }

    /// Half of the budget is for transfers: the other half is left for commands that need none.
    fn may_grant(&self) -> bool {
        let budget = self.target.config().connection_payload_bytes;
        self.transfer_bytes.get() == 0 || self.payload_bytes.get() < budget / 2
    }

    /// Asks for the data of all commands that wait, in order. The one that is being looked after
    /// stays in the queue, so that no second task begins.
    async fn grant_when_there_is_room(self: Rc<Self>) {
        loop {
            let go_on = || (self.ended.get() || self.may_grant()).then_some(());
            self.room.wait_for(go_on).await;
            let Some(&(_, wanted)) = self.ungranted.borrow().front() else { return };
            let data = buf::alloc(wanted).await;
            // The connection may have ended meanwhile, and with it all that waits.
            let Some((command, _)) = self.ungranted.borrow_mut().pop_front() else { return };
            self.grant(command, data);
            if self.ungranted.borrow().is_empty() {
                return;
            }
        }
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
        self.room.notify();
    }

    /// Forgets all commands whose data is not there: it will not come.
    pub(super) fn give_up_transfers(&self) {
        self.ended.set(true);
        for _ in self.ungranted.take() {
            self.release(0);
        }
        self.transfers.borrow_mut().clear(|payload| self.release(payload));
        self.transfer_bytes.set(0);
    }
}

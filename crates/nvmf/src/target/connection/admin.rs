//! Commands of the admin queue, and fabrics commands on any queue: the controller answers at once.

use std::rc::Rc;

use flagstone_nvme::{Cqe, Sqe};
use flagstone_runtime::Buf;

use super::Connection;
use crate::target::AdminReply;

impl Connection {
    /// Carries an admin or fabrics command out; it counts as in hand, with `payload` bytes.
    pub(super) fn run_admin(self: &Rc<Self>, command: Sqe, data: Option<Buf>, payload: usize) {
        let cid = command.cid.get();
        if command.fabrics_type().is_some() {
            let reply =
                self.with_controller(|controller, queue| controller.fabrics(queue, &command));
            let Some(reply) = reply else { return self.release(payload) };
            self.respond(Cqe::with_result(cid, reply.status, reply.result));
            self.release(payload);
            if reply.disconnect {
                // The completion goes out, then the connection ends.
                self.stream.shutdown_receiving();
            }
            return;
        }
        let data = data.as_deref().unwrap_or_default();
        match self.with_controller(|controller, _| controller.admin(&command, data)) {
            Some(AdminReply::Now { cqe_result, status, data }) => {
                let completion = Cqe::with_result(cid, status, cqe_result);
                match data {
                    Some(data) if !data.is_empty() => self.complete_with_data(completion, data),
                    _ => self.respond(completion),
                }
                self.release(payload);
            }
            // Not in hand any more: it may wait for an event for ever.
            Some(AdminReply::Parked) | None => self.release(payload),
        }
    }
}

//! Admin and fabrics commands of a connection. The controller answers all of them immediately,
//! except vendor specific commands.

use std::rc::Rc;

use flagstone_blockdev::{IoError, IoFuture};
use flagstone_nvme::{AdminOpcode, Cqe, Sqe, Status};
use flagstone_runtime::{Buf, spawn_detached};

use super::Connection;
use crate::io::status_of;
use crate::limits::VENDOR_ADMIN_COMMANDS;
use crate::{AdminReply, NO_LOCATION, VendorReply};

impl Connection {
    /// Executes an admin or fabrics command that is in flight with `payload` bytes.
    pub(super) fn run_admin(self: &Rc<Self>, command: Sqe, data: Option<Buf>, payload: usize) {
        let cid = command.cid.get();
        if command.fabrics_type().is_some() {
            let reply =
                self.with_controller(|controller, queue| controller.fabrics(queue, &command));
            let Some(reply) = reply else { return self.release(payload) };
            self.respond(Cqe::with_result(cid, reply.status, reply.result));
            self.release(payload);
            if reply.disconnect {
                // Send the completion, then close the connection.
                self.stream.shutdown_receiving();
            }
            return;
        }
        let data = data.as_deref().unwrap_or_default();
        if AdminOpcode(command.opcode).is_vendor_specific() {
            return self.run_vendor(&command, data, payload);
        }
        match self.with_controller(|controller, _| controller.admin(&command, data)) {
            Some(AdminReply::Now { cqe_result, status, data }) => {
                let completion = Cqe::with_result(cid, status, cqe_result);
                match data {
                    Some(data) if !data.is_empty() => self.complete_with_data(completion, data),
                    _ => self.respond(completion),
                }
                self.release(payload);
            }
            // No longer counted as in flight: it may wait for an event indefinitely.
            Some(AdminReply::Parked) | None => self.release(payload),
        }
    }

    /// Executes a vendor specific admin command, immediately or in a task.
    fn run_vendor(self: &Rc<Self>, command: &Sqe, data: &[u8], payload: usize) {
        let begun = if self.outstanding.get() > VENDOR_ADMIN_COMMANDS {
            Some(Err(Status::COMMAND_INTERRUPTED))
        } else {
            self.with_controller(|controller, _| controller.vendor_admin(command, data))
        };
        match begun.map(|begun| begun.map(IoFuture::try_now)) {
            Some(Ok(Ok(result))) => self.vendor_done(command, result, payload),
            Some(Ok(Err(later))) => {
                let (connection, command) = (self.clone(), *command);
                spawn_detached(async move {
                    connection.vendor_done(&command, later.await, payload);
                });
            }
            Some(Err(status)) => {
                self.vendor_done(command, Ok(VendorReply::failure(status, 0)), payload);
            }
            None => self.release(payload),
        }
    }

    fn vendor_done(&self, command: &Sqe, result: Result<VendorReply, IoError>, payload: usize) {
        let reply = result.unwrap_or_else(|error| VendorReply::failure(status_of(error), 0));
        let cid = command.cid.get();
        if reply.status.is_success() {
            let completion = Cqe::with_result(cid, reply.status, reply.result);
            match reply.data {
                Some(data) => self.complete_with_data(completion, data.freeze()),
                None => self.respond(completion),
            }
        } else {
            self.with_controller(|controller, _| {
                let VendorReply { status, result, .. } = reply;
                controller.record_error(0, command, status, NO_LOCATION, 0, result);
            });
            self.respond(Cqe::with_result(cid, reply.status.more(), reply.result));
        }
        self.release(payload);
    }
}

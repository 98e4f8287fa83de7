//! Admin and fabrics commands of a connection. The controller answers all of them immediately,
//! except authentication and vendor specific commands.

use std::rc::Rc;

use flagstone_blockdev::{IoError, IoFuture};
use flagstone_nvme::command::admin::GetLogPage;
use flagstone_nvme::{AdminOpcode, Cqe, FabricsType, Sqe, Status};
use flagstone_runtime::{Buf, spawn_detached};

use super::Connection;
use super::authentication::is_authentication;
use crate::CommandReply;
use crate::io::status_of;
use crate::limits::VENDOR_ADMIN_COMMANDS;

impl Connection {
    /// Executes an admin or fabrics command that is in flight with `payload` bytes.
    pub(super) fn run_admin(self: &Rc<Self>, command: Sqe, data: Option<Buf>, payload: usize) {
        if is_authentication(&command) {
            return self.run_authentication(command, data, payload);
        }
        if command.fabrics_type().is_some() {
            let reply =
                self.with_controller(|controller, queue| controller.fabrics(queue, &command));
            let disconnect = command.fabrics_type() == Some(FabricsType::DISCONNECT)
                && reply.as_ref().is_some_and(|reply| reply.status.is_success());
            self.answer(&command, reply, payload);
            if disconnect {
                // Send the completion, then close the connection.
                self.stream.shutdown_receiving();
            }
            return;
        }
        let data = data.as_deref().unwrap_or_default();
        if AdminOpcode(command.opcode).is_vendor_specific() {
            return self.run_vendor(&command, data, payload);
        }
        let asked = match AdminOpcode(command.opcode) {
            AdminOpcode::GET_LOG_PAGE => GetLogPage::parse(&command).data_bytes,
            _ => 0,
        };
        let admitted = self.admits_reply(asked);
        let reply = self.with_controller(|controller, _| match admitted {
            true => controller.admin(&command, data),
            false => Some(controller.reply(0, &command, Err(Status::INTERNAL_ERROR))),
        });
        // A waiting request is no longer counted as in flight: it may wait for an event
        // indefinitely.
        self.answer(&command, reply.flatten(), payload);
    }

    /// Sends the reply, if there is one, and ends the command. A failure is not answered once the
    /// controller is gone: a host may remove a namespace that it could not identify.
    pub(super) fn answer(&self, command: &Sqe, reply: Option<CommandReply>, payload: usize) {
        let is_answered = |reply: &CommandReply| {
            let may = self.with_controller(|controller, queue| controller.may_refuse(queue));
            reply.status.is_success() || may != Some(false)
        };
        if let Some(CommandReply { status, result, data }) = reply.filter(is_answered) {
            let completion = Cqe::with_result(command.cid.get(), status, result);
            match data {
                Some(data) if !data.is_empty() => {
                    self.complete_with_data(completion, data.freeze());
                }
                _ => self.respond(completion),
            }
        }
        self.release(payload);
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
                self.vendor_done(command, Ok(CommandReply::failure(status, 0)), payload);
            }
            None => self.release(payload),
        }
    }

    fn vendor_done(&self, command: &Sqe, result: Result<CommandReply, IoError>, payload: usize) {
        let outcome = result.map_err(status_of);
        let reply = self.with_controller(|controller, _| controller.reply(0, command, outcome));
        self.answer(command, reply, payload);
    }
}

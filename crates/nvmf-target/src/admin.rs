//! Admin command dispatch and replies (Base 5.1).
//!
//! Each command is answered immediately from memory. No field of a command is trusted: a length is
//! bounded before memory is allocated for it, and an unimplemented command is refused with its
//! status code.

use flagstone_nvme::command::Sqe;
use flagstone_nvme::command::admin::{Abort, SetFeatures};
use flagstone_nvme::limits::IDENTIFY_BYTES;
use flagstone_nvme::opcode::AdminOpcode;
use flagstone_nvme::sgl::DataPointer;
use flagstone_nvme::status::Status;
use flagstone_runtime::limits::BUF_MIN_BYTES;
use flagstone_runtime::{BufMut, buf};

use super::controller::Controller;
use super::feature;
use super::vendor::CommandReply;

/// Bytes that an admin command transfers from the host, at most 4,096. If the data is not in the
/// capsule, the caller fetches it with an R2T before it calls [`Controller::admin`]. 0 for a
/// command without data, or refused regardless of its data. If the SGL describes fewer
/// bytes, call with those: the command is then refused.
pub(crate) fn admin_data_bytes(command: &Sqe) -> u32 {
    match AdminOpcode(command.opcode) {
        AdminOpcode::SET_FEATURES => feature::set_data_bytes(SetFeatures::parse(command).feature),
        _ => 0,
    }
}

impl Controller {
    /// Answers an admin command. `data` is the host's data; bytes beyond [`admin_data_bytes`] are
    /// ignored. Fabrics commands go to [`Controller::fabrics`]. `None` for a waiting Asynchronous
    /// Event Request: [`Controller::wait_event`] returns its completion later.
    pub(crate) fn admin(&self, command: &Sqe, data: &[u8]) -> Option<CommandReply> {
        self.saw_traffic();
        if self.is_ready() && command.opcode == AdminOpcode::ASYNC_EVENT_REQUEST.0 {
            let checked = command.check_flags().map_err(Status::dnr);
            let waits = checked.and_then(|()| self.events.wait_for_event(command.cid.get()));
            return waits.err().map(|status| self.reply(0, command, Err(status)));
        }
        Some(self.reply(0, command, self.admin_outcome(command, data)))
    }

    /// Reply to a command of queue `qid`. A failure is recorded in the error log, and says so.
    pub(crate) fn reply(
        &self,
        qid: u16,
        command: &Sqe,
        outcome: Result<CommandReply, Status>,
    ) -> CommandReply {
        let mut reply = outcome.unwrap_or_else(|status| CommandReply::failure(status, 0));
        if !reply.status.is_success() {
            self.record_error(qid, command, reply.status, 0, reply.result);
            reply.status = reply.status.more();
        }
        reply
    }

    fn admin_outcome(&self, command: &Sqe, data: &[u8]) -> Result<CommandReply, Status> {
        if !self.is_ready() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
        }
        command.check_flags().map_err(Status::dnr)?;
        match AdminOpcode(command.opcode) {
            AdminOpcode::IDENTIFY => self.identify(command),
            AdminOpcode::GET_LOG_PAGE => self.get_log_page(command),
            AdminOpcode::GET_FEATURES => self.get_features(command),
            AdminOpcode::SET_FEATURES => self.set_features(command, data),
            AdminOpcode::KEEP_ALIVE => Ok(CommandReply::success(None)),
            AdminOpcode::ABORT if !self.is_discovery() => Ok(self.abort(Abort::parse(command))),
            // Connect creates queues, and vendor specific commands complete asynchronously.
            _ => Err(Status::INVALID_OPCODE.dnr()),
        }
    }

    /// Abort is best effort (Base 5.1.1). A waiting Asynchronous Event Request is aborted. Any
    /// other command has already started, so the reply says that it was not aborted.
    fn abort(&self, abort: Abort) -> CommandReply {
        let aborted = abort.sqid == 0 && self.events.abort(abort.cid);
        CommandReply::result(if aborted { 0 } else { Abort::NOT_ABORTED })
    }
}

/// Allocates `bytes` of zeroed memory for reply data.
///
/// # Errors
/// Data Sgl Length Invalid when the command's SGL describes less, or the status of an invalid SGL.
/// Internal Error, retryable, when more than 4 KiB is requested and there is no memory.
pub(super) fn reply_data(command: &Sqe, bytes: usize) -> Result<BufMut, Status> {
    match DataPointer::parse(&command.data, 0) {
        Ok(DataPointer::Transport { data_bytes }) if data_bytes as usize >= bytes => {}
        Ok(_) => return Err(Status::DATA_SGL_LENGTH_INVALID.dnr()),
        Err(error) => return Err(error.status().dnr()),
    }
    // Replies that a host needs in order to connect must not fail at the memory ceiling. The number
    // of unsent admin replies is small.
    let data =
        if bytes <= BUF_MIN_BYTES { Some(buf::alloc_small(bytes)) } else { buf::try_alloc(bytes) };
    let mut data = data.ok_or(Status::INTERNAL_ERROR)?;
    data.fill(0);
    Ok(data)
}

/// Reply data of an Identify command: `structure`, 4,096 bytes.
pub(super) fn identify_data(command: &Sqe, structure: &[u8]) -> Result<CommandReply, Status> {
    let mut data = reply_data(command, IDENTIFY_BYTES)?;
    let bytes = structure.len().min(IDENTIFY_BYTES);
    data[..bytes].copy_from_slice(&structure[..bytes]);
    Ok(CommandReply::success(Some(data)))
}

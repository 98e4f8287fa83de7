//! Admin commands: which there are, and what each is answered with (Base 5.1).
//!
//! An answer is made at once, from what is in memory. Nothing here trusts a command: a length is
//! bounded before memory is taken for it, and what is not implemented is refused by its status.

use flagstone_nvme::command::Sqe;
use flagstone_nvme::command::admin::{Abort, SetFeatures};
use flagstone_nvme::limits::IDENTIFY_BYTES;
use flagstone_nvme::opcode::AdminOpcode;
use flagstone_nvme::sgl::DataPointer;
use flagstone_nvme::status::Status;
use flagstone_runtime::limits::BUF_MIN_BYTES;
use flagstone_runtime::{Buf, BufMut, buf};

use super::controller::Controller;
use super::error_log::NO_LOCATION;
use super::feature;

/// What an admin command is answered with.
#[derive(Debug)]
pub(crate) enum AdminReply {
    /// A completion, after the data if there is any.
    Now {
        /// Dwords 0 and 1 of the completion.
        cqe_result: u64,
        /// Its status.
        status: Status,
        /// Data for the host, no longer than the command's SGL has room for.
        data: Option<Buf>,
    },
    /// An Asynchronous Event Request: [`Controller::wait_event`] gives its completion.
    Parked,
}

/// What a command that succeeds gives.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) result: u32,
    pub(super) data: Option<Buf>,
}

impl Done {
    /// Success with dword 0.
    pub(super) fn result(result: u32) -> Done {
        Done { result, data: None }
    }

    /// Success with data.
    pub(super) fn data(data: BufMut) -> Done {
        Done { result: 0, data: Some(data.freeze()) }
    }
}

/// How many bytes an admin command takes from the host, at most 4,096: what is to be fetched with
/// R2T, when it is not in the capsule, before [`Controller::admin`] is called. 0 of a command that
/// takes none, or will be refused whatever its data is. When the SGL describes less than this, call
/// with what there is: the command is refused for it.
pub(crate) fn admin_data_bytes(command: &Sqe) -> u32 {
    match AdminOpcode(command.opcode) {
        AdminOpcode::SET_FEATURES => feature::set_data_bytes(SetFeatures::parse(command).feature),
        _ => 0,
    }
}

impl Controller {
    /// Answers an admin command. `data` is what the host sent with it; more than
    /// [`admin_data_bytes`] is ignored. Fabrics commands are for [`Controller::fabrics`].
    pub(crate) fn admin(&self, command: &Sqe, data: &[u8]) -> AdminReply {
        self.saw_traffic();
        if self.is_ready() && command.opcode == AdminOpcode::ASYNC_EVENT_REQUEST.0 {
            let parked = command.check_flags().map_err(Status::dnr);
            match parked.and_then(|()| self.events.park(command.cid.get())) {
                Ok(()) => return AdminReply::Parked,
                Err(status) => return self.failed(command, status),
            }
        }
        match self.admin_outcome(command, data) {
            Ok(Done { result, data }) => {
                AdminReply::Now { cqe_result: u64::from(result), status: Status::SUCCESS, data }
            }
            Err(status) => self.failed(command, status),
        }
    }

    fn failed(&self, command: &Sqe, status: Status) -> AdminReply {
        self.record_error(0, command, status, NO_LOCATION, 0, 0);
        AdminReply::Now { cqe_result: 0, status: status.more(), data: None }
    }

    fn admin_outcome(&self, command: &Sqe, data: &[u8]) -> Result<Done, Status> {
        if !self.is_ready() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
        }
        command.check_flags().map_err(Status::dnr)?;
        match AdminOpcode(command.opcode) {
            AdminOpcode::IDENTIFY => self.identify(command),
            AdminOpcode::GET_LOG_PAGE => self.get_log_page(command),
            AdminOpcode::GET_FEATURES => self.get_features(command),
            AdminOpcode::SET_FEATURES => self.set_features(command, data),
            AdminOpcode::KEEP_ALIVE => Ok(Done::default()),
            AdminOpcode::ABORT if !self.is_discovery() => Ok(self.abort(Abort::parse(command))),
            // Queues are made by Connect; vendor specific commands are not answered at once.
            _ => Err(Status::INVALID_OPCODE.dnr()),
        }
    }

    /// Abort is best effort (Base 5.1.1): a parked Asynchronous Event Request is aborted; any
    /// other command has begun, ends soon, and is said not to be aborted.
    fn abort(&self, abort: Abort) -> Done {
        let aborted = abort.sqid == 0 && self.events.abort(abort.cid);
        Done::result(if aborted { 0 } else { Abort::NOT_ABORTED })
    }
}

/// Memory for `bytes` of data for the host, all 0.
///
/// # Errors
/// Data SGL Length Invalid when the command has no room for so much, or what is wrong with its
/// SGL; Internal Error, to be retried, when there is no memory for more than 4 KiB.
pub(super) fn reply_data(command: &Sqe, bytes: usize) -> Result<BufMut, Status> {
    match DataPointer::parse(&command.data, 0) {
        Ok(DataPointer::Transport { data_bytes }) if data_bytes as usize >= bytes => {}
        Ok(_) => return Err(Status::DATA_SGL_LENGTH_INVALID.dnr()),
        Err(error) => return Err(error.status().dnr()),
    }
    // What a host needs to come to be served at all is not refused for want of memory; an admin
    // queue's answers that wait to be taken are few.
    let data =
        if bytes <= BUF_MIN_BYTES { Some(buf::alloc_small(bytes)) } else { buf::try_alloc(bytes) };
    let mut data = data.ok_or(Status::INTERNAL_ERROR)?;
    data.fill(0);
    Ok(data)
}

/// The data of an Identify: `structure`, which has its 4,096 bytes.
pub(super) fn identify_data(command: &Sqe, structure: &[u8]) -> Result<Done, Status> {
    let mut data = reply_data(command, IDENTIFY_BYTES)?;
    let bytes = structure.len().min(IDENTIFY_BYTES);
    data[..bytes].copy_from_slice(&structure[..bytes]);
    Ok(Done::data(data))
}

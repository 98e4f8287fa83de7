//! Vendor specific commands of a namespace, executed by a handler.
//!
//! A namespace may have a [`VendorHandler`]. The handler creates one [`VendorSession`] per
//! controller, at the controller's first command to the namespace. The controller drops the session
//! when it is reset or destroyed. A handler therefore knows the host of each command, and when that
//! host is gone. Ordinary I/O commands go to the session's device instead of the namespace's.
//!
//! Guarantees to a session: the opcode is one of the handler's, the controller is ready, and the
//! flags are valid. Data is as long as the command says: at most [`VENDOR_DATA_BYTES`] for an admin
//! command and MDTS for an I/O command. All other fields are unchecked host input.

use std::rc::Rc;
use std::sync::Arc;

use flagstone_blockdev::{IoFuture, SharedDevice};
use flagstone_nvme::{AdminOpcode, IoOpcode, Nqn, Sqe, Status};
use flagstone_runtime::{Buf, BufMut, buf};

use super::Namespace;
use super::admin::reply_data;
use super::connection::Connection;
use super::controller::Controller;
pub use crate::limits::VENDOR_DATA_BYTES;

/// Supported vendor specific commands. Each is passed to the session of its controller.
#[derive(Clone, Copy, Debug)]
pub struct VendorCommands {
    /// Admin commands, C0h to FFh.
    pub admin: &'static [AdminOpcode],
    /// I/O commands, 80h to FFh; none of them returns data to the host.
    pub io: &'static [IoOpcode],
}

/// Executes the vendor specific commands of a namespace.
pub trait VendorHandler: Send + Sync + 'static {
    /// Supported commands.
    fn commands(&self) -> VendorCommands;

    /// Creates a session for a controller. Called on any core; must not wait.
    fn session(&self, host: &VendorHost) -> Arc<dyn VendorSession>;
}

/// One controller's commands to one namespace. Dropped when the controller is gone; the target
/// still awaits its commands in flight.
pub trait VendorSession: Send + Sync + 'static {
    /// Device for ordinary I/O commands, with the geometry of the namespace's device.
    fn device(&self) -> SharedDevice;

    /// True if the device stays unreachable until this host acts. A command that fails for this
    /// reason completes with Do Not Retry: a host without another path would otherwise retry it
    /// forever.
    fn is_cut_off(&self) -> bool {
        false
    }

    /// Bytes that an admin command returns to the host: at most [`VENDOR_DATA_BYTES`].
    ///
    /// # Errors
    /// The status that refuses the command.
    fn reply_bytes(&self, command: &Sqe) -> Result<usize, Status>;

    /// Executes an admin command with `data` from the host. `place` has the length that
    /// [`VendorSession::reply_bytes`] returned, is zeroed, and comes back with the reply on
    /// success.
    fn admin(&self, command: &Sqe, data: &[u8], place: Option<BufMut>) -> IoFuture<CommandReply>;

    /// Executes an I/O command. A command that waits for other commands of its host must wait
    /// itself with `charge`.
    fn io(&self, command: &Sqe, data: Option<Buf>, charge: Charge) -> IoFuture<CommandReply>;
}

/// Share of an in-flight command in its connection's budget.
pub struct Charge {
    connection: Rc<Connection>,
    payload: usize,
    data: Option<Buf>,
}

impl Charge {
    pub(super) fn new(connection: Rc<Connection>, payload: usize, data: Option<Buf>) -> Charge {
        Charge { connection, payload, data }
    }

    /// Hold the result while the command waits for commands that its host has yet to send. Its data
    /// then neither keeps the connection from receiving them nor other commands from memory. `None`
    /// when too much is waiting already: complete the command with [`Status::COMMAND_INTERRUPTED`],
    /// and the host resends it. Only a command that must wait may call this, so that the awaited
    /// commands are never turned away.
    pub fn queue(self) -> Option<DependentCommand> {
        let memory = match &self.data {
            Some(data) => Some(buf::WaitingMemory::keep(data)?),
            None => None,
        };
        let Charge { connection, payload, .. } = self;
        connection.begin_waiting(payload);
        Some(DependentCommand { connection, payload, _memory: memory })
    }
}

/// Command that waits for other commands of its host.
pub struct DependentCommand {
    connection: Rc<Connection>,
    payload: usize,
    _memory: Option<buf::WaitingMemory>,
}

impl Drop for DependentCommand {
    fn drop(&mut self) {
        self.connection.end_waiting(self.payload);
    }
}

/// Host whose commands a session executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VendorHost {
    /// NQN of the host.
    pub nqn: Nqn,
    /// Identifier of the host.
    pub id: [u8; 16],
    /// Controller identifier.
    pub controller: u16,
}

/// Outcome of an admin command or of a vendor specific one.
#[derive(Debug)]
pub struct CommandReply {
    /// Status.
    pub status: Status,
    /// Dwords 0 and 1 of the completion. A refusal's dwords also go to the error log as command
    /// specific information, because tools show only the status of a failed command.
    pub result: u64,
    /// Data for the host, only on success: the buffer passed in.
    pub data: Option<BufMut>,
}

impl CommandReply {
    /// Success with a result of 0.
    pub fn success(data: Option<BufMut>) -> CommandReply {
        CommandReply { status: Status::SUCCESS, result: 0, data }
    }

    /// Success with dword 0 set to `result`.
    pub(crate) fn result(result: u32) -> CommandReply {
        CommandReply { result: result.into(), ..CommandReply::success(None) }
    }

    /// A refusal.
    pub fn failure(status: Status, result: u64) -> CommandReply {
        CommandReply { status, result, data: None }
    }
}

/// Session, and the namespace as its controller sees it.
pub(super) struct Vendor {
    /// Namespace for which it was created. A different namespace with the same identifier gets a
    /// new session.
    base: Arc<Namespace>,
    /// Copy of `base` with the session and its device.
    theirs: Arc<Namespace>,
}

impl Controller {
    /// Namespace as seen by this controller: with its own session, if the namespace has a handler.
    /// `None` when the controller is gone.
    pub(crate) fn own_namespace(&self, base: &Arc<Namespace>) -> Option<Arc<Namespace>> {
        let Some(handler) = &base.vendor else { return Some(base.clone()) };
        let mut sessions = self.vendor_sessions()?;
        if let Some(known) = sessions.get(&base.nsid)
            && Arc::ptr_eq(&known.base, base)
        {
            return Some(known.theirs.clone());
        }
        let host = VendorHost { nqn: self.host.nqn, id: self.host.id, controller: self.id };
        let session = handler.session(&host);
        let theirs = Arc::new(base.of_session(session));
        let vendor = Vendor { base: base.clone(), theirs: theirs.clone() };
        let old = sessions.insert(base.nsid, vendor);
        drop(sessions);
        drop(old);
        Some(theirs)
    }

    /// Starts a vendor specific admin command.
    ///
    /// # Errors
    /// The completion status.
    pub(crate) fn vendor_admin(
        &self,
        command: &Sqe,
        data: &[u8],
    ) -> Result<IoFuture<CommandReply>, Status> {
        self.saw_traffic();
        if !self.is_ready() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
        }
        command.check_flags().map_err(Status::dnr)?;
        if data.len() > VENDOR_DATA_BYTES {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let table = self.snapshot();
        let namespace = table.get(command.nsid.get());
        let takes = namespace
            .and_then(|one| one.vendor.as_ref())
            .is_some_and(|handler| handler.commands().admin.contains(&AdminOpcode(command.opcode)));
        let namespace = namespace.filter(|_| takes).ok_or(Status::INVALID_OPCODE.dnr())?;
        let own = self.own_namespace(namespace).ok_or(Status::COMMAND_SEQUENCE_ERROR.dnr())?;
        let session = own.session.as_ref().ok_or(Status::INVALID_OPCODE.dnr())?;
        let place = match session.reply_bytes(command)? {
            0 => None,
            bytes if bytes > VENDOR_DATA_BYTES => return Err(Status::INTERNAL_ERROR.dnr()),
            bytes => Some(reply_data(command, bytes)?),
        };
        Ok(session.admin(command, data, place))
    }
}

//! Vendor specific commands of a namespace: who carries them out.
//!
//! A namespace may have a [`VendorHandler`]. It gives each controller a [`VendorSession`] of its
//! own, at the controller's first command to the namespace, and the controller lets it go when it
//! is reset or destroyed: so a handler knows which host a command is from, and when that host is
//! gone. Ordinary I/O commands go to the session's device, not to the namespace's.
//!
//! What the target promises a session: the opcode is one that the handler has, the controller is
//! ready, the flags are sound, and data is as long as the command says, at most
//! [`VENDOR_DATA_BYTES`] of an admin command and MDTS of an I/O command. All else in a command is
//! as the host sent it.

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

/// The vendor specific commands that there are. Each is offered to the session of its controller.
#[derive(Clone, Copy, Debug)]
pub struct VendorCommands {
    /// Admin commands, C0h to FFh.
    pub admin: &'static [AdminOpcode],
    /// I/O commands, 80h to FFh; none that has data for the host.
    pub io: &'static [IoOpcode],
}

/// Carries out the vendor specific commands of a namespace.
pub trait VendorHandler: Send + Sync + 'static {
    /// Which there are.
    fn commands(&self) -> VendorCommands;

    /// A session for a controller. Called on any core; must not wait.
    fn session(&self, host: &VendorHost) -> Arc<dyn VendorSession>;
}

/// One controller's commands to one namespace. Dropped when the controller is gone; what it still
/// does then is awaited by the target.
pub trait VendorSession: Send + Sync + 'static {
    /// Where ordinary I/O commands go: of the same geometry as the namespace's device.
    fn device(&self) -> SharedDevice;

    /// Whether its device is out of reach for good, until this host does something about it. A command
    /// that found it so ends with Do Not Retry then: a host that had no other path would send it
    /// again, and again.
    fn is_cut_off(&self) -> bool {
        false
    }

    /// How much data an admin command has for the host, in bytes: at most [`VENDOR_DATA_BYTES`].
    ///
    /// # Errors
    /// The status that refuses the command.
    fn reply_bytes(&self, command: &Sqe) -> Result<usize, Status>;

    /// Carries out an admin command with `data` from the host. `place` has as many bytes as
    /// [`VendorSession::reply_bytes`] said, all 0, and comes back with the reply if it is success.
    fn admin(&self, command: &Sqe, data: &[u8], place: Option<BufMut>) -> IoFuture<VendorReply>;

    /// Carries out an I/O command. One that has to wait for others of its host does so with what
    /// `charge` gives.
    fn io(&self, command: &Sqe, data: Option<Buf>, charge: Charge) -> IoFuture<VendorReply>;
}

/// What a command in hand counts for in the budget of its connection.
pub struct Charge {
    connection: Rc<Connection>,
    payload: usize,
    data: Option<Buf>,
}

impl Charge {
    pub(super) fn new(connection: Rc<Connection>, payload: usize, data: Option<Buf>) -> Charge {
        Charge { connection, payload, data }
    }

    /// To be held while the command waits for others that its host has yet to send: its data does
    /// not keep the connection from receiving them, nor others from memory. `None` when too much
    /// waits already: the command is to end with [`Status::COMMAND_INTERRUPTED`], as one that its
    /// host sends again. One that waits for nothing is not to ask, so what is waited for is never
    /// turned away.
    pub fn park(self) -> Option<Parked> {
        let memory = match &self.data {
            Some(data) => Some(buf::Parked::keep(data)?),
            None => None,
        };
        let Charge { connection, payload, .. } = self;
        connection.park(payload);
        Some(Parked { connection, payload, _memory: memory })
    }
}

/// A command that waits for others of its host.
pub struct Parked {
    connection: Rc<Connection>,
    payload: usize,
    _memory: Option<buf::Parked>,
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.connection.unpark(self.payload);
    }
}

/// Whose commands a session carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VendorHost {
    /// Name of the host.
    pub nqn: Nqn,
    /// Identifier of the host.
    pub id: [u8; 16],
    /// Identifier of its controller.
    pub controller: u16,
}

/// How a vendor specific command ends.
#[derive(Debug)]
pub struct VendorReply {
    /// Its status.
    pub status: Status,
    /// Dwords 0 and 1 of its completion. Those of a refusal are in the error log too, as what is
    /// specific to the command: tools show of a command that failed the status alone.
    pub result: u64,
    /// Data for the host, only with success: the place that it was given.
    pub data: Option<BufMut>,
}

impl VendorReply {
    /// Success without a result.
    pub fn success(data: Option<BufMut>) -> VendorReply {
        VendorReply { status: Status::SUCCESS, result: 0, data }
    }

    /// A refusal.
    pub fn failure(status: Status, result: u64) -> VendorReply {
        VendorReply { status, result, data: None }
    }
}

/// A session with the namespace as its controller sees it.
pub(super) struct Vendor {
    /// The namespace that it was made for: another of its identifier has another session.
    base: Arc<Namespace>,
    /// The same, with the session and its device.
    theirs: Arc<Namespace>,
}

impl Controller {
    /// The namespace as this controller sees it: with a session of its own, if the namespace has a
    /// handler. `None` when the controller is gone.
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

    /// Begins a vendor specific admin command.
    ///
    /// # Errors
    /// The status that it is completed with.
    pub(crate) fn vendor_admin(
        &self,
        command: &Sqe,
        data: &[u8],
    ) -> Result<IoFuture<VendorReply>, Status> {
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

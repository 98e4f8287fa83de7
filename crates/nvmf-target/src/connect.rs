//! Connect command: creates controllers and assigns queues to connections (Base 6.3).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use flagstone_auth::KeyDemand;
use flagstone_nvme::Nqn;
use flagstone_nvme::command::fabrics::{
    CONTROLLER_ID_DYNAMIC, ConnectCommand, ConnectData, ConnectField, ConnectResult,
};
use flagstone_nvme::status::Status;
use flagstone_runtime::time;

use super::Target;
use super::controller::{Controller, HostIdentity, NewController};
use super::handshakes::{FailureReason, PendingHandshake};
use super::queue::{ControllerQueue, Hangup};
use super::subsystem::{ServedSubsystem, SubsystemKind};
use super::tls::ChannelProof;

/// Queue that belongs to a connection. Drop it only when the queue has no command in flight,
/// because the host may resend its commands as soon as the queue is released. Dropping the admin
/// queue destroys the controller.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) controller: Arc<Controller>,
    /// The queue: identifier, entries, flow control and counters.
    pub(crate) queue: Arc<ControllerQueue>,
    /// Dword 0 of the completion of Connect.
    pub(crate) result: u32,
    /// Handshake that the host has to complete before other commands.
    pub(crate) handshake: Option<PendingHandshake>,
    /// The host may authenticate, but need not.
    pub(crate) may_authenticate: bool,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.controller.detach(&self.queue);
    }
}

/// Reason for refusing a Connect. The connection stays open, and the host may send another Connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectRefusal {
    pub(crate) status: Status,
    /// Dword 0 of the completion: the position of the invalid parameter, if one is invalid.
    pub(crate) result: u32,
    /// More for the log than the status says.
    pub(crate) reason: Option<FailureReason>,
}

impl ConnectRefusal {
    /// The queue identifier is in use, perhaps only until its ended connection has finished:
    /// without Do Not Retry.
    pub(crate) const QUEUE_IN_USE: ConnectRefusal =
        ConnectRefusal { status: Status::COMMAND_SEQUENCE_ERROR, result: 0, reason: None };

    /// The controller of an I/O queue does not exist, mostly because it has just ended, and its
    /// host does not know yet: without Do Not Retry, after which hosts give the whole subsystem up.
    pub(crate) fn controller_gone() -> ConnectRefusal {
        let status = Status::CONNECT_INVALID_PARAMETERS;
        ConnectRefusal { status, ..ConnectField::ControllerId.into() }
    }

    /// The generated PSK of the connection has ended. The host makes another one.
    pub(crate) fn psk_ended() -> ConnectRefusal {
        let reason = Some(FailureReason::PskEnded);
        ConnectRefusal { reason, ..Status::CONNECT_CONTROLLER_BUSY.into() }
    }

    /// The host may not connect like this.
    pub(crate) fn not_allowed(reason: FailureReason) -> ConnectRefusal {
        ConnectRefusal { reason: Some(reason), ..not_allowed() }
    }
}

/// The reason, for the log.
impl std::fmt::Display for ConnectRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.status.fabrics_name() {
            Some(name) => f.write_str(name)?,
            None => write!(f, "{}", self.status)?,
        }
        if let Some(field) = ConnectField::from_result(self.result) {
            write!(f, " ({field})")?;
        }
        self.reason.map_or(Ok(()), |reason| write!(f, ": {reason}"))
    }
}

impl From<ConnectField> for ConnectRefusal {
    fn from(field: ConnectField) -> ConnectRefusal {
        let status = Status::CONNECT_INVALID_PARAMETERS.dnr();
        ConnectRefusal { status, result: field.result(), reason: None }
    }
}

impl From<Status> for ConnectRefusal {
    fn from(status: Status) -> ConnectRefusal {
        ConnectRefusal { status, result: 0, reason: None }
    }
}

/// Connects a queue. `local` is the address that the host connected to, and `source` the host's
/// own. `channel` is the host's proof of identity by TLS, and `connection` is the handle that
/// closes the connection from any thread.
///
/// # Errors
/// The completion to send.
pub(crate) fn connect(
    target: &Arc<Target>,
    command: &ConnectCommand,
    data: &ConnectData,
    (local, source): (Option<SocketAddr>, Option<IpAddr>),
    channel: ChannelProof<'_>,
    connection: Box<dyn Hangup>,
) -> Result<Connected, ConnectRefusal> {
    let refused =
        |cqe: flagstone_nvme::Cqe| ConnectRefusal { result: cqe.dw0.get(), ..cqe.status().into() };
    command.check().map_err(refused)?;
    let sqsize_0based = command.sqsize_0based.get();
    if sqsize_0based >= target.config().max_queue_entries {
        return Err(ConnectField::SqSize.into());
    }
    let (subnqn, hostnqn) = data.check()?;
    let subsystem = target.subsystem(&subnqn).ok_or_else(|| target.unknown_subsystem(&subnqn))?;
    // A host without a name is on no allow-list. Its identifier serves as its name, as for hosts
    // that derive their name from it.
    let allowed = hostnqn.map_or(subsystem.allows_all(), |nqn| subsystem.allows(&nqn));
    if !allowed {
        return Err(not_allowed());
    }
    let nqn = hostnqn.unwrap_or_else(|| Nqn::from_uuid(data.host_id));
    let host = HostIdentity { nqn, id: data.host_id };
    if target.is_draining() || subsystem.is_suspended() {
        return Err(Status::CONNECT_CONTROLLER_BUSY.into());
    }
    let wanted = data.controller_id.get();
    let qid = command.qid.get();
    let has_psk = matches!(channel, ChannelProof::GeneratedPsk(_));
    let refuse = |reason| {
        target.handshakes.failed(source, reason);
        ConnectRefusal::not_allowed(reason)
    };
    // It may have ended since the handshake. Checked again when the queue is attached.
    if let ChannelProof::GeneratedPsk(identity) = channel
        && !target.tls.generated.is_valid(identity, time::now())
    {
        target.handshakes.failed(source, FailureReason::PskEnded);
        return Err(ConnectRefusal::psk_ended());
    }
    // Checked again when it is attached, where a handshake would count as abandoned.
    let needs_tls = |one: Arc<Controller>| one.host.nqn == nqn && one.needs_tls();
    if qid != 0 && !has_psk && subsystem.controller(wanted).is_some_and(needs_tls) {
        return Err(refuse(FailureReason::NoTls));
    }
    // For the same reason: its connection asks again until the number is free.
    let has_queue = |one: Arc<Controller>| one.host == host && one.has_queue(qid);
    if qid != 0 && subsystem.controller(wanted).is_some_and(has_queue) {
        return Err(ConnectRefusal::QUEUE_IN_USE);
    }
    let demand = subsystem.keys_of(&nqn).map(|keys| keys.demand);
    let has_key = demand.is_some();
    let needs_keys = subsystem.requires_authentication();
    let handshake = match (needs_keys, channel) {
        (false, _) => None,
        // Its TLS key is its proof, as it has no other.
        (true, ChannelProof::ConfiguredKey(_)) if !has_key => None,
        (true, ChannelProof::GeneratedPsk(_)) if has_key => None,
        (true, _) if !has_key => return Err(refuse(FailureReason::NoKey)),
        (true, _) if demand == Some(KeyDemand::Optional) => None,
        (true, _) => {
            let busy = || ConnectRefusal {
                reason: Some(FailureReason::Busy),
                ..Status::CONNECT_CONTROLLER_BUSY.into()
            };
            Some(target.handshakes.begin(source).ok_or_else(busy)?)
        }
    };
    let flow_control = !command.disables_flow_control();
    let entries = sqsize_0based + 1;
    let queue = ControllerQueue::new(qid, entries, flow_control, host, connection);
    let queue = Arc::new(queue);
    let controller = if qid == 0 {
        let keep_alive_ms = command.keep_alive_ms.get();
        admin_controller(target, &subsystem, host, wanted, local, keep_alive_ms)?
    } else {
        io_controller(target, &subsystem, host, wanted, qid)?
    };
    if let Err(refusal) = controller.attach(queue.clone(), channel) {
        if let Some(reason @ (FailureReason::PskEnded | FailureReason::Withdrawn)) = refusal.reason
        {
            target.handshakes.failed(source, reason);
        }
        // The allow-list may have changed before the controller was registered.
        if qid == 0 && !needs_keys && subsystem.requires_authentication() {
            controller.destroy("hosts need keys now");
            return Err(Status::CONNECT_CONTROLLER_BUSY.into());
        }
        if qid == 0 {
            controller.destroy("its admin queue was refused");
        }
        return Err(refusal);
    }
    // From here on, dropping it releases the queue.
    // A host that still has to authenticate is not the controller's host yet.
    if qid == 0 || handshake.is_none() {
        controller.saw_traffic();
    }
    if !matches!(channel, ChannelProof::Plain) && handshake.is_none() {
        controller.passed_authentication(qid);
    }
    let result = ConnectResult {
        controller_id: controller.id,
        authentication_required: handshake.is_some(),
        secure_channel_required: false,
    };
    let may_authenticate = demand == Some(KeyDemand::Optional);
    Ok(Connected { controller, queue, result: result.to_dw0(), handshake, may_authenticate })
}

fn not_allowed() -> ConnectRefusal {
    ConnectRefusal {
        status: Status::CONNECT_INVALID_HOST.dnr(),
        result: ConnectField::HostNqn.result(),
        reason: None,
    }
}

/// Creates a controller for an admin queue.
fn admin_controller(
    target: &Arc<Target>,
    subsystem: &Arc<ServedSubsystem>,
    host: HostIdentity,
    wanted: u16,
    local: Option<SocketAddr>,
    keep_alive_ms: u32,
) -> Result<Arc<Controller>, ConnectRefusal> {
    if wanted != CONTROLLER_ID_DYNAMIC {
        return Err(ConnectField::ControllerId.into());
    }
    let keep_alive_ms = match (subsystem.kind, keep_alive_ms) {
        (SubsystemKind::Discovery, 0) => {
            u32::try_from(target.config().discovery_keep_alive.as_millis()).unwrap_or(u32::MAX)
        }
        (_, asked) => asked,
    };
    if !target.reserve_controller() {
        return Err(Status::CONNECT_CONTROLLER_BUSY.into());
    }
    let ids = &target.config().controller_ids;
    let (target, mine) = (target.clone(), subsystem.clone());
    let new = NewController { host, target: target.clone(), subsystem: mine, local, keep_alive_ms };
    let Some(controller) = subsystem.add_controller(ids, |id| Controller::new(id, new)) else {
        target.release_controller();
        return Err(Status::CONNECT_CONTROLLER_BUSY.into());
    };
    // The allow-list may have changed before the controller was registered, when nothing could
    // disconnect it.
    if !subsystem.allows(&host.nqn) {
        controller.destroy("host no longer allowed");
        return Err(not_allowed());
    }
    // So may the subsystem have been suspended, by someone who then found no host attached.
    if subsystem.is_suspended() {
        controller.destroy("the subsystem admits no hosts for now");
        return Err(Status::CONNECT_CONTROLLER_BUSY.into());
    }
    controller.log_event(format_args!("controller created, keep alive {keep_alive_ms} ms"));
    Ok(controller)
}

/// Finds the controller that an I/O queue belongs to.
fn io_controller(
    target: &Target,
    subsystem: &ServedSubsystem,
    host: HostIdentity,
    wanted: u16,
    qid: u16,
) -> Result<Arc<Controller>, ConnectRefusal> {
    if subsystem.kind == SubsystemKind::Discovery || qid > target.config().max_io_queues {
        return Err(ConnectField::Qid.into());
    }
    let controller = subsystem.controller(wanted).ok_or_else(ConnectRefusal::controller_gone)?;
    if controller.host.nqn != host.nqn {
        return Err(ConnectField::HostNqn.into());
    }
    if controller.host.id != host.id {
        return Err(ConnectField::HostId.into());
    }
    Ok(controller)
}

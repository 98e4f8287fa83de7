//! Fabrics commands on a connected queue: properties and Disconnect (Base 6).

use std::sync::Arc;

use flagstone_nvme::command::Sqe;
use flagstone_nvme::command::fabrics::PropertyCommand;
use flagstone_nvme::opcode::FabricsType;
use flagstone_nvme::property::{Configuration, Property, Version, shutdown};
use flagstone_nvme::status::Status;

use super::controller::{Controller, ShutdownNumber};
use super::namespace::Namespace;
use super::queue::ControllerQueue;
use super::vendor::CommandReply;
use crate::limits::READY_TIMEOUT_500MS;

impl Controller {
    /// Answers a fabrics command (opcode 7Fh) on `queue`, which is already connected; a second
    /// Connect is therefore a sequence error. A shutdown flushes volatile caches in a task on this
    /// core.
    pub(crate) fn fabrics(
        self: &Arc<Self>,
        queue: &ControllerQueue,
        command: &Sqe,
    ) -> CommandReply {
        self.saw_traffic();
        let outcome = self.fabrics_outcome(queue, command);
        let success = |result| CommandReply { result, ..CommandReply::success(None) };
        self.reply(queue.qid, command, outcome.map(success))
    }

    fn fabrics_outcome(
        self: &Arc<Self>,
        queue: &ControllerQueue,
        command: &Sqe,
    ) -> Result<u64, Status> {
        let admin = queue.qid == 0;
        command.check_flags().map_err(Status::dnr)?;
        match command.fabrics_type() {
            Some(FabricsType::PROPERTY_GET) if admin => {
                self.property_get(PropertyCommand::of(command)).map_err(Status::dnr)
            }
            Some(FabricsType::PROPERTY_SET) if admin => {
                self.property_set(PropertyCommand::of(command)).map_err(Status::dnr)
            }
            Some(FabricsType::CONNECT) => Err(Status::COMMAND_SEQUENCE_ERROR.dnr()),
            Some(FabricsType::DISCONNECT) if admin => Err(Status::INVALID_QUEUE_TYPE.dnr()),
            // RECFMT is 16 bits of dword 10.
            Some(FabricsType::DISCONNECT) if command.cdw10.get() & 0xffff != 0 => {
                Err(Status::CONNECT_INCOMPATIBLE_FORMAT.dnr())
            }
            Some(FabricsType::DISCONNECT) => Ok(0),
            _ => Err(Status::INVALID_OPCODE.dnr()),
        }
    }

    fn property_get(&self, command: &PropertyCommand) -> Result<u64, Status> {
        let property = command.property();
        property.check_get(command.size())?;
        match property {
            Property::CAP => Ok(self.capabilities().0),
            Property::VS => Ok(u64::from(Version::V2_0.0)),
            Property::CC => Ok(u64::from(self.registers().configuration.0)),
            Property::CSTS => Ok(u64::from(self.registers().status.0)),
            // CRWMT, equal to CAP.TO.
            Property::CRTO => Ok(u64::from(READY_TIMEOUT_500MS)),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn property_set(self: &Arc<Self>, command: &PropertyCommand) -> Result<u64, Status> {
        let property = command.property();
        property.check_set(command.size())?;
        // CAP reports no NVM subsystem reset, so only CC is writable.
        if property != Property::CC {
            return Err(Status::INVALID_FIELD);
        }
        let configuration = Configuration(command.set_value() as u32);
        if let Some(number) = self.configure(configuration) {
            self.shut_down(number, configuration.shutdown() == shutdown::NORMAL);
        }
        Ok(0)
    }

    /// Runs a shutdown. A normal shutdown flushes volatile caches.
    fn shut_down(self: &Arc<Self>, number: ShutdownNumber, flush: bool) {
        let table = self.snapshot();
        let volatile = |ns: &&Arc<Namespace>| ns.geometry.volatile_cache && !ns.read_only;
        // A host that is cut off has no data here that its shutdown could lose.
        let reached = |ns: &Arc<Namespace>| ns.session.as_ref().is_none_or(|one| !one.is_cut_off());
        let own = table.iter().filter(volatile).filter_map(|ns| self.own_namespace(ns));
        let caches: Vec<Arc<Namespace>> = own.filter(reached).collect();
        if !flush || caches.is_empty() {
            self.finish_shutdown(number, true);
            return;
        }
        let controller = self.clone();
        flagstone_runtime::spawn_detached(async move {
            let mut flushed = true;
            for namespace in caches {
                if let Err(error) = namespace.device.flush().await {
                    let nsid = namespace.nsid;
                    tracing::warn!(nsid, "flush at shutdown failed: {error}");
                    flushed = false;
                }
            }
            controller.finish_shutdown(number, flushed);
        });
    }

    /// Failed commands recorded so far.
    pub(super) fn error_count(&self) -> u64 {
        self.errors.lock().count()
    }
}

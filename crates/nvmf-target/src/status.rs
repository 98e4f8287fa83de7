//! Snapshots of subsystems and connected hosts for operators.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use flagstone_blockdev::Geometry;
use flagstone_nvme::Nqn;
use flagstone_nvme::log::AnaState;

use super::controller::Controller;
use super::queue::IoTotals;
use super::subsystem::ServedSubsystem;
use super::{Target, TargetError};

/// Snapshot of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemStatus {
    /// Name.
    pub nqn: Nqn,
    /// Serial number.
    pub serial: String,
    /// Hosts that may connect; `None` allows all.
    pub allow_hosts: Option<Vec<Nqn>>,
    /// ANA state on this node.
    pub ana: AnaState,
    /// Connects are refused for now.
    pub is_suspended: bool,
    /// Namespaces, by ascending identifier.
    pub namespaces: Vec<NamespaceStatus>,
    /// Connected hosts, by ascending controller identifier.
    pub controllers: Vec<ControllerSummary>,
    /// I/O totals of all queues since the subsystem was added, by host. `None` has the hosts beyond
    /// the first 64.
    pub totals: BTreeMap<Option<Nqn>, IoTotals>,
}

/// A namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceStatus {
    /// Identifier.
    pub nsid: u32,
    /// UUID.
    pub uuid: [u8; 16],
    /// Geometry of its device.
    pub geometry: Geometry,
    /// Refuses writes.
    pub read_only: bool,
}

/// Controller of a connected host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerSummary {
    /// Identifier.
    pub id: u16,
    /// NQN of the host.
    pub host_nqn: Nqn,
    /// Identifier of the host.
    pub host_id: [u8; 16],
    /// Local address that the host connected to.
    pub local: Option<SocketAddr>,
    /// The host has proven its key, for authentication or TLS.
    pub authenticated: bool,
    /// Enabled by the host.
    pub ready: bool,
    /// Queue identifiers, ascending; 0 is the admin queue.
    pub queues: Vec<u16>,
    /// Keep alive timeout, in milliseconds; 0 if disabled.
    pub keep_alive_ms: u32,
}

impl Target {
    /// All subsystems, by name.
    pub fn status(&self) -> Vec<SubsystemStatus> {
        self.subsystems().iter().map(|subsystem| subsystem.status()).collect()
    }

    /// Snapshot of one subsystem.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`].
    pub fn subsystem_status(&self, nqn: &Nqn) -> Result<SubsystemStatus, TargetError> {
        Ok(self.subsystem_named(nqn)?.status())
    }
}

impl ServedSubsystem {
    fn status(&self) -> SubsystemStatus {
        let table = self.table();
        SubsystemStatus {
            nqn: self.nqn,
            serial: self.serial.clone(),
            allow_hosts: self.allowed_hosts(),
            ana: table.ana(),
            is_suspended: self.is_suspended(),
            namespaces: table
                .iter()
                .map(|namespace| NamespaceStatus {
                    nsid: namespace.nsid,
                    uuid: namespace.uuid,
                    geometry: namespace.geometry,
                    read_only: namespace.read_only,
                })
                .collect(),
            controllers: self.controllers().iter().map(|controller| controller.status()).collect(),
            totals: self.totals_by_host(),
        }
    }
}

impl Controller {
    fn status(&self) -> ControllerSummary {
        ControllerSummary {
            id: self.id,
            host_nqn: self.host.nqn,
            host_id: self.host.id,
            local: self.local,
            authenticated: self.is_authenticated(),
            ready: self.is_ready(),
            queues: self.queue_ids(),
            keep_alive_ms: self.keep_alive.timeout_ms(),
        }
    }
}

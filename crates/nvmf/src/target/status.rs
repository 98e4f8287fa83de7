//! What is served and who is connected, for people and programs that ask.

use std::net::SocketAddr;

use flagstone_blockdev::Geometry;
use flagstone_nvme::Nqn;
use flagstone_nvme::log::AnaState;

use super::controller::Controller;
use super::queue::IoTotals;
use super::subsystem::Subsystem;
use super::{Target, TargetError};

/// A subsystem, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemStatus {
    /// Its name.
    pub nqn: Nqn,
    /// Its serial number.
    pub serial: String,
    /// Hosts that may connect; empty lets any.
    pub allow_hosts: Vec<Nqn>,
    /// How well its namespaces are reached here.
    pub ana: AnaState,
    /// Its namespaces, by ascending identifier.
    pub namespaces: Vec<NamespaceStatus>,
    /// Hosts that are connected, by ascending controller identifier.
    pub controllers: Vec<ControllerStatus>,
    /// What went through all queues since the subsystem was added.
    pub totals: IoTotals,
}

/// A namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceStatus {
    /// Its identifier.
    pub nsid: u32,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Shape of its device.
    pub geometry: Geometry,
    /// Takes no writes.
    pub read_only: bool,
}

/// A controller: a host that is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerStatus {
    /// Its identifier.
    pub id: u16,
    /// Name of the host.
    pub host_nqn: Nqn,
    /// Identifier of the host.
    pub host_id: [u8; 16],
    /// The address that the host connected to.
    pub local: Option<SocketAddr>,
    /// The host has enabled it.
    pub ready: bool,
    /// Identifiers of its queues, ascending; 0 is the admin queue.
    pub queues: Vec<u16>,
    /// Keep alive time-out, milliseconds; 0 is none.
    pub keep_alive_ms: u32,
}

impl Target {
    /// All subsystems, by name.
    pub fn status(&self) -> Vec<SubsystemStatus> {
        self.subsystems().iter().map(|subsystem| subsystem.status()).collect()
    }

    /// One subsystem.
    ///
    /// # Errors
    /// [`TargetError::NoSubsystem`].
    pub fn subsystem_status(&self, nqn: &Nqn) -> Result<SubsystemStatus, TargetError> {
        Ok(self.subsystem_named(nqn)?.status())
    }

    /// Hosts that are connected to the discovery subsystem.
    pub fn discovery_status(&self) -> Vec<ControllerStatus> {
        self.discovery.controllers().iter().map(|controller| controller.status()).collect()
    }
}

impl Subsystem {
    fn status(&self) -> SubsystemStatus {
        let table = self.table();
        SubsystemStatus {
            nqn: self.nqn,
            serial: self.serial.clone(),
            allow_hosts: self.allowed_hosts(),
            ana: table.ana(),
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
            totals: self.totals(),
        }
    }
}

impl Controller {
    fn status(&self) -> ControllerStatus {
        ControllerStatus {
            id: self.id,
            host_nqn: self.host.nqn,
            host_id: self.host.id,
            local: self.local,
            ready: self.is_ready(),
            queues: self.queue_ids(),
            keep_alive_ms: self.keep_alive.timeout_ms(),
        }
    }
}

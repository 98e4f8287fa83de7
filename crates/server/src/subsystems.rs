//! NVMe subsystems and namespaces of the configured volumes.

use std::sync::Arc;

use flagstone_blockdev::SharedDevice;
use flagstone_nvme::Nqn;
use flagstone_nvmf_target::{NamespaceConfig, SubsystemConfig, Target, TargetConfig};

use crate::mirrors;
use crate::serve::ServeError;
use flagstone_config::{Config, Subsystem};

/// Maximum controllers of a target: IDs end at FFEFh (NVMe over Fabrics 1.1, Connect).
const MAX_CONTROLLERS: u32 = 65_519;

pub(crate) fn unservable(error: impl std::fmt::Display) -> ServeError {
    ServeError::Unservable(error.to_string())
}

/// Creates a target with all subsystems. Each admits hosts when its first namespace is added.
pub(crate) fn nvme_target(config: &Config, machine: &[u8]) -> Result<Arc<Target>, ServeError> {
    let nvme = &config.server.nvme;
    let mut default = TargetConfig::default();
    if let Some(share) = mirrors::share(config) {
        (default.controller_ids, default.first_port_id) = mirrors::identifiers(share);
    }
    let target = Target::new(TargetConfig {
        in_capsule_bytes: nvme.in_capsule_bytes,
        max_io_queues: nvme.max_queues,
        max_queue_entries: nvme.queue_depth,
        mdts_bytes: nvme.mdts_bytes,
        max_h2c_data_bytes: nvme.mdts_bytes,
        allow_header_digest: nvme.header_digest,
        allow_data_digest: nvme.data_digest,
        slow_peer_timeout: nvme.stall_timeout,
        handshake_timeout: nvme.handshake_timeout,
        // Every controller has at least one connection, its admin queue.
        max_controllers: nvme.max_connections.min(MAX_CONTROLLERS),
        connection_payload_bytes: default.connection_payload_bytes.max(nvme.mdts_bytes as usize),
        ..default
    })
    .map_err(unservable)?;
    for subsystem in &config.subsystems {
        let name = nqn(&subsystem.nqn)?;
        let hosts = subsystem.allow_hosts.iter().flatten();
        let added = target.add_subsystem(SubsystemConfig {
            nqn: name,
            serial: config.serial_number(subsystem, machine),
            allow_hosts: hosts.map(|host| nqn(host)).collect::<Result<_, _>>()?,
            keys: Default::default(),
        });
        added.map_err(unservable)?;
        if !subsystem.namespaces.is_empty() {
            target.suspend_connects(&name).map_err(unservable)?;
        }
    }
    Ok(target)
}

/// The subsystem of a volume, and its namespace ID there.
pub(crate) fn namespace_of(config: &Config, volume: usize) -> Option<(&Subsystem, u32)> {
    config.subsystems.iter().find_map(|subsystem| {
        let place = subsystem.namespaces.iter().position(|index| *index == volume)?;
        Some((subsystem, place as u32 + 1))
    })
}

/// Adds the volume at an index as its configured namespace, and admits hosts to its subsystem.
pub(crate) fn add_volume(
    target: &Arc<Target>,
    config: &Config,
    volume: usize,
    device: &SharedDevice,
    machine: &[u8],
) -> Result<(), ServeError> {
    let Some((subsystem, nsid)) = namespace_of(config, volume) else { return Ok(()) };
    let nqn = nqn(&subsystem.nqn)?;
    let namespace = NamespaceConfig {
        nsid: Some(nsid),
        device: device.clone(),
        uuid: config.volume_uuid(volume, machine).into_bytes(),
        read_only: config.volumes[volume].read_only,
    };
    target.add_namespace(&nqn, namespace).map_err(unservable)?;
    target.resume_connects(&nqn).map_err(unservable)
}

fn nqn(text: &str) -> Result<Nqn, ServeError> {
    Nqn::new(text).map_err(|error| unservable(format!("{text}: {error}")))
}

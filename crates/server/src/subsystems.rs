//! NVMe subsystems and namespaces of the configured volumes.
//!
//! A subsystem has all its namespaces from the start: one whose volume is not open is pending (see
//! [`flagstone_nvmf_target::namespace`]). It admits hosts when its first volume is open. A device
//! that is never opened must not keep the other volumes of its subsystem from their hosts. (A
//! command that hangs does, once its host has connected again: a controller is ready when the
//! commands of the previous one have ended.) A host that connects again must not lose the disk of a
//! volume that comes later. A mirrored volume admits hosts when it is known whether this node
//! serves it: a host without native multipath repeats a command that an inaccessible namespace
//! refuses a few times within milliseconds, and then fails it, but waits between attempts to
//! connect.

use std::collections::BTreeMap;
use std::sync::Arc;

use flagstone_auth::KeyPair;
use flagstone_blockdev::SharedDevice;
use flagstone_nvme::Nqn;
use flagstone_nvmf_target::{
    HostTls, NamespaceConfig, SubsystemConfig, Target, TargetConfig, TlsMode,
};

use crate::mirrors;
use crate::reservations::ReservationSupport;
use crate::serve::ServeError;
use crate::volume::ServedVolume;
use flagstone_config::listen_spec::ListenTls;
use flagstone_config::{Config, Subsystem};
use flagstone_stack::keys;

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
        let name = add_subsystem(&target, config, subsystem, machine)?;
        if subsystem.namespaces.is_empty() {
            target.resume_connects(&name).map_err(unservable)?;
        } else {
            for nsid in 1..=subsystem.namespaces.len() as u32 {
                target.add_pending_namespace(&name, nsid).map_err(unservable)?;
            }
        }
    }
    Ok(target)
}

/// Adds a subsystem without namespaces, which admits no hosts until its first volume is added.
pub(crate) fn add_subsystem(
    target: &Target,
    config: &Config,
    subsystem: &Subsystem,
    machine: &[u8],
) -> Result<Nqn, ServeError> {
    let name = nqn(&subsystem.nqn)?;
    let allow_hosts = allowed_hosts(subsystem)?;
    target.set_tls_keys(&name, tls_keys_of(config)?);
    let added = target.add_suspended_subsystem(SubsystemConfig {
        nqn: name,
        serial: config.serial_number(subsystem, machine),
        allow_hosts,
        keys: keys_of(config)?,
    });
    added.map_err(unservable)?;
    Ok(name)
}

/// The hosts that may connect; `None` for every host.
pub(crate) fn allowed_hosts(subsystem: &Subsystem) -> Result<Option<Vec<Nqn>>, ServeError> {
    let hosts = subsystem.allow_hosts.as_ref();
    hosts.map(|hosts| hosts.iter().map(|host| nqn(host)).collect()).transpose()
}

/// Keys of all hosts: the list of hosts that may connect can change while the volume is served.
fn keys_of(config: &Config) -> Result<BTreeMap<Nqn, KeyPair>, ServeError> {
    let keys = config.hosts.iter().filter_map(|host| Some((host, host.key_file.as_ref()?)));
    let keys = keys.map(|(host, file)| {
        let pair = keys::host_pair(file, host.controller_key_file.as_deref());
        Ok((nqn(&host.nqn)?, pair.map_err(unservable)?))
    });
    keys.collect()
}

/// TLS keys of all hosts. Whether a host has to use its key is up to the listener.
fn tls_keys_of(config: &Config) -> Result<BTreeMap<Nqn, HostTls>, ServeError> {
    let keys = config.hosts.iter().filter_map(|host| Some((host, host.tls_key_file.as_ref()?)));
    let keys = keys.map(|(host, file)| {
        let ring = keys::host_tls_ring(file).map_err(unservable)?;
        Ok((nqn(&host.nqn)?, HostTls { keys: ring, required: false }))
    });
    keys.collect()
}

/// Encryption of a listener, as configured.
pub(crate) fn tls_mode(tls: ListenTls) -> TlsMode {
    match tls {
        ListenTls::Off => TlsMode::Off,
        ListenTls::Allowed => TlsMode::Allowed,
        ListenTls::Required => TlsMode::Required,
    }
}

/// The subsystem of a volume, and its namespace ID there.
pub(crate) fn namespace_of(config: &Config, volume: usize) -> Option<(&Subsystem, u32)> {
    config.subsystems.iter().find_map(|subsystem| {
        let place = subsystem.namespaces.iter().position(|index| *index == volume)?;
        Some((subsystem, place as u32 + 1))
    })
}

/// Adds a volume as the namespace of its subsystem.
pub(crate) fn add_volume(
    target: &Target,
    volume: &ServedVolume,
    device: &SharedDevice,
    reservations: ReservationSupport,
) -> Result<(), ServeError> {
    let nqn = nqn(&volume.subsystem.nqn)?;
    let namespace = NamespaceConfig {
        nsid: Some(volume.nsid),
        device: device.clone(),
        uuid: volume.uuid.into_bytes(),
        read_only: volume.config.read_only,
    };
    let added = match reservations {
        ReservationSupport::None => target.add_namespace(&nqn, namespace),
        ReservationSupport::Hosts(state) => {
            target.add_reservable_namespace(&nqn, namespace, &state)
        }
    };
    added.map(drop).map_err(unservable)
}

pub(crate) fn nqn(text: &str) -> Result<Nqn, ServeError> {
    Nqn::new(text).map_err(|error| unservable(format!("{text}: {error}")))
}

//! Discovery log: addresses of the subsystems that a host may connect to (Base 5.1.12.3.1).

use std::net::{IpAddr, SocketAddr};

use flagstone_nvme::Nqn;
use flagstone_nvme::command::Sqe;
use flagstone_nvme::command::admin::GetLogPage;
use flagstone_nvme::log::discovery::{SubsystemType, entry_flags};
use flagstone_nvme::log::{DiscoveryEntry, DiscoveryHeader};
use flagstone_nvme::status::Status;
use flagstone_nvme::wire::{U16, U32, U64, Wire};

use super::controller::Controller;
use super::vendor::CommandReply;
use super::{Listener, Target, TlsMode};

/// Contents of the log for one host at one time.
struct View {
    generation: u64,
    ports: Vec<Listener>,
    /// Subsystems, starting with the discovery subsystem, and their ports on other nodes.
    subsystems: Vec<(Nqn, Vec<Listener>)>,
}

impl View {
    fn entries(&self) -> impl Iterator<Item = (&Nqn, &Listener)> {
        self.subsystems
            .iter()
            .flat_map(|(nqn, remote)| self.ports.iter().chain(remote).map(move |port| (nqn, port)))
    }
}

impl Controller {
    pub(super) fn discovery_log(
        &self,
        command: &Sqe,
        get: &GetLogPage,
    ) -> Result<CommandReply, Status> {
        let view = self.target.discovery_view(&self.host.nqn, self.local);
        let entries = view.entries().count() as u64;
        let entry_bytes = DiscoveryEntry::BYTES as u64;
        let page_bytes = DiscoveryHeader::BYTES as u64 + entries * entry_bytes;
        let mut window = self.window(command, get, page_bytes)?;
        let header = DiscoveryHeader {
            generation: U64::new(view.generation),
            entries: U64::new(entries),
            total_bytes: U32::new(u32::try_from(page_bytes).unwrap_or(u32::MAX)),
            ..DiscoveryHeader::default()
        };
        window.push(header.bytes());
        for (nqn, port) in view.entries() {
            if window.wants(entry_bytes) {
                window.push(self.target.discovery_entry(nqn, port).bytes());
            } else {
                window.skip(entry_bytes);
            }
            if window.is_full() {
                break;
            }
        }
        Ok(window.done())
    }
}

impl Target {
    fn discovery_view(&self, host: &Nqn, local: Option<SocketAddr>) -> View {
        // Read before the contents: the host then notices a change in between.
        let generation = self.discovery_generation();
        let mut ports: Vec<Listener> = Vec::new();
        for port in self.listeners().into_iter().filter_map(|port| reached(port, local)) {
            // 0.0.0.0 and :: may resolve to the same address for this host.
            if !ports.iter().any(|known| known.address == port.address) {
                ports.push(port);
            }
        }
        // The other nodes of a mirror are taken to listen as this one does.
        let requires_tls =
            !ports.is_empty() && ports.iter().all(|port| port.tls == TlsMode::Required);
        let visible =
            self.subsystems().into_iter().filter(|subsystem| subsystem.is_discovered_by(host));
        let visible = visible.map(|subsystem| {
            let mut remote = subsystem.remote_ports();
            remote.retain(|port| !ports.iter().any(|local| local.address == port.address));
            if requires_tls {
                remote.iter_mut().for_each(|port| port.tls = TlsMode::Required);
            }
            (subsystem.nqn, remote)
        });
        let subsystems = std::iter::once((Nqn::discovery(), Vec::new())).chain(visible).collect();
        View { generation, ports, subsystems }
    }

    fn discovery_entry(&self, nqn: &Nqn, port: &Listener) -> DiscoveryEntry {
        let (kind, flags) = if nqn.is_discovery() {
            (SubsystemType::CURRENT_DISCOVERY, entry_flags::PERSISTENT)
        } else {
            (SubsystemType::NVM, 0)
        };
        let mut entry = DiscoveryEntry::tcp(kind, nqn, port.address, port.port_id);
        match port.tls {
            TlsMode::Off => {}
            TlsMode::Allowed => entry.set_tls(false),
            TlsMode::Required => entry.set_tls(true),
        }
        entry.flags = U16::new(flags);
        entry.admin_queue_entries = U16::new(self.config.max_queue_entries);
        entry
    }
}

/// Listener address for a host that connected to `local`. An unspecified address accepts every
/// address of its family, and IPv4 too if it is IPv6, so the host gets `local`. `None` when `local`
/// belongs to the other family.
fn reached(listener: Listener, local: Option<SocketAddr>) -> Option<Listener> {
    let any = listener.address.ip();
    if !any.is_unspecified() {
        return Some(listener);
    }
    let ip = local?.ip().to_canonical();
    match (any, ip) {
        (IpAddr::V4(_), IpAddr::V6(_)) => None,
        _ => Some(Listener { address: SocketAddr::new(ip, listener.address.port()), ..listener }),
    }
}

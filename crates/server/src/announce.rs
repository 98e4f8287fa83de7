//! Startup announcement: addresses, volumes, and the commands to attach them.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use flagstone_blockdev::Geometry;

use crate::api::ApiServer;
use flagstone_config::Config;
use flagstone_config::device_spec::HostPort;
use flagstone_config::listen_spec::ListenSpec;
use flagstone_config::uri::Encoded;
use flagstone_units::format_size;

/// State of a volume at startup.
pub(crate) enum ServedState {
    /// Hosts can connect.
    Serving(Geometry),
    /// The replica of the mirrored volume was not created: hosts are rejected.
    NotCreated(Geometry),
    /// The replica of the mirrored volume, or space for its log, was not found: hosts are rejected.
    NotFound(Geometry),
    /// The device is not reachable yet.
    Pending {
        /// Failure of the last attempt.
        reason: String,
    },
}

/// The announcement: machine-readable lines, then the commands.
pub(crate) fn announcement(
    config: &Config,
    listeners: &[ListenSpec],
    control: &ApiServer,
    volumes: &[ServedState],
) -> String {
    let mut text = String::new();
    for listener in listeners {
        let _ = writeln!(text, "listening on {listener}");
    }
    if let Some(socket) = &control.socket {
        let _ = writeln!(text, "API on {}", socket.display());
    }
    if let Some(address) = &control.metrics {
        let _ = writeln!(text, "metrics on http://{address}/metrics");
    }
    for (index, (volume, served)) in config.volumes.iter().zip(volumes).enumerate() {
        let devices: Vec<String> =
            volume.backing.devices().iter().map(ToString::to_string).collect();
        let access = if volume.read_only { ", read-only" } else { "" };
        let shape = match served {
            ServedState::Serving(geometry)
            | ServedState::NotCreated(geometry)
            | ServedState::NotFound(geometry) => {
                let size = format_size(geometry.size_bytes);
                format!("{size}, blocks of {} B{access}", geometry.block_bytes)
            }
            ServedState::Pending { .. } => format!("pending{access}"),
        };
        let _ = writeln!(text, "\nvolume {}: {shape}, on {}", volume.name, devices.join(", "));
        if let ServedState::Pending { reason } = served {
            let _ = writeln!(text, "  not reachable yet, retrying: {reason}");
        }
        for line in config.performance(volume) {
            let _ = writeln!(text, "  {line}");
        }
        if let ServedState::NotCreated(_) = served {
            let _ = writeln!(
                text,
                "  no replica here yet: run flagstone mirror create {} --source on the node that \
                 has the data, --target on the other",
                volume.name
            );
            continue;
        }
        if let ServedState::NotFound(_) = served {
            let name = &volume.name;
            let _ = writeln!(
                text,
                "  not served: its replica, or space for its log, was not found; see flagstone mirror \
                 status {name}"
            );
            continue;
        }
        for listener in listeners {
            attach(&mut text, config, index, listener);
        }
    }
    if listeners.iter().any(is_wildcard) {
        text.push_str("\n(HOST is an address of this machine that the host can reach)\n");
    }
    text
}

fn is_wildcard(listener: &ListenSpec) -> bool {
    listener.socket_addr().is_some_and(|address| address.ip().is_unspecified())
}

/// Host part of an address to connect to; `HOST` for a wildcard address.
fn host(address: &SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) | IpAddr::V6(Ipv6Addr::UNSPECIFIED) => "HOST".to_owned(),
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => ip.to_string(),
    }
}

fn attach(text: &mut String, config: &Config, index: usize, listener: &ListenSpec) {
    let volume = &config.volumes[index];
    let subsystem = config.subsystems.iter().find(|one| one.namespaces.contains(&index));
    let _ = match listener {
        ListenSpec::NvmeTcp(address) => {
            let Some(subsystem) = subsystem else { return };
            let nsid = subsystem.namespaces.iter().position(|one| *one == index).unwrap_or(0) + 1;
            let note = match subsystem.namespaces.len() {
                1 => String::new(),
                _ => format!("   # namespace {nsid}"),
            };
            writeln!(
                text,
                "  nvme connect -t tcp -a {} -s {} -n {}{note}",
                host(address),
                address.port(),
                subsystem.nqn
            )
        }
        ListenSpec::NbdTcp(address) => {
            let authority = match host(address) {
                name if address.ip().is_unspecified() => format!("{name}:{}", address.port()),
                _ => authority(address).to_string(),
            };
            let export = &volume.nbd_export;
            writeln!(text, "  nbdcopy, qemu-img, fio --uri:  nbd://{authority}/{}", Encoded(export))
        }
        ListenSpec::NbdUnix(path) => writeln!(
            text,
            "  nbdcopy, qemu-img, fio --uri:  nbd+unix:///{}?socket={}",
            Encoded(&volume.nbd_export),
            Encoded(&path.to_string_lossy())
        ),
    };
}

fn authority(address: &SocketAddr) -> HostPort {
    HostPort { host: flagstone_config::device_spec::Host::Ip(address.ip()), port: address.port() }
}

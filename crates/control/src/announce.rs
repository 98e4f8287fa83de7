//! What a server prints when it serves: its addresses, its volumes, and how to attach each.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use flagstone_blockdev::Geometry;

use crate::api::Control;
use crate::config::Config;
use crate::device_spec::HostPort;
use crate::listen_spec::ListenSpec;
use crate::units::format_size;
use crate::uri::Encoded;

/// A volume, as far as it is served.
pub(crate) enum Served {
    /// Hosts are welcome.
    Now(Geometry),
    /// It is mirrored, and its replica has not been made: hosts are sent away.
    WithoutReplica(Geometry),
    /// The same, as its replica, or room for its log, is not found.
    NotFound(Geometry),
    /// Its device is not reached yet.
    Later {
        /// Why not.
        why: String,
    },
}

/// The whole announcement: machine-readable lines first, then the commands.
pub(crate) fn announcement(
    config: &Config,
    listeners: &[ListenSpec],
    control: &Control,
    volumes: &[Served],
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
            Served::Now(geometry)
            | Served::WithoutReplica(geometry)
            | Served::NotFound(geometry) => {
                let size = format_size(geometry.size_bytes);
                format!("{size}, blocks of {} B{access}", geometry.block_bytes)
            }
            Served::Later { .. } => format!("served later{access}"),
        };
        let _ = writeln!(text, "\nvolume {}: {shape}, on {}", volume.name, devices.join(", "));
        if let Served::Later { why } = served {
            let _ = writeln!(text, "  not reached yet, and tried again until it is: {why}");
        }
        for line in config.performance(volume) {
            let _ = writeln!(text, "  {line}");
        }
        if let Served::WithoutReplica(_) = served {
            let _ = writeln!(
                text,
                "  no replica here yet: flagstone mirror create {} --source on the node that has \
                 the data, --target on the other",
                volume.name
            );
            continue;
        }
        if let Served::NotFound(_) = served {
            let name = &volume.name;
            let _ = writeln!(
                text,
                "  not served: its replica, or room for its log, is not found; flagstone mirror status \
                 {name} says what to do"
            );
            continue;
        }
        for listener in listeners {
            attach(&mut text, config, index, listener);
        }
    }
    if listeners.iter().any(is_wildcard) {
        text.push_str("\n(HOST is an address of this machine that the other one reaches)\n");
    }
    text
}

fn is_wildcard(listener: &ListenSpec) -> bool {
    listener.socket_addr().is_some_and(|address| address.ip().is_unspecified())
}

/// The host part of an address to connect to.
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
    HostPort { host: crate::device_spec::Host::Ip(address.ip()), port: address.port() }
}

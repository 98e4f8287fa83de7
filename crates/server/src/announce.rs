//! Startup announcement: addresses, volumes, and the commands to attach them.

use std::fmt::Write as _;
use std::net::SocketAddr;

use crate::api::{ApiServer, devices};
use crate::serve::Server;
use crate::volume::ServedVolume;
use flagstone_config::listen_spec::{ListenSpec, ListenTls, TcpListen};
use flagstone_config::uri::encoded;
use flagstone_config::{Config, Subsystem};
use flagstone_units::exact_size;

/// The announcement: machine-readable lines, then the commands.
pub(crate) fn announcement(server: &Server, control: &ApiServer) -> String {
    let listeners = server.bound();
    let mut text = String::new();
    for listener in listeners {
        let _ = writeln!(text, "listening on {listener}");
    }
    if let Some(socket) = &control.socket {
        let _ = writeln!(text, "API on {}", socket.display());
    }
    if let Some(address) = &control.tls {
        let _ = writeln!(text, "API on https://{address}");
    }
    if let Some(address) = &control.metrics {
        let _ = writeln!(text, "metrics on http://{address}/metrics");
    }
    for served in server.volumes() {
        let (volume, name) = (&served.config, served.name());
        let devices = devices(&volume.backing);
        let access = if volume.read_only { ", read-only" } else { "" };
        let geometry = served.device.get().map(|device| device.geometry());
        let shape = geometry.map_or("pending".to_owned(), |geometry| {
            format!("{}, blocks of {} B", exact_size(geometry.size_bytes), geometry.block_bytes)
        });
        let _ = writeln!(text, "\nvolume {name}: {shape}{access}, on {}", devices.join(", "));
        if let Some(reason) = server.pending.reason(served.number) {
            let _ = writeln!(text, "  not reachable yet, retrying: {reason}");
        }
        for line in server.config.performance(volume) {
            let _ = writeln!(text, "  {line}");
        }
        let closed = server.mirror_of(served.number).filter(|mirrored| mirrored.mirror().is_none());
        if let Some(mirrored) = closed {
            let _ = match mirrored.missing() {
                Some(_) => writeln!(
                    text,
                    "  not served: its replica, or space for its log, was not found; see flagstone \
                     mirror status {name}"
                ),
                None => writeln!(
                    text,
                    "  no replica here yet: run flagstone mirror create {name} --source on the node \
                     that has the data, --target on the other"
                ),
            };
            continue;
        }
        for listener in listeners {
            attach(&mut text, &server.config, &served, listener);
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
        ip if ip.is_unspecified() => "HOST".to_owned(),
        ip => ip.to_string(),
    }
}

/// Option of nvme-cli for the key of a host, if hosts of the subsystem have to prove one.
fn secret_option(config: &Config, subsystem: &Subsystem) -> &'static str {
    match config.hosts_of(subsystem).any(|host| host.key_file.is_some()) {
        true => " --dhchap-secret KEY",
        false => "",
    }
}

fn attach(text: &mut String, config: &Config, served: &ServedVolume, listener: &ListenSpec) {
    let volume = &served.config;
    let _ = match listener {
        ListenSpec::NvmeTcp(TcpListen { address, tls }) => {
            let (subsystem, nsid) = (&served.subsystem, served.nsid);
            let tls = if *tls == ListenTls::Required { " --tls" } else { "" };
            let secret = secret_option(config, subsystem);
            let note = match subsystem.namespaces.len() {
                // A volume of a pool has a subsystem of its own.
                0 | 1 => String::new(),
                _ => format!("   # namespace {nsid}"),
            };
            writeln!(
                text,
                "  nvme connect -t tcp -a {} -s {} -n {}{tls}{secret}{note}",
                host(address),
                address.port(),
                subsystem.nqn
            )
        }
        ListenSpec::NbdTcp(TcpListen { address, tls }) => {
            let scheme = if *tls == ListenTls::Required { "nbds" } else { "nbd" };
            let authority = match address.ip().is_unspecified() {
                true => format!("HOST:{}", address.port()),
                false => address.to_string(),
            };
            let export = &volume.nbd_export;
            writeln!(
                text,
                "  nbdcopy, qemu-img, fio --uri:  {scheme}://{authority}/{}",
                encoded(export)
            )
        }
        ListenSpec::NbdUnix(path) => writeln!(
            text,
            "  nbdcopy, qemu-img, fio --uri:  nbd+unix:///{}?socket={}",
            encoded(&volume.nbd_export),
            encoded(&path.to_string_lossy())
        ),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command without it is refused.
    #[test]
    fn keyed_subsystem_needs_the_secret_option() {
        let volume = |name, host: &str| {
            format!("[volume.{name}]\ndevice = \"null:1GiB\"\nallow_hosts = [\"{host}\"]\n")
        };
        let text = format!(
            "{}{}[host.h]\nnqn = \"nqn.2026-01.io.x:h\"\nkey_file = \"/k\"\n",
            volume("keyed", "nqn.2026-01.io.x:h"),
            volume("open", "nqn.2026-01.io.x:other")
        );
        let config = Config::parse("f", &text).unwrap_or_else(|error| panic!("{error}"));
        let options: Vec<_> =
            config.subsystems.iter().map(|one| secret_option(&config, one)).collect();
        assert_eq!(options, [" --dhchap-secret KEY", ""]);
    }
}

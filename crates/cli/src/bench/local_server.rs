//! Provenance from the control API: the layers and devices of the volumes that a local server
//! exports. The host side of a connection cannot show them.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;

use flagstone_bench::Error;
use flagstone_bench::os::is_own_address;
use flagstone_bench::provenance::Origin;
use flagstone_bench::target::BenchTarget;
use flagstone_config::device_spec::{DeviceSpec, HostPort, NbdAddress, UriHost};
use flagstone_server::api::document::{ListenerDocument, VolumeDocument, VolumesDocument};

use super::provenance::provenance_of;
use crate::exit::Failure;
use crate::status::server::ApiClient;

/// Provenance of the targets' disks that a server on this machine exports, by disk name. Asks
/// `socket`, or the default sockets, where a server may be absent.
pub(super) fn provenance(
    targets: &[BenchTarget],
    socket: Option<&PathBuf>,
) -> Result<BTreeMap<String, Origin>, Error> {
    let disks = || targets.iter().flat_map(|target| &target.disks);
    if disks().all(|disk| disk.path().is_some()) {
        return Ok(BTreeMap::new());
    }
    let volumes = match volumes(socket) {
        Ok(volumes) => volumes,
        Err(Failure(_, text)) if socket.is_some() => return Err(Error::Usage(text)),
        Err(_) => return Ok(BTreeMap::new()),
    };
    let mut origins = BTreeMap::new();
    for name in disks().map(ToString::to_string) {
        let Ok(spec) = name.parse::<DeviceSpec>() else { continue };
        if let Some(volume) = volumes.iter().find(|volume| serves(volume, &spec)) {
            origins.insert(name, origin(volume));
        }
    }
    Ok(origins)
}

fn volumes(socket: Option<&PathBuf>) -> Result<Vec<VolumeDocument>, Failure> {
    let mut server = ApiClient::find(socket)?;
    Ok(server.get::<VolumesDocument>("/v1/volumes")?.volumes)
}

/// Whether `spec` reaches this volume. The address is compared too, because another machine may
/// serve a volume of the same name.
fn serves(volume: &VolumeDocument, spec: &DeviceSpec) -> bool {
    volume.listeners.iter().any(|listener| match (listener, spec) {
        (ListenerDocument::NvmeTcp { address, nqn, namespace }, DeviceSpec::NvmeTcp(spec)) => {
            *nqn == spec.subsystem_nqn
                && spec.namespace_id.is_none_or(|id| id == *namespace)
                && is_at(address, &spec.address)
        }
        (ListenerDocument::Nbd { address, export }, DeviceSpec::Nbd(spec)) => {
            *export == spec.export
                && match &spec.address {
                    NbdAddress::Tcp(wanted) => is_at(address, wanted),
                    NbdAddress::Unix(path) => address.strip_prefix("nbd+unix://") == path.to_str(),
                }
        }
        _ => false,
    })
}

/// Whether a listener of this machine is at the given address.
fn is_at(listener: &str, wanted: &HostPort) -> bool {
    let port = listener.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
    if port != Some(wanted.port) {
        return false;
    }
    match &wanted.host {
        UriHost::Ip(ip) => is_own_address(*ip),
        UriHost::Name(name) => (name.as_str(), wanted.port)
            .to_socket_addrs()
            .is_ok_and(|mut found| found.any(|address: SocketAddr| is_own_address(address.ip()))),
    }
}

fn origin(volume: &VolumeDocument) -> Origin {
    let words = |list: &[String]| match list.is_empty() {
        true => "none".to_owned(),
        false => list.join(", "),
    };
    let stack = format!(
        "# from its server's API\nvolume {}\nlayers {}\ndevices {}\n",
        volume.name,
        words(&volume.layers),
        words(&volume.devices)
    );
    Origin { provenance: provenance_of(&volume.layers, &volume.devices), stack }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Vec<ListenerDocument> {
        serde_json::from_str(text).expect("listeners")
    }

    #[test]
    fn volume_is_matched_by_address_and_name() {
        let listeners = document(
            r#"[{"protocol": "nvme-tcp", "address": "nvme-tcp://0.0.0.0:4420",
                 "nqn": "nqn.2026-01.io.flagstone:db", "namespace": 1},
                {"protocol": "nbd", "address": "nbd+unix:///run/db", "export": "db"}]"#,
        );
        let volume = VolumeDocument { listeners, ..VolumeDocument::default() };
        let is = |address: &str| serves(&volume, &address.parse().expect("a device"));
        assert!(is("nvme-tcp://127.0.0.1:4420/nqn.2026-01.io.flagstone:db"));
        assert!(!is("nvme-tcp://127.0.0.1:4421/nqn.2026-01.io.flagstone:db"), "another port");
        assert!(!is("nvme-tcp://192.0.2.1:4420/nqn.2026-01.io.flagstone:db"), "another machine");
        assert!(!is("nvme-tcp://127.0.0.1:4420/nqn.2026-01.io.flagstone:other"));
        assert!(is("nbd+unix:///db?socket=/run/db"));
        assert!(!is("nbd://127.0.0.1:10809/db") && !is("/dev/sdb"));
    }
}

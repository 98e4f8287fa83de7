//! Metrics of hosts: connections of both protocols, and I/O over NVMe/TCP.
//!
//! Hosts choose their names, so the number of series has a bound: hosts beyond [`HOSTS_MAX`], and
//! hosts that a subsystem does not count separately, are together `host="others"`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use flagstone_nvme::Nqn;
use flagstone_nvmf_target::IoTotals;

use crate::http::Exposition;
use crate::serve::Server;

/// Hosts with series of their own, of each protocol.
const HOSTS_MAX: usize = 128;

/// Values by host, at most [`HOSTS_MAX`] and the others.
struct ByHost<T>(BTreeMap<String, T>);

impl<T: Default> ByHost<T> {
    fn new() -> ByHost<T> {
        ByHost(BTreeMap::new())
    }

    /// The value of a host; `None` is one without a name of its own.
    fn of(&mut self, host: Option<String>) -> &mut T {
        let known = host.filter(|host| self.0.contains_key(host) || self.0.len() < HOSTS_MAX);
        self.0.entry(known.unwrap_or_else(|| "others".to_owned())).or_default()
    }
}

/// Value of the label `kind`, and what it counts.
type HostCount = (&'static str, fn(&IoTotals) -> u64);

/// Families: name, help and counts.
const COUNTS: [(&str, &str, [HostCount; 2]); 2] = [
    (
        "flagstone_host_ios_total",
        "Reads and writes of an NVMe/TCP host, by kind.",
        [("read", |io| io.reads), ("write", |io| io.writes)],
    ),
    (
        "flagstone_host_bytes_total",
        "Bytes that an NVMe/TCP host read and wrote, by kind.",
        [("read", |io| io.read_bytes), ("write", |io| io.written_bytes)],
    ),
];

pub(super) fn write(server: &Server, out: &mut Exposition) {
    let mut connections = [ByHost::<u64>::new(), ByHost::new()];
    let mut totals = ByHost::<IoTotals>::new();
    let volumes = server.volumes();
    let nqns: BTreeSet<&str> = volumes.iter().map(|volume| &*volume.subsystem.nqn).collect();
    let nqns = nqns.into_iter().filter_map(|nqn| Nqn::new(nqn).ok());
    for status in nqns.filter_map(|nqn| server.target.subsystem_status(&nqn).ok()) {
        for controller in &status.controllers {
            *connections[0].of(Some(controller.host_nqn.to_string())) +=
                controller.queues.len() as u64;
        }
        for (host, more) in status.totals {
            *totals.of(host.map(|host| host.to_string())) += more;
        }
    }
    for client in server.nbd.attached() {
        // A client's next connection has another port.
        let address: Result<SocketAddr, _> = client.peer.parse();
        *connections[1].of(Some(address.map_or(client.peer, |one| one.ip().to_string()))) += 1;
    }
    let help = "Connections of a host; each NVMe/TCP queue is one. NBD hosts are named by address.";
    let mut family = out.family("flagstone_host_connections", help);
    for (protocol, hosts) in ["nvme-tcp", "nbd"].iter().zip(&connections) {
        for (host, count) in &hosts.0 {
            family.count(&[("host", host), ("protocol", protocol)], *count);
        }
    }
    for (name, help, kinds) in COUNTS {
        let mut family = out.family(name, help);
        for (host, io) in &totals.0 {
            for (kind, count) in kinds {
                family.count(&[("host", host), ("kind", kind)], count(io));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_beyond_the_bound_share_a_series() {
        let mut hosts = ByHost::<u64>::new();
        for number in 0..10_000 {
            *hosts.of(Some(number.to_string())) += 1;
            *hosts.of(Some("0".to_owned())) += 1;
        }
        *hosts.of(None) += 1;
        assert_eq!(hosts.0.len(), HOSTS_MAX + 1);
        assert_eq!(hosts.0["0"], 10_001);
        assert_eq!(hosts.0["others"], 10_000 - HOSTS_MAX as u64 + 1);
    }
}

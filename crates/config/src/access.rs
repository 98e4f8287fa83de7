//! Access rule: a listener that other machines reach requires keys of its hosts, for authentication
//! or TLS, and a peer on another machine shares a key, unless the operator accepts the opposite
//! with the word `insecure`.
//!
//! The rule is here once. `check` refuses by it, the server reports by it, and an order on a volume
//! of a pool is refused by it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::check::{RawConfig, RawLayer};
use super::diagnostic::{Located, Report, SourceLocation};
use super::model::{Config, HostAccess, Nbd, Peer, ServerSettings, Subsystem};
use crate::listen_spec::{ConfiguredListener, ListenSpec, ListenTls};
use crate::uri;

/// Use of a listener without proof of identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exposure {
    /// NBD clients prove nothing.
    Nbd,
    /// The first volume whose hosts need no key.
    Volume(String),
    /// There are no keys, so that volumes of pools need none.
    PoolVolumes,
}

impl fmt::Display for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exposure::Nbd => f.write_str("all volumes, as NBD clients prove no key"),
            Exposure::Volume(name) => write!(f, "volume `{name}`, whose hosts need no key"),
            Exposure::PoolVolumes => f.write_str("volumes of pools, whose hosts need no key"),
        }
    }
}

/// The hosts that may connect to a subsystem with their keys.
pub(crate) fn hosts_of<'a>(
    hosts: impl Iterator<Item = &'a HostAccess>,
    subsystem: &Subsystem,
) -> impl Iterator<Item = &'a HostAccess> {
    let allowed = subsystem.allow_hosts.as_ref();
    hosts.filter(move |host| allowed.is_none_or(|list| list.contains(&host.nqn)))
}

/// Access that a listener gives to anyone who reaches it from another machine, or `None`.
fn exposure<'a>(
    listen: &ListenSpec,
    mut subsystems: impl Iterator<Item = &'a Subsystem>,
    (hosts, nbd): (&[&HostAccess], &Nbd),
    has_pools: bool,
) -> Option<Exposure> {
    if listen.is_local() {
        return None;
    }
    match listen {
        ListenSpec::NbdTcp(listen) => {
            let proves = listen.tls == ListenTls::Required && nbd.proves_clients();
            (!proves).then_some(Exposure::Nbd)
        }
        ListenSpec::NbdUnix(_) => Some(Exposure::Nbd),
        // Each host proves its TLS key.
        ListenSpec::NvmeTcp(listen) if listen.tls == ListenTls::Required => None,
        ListenSpec::NvmeTcp(_) => {
            let has_keys = |one: &&Subsystem| authenticates(hosts.iter().copied(), one);
            let open = subsystems.find(|one| !has_keys(one));
            let is_keyed = hosts.iter().any(|host| host.key_file.is_some());
            let pools = (has_pools && !is_keyed).then_some(Exposure::PoolVolumes);
            open.map(|one| Exposure::Volume(one.name.clone())).or(pools)
        }
    }
}

/// Returns true if hosts without TLS have to prove a key for authentication.
fn authenticates<'a>(hosts: impl Iterator<Item = &'a HostAccess>, subsystem: &Subsystem) -> bool {
    hosts_of(hosts, subsystem).any(|host| host.key_file.is_some())
}

impl Nbd {
    /// Returns true if each client with TLS proves a name: by its certificate or pre-shared key.
    fn proves_clients(&self) -> bool {
        match self.tls_certificates {
            Some(_) => self.tls_verify_clients,
            None => self.tls_psk_file.is_some(),
        }
    }
}

impl Peer {
    /// Access to the mirrors of this peer for those who prove no key, or `None`. `is_open` is true
    /// if other machines reach the replicas here without TLS ([`Config::opens_replicas`]).
    pub fn exposure(&self, is_open: bool) -> Option<String> {
        let is_reached = is_open || self.insecure || !self.address.host.is_loopback();
        (!self.is_keyed() && is_reached).then(|| {
            format!(
                "anyone who takes the name or address of peer {} ({}) can read and overwrite its \
                 mirrors",
                self.name, self.address
            )
        })
    }
}

impl ServerSettings {
    /// Access by the address of the metrics from other machines, or `None`.
    pub fn metrics_exposure(&self) -> Option<String> {
        let address = self.metrics.filter(|address| !address.ip().to_canonical().is_loopback());
        address.map(|address| {
            format!("anyone who reaches the metrics ({address}) can read names and load of volumes")
        })
    }
}

impl Config {
    /// What listeners, metrics and peers of mirrors give to anyone, because the operator accepts
    /// that.
    pub fn insecure_access(&self) -> Vec<String> {
        let listeners = self.server.listen.iter().filter_map(|listener| {
            let spec = &listener.spec;
            let exposed = self.exposure(spec, std::iter::empty())?;
            Some(format!("anyone who reaches {spec} can use {exposed}"))
        });
        let mirrors = self.volumes.iter().filter_map(|volume| volume.mirror());
        let used: BTreeSet<usize> = mirrors.flat_map(|one| one.peers.iter().copied()).collect();
        let is_open = self.opens_replicas();
        let peers = used.into_iter().filter_map(|index| self.peers[index].exposure(is_open));
        listeners.chain(self.server.metrics_exposure()).chain(peers).collect()
    }

    /// Access that a listener gives to anyone who reaches it from another machine, or `None`.
    /// `made` has the subsystems of volumes made at run time.
    pub fn exposure<'a>(
        &'a self,
        listen: &ListenSpec,
        made: impl Iterator<Item = &'a Subsystem>,
    ) -> Option<Exposure> {
        let hosts: Vec<_> = self.hosts.iter().collect();
        let all = self.subsystems.iter().chain(made);
        exposure(listen, all, (&hosts, &self.server.nbd), self.server.state.is_some())
    }

    /// The listener that forbids to serve `subsystem`, because none of its hosts has a key.
    pub fn forbids_open(&self, subsystem: &Subsystem) -> Option<&ListenSpec> {
        let forbids = |one: &&ConfiguredListener| !one.insecure && admits_plain(&one.spec);
        let is_open = !authenticates(self.hosts.iter(), subsystem);
        let listener = self.server.listen.iter().find(forbids)?;
        is_open.then_some(&listener.spec)
    }

    /// Returns true if other machines can reach the replicas of this server, and no listener that
    /// they reach accepts hosts without keys.
    fn guards_replicas(&self) -> bool {
        guards_replicas(self.server.listen.iter())
    }

    /// Returns true if other machines reach the replicas of this server without TLS.
    pub fn opens_replicas(&self) -> bool {
        self.server.listen.iter().any(|one| admits_plain(&one.spec))
    }

    /// Returns true if a replica may not be shared with `peer`, which proves no key.
    pub fn forbids_peer(&self, peer: &Peer) -> bool {
        forbids_peer(peer, self.guards_replicas())
    }
}

fn guards_replicas<'a>(mut listen: impl Iterator<Item = &'a ConfiguredListener>) -> bool {
    listen.any(|one| admits_plain(&one.spec) && !one.insecure)
}

/// Returns true if hosts of other machines reach it over NVMe/TCP without TLS.
fn admits_plain(spec: &ListenSpec) -> bool {
    match spec {
        ListenSpec::NvmeTcp(listen) => listen.tls != ListenTls::Required && !spec.is_local(),
        ListenSpec::NbdTcp(_) | ListenSpec::NbdUnix(_) => false,
    }
}

/// A peer on another machine, or one whose replica other machines reach here.
fn forbids_peer(peer: &Peer, guards_replicas: bool) -> bool {
    let accepts = peer.insecure || peer.is_keyed();
    !accepts && (guards_replicas || !peer.address.host.is_loopback())
}

impl uri::UriHost {
    /// Returns true for an address or name that only this machine reaches.
    pub fn is_loopback(&self) -> bool {
        match self {
            uri::UriHost::Ip(ip) => ip.to_canonical().is_loopback(),
            uri::UriHost::Name(name) => name == "localhost",
        }
    }
}

/// Refuses listeners and peers that need no key, unless that is accepted.
pub(crate) fn check(
    raw: &RawConfig,
    listen: &[Located<ConfiguredListener>],
    subsystems: &[Subsystem],
    peers: &BTreeMap<String, usize>,
    report: &Report,
) {
    let hosts: Vec<&HostAccess> = raw.hosts.iter().filter_map(|(_, host)| host.as_ref()).collect();
    let nbd = &raw.server.nbd;
    for Located { value: listener, place } in listen {
        let ConfiguredListener { spec, insecure } = listener;
        match exposure(spec, subsystems.iter(), (&hosts, nbd), raw.server.state.is_some()) {
            Some(exposed) if !insecure => {
                let message = format!("anyone who reaches {spec} could use {exposed}");
                report.error(place, message, help(spec, place));
            }
            None if *insecure => {
                let message = format!("`insecure` has no effect on {spec}");
                report.warn(
                    place,
                    message,
                    "remove it: hosts prove their keys there, or are local",
                );
            }
            _ => {}
        }
    }
    warn_of_missing_tls(raw, listen, report);
    let guards_replicas = guards_replicas(listen.iter().map(|one| &one.value));
    let layers = raw.volumes.iter().flat_map(|volume| &volume.layers);
    let mirrors = layers.filter_map(|layer| match layer {
        RawLayer::Mirror(mirror) => Some(mirror),
        _ => None,
    });
    let mut used: Vec<usize> = mirrors
        .flat_map(|mirror| mirror.peer_names())
        .filter_map(|name| peers.get(name).copied())
        .collect();
    used.sort_unstable();
    used.dedup();
    for (name, peer) in used.into_iter().map(|index| &raw.peers[index]) {
        let Some(peer) = peer.as_ref().filter(|peer| forbids_peer(peer, guards_replicas)) else {
            continue;
        };
        let message = format!(
            "anyone who takes the name or address of peer `{}` ({}) could read and overwrite its \
             mirrors: it has no key",
            name.value, peer.address
        );
        let help = "write key_file or tls_key_file = \"/PATH\" on both nodes (`flagstone key generate` makes a key), or \
                    insecure = true to accept that";
        report.error(&name.place, message, help);
    }
}

/// Warns of keys and clients that need TLS where there is none, and of TLS without keys.
fn warn_of_missing_tls(raw: &RawConfig, listen: &[Located<ConfiguredListener>], report: &Report) {
    let nvme = |one: &Located<ConfiguredListener>| match &one.value.spec {
        ListenSpec::NvmeTcp(listen) => Some(listen.tls),
        ListenSpec::NbdTcp(_) | ListenSpec::NbdUnix(_) => None,
    };
    let modes: Vec<_> = listen.iter().filter_map(nvme).collect();
    let has_key =
        |host: &Option<HostAccess>| host.as_ref().is_some_and(|h| h.tls_key_file.is_some());
    let keyed = raw.hosts.iter().find(|(_, host)| has_key(host));
    if let Some((name, _)) = keyed
        && !modes.is_empty()
        && modes.iter().all(|mode| *mode == ListenTls::Off)
    {
        let help = "add ?tls=required to the nvme-tcp address, or remove tls_key_file";
        report.warn(&name.place, "a host has a TLS key, and no listener has TLS", help);
    }
    let is_peer_keyed =
        |peer: &Option<Peer>| peer.as_ref().is_some_and(|p| p.tls_key_file.is_some());
    let required = listen.iter().find(|one| nvme(one) == Some(ListenTls::Required));
    if let Some(one) = required
        && keyed.is_none()
        && !raw.peers.iter().any(|(_, peer)| is_peer_keyed(peer))
    {
        let message = format!("no host has a TLS key, so none can connect to {}", one.value.spec);
        let help = "write tls_key_file = \"/PATH\" in [host.NAME] (`flagstone key generate --tls` makes a key)";
        report.warn(&one.place, message, help);
    }
    let has_nbd = listen.iter().any(|one| nvme(one).is_none());
    let has_nbd_tls = listen.iter().any(|one| one.value.spec.is_nbd_with_tls());
    let limited = raw.volumes.iter().find(|volume| volume.nbd_clients.is_some());
    if let Some(volume) = limited
        && has_nbd
        && !has_nbd_tls
    {
        let message = "`nbd_clients` admits no client: no NBD listener has TLS, by which clients prove their names";
        let help = "add ?tls=required to the nbd address, or remove nbd_clients";
        report.warn(&volume.name.place, message, help);
    }
}

/// The ways out, with the text to write.
fn help(spec: &ListenSpec, place: &SourceLocation) -> String {
    let accept = match place {
        SourceLocation::Argument(_) => format!("--listen-insecure {spec}"),
        _ => format!("{{ url = \"{spec}\", insecure = true }}"),
    };
    let safe = match spec {
        ListenSpec::NvmeTcp(_) => {
            "give each host a key in [host.NAME] (`flagstone key generate` makes one), add ?tls=required, listen on 127.0.0.1"
        }
        _ => {
            "add ?tls=required with keys of the clients in [server.nbd], listen on 127.0.0.1 or nbd+unix:///PATH"
        }
    };
    format!("{safe}, or accept that with {accept}")
}

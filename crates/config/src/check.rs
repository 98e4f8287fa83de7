//! Checks that involve more than one value: colliding names, volumes of subsystems, sizes that have
//! to fit each other. The result is the finished [`Config`], or nothing if there was any mistake.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use flagstone_nbd::limits::MAX_REQUEST_BYTES;

use flagstone_runtime::IoEngine;

use super::access;
use super::api::{self, RawApiTls};
use super::diagnostic::{DiagnosticText, Located, Report, SourceLocation};
use super::mirror::RawMirror;
use super::model::{
    ApiUser, ArbiterStore, Backing, Config, HostAccess, LayerConfig, LimitConfig, Nbd, Nvme, Peer,
    Provisioned, ServerSettings, Subsystem, Volume,
};
use super::reader::suggestion;
use crate::api_spec::{ApiSpec, default_sockets};
use crate::device_spec::DeviceSpec;
use crate::limits::MAX_SUGGESTED_NAMES;
use crate::listen_spec::{ConfiguredListener, ListenSpec};
use crate::names::Uuid;
use flagstone_units::format_size;

/// A configuration as read, each value with its source location.
pub(crate) struct RawConfig {
    pub(crate) server: RawServer,
    pub(crate) volumes: Vec<RawVolume>,
    /// The file has volumes, but none could be read.
    pub(crate) volumes_mistaken: bool,
    /// The shared limits with their names, which the parser keeps unique.
    pub(crate) limits: Vec<(Located<String>, Provisioned)>,
    pub(crate) subsystems: Vec<RawSubsystem>,
    /// A host with a mistake keeps its name.
    pub(crate) hosts: Vec<(Located<String>, Option<HostAccess>)>,
    pub(crate) peers: Vec<(Located<String>, Option<Peer>)>,
    pub(crate) api_users: Vec<(Located<String>, Option<ApiUser>)>,
    /// `Some(None)` for one with a mistake.
    pub(crate) arbiter: Option<Option<ArbiterStore>>,
}

pub(crate) struct RawServer {
    pub(crate) listen: Option<Vec<Located<ConfiguredListener>>>,
    pub(crate) cores: Option<u32>,
    pub(crate) buffer_memory: Located<u64>,
    pub(crate) node: Option<Located<String>>,
    pub(crate) io_engine: IoEngine,
    pub(crate) busy_poll: Duration,
    pub(crate) in_capsule: Located<u64>,
    pub(crate) mdts: Located<u64>,
    pub(crate) api: Option<Located<ApiSpec>>,
    pub(crate) api_tls: Option<RawApiTls>,
    pub(crate) metrics: Option<Located<Option<SocketAddr>>>,
    pub(crate) state: Option<Located<PathBuf>>,
    pub(crate) watchdog: Option<Located<PathBuf>>,
    pub(crate) key_command: Vec<String>,
    pub(crate) nvme: Nvme,
    pub(crate) nbd: Nbd,
}

pub(crate) struct RawVolume {
    pub(crate) name: Located<String>,
    pub(crate) layers: Vec<RawLayer>,
    pub(crate) backing: Option<RawBacking>,
    pub(crate) block_size: Option<Located<u64>>,
    pub(crate) read_only: bool,
    pub(crate) nqn: Option<Located<String>>,
    pub(crate) uuid: Option<Located<Uuid>>,
    pub(crate) serial: Option<Located<String>>,
    pub(crate) allow_hosts: Option<Located<Vec<String>>>,
    pub(crate) nbd_export: Option<Located<String>>,
    pub(crate) nbd_clients: Option<Vec<String>>,
}

pub(crate) enum RawLayer {
    Own(Box<LayerConfig>),
    SharedLimit(Located<String>),
    /// A mirror, without its peers, and their names.
    Mirror(Box<RawMirror>),
}

pub(crate) struct RawBacking {
    /// `None` for a single device.
    pub(crate) chunk: Option<Located<u64>>,
    pub(crate) devices: Vec<Located<DeviceSpec>>,
}

pub(crate) struct RawSubsystem {
    pub(crate) name: Located<String>,
    pub(crate) nqn: Option<Located<String>>,
    pub(crate) serial: Option<Located<String>>,
    pub(crate) namespaces: Vec<Located<String>>,
    pub(crate) allow_hosts: Option<Located<Vec<String>>>,
}

/// Checks the whole. `None` when anything was wrong, here or while reading.
pub(crate) fn finish(mut raw: RawConfig, report: &Report) -> Option<Config> {
    if raw.volumes.is_empty() && !raw.volumes_mistaken && raw.server.state.is_none() {
        let help = "write a table [volume.NAME] with device = \"PATH\", or --volume NAME=DEVICE, or \
                    `state` in [server] for volumes of pools";
        report.error(&SourceLocation::Whole, "there is no volume to serve", help);
    }
    let listen = listen_or_default(raw.server.listen.take());
    check_listen(&listen, report);
    check_control(&raw.server, &listen, report);
    check_sizes(&raw.server, &listen, report);
    check_nbd_tls(&raw.server.nbd, &listen, report);
    for volume in &raw.volumes {
        check_blocks(volume, report);
    }
    check_volume_names(&raw, report);
    check_devices(&raw.volumes, report);
    super::pool_leg::check_legs(&raw, report);
    let shared = resolve_limits(&raw, report);
    let peers = super::mirror::check_mirrors(&raw, &listen, report);
    let subsystems = resolve_subsystems(&raw, report);
    check_hosts(&raw, report);
    api::check(&raw, report);
    access::check(&raw, &listen, &subsystems, &peers, report);
    if report.count() > 0 {
        return None;
    }
    warn_of_unused(&raw, report);
    Some(Config {
        arbiter: raw.arbiter.flatten(),
        server: finish_server(raw.server, listen),
        volumes: raw
            .volumes
            .into_iter()
            .map(|volume| finish_volume(volume, &shared, &peers))
            .collect::<Option<_>>()?,
        limits: raw
            .limits
            .into_iter()
            .map(|(name, limit)| LimitConfig { name: name.value, limit })
            .collect(),
        subsystems,
        hosts: raw.hosts.into_iter().filter_map(|(_, host)| host).collect(),
        peers: raw.peers.into_iter().filter_map(|(_, peer)| peer).collect(),
        api_users: raw.api_users.into_iter().filter_map(|(_, user)| user).collect(),
    })
}

/// The default addresses are reachable from this machine only, as neither protocol authenticates
/// hosts.
fn listen_or_default(
    listen: Option<Vec<Located<ConfiguredListener>>>,
) -> Vec<Located<ConfiguredListener>> {
    listen.unwrap_or_else(|| {
        ["nvme-tcp://127.0.0.1:4420", "nbd://127.0.0.1:10809"]
            .iter()
            .filter_map(|text| text.parse().ok())
            .map(|spec| ConfiguredListener { spec, insecure: false })
            .map(|value| Located { value, place: SourceLocation::Whole })
            .collect()
    })
}

/// Each host has one key, and a volume with keys admits only hosts with keys.
fn check_hosts(raw: &RawConfig, report: &Report) {
    let mut nqns = Once::new("host", "write one [host.NAME] for each NQN", report);
    for (name, host) in &raw.hosts {
        if let Some(host) = host {
            nqns.add(&host.nqn, &name.place);
        }
    }
    let volumes = raw.volumes.iter().map(|volume| &volume.allow_hosts);
    let lists = volumes.chain(raw.subsystems.iter().map(|subsystem| &subsystem.allow_hosts));
    for list in lists.flatten() {
        let keyed = |nqn: &&String| nqns.seen.contains_key(*nqn);
        let without = list.value.iter().find(|nqn| !keyed(nqn));
        if let (true, Some(nqn)) = (list.value.iter().any(|nqn| keyed(&nqn)), without) {
            let message = format!("{nqn} has no key, and other hosts of the list have one");
            let help = format!("write [host.NAME] with nqn = \"{nqn}\" and key_file = \"/PATH\"");
            report.error(&list.place, message, help);
        }
    }
}

fn check_listen(listen: &[Located<ConfiguredListener>], report: &Report) {
    for (index, second) in listen.iter().enumerate() {
        let spec = &second.value.spec;
        let first = listen[..index].iter().find(|first| first.value.spec.collides_with(spec));
        if let Some(first) = first {
            let message = format!("{spec} is already listened on");
            let help = "give each its own port, or remove one (port 0 is any free one)";
            let related = ("first given at", &first.place);
            report.error_with(&second.place, message, help, related);
        }
    }
}

/// The API, the metrics and the volumes have different addresses.
fn check_control(server: &RawServer, listen: &[Located<ConfiguredListener>], report: &Report) {
    let taken =
        |spec: &ListenSpec| listen.iter().find(|other| other.value.spec.collides_with(spec));
    if let Some(Located { value: Some(address), place }) = &server.metrics
        && let Some(first) = taken(&ListenSpec::NbdTcp((*address).into()))
    {
        let help =
            "give the metrics a port of their own, such as 127.0.0.1:9469, or write \"none\"";
        let related = ("that is at", &first.place);
        report.error_with(place, format!("volumes are served on {address}"), help, related);
    }
    let api_tls = server.api_tls.as_ref().and_then(|tls| tls.listen.as_ref());
    if let Some(Located { value: address, place }) = api_tls {
        let spec = ListenSpec::NbdTcp((*address).into());
        let metrics = server.metrics.as_ref();
        let metrics = metrics.filter(|one| {
            one.value.is_some_and(|other| ListenSpec::NbdTcp(other.into()).collides_with(&spec))
        });
        let first = taken(&spec).map(|one| &one.place).or(metrics.map(|one| &one.place));
        if let Some(first) = first {
            let help = "give the API a port of its own, such as 9468";
            let message = format!("{address} has another use");
            report.error_with(place, message, help, ("that is at", first));
        }
    }
    if matches!(server.api, None | Some(Located { value: ApiSpec::Default, .. })) {
        for path in default_sockets() {
            let Some(first) = taken(&ListenSpec::NbdUnix(path.clone())) else { continue };
            let message = format!("{} is a default socket of the API", path.display());
            let help = "serve the volumes on another socket, or write api = \"/PATH\" or \"none\"";
            report.error(&first.place, message, help);
        }
    }
    if let Some(Located { value: ApiSpec::Socket(path), place }) = &server.api
        && let Some(first) = taken(&ListenSpec::NbdUnix(path.clone()))
    {
        let help = "give the API a socket of its own, or write \"none\"";
        let message = format!("volumes are served on {}", path.display());
        report.error_with(place, message, help, ("that is at", &first.place));
    }
}

/// A listener with TLS for NBD needs a certificate or pre-shared keys.
fn check_nbd_tls(nbd: &Nbd, listen: &[Located<ConfiguredListener>], report: &Report) {
    let encrypted = listen.iter().find(|one| one.value.spec.is_nbd_with_tls());
    let has_keys = nbd.tls_certificates.is_some() || nbd.tls_psk_file.is_some();
    if let (Some(one), false) = (encrypted, has_keys) {
        let help = "write tls_certificates = \"/DIR\" or tls_psk_file = \"/PATH\" in [server.nbd]";
        report.error(&one.place, "NBD with TLS has neither a certificate nor keys", help);
    }
}

fn check_sizes(server: &RawServer, listen: &[Located<ConfiguredListener>], report: &Report) {
    let mdts = server.mdts.value;
    if server.in_capsule.value > mdts {
        let (in_capsule, mdts) = (format_size(server.in_capsule.value), format_size(mdts));
        let message = format!("`in_capsule` ({in_capsule}) is more than `mdts` ({mdts})");
        let help = format!("write at most {mdts}, or a larger `mdts`");
        report.error(&server.in_capsule.place, message, help);
    }
    let serves_nvme = listen.iter().any(|one| matches!(one.value.spec, ListenSpec::NvmeTcp(_)));
    let serves_nbd = listen.iter().any(|one| !matches!(one.value.spec, ListenSpec::NvmeTcp(_)));
    let nbd = u64::from(MAX_REQUEST_BYTES);
    for (served, protocol, largest, instead) in [
        (serves_nvme, "NVMe/TCP", mdts, "a smaller `mdts`"),
        (serves_nbd, "NBD", nbd, "listen on no NBD address"),
    ] {
        if served && server.buffer_memory.value < 2 * largest {
            let (memory, needed) =
                (format_size(server.buffer_memory.value), format_size(2 * largest));
            let message = format!(
                "`buffer_memory` ({memory}) is less than two of the largest {protocol} requests ({} each)",
                format_size(largest)
            );
            let help = format!("write buffer_memory = \"{needed}\" or more, or {instead}");
            report.error(&server.buffer_memory.place, message, help);
        }
    }
}

/// The device's size and the stripe's chunk are whole blocks.
fn check_blocks(volume: &RawVolume, report: &Report) {
    let (Some(backing), Some(block_size)) = (&volume.backing, &volume.block_size) else { return };
    let block = block_size.value;
    if let Some(chunk) = backing.chunk.as_ref().filter(|chunk| !chunk.value.is_multiple_of(block)) {
        let given = format_size(chunk.value);
        let message = format!("`chunk` ({given}) is no multiple of `block_size`");
        let help = format!("write a multiple of {}, or block_size = 512", format_size(block));
        report.error_with(
            &chunk.place,
            message,
            help,
            ("the block size is given at", &block_size.place),
        );
    }
    for device in &backing.devices {
        let (DeviceSpec::Memory { size_bytes } | DeviceSpec::Null { size_bytes }) = device.value
        else {
            continue;
        };
        if !size_bytes.is_multiple_of(block) {
            let message = format!("the size of {} is no multiple of `block_size`", device.value);
            let whole = size_bytes - size_bytes % block;
            let help = format!("write {}, or block_size = 512", format_size(whole));
            let related = ("the block size is given at", &block_size.place);
            report.error_with(&device.place, message, help, related);
        }
    }
}

/// Names given once: volumes (on the command line they may be repeated), exports, UUIDs.
fn check_volume_names(raw: &RawConfig, report: &Report) {
    let mut names = Once::new("volume name", "give it another name", report);
    let mut exports = Once::new("NBD export", "write another nbd_export", report);
    let mut uuids = Once::new("UUID", "write another uuid, or none to have one made", report);
    for volume in &raw.volumes {
        if !names.add(&volume.name.value, &volume.name.place) {
            // Errors that follow from the duplicate name are not reported again.
            continue;
        }
        let export = volume.nbd_export.as_ref().unwrap_or(&volume.name);
        exports.add(&export.value, &export.place);
        if let Some(uuid) = &volume.uuid {
            uuids.add(&uuid.value.to_string(), &uuid.place);
        }
    }
}

/// No disk or file backs two volumes, as both would write to it.
fn check_devices(volumes: &[RawVolume], report: &Report) {
    let mut seen: BTreeMap<String, (&SourceLocation, bool)> = BTreeMap::new();
    let mut names = BTreeSet::new();
    // A duplicate volume has been reported already.
    let distinct = volumes.iter().filter(|volume| names.insert(&volume.name.value));
    let backings = distinct.filter_map(|volume| Some((volume, volume.backing.as_ref()?)));
    for (volume, backing) in backings {
        for device in &backing.devices {
            if matches!(device.value, DeviceSpec::Memory { .. } | DeviceSpec::Null { .. }) {
                continue;
            }
            let name = device.value.identity();
            match seen.get(&name) {
                Some((_, first_read_only)) if *first_read_only && volume.read_only => {}
                Some((first, _)) => {
                    let message = format!("{name} is used twice");
                    let help = "give each volume its own device: two would overwrite each \
                                other's data (sharing one is for volumes that are all read_only)";
                    let related = ("first used at", *first);
                    report.error_with(&device.place, message, help, related);
                }
                None => {
                    seen.insert(name, (&device.place, volume.read_only));
                }
            }
        }
    }
}

/// The limits that volumes share, by name.
fn resolve_limits(raw: &RawConfig, report: &Report) -> BTreeMap<String, usize> {
    let named = raw.limits.iter().enumerate();
    let indices: BTreeMap<String, usize> =
        named.map(|(index, (name, _))| (name.value.clone(), index)).collect();
    for layer in raw.volumes.iter().flat_map(|volume| &volume.layers) {
        let RawLayer::SharedLimit(name) = layer else { continue };
        let help = format!("[limit.{}] with iops = … or throughput = …", name.value);
        find("limit", name, &indices, &help, report);
    }
    indices
}

/// Shared limits and peers that no volume names have no effect: more likely a slip than intended.
fn warn_of_unused(raw: &RawConfig, report: &Report) {
    let mut named = BTreeSet::new();
    for layer in raw.volumes.iter().flat_map(|volume| &volume.layers) {
        match layer {
            RawLayer::SharedLimit(name) => drop(named.insert(("limit", name.value.as_str()))),
            RawLayer::Mirror(mirror) => {
                named.extend(mirror.peer_names().map(|name| ("peer", name)));
            }
            RawLayer::Own(_) => {}
        }
    }
    let limits = raw.limits.iter().map(|(name, _)| ("limit", "shared_limit = \"NAME\"", name));
    let peers = raw.peers.iter().map(|(name, _)| ("peer", "mirror = { peer = \"NAME\" }", name));
    for (kind, key, name) in limits.chain(peers) {
        if named.contains(&(kind, name.value.as_str())) {
            continue;
        }
        let title = format!("{kind}.{}", name.value);
        let message = DiagnosticText::of_table(&title, kind, |title| {
            format!("no volume uses [{title}], which has no effect")
        });
        let help = format!("name it in a volume with {key}, or remove it");
        report.warn(&name.place, message, help);
    }
}

/// The subsystems of the file, then one for each volume that is in none.
fn resolve_subsystems(raw: &RawConfig, report: &Report) -> Vec<Subsystem> {
    let mut nqns = Once::new("NQN", "write another nqn", report);
    let mut owners: BTreeMap<usize, &Located<String>> = BTreeMap::new();
    let mut subsystems = Vec::new();
    // Of two volumes with one name (reported elsewhere) the first is used.
    let named = raw.volumes.iter().enumerate().rev();
    let indices = named.map(|(index, volume)| (volume.name.value.clone(), index)).collect();
    for one in &raw.subsystems {
        let mut namespaces = Vec::new();
        for name in &one.namespaces {
            let Some(index) = find("volume", name, &indices, "[volume.NAME] for it", report) else {
                continue;
            };
            match owners.get(&index) {
                Some(first) => {
                    let message = format!("volume `{}` is already in a subsystem", name.value);
                    let help = "name each volume once";
                    let related = ("first named at", &first.place);
                    report.error_with(&name.place, message, help, related);
                }
                None => {
                    owners.insert(index, name);
                    refuse_own_subsystem(&raw.volumes[index], name, report);
                }
            }
            namespaces.push(index);
        }
        let (name, nqn) = (&one.name, one.nqn.as_ref());
        let mut subsystem = subsystem(raw, name, nqn, &one.serial, &one.allow_hosts, &mut nqns);
        subsystem.namespaces = namespaces;
        subsystems.push(subsystem);
    }
    let mut names = BTreeSet::new();
    for (index, volume) in raw.volumes.iter().enumerate() {
        let repeated = !names.insert(&volume.name.value);
        if owners.contains_key(&index) || repeated {
            continue;
        }
        let (name, nqn) = (&volume.name, volume.nqn.as_ref());
        let (serial, hosts) = (&volume.serial, &volume.allow_hosts);
        let mut subsystem = subsystem(raw, name, nqn, serial, hosts, &mut nqns);
        subsystem.namespaces = vec![index];
        subsystems.push(subsystem);
    }
    subsystems
}

/// The index of the `kind` called `name`. `table` is the table to write if there is none yet.
pub(crate) fn find(
    kind: &str,
    name: &Located<String>,
    indices: &BTreeMap<String, usize>,
    table: &str,
    report: &Report,
) -> Option<usize> {
    let found = indices.get(&name.value).copied();
    if found.is_none() {
        let known: Vec<_> = indices.keys().map(String::as_str).take(MAX_SUGGESTED_NAMES).collect();
        let help = match known.len() {
            0 => format!("write a table {table}"),
            _ => suggestion(&name.value, &known),
        };
        report.error(&name.place, format!("there is no {kind} `{}`", name.value), help);
    }
    found
}

/// A volume within a subsystem has no NQN, serial number or hosts of its own.
fn refuse_own_subsystem(volume: &RawVolume, named: &Located<String>, report: &Report) {
    let own = [
        ("nqn", volume.nqn.as_ref().map(|nqn| &nqn.place)),
        ("serial", volume.serial.as_ref().map(|serial| &serial.place)),
        ("allow_hosts", volume.allow_hosts.as_ref().map(|hosts| &hosts.place)),
    ];
    for (key, place) in own.into_iter().filter_map(|(key, place)| Some((key, place?))) {
        let message = format!("`{key}` of a volume that a subsystem names has no effect");
        let help = format!("move `{key}` to the subsystem's table");
        report.error_with(place, message, help, ("the subsystem names it at", &named.place));
    }
}

pub(crate) fn default_nqn(nvme: &Nvme, name: &str) -> String {
    format!("{}:{name}", nvme.nqn_prefix)
}

fn subsystem(
    raw: &RawConfig,
    name: &Located<String>,
    nqn: Option<&Located<String>>,
    serial: &Option<Located<String>>,
    allow_hosts: &Option<Located<Vec<String>>>,
    nqns: &mut Once<'_>,
) -> Subsystem {
    let default =
        || Located { value: default_nqn(&raw.server.nvme, &name.value), place: name.place.clone() };
    let nqn = nqn.cloned().unwrap_or_else(default);
    nqns.add(&nqn.value, &nqn.place);
    Subsystem {
        name: name.value.clone(),
        nqn: nqn.value,
        serial: serial.as_ref().map(|serial| serial.value.clone()),
        namespaces: Vec::new(),
        allow_hosts: allow_hosts.as_ref().map(|hosts| hosts.value.clone()),
    }
}

/// Names of one kind, each of which may be given once.
struct Once<'a> {
    what: &'static str,
    help: &'static str,
    seen: BTreeMap<String, SourceLocation>,
    report: &'a Report,
}

impl<'a> Once<'a> {
    fn new(what: &'static str, help: &'static str, report: &'a Report) -> Once<'a> {
        Once { what, help, seen: BTreeMap::new(), report }
    }

    fn add(&mut self, name: &str, place: &SourceLocation) -> bool {
        if let Some(first) = self.seen.get(name) {
            let message = format!("{} `{name}` is given twice", self.what);
            self.report.error_with(place, message, self.help, ("first given at", first));
            return false;
        }
        self.seen.insert(name.to_owned(), place.clone());
        true
    }
}

fn finish_server(raw: RawServer, listen: Vec<Located<ConfiguredListener>>) -> ServerSettings {
    // The ranges of the schema keep both below 2^32.
    let (in_capsule, mdts) = (raw.in_capsule.value as u32, raw.mdts.value as u32);
    ServerSettings {
        listen: listen.into_iter().map(|one| one.value).collect(),
        cores: raw.cores,
        buffer_memory_bytes: raw.buffer_memory.value,
        node: raw.node.map(|node| node.value),
        io_engine: raw.io_engine,
        busy_poll: raw.busy_poll,
        api: raw.api.map(|api| api.value).unwrap_or_default(),
        api_tls: raw.api_tls.and_then(RawApiTls::finish),
        metrics: raw.metrics.and_then(|metrics| metrics.value),
        state: raw.state.map(|state| state.value),
        watchdog: raw.watchdog.map(|path| path.value),
        key_command: raw.key_command,
        nvme: Nvme { in_capsule_bytes: in_capsule, mdts_bytes: mdts, ..raw.nvme },
        nbd: raw.nbd,
    }
}

fn finish_volume(
    raw: RawVolume,
    shared: &BTreeMap<String, usize>,
    peers: &BTreeMap<String, usize>,
) -> Option<Volume> {
    let layer = |layer| match layer {
        RawLayer::Own(layer) => Some(*layer),
        RawLayer::Mirror(mirror) => mirror.finish(peers),
        RawLayer::SharedLimit(name) => {
            shared.get(&name.value).copied().map(LayerConfig::SharedLimit)
        }
    };
    let backing = raw.backing?;
    let mut devices = backing.devices.into_iter().map(|device| device.value);
    let backing = match backing.chunk {
        Some(chunk) => Backing::Stripe { chunk_bytes: chunk.value, devices: devices.collect() },
        None => Backing::Device(devices.next()?),
    };
    Some(Volume {
        nbd_export: raw.nbd_export.map_or_else(|| raw.name.value.clone(), |name| name.value),
        nbd_clients: raw.nbd_clients,
        name: raw.name.value,
        layers: raw.layers.into_iter().map(layer).collect::<Option<_>>()?,
        backing,
        block_size_bytes: raw.block_size.map(|size| size.value as u32),
        read_only: raw.read_only,
        uuid: raw.uuid.map(|uuid| uuid.value),
    })
}

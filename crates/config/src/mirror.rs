//! Reader of `mirror = { … }` and `[peer.NAME]`, and the checks across mirrors and peers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use flagstone_mirror::limits::GROUP_MEMBERS_MAX;
use flagstone_mirror::{
    Ack, AfterSplitBrain, FailoverMode, IntentLogMode, Mode, OnCongestion, OnPeerLoss,
};
use flagstone_nvme::replica::Codec;

use super::check::{RawConfig, RawLayer, RawVolume, find};
use super::diagnostic::{Located, Report, SourceLocation};
use super::model::{LayerConfig, MirrorConfig, Peer, PeerDemand};
use super::performance;
use super::profile::Catalogs;
use super::read::{file_path, key_path};
use super::reader::Reader;
use crate::device_spec::{DeviceSpec, NVME_TCP_PORT};
use crate::limits::{MAX_COMMAND_WORDS, MAX_HOST_ADDRESSES, MAX_MIRROR_PEERS};
use crate::listen_spec::{ConfiguredListener, ListenSpec};
use crate::names::{NameError, check_volume_name};
use crate::schema::PEER;
use crate::uri::{HostPort, parse_authority};
use flagstone_units::{format_rate, format_size};

const RATES: [&str; 2] = ["resync_max", "resync_min"];

/// Shortest `failover_after` with a watchdog, whose time-out of whole seconds is below.
const WATCHDOG_AFTER_MIN: Duration = Duration::from_secs(2);

/// Times of automatic failover.
const TIMES: [&str; 2] = ["failover_after", "failover_max_lag"];

pub(crate) struct RawMirror {
    place: SourceLocation,
    peers: Vec<Located<String>>,
    group: Option<Located<String>>,
    pub(crate) intent_log: Option<Located<DeviceSpec>>,
    /// Rates of the resync that are written, by key.
    rates: Vec<(&'static str, Located<u64>)>,
    /// Where `failover` is written.
    failover: SourceLocation,
    /// The keys of [`TIMES`] that are written, and their places.
    failover_times: Vec<(&'static str, SourceLocation)>,
    mirror: MirrorConfig,
}

impl RawMirror {
    /// Where this time is written; else where `failover` is.
    fn place_of_time(&self, key: &str) -> &SourceLocation {
        let written = self.failover_times.iter().find(|(written, _)| *written == key);
        written.map_or(&self.failover, |(_, place)| place)
    }

    pub(crate) fn peer_names(&self) -> impl Iterator<Item = &str> {
        self.peers.iter().map(|name| name.value.as_str())
    }

    /// The layer, once the peers' names are known to be good.
    pub(crate) fn finish(self, peers: &BTreeMap<String, usize>) -> Option<LayerConfig> {
        let peers = self.peers.iter().map(|name| peers.get(&name.value).copied());
        let peers = peers.collect::<Option<_>>()?;
        Some(LayerConfig::Mirror(Box::new(MirrorConfig { peers, ..self.mirror })))
    }
}

/// Checks the name of a node: plain, as it becomes part of an NQN.
pub(crate) fn node_name(text: &str) -> Result<String, NameError> {
    check_volume_name(text).map(|()| text.to_owned()).map_err(|_| NameError::Node)
}

fn group_name(text: &str) -> Result<String, NameError> {
    check_volume_name(text).map(|()| text.to_owned()).map_err(|_| NameError::Group)
}

/// Reads a `[peer.NAME]`. A peer with a mistake keeps its name, so that mirrors naming it do not
/// get a second error.
pub(crate) fn read_peer(
    name: Located<String>,
    reader: &Reader<'_>,
) -> (Located<String>, Option<Peer>) {
    if !reader.has("address") {
        let help = "write address = \"HOST\" or \"HOST:4420\": where it serves NVMe/TCP";
        let message = reader.message(|title| format!("[{title}] has no address"));
        reader.report().error(reader.place(), message, help);
    }
    for (key, file, lacks) in [
        ("authentication", "key_file", "proves nothing"),
        ("tls", "tls_key_file", "encrypts nothing"),
    ] {
        if reader.has(key) && !reader.has(file) {
            let message = format!("without `{file}`, `{key}` {lacks}");
            let help = format!("add {file} = \"PATH\", or remove {key}");
            reader.report().error(&reader.key_place(key), message, help);
        }
    }
    let options = peer_options(reader);
    let address = reader.parsed("address", |text| parse_authority(text, NVME_TCP_PORT));
    let peer = address.map(|address| options(name.value.clone(), address.value));
    if peer.as_ref().is_some_and(|peer| peer.insecure && peer.is_keyed()) {
        let message = "`insecure` has no effect beside keys";
        reader.report().warn(&reader.key_place("insecure"), message, "remove it");
    }
    (name, peer)
}

/// Reads the keys of a `[peer.NAME]` other than its address.
fn peer_options(reader: &Reader<'_>) -> impl FnOnce(String, HostPort) -> Peer + use<> {
    let (connections, timeout) =
        (reader.count_or_default("connections") as u16, reader.time_or_default("timeout"));
    let word = reader.choice("compression");
    let compression = Codec::ALL.into_iter().find(|codec| codec.name() == word);
    let max_bytes_per_s = reader.rate("bandwidth_max").map(|rate| rate.value);
    let host_addresses = reader
        .list("host_addresses", MAX_HOST_ADDRESSES, |text| parse_authority(text, NVME_TCP_PORT))
        .map(|list| list.entries.into_iter().map(|entry| entry.value).collect());
    let key_file = reader.parsed("key_file", key_path).map(|path| path.value);
    let tls_key_file = reader.parsed("tls_key_file", key_path).map(|path| path.value);
    let demand = |key| reader.one_of(key, &PeerDemand::ALL, PeerDemand::name);
    let (authentication, tls) = (demand("authentication"), demand("tls"));
    let insecure = reader.boolean("insecure");
    let fence_command = fence_command(reader);
    let fence_timeout = reader.time_or_default("fence_timeout");
    move |name, address| Peer {
        name,
        key_file,
        authentication,
        insecure,
        tls_key_file,
        tls,
        host_addresses,
        address,
        connections,
        timeout,
        compression,
        max_bytes_per_s,
        fence_command,
        fence_timeout,
    }
}

fn fence_command(reader: &Reader<'_>) -> Vec<String> {
    if reader.has("fence_timeout") && !reader.has("fence_command") {
        let message = "`fence_timeout` has no effect without `fence_command`";
        reader.report().error(&reader.key_place("fence_timeout"), message, "remove it");
    }
    command(reader, "fence_command")
}

/// Program and arguments of a command; empty without one.
pub(crate) fn command(reader: &Reader<'_>, key: &str) -> Vec<String> {
    let word = |text: &str| match text.contains('\0') {
        true => Err("write no zero byte"),
        false => Ok(text.to_owned()),
    };
    let Some(list) = reader.list(key, MAX_COMMAND_WORDS, word) else { return Vec::new() };
    let program = list.entries.first().map_or("", |program| &program.value);
    if file_path(program).is_err() {
        let help = "write [\"/usr/local/sbin/PROGRAM\", \"ARGUMENT\"]";
        let message = format!("`{key}` begins with no absolute path");
        reader.report().error(&list.place, message, help);
    }
    list.entries.into_iter().map(|word| word.value).collect()
}

impl Peer {
    /// A peer at `HOST[:PORT]` whose other options are the defaults.
    ///
    /// # Errors
    /// The defect of the name or the address.
    pub fn at(name: &str, address: &str) -> Result<Peer, String> {
        let name = node_name(name).map_err(|error| error.to_string())?;
        let address = parse_authority(address, NVME_TCP_PORT).map_err(|error| error.to_string())?;
        let report = Report::default();
        Ok(peer_options(&Reader::absent(&PEER, &report))(name, address))
    }
}

pub(crate) fn read_mirror(reader: &Reader<'_>, catalogs: &Catalogs) -> Option<RawLayer> {
    let peers = read_peers(reader)?;
    let intent_log = reader.parsed("intent_log", str::parse::<DeviceSpec>);
    let group = reader.parsed("group", group_name);
    let mirror = MirrorConfig {
        peers: Vec::new(),
        mode: reader.one_of("mode", &Mode::ALL, Mode::name),
        group: group.as_ref().map(|group| group.value.clone()),
        ack: reader.one_of("ack", &Ack::ALL, Ack::name),
        on_peer_loss: reader.one_of("on_peer_loss", &OnPeerLoss::ALL, OnPeerLoss::name),
        after_split_brain: reader.one_of(
            "after_split_brain",
            &AfterSplitBrain::ALL,
            AfterSplitBrain::name,
        ),
        failover: reader.one_of("failover", &FailoverMode::ALL, FailoverMode::name),
        failover_after: reader.time_or_default("failover_after"),
        failover_max_lag: reader.time("failover_max_lag").map(|lag| lag.value),
        intent_log: intent_log.as_ref().map(|intent_log| intent_log.value.clone()),
        intent_log_layers: read_intent_log_layers(reader, catalogs),
        intent_log_mode: read_intent_log_mode(reader),
        added_rtt: reader.time("added_rtt").map(|rtt| rtt.value).unwrap_or_default(),
        queue_bytes: reader.size_or_default("queue").value,
        on_congestion: reader.one_of("on_congestion", &OnCongestion::ALL, OnCongestion::name),
        resync_max_bytes_per_s: reader.rate("resync_max").map(|rate| rate.value),
        resync_min_bytes_per_s: reader.rate_or_default("resync_min"),
        resync_adaptive: reader.boolean("resync_adaptive"),
        resync_compare: reader.boolean("resync_compare"),
        // The range of the schema keeps it below 2^32.
        granularity_bytes: reader.size_or_default("granularity").value as u32,
        activity_log_bytes: reader.size_or_default("activity_log_size").value,
    };
    refuse_idle_keys(reader, &mirror);
    Some(RawLayer::Mirror(Box::new(RawMirror {
        place: reader.place().clone(),
        peers,
        group,
        intent_log,
        failover: reader.key_place("failover"),
        failover_times: TIMES
            .into_iter()
            .filter(|key| reader.has(key))
            .map(|key| (key, reader.key_place(key)))
            .collect(),
        rates: RATES.into_iter().filter_map(|key| Some((key, reader.rate(key)?))).collect(),
        mirror,
    })))
}

fn read_peers(reader: &Reader<'_>) -> Option<Vec<Located<String>>> {
    let report = reader.report();
    if reader.has("peer") && reader.has("peers") {
        let related = ("the other is given at", &reader.key_place("peer"));
        let help = "keep one of them";
        report.error_with(&reader.key_place("peers"), "both `peer` and `peers`", help, related);
    }
    if let Some(peer) = reader.parsed("peer", node_name) {
        return Some(vec![peer]);
    }
    if let Some(list) = reader.list("peers", MAX_MIRROR_PEERS, node_name) {
        if list.written > 0 {
            return Some(list.entries);
        }
        let help = "write the names of one or two [peer.NAME], or remove the mirror";
        report.error(&list.place, "a mirror without a peer", help);
        return None;
    }
    if !reader.has("peer") && !reader.has("peers") {
        let help = "write peer = \"NAME\", the name of a table [peer.NAME]";
        let message = reader.message(|title| format!("[{title}] has no peer"));
        report.error(reader.place(), message, help);
    }
    None
}

fn read_intent_log_layers(reader: &Reader<'_>, catalogs: &Catalogs) -> Vec<LayerConfig> {
    let key = "intent_log_disk_model";
    let Some(model) = reader.table(key) else { return Vec::new() };
    if !reader.has("intent_log") {
        let help = "write intent_log = \"PATH\" too: the volume's own device has layers of its own";
        let message = "`intent_log_disk_model` without `intent_log`";
        reader.report().error(&reader.key_place(key), message, help);
    }
    let (limit, latency) = performance::read_disk_model(&model, catalogs);
    let limit = limit.map(|limit| LayerConfig::Limit(Box::new(limit)));
    limit.into_iter().chain(latency.map(LayerConfig::DiskModel)).collect()
}

/// `every-write` on a real disk is a mistake: it is slower and adds no safety.
fn read_intent_log_mode(reader: &Reader<'_>) -> IntentLogMode {
    let key = "intent_log_mode";
    let mode = reader.one_of(key, &IntentLogMode::ALL, IntentLogMode::name);
    if mode == IntentLogMode::EveryWrite && !reader.has("intent_log_disk_model") {
        let help = "remove it: only `flagstone lab mirror` uses it, with `intent_log_disk_model`";
        let message = "`every-write` with a log on a real disk";
        reader.report().error(&reader.key_place(key), message, help);
    }
    mode
}

/// Reports keys of the other mode, which have no effect.
fn refuse_idle_keys(reader: &Reader<'_>, mirror: &MirrorConfig) {
    let (keys, needed): (&[&str], _) = match mirror.mode {
        Mode::Sync => (&["queue", "on_congestion"], "async"),
        Mode::Async => (&["ack", "on_peer_loss"], "sync"),
    };
    for key in keys.iter().filter(|key| reader.has(key)) {
        let message = format!("`{key}` has no effect in this mode");
        let help = format!("remove it, or write mode = \"{needed}\"");
        reader.report().error(&reader.key_place(key), message, help);
    }
}

/// Checks mirrors against the rest of the file. Returns the index of each peer by name.
pub(crate) fn check_mirrors(
    raw: &RawConfig,
    listen: &[Located<ConfiguredListener>],
    report: &Report,
) -> BTreeMap<String, usize> {
    let named = raw.peers.iter().enumerate();
    let peers: BTreeMap<String, usize> =
        named.map(|(index, (name, _))| (name.value.clone(), index)).collect();
    let mut taken = devices(raw);
    for volume in &raw.volumes {
        for mirror in mirrors(volume) {
            check_peers(mirror, raw.server.node.as_ref(), &peers, report);
            check_keys(raw, mirror, &peers, report);
            check_rates(raw, mirror, &peers, report);
            check_surroundings(raw, volume, mirror, listen, report);
            check_intent_log(volume, mirror, &mut taken, report);
            check_queue(raw, mirror, report);
            check_failover(raw, mirror, &peers, report);
        }
    }
    check_fencing(raw, report);
    check_watchdog(raw, report);
    check_groups(raw, report);
    peers
}

/// All volumes of a group have one peer, the same one, and the same mode and failover. Its name is
/// not that of a volume. No peer acknowledges from memory: after a power loss of it, a volume
/// could lack a write that another volume's write depends on.
fn check_groups(raw: &RawConfig, report: &Report) {
    let mut first: BTreeMap<&str, (&RawMirror, &Located<String>, usize)> = BTreeMap::new();
    for mirror in raw.volumes.iter().flat_map(mirrors) {
        let Some(group) = &mirror.group else { continue };
        // Orders name either of them.
        if let Some(volume) = raw.volumes.iter().find(|volume| volume.name.value == group.value) {
            let message = format!("group `{}` has the name of a volume", group.value);
            let other = ("the volume is at", &volume.name.place);
            report.error_with(&group.place, message, "choose another name", other);
        }
        if mirror.peers.len() > 1 {
            let message = format!("a volume of group `{}` with two peers", group.value);
            report.error(&group.place, message, "name one peer, or remove `group`");
        }
        if mirror.mirror.ack == Ack::Memory {
            let message = format!("a volume of group `{}` with ack = \"memory\"", group.value);
            report.error(&group.place, message, "remove `ack`, or remove `group`");
        }
        let (other, place, members) = first.entry(&group.value).or_insert((mirror, group, 0));
        *members += 1;
        if *members == GROUP_MEMBERS_MAX + 1 {
            let message =
                format!("group `{}` has more than {GROUP_MEMBERS_MAX} volumes", group.value);
            report.error(&group.place, message, "make several groups");
        }
        let names = |mirror: &RawMirror| -> Vec<String> {
            mirror.peers.iter().map(|peer| peer.value.clone()).collect()
        };
        let differs = match () {
            () if names(mirror) != names(other) => "another peer",
            () if mirror.mirror.mode != other.mirror.mode => "another mode",
            // The arbiter decides once for all of them.
            () if mirror.mirror.failover != other.mirror.failover => "another `failover`",
            () if mirror.mirror.failover_after != other.mirror.failover_after => {
                "another `failover_after`"
            }
            () => continue,
        };
        let message = format!("a volume of group `{}` with {differs}", group.value);
        let help =
            "write the same `peer`, `mode` and `failover` settings for all volumes of a group";
        report.error_with(&group.place, message, help, ("another one is at", &place.place));
    }
}

fn mirrors(volume: &RawVolume) -> impl Iterator<Item = &RawMirror> {
    volume.layers.iter().filter_map(|layer| match layer {
        RawLayer::Mirror(mirror) => Some(mirror.as_ref()),
        _ => None,
    })
}

fn devices(raw: &RawConfig) -> BTreeMap<String, SourceLocation> {
    let backings = raw.volumes.iter().filter_map(|volume| volume.backing.as_ref());
    let devices = backings.flat_map(|backing| &backing.devices);
    devices.map(|device| (device.value.identity(), device.place.clone())).collect()
}

fn check_peers(
    mirror: &RawMirror,
    node: Option<&Located<String>>,
    peers: &BTreeMap<String, usize>,
    report: &Report,
) {
    let mut seen = BTreeSet::new();
    for name in &mirror.peers {
        let table = format!("[peer.{}] with address = \"HOST\"", name.value);
        find("peer", name, peers, &table, report);
        if !seen.insert(&name.value) {
            let message = format!("peer `{}` is given twice", name.value);
            report.error(&name.place, message, "name each node once");
        }
        if let Some(node) = node.filter(|node| node.value == name.value) {
            let help = "write the name of the other node; this one's is `node` of [server]";
            let related = ("this node is named at", &node.place);
            report.error_with(&name.place, "the peer is this node itself", help, related);
        }
    }
}

/// A replica admits all its peers by keys, or none: a peer that connects without any is refused if
/// another one has to prove a key. With `tls = "allowed"` alone, a peer may connect without any.
fn check_keys(
    raw: &RawConfig,
    mirror: &RawMirror,
    peers: &BTreeMap<String, usize>,
    report: &Report,
) {
    let found = || {
        mirror.peers.iter().filter_map(|name| {
            let (_, peer) = &raw.peers[*peers.get(&name.value)?];
            Some((name, peer.as_ref()?))
        })
    };
    let has_none = |peer: &Peer| peer.key_file.is_none() && peer.tls_key_file.is_none();
    let Some((open, _)) = found().find(|(_, peer)| has_none(peer)) else {
        let is_plain = |peer: &Peer| peer.key_file.is_none() && peer.tls == PeerDemand::Allowed;
        let keyed = found().find(|(_, peer)| peer.key_file.is_some());
        if let (Some((plain, _)), Some((keyed, _))) =
            (found().find(|(_, peer)| is_plain(peer)), keyed)
        {
            let message = format!(
                "peer `{}` has a `key_file`, so peer `{}` cannot reach the replica without TLS, which \
                 its tls = \"allowed\" admits",
                keyed.value, plain.value
            );
            let help = format!(
                "write key_file = \"/PATH\", or tls = \"required\", in [peer.{}]",
                plain.value
            );
            report.error(&plain.place, message, help);
        }
        return;
    };
    let keyed = found().find_map(|(name, peer)| match () {
        // Even if its authentication is optional, others have no key to authenticate with.
        () if peer.key_file.is_some() => Some((name, "key_file")),
        () if peer.tls_key_file.is_some() && peer.tls == PeerDemand::Required => {
            Some((name, "tls_key_file"))
        }
        () => None,
    });
    if let Some((keyed, key)) = keyed {
        let message = format!(
            "peer `{}` has a `{key}` and peer `{}` has none, so it cannot reach the replica",
            keyed.value, open.value
        );
        let help = format!("write {key} = \"/PATH\" in [peer.{}]", open.value);
        report.error(&open.place, message, help);
    }
}

/// A resync is never faster than the link to its peer may be.
fn check_rates(
    raw: &RawConfig,
    mirror: &RawMirror,
    peers: &BTreeMap<String, usize>,
    report: &Report,
) {
    for name in &mirror.peers {
        let Some((_, Some(peer))) = peers.get(&name.value).map(|index| &raw.peers[*index]) else {
            continue;
        };
        let Some(cap) = peer.max_bytes_per_s else { continue };
        for (key, rate) in mirror.rates.iter().filter(|(_, rate)| rate.value > cap) {
            let (rate_text, cap_text) = (format_rate(rate.value), format_rate(cap));
            let message = format!(
                "`{key}` ({rate_text}) is above `bandwidth_max` of peer `{}` ({cap_text})",
                name.value
            );
            let help = "write no more than the link to the peer may carry";
            report.error(&rate.place, message, help);
        }
    }
}

fn check_surroundings(
    raw: &RawConfig,
    volume: &RawVolume,
    mirror: &RawMirror,
    listen: &[Located<ConfiguredListener>],
    report: &Report,
) {
    if raw.server.node.is_none() {
        let help = "write node = \"NAME\" in [server]: the name of this node for its peers";
        report.error(&mirror.place, "a mirror on a node without a name", help);
    }
    if !listen.iter().any(|one| matches!(one.value.spec, ListenSpec::NvmeTcp(_))) {
        let help = "add an address such as \"nvme-tcp://0.0.0.0:4420\" to `listen`";
        let message = "peers reach a mirror over NVMe/TCP, which is not served";
        report.error(&mirror.place, message, help);
    }
    if volume.read_only {
        let help = "remove `read_only`, or the mirror";
        report.error(&mirror.place, "a volume that takes no writes cannot be mirrored", help);
    }
    let owner = raw.subsystems.iter().find(|subsystem| {
        let mut names = subsystem.namespaces.iter();
        subsystem.namespaces.len() > 1 && names.any(|name| name.value == volume.name.value)
    });
    if let Some(owner) = owner {
        // The access state is the subsystem's: Flagstone has one ANA group in each.
        let help = "give the volume a subsystem of its own: each mirror fails over by itself";
        let related = ("the subsystem with several is at", &owner.name.place);
        let message = "a mirrored volume in a subsystem with others";
        report.error_with(&mirror.place, message, help, related);
    }
}

fn check_intent_log(
    volume: &RawVolume,
    mirror: &RawMirror,
    taken: &mut BTreeMap<String, SourceLocation>,
    report: &Report,
) {
    let Some(intent_log) = &mirror.intent_log else { return };
    match &intent_log.value {
        DeviceSpec::Null { .. } => {
            let help = "write a path: the log has to be durable";
            report.error(&intent_log.place, "a null device cannot store the intent log", help);
        }
        DeviceSpec::Memory { .. } => {}
        device => {
            let identity = device.identity();
            if let Some(first) = taken.insert(identity.clone(), intent_log.place.clone()) {
                let help = format!(
                    "give volume `{}` a log of its own: two would overwrite each other's",
                    volume.name.value
                );
                let message = format!("{identity} is used twice");
                report.error_with(&intent_log.place, message, help, ("first used at", &first));
            }
        }
    }
}

/// The queue's writes are pooled buffers, of which hosts need some too.
fn check_queue(raw: &RawConfig, mirror: &RawMirror, report: &Report) {
    let (queue, memory) = (mirror.mirror.queue_bytes, &raw.server.buffer_memory);
    if mirror.mirror.mode == Mode::Async && queue > memory.value / 2 {
        let message = format!(
            "the queue ({}) is more than half of `buffer_memory` ({})",
            format_size(queue),
            format_size(memory.value)
        );
        let help =
            format!("write buffer_memory = \"{}\" in [server], or less", format_size(2 * queue));
        report.error(&mirror.place, message, help);
    }
}

/// Only automatic failover fences a peer: an operator who orders a failover knows what the other
/// machine does.
fn check_fencing(raw: &RawConfig, report: &Report) {
    for (name, peer) in &raw.peers {
        let fenced = peer.as_ref().is_some_and(|peer| !peer.fence_command.is_empty());
        let is_used = raw.volumes.iter().flat_map(mirrors).any(|mirror| {
            mirror.mirror.failover == FailoverMode::Automatic
                && mirror.peers.iter().any(|peer| peer.value == name.value)
        });
        if fenced && !is_used {
            let message = format!("`fence_command` of peer `{}` is never run", name.value);
            let help =
                "write failover = \"automatic\" in a volume that is mirrored to it, or remove it";
            report.error(&name.place, message, help);
        }
    }
}

/// A watchdog is for a source that hangs while its peer takes over.
fn check_watchdog(raw: &RawConfig, report: &Report) {
    let Some(watchdog) = &raw.server.watchdog else { return };
    let automatic = raw.volumes.iter().flat_map(mirrors);
    let automatic = automatic.filter(|own| own.mirror.failover == FailoverMode::Automatic);
    match automatic.map(|own| own.mirror.failover_after).min() {
        None => {
            let message = "`watchdog` has no effect without automatic failover";
            let help = "write failover = \"automatic\" in a mirrored volume, or remove it";
            report.error(&watchdog.place, message, help);
        }
        Some(after) if after < WATCHDOG_AFTER_MIN => {
            let message = format!("`watchdog` with a `failover_after` of {after:?}");
            let help = "write at least 2s for all volumes: a watchdog counts whole seconds";
            report.error(&watchdog.place, message, help);
        }
        Some(_) => {}
    }
}

/// Automatic failover is for two nodes, and needs an arbiter.
fn check_failover(
    raw: &RawConfig,
    mirror: &RawMirror,
    peers: &BTreeMap<String, usize>,
    report: &Report,
) {
    let place = &mirror.failover;
    let own = &mirror.mirror;
    if own.failover == FailoverMode::Manual {
        for (key, place) in &mirror.failover_times {
            let help = "remove it, or write failover = \"automatic\"";
            report.error(place, format!("`{key}` has no effect with manual failover"), help);
        }
        return;
    }
    let refuse = |message: &'static str, help: &'static str| report.error(place, message, help);
    if raw.arbiter.is_none() {
        let help = "add [arbiter] with etcd = [\"https://HOST\"] or object_store = \"s3://BUCKET\"";
        refuse("automatic failover without an arbiter", help);
    }
    check_max_lag(mirror, report);
    if mirror.peers.len() > 1 {
        let help = "name one peer: of two targets, each would conclude that it has to take over";
        refuse("automatic failover with several peers", help);
    }
    if own.on_peer_loss == OnPeerLoss::Block {
        let help = "remove `on_peer_loss`: the source runs degraded without its peer";
        refuse("automatic failover with `on_peer_loss` = \"block\"", help);
    }
    for name in &mirror.peers {
        let Some((_, Some(peer))) = peers.get(&name.value).map(|index| &raw.peers[*index]) else {
            continue;
        };
        if own.failover_after < peer.timeout {
            let message = format!(
                "`failover_after` ({:?}) is below the `timeout` of peer `{}` ({:?})",
                own.failover_after, name.value, peer.timeout
            );
            let help = "write at least the timeout, or a shorter timeout in the [peer.NAME]";
            report.error(mirror.place_of_time(TIMES[0]), message, help);
        }
    }
}

/// An asynchronous failover loses the writes that the target lacks: how many is for the operator to
/// say. The source goes on for `failover_after` at least, whatever the target has.
fn check_max_lag(mirror: &RawMirror, report: &Report) {
    let own = &mirror.mirror;
    match (own.mode, own.failover_max_lag) {
        (Mode::Sync, Some(_)) => {
            let message = "`failover_max_lag` has no effect in mode `sync`, which loses nothing";
            let help = "remove it, or write mode = \"async\"";
            report.error(mirror.place_of_time(TIMES[1]), message, help);
        }
        (Mode::Async, None) => {
            let message = "automatic failover of an asynchronous mirror loses the source's last \
                           writes: without `failover_max_lag`, any number";
            let help = "write failover_max_lag = \"30s\" to lose at most the last 30 seconds, or \
                        mode = \"sync\" to lose nothing";
            report.error(&mirror.failover, message, help);
        }
        (Mode::Async, Some(max_lag)) if max_lag < own.failover_after => {
            let message = format!(
                "`failover_max_lag` ({max_lag:?}) is below `failover_after` ({:?}): a target that has \
                 lost its source could never take over",
                own.failover_after
            );
            let help = "write more than `failover_after`, by the lag of the mirror at least";
            report.error(mirror.place_of_time(TIMES[1]), message, help);
        }
        (Mode::Async, Some(_)) if own.group.is_some() => {
            let message = "automatic failover of an asynchronous consistency group";
            let help = "write mode = \"sync\" for all of its volumes, or remove `failover`";
            report.error(&mirror.failover, message, help);
        }
        (Mode::Async | Mode::Sync, _) => {}
    }
}

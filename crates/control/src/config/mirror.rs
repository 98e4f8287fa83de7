//! `mirror = { … }` and `[peer.NAME]`: what is read, and what is judged of several together.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_mirror::queue::WhenFull;
use flagstone_mirror::{Ack, Intent, Mode, WhenPeerLost, WhenSplit};
use flagstone_replication::Codec;

use super::check::{RawConfig, RawLayer, RawVolume};
use super::diagnostic::{Located, Place, Report};
use super::like::Catalogues;
use super::model::{Layer, Mirror, Peer};
use super::performance;
use super::reader::{Reader, suggestion};
use crate::device_spec::{AuthorityError, DeviceSpec, HostPort, NVME_TCP_PORT};
use crate::limits::{MAX_MIRROR_PEERS, MAX_SUGGESTED_NAMES};
use crate::listen_spec::ListenSpec;
use crate::names::{NameError, check_volume_name};
use crate::units::{format_rate, format_size};
use crate::uri::parse_authority;

/// Keys of rates of a resync.
const RATES: [&str; 2] = ["resync_max", "resync_min"];

/// A mirror as read: its peers are names yet.
pub(crate) struct RawMirror {
    place: Place,
    peers: Vec<Located<String>>,
    bitmap: Option<Located<DeviceSpec>>,
    /// Rates of the resync that are written, by key.
    rates: Vec<(&'static str, Located<u64>)>,
    mirror: Mirror,
}

impl RawMirror {
    /// The layer, once the peers' names are known to be good.
    pub(crate) fn finish(self, peers: &BTreeMap<String, usize>) -> Option<Layer> {
        let peers = self.peers.iter().map(|name| peers.get(&name.value).copied());
        let peers = peers.collect::<Option<_>>()?;
        Some(Layer::Mirror(Box::new(Mirror { peers, ..self.mirror })))
    }
}

/// Checks the name of a node: plain, as it becomes part of an NQN.
pub(crate) fn node_name(text: &str) -> Result<String, NameError> {
    check_volume_name(text).map(|()| text.to_owned()).map_err(|_| NameError::Node)
}

fn peer_address(text: &str) -> Result<HostPort, AuthorityError> {
    parse_authority(text, NVME_TCP_PORT)
}

fn codec(word: &str) -> Option<Codec> {
    Codec::ALL.into_iter().find(|codec| codec.name() == word)
}

/// Reads a `[peer.NAME]`. One with a mistake keeps its name, so that who names it is not told that it
/// is not there.
pub(crate) fn read_peer(
    name: Located<String>,
    reader: &Reader<'_>,
) -> (Located<String>, Option<Peer>) {
    if !reader.has("address") {
        let help = "write address = \"HOST\" or \"HOST:4420\": where it serves NVMe/TCP";
        let message = format!("[peer.{}] has no address", name.value);
        reader.report().error(reader.place(), message, help);
    }
    let (connections, timeout) =
        (reader.count_or_default("connections") as u16, reader.time_or_default("timeout"));
    let compression = codec(&reader.choice("compression"));
    let max_bytes_per_s = reader.rate("bandwidth_max").map(|rate| rate.value);
    let address = reader.parsed("address", peer_address);
    let named = name.value.clone();
    let peer = address.map(|address| Peer {
        name: named,
        address: address.value,
        connections,
        timeout,
        compression,
        max_bytes_per_s,
    });
    (name, peer)
}

/// Reads a volume's `mirror`.
pub(crate) fn read_mirror(
    reader: &Reader<'_>,
    title: &str,
    catalogues: &Catalogues,
) -> Option<RawLayer> {
    let peers = read_peers(reader, title)?;
    let bitmap = reader.parsed("bitmap", str::parse::<DeviceSpec>);
    let mirror = Mirror {
        peers: Vec::new(),
        mode: if reader.choice("mode") == "async" { Mode::Async } else { Mode::Sync },
        ack: if reader.choice("ack") == "memory" { Ack::Memory } else { Ack::Disk },
        when_peer_lost: match reader.choice("when_peer_lost").as_str() {
            "strict" => WhenPeerLost::Strict,
            _ => WhenPeerLost::Continue,
        },
        split_brain: match reader.choice("split_brain").as_str() {
            "keep-serving" => WhenSplit::KeepServing,
            _ => WhenSplit::Ask,
        },
        bitmap: bitmap.as_ref().map(|bitmap| bitmap.value.clone()),
        bitmap_layers: read_bitmap_layers(reader, title, catalogues),
        intent: read_intent(reader),
        emulate_rtt: reader.time("emulate_rtt").map(|rtt| rtt.value).unwrap_or_default(),
        queue_bytes: reader.size_or_default("queue").value,
        when_queue_full: match reader.choice("when_queue_full").as_str() {
            "track" => WhenFull::Track,
            _ => WhenFull::SlowDown,
        },
        resync_max_bytes_per_s: reader.rate("resync_max").map(|rate| rate.value),
        resync_min_bytes_per_s: reader.rate_or_default("resync_min"),
        resync_adaptive: reader.flag("resync_adaptive"),
        resync_compare: reader.flag("resync_compare"),
        // The range of the schema keeps it below 2^32.
        granularity_bytes: reader.size_or_default("granularity").value as u32,
        crash_resync_bytes: reader.size_or_default("crash_resync").value,
    };
    refuse_idle_keys(reader, &mirror);
    Some(RawLayer::Mirror(Box::new(RawMirror {
        place: reader.place().clone(),
        peers,
        bitmap,
        rates: RATES.into_iter().filter_map(|key| Some((key, reader.rate(key)?))).collect(),
        mirror,
    })))
}

fn read_peers(reader: &Reader<'_>, title: &str) -> Option<Vec<Located<String>>> {
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
        report.error(&list.place, "a mirror with nobody", help);
        return None;
    }
    if !reader.has("peer") && !reader.has("peers") {
        let help = "write peer = \"NAME\", the name of a table [peer.NAME]";
        report.error(reader.place(), format!("[{title}] has no peer"), help);
    }
    None
}

fn read_bitmap_layers(reader: &Reader<'_>, title: &str, catalogues: &Catalogues) -> Vec<Layer> {
    let key = "bitmap_emulate";
    let Some(emulate) = reader.table(key, &format!("{title}.{key}")) else { return Vec::new() };
    if !reader.has("bitmap") {
        let help = "write bitmap = \"PATH\" too: the volume's own device has layers of its own";
        let message = "`bitmap_emulate` without `bitmap`";
        reader.report().error(&reader.key_place(key), message, help);
    }
    let (limit, latency) =
        performance::read_emulation(&emulate, &format!("{title}.{key}"), catalogues);
    let limit = limit.map(|limit| Layer::Limit(Box::new(limit)));
    limit.into_iter().chain(latency.map(Layer::Emulate)).collect()
}

/// On a disk that is not emulated it is a mistake: it is slower, and nothing is safer.
fn read_intent(reader: &Reader<'_>) -> Intent {
    let key = "intent";
    if reader.choice(key) != "every-write" {
        return Intent::HotRegions;
    }
    if !reader.has("bitmap_emulate") {
        let help = "remove it: it is for `flagstone lab mirror` alone, beside `bitmap_emulate`";
        let message = "`every-write` with a log on a real disk";
        reader.report().error(&reader.key_place(key), message, help);
    }
    Intent::EveryWrite
}

/// Keys of the other mode have no effect, and who wrote them expects one.
fn refuse_idle_keys(reader: &Reader<'_>, mirror: &Mirror) {
    let (keys, needed) = match mirror.mode {
        Mode::Sync => (["queue", "when_queue_full"], "async"),
        Mode::Async => (["ack", "when_peer_lost"], "sync"),
    };
    for key in keys.into_iter().filter(|key| reader.has(key)) {
        let message = format!("`{key}` has no effect in this mode");
        let help = format!("remove it, or write mode = \"{needed}\"");
        reader.report().error(&reader.key_place(key), message, help);
    }
}

/// What mirrors ask of the rest of the file. Gives the places of the peers, by name.
pub(crate) fn check_mirrors(
    raw: &RawConfig,
    listen: &[Located<ListenSpec>],
    report: &Report,
) -> BTreeMap<String, usize> {
    let named = raw.peers.iter().enumerate();
    let peers: BTreeMap<String, usize> =
        named.map(|(index, (name, _))| (name.value.clone(), index)).collect();
    let mut taken = devices(raw);
    for volume in &raw.volumes {
        for mirror in mirrors(volume) {
            check_peers(mirror, raw.server.node.as_ref(), &peers, report);
            check_rates(raw, mirror, &peers, report);
            check_surroundings(raw, volume, mirror, listen, report);
            check_bitmap(volume, mirror, &mut taken, report);
            check_queue(raw, mirror, report);
        }
    }
    peers
}

fn mirrors(volume: &RawVolume) -> impl Iterator<Item = &RawMirror> {
    volume.layers.iter().filter_map(|layer| match layer {
        RawLayer::Mirror(mirror) => Some(mirror.as_ref()),
        _ => None,
    })
}

/// Devices of volumes, and where they are named.
fn devices(raw: &RawConfig) -> BTreeMap<String, Place> {
    let backings = raw.volumes.iter().filter_map(|volume| volume.backing.as_ref());
    let devices = backings.flat_map(|backing| &backing.devices);
    devices.map(|device| (device.value.to_string(), device.place.clone())).collect()
}

fn check_peers(
    mirror: &RawMirror,
    node: Option<&Located<String>>,
    peers: &BTreeMap<String, usize>,
    report: &Report,
) {
    let mut seen = BTreeSet::new();
    for name in &mirror.peers {
        if !peers.contains_key(&name.value) {
            let known: Vec<_> =
                peers.keys().map(String::as_str).take(MAX_SUGGESTED_NAMES).collect();
            let help = match known.len() {
                0 => format!("write a table [peer.{}] with address = \"HOST\"", name.value),
                _ => suggestion(&name.value, &known),
            };
            report.error(&name.place, format!("there is no peer `{}`", name.value), help);
        }
        if !seen.insert(&name.value) {
            let message = format!("peer `{}` is given twice", name.value);
            report.error(&name.place, message, "name each node once");
        }
        if let Some(node) = node.filter(|node| node.value == name.value) {
            let help = "write the name of the other node; this one's is `node` of [server]";
            let related = ("this node is named at", &node.place);
            report.error_with(&name.place, "a mirror with this very node", help, related);
        }
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
    listen: &[Located<ListenSpec>],
    report: &Report,
) {
    if raw.server.node.is_none() {
        let help = "write node = \"NAME\" in [server]: the name by which its peers know this one";
        report.error(&mirror.place, "a mirror on a node without a name", help);
    }
    if !listen.iter().any(|one| matches!(one.value, ListenSpec::NvmeTcp(_))) {
        let help = "add an address such as \"nvme-tcp://0.0.0.0:4420\" to `listen`";
        report.error(
            &mirror.place,
            "peers reach a mirror over NVMe/TCP, which is not served",
            help,
        );
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
        let help = "give the volume a subsystem of its own: each mirror goes over by itself";
        let related = ("the subsystem with several is at", &owner.name.place);
        let message = "a mirrored volume in a subsystem with others";
        report.error_with(&mirror.place, message, help, related);
    }
}

fn check_bitmap(
    volume: &RawVolume,
    mirror: &RawMirror,
    taken: &mut BTreeMap<String, Place>,
    report: &Report,
) {
    let Some(bitmap) = &mirror.bitmap else { return };
    match &bitmap.value {
        DeviceSpec::Null { .. } => {
            let help = "write a path: what it is told it must remember";
            report.error(&bitmap.place, "a null device keeps no log", help);
        }
        DeviceSpec::Memory { .. } => {}
        device => {
            if let Some(first) = taken.insert(device.to_string(), bitmap.place.clone()) {
                let help = format!(
                    "give volume `{}` a log of its own: two would overwrite each other's",
                    volume.name.value
                );
                let message = format!("{device} is used twice");
                report.error_with(&bitmap.place, message, help, ("first used at", &first));
            }
        }
    }
}

/// The queue's writes are pooled buffers, of which hosts need some too.
fn check_queue(raw: &RawConfig, mirror: &RawMirror, report: &Report) {
    let (queue, memory) = (mirror.mirror.queue_bytes, &raw.server.memory);
    if mirror.mirror.mode == Mode::Async && queue > memory.value / 2 {
        let message = format!(
            "the queue ({}) is more than half of `memory` ({})",
            format_size(queue),
            format_size(memory.value)
        );
        let help = format!("write memory = \"{}\" in [server], or less", format_size(2 * queue));
        report.error(&mirror.place, message, help);
    }
}

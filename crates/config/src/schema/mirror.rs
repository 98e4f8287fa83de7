//! Mirror of a volume, and its peer nodes.

use std::time::Duration;

use flagstone_mirror::options::{
    Ack, AfterSplitBrain, FailoverMode, IntentLogMode, Mode, OnCongestion, OnPeerLoss,
};

use super::form::{GIB, KIB, MIB, MINUTE_MS, keys, time};
use super::limit::THROUGHPUT;
use super::{DISK_MODEL, Section, SizeRule, ValueKind};
use crate::limits::LIMIT_BYTES_PER_SECOND;
use crate::model::PeerDemand;

const LOG_MODE: ValueKind =
    ValueKind::Choice(&[IntentLogMode::ActiveRegions.name(), IntentLogMode::EveryWrite.name()]);
const PEER_DEMAND: ValueKind =
    ValueKind::Choice(&[PeerDemand::Required.name(), PeerDemand::Allowed.name()]);
const PEER_LOSS: ValueKind =
    ValueKind::Choice(&[OnPeerLoss::Degrade.name(), OnPeerLoss::Block.name()]);
const SPLIT_BRAIN: ValueKind =
    ValueKind::Choice(&[AfterSplitBrain::Manual.name(), AfterSplitBrain::KeepServing.name()]);
const FAILOVER: ValueKind =
    ValueKind::Choice(&[FailoverMode::Manual.name(), FailoverMode::Automatic.name()]);
const CONGESTION: ValueKind =
    ValueKind::Choice(&[OnCongestion::Throttle.name(), OnCongestion::Detach.name()]);
const MODE: ValueKind = ValueKind::Choice(&[Mode::Sync.name(), Mode::Async.name()]);
const ACK: ValueKind = ValueKind::Choice(&[Ack::Disk.name(), Ack::Memory.name()]);
const LINK_RATE: ValueKind = ValueKind::Rate(MIB..=*LIMIT_BYTES_PER_SECOND.end());

pub static MIRROR: Section = Section {
    path: "volume.NAME.mirror",
    keys: keys! {
        "peer", ValueKind::Text("peer name"), "" =>
            "The other node: a [`[peer.NAME]`](#peername). This or `peers` is required.";
        "peers", ValueKind::List("peer name"), "" =>
            "One or two other nodes. Each node's file lists all others.";
        "mode", MODE, Mode::Sync.name() =>
            "A write completes when both nodes have it (`sync`) or this node (`async`).";
        "group", ValueKind::Text("name"), "" =>
            "[Consistency group](mirror-groups.md): its volumes keep one order of writes and change their role together.";
        "ack", ACK, Ack::Disk.name() =>
            "Mode `sync`: the peer acknowledges a write when it is durable (`disk`) or [received](guides/mirror.md#guarantees-and-cost) (`memory`).";
        "intent_log", ValueKind::Text("device"), "" =>
            "Device of the write-intent log; a file is created. Default: the end of the volume's device.";
        "intent_log_disk_model", ValueKind::Table(&DISK_MODEL), "" =>
            "`disk_model` of the `intent_log` device, for labs.";
        "intent_log_mode", LOG_MODE, IntentLogMode::ActiveRegions.name() =>
            "`every-write` is for `flagstone lab mirror`, and needs `intent_log_disk_model`.";
        "added_rtt", ValueKind::Time(Duration::from_micros(1)..=Duration::from_secs(1)), "" =>
            "Added to the round trip of the link, for labs.";
        "on_peer_loss", PEER_LOSS, OnPeerLoss::Degrade.name() =>
            "Mode `sync`, when the peer cannot be reached: continue without it (`degrade`), or `block` writes until it returns or an operator pauses or breaks the mirror.";
        "after_split_brain", SPLIT_BRAIN, AfterSplitBrain::Manual.name() =>
            "After a split brain: `manual`: an operator chooses. `keep-serving`: this node discards its own writes if only the peer serves hosts. Set it on both nodes.";
        "failover", FAILOVER, FailoverMode::Manual.name() =>
            "Who decides that the target takes over: an operator, or with one peer, the [`[arbiter]`](#arbiter) (`automatic`). Set it on both nodes, and for all volumes of a `group`, which must be in mode `sync`.";
        "failover_after", time(1000, MINUTE_MS), "5s" =>
            "`automatic`: how long after its last contact the target asks. At least the `timeout` of the peer, the same on both nodes.";
        "failover_max_lag", time(1000, 60 * MINUTE_MS), "" =>
            "`automatic`, required in mode `async`: a target that may lack older writes than this does not [take over](guides/automatic-failover.md#asynchronous-mirrors). At least `failover_after`.";
        "queue", ValueKind::Size(32 * MIB..=64 * GIB, SizeRule::MultipleOf(MIB)), "64MiB" =>
            "Mode `async`: writes not yet acknowledged by the peer. At most half of `buffer_memory`.";
        "on_congestion", CONGESTION, OnCongestion::Throttle.name() =>
            "Mode `async`, when the queue is full: hosts wait (`throttle`), or the peer is detached, and resynchronized later.";
        "resync_max", LINK_RATE, "" =>
            "Highest rate of a resync. Default: none.";
        "resync_min", THROUGHPUT, "16MiB/s" =>
            "Lowest rate of an adaptive resync.";
        "resync_adaptive", ValueKind::Boolean, "true" =>
            "A resync yields to hosts: at most about twice their usual latency.";
        "resync_compare", ValueKind::Boolean, "false" =>
            "A resync compares checksums and copies only blocks that differ. For links slower than the disks.";
        "granularity", ValueKind::Size(4 * KIB..=16 * MIB, SizeRule::PowerOfTwo), "64KiB" =>
            "Bytes per bit of the bitmap, the same on all nodes. Fixed by `flagstone mirror create`. A finer bitmap copies less and takes more space (2 MiB per TiB at 64KiB) and memory. Minimum: 8KiB beyond 32 TiB, 128KiB beyond 64 TiB (also the default there), doubling with the volume.";
        "activity_log_size", ValueKind::Size(GIB / 8..=256 * GIB, SizeRule::MultipleOf(MIB)), "4GiB" =>
            "All active regions: the most that a resync copies after a crash. A larger one saves log writes. Fixed when the replica is made.";
    },
    profile: false,
};

/// `[peer.NAME]`
pub static PEER: Section = Section {
    path: "peer.NAME",
    keys: keys! {
        "address", ValueKind::Text("host and port"), "" =>
            "Its NVMe/TCP address: `HOST`, `HOST:PORT` or `[IPv6]:PORT`; default port 4420. Required.";
        "key_file", ValueKind::Text("path"), "" =>
            "Key that both nodes prove to each other. Default: none: knowing the node's name is enough.";
        "authentication", PEER_DEMAND, "required" =>
            "`allowed`: also accept and make connections without the key, with a warning, while [a running pair gets keys](guides/keys.md#a-mirrored-pair).";
        "insecure", ValueKind::Boolean, "false" =>
            "Accept a peer on another machine without keys: anyone who takes its name or address can read and overwrite the mirrors.";
        "tls_key_file", ValueKind::Text("path"), "" =>
            "TLS key of both nodes (`flagstone key generate --tls`), without which the replica cannot be reached. Both listeners need `?tls=allowed` or `?tls=required`. Default: no TLS.";
        "tls", PEER_DEMAND, "required" =>
            "As `authentication`, for TLS ([guide](guides/keys.md#a-mirrored-pair-with-tls)).";
        "host_addresses", ValueKind::List("address"), "" =>
            "Where hosts reach it, for the discovery log (`nvme connect-all`). Empty: none. Default: `address`.";
        "connections", ValueKind::Count(1..=16), "1" =>
            "Connections per volume and core.";
        "timeout", time(500, MINUTE_MS), "5s" =>
            "Silence after which the peer counts as lost. Writes of mode `sync` wait that long.";
        "compression", ValueKind::Choice(&["none", "lz4", "zstd"]), "none" =>
            "Compression of data sent to it: `lz4` is cheap, `zstd` smaller. Data that shrinks by less than an eighth is sent uncompressed.";
        "bandwidth_max", LINK_RATE, "" =>
            "Highest rate of data sent to it for all volumes, after compression. Host writes have priority; a resync gets at least a ninth. Hosts of mode `sync` wait. Default: none.";
        "fence_command", ValueKind::Command, "" =>
            "`failover = \"automatic\"`: a program, by its absolute path, and its arguments: it [stops the peer's machine](guides/automatic-failover.md#fencing) before this node serves in its place. Default: none.";
        "fence_timeout", time(1000, 5 * MINUTE_MS), "30s" =>
            "How long `fence_command` may run. It is killed then, and has failed.";
    },
    profile: false,
};

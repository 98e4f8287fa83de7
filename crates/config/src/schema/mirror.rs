//! Mirror of a volume, and its peer nodes.

use std::time::Duration;

use flagstone_mirror::options::{
    Ack, AfterSplitBrain, FailoverMode, IntentLogMode, Mode, OnCongestion, OnPeerLoss,
};

use super::form::{GIB, KIB, MIB, MINUTE_MS, keys, time};
use super::limit::THROUGHPUT;
use super::{DISK_MODEL, Kind, Section, SizeRule};
use crate::limits::LIMIT_BYTES_PER_SECOND;

const LOG_MODE: Kind =
    Kind::Choice(&[IntentLogMode::ActiveRegions.name(), IntentLogMode::EveryWrite.name()]);
const PEER_LOSS: Kind = Kind::Choice(&[OnPeerLoss::Degrade.name(), OnPeerLoss::Block.name()]);
const SPLIT_BRAIN: Kind =
    Kind::Choice(&[AfterSplitBrain::Manual.name(), AfterSplitBrain::KeepServing.name()]);
const FAILOVER: Kind = Kind::Choice(&[FailoverMode::Manual.name(), FailoverMode::Automatic.name()]);
const CONGESTION: Kind =
    Kind::Choice(&[OnCongestion::Throttle.name(), OnCongestion::Detach.name()]);
const MODE: Kind = Kind::Choice(&[Mode::Sync.name(), Mode::Async.name()]);
const ACK: Kind = Kind::Choice(&[Ack::Disk.name(), Ack::Memory.name()]);
const LINK_RATE: Kind = Kind::Rate(MIB..=*LIMIT_BYTES_PER_SECOND.end());

pub static MIRROR: Section = Section {
    path: "volume.NAME.mirror",
    keys: keys! {
        "peer", Kind::Text("peer name"), "" =>
            "The other node: the name of a [`[peer.NAME]`](#peername). This or `peers` is required.";
        "peers", Kind::List("peer name"), "" =>
            "One or two other nodes; replaces `peer`. Each node's file lists all other nodes of the volume.";
        "mode", MODE, Mode::Sync.name() =>
            "When a write completes. `sync`: when both nodes have it. `async`: when this node has it.";
        "ack", ACK, Ack::Disk.name() =>
            "Mode `sync`: when the peer acknowledges a write. `disk`: when it is durable. `memory`: when it is received, so the write survives the loss of either node and is durable after a flush.";
        "intent_log", Kind::Text("device"), "" =>
            "Device of the write-intent log (activity log and bitmap): a file, which is created, or any device. Default: the end of the volume's own device.";
        "intent_log_disk_model", Kind::Table(&DISK_MODEL), "" =>
            "Disk model of the `intent_log` device, with the keys of `disk_model`. For labs and tests.";
        "intent_log_mode", LOG_MODE, IntentLogMode::ActiveRegions.name() =>
            "What the log records before data is written. `active-regions`: the active regions, when that set changes. `every-write`: one record for each write; only for `flagstone lab mirror`, which shows the cost of a log without active regions. It adds no safety and is refused without `intent_log_disk_model`.";
        "added_rtt", Kind::Time(Duration::from_micros(1)..=Duration::from_secs(1)), "" =>
            "Added to the real round trip of the link, as if it were longer. For labs and tests.";
        "on_peer_loss", PEER_LOSS, OnPeerLoss::Degrade.name() =>
            "Mode `sync`, when the peer cannot be reached. `degrade`: durably record that the peer is out of date, and continue without it. `block`: block writes until the peer returns, or until an operator pauses or breaks the mirror.";
        "after_split_brain", SPLIT_BRAIN, AfterSplitBrain::Manual.name() =>
            "After a split brain (both nodes took writes without the other). `manual`: keep both until an operator chooses. `keep-serving`: if the peer serves hosts and this node does not, this node discards its own writes. If both serve, or neither, an operator has to choose. Set it on both nodes: it governs its own.";
        "failover", FAILOVER, FailoverMode::Manual.name() =>
            "Who decides that the target takes over. `manual`: an operator. `automatic`: the [`[arbiter]`](#arbiter), for a mirror with one peer. Set it on both nodes.";
        "failover_after", time(1000, MINUTE_MS), "5s" =>
            "With `automatic`: how long after its last contact the target asks the arbiter. At least the `timeout` of the peer. The same on both nodes.";
        "failover_max_lag", time(100, 60 * MINUTE_MS), "" =>
            "With `automatic` in mode `async`: a target that was further behind its source at their last contact does not take over. A failover loses at most the writes of this time and of `failover_after`. Required there.";
        "queue", Kind::Size(32 * MIB..=64 * GIB, SizeRule::MultipleOf(MIB)), "64MiB" =>
            "Mode `async`: size of the queue of writes not yet acknowledged by the peer. They are pooled buffers: at most half of the server's `buffer_memory`.";
        "on_congestion", CONGESTION, OnCongestion::Throttle.name() =>
            "Mode `async`, when the queue is full. `throttle`: hosts wait for the link. `detach`: stop sending to the peer, track its out-of-sync blocks, and resynchronize later.";
        "resync_max", LINK_RATE, "" =>
            "Highest rate of a resync. Default: unlimited.";
        "resync_min", THROUGHPUT, "16MiB/s" =>
            "Lowest rate of an adaptive resync, however busy hosts are, so that it completes.";
        "resync_adaptive", Kind::Flag, "true" =>
            "A resync yields to hosts: it slows their I/O to at most about twice the usual latency.";
        "resync_compare", Kind::Flag, "false" =>
            "A resync compares checksums first and copies only blocks that differ. For links slower than the disks.";
        "granularity", Kind::Size(4 * KIB..=16 * MIB, SizeRule::PowerOfTwo), "64KiB" =>
            "Bytes that one bit of the bitmap covers, the same on all nodes. Fixed when `flagstone mirror create` makes the source's replica. A finer bitmap copies less in a resync and takes more space: 2 MiB a TiB at 64KiB, up to a few times that in memory. The minimum is 8KiB beyond 32 TiB and 128KiB beyond 64 TiB (also the default there), and it doubles with each further doubling of the volume.";
        "activity_log_size", Kind::Size(GIB / 8..=256 * GIB, SizeRule::MultipleOf(MIB)), "4GiB" =>
            "Size of the activity log: the active regions together, which is the most that a resync copies after a crash. A larger one saves log writes. Fixed when the replica is made.";
    },
    profile: false,
};

/// `[peer.NAME]`
pub static PEER: Section = Section {
    path: "peer.NAME",
    keys: keys! {
        "address", Kind::Text("host and port"), "" =>
            "Address where it serves NVMe/TCP: `HOST`, `HOST:PORT` or `[IPv6]:PORT`; port 4420 if omitted. May be an address of a replication network. Required.";
        "key_file", Kind::Text("path"), "" =>
            "Absolute path of the key that both nodes prove to each other, the same on both. Required to reach the replica. Default: none, and knowing the node's name is enough.";
        "insecure", Kind::Flag, "false" =>
            "Accept a peer without `key_file`: anyone who takes its name or address can read and overwrite the mirrors. Required then, unless it is on this machine.";
        "host_addresses", Kind::List("address"), "" =>
            "Addresses where hosts reach it, for the discovery log of this node: `nvme connect-all` to either node then finds the paths to both. Written as `address`; an empty list announces none. Default: `address`.";
        "connections", Kind::Count(1..=16), "1" =>
            "Connections to it, for each mirrored volume and each core that serves it.";
        "timeout", time(500, MINUTE_MS), "5s" =>
            "Time without an answer after which the peer counts as lost. Writes of mode `sync` wait that long for a stalled peer.";
        "compression", Kind::Choice(&["none", "lz4", "zstd"]), "none" =>
            "Compression of data sent to it, both host writes and resync: `none`, `lz4` (cheap) or `zstd` (smaller, more CPU time). Data that does not shrink by an eighth is sent uncompressed, and so is all data to a peer that does not support the algorithm.";
        "bandwidth_max", LINK_RATE, "" =>
            "Highest rate of data sent to it, for host writes and resyncs of all volumes together, counted after compression and without protocol headers. Host writes have priority; a resync gets at least a ninth. In mode `sync` hosts wait for it. Default: unlimited.";
    },
    profile: false,
};

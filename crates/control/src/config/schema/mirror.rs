//! A volume's mirror, and the nodes that it is with.

use std::time::Duration;

use super::form::{GIB, KIB, MIB, MINUTE_MS, key, time};
use super::{EMULATE, Kind, Section, SizeRule};
use crate::limits::LIMIT_BYTES_PER_SECOND;

/// `mirror = { … }`
pub static MIRROR: Section = Section {
    path: "volume.NAME.mirror",
    keys: &[
        key(
            "peer",
            Kind::Text("peer name"),
            "",
            "The other node: the name of a [`[peer.NAME]`](#peername). This or `peers` is required.",
        ),
        key(
            "peers",
            Kind::List("peer name"),
            "",
            "One or two other nodes, in place of `peer`. The same nodes belong into the files of all, each without itself.",
        ),
        key(
            "mode",
            Kind::Choice(&["sync", "async"]),
            "sync",
            "When a write is complete: `sync`, when both sides have it; `async`, when this side has it.",
        ),
        key(
            "ack",
            Kind::Choice(&["disk", "memory"]),
            "disk",
            "What it means in mode `sync` that the peer has it: `disk`, durably; `memory`, so that it survives the loss of either node, and durable after a flush.",
        ),
        key(
            "bitmap",
            Kind::Text("device"),
            "",
            "Where the write-intent log lies: a file, which is made, or any device. Default: at the end of the volume's own device.",
        ),
        key(
            "bitmap_emulate",
            Kind::Table(&EMULATE),
            "",
            "The device of `bitmap` answers as late as a disk of some type; its keys are those of `emulate`. For labs and tests.",
        ),
        key(
            "intent",
            Kind::Choice(&["hot-regions", "every-write"]),
            "hot-regions",
            "What the log writes before the data: `hot-regions`, which of them may be written, when another one is; `every-write`, a record for each write, one after the other, for `flagstone lab mirror` alone: it shows what a log without hot regions costs, makes nothing safer, and is refused without `bitmap_emulate`.",
        ),
        key(
            "emulate_rtt",
            Kind::Time { min: Duration::from_micros(1), max: Duration::from_secs(1) },
            "",
            "Each answer of the peers comes so much later, as over a longer link: what is added to the real round trip. For labs and tests.",
        ),
        key(
            "when_peer_lost",
            Kind::Choice(&["continue", "strict"]),
            "continue",
            "Mode `sync`, when the peer cannot be reached: `continue`, note durably that it is out of date, and go on; `strict`, hold writes until it is back, or until somebody pauses or breaks the mirror.",
        ),
        key(
            "split_brain",
            Kind::Choice(&["ask", "keep-serving"]),
            "ask",
            "When both were written without the other: `ask`, keep both until somebody chooses; `keep-serving`, if the peer serves hosts and this node does not, this node gives up what was written here alone. If both serve, or neither, somebody has to choose. It says what this node does: write it on both.",
        ),
        key(
            "queue",
            Kind::Size { min: 32 * MIB, max: 64 * GIB, rule: SizeRule::MultipleOf(MIB) },
            "64MiB",
            "Mode `async`: writes that wait for the peer, in bytes. They are pooled buffers: `memory` of the server has to be well above it.",
        ),
        key(
            "when_queue_full",
            Kind::Choice(&["slow-down", "track"]),
            "slow-down",
            "Mode `async`, when the queue is full: `slow-down`, hosts wait for the link; `track`, the peer is left behind, and brought up to date later.",
        ),
        key(
            "resync_max",
            Kind::Rate { min: MIB, max: *LIMIT_BYTES_PER_SECOND.end() },
            "",
            "Most that a resync copies. Default: as fast as it goes.",
        ),
        key(
            "resync_min",
            Kind::Rate { min: *LIMIT_BYTES_PER_SECOND.start(), max: *LIMIT_BYTES_PER_SECOND.end() },
            "16MiB/s",
            "What an adaptive resync copies at least, however busy hosts are, so that it ends.",
        ),
        key(
            "resync_adaptive",
            Kind::Flag,
            "true",
            "A resync yields to hosts: it leaves their calls at most about twice as slow.",
        ),
        key(
            "resync_compare",
            Kind::Flag,
            "false",
            "A resync compares checksums first and copies only what differs: for links slower than the disks.",
        ),
        key(
            "granularity",
            Kind::Size { min: 4 * KIB, max: 16 * MIB, rule: SizeRule::PowerOfTwo },
            "64KiB",
            "What a bit of the bitmap stands for: the same on all nodes. Taken when the source's replica is made, by `flagstone mirror create`. A finer one copies less of what was written without the peer, and its log is larger: 2 MiB for each TiB at 64KiB, 32 MiB at 4KiB, and in memory some of these. A volume beyond 32 TiB has 8KiB at least; beyond 64 TiB 128KiB, which is the default there, and twice that for each time that it is twice as large.",
        ),
        key(
            "crash_resync",
            Kind::Size { min: GIB / 8, max: 256 * GIB, rule: SizeRule::MultipleOf(MIB) },
            "4GiB",
            "What has to be copied after a crash, at most: the regions that the log calls hot. More of it saves writes to the log. Taken when the replica is made.",
        ),
    ],
};

/// `[peer.NAME]`
pub static PEER: Section = Section {
    path: "peer.NAME",
    keys: &[
        key(
            "address",
            Kind::Text("host and port"),
            "",
            "Where it serves NVMe/TCP: `HOST`, `HOST:PORT`, `[IPv6]:PORT`; port 4420 if none is given. It may be an address for replication alone. Required.",
        ),
        key(
            "connections",
            Kind::Count { min: 1, max: 16 },
            "1",
            "Connections to it, for each mirrored volume and each core that serves it.",
        ),
        key(
            "timeout",
            time(500, MINUTE_MS),
            "5s",
            "How long it may be silent before it counts as lost. A stalled peer holds up writes of mode `sync` as long.",
        ),
        key(
            "compression",
            Kind::Choice(&["none", "lz4", "zstd"]),
            "none",
            "How data travels to it, of hosts and of resyncs: `none`, as it is; `lz4`, cheap; `zstd`, smaller, for more CPU time. What does not shrink by an eighth goes as it is, and all of it to a peer whose version cannot inflate it.",
        ),
        key(
            "bandwidth_max",
            Kind::Rate { min: MIB, max: *LIMIT_BYTES_PER_SECOND.end() },
            "",
            "Most that this node sends to it, of hosts' writes and resyncs of all volumes together, counted as it travels: compressed, without the protocol's own bytes. Hosts go first; a resync has a ninth at least. In mode `sync` hosts wait for it. Default: no cap.",
        ),
    ],
};

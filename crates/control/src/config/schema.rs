//! Every key of the configuration file: its kind, range, default and meaning, in one table.
//!
//! The parser accepts what is in this table and nothing else, takes ranges and defaults from it,
//! and `docs/configuration.md` is checked against it by a test, so the three cannot differ.

use std::time::Duration;

use crate::limits::{LIKE_SIZE_BYTES, LIMIT_BYTES_PER_SECOND, MAX_LIMIT_IOPS};
use crate::units::{format_duration, format_rate, format_size};

/// A table of the file.
#[derive(Debug)]
pub struct Section {
    /// As in the file, `NAME` standing for a name that the user chooses.
    pub path: &'static str,
    /// Its keys.
    pub keys: &'static [Key],
}

/// A key of a table.
#[derive(Debug)]
pub struct Key {
    /// As in the file.
    pub name: &'static str,
    /// What its value is.
    pub kind: Kind,
    /// The value when it is absent, without quotes; empty when there is none, and then `about`
    /// says what happens.
    pub default: &'static str,
    /// What it does.
    pub about: &'static str,
}

/// What a value is, and its range.
#[derive(Debug)]
pub enum Kind {
    /// `true` or `false`.
    Flag,
    /// A whole number.
    Count {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
    /// A size in bytes: text with a unit, or a whole number.
    Size {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
        /// What else it has to be.
        rule: SizeRule,
    },
    /// Bytes a second: text with a unit and `/s`.
    Rate {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
    /// A duration: text with a unit.
    Time {
        /// Shortest.
        min: Duration,
        /// Longest.
        max: Duration,
    },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A text of this form.
    Text(&'static str),
    /// A list of texts of this form.
    List(&'static str),
    /// A table with keys of its own.
    Table(&'static Section),
}

/// What a size has to be, besides in range.
#[derive(Debug)]
pub enum SizeRule {
    /// A multiple of so many bytes.
    MultipleOf(u64),
    /// A power of two.
    PowerOfTwo,
    /// Either of two sizes: the least or the most.
    MinOrMax,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;
const EVERY: Kind = Kind::Count { min: 1, max: 1_000_000_000 };
const PER_MILLION: Kind = Kind::Count { min: 0, max: 1_000_000 };

const IOPS: Kind = Kind::Count { min: 1, max: MAX_LIMIT_IOPS };
const THROUGHPUT: Kind =
    Kind::Rate { min: *LIMIT_BYTES_PER_SECOND.start(), max: *LIMIT_BYTES_PER_SECOND.end() };
const BURST_IOPS: Kind = Kind::Count { min: 2, max: MAX_LIMIT_IOPS };
const BURST_THROUGHPUT: Kind =
    Kind::Rate { min: 2 * *LIMIT_BYTES_PER_SECOND.start(), max: *LIMIT_BYTES_PER_SECOND.end() };
const MIX: Kind = Kind::Choice(&["separate", "shared"]);
const IO_SIZE: Kind = Kind::Size { min: 512, max: 32 * MIB, rule: SizeRule::MultipleOf(512) };
/// Of the distribution of an emulated latency.
const LATENCY: Kind = Kind::Time { min: Duration::from_micros(1), max: Duration::from_secs(60) };

// What a disk of a cloud is told by, in a limit and in an emulation alike.
const LIKE: Key = key(
    "like",
    Kind::Text("type of disk"),
    "",
    "Take the numbers and the rules of mixing from a catalogue: those of this type of disk, such as `pd-ssd`. [limit.md](limit.md#like-a-cloud-disk) says how.",
);
const LIKE_SIZE: Key = key(
    "size",
    Kind::Size {
        min: *LIKE_SIZE_BYTES.start(),
        max: *LIKE_SIZE_BYTES.end(),
        rule: SizeRule::MultipleOf(512),
    },
    "",
    "Size of the disk that it is like, whatever the volume's own. Required with `like`, but for types that have one size.",
);
const LIKE_MACHINE: Key = key(
    "machine",
    Kind::Text("machine type"),
    "",
    "Machine that the disk is attached to, such as `n2-standard-8`. Default: the catalogue's own, if it has one.",
);
const LIKE_CATALOGUE: Key = key(
    "catalog",
    Kind::Text("catalogue"),
    "",
    "Catalogue of `like`: `gcp-current`, `gcp-2019`, or the path of a file. Default: `gcp-current`.",
);
const LIKE_DISKS: Key = key(
    "disks",
    Kind::Count { min: 1, max: flagstone_cloud::limits::MAX_DISKS as u64 },
    "",
    "Such disks, striped. Default: as many as the machine comes with, or 1.",
);
const LIKE_REGIONAL: Key =
    key("regional", Kind::Flag, "", "The disk is replicated in two zones. Default: it is not.");
const LIKE_IOPS: Key = key(
    "provisioned_iops",
    IOPS,
    "",
    "IOPS bought for each disk, of types that sell them. Default: that of the type.",
);
const LIKE_THROUGHPUT: Key = key(
    "provisioned_throughput",
    THROUGHPUT,
    "",
    "Throughput bought for each disk, of types that sell it. Default: that of the type.",
);
const LIKE_NETWORK: Key = key(
    "network_gbps",
    Kind::Count { min: 0, max: 10_000 },
    "",
    "What else the machine sends, in Gbit/s. Default: nothing.",
);
const LIKE_TIER1: Key =
    key("tier1", Kind::Flag, "", "The machine has the dearer networking. Default: it has not.");

const fn key(name: &'static str, kind: Kind, default: &'static str, about: &'static str) -> Key {
    Key { name, kind, default, about }
}

const fn time(min_ms: u64, max_ms: u64) -> Kind {
    Kind::Time { min: Duration::from_millis(min_ms), max: Duration::from_millis(max_ms) }
}

/// `[server]`
pub static SERVER: Section = Section {
    path: "server",
    keys: &[
        key(
            "listen",
            Kind::List("listen address"),
            "",
            "Addresses to serve on: `nvme-tcp://ADDRESS:PORT`, `nbd://ADDRESS:PORT`, `nbd+unix:///PATH`. Port 0 is any free one. Default: `[\"nvme-tcp://127.0.0.1:4420\", \"nbd://127.0.0.1:10809\"]`, this machine alone.",
        ),
        key(
            "cores",
            Kind::Count { min: 1, max: 1024 },
            "",
            "Executor threads. Default: one for each CPU the process may use.",
        ),
        key(
            "memory",
            Kind::Size { min: 16 * MIB, max: 1024 * GIB, rule: SizeRule::MultipleOf(MIB) },
            "256MiB",
            "Hard ceiling of the pooled I/O buffers of all connections together. At least twice the largest request of each protocol served: `mdts` of NVMe/TCP, 32MiB of NBD.",
        ),
        key(
            "node",
            Kind::Text("node name"),
            "",
            "The name by which its peers know this machine: that of the [`[peer.NAME]`](#peername) in their files. Required where a volume is mirrored.",
        ),
        key(
            "driver",
            Kind::Choice(&["auto", "io_uring", "threads"]),
            "auto",
            "How I/O reaches the kernel. `auto` takes io_uring where the kernel and the container allow it.",
        ),
        key(
            "spin",
            time(0, 1),
            "50us",
            "Longest busy wait before an executor sleeps, taken only while it pays. 0 turns it off.",
        ),
        key(
            "api",
            Kind::Text("socket path"),
            "",
            "Unix socket of the [control API](api.md), which `flagstone status` asks: a path, or `none`. Its file is of mode 0600. Default: `/run/flagstone/flagstone.sock`, or `flagstone/flagstone.sock` in `$XDG_RUNTIME_DIR` for users who may not write there; a server that cannot have the default warns and goes on without.",
        ),
        key(
            "metrics",
            Kind::Text("address"),
            "",
            "TCP address that gives [metrics](api.md#metrics) to Prometheus, and nothing else: `ADDRESS:PORT`, port 9469 if none is given. Whoever reaches it reads them. Default: none; the API's socket gives them too.",
        ),
        key("nvme", Kind::Table(&NVME), "", "What NVMe/TCP hosts are offered."),
        key("nbd", Kind::Table(&NBD), "", "What NBD clients are offered."),
    ],
};

/// `[server.nvme]`
pub static NVME: Section = Section {
    path: "server.nvme",
    keys: &[
        key(
            "nqn_prefix",
            Kind::Text("NQN"),
            "nqn.2026-01.io.flagstone",
            "Begins the NQN of every volume and subsystem that does not give one: `PREFIX:NAME`.",
        ),
        key(
            "in_capsule",
            Kind::Size { min: 0, max: 256 * KIB, rule: SizeRule::MultipleOf(4 * KIB) },
            "64KiB",
            "Largest write whose data comes with its command, without a round trip to ask for it. At most `mdts`, and when absent no more than that.",
        ),
        key("max_queues", Kind::Count { min: 1, max: 128 }, "128", "I/O queues of one controller."),
        key(
            "queue_depth",
            Kind::Count { min: 32, max: 1024 },
            "1024",
            "Entries of one I/O queue; one fewer commands are in progress.",
        ),
        key(
            "mdts",
            Kind::Size { min: 8 * KIB, max: 32 * MIB, rule: SizeRule::PowerOfTwo },
            "1MiB",
            "Largest data transfer of one command.",
        ),
        key(
            "max_connections",
            Kind::Count { min: 1, max: 65536 },
            "1024",
            "Connections (queues) of all hosts together.",
        ),
        key(
            "header_digest",
            Kind::Flag,
            "true",
            "Whether a host that asks for header digests gets them.",
        ),
        key(
            "data_digest",
            Kind::Flag,
            "true",
            "Whether a host that asks for data digests gets them.",
        ),
        key(
            "handshake_timeout",
            time(100, 10 * MINUTE_MS),
            "10s",
            "From accepting a connection to its completed Connect command.",
        ),
        key(
            "stall_timeout",
            time(100, DAY_MS),
            "30s",
            "A peer that neither finishes a PDU it began nor takes what it is sent is dropped after this.",
        ),
    ],
};

/// `[server.nbd]`
pub static NBD: Section = Section {
    path: "server.nbd",
    keys: &[
        key(
            "max_connections",
            Kind::Count { min: 1, max: 65536 },
            "256",
            "Connections of all clients together.",
        ),
        key(
            "handshake_timeout",
            time(100, 10 * MINUTE_MS),
            "10s",
            "From accepting a connection to the end of its negotiation.",
        ),
        key(
            "stall_timeout",
            time(100, DAY_MS),
            "30s",
            "A peer that neither finishes a request it began nor takes what it is sent is dropped after this.",
        ),
    ],
};

/// `[volume.NAME]`
pub static VOLUME: Section = Section {
    path: "volume.NAME",
    keys: &[
        key("delay", Kind::Table(&DELAY), "", "A layer that makes requests wait."),
        key("fault", Kind::Table(&FAULT), "", "A layer that fails requests."),
        key(
            "limit",
            Kind::Table(&LIMIT),
            "",
            "A layer that lets so much through and no more. Its keys are those of [`[limit.NAME]`](#limitname).",
        ),
        key(
            "shared_limit",
            Kind::Text("limit name"),
            "",
            "A layer that is one with that of other volumes: the name of a [`[limit.NAME]`](#limitname).",
        ),
        key(
            "emulate",
            Kind::Table(&EMULATE),
            "",
            "A layer that answers as late as a disk of some type. For labs and tests.",
        ),
        key(
            "mirror",
            Kind::Table(&MIRROR),
            "",
            "A layer that keeps what is below it identical on other nodes. [guides/mirror.md](guides/mirror.md) says how to begin.",
        ),
        key(
            "device",
            Kind::Text("device"),
            "",
            "What stores the data: a path, `memory:SIZE`, `null:SIZE`, `nvme-tcp://HOST:PORT/NQN`, `nbd://HOST:PORT/EXPORT`. Last of the layers. This or `stripe` is required.",
        ),
        key("stripe", Kind::Table(&STRIPE), "", "Several devices as one, in place of `device`."),
        key(
            "block_size",
            Kind::Size { min: 512, max: 4096, rule: SizeRule::MinOrMax },
            "",
            "Logical block size that hosts see. Default: that of the device, 4096 for a file.",
        ),
        key(
            "read_only",
            Kind::Flag,
            "false",
            "Refuse writes, and open the device for reading alone.",
        ),
        key(
            "nqn",
            Kind::Text("NQN"),
            "",
            "NQN of the volume's own subsystem. Default: `nqn_prefix:NAME`.",
        ),
        key(
            "uuid",
            Kind::Text("UUID"),
            "",
            "UUID by which hosts know the namespace again. Default: made from this machine's identity, the NQN and the name, the same at every start.",
        ),
        key(
            "serial",
            Kind::Text("serial number"),
            "",
            "Serial number of the volume's own subsystem, at most 20 characters. Default: made from this machine's identity and the NQN.",
        ),
        key(
            "allow_hosts",
            Kind::List("NQN"),
            "",
            "Hosts that may connect over NVMe/TCP, by NQN. Default: every host. An empty list: none. NBD has no host names and is not restricted by it.",
        ),
        key(
            "nbd_export",
            Kind::Text("export name"),
            "",
            "Name of the NBD export. Default: the volume's name.",
        ),
    ],
};

/// `delay = { … }`
pub static DELAY: Section = Section {
    path: "volume.NAME.delay",
    keys: &[
        key("read", time(0, MINUTE_MS), "0", "Added to each read."),
        key("write", time(0, MINUTE_MS), "0", "Added to each write."),
        key("flush", time(0, MINUTE_MS), "0", "Added to each flush."),
        key("discard", time(0, MINUTE_MS), "0", "Added to each discard and each write of zeroes."),
        key(
            "jitter",
            time(0, MINUTE_MS),
            "0",
            "Added to each of these, evenly spread between 0 and this.",
        ),
    ],
};

/// `fault = { … }`
pub static FAULT: Section = Section {
    path: "volume.NAME.fault",
    keys: &[
        key("read_error_every", EVERY, "", "Every so many reads, one fails. Default: none does."),
        key(
            "write_error_every",
            EVERY,
            "",
            "Every so many writes and writes of zeroes, one fails. Default: none does.",
        ),
        key(
            "flush_error_every",
            EVERY,
            "",
            "Every so many flushes, one fails. Default: none does.",
        ),
        key(
            "read_errors_per_million",
            PER_MILLION,
            "",
            "So many of a million reads fail, at random. In place of `read_error_every`.",
        ),
        key(
            "write_errors_per_million",
            PER_MILLION,
            "",
            "So many of a million writes and writes of zeroes fail, at random. In place of `write_error_every`.",
        ),
        key(
            "flush_errors_per_million",
            PER_MILLION,
            "",
            "So many of a million flushes fail, at random. In place of `flush_error_every`.",
        ),
        key(
            "seed",
            Kind::Count { min: 0, max: i64::MAX as u64 },
            "0",
            "Determines which requests the random ones are (`…_per_million`).",
        ),
    ],
};

/// `emulate = { … }`
pub static EMULATE: Section = Section {
    path: "volume.NAME.emulate",
    keys: &[
        key("latency", LATENCY, "", "Median of the service latency of all requests."),
        key(
            "p99",
            LATENCY,
            "",
            "99th percentile of it, 1 to 100 medians. Default: the same as `latency`, which is then constant.",
        ),
        key("read_latency", LATENCY, "", "Median of reads, in place of `latency`."),
        key("read_p99", LATENCY, "", "99th percentile of it. Default: the same as `read_latency`."),
        key(
            "write_latency",
            LATENCY,
            "",
            "Median of writes, flushes, discards and writes of zeroes, in place of `latency`.",
        ),
        key(
            "write_p99",
            LATENCY,
            "",
            "99th percentile of it. Default: the same as `write_latency`.",
        ),
        key(
            "seed",
            Kind::Count { min: 0, max: i64::MAX as u64 },
            "0",
            "Determines the latencies, in the order of the requests.",
        ),
        LIKE,
        LIKE_SIZE,
        LIKE_MACHINE,
        LIKE_CATALOGUE,
        LIKE_DISKS,
        LIKE_REGIONAL,
        LIKE_IOPS,
        LIKE_THROUGHPUT,
        LIKE_NETWORK,
        LIKE_TIER1,
    ],
};

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
            "What a bit of the bitmap stands for. Taken when the source's replica is made, by `flagstone mirror create`.",
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

/// `limit = { … }` of a volume, and `[limit.NAME]`
pub static LIMIT: Section = Section {
    path: "limit.NAME",
    keys: &[
        key("iops", IOPS, "", "I/Os a second, of reads and writes together."),
        key("read_iops", IOPS, "", "Reads a second."),
        key(
            "write_iops",
            IOPS,
            "",
            "Writes a second; flushes, discards and writes of zeroes are one each.",
        ),
        key(
            "iops_mix",
            MIX,
            "separate",
            "How `read_iops` and `write_iops` go together: `separate`, both can be had at once; or `shared`, reads / `read_iops` + writes / `write_iops` is at most 1.",
        ),
        key("throughput", THROUGHPUT, "", "Bytes a second, of reads and writes together."),
        key("read_throughput", THROUGHPUT, "", "Bytes read a second."),
        key("write_throughput", THROUGHPUT, "", "Bytes written a second."),
        key(
            "throughput_mix",
            MIX,
            "separate",
            "The same as `iops_mix`, of `read_throughput` and `write_throughput`.",
        ),
        key(
            "io_size",
            IO_SIZE,
            "",
            "A read or write counts as one I/O for each so many bytes, begun or whole. Default: as one, whatever its size.",
        ),
        key("burst", Kind::Table(&BURST), "", "More for a while, from a bucket of credit."),
        LIKE,
        LIKE_SIZE,
        LIKE_MACHINE,
        LIKE_CATALOGUE,
        LIKE_DISKS,
        LIKE_REGIONAL,
        LIKE_IOPS,
        LIKE_THROUGHPUT,
        LIKE_NETWORK,
        LIKE_TIER1,
    ],
};

/// `burst = { … }`
pub static BURST: Section = Section {
    path: "limit.NAME.burst",
    keys: &[
        key(
            "iops",
            BURST_IOPS,
            "",
            "Highest I/Os a second while there is credit. More than `iops` of the limit.",
        ),
        key("read_iops", BURST_IOPS, "", "The same for `read_iops`."),
        key("write_iops", BURST_IOPS, "", "The same for `write_iops`."),
        key("throughput", BURST_THROUGHPUT, "", "The same for `throughput`."),
        key("read_throughput", BURST_THROUGHPUT, "", "The same for `read_throughput`."),
        key("write_throughput", BURST_THROUGHPUT, "", "The same for `write_throughput`."),
        key(
            "duration",
            Kind::Time { min: Duration::from_secs(1), max: Duration::from_millis(DAY_MS) },
            "30s",
            "How long a full bucket lasts at the highest rate. It is full at the start, and fills with what is not used.",
        ),
    ],
};

/// `stripe = { … }`
pub static STRIPE: Section = Section {
    path: "volume.NAME.stripe",
    keys: &[
        key(
            "chunk",
            Kind::Size { min: 512, max: GIB, rule: SizeRule::MultipleOf(512) },
            "64KiB",
            "Bytes on one device before the next one's turn. A multiple of the block size.",
        ),
        key("devices", Kind::List("device"), "", "The devices, 2 to 64, in their order. Required."),
    ],
};

/// `[subsystem.NAME]`
pub static SUBSYSTEM: Section = Section {
    path: "subsystem.NAME",
    keys: &[
        key("nqn", Kind::Text("NQN"), "", "The subsystem's NQN. Default: `nqn_prefix:NAME`."),
        key(
            "serial",
            Kind::Text("serial number"),
            "",
            "Its serial number, at most 20 characters. Default: made from this machine's identity and the NQN.",
        ),
        key(
            "namespaces",
            Kind::List("volume name"),
            "",
            "The volumes in it, the first as namespace 1 and so on. Required. A volume named here has no subsystem of its own.",
        ),
        key(
            "allow_hosts",
            Kind::List("NQN"),
            "",
            "Hosts that may connect, by NQN. Default: every host. An empty list: none.",
        ),
    ],
};

/// Every table of the file, in the order of the documentation.
pub static SECTIONS: [&Section; 13] = [
    &SERVER, &NVME, &NBD, &VOLUME, &DELAY, &FAULT, &EMULATE, &MIRROR, &STRIPE, &LIMIT, &BURST,
    &SUBSYSTEM, &PEER,
];

impl Section {
    /// The key called `name`.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// The section's keys as a table of Markdown.
    pub fn markdown(&self) -> String {
        let mut out = String::from(
            "| key | value | range | default | meaning |\n| --- | --- | --- | --- | --- |\n",
        );
        for key in self.keys {
            let default = match key.default {
                "" => String::new(),
                text => format!("`{}`", key.kind.as_toml(text)),
            };
            let (kind, range) = (key.kind.noun(), key.kind.range());
            out += &format!("| `{}` | {kind} | {range} | {default} | {} |\n", key.name, key.about);
        }
        out
    }
}

impl Kind {
    /// What it is, in a word.
    pub fn noun(&self) -> String {
        match self {
            Kind::Flag => "flag".into(),
            Kind::Count { .. } => "number".into(),
            Kind::Size { .. } => "size".into(),
            Kind::Rate { .. } => "throughput".into(),
            Kind::Time { .. } => "duration".into(),
            Kind::Choice(_) => "word".into(),
            Kind::Text(form) => (*form).into(),
            Kind::List(form) => format!("list of {form}s"),
            Kind::Table(_) => "table".into(),
        }
    }

    /// The values it may have, for people; empty when its form says all.
    pub fn range(&self) -> String {
        match self {
            Kind::Flag => "true or false".into(),
            Kind::Count { min, max } => format!("{min} to {max}"),
            Kind::Size { min, max, rule } => {
                let (min, max) = (format_size(*min), format_size(*max));
                match rule {
                    SizeRule::MultipleOf(unit) => {
                        format!("{min} to {max}, a multiple of {}", format_size(*unit))
                    }
                    SizeRule::PowerOfTwo => format!("{min} to {max}, a power of two"),
                    SizeRule::MinOrMax => format!("{min} or {max}"),
                }
            }
            Kind::Rate { min, max } => format!("{} to {}", format_rate(*min), format_rate(*max)),
            Kind::Time { min, max } => {
                format!("{} to {}", format_duration(*min), format_duration(*max))
            }
            Kind::Choice(words) => {
                words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
            }
            Kind::Text(_) | Kind::List(_) | Kind::Table(_) => String::new(),
        }
    }

    /// What to write, for the help of a diagnostic.
    pub fn expected(&self) -> String {
        match self {
            Kind::Flag => "write true or false, without quotes".into(),
            Kind::Count { .. } => format!("write a whole number from {}", self.range()),
            Kind::Size { min, max, .. } => {
                let example = format_size((*min).max(4096).min(*max));
                format!("write a size such as \"{example}\": {}", self.range())
            }
            Kind::Rate { .. } => {
                format!("write a throughput such as \"240MB/s\": {}", self.range())
            }
            Kind::Time { max, .. } => {
                format!("write a duration such as \"{}\": {}", format_duration(*max), self.range())
            }
            Kind::Choice(words) => {
                let words: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
                format!("write one of {}", words.join(", "))
            }
            Kind::Text(form) => format!("write a text in quotes: {}", article(form)),
            Kind::List(form) => {
                format!("write a list of texts: [\"…\", \"…\"], each {}", article(form))
            }
            Kind::Table(section) => {
                let names: Vec<_> = section.keys.iter().map(|key| key.name).collect();
                format!("write a table: {{ … }} with any of {}", names.join(", "))
            }
        }
    }

    /// A value of this kind as it stands in the file.
    pub fn as_toml(&self, text: &str) -> String {
        match self {
            Kind::Flag | Kind::Count { .. } => text.to_owned(),
            _ => format!("\"{text}\""),
        }
    }
}

fn article(noun: &str) -> String {
    let vowel = noun.starts_with(['a', 'e', 'i', 'o', 'N']);
    format!("{} {noun}", if vowel { "an" } else { "a" })
}

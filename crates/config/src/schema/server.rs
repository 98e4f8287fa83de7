//! Server keys: `[server]` and the tables of its protocols.

use super::form::{DAY_MS, GIB, KIB, MIB, MINUTE_MS, key, time};
use super::{Kind, Section, SizeRule};

/// `[server]`
pub static SERVER: Section = Section {
    path: "server",
    keys: &[
        key(
            "listen",
            Kind::List("listen address"),
            "",
            "Addresses to serve on: `nvme-tcp://ADDRESS:PORT`, `nbd://ADDRESS:PORT`, `nbd+unix:///PATH`. Port 0 picks a free port. Default: `[\"nvme-tcp://127.0.0.1:4420\", \"nbd://127.0.0.1:10809\"]`, reachable from this machine only.",
        ),
        key(
            "cores",
            Kind::Count { min: 1, max: 1024 },
            "",
            "Executor threads. Default: one for each CPU the process may use.",
        ),
        key(
            "buffer_memory",
            Kind::Size { min: 16 * MIB, max: 1024 * GIB, rule: SizeRule::MultipleOf(MIB) },
            "256MiB",
            "Hard limit of the pooled I/O buffers of all connections together. At least twice the largest request of each protocol served: `mdts` for NVMe/TCP, 32MiB for NBD.",
        ),
        key(
            "node",
            Kind::Text("node name"),
            "",
            "Name of this node: the NAME of its [`[peer.NAME]`](#peername) table in the peers' files. Required if a volume is mirrored.",
        ),
        key(
            "io_engine",
            Kind::Choice(&["auto", "io_uring", "threads"]),
            "auto",
            "How I/O reaches the kernel. `auto` uses io_uring where the kernel and the container allow it, else threads.",
        ),
        key(
            "busy_poll",
            time(0, 1),
            "50us",
            "Longest busy poll before an executor sleeps. It polls only while recent waits were short enough to gain from it. 0 turns it off.",
        ),
        key(
            "api",
            Kind::Text("socket path"),
            "",
            "Unix socket of the [control API](api.md), which `flagstone status` asks: a path, or `none`. The file has mode 0600. Default: `/run/flagstone/flagstone.sock`, or `flagstone/flagstone.sock` in `$XDG_RUNTIME_DIR` for users without permission to write there. If neither can be created, the server warns and runs without the API.",
        ),
        key(
            "metrics",
            Kind::Text("address"),
            "",
            "TCP address that serves [metrics](api.md#metrics) to Prometheus and nothing else: `ADDRESS:PORT`, port 9469 if omitted. It is not authenticated. Default: none. The API socket serves metrics too.",
        ),
        key("nvme", Kind::Table(&NVME), "", "Options of NVMe/TCP."),
        key("nbd", Kind::Table(&NBD), "", "Options of NBD."),
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
            "Prefix of the NQN of every volume and subsystem without `nqn`: `PREFIX:NAME`.",
        ),
        key(
            "in_capsule",
            Kind::Size { min: 0, max: 256 * KIB, rule: SizeRule::MultipleOf(4 * KIB) },
            "64KiB",
            "Largest in-capsule data: writes up to this size carry their data with the command and save a round trip. At most `mdts`.",
        ),
        key("max_queues", Kind::Count { min: 1, max: 128 }, "128", "I/O queues of one controller."),
        key(
            "queue_depth",
            Kind::Count { min: 32, max: 1024 },
            "1024",
            "Entries of one I/O queue. At most one command fewer is in progress.",
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
            "Grant header digests to hosts that ask for them.",
        ),
        key("data_digest", Kind::Flag, "true", "Grant data digests to hosts that ask for them."),
        key(
            "handshake_timeout",
            time(100, 10 * MINUTE_MS),
            "10s",
            "Time limit from accepting a connection to its completed Connect command.",
        ),
        key(
            "stall_timeout",
            time(100, DAY_MS),
            "30s",
            "A connection is closed when the peer neither completes a started PDU nor reads its responses for this long.",
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
            "Time limit from accepting a connection to the end of its negotiation.",
        ),
        key(
            "stall_timeout",
            time(100, DAY_MS),
            "30s",
            "A connection is closed when the client neither completes a started request nor reads its replies for this long.",
        ),
    ],
};

//! What the server is and offers: `[server]` and the tables of its protocols.

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

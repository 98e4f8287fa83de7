//! Server keys: `[server]` and the tables of its protocols.

use super::form::{DAY_MS, GIB, KIB, MIB, MINUTE_MS, keys, time};
use super::{Kind, Section, SizeRule};
use crate::ApiRole;

/// `[server]`
pub static SERVER: Section = Section {
    path: "server",
    keys: keys! {
        "listen", Kind::Entries("listen address", &LISTEN), "" =>
            "Addresses to serve on: `nvme-tcp://ADDRESS:PORT`, `nbd://ADDRESS:PORT`, `nbd+unix:///PATH`; over TCP with `?tls=required` or `?tls=allowed`. Port 0 picks a free port. An entry is an address, or a [table](#serverlisten) with its options. An address that other machines reach requires [keys](guides/keys.md) for all its volumes, or `insecure`. Default: `[\"nvme-tcp://127.0.0.1:4420\", \"nbd://127.0.0.1:10809\"]`, reachable from this machine only.";
        "cores", Kind::Count(1..=1024), "" =>
            "Executor threads. Default: one for each CPU the process may use.";
        "buffer_memory", Kind::Size(16 * MIB..=1024 * GIB, SizeRule::MultipleOf(MIB)), "256MiB" =>
            "Hard limit of the pooled I/O buffers of all connections together. At least twice the largest request of each protocol served: `mdts` for NVMe/TCP, 32MiB for NBD.";
        "node", Kind::Text("node name"), "" =>
            "Name of this node: the NAME of its [`[peer.NAME]`](#peername) table in the peers' files. Required if a volume is mirrored.";
        "io_engine", Kind::Choice(&["auto", "io_uring", "threads"]), "auto" =>
            "How I/O reaches the kernel. `auto` uses io_uring where the kernel and the container allow it, else threads.";
        "busy_poll", time(0, 1), "50us" =>
            "Longest busy poll before an executor sleeps. It polls only while recent waits were short enough to gain from it. 0 turns it off.";
        "api", Kind::Text("socket path"), "" =>
            "Unix socket of the [control API](api.md), which `flagstone status` asks: a path, or `none`. The file has mode 0600. Default: `/run/flagstone/flagstone.sock`, or `flagstone/flagstone.sock` in `$XDG_RUNTIME_DIR` for users without permission to write there. If neither can be created, the server warns and runs without the API.";
        "api_tls", Kind::Table(&API_TLS), "" => "The control API over TCP, for [users](#api_username) on other machines.";
        "metrics", Kind::Text("address"), "" =>
            "TCP address that serves [metrics](metrics.md) to Prometheus and nothing else: `ADDRESS:PORT`, port 9469 if omitted. It is not authenticated. Default: none. The API socket serves metrics too.";
        "state", Kind::Text("directory"), "" =>
            "Directory that the server owns. It records there which devices belong to which [pool](guides/pool.md). Default: `$STATE_DIRECTORY`, which systemd sets for the packaged service; without either, there are no pools.";
        "nvme", Kind::Table(&NVME), "" => "Options of NVMe/TCP.";
        "nbd", Kind::Table(&NBD), "" => "Options of NBD.";
    },
    profile: false,
};

/// An entry of `listen` as a table.
pub static LISTEN: Section = Section {
    path: "server.listen",
    keys: keys! {
        "url", Kind::Text("listen address"), "" => "The address. Required.";
        "insecure", Kind::Flag, "false" =>
            "Accept hosts and clients without keys: anyone who reaches the address can read and write its volumes. The server warns in its log, in `flagstone status` and in a [metric](metrics.md).";
    },
    profile: false,
};

/// `[server.api_tls]`
pub static API_TLS: Section = Section {
    path: "server.api_tls",
    keys: keys! {
        "listen", Kind::Text("address"), "" =>
            "TCP address that serves the [API](api.md#over-tcp) with TLS 1.3: `ADDRESS:PORT`, port 9468 if omitted. Required.";
        "certificate_file", Kind::Text("path"), "" =>
            "Absolute path of the server's certificate as PEM, followed by those of intermediate authorities. Required. A reload reads it again.";
        "key_file", Kind::Text("path"), "" =>
            "Absolute path of its private key as PEM, which only its owner may read (mode 0600). Required. A reload reads it again.";
        "client_ca_file", Kind::Text("path"), "" =>
            "Absolute path of the authorities, as PEM, whose client certificates are accepted. Default: none, and users have tokens only.";
    },
    profile: false,
};

/// `[api_user.NAME]`
pub static API_USER: Section = Section {
    path: "api_user.NAME",
    keys: keys! {
        "role", Kind::Choice(&[ApiRole::ReadOnly.name(), ApiRole::Operator.name()]), ApiRole::ReadOnly.name() =>
            "`read-only`: documents and metrics. `operator`: orders as well.";
        "token_file", Kind::Text("path"), "" =>
            "Absolute path of a file with the hash of the user's token, as `flagstone key token` prints it, or two while one replaces the other. Only its owner may read it (mode 0600). This or `certificate_name` is required.";
        "certificate_name", Kind::Text("DNS name"), "" =>
            "DNS name (subject alternative name) in the user's client certificate, which an authority of `client_ca_file` has issued.";
    },
    profile: false,
};

/// `[server.nvme]`
pub static NVME: Section = Section {
    path: "server.nvme",
    keys: keys! {
        "nqn_prefix", Kind::Text("NQN"), "nqn.2026-01.io.flagstone" =>
            "Prefix of the NQN of every volume and subsystem without `nqn`: `PREFIX:NAME`.";
        "in_capsule", Kind::Size(0..=256 * KIB, SizeRule::MultipleOf(4 * KIB)), "64KiB" =>
            "Largest in-capsule data: writes up to this size carry their data with the command and save a round trip. At most `mdts`.";
        "max_queues", Kind::Count(1..=128), "128" => "I/O queues of one controller.";
        "queue_depth", Kind::Count(32..=1024), "1024" =>
            "Entries of one I/O queue. At most one command fewer is in progress.";
        "mdts", Kind::Size(8 * KIB..=32 * MIB, SizeRule::PowerOfTwo), "1MiB" =>
            "Largest data transfer of one command.";
        "max_connections", Kind::Count(1..=65536), "1024" =>
            "Connections (queues) of all hosts together.";
        "header_digest", Kind::Flag, "true" => "Grant header digests to hosts that ask for them.";
        "data_digest", Kind::Flag, "true" => "Grant data digests to hosts that ask for them.";
        "handshake_timeout", time(100, 10 * MINUTE_MS), "10s" =>
            "Time limit from accepting a connection to its completed Connect command.";
        "stall_timeout", time(100, DAY_MS), "30s" =>
            "A connection is closed when the peer neither completes a started PDU nor reads its responses for this long.";
    },
    profile: false,
};

/// `[server.nbd]`
pub static NBD: Section = Section {
    path: "server.nbd",
    keys: keys! {
        "max_connections", Kind::Count(1..=65536), "256" =>
            "Connections of all clients together.";
        "tls_certificates", Kind::Text("directory"), "" =>
            "Directory with the certificate of this server for listeners with TLS, as QEMU and nbdkit have it: `server-cert.pem`, `server-key.pem` (mode 0600) and, for `tls_verify_clients`, `ca-cert.pem`.";
        "tls_verify_clients", Kind::Flag, "false" =>
            "Clients have to show a certificate that `ca-cert.pem` has signed.";
        "tls_psk_file", Kind::Text("path"), "" =>
            "File of pre-shared keys for listeners with TLS, as `psktool` makes it: `NAME:HEX` on each line, mode 0600.";
        "handshake_timeout", time(100, 10 * MINUTE_MS), "10s" =>
            "Time limit of each step of a negotiation; of all steps, up to 3 minutes otherwise, while more than half of the connections negotiate.";
        "stall_timeout", time(100, DAY_MS), "30s" =>
            "A connection is closed when the client neither completes a started request nor reads its replies for this long.";
    },
    profile: false,
};

//! Server keys: `[server]` and the tables of its protocols.

use super::form::{DAY_MS, GIB, KIB, MIB, MINUTE_MS, keys, time};
use super::{Section, SizeRule, ValueKind};
use crate::ApiRole;

/// `[server]`
pub static SERVER: Section = Section {
    path: "server",
    keys: keys! {
        "listen", ValueKind::Entries("listen address", &LISTEN), "" =>
            "Addresses to serve on: `nvme-tcp://ADDRESS:PORT`, `nbd://ADDRESS:PORT`, `nbd+unix:///PATH`, or [tables](#serverlisten). Over TCP, `?tls=required` or `?tls=allowed` may follow. Port 0 picks a free port. Default: `[\"nvme-tcp://127.0.0.1:4420\", \"nbd://127.0.0.1:10809\"]`.";
        "cores", ValueKind::Count(1..=1024), "" =>
            "Executor threads. Default: one per available CPU.";
        "buffer_memory", ValueKind::Size(16 * MIB..=1024 * GIB, SizeRule::MultipleOf(MIB)), "256MiB" =>
            "Hard limit of all pooled I/O buffers. At least twice the largest request: `mdts` for NVMe/TCP, 32MiB for NBD.";
        "node", ValueKind::Text("node name"), "" =>
            "Name of this node in the peers' [`[peer.NAME]`](#peername). Required for mirrors.";
        "io_engine", ValueKind::Choice(&["auto", "io_uring", "threads"]), "auto" =>
            "`auto`: io_uring where the kernel and the container allow it, else threads.";
        "busy_poll", time(0, 1), "50us" =>
            "Longest busy poll before an executor sleeps. 0: none.";
        "api", ValueKind::Text("socket path"), "" =>
            "Unix socket of the [control API](api.md), mode 0600, or `none`. Default: `/run/flagstone/flagstone.sock`, or `flagstone/flagstone.sock` in `$XDG_RUNTIME_DIR` for users who cannot write there.";
        "api_tls", ValueKind::Table(&API_TLS), "" => "The API over TCP, for [users](#api_username).";
        "metrics", ValueKind::Text("address"), "" =>
            "TCP address of [metrics](metrics.md) without authentication: `ADDRESS:PORT`, default port 9469. Default: none.";
        "state", ValueKind::Text("directory"), "" =>
            "Directory where the server records the devices of [pools](guides/pool.md). Default: `$STATE_DIRECTORY`, which systemd sets for the packaged service; else no pools.";
        "watchdog", ValueKind::Text("path"), "" =>
            "With automatic failover: a [watchdog](guides/automatic-failover.md#watchdog) that resets this machine when the server hangs, such as `/dev/watchdog`. Default: none.";
        "key_command", ValueKind::Command, "" =>
            "A program, by its absolute path, and its arguments: with NAME as one more, it prints the key of volumes whose [`encryption_key_file`](guides/pool.md#encryption-at-rest) is `kms:NAME`. Default: none.";
        "nvme", ValueKind::Table(&NVME), "" => "Options of the protocol.";
        "nbd", ValueKind::Table(&NBD), "" => "Options of the protocol.";
    },
    profile: false,
};

/// An entry of `listen` as a table.
pub static LISTEN: Section = Section {
    path: "server.listen",
    keys: keys! {
        "url", ValueKind::Text("listen address"), "" => "The address. Required.";
        "insecure", ValueKind::Boolean, "false" =>
            "Accept hosts and clients without keys: anyone who reaches the address can read and write its volumes. Log, status and a [metric](metrics.md) warn.";
    },
    profile: false,
};

/// `[server.api_tls]`
pub static API_TLS: Section = Section {
    path: "server.api_tls",
    keys: keys! {
        "listen", ValueKind::Text("address"), "" =>
            "Address of the [API over TCP](api.md#over-tcp): `ADDRESS:PORT`, default port 9468. Required.";
        "certificate_file", ValueKind::Text("path"), "" =>
            "The server's certificate, followed by the certificates of intermediate authorities. Required.";
        "key_file", ValueKind::Text("path"), "" =>
            "Its private key (mode 0600). Required.";
        "client_ca_file", ValueKind::Text("path"), "" =>
            "Authorities whose client certificates are accepted. Default: none, tokens only.";
    },
    profile: false,
};

/// `[api_user.NAME]`
pub static API_USER: Section = Section {
    path: "api_user.NAME",
    keys: keys! {
        "role", ValueKind::Choice(&[ApiRole::ReadOnly.name(), ApiRole::Operator.name()]), ApiRole::ReadOnly.name() =>
            "`read-only`: documents and metrics. `operator`: orders as well.";
        "token_file", ValueKind::Text("path"), "" =>
            "File with the hash of the user's token (`flagstone key token`), or two during a change; mode 0600. This or `certificate_name` is required.";
        "certificate_name", ValueKind::Text("DNS name"), "" =>
            "DNS name in the user's client certificate, issued under `client_ca_file`.";
    },
    profile: false,
};

/// `[server.nvme]`
pub static NVME: Section = Section {
    path: "server.nvme",
    keys: keys! {
        "nqn_prefix", ValueKind::Text("NQN"), "nqn.2026-01.io.flagstone" =>
            "Default NQNs of volumes and subsystems are `PREFIX:NAME`.";
        "in_capsule", ValueKind::Size(0..=256 * KIB, SizeRule::MultipleOf(4 * KIB)), "64KiB" =>
            "Largest in-capsule data: such writes save a round trip. At most `mdts`.";
        "max_queues", ValueKind::Count(1..=128), "128" => "I/O queues of one controller.";
        "queue_depth", ValueKind::Count(32..=1024), "1024" =>
            "Entries of one I/O queue; one command fewer in progress.";
        "mdts", ValueKind::Size(8 * KIB..=32 * MIB, SizeRule::PowerOfTwo), "1MiB" =>
            "Largest transfer of one command.";
        "max_connections", ValueKind::Count(1..=65536), "1024" =>
            "Connections (queues) of all hosts.";
        "header_digest", ValueKind::Boolean, "true" => "Grant digests on request.";
        "data_digest", ValueKind::Boolean, "true" => "Grant digests on request.";
        "handshake_timeout", time(100, 10 * MINUTE_MS), "10s" =>
            "Time limit until the Connect command completes.";
        "stall_timeout", time(100, DAY_MS), "30s" =>
            "Time without a complete PDU or read response after which a connection is closed.";
    },
    profile: false,
};

/// `[server.nbd]`
pub static NBD: Section = Section {
    path: "server.nbd",
    keys: keys! {
        "max_connections", ValueKind::Count(1..=65536), "256" =>
            "Connections of all clients.";
        "tls_certificates", ValueKind::Text("directory"), "" =>
            "Directory with `server-cert.pem`, `server-key.pem` (mode 0600) and, for `tls_verify_clients`, `ca-cert.pem`.";
        "tls_verify_clients", ValueKind::Boolean, "false" =>
            "Clients show a certificate that `ca-cert.pem` has signed.";
        "tls_psk_file", ValueKind::Text("path"), "" =>
            "Pre-shared keys (mode 0600), as `psktool` makes them: `NAME:HEX` on each line; two lines of a name while one key replaces the other.";
        "handshake_timeout", time(100, 10 * MINUTE_MS), "10s" =>
            "Time limit of each step of a negotiation, with 3 minutes for all; of all steps while more than half of the connections negotiate.";
        "stall_timeout", time(100, DAY_MS), "30s" =>
            "As of NVMe/TCP.";
    },
    profile: false,
};

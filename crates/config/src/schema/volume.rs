//! Volumes, their simple layers, and subsystems.

use super::form::{GIB, MINUTE_MS, keys, time};
use super::{DISK_MODEL, Kind, LIMIT, MIRROR, Section, SizeRule};

const EVERY: Kind = Kind::Count(1..=1_000_000_000);
const PER_MILLION: Kind = Kind::Count(0..=1_000_000);

/// `[volume.NAME]`
pub static VOLUME: Section = Section {
    path: "volume.NAME",
    keys: keys! {
        "shared_limit", Kind::Text("limit name"), "" =>
            "Rate limit layer shared with other volumes: the name of a [`[limit.NAME]`](#limitname).";
        "limit", Kind::Table(&LIMIT), "" =>
            "Rate limit layer, with the keys of [`[limit.NAME]`](#limitname).";
        "mirror", Kind::Table(&MIRROR), "" =>
            "Mirror layer: keeps the layers below it identical on other nodes. See [guides/mirror.md](guides/mirror.md).";
        "disk_model", Kind::Table(&DISK_MODEL), "" =>
            "Disk model layer: adds the latency of a type of disk. For labs and tests.";
        "delay", Kind::Table(&DELAY), "" => "Delay layer.";
        "fault", Kind::Table(&FAULT), "" => "Fault injection layer.";
        "layers", Kind::List("layer"), "" =>
            "Order of the volume's layers, from the host's side down: their keys, each once. Default: the order of this table.";
        "device", Kind::Text("device"), "" =>
            "Device that stores the data: a path, `memory:SIZE`, `null:SIZE`, `nvme-tcp://HOST:PORT/NQN` or `nbd://HOST:PORT/EXPORT`. This or `stripe` is required.";
        "stripe", Kind::Table(&STRIPE), "" => "Several devices striped; replaces `device`.";
        "block_size", Kind::Size(512..=4096, SizeRule::MinOrMax), "" =>
            "Logical block size that hosts see. Default: the device's own, 4096 for a file.";
        "read_only", Kind::Flag, "false" => "Refuse writes, and open the device read-only.";
        "nqn", Kind::Text("NQN"), "" =>
            "NQN of the volume's own subsystem. Default: `nqn_prefix:NAME`.";
        "uuid", Kind::Text("UUID"), "" =>
            "UUID of the namespace. Default: derived from this machine's identity, the NQN and the name, so it is the same at every start.";
        "serial", Kind::Text("serial number"), "" =>
            "Serial number of the volume's own subsystem, at most 20 characters. Default: derived from this machine's identity and the NQN.";
        "allow_hosts", Kind::List("NQN"), "" =>
            "NQNs of the hosts that may connect over NVMe/TCP. Default: every host. An empty list admits none. Does not apply to NBD, which has no host names.";
        "nbd_export", Kind::Text("export name"), "" =>
            "Name of the NBD export. Default: the volume's name.";
        "nbd_clients", Kind::List("client name"), "" =>
            "Clients that may use the volume over NBD: names in their certificates (common name or alternative name), or names of their pre-shared keys. They prove them with TLS, so clients without TLS are refused. Default: every client.";
    },
    profile: false,
};

/// `delay = { … }`
pub static DELAY: Section = Section {
    path: "volume.NAME.delay",
    keys: keys! {
        "read", time(0, MINUTE_MS), "0" => "Added to each read.";
        "write", time(0, MINUTE_MS), "0" => "Added to each write.";
        "flush", time(0, MINUTE_MS), "0" => "Added to each flush.";
        "discard", time(0, MINUTE_MS), "0" => "Added to each discard and each write of zeroes.";
        "jitter", time(0, MINUTE_MS), "0" =>
            "Added to each request, uniformly distributed between 0 and this.";
    },
    profile: false,
};

/// `fault = { … }`
pub static FAULT: Section = Section {
    path: "volume.NAME.fault",
    keys: keys! {
        "read_error_every", EVERY, "" => "One of every N reads fails. Default: none.";
        "write_error_every", EVERY, "" =>
            "One of every N writes and writes of zeroes fails. Default: none.";
        "flush_error_every", EVERY, "" => "One of every N flushes fails. Default: none.";
        "read_errors_per_million", PER_MILLION, "" =>
            "Reads that fail of a million, at random. Replaces `read_error_every`.";
        "write_errors_per_million", PER_MILLION, "" =>
            "Writes and writes of zeroes that fail of a million, at random. Replaces `write_error_every`.";
        "flush_errors_per_million", PER_MILLION, "" =>
            "Flushes that fail of a million, at random. Replaces `flush_error_every`.";
        "seed", Kind::Count(0..=i64::MAX as u64), "0" =>
            "Seed of the random failures (`…_per_million`).";
    },
    profile: false,
};

/// `stripe = { … }`
pub static STRIPE: Section = Section {
    path: "volume.NAME.stripe",
    keys: keys! {
        "chunk", Kind::Size(512..=GIB, SizeRule::MultipleOf(512)), "64KiB" =>
            "Chunk size: consecutive bytes on one device. A multiple of the block size.";
        "devices", Kind::List("device"), "" => "The devices, 2 to 64, in their order. Required.";
    },
    profile: false,
};

/// `[host.NAME]`
pub static HOST: Section = Section {
    path: "host.NAME",
    keys: keys! {
        "nqn", Kind::Text("NQN"), "" => "The host's NQN. Required.";
        "key_file", Kind::Text("path"), "" =>
            "Absolute path of the host's key, which it has to prove. Required without `tls_key_file`.";
        "controller_key_file", Kind::Text("path"), "" =>
            "Absolute path of the key that this server proves to the host, if the host asks for it (`--dhchap-ctrl-secret` of nvme-cli). Default: none.";
        "tls_key_file", Kind::Text("path"), "" =>
            "Absolute path of the host's TLS key (`flagstone key generate --tls`), for listeners with `?tls=allowed` or `?tls=required`. Default: the host cannot use TLS.";
    },
    profile: false,
};

/// `[subsystem.NAME]`
pub static SUBSYSTEM: Section = Section {
    path: "subsystem.NAME",
    keys: keys! {
        "nqn", Kind::Text("NQN"), "" => "The subsystem's NQN. Default: `nqn_prefix:NAME`.";
        "serial", Kind::Text("serial number"), "" =>
            "Its serial number, as `serial` of a volume.";
        "namespaces", Kind::List("volume name"), "" =>
            "Its volumes; the first is namespace 1, and so on. Required. A volume listed here has no subsystem of its own.";
        "allow_hosts", Kind::List("NQN"), "" =>
            "Hosts that may connect, as `allow_hosts` of a volume.";
    },
    profile: false,
};

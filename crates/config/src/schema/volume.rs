//! Volumes, their simple layers, and subsystems.

use super::form::{GIB, MINUTE_MS, key, time};
use super::{DISK_MODEL, Kind, LIMIT, MIRROR, Section, SizeRule};

const EVERY: Kind = Kind::Count { min: 1, max: 1_000_000_000 };
const PER_MILLION: Kind = Kind::Count { min: 0, max: 1_000_000 };

/// `[volume.NAME]`
pub static VOLUME: Section = Section {
    path: "volume.NAME",
    keys: &[
        key("delay", Kind::Table(&DELAY), "", "Delay layer."),
        key("fault", Kind::Table(&FAULT), "", "Fault injection layer."),
        key(
            "limit",
            Kind::Table(&LIMIT),
            "",
            "Rate limit layer, with the keys of [`[limit.NAME]`](#limitname).",
        ),
        key(
            "shared_limit",
            Kind::Text("limit name"),
            "",
            "Rate limit layer shared with other volumes: the name of a [`[limit.NAME]`](#limitname).",
        ),
        key(
            "disk_model",
            Kind::Table(&DISK_MODEL),
            "",
            "Disk model layer: adds the latency of a type of disk. For labs and tests.",
        ),
        key(
            "mirror",
            Kind::Table(&MIRROR),
            "",
            "Mirror layer: keeps the layers below it identical on other nodes. See [guides/mirror.md](guides/mirror.md).",
        ),
        key(
            "device",
            Kind::Text("device"),
            "",
            "Device that stores the data: a path, `memory:SIZE`, `null:SIZE`, `nvme-tcp://HOST:PORT/NQN` or `nbd://HOST:PORT/EXPORT`. Comes after the layers. This or `stripe` is required.",
        ),
        key("stripe", Kind::Table(&STRIPE), "", "Several devices striped; replaces `device`."),
        key(
            "block_size",
            Kind::Size { min: 512, max: 4096, rule: SizeRule::MinOrMax },
            "",
            "Logical block size that hosts see. Default: the device's own, 4096 for a file.",
        ),
        key("read_only", Kind::Flag, "false", "Refuse writes, and open the device read-only."),
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
            "UUID of the namespace. Default: derived from this machine's identity, the NQN and the name, so it is the same at every start.",
        ),
        key(
            "serial",
            Kind::Text("serial number"),
            "",
            "Serial number of the volume's own subsystem, at most 20 characters. Default: derived from this machine's identity and the NQN.",
        ),
        key(
            "allow_hosts",
            Kind::List("NQN"),
            "",
            "NQNs of the hosts that may connect over NVMe/TCP. Default: every host. An empty list admits none. Does not apply to NBD, which has no host names.",
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
            "Added to each request, uniformly distributed between 0 and this.",
        ),
    ],
};

/// `fault = { … }`
pub static FAULT: Section = Section {
    path: "volume.NAME.fault",
    keys: &[
        key("read_error_every", EVERY, "", "One of every N reads fails. Default: none."),
        key(
            "write_error_every",
            EVERY,
            "",
            "One of every N writes and writes of zeroes fails. Default: none.",
        ),
        key("flush_error_every", EVERY, "", "One of every N flushes fails. Default: none."),
        key(
            "read_errors_per_million",
            PER_MILLION,
            "",
            "Reads that fail of a million, at random. Replaces `read_error_every`.",
        ),
        key(
            "write_errors_per_million",
            PER_MILLION,
            "",
            "Writes and writes of zeroes that fail of a million, at random. Replaces `write_error_every`.",
        ),
        key(
            "flush_errors_per_million",
            PER_MILLION,
            "",
            "Flushes that fail of a million, at random. Replaces `flush_error_every`.",
        ),
        key(
            "seed",
            Kind::Count { min: 0, max: i64::MAX as u64 },
            "0",
            "Seed of the random failures (`…_per_million`).",
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
            "Chunk size: consecutive bytes on one device. A multiple of the block size.",
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
            "Its serial number, at most 20 characters. Default: derived from this machine's identity and the NQN.",
        ),
        key(
            "namespaces",
            Kind::List("volume name"),
            "",
            "Its volumes; the first is namespace 1, and so on. Required. A volume listed here has no subsystem of its own.",
        ),
        key(
            "allow_hosts",
            Kind::List("NQN"),
            "",
            "NQNs of the hosts that may connect. Default: every host. An empty list admits none.",
        ),
    ],
};

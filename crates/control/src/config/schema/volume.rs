//! Volumes, their simple layers, and the subsystems that they are in.

use super::form::{GIB, MINUTE_MS, key, time};
use super::{EMULATE, Kind, LIMIT, MIRROR, Section, SizeRule};

const EVERY: Kind = Kind::Count { min: 1, max: 1_000_000_000 };
const PER_MILLION: Kind = Kind::Count { min: 0, max: 1_000_000 };

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

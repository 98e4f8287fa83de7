//! Bounds of the configuration: one constant for each, with its reason.

/// Longest configuration file read. A volume takes some 300 bytes, so this is thousands of them.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// Most files of a configuration directory: one for each volume would still be readable.
pub const MAX_FILES: usize = 1024;

/// Most different mistakes reported of one file: beyond it a reader gains nothing, and a hostile
/// file cannot make the report larger than itself by much.
pub const MAX_DIAGNOSTICS: usize = 100;

/// Most mistakes of one kind that are reported one by one although only their values differ. If
/// there are more, the first is reported with their number.
pub const MAX_SIMILAR: usize = 3;

/// Most other places named for a mistake that is made at many.
pub const MAX_SHOWN_PLACES: usize = 3;

/// Most names compared to suggest a correction.
pub const MAX_SUGGESTED_NAMES: usize = 64;

/// Longest part of a source line that a diagnostic shows, in characters.
pub const MAX_SHOWN_LINE_CHARS: usize = 120;

/// Longest part of a mistaken value that a diagnostic repeats, in characters.
pub const MAX_SHOWN_VALUE_CHARS: usize = 60;

/// Most volumes of one server: NBD lists them in one negotiation, discovery in one log page
/// (1,024 bytes an entry, so 4 MiB).
pub const MAX_VOLUMES: usize = 4096;

/// Most addresses that lead to one namespace.
pub const MAX_PATHS: usize = 8;

/// Most addresses of a peer for hosts: each is a discovery log entry of every volume mirrored to
/// it.
pub const MAX_HOST_ADDRESSES: usize = 8;

/// Most peer nodes.
pub const MAX_PEERS: usize = 15;

/// Most peers of one mirrored volume.
pub const MAX_MIRROR_PEERS: usize = flagstone_mirror::limits::PEERS_MAX;

/// Most shared limits of one server: one for each volume.
pub const MAX_SHARED_LIMITS: usize = MAX_VOLUMES;

/// Highest I/Os a second to write as a limit; no volume here comes near it.
pub const MAX_LIMIT_IOPS: u64 = 100_000_000;

/// Lowest and highest throughput to write as a limit, in bytes a second: 1KB/s to 1TB/s.
pub const LIMIT_BYTES_PER_SECOND: std::ops::RangeInclusive<u64> = 1_000..=1_000_000_000_000;

/// Smallest and largest disk of a profile, in bytes: 1 MiB to 1 PiB. The catalog bounds each type.
pub const PROFILE_SIZE_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 50;

/// Most different catalogs of one configuration: 16 × 1 MiB of text are read at most.
pub const MAX_CATALOGS: usize = 16;

/// Most entries of `layers`: more than there are layers, because a repetition has its own message.
pub const MAX_LISTED_LAYERS: usize = 16;

/// Most addresses listened on.
pub const MAX_LISTEN: usize = 64;

/// Most devices in a stripe.
pub const MAX_STRIPE_DEVICES: usize = 64;

/// Most namespaces of one subsystem; the active namespace list of Identify holds 1,024 a page.
pub const MAX_NAMESPACES: usize = 1024;

/// Most entries of a list of allowed hosts.
pub const MAX_ALLOWED_HOSTS: usize = 1024;

/// Longest volume name, which also has to fit as the end of an NQN (223 bytes).
pub const MAX_VOLUME_NAME_BYTES: usize = 64;

/// Shortest and longest NVMe qualified name (NVMe base specification 2.0, section 4.5: at most
/// 223 bytes; `nqn.yyyy-mm.` takes the first 12, one more names something).
pub const NQN_BYTES: std::ops::RangeInclusive<usize> = 13..=223;

/// Longest NQN prefix: prefix, a colon and the longest volume name make an NQN that fits.
pub const MAX_NQN_PREFIX_BYTES: usize = *NQN_BYTES.end() - 1 - MAX_VOLUME_NAME_BYTES;

/// Longest serial number (Identify Controller, SN: 20 ASCII bytes).
pub const MAX_SERIAL_BYTES: usize = 20;

/// Longest NBD export name (NBD protocol, "Values": a string is at most 4,096 bytes).
pub const MAX_EXPORT_NAME_BYTES: usize = 4096;

/// Longest Unix socket path: `sun_path` has 108 bytes, the last is the terminator.
pub const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Longest host name (RFC 1035, section 2.3.4, without the root's dot).
pub const MAX_HOST_NAME_BYTES: usize = 253;

/// Most I/O queues that a host opens to one remote controller, and that a controller offers.
pub const MAX_IO_QUEUES: u16 = 128;

/// Highest namespace identifier; FFFFFFFFh means all namespaces (NVMe base 2.0, section 3.2.1.2).
pub const MAX_NAMESPACE_ID: u32 = 0xFFFF_FFFE;

/// Smallest memory or null device: one block of the larger format.
pub const MIN_DEVICE_BYTES: u64 = 4096;

/// Largest memory or null device: offsets are signed 64-bit in the system calls below.
pub const MAX_DEVICE_BYTES: u64 = 1 << 62;

/// Most users of the API: a request compares its token with all of theirs.
pub const MAX_API_USERS: usize = 64;
/// Members of an etcd cluster in `[arbiter]`. Clusters have up to seven.
pub const MAX_ETCD_MEMBERS: usize = 9;
/// Program and arguments of a command.
pub const MAX_COMMAND_WORDS: usize = 32;
/// Longest beginning of the keys in `[arbiter]`, in bytes.
pub const MAX_ARBITER_PREFIX_BYTES: usize = 200;
/// Longest name of a bucket in `[arbiter]`, in bytes: that of Google's with dots.
pub const MAX_BUCKET_BYTES: usize = 222;

//! Limits of the target's memory and waiting times, with their arithmetic.

use std::time::Duration;

use flagstone_runtime::net::KeepAlive;

/// Unsent response headers of one connection, in bytes: 2,730 completions. They may exceed the
/// memory ceiling. At the limit the connection stops receiving; commands in flight may add as many
/// as the queue has entries.
pub(crate) const TX_HEADERS_BYTES: usize = 64 << 10;

/// Unsent responses of an admin queue including their data, in bytes: 16 of 4 KiB.
pub(crate) const TX_ADMIN_BYTES: usize = 64 << 10;

/// Per-core memory beyond the ceiling for in-capsule data of a mirror's link, in bytes. Allocated
/// on first use, like [`LINK_TRANSFER_BYTES`].
pub(crate) const LINK_CAPSULE_BYTES: usize = 256 << 10;

/// Per-core memory beyond the ceiling for R2T data of a mirror's link, in bytes, or `mdts` if that
/// is larger.
pub(crate) const LINK_TRANSFER_BYTES: usize = 1 << 20;

/// Blocks of one range of Dataset Management, as hosts are advised (DMRSL): 4 GiB of 4 KiB each. A
/// pool carries out a discard of that much in one or two checkpoints.
pub(crate) const DSM_RANGE_BLOCKS: u32 = 1 << 20;

/// Chunk size of Compare and Verify, in bytes.
pub(crate) const SCAN_BYTES: usize = 1 << 20;

/// Chunk size of Compare and Verify at the memory ceiling, in bytes; one per command, beyond the
/// ceiling.
pub(crate) const SCAN_LEAST_BYTES: usize = 4 << 10;

/// Data of one Copy, in bytes (MCL): one buffer, which is read completely before the write begins.
pub(crate) const COPY_BYTES: u32 = 1 << 20;

/// Source ranges of one Copy (MSRC + 1): 128 of 32 B are 4 KiB.
pub(crate) const COPY_RANGES: usize = 128;

/// Data of each half of a Compare and Write, in bytes. ACWU promises one block; a larger block than
/// this cannot be compared. Each connection may keep one first half of it, outside the pool.
pub(crate) const FUSED_BYTES: usize = 4 << 10;

/// CPDA: data in PDUs to the controller may start at any multiple of 4 bytes.
pub(crate) const CONTROLLER_DATA_ALIGNMENT: u8 = 0;

/// Default time for a connection to complete Connect.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// TCP keep alive of hosts, which need not ask for one of NVMe: a host that lost power would stay
/// connected forever. Two minutes in all.
pub(crate) const HOST_KEEP_ALIVE: KeepAlive = KeepAlive { idle_s: 60, interval_s: 10, probes: 6 };

/// Longest wait of a Connect for the release of its queue identifier: the connection that had it
/// has ended for its host, but not for this target yet.
pub(crate) const QUEUE_RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Polling interval of that wait.
pub(crate) const QUEUE_RELEASE_PERIOD: Duration = Duration::from_millis(20);

/// Authentication exchanges in flight of all hosts. Each holds about 4 KiB; two compute at a time.
pub(crate) const HANDSHAKES: usize = 128;

/// Authentication exchanges in flight of one source address, so that each address leaves room for
/// others.
pub(crate) const HANDSHAKES_PER_SOURCE: usize = 32;

/// Time in which a PSK from secure channel concatenation opens connections: a host connects its
/// queues right after it has the PSK, and authenticates again for its next controller.
pub(crate) const GENERATED_PSK_LIFETIME: Duration = Duration::from_secs(300);

/// Interval at which invalid ones are erased.
pub(crate) const GENERATED_PSK_PERIOD: Duration = Duration::from_secs(10);

/// Such PSKs of one host, each of about 600 bytes: more controllers than one host connects at a
/// time, as [`HANDSHAKES`] bounds that.
pub(crate) const GENERATED_PSKS_PER_HOST: usize = 128;

/// TLS handshakes in flight of all hosts, and of one source address. Each holds about 100 KiB.
pub(crate) const TLS_HANDSHAKES: usize = 128;

/// See [`TLS_HANDSHAKES`].
pub(crate) const TLS_HANDSHAKES_PER_SOURCE: usize = 32;

/// How long a connection of a server that stops waits for the commands of its controller's other
/// queues; less than the server waits for all connections.
pub(crate) const ANSWERED_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval at which it checks for their end.
pub(crate) const ANSWERED_PERIOD: Duration = Duration::from_millis(1);

/// Interval at which a connection's progress is checked.
pub(crate) const WATCHDOG_PERIOD: Duration = Duration::from_secs(1);

/// Data of one vendor specific admin command in either direction, in bytes: available even at the
/// memory ceiling.
pub const VENDOR_DATA_BYTES: usize = 4 << 10;

/// Vendor specific admin commands in flight per controller: 32 of 4 KiB in each direction are 256
/// KiB. Beyond that the host must retry.
pub(crate) const VENDOR_ADMIN_COMMANDS: u32 = 32;

/// Subsystems of one target.
pub(crate) const SUBSYSTEMS: usize = 4096;

/// Hosts on the allow-list of one subsystem: 4,096 names of 224 B are 896 KiB.
pub(crate) const ALLOWED_HOSTS: usize = 4096;

/// Hosts whose I/O one subsystem counts separately; others are counted together. Each takes 272 B.
pub(crate) const COUNTED_HOSTS: usize = 64;

/// Addresses in the discovery log. With all subsystems the log has at most (4,096 + 1) × 64 entries
/// of 1 KiB, 256 MiB, of which only the requested part is generated.
pub(crate) const LISTENERS: usize = 64;

/// Largest configurable number of namespaces per subsystem. Each takes 8 B in the table, and 4 B in
/// the ANA log, which hosts read in one transfer.
pub(crate) const NAMESPACES_MAX: u32 = 65_535;

/// Slots of one leaf of the namespace table: 256 of 8 B, copied when a namespace is added.
pub(crate) const NAMESPACE_LEAF: usize = 256;

/// Largest configurable number of controllers per target: identifiers have 16 bits, and those from
/// FFF0h are reserved.
pub(crate) const CONTROLLERS_MAX: u32 = 65_519;

/// Asynchronous Event Requests waiting by one controller (AERL + 1), which also bounds their unsent
/// completions.
pub(crate) const EVENT_REQUESTS: usize = 4;

/// Outstanding Abort commands (ACL + 1). Each is answered immediately.
pub(crate) const ABORT_REQUESTS: u8 = 4;

/// Entries of the Changed Namespace List. A longer list reports overflow (Base 5.1.12.1.5).
pub(crate) const CHANGED_NAMESPACES: usize = 1024;

/// Entries of a controller's error log (ELPE + 1): 64 of 64 B are 4 KiB.
pub(crate) const ERROR_LOG_ENTRIES: usize = 64;

/// Unit of keep alive timeouts, in milliseconds (KAS). Requested values are rounded up.
pub(crate) const KEEP_ALIVE_UNIT_MS: u32 = 1000;

/// Traffic checks per keep alive timeout.
pub(crate) const KEEP_ALIVE_LOOKS: u32 = 4;

/// Time for a controller to become ready, in units of 500 ms (CAP.TO): 10 s. This target's
/// controllers are ready immediately.
pub(crate) const READY_TIMEOUT_500MS: u8 = 20;

/// Largest send, in bytes. Progress is observed once per send: a host that reads faster than this
/// in half a second is never stalled.
pub(crate) const SEND_BYTES: usize = 1 << 20;

/// Least number of connections that an address may have without using a volume, however few
/// connections the target has.
pub(crate) const UNPROVEN_PER_SOURCE: usize = 32;

/// Longest ANA transition, in seconds (ANATT).
pub(crate) const ANA_TRANSITION_S: u8 = 10;

/// Memory page, in bytes, the unit of MDTS (CAP.MPSMIN = 0).
pub(crate) const PAGE_BYTES: u32 = 4096;

/// Smallest configurable data size of one command, in bytes. MDTS is a power of two of pages, and 0
/// means unlimited, so one page cannot be expressed.
pub(crate) const MDTS_MIN_BYTES: u32 = 2 * PAGE_BYTES;

/// Largest configurable data size of one command, in bytes: the largest pooled buffer.
pub(crate) const MDTS_MAX_BYTES: u32 = flagstone_runtime::limits::BUF_MAX_BYTES as u32;

/// Polling interval of [`Target::drained`](crate::Target::drained): a few commands of a fast disk.
pub(crate) const DRAIN_PERIOD: Duration = Duration::from_micros(200);

/// Largest first port identifier that leaves a 16-bit identifier for each of [`LISTENERS`].
pub(crate) const PORT_ID_FIRST_MAX: u16 = u16::MAX - (LISTENERS as u16 - 1);

/// Hosts registered with one namespace: a Reservation Report of 128 is 8 KiB, and a durable record
/// 3 KiB.
pub(crate) const RESERVATION_REGISTRANTS: usize = 128;

/// Unread reservation notifications of one controller, of 24 B each. The log page reports at most
/// 255 further ones.
pub(crate) const RESERVATION_NOTIFICATIONS: usize = 256;

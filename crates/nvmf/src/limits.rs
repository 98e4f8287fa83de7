//! What bounds this crate's memory and patience, with the arithmetic.

use std::time::Duration;

/// Smallest receive buffer of a connection, in bytes: what an idle one holds.
pub(crate) const RX_MIN_BYTES: usize = 8 << 10;

/// Receive buffer of a connection when pooled memory is at its ceiling, in bytes; had beyond it.
pub(crate) const RX_LEAST_BYTES: usize = 4 << 10;

/// Largest receive buffer of a connection, in bytes: 64 writes of 4 KiB a receive.
pub(crate) const RX_MAX_BYTES: usize = 256 << 10;

/// Receive buffers of one connection that payloads may keep alive, in bytes: with the payloads of
/// 128 writes of 4 KiB in them, half is beside those. Beyond it payloads are copied out of …
pub(crate) const RX_AHEAD_BYTES: usize = 1 << 20;

/// … a receive buffer of this size, in bytes: 15 writes of 4 KiB a receive.
pub(crate) const RX_PASSING_BYTES: usize = 64 << 10;

/// Payload bytes laid out ahead when a shape is expected: 64 × 4 KiB.
pub(crate) const RX_EXPECTED_BYTES: usize = 256 << 10;

/// Small receives in a row before the receive buffer is halved.
pub(crate) const RX_SHRINK_AFTER: u32 = 64;

/// Block that response headers are cut from, in bytes: 170 of 24 B.
pub(crate) const TX_HEADER_BLOCK_BYTES: usize = 4 << 10;

/// Response headers that wait to be taken by the host, in bytes: 2,730 completions. They are had
/// beyond the ceiling of memory. At the limit nothing more is received; what is in hand by then may
/// add as many as a queue has entries.
pub(crate) const TX_HEADERS_BYTES: usize = 64 << 10;

/// The same of an admin queue with the data of its answers, in bytes: 16 of 4 KiB.
pub(crate) const TX_ADMIN_BYTES: usize = 64 << 10;

/// Payloads from this size are received straight into a buffer of their own, in bytes.
pub(crate) const DIRECT_BYTES: usize = 16 << 10;

/// What a core has beyond the ceiling for data of the link of a mirror, in bytes: in a capsule, as much
/// as that may be …
pub(crate) const LINK_CAPSULE_BYTES: usize = 256 << 10;
/// … and asked for, as much as a transfer is unless `mdts` is larger. Each is had when it is first
/// needed.
pub(crate) const LINK_TRANSFER_BYTES: usize = 1 << 20;

/// Compare and Verify read in pieces of this size, in bytes …
pub(crate) const SCAN_BYTES: usize = 1 << 20;

/// … or of this size when there is no memory, in bytes; had beyond the ceiling, one for each
/// command in hand.
pub(crate) const SCAN_LEAST_BYTES: usize = 4 << 10;

/// Common header of a PDU, in bytes.
pub(crate) const COMMON_HEADER_BYTES: usize = flagstone_nvme::limits::COMMON_HEADER_BYTES;

/// The longest header that is ever sent, in bytes: a TermReq with the offending header.
pub(crate) const HEADER_BYTES_MAX: usize = flagstone_nvme::limits::TERM_REQ_MAX_BYTES;

/// CPDA: data in PDUs to us may start at any multiple of 4 bytes.
pub(crate) const CONTROLLER_DATA_ALIGNMENT: u8 = 0;

/// How long a connection may take to become a queue, unless configured otherwise.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a peer that was sent a TermReq may take to close.
pub(crate) const TERMINATE_TIMEOUT: Duration = Duration::from_secs(1);

/// How often a connection's progress is looked at.
pub(crate) const WATCHDOG_PERIOD: Duration = Duration::from_secs(1);

/// Looks for overdue commands that make up a host's command time-out. A command is given up on
/// after at most one more: 5/4 of the time-out.
pub(crate) const HOST_TIMEOUT_TICKS: u32 = 4;

/// Longest pause between two such looks.
pub(crate) const HOST_SCAN_PERIOD_MAX: Duration = Duration::from_secs(5);

/// Entries of a host's admin queue: what every target has.
pub(crate) const HOST_ADMIN_ENTRIES: u16 = 32;

/// Most I/O queues that a host makes for one core.
pub(crate) const HOST_QUEUES_MAX: u16 = 128;

/// Most commands in flight on one I/O queue of a host: a slot of about 128 B each.
pub(crate) const HOST_QUEUE_DEPTH_MAX: u16 = 1023;

/// Commands in flight for one call that is split.
pub(crate) const HOST_WINDOW: usize = 16;

/// Pause before a host asks again whether a controller is ready, or has shut down.
pub(crate) const HOST_POLL_PAUSE: Duration = Duration::from_millis(5);

/// How long a graceful end may take: commands in flight, then the shutdown of the controller.
pub(crate) const HOST_DISCONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How much longer than its keep alive time-out a host waits for the target's end of a connection:
/// targets round the time-out up to a second.
pub(crate) const HOST_END_MARGIN: Duration = Duration::from_secs(1);

/// Longest such wait, and the one without a keep alive.
pub(crate) const HOST_END_TIMEOUT_MAX: Duration = Duration::from_secs(30);

/// First pause before a command is sent again that the target asks to retry; it doubles up to
/// the longest.
pub(crate) const HOST_RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Longest such pause.
pub(crate) const HOST_RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How often a command is sent again that failed without Do Not Retry: as Linux does
/// (`nvme_max_retries`). With the pauses above that takes 155 ms.
pub(crate) const HOST_REPEATS_MAX: u8 = 5;

/// Most entries of a discovery log that a host reads: 4,096 × 1 KiB = 4 MiB in pieces of 4 KiB.
pub(crate) const HOST_DISCOVERY_ENTRIES: u64 = 4096;

/// How often a discovery log that changes while it is read is read anew.
pub(crate) const HOST_DISCOVERY_ATTEMPTS: u32 = 8;

/// Zeroes in one write where a target cannot write zeroes of its own, in bytes: what the pool
/// shares.
pub(crate) const HOST_ZERO_BYTES: u32 = 64 << 10;

/// Data of one vendor specific admin command, either way, in bytes: what is had even at the ceiling
/// of memory.
pub const VENDOR_DATA_BYTES: usize = 4 << 10;

/// Vendor specific admin commands in hand of one controller: 32 of 4 KiB each way are 256 KiB.
/// Beyond it a host is asked to come again.
pub(crate) const VENDOR_ADMIN_COMMANDS: u32 = 32;

/// Commands of its admin queue that a host keeps free of vendor specific ones: keep alive, event
/// request, and what looking at a changed namespace takes.
pub(crate) const HOST_ADMIN_SPARE: u16 = 4;

/// Subsystems of one target.
pub(crate) const SUBSYSTEMS: usize = 4096;

/// Hosts on the allow-list of one subsystem: 4,096 names of 224 B are 896 KiB.
pub(crate) const ALLOWED_HOSTS: usize = 4096;

/// Addresses in the discovery log. With all subsystems the log has at most
/// (4,096 + 1) × 64 entries of 1 KiB, 256 MiB, of which only the part that is asked for is made.
pub(crate) const LISTENERS: usize = 64;

/// The largest number of namespaces that a subsystem may be configured for. Each takes a slot of
/// 8 B in the table, and 4 B in the ANA log, which hosts want to read in one transfer.
pub(crate) const NAMESPACES_MAX: u32 = 65_535;

/// Slots of one leaf of the namespace table: 256 of 8 B, what adding a namespace copies.
pub(crate) const NAMESPACE_LEAF: usize = 256;

/// Controllers that may be configured for one target; identifiers are 16 bits and those from
/// FFF0h are reserved.
pub(crate) const CONTROLLERS_MAX: u32 = 65_519;

/// Asynchronous Event Requests parked by one controller (AERL + 1), and so the completions of them
/// that wait to be sent.
pub(crate) const EVENT_REQUESTS: usize = 4;

/// Abort commands outstanding (ACL + 1). Each is answered at once.
pub(crate) const ABORT_REQUESTS: u8 = 4;

/// Namespaces in the Changed Namespace List; when more change, the list says just that
/// (Base 5.1.12.1.5).
pub(crate) const CHANGED_NAMESPACES: usize = 1024;

/// Entries of a controller's error log (ELPE + 1): 64 of 64 B are 4 KiB.
pub(crate) const ERROR_LOG_ENTRIES: usize = 64;

/// Unit of keep alive time-outs, in milliseconds (KAS); what a host asks for is rounded up.
pub(crate) const KEEP_ALIVE_UNIT_MS: u32 = 1000;

/// How many times in a keep alive time-out a controller looks whether its host was heard.
pub(crate) const KEEP_ALIVE_LOOKS: u32 = 4;

/// How long a host may wait for a controller to become ready, in units of 500 ms (CAP.TO): 10 s.
/// Ours are ready at once.
pub(crate) const READY_TIMEOUT_500MS: u8 = 20;

/// How long an ANA transition may last, in seconds (ANATT).
pub(crate) const ANA_TRANSITION_S: u8 = 10;

/// The memory page that MDTS is in units of, in bytes (CAP.MPSMIN = 0).
pub(crate) const PAGE_BYTES: u32 = 4096;

/// Smallest data of one command that a target may be configured for, in bytes: MDTS is a power of
/// two of pages and 0 means no limit, so one page cannot be said.
pub(crate) const MDTS_MIN_BYTES: u32 = 2 * PAGE_BYTES;

/// Largest data of one command that a target may be configured for, in bytes: the largest pooled
/// buffer.
pub(crate) const MDTS_MAX_BYTES: u32 = flagstone_runtime::limits::BUF_MAX_BYTES as u32;

/// How often [`Target::drained`](crate::target::Target::drained) looks whether commands have ended: as
/// long as a fast disk takes for a few.
pub(crate) const DRAIN_PERIOD: Duration = Duration::from_micros(200);

/// The largest port identifier that leaves one of 16 bits for each of [`LISTENERS`].
pub(crate) const PORT_ID_FIRST_MAX: u16 = u16::MAX - (LISTENERS as u16 - 1);

/// Pause after all paths to a namespace were tried in vain: at first, and at most.
pub(crate) const HOST_PATH_PAUSE: Duration = Duration::from_millis(2);
/// See [`HOST_PATH_PAUSE`].
pub(crate) const HOST_PATH_PAUSE_MAX: Duration = Duration::from_millis(50);

/// Pause between attempts at a path that has not been had yet.
pub(crate) const HOST_PATH_RECONNECT: Duration = Duration::from_secs(1);

//! Limits of the host's memory and waiting times, with their arithmetic.

use std::time::Duration;

/// Checks for overdue commands per command timeout. A command is given up after at most one further
/// check: 5/4 of the timeout.
pub(crate) const TIMEOUT_TICKS: u32 = 4;

/// Longest interval between these checks.
pub(crate) const SCAN_PERIOD_MAX: Duration = Duration::from_secs(5);

/// Admin queue entries, which every target supports.
pub(crate) const ADMIN_ENTRIES: u16 = 32;

/// Maximum I/O queues per core.
pub(crate) const QUEUES_MAX: u16 = 128;

/// Maximum commands in flight per I/O queue: slots of about 128 B.
pub(crate) const QUEUE_DEPTH_MAX: u16 = 1023;

/// Commands in flight for one split call.
pub(crate) const SPLIT_WINDOW: usize = 16;

/// Polling interval for controller ready and shutdown status.
pub(crate) const POLL_PAUSE: Duration = Duration::from_millis(5);

/// Time limit of a graceful disconnect: commands in flight, then controller shutdown.
pub(crate) const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Margin beyond the keep alive timeout when waiting for the target's end of a connection: targets
/// round the timeout up to a second.
pub(crate) const END_MARGIN: Duration = Duration::from_secs(1);

/// Longest wait for the target's end of a connection, also used without a keep alive.
pub(crate) const END_TIMEOUT_MAX: Duration = Duration::from_secs(30);

/// First pause before a command is retried at the target's request; it doubles up to the longest.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Longest such pause.
pub(crate) const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Retries of a command that failed without Do Not Retry, as in Linux (`nvme_max_retries`). With
/// the pauses above they take 155 ms.
pub(crate) const RETRIES_MAX: u8 = 5;

/// Maximum discovery log entries: 4,096 × 1 KiB = 4 MiB, read in pieces of 4 KiB.
pub(crate) const DISCOVERY_ENTRIES: u64 = 4096;

/// Attempts to read a discovery log that changes while it is read.
pub(crate) const DISCOVERY_ATTEMPTS: u32 = 8;

/// Write size for zeroes on a target without Write Zeroes, in bytes: the shared zero buffer.
pub(crate) const ZERO_BYTES: u32 = 64 << 10;

/// Admin queue commands reserved from vendor specific use: keep alive, event request, reading a
/// changed namespace, authentication, and shutdown.
pub(crate) const ADMIN_RESERVED_ENTRIES: u16 = 5;

/// Time limit for the re-authentication of one queue. I/O continues meanwhile, and a target that
/// others fail to authenticate at delays it by some seconds.
pub(crate) const REAUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(30);

/// First pause after a target that is too busy to re-authenticate this host.
pub(crate) const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// Longest such pause.
pub(crate) const BUSY_PAUSE_MAX: Duration = Duration::from_secs(10);

/// First pause after all paths to a namespace have failed.
pub(crate) const PATH_PAUSE: Duration = Duration::from_millis(2);

/// Longest pause after all paths to a namespace have failed.
pub(crate) const PATH_PAUSE_MAX: Duration = Duration::from_millis(50);

/// Pause between attempts to connect a path for the first time.
pub(crate) const PATH_RECONNECT: Duration = Duration::from_secs(1);

/// Identified instances of a namespace that have ended and are remembered. A link joins within
/// seconds of its handshake, and a target does not restart this often in that time.
pub(crate) const ENDED_INSTANCES_MAX: usize = 16;

//! Limits of the server, with their reasons.

use std::time::Duration;

/// Remote volumes opened concurrently. Each may take seconds to time out, and holds its
/// connections.
pub const OPEN_AT_ONCE: usize = 32;

/// Shortest and longest pause between attempts to open a pending volume; it doubles each time. A
/// remote server that is back is found within the longest pause.
pub const OPEN_PAUSE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(500)..=Duration::from_secs(15);

/// Volumes described before the API yields to host I/O on its core: about 30 us each.
pub const API_BATCH: usize = 8;

/// Differences of a verify listed by the API: 40 bytes each as JSON.
pub const API_DIFFERENCES: usize = 256;

/// Time limit for the response to `grow`, zeroed or not: well below the timeouts of clients.
pub const GROW_TIMEOUT: Duration = Duration::from_secs(10);

/// Shortest time given to a peer to connect, and to answer, when an order needs its identity.
pub const IDENTIFY_TIMEOUT: Duration = Duration::from_secs(5);

/// Attempts to send a message to the service manager while its queue is full, and the pause between
/// two: a second together.
pub const NOTIFY_ATTEMPTS: usize = 100;
/// See [`NOTIFY_ATTEMPTS`].
pub const NOTIFY_PAUSE: Duration = Duration::from_millis(10);

/// The watchdog is fed this many times in its time limit. systemd advises two; the third covers an
/// executor that answers late.
pub const WATCHDOG_SHARE: u32 = 3;

/// Pools of a server. Each takes 64 MiB of map cache and up to 48 MiB of recent changes.
pub const POOLS_MAX: usize = 16;

/// Largest state file: 16 pools of 16 devices with the longest paths, 4 KiB, fit.
pub const STATE_FILE_BYTES: u64 = 2 << 20;

/// Damages of a scrub that are listed; further ones are counted, and in the log.
pub const SCRUB_DAMAGE: usize = 100;

/// Bytes of data after which the position of a receive is recorded: what a crash of the server
/// lets it receive again.
pub const RECEIVE_RECORD_BYTES: u64 = 32 << 20;

/// Time after which the progress of a scrub is saved: what is verified again after a crash.
pub const SCRUB_SAVE_PERIOD: Duration = Duration::from_secs(10);

/// Time for which the opening of a pool with redundancy waits for a device that was in sync: disks
/// appear late at the start of a machine.
pub const ABSENT_WAIT: Duration = Duration::from_secs(60);

/// Pause between attempts to open a pool whose devices cannot be used, and between looks at how
/// full pools are.
pub const POOL_PAUSE: Duration = Duration::from_secs(5);

/// Longest pause between attempts to open a complete pool: each reads all disks of the machine.
pub const SEARCH_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Interval at which the identities of open pools are recorded. After a crash of the server, a copy
/// of their disks that was made since the last record is not recognized as old.
pub const IDENTITY_PERIOD: Duration = Duration::from_secs(600);

/// Longest wait at the start for the devices of pools.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest file with the key of an encrypted volume, in bytes.
pub const KEY_FILE_BYTES: u64 = 256;

/// Longest path of such a file, in bytes: that of Linux.
pub const KEY_FILE_PATH_BYTES: usize = 4095;

/// Longest name of a domain of deduplication, in bytes.
pub const DEDUP_DOMAIN_BYTES: usize = 64;

/// Names in a list of an answer, before the number of the others.
pub const NAMES_SHOWN: usize = 16;

/// Longest NAME of `kms:NAME`.
pub const KEY_NAME_BYTES: usize = 128;

/// Time limit of `key_command`, less than [`OPEN_TIMEOUT`].
pub const KEY_COMMAND_LIMIT: Duration = Duration::from_secs(9);

/// Key files of a pool that are read at once.
pub const KEY_FILES_AT_ONCE: usize = 16;

/// Requests of a source for snapshots of one leg that wait at a time. Each is a few hundred bytes.
pub const LEG_SNAPSHOTS_MAX: usize = 32;

/// Attempts to take snapshots of mirrored volumes while pools are busy.
pub const SNAPSHOT_ATTEMPTS: usize = 5;

/// Longest wait of one attempt for the pools of this node, which it holds together.
pub const SNAPSHOT_PREPARE_TIMEOUT: Duration = Duration::from_secs(1);

/// Mirrored volumes whose snapshots are taken together. A target takes them one after the other,
/// within the time that its source waits.
pub const MIRROR_SNAPSHOTS_MAX: usize = 16;

/// Longest wait for the lists of snapshots of all peers, for a document that lists them.
pub const PEER_SNAPSHOTS_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest wait of an order for the order before it. Longer than [`RETIRE_TIMEOUT`], and shorter
/// than the timeout of clients.
pub const ORDER_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest wait for a change that closes and opens a pool. It continues when its devices answer.
pub const CHANGE_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest wait for the commands of a volume that is taken out of service.
pub const RETIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time after which a call on a file or disk counts as stuck, so that another thread may try. Disks
/// answer within half a minute, or have failed.
pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(60);

/// Threads of the process for paths whose first thread is stuck.
pub(crate) const SPARE_THREADS_MAX: usize = 8;

/// Bytes per read of a device that is checked for zeroes.
pub(crate) const ZEROES_CHUNK_BYTES: u64 = 1 << 20;

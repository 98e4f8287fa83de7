//! Limits of the server, with their reasons.

use std::time::Duration;

/// Remote volumes opened concurrently. Each may take seconds to time out, and holds its connections.
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
pub const GROW_PATIENCE: Duration = Duration::from_secs(10);

/// Attempts to send a message to the service manager while its queue is full, and the pause between
/// two: a second together.
pub const NOTIFY_ATTEMPTS: usize = 100;
/// See [`NOTIFY_ATTEMPTS`].
pub const NOTIFY_PAUSE: Duration = Duration::from_millis(10);

/// The watchdog is fed this many times in its time limit. systemd advises two; the third covers an
/// executor that answers late.
pub const WATCHDOG_SHARE: u32 = 3;

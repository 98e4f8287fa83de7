//! Numeric and memory bounds of this crate, with their arithmetic.

use std::time::Duration;

/// Tolerance of a rate without a burst: unused rate of this interval can be made up for, so that
/// late timers, and hosts that pause between two commands, cost no throughput. Any second exceeds
/// the rate by at most this: 0.5 %.
pub const CATCH_UP: Duration = Duration::from_millis(5);

/// Largest delay of due commands by a busy machine that is made up for. Without it, all time in
/// which the server does not get its CPU would be lost. With it, the rate is correct over any
/// interval that is longer than the delay.
pub const LATE_MAX: Duration = Duration::from_millis(100);

/// Duration of the make-up after a delay.
pub const LATE_SPAN: Duration = Duration::from_secs(1);

/// Highest rate, in I/Os or bytes per second: 1 TB/s. The cost of one byte, 1 ns / 1,000, is kept
/// in units of 2^-32 ns, so it is exact to 2 in 10 million.
pub const RATE_MAX: u64 = 1_000_000_000_000;

/// Longest time to earn the credit of a burst, in seconds: 10^11 s × 10^9 × 2^32 is far below the
/// 2^127 of the clocks.
pub const CREDIT_MAX_SECONDS: u64 = 100_000_000_000;

/// Waiting commands per flow (connection) in a limiter; further ones wait outside and retry. NVMe
/// queues have at most 1,024 entries, so no connection reaches it.
pub const FLOW_WAITING_MAX: u32 = 4096;

/// Waiting commands in a limiter: 262,144 × 72 B = 19 MB, allocated on demand. Beyond it a flow may
/// have one command in the queue, so that no flow is shut out; its other commands wait outside and
/// retry. Waiting reads and writes hold at least 4 KiB of pooled memory each, so the memory limit
/// (65,536 blocks by default) is reached long before.
pub const WAITING_MAX: usize = 1 << 18;

/// Flows that a limiter remembers: 4,096 × 128 B = 512 KiB. Beyond it, flows without waiting
/// commands are forgotten; if all have waiting commands, further flows share slots.
pub const FLOWS_MAX: usize = 4096;

/// How long the timer may wait for more commands to become due, if many wait and the rate grants
/// them at shorter intervals: each wake-up costs as much as several commands. It never waits longer
/// than half of the time that the waiting commands take, so a single waiting command starts on
/// time.
pub const GATHER: Duration = Duration::from_micros(200);

/// Commands woken per lock: it is held for some microseconds at most.
pub const WAKE_BATCH: usize = 32;

/// First pause of a command that waits outside before it retries; pauses double.
pub const OUTSIDE_PAUSE: Duration = Duration::from_millis(5);
/// Longest such pause.
pub const OUTSIDE_PAUSE_MAX: Duration = Duration::from_millis(320);

/// Longest service latency, for a median or a 99th percentile.
pub const LATENCY_MAX: Duration = Duration::from_secs(60);

/// A 99th percentile is at most this many medians. The mean of a lognormal distribution with a
/// longer tail would not show in a short run.
pub const TAIL_MAX: u32 = 100;

/// Draws are cut at this many standard deviations from the middle: one in 3.5 million.
pub const DEVIATIONS_MAX: f64 = 5.0;

//! What bounds this crate's numbers and memory, with the arithmetic.

use std::time::Duration;

/// How much time a rate may be ahead of itself without a burst: what was not used for so long can
/// be made up for, so that timers that fire late, and hosts that pause between two commands, cost
/// no throughput. In any second there is at most this much more than the rate gives: 0.5 %.
pub const CATCH_UP: Duration = Duration::from_millis(5);

/// How much of the time is made up for in which commands were due and did not go, as the machine
/// was busy with others: as much as it was late, to this. Without it each time that the server is
/// kept from its CPU would be lost for good, with it the rate is right over any span that is longer
/// than the delay.
pub const LATE_MAX: Duration = Duration::from_millis(100);

/// For how long after it was late.
pub const LATE_SPAN: Duration = Duration::from_secs(1);

/// Highest rate, in I/Os or bytes a second: 1 TB/s. The cost of one of them, 1 ns / 1,000, is kept
/// in units of 2^-32 ns, so it is exact to 2 in 10 million.
pub const RATE_MAX: u64 = 1_000_000_000_000;

/// Longest time in which a burst's credit is earned, in seconds: 10^11 s × 10^9 × 2^32 is far
/// below the 2^127 of the clocks.
pub const CREDIT_MAX_SECONDS: u64 = 100_000_000_000;

/// Commands of one flow (connection) that wait in a limiter; others of that flow wait outside and
/// ask again. NVMe queues have 1,024 entries at most, so it is met by none.
pub const FLOW_WAITING_MAX: u32 = 4096;

/// Commands that wait in a limiter: 262,144 × 72 B = 19 MB, taken as they are needed. Beyond it a
/// flow may have one in it, so that none is shut out, and what else it has waits outside and asks
/// again. Reads and writes that wait hold 4 KiB of pooled memory or more each, so the pool's
/// ceiling (65,536 blocks by default) is met long before.
pub const WAITING_MAX: usize = 1 << 18;

/// Flows whose past a limiter remembers: 4,096 × 128 B = 512 KiB. Beyond it those that wait for
/// nothing are forgotten; when all of them wait, further flows share the place of another.
pub const FLOWS_MAX: usize = 4096;

/// How long the timer may wait for more commands to be due, where many wait and the rate gives one
/// sooner than this: each wake-up costs as much as some commands. Never for longer than half of the
/// commands that wait take, so a command that waits alone goes on time.
pub const GATHER: Duration = Duration::from_micros(200);

/// Commands woken under one lock: it is held for some microseconds at most.
pub const WAKE_BATCH: usize = 32;

/// First and longest pause of a command that waits outside before it asks again.
pub const OUTSIDE_PAUSE: Duration = Duration::from_millis(5);
/// See [`OUTSIDE_PAUSE`].
pub const OUTSIDE_PAUSE_MAX: Duration = Duration::from_millis(320);

/// Longest service latency to emulate, of a median or a 99th percentile.
pub const LATENCY_MAX: Duration = Duration::from_secs(60);

/// A 99th percentile is at most so many medians: a lognormal distribution beyond it has a mean that
/// no short run would show.
pub const TAIL_MAX: u32 = 100;

/// Draws further from the middle than so many standard deviations are cut to it: one of 3.5
/// million.
pub const DEVIATIONS_MAX: f64 = 5.0;

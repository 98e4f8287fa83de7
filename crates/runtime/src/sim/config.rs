//! Configuration of a simulated world: links, disks, and their faults.

use std::ops::Range;
use std::time::Duration;

use crate::rng::Rng;

/// Distribution of a duration: mostly near `min`, at most `max`, with occasional longer spikes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimLatency {
    /// Minimum.
    pub min: Duration,
    /// Maximum without a spike.
    pub max: Duration,
    /// Probability of a spike, 0.0 to 1.0.
    pub spike_chance: f64,
    /// Longest addition of a spike.
    pub spike: Duration,
}

impl SimLatency {
    /// Between `min_us` and `max_us` microseconds, without spikes.
    pub const fn between_us(min_us: u64, max_us: u64) -> SimLatency {
        SimLatency {
            min: Duration::from_micros(min_us),
            max: Duration::from_micros(max_us),
            spike_chance: 0.0,
            spike: Duration::ZERO,
        }
    }

    /// Adds spikes.
    pub const fn with_spikes(mut self, chance: f64, spike: Duration) -> SimLatency {
        self.spike_chance = chance;
        self.spike = spike;
        self
    }

    /// One duration, in nanoseconds.
    pub(crate) fn sample(&self, rng: &mut Rng) -> u64 {
        let (min, max) = (nanos(self.min), nanos(self.max));
        // The smaller of two draws: most are near the minimum, with a tail.
        let mut span = rng.between(min, max).min(rng.between(min, max));
        if self.spike_chance > 0.0 && rng.chance(self.spike_chance) {
            span = span.saturating_add(rng.between(0, nanos(self.spike)));
        }
        span
    }
}

pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// One direction of a link between two nodes, or within one node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkConfig {
    /// Transit time, drawn per segment; segments of one connection keep their order.
    pub latency: SimLatency,
    /// Bandwidth of the direction in bytes per second, shared by its connections.
    pub bytes_per_second: u64,
    /// Unacknowledged bytes per sender of a connection; beyond it sends wait.
    pub send_buffer_bytes: usize,
    /// Bytes that a receiver buffers for a task that does not read; beyond it the sender fills up.
    pub receive_buffer_bytes: usize,
    /// Largest segment; bytes are cut at random boundaries up to it.
    pub segment_bytes: usize,
    /// Probability that a receive or a send is short although more bytes could be transferred.
    pub short_chance: f64,
}

impl LinkConfig {
    /// A 10 Gbit/s network of one zone: 30 to 150 µs, spikes of up to 20 ms.
    pub const fn network() -> LinkConfig {
        LinkConfig {
            latency: SimLatency::between_us(30, 150).with_spikes(0.001, Duration::from_millis(20)),
            bytes_per_second: 1_250_000_000,
            send_buffer_bytes: 256 << 10,
            receive_buffer_bytes: 256 << 10,
            segment_bytes: 64 << 10,
            short_chance: 0.05,
        }
    }

    /// Within a node: 5 to 20 µs.
    pub const fn loopback() -> LinkConfig {
        let mut link = LinkConfig::network();
        link.latency = SimLatency::between_us(5, 20);
        link.bytes_per_second = 5_000_000_000;
        link
    }
}

/// A simulated disk or file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskConfig {
    /// Size, in bytes.
    pub size_bytes: u64,
    /// True for a block device of fixed size; false for a regular file, which grows when written
    /// beyond its end.
    pub block_device: bool,
    /// Unit of reads and writes when opened `direct`, in bytes.
    pub logical_block_bytes: u32,
    /// Reported physical block size, in bytes.
    pub physical_block_bytes: u32,
    /// Unit that a power loss keeps or loses completely, in bytes: 512 for most disks; less to tear
    /// sectors.
    pub atomic_bytes: u32,
    /// True if a power loss may drop completed writes that were not flushed. False for power-loss
    /// protection: every completed write is durable.
    pub volatile_cache: bool,
    /// Operations served concurrently; further ones queue.
    pub queue_depth: usize,
    /// Time of a read.
    pub read_latency: SimLatency,
    /// Time of a write, durable or not.
    pub write_latency: SimLatency,
    /// Time of a flush, and the additional time of a durable write.
    pub flush_latency: SimLatency,
    /// Bandwidth of one operation, in bytes per second.
    pub bytes_per_second: u64,
    /// Ranges can be deallocated.
    pub can_deallocate: bool,
    /// Ranges can be zeroed.
    pub can_zero: bool,
    /// Capacity in bytes of 4 KiB blocks; beyond it writes fail with `StorageFull`.
    pub space_bytes: u64,
}

impl DiskConfig {
    /// A local SSD with a volatile cache, as an empty regular file.
    pub const fn ssd() -> DiskConfig {
        DiskConfig {
            size_bytes: 0,
            block_device: false,
            logical_block_bytes: 512,
            physical_block_bytes: 4096,
            atomic_bytes: 512,
            volatile_cache: true,
            queue_depth: 64,
            read_latency: SimLatency::between_us(60, 200)
                .with_spikes(0.001, Duration::from_millis(30)),
            write_latency: SimLatency::between_us(15, 100)
                .with_spikes(0.001, Duration::from_millis(30)),
            flush_latency: SimLatency::between_us(200, 2000)
                .with_spikes(0.01, Duration::from_millis(50)),
            bytes_per_second: 1_000_000_000,
            can_deallocate: true,
            can_zero: true,
            space_bytes: u64::MAX,
        }
    }

    /// The same as a block device of this size, in bytes.
    pub const fn block_device(size_bytes: u64) -> DiskConfig {
        let mut disk = DiskConfig::ssd();
        disk.size_bytes = size_bytes;
        disk.block_device = true;
        disk
    }
}

/// Faults of a disk, in effect until changed. The default is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiskFaults {
    /// Probability that a read fails.
    pub read_errors: f64,
    /// Probability that a write or punch fails; any part of it may then be on the medium.
    pub write_errors: f64,
    /// Probability that a flush or durable write fails. Any unflushed write may then never become
    /// durable, although later flushes succeed and reads still return it, as on Linux.
    pub flush_errors: f64,
    /// Flushes and durable writes succeed without effect: a power loss may lose the data they
    /// covered.
    pub lying_flushes: bool,
    /// Probability that a write lands somewhere else on the disk, and succeeds.
    pub misdirected_writes: f64,
    /// Operations that end with EINTR, and have no effect, before one succeeds.
    pub interruptions: u32,
    /// Byte ranges that cannot be read.
    pub unreadable: Vec<Range<u64>>,
    /// Byte ranges that cannot be read until they are written: latent sector errors.
    pub latent: Vec<Range<u64>>,
    /// Byte ranges that cannot be written.
    pub unwritable: Vec<Range<u64>>,
}

impl DiskFaults {
    /// Adds bytes that cannot be read.
    #[must_use]
    pub fn unreadable_at(mut self, range: Range<u64>) -> DiskFaults {
        self.unreadable.push(range);
        self
    }

    /// Adds bytes that cannot be read until they are written.
    #[must_use]
    pub fn latent_at(mut self, range: Range<u64>) -> DiskFaults {
        self.latent.push(range);
        self
    }

    /// The bytes were written, so their range can be read again.
    pub(crate) fn remap(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        if touches(&self.latent, offset, len) {
            let rest = self
                .latent
                .iter()
                .flat_map(|bad| [bad.start..bad.end.min(offset), bad.start.max(end)..bad.end]);
            self.latent = rest.filter(|range| !range.is_empty()).collect();
        }
    }

    /// Adds bytes that cannot be written.
    #[must_use]
    pub fn unwritable_at(mut self, range: Range<u64>) -> DiskFaults {
        self.unwritable.push(range);
        self
    }
}

/// True if a range touches one of `ranges`.
pub(crate) fn touches(ranges: &[Range<u64>], offset: u64, len: u64) -> bool {
    ranges.iter().any(|range| range.start < offset.saturating_add(len) && offset < range.end)
}

/// Configuration of a simulated world.
#[derive(Clone, Debug, PartialEq)]
pub struct SimConfig {
    /// Links between nodes, unless [`super::World::set_link`] overrides them.
    pub network: LinkConfig,
    /// Connections within a node.
    pub loopback: LinkConfig,
    /// Files created by opening them with `create_bytes` (which sets the size).
    pub disk: DiskConfig,
    /// Time after which a sender with undeliverable data sees `TimedOut`.
    pub tcp_timeout: Duration,
    /// Longest simulated time of one executor turn, in nanoseconds, at least 1, so that a task that
    /// never sleeps cannot stop the clock.
    pub turn_ns: u64,
    /// Simulated time after which a run counts as hung: it panics and reports pending operations.
    pub time_limit: Duration,
}

impl Default for SimConfig {
    fn default() -> SimConfig {
        SimConfig {
            network: LinkConfig::network(),
            loopback: LinkConfig::loopback(),
            disk: DiskConfig::ssd(),
            // 15 retransmissions, as on Linux.
            tcp_timeout: Duration::from_secs(924),
            turn_ns: 1000,
            time_limit: Duration::from_secs(24 * 3600),
        }
    }
}

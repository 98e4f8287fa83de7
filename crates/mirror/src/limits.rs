//! What bounds this crate's memory and work, with the arithmetic.

/// Unit of every structure on disk, in bytes: superblocks, log headers and bitmap pages are one
/// each, so that a disk of 4 KiB blocks writes them without read-modify-write.
pub const PAGE_BYTES: usize = 4096;

/// Bits that a bitmap page carries: 4,096 − 64 bytes of header, 504 words of 64 bits.
pub const BITS_PER_PAGE: u64 = 504 * 64;

/// Smallest and largest part of the volume that one bit stands for, in bytes.
pub const BIT_MIN_BYTES: u32 = 4 << 10;
/// See [`BIT_MIN_BYTES`].
pub const BIT_MAX_BYTES: u32 = 16 << 20;
/// Default of the same: 16 Mi bits a TiB, 2 MiB in memory and on the log device.
pub const BIT_DEFAULT_BYTES: u32 = 64 << 10;

/// Most bits of a region: 512 divides [`BITS_PER_PAGE`], so no region lies on two pages.
pub const REGION_MAX_BITS: u32 = 512;
/// Default region, in bytes.
pub const REGION_DEFAULT_BYTES: u32 = 4 << 20;

/// Most regions of a volume: the hot set keeps 4 B for each, 64 MiB for 64 TiB in 4 MiB regions.
pub const REGIONS_MAX: u64 = 1 << 24;

/// Fewest hot regions: a write of 32 MiB touches up to 513 regions of 64 KiB, its pieces at most
/// [`PIECE_MAX_REGIONS`]; four of these must fit.
pub const HOT_MIN: u32 = 32;
/// Most hot regions: their record is 4 B each, 256 KiB.
pub const HOT_MAX: u32 = 65_536;
/// Default: 1,024 regions of 4 MiB are 4 GiB, some 20 s of resync at 200 MiB/s.
pub const HOT_DEFAULT: u32 = 1024;

/// Regions that one piece of a call may touch; longer calls are done piece by piece.
pub const PIECE_MAX_REGIONS: u32 = 8;

/// How often hot regions are looked at for such as nobody writes to, in milliseconds.
pub const COOL_TICK_MS: u64 = 500;
/// Looks without a write after which a region is cold: it leaves with others of its kind.
pub const COOL_TICKS: u32 = 2;
/// Looks after which it leaves though there are few of them: a volume at rest has nothing hot.
pub const COOL_TICKS_MAX: u32 = 8;
/// The share of the hot set that leaves at a time, where as much is idle: each time costs a flush
/// of the data, and so it is one flush for 128 new regions by default.
pub const LEAVE_SHARE: usize = 8;
/// Bitmap pages that one write carries where they lie side by side: 256 KiB of memory.
pub const PAGES_PER_WRITE: u64 = 64;

/// Places that a device which has grown may have ended at, as multiples of these, in bytes, and how
/// many of each are tried from the end downwards; all where no number is given. Some 4,400 reads and
/// two for each GiB: a second on an SSD of 1 TiB, half a minute on a disk that turns.
pub const SEARCH_STEPS: [(u64, Option<u64>); 7] = [
    (4096, Some(SEARCH_PER_STEP)),
    (1 << 20, Some(SEARCH_PER_STEP)),
    (4 << 20, Some(SEARCH_PER_STEP)),
    (64 << 20, Some(SEARCH_PER_STEP)),
    (1_000_000, Some(SEARCH_PER_STEP / 4)),
    (1 << 30, None),
    (1_000_000_000, None),
];
/// See [`SEARCH_STEPS`].
pub const SEARCH_PER_STEP: u64 = 1024;

/// How much before the end of a data device is looked at for the log of an earlier replica, in bytes,
/// where no replica is found: the log of a volume of 7 TiB. A tenth of a second on an SSD.
pub const TRACE_BYTES: u64 = 16 << 20;

/// How much of the beginning of a device is looked at before a log is made there, in bytes: file systems
/// and volume managers have their signatures within the first 256 KiB, and hosts' data follows soon.
pub const LOG_LOOK_BYTES: u64 = 1 << 20;

/// Most writes of one bitmap page: a century of 10,000 a second. Those of all pages of the largest
/// volume fit into 64 bits together.
pub const PAGE_WRITES_MAX: u64 = 1 << 45;
/// A superblock says so often at least how far a log has come that is on a device of its own, in
/// milliseconds: what was put there from a copy older than that is told from it. A write a minute, by
/// nobody's call.
pub const LOG_NOTE_MS: u64 = 60_000;

/// Peers that a superblock has room for.
pub const PEERS_MAX: usize = 2;
/// Generations of the past that a superblock remembers. Older ones mean "unrelated".
pub const HISTORY_LEN: usize = 16;
/// Generations that a peer may hold and still be brought up to date from the bitmap alone: the one
/// it had when it was lost, and those announced to it by a hand-over whose answer was never heard.
pub const BASES_LEN: usize = 4;

/// Bytes that resync copies at a time, at most: the range is locked against writes that long.
pub const COPY_BYTES: u64 = 256 << 10;
/// Copies between two flushes of the resync's target: bits are cleared after the flush alone.
pub const COPIES_PER_FLUSH: usize = 32;
/// Copies in flight at a time: 16 × 256 KiB keep a link of 1 GB/s and 4 ms busy. 4 MiB of memory.
pub const COPIES: usize = 16;
/// What is zeroed at a time before the volume grows over it, in bytes: one call at a time, so that hosts
/// and resyncs hardly feel it.
pub const CLEAR_BYTES: u64 = 1 << 20;
/// A source asks its peers so often whether they have zeroed theirs, in milliseconds.
pub const CLEAR_LOOK_MS: u64 = 200;

/// Longest range of one question for checksums, in bytes.
pub const CHECK_BYTES: u64 = 1 << 20;

/// Numbers of ordered writes from the oldest that has not completed on, at the target: a source
/// sends at most [`QUEUE_WRITES`] before that is acknowledged, and what is longer than a transfer is
/// several. What waits for its turn takes some 60 B each.
pub const ORDER_WINDOW: u32 = 4 * QUEUE_WRITES as u32;
/// Writes in an asynchronous queue, at most: with some 500 B each for the task that sends it, 8 MiB.
pub const QUEUE_WRITES: usize = 16_384;
/// Bytes in an asynchronous queue by default: half a second of 128 MB/s. Payloads are pooled
/// memory, so it has to be well below the pool's ceiling.
pub const QUEUE_BYTES: u64 = 64 << 20;
/// Bytes of it sent and not acknowledged: a link of 1 GB/s and 16 ms.
pub const QUEUE_WINDOW_BYTES: u64 = 16 << 20;

/// A peer that acknowledges from memory is flushed so often at least, in milliseconds: what it
/// was told since is copied again when it is lost.
pub const PEER_FLUSH_MS: u64 = 1000;
/// A write that would be held, for which there is no memory, is turned away after so long, in
/// milliseconds: a host that sends it again at once does so no more often, and it is well within the
/// 30 s that Linux waits for a command.
pub const TURNED_AWAY_MS: u64 = 10_000;
/// Pause between attempts to reach a peer, in milliseconds: doubled from the first to the last.
pub const RETRY_MIN_MS: u64 = 100;
/// See [`RETRY_MIN_MS`].
pub const RETRY_MAX_MS: u64 = 5000;

/// A peer that was left behind because its queue was full is brought up to date no sooner than
/// this, in milliseconds: else it would fall behind and catch up in turns for ever.
pub const BEHIND_PAUSE_MS: u64 = 10_000;

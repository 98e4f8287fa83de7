//! Memory and work bounds of this crate, with their arithmetic.

use std::time::Duration;

/// Unit of the map, the log and the checksums, in bytes.
pub const BLOCK_BYTES: usize = 4096;

/// Most devices of a pool.
pub const DEVICES_MAX: usize = 16;

/// Blocks per segment: 64 KiB to 32 MiB.
pub const SEGMENT_BLOCKS: std::ops::RangeInclusive<u32> = 16..=8192;

/// Default blocks per segment: 8 MiB.
pub const SEGMENT_BLOCKS_DEFAULT: u32 = 2048;

/// Fewest segments of a pool: the reserve takes eight.
pub const SEGMENTS_MIN: u32 = 32;

/// Most segments of a pool: 128 TiB of 8 MiB. The tables of live blocks take 8 B each.
pub const SEGMENTS_MAX: u32 = 1 << 24;

/// Most payload blocks of a chunk: with its header 1 MiB, the largest buffer for which there is a
/// reserve.
pub const CHUNK_PAYLOAD_BLOCKS: usize = 255;

/// Chunks of a core whose device writes are in flight. Writes that arrive meanwhile gather in the
/// next chunk. 8 × 1 MiB per core is the most memory that they hold.
pub const CHUNKS_IN_FLIGHT: usize = 8;

/// Lists of records and checksums of chunks that are kept for the next ones: 16 × 13 KiB.
pub const RECYCLED_MAX: usize = 16;

/// Segments that a log device holds: at least two more than are written to and written out at a
/// time, at most 16 GiB of 8 MiB.
pub const LOG_SLOTS: std::ops::RangeInclusive<u32> = 4..=2048;

/// Blocks of one copy from the log device to a device of the pool: 1 MiB.
pub const WRITE_OUT_BLOCKS: u32 = 256;

/// Such copies in flight. Together they are the default segment.
pub const WRITE_OUT_COPIES: usize = 8;

/// Volumes that the superblock lists by identifier: 2,800 B.
pub const TAIL_VOLUMES_MAX: usize = 700;

/// Pause of the writers after which the log device is written out, although no segment is full.
pub const WRITE_OUT_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

/// Chunks of all cores that are written and wait for their turn to take effect.
pub const CHUNKS_UNAPPLIED: usize = 256;

/// Most recent changes in memory: 262,144 of 48 B in a table at most half full take 24 MiB, twice
/// because a checkpoint holds one table while the other fills.
pub const RECENT_MAX: usize = 1 << 18;
/// Most map pages that one checkpoint copies for the cleaner.
pub const MOVING_MAX: usize = RECENT_MAX / 4;

/// Zeroed ranges in memory between checkpoints, beyond those that are recorded block by block. Each
/// lookup compares with them.
pub const RANGES_MAX: usize = 64;

/// Zeroed ranges up to this length are recorded block by block.
pub const ZERO_BY_BLOCK: u64 = 64;

/// Longest zeroed range of one record, in blocks: 16 GiB, whose 16,645 leaves are merged at once.
pub const ZERO_RECORD_BLOCKS: u64 = 4 << 20;

/// Map pages in memory, unless another number is asked for: 16,384 of 4 KiB are 64 MiB, and map
/// 15.75 GiB.
pub const CACHE_PAGES: usize = 16_384;

/// Memory of map pages that can be asked for, in bytes: 1 MiB to 64 GiB, which map 15.75 TiB.
pub const MAP_CACHE_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 36;

/// Most volumes and snapshots of a pool, those being deleted included.
pub const VOLUMES_MAX: usize = 16_384;

/// Most volumes of one snapshot order: 4 B each in a chunk header.
pub const SNAPSHOT_GROUP_MAX: usize = 512;

/// Longest name of a pool or volume, in bytes: 63 and 128.
pub const POOL_NAME_MAX: usize = 63;
/// See [`POOL_NAME_MAX`].
pub const VOLUME_NAME_MAX: usize = 128;

/// Most bytes of a volume's encoded properties. With name and fixed fields they fit a chunk header.
pub const PROPERTIES_MAX: usize = 2048;

/// Largest volume table, in bytes: 16,384 volumes × 2,280 B, rounded up.
pub const VOLUME_TABLE_BYTES_MAX: usize = 36 << 20;

/// Largest volume, in blocks: 16 PiB.
pub const VOLUME_BLOCKS_MAX: u64 = 1 << 42;

/// Map pages of deleted volumes and snapshots that one checkpoint reads and frees.
pub const REAP_PAGES: usize = 4096;

/// Pages of a map in one chunk of a checkpoint: 256 KiB.
pub const PAGES_PER_CHUNK: usize = 64;

/// Segments of the log after which a checkpoint is due: 64 of 8 MiB are 512 MiB to replay.
pub const LOG_SEGMENTS_MAX: usize = 64;

/// For how long a checkpoint or an opening repeats the read of one block: a controller that is
/// reset, or a path that changes, answers within seconds.
pub const READ_RETRY_TIME: Duration = Duration::from_secs(10);

/// For how long it repeats reads of all blocks.
pub const READ_RETRY_TOTAL: Duration = Duration::from_secs(60);

/// Pause between two attempts.
pub const READ_PAUSE: Duration = Duration::from_millis(250);

/// Checkpoints until the cleaner tries a segment again that it could not clean.
pub const DAMAGED_CHECKPOINTS: u64 = 64;

/// Passes of the cleaner without a gain after which the pool counts as clean.
pub const FRUITLESS_PASSES: u32 = 8;

/// Steps without progress after which an evacuation ends: each is a pass of the cleaner.
pub const EVACUATION_STEPS: u32 = 1000;

/// Segments from which on the others of a pool can be filled by an evacuation. With fewer, the
/// checkpoint of a pass may take what the pass frees, and the evacuation ends without room: in
/// tests from 80 % of the capacity of 32 to 64 segments, and never of 100.
pub const EVACUATION_SEGMENTS: u32 = 100;

/// Checkpoints for which a write waits in a full pool: one may be in progress when it begins, one
/// may merge what a snapshot sealed, and the next merges everything that was written before it.
pub const MERGES_WAITED: u64 = 3;

/// Checkpoints for which a write waits for the cleaner, which frees space that others may take.
pub const PASSES_WAITED: u64 = 64;

/// The same for a write whose space is reserved, and that others cannot take: only a pool of which
/// segments are damaged has no room then.
pub const RESERVED_PASSES_WAITED: u64 = 1024;

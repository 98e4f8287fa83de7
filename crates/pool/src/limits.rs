//! Memory and work bounds of this crate, with their arithmetic.

use std::time::Duration;

/// Unit of the map, the log and the checksums, in bytes.
pub const BLOCK_BYTES: usize = 4096;

/// Most devices of a pool.
pub const DEVICES_MAX: usize = 16;

/// Devices that a pool may have had since it was opened, with those that took the places of removed
/// ones. Each keeps a handle, of a few hundred bytes.
pub const DEVICES_OPENED_MAX: usize = 32;

/// Blocks per segment: 64 KiB to 32 MiB.
pub const SEGMENT_BLOCKS: std::ops::RangeInclusive<u32> = 16..=8192;

/// Default blocks per segment: 8 MiB.
pub const SEGMENT_BLOCKS_DEFAULT: u32 = 2048;

/// Fewest segments of a pool: eight of them are the reserve.
pub const SEGMENTS_MIN: u32 = 32;

/// Most segments of a pool: 128 TiB in segments of 8 MiB. The tables of live blocks take 8 B each.
pub const SEGMENTS_MAX: u32 = 1 << 24;

/// Most payload blocks of a chunk. With its header it takes 1 MiB, the largest reserved buffer.
pub const CHUNK_PAYLOAD_BLOCKS: usize = 255;

/// Most blocks of a compressed unit: a read of one block reads and decompresses at most 32 KiB.
pub const UNIT_BLOCKS: usize = 8;

/// Compressed units between two yields to the other tasks of a core: at 0.2 ms each with Zstandard,
/// less than 1 ms.
pub const UNITS_PER_SLICE: usize = 4;

/// Level of Zstandard.
pub const ZSTD_LEVEL: i32 = 3;

/// Most units of a volume that are not tried after data that did not compress: 2 MiB.
pub const GIVE_UP_MAX: u32 = 64;

/// Most chunks of a core in flight. Writes that arrive meanwhile join the next chunk. They hold at
/// most 8 × 1 MiB per core.
pub const CHUNKS_IN_FLIGHT: usize = 8;

/// Empty lists of records and checksums that are kept for reuse by later chunks: 16 × 13 KiB.
pub const RECYCLED_MAX: usize = 16;

/// Segments on a log device. At least four: one being written, one being written out, and two more;
/// at most 16 GiB in segments of 8 MiB.
pub const LOG_SLOTS: std::ops::RangeInclusive<u32> = 4..=2048;

/// Blocks of one copy from the log device to a device of the pool: 1 MiB.
pub const WRITE_OUT_BLOCKS: u32 = 256;

/// Most of these copies in flight. Together they are as large as the default segment.
pub const WRITE_OUT_COPIES: usize = 8;

/// Volumes that the superblock lists by identifier: 2,800 B.
pub const TAIL_VOLUMES_MAX: usize = 700;

/// Pause of the writers after which an incomplete segment is written out, too.
pub const WRITE_OUT_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

/// Most written chunks of all cores that wait for earlier ones to take effect.
pub const CHUNKS_UNAPPLIED: usize = 256;

/// Most recent changes in memory: 262,144 of 48 B in a table at most half full take 24 MiB, twice
/// because a checkpoint holds one table while the other fills.
pub const RECENT_MAX: usize = 1 << 18;
/// Most map pages that a checkpoint copies for the cleaner.
pub const MOVING_MAX: usize = RECENT_MAX / 4;

/// Most zeroed ranges in memory between checkpoints, without those recorded block by block. Each
/// lookup scans them.
pub const RANGES_MAX: usize = 64;

/// Most changed blocks that a log contains after a checkpoint. They are those of two tables: one
/// checkpoint may be incomplete. Into a table with `recent` and `copies` of its sizes,
/// - admission lets changes of hosts until `recent` + `copies` <= `RECENT_MAX`, and one chunk;
/// - a pass of the cleaner adds its copies without admission: at most the largest of `recent` / 2,
///   `copies` and 8 × 8,192. Of two passes, the first left the table at most half full.
///
/// Copies that exceed `copies` count as changes of hosts, so in each of the three cases, a table
/// has at most 1.5 × `RECENT_MAX` entries and 255 blocks of the chunk. The limit exceeds two of
/// them by a quarter, whatever the size of the pool was. Replayed tables take less than 256 MiB.
pub const REPLAYED_MAX: usize = 4 * RECENT_MAX - (1 << 14);

/// Most ranges of zeroes in such a log: admission lets [`RANGES_MAX`] into a table.
pub const REPLAYED_RANGES_MAX: usize = 2 * RANGES_MAX;

/// Zeroed ranges up to this length are recorded block by block.
pub const ZERO_BY_BLOCK: u64 = 64;

/// Longest zeroed range of one record, in blocks: 16 GiB.
pub const ZERO_RECORD_BLOCKS: u64 = 4 << 20;

/// Most map leaves in the range of one record: 1 GiB of written blocks. A quarter of
/// [`ZEROED_LEAVES_MAX`], so that several discards share a checkpoint.
pub const ZERO_RECORD_LEAVES: u64 = 1024;

/// Map leaves in zeroed ranges after which further ones wait for a checkpoint: those of 4 GiB. A
/// checkpoint merges at most as many and those of one record. A disk of 750 reads per second reads
/// them in 7 seconds, for which orders wait, and hosts once the other table is full.
pub const ZEROED_LEAVES_MAX: u64 = 4096;

/// Default number of cached map pages: 16,384 of 4 KiB are 64 MiB, and map 15.75 GiB.
pub const CACHE_PAGES: usize = 16_384;

/// Possible memory for cached map pages, in bytes: 1 MiB to 64 GiB, which map 15.75 TiB.
pub const MAP_CACHE_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 36;

/// Most volumes and snapshots of a pool, including those being deleted.
pub const VOLUMES_MAX: usize = 16_384;

/// Most volumes of one snapshot order: 4 B each in a chunk header.
pub const SNAPSHOT_GROUP_MAX: usize = 512;

/// Longest name of a pool or volume, in bytes: 63 and 128.
pub const POOL_NAME_MAX: usize = 63;
/// See [`POOL_NAME_MAX`].
pub const VOLUME_NAME_MAX: usize = 128;

/// Most bytes of a volume's encoded properties. With name and fixed fields they fit a chunk header.
pub const PROPERTIES_MAX: usize = 2048;

/// Largest volume table, in bytes: 16,384 volumes × 2,296 B, rounded up, or fewer encrypted ones of
/// up to 2,389 B. Pools reserve space by it, so a larger one would take space from full pools.
pub const VOLUME_TABLE_BYTES_MAX: usize = 36 << 20;

/// Largest volume, in blocks: 16 PiB.
pub const VOLUME_BLOCKS_MAX: u64 = 1 << 42;

/// Map pages that one checkpoint reaps.
pub const REAP_PAGES: usize = 4096;

/// Pages of a map in one chunk of a checkpoint: 256 KiB.
pub const PAGES_PER_CHUNK: usize = 64;

/// Segments of the log after which a checkpoint is due: 512 MiB to replay, in segments of 8 MiB.
pub const LOG_SEGMENTS_MAX: usize = 64;

/// Longest time for which a checkpoint or an opening repeats the read of one block. A controller
/// reset or a path change takes seconds.
pub const READ_RETRY_TIME: Duration = Duration::from_secs(10);

/// Longest time for retries of all blocks together.
pub const READ_RETRY_TOTAL: Duration = Duration::from_secs(60);

/// Longest time of a call to a device of a pool with redundancy while the other device of the pair
/// answers. Then the pool continues with the other copy: below the command timeout of hosts, 30 s.
pub const LEG_TIME_LIMIT: Duration = Duration::from_secs(10);

/// Time in which a device counts as answering: it reads its superblock.
pub const LEG_ANSWER_TIME: Duration = Duration::from_secs(1);

/// Bytes of one copy between two legs: 1 MiB.
pub const REBUILD_BYTES: u64 = 1 << 20;

/// Most failed reads of one leg that wait for a repair: 24 KiB. Beyond it, the oldest is found
/// again by a later read.
pub const READ_FAULTS_MAX: usize = 1024;

/// Segments between two records of a rebuild's progress: 512 MiB in segments of 8 MiB.
pub const REBUILD_RECORD_SEGMENTS: u32 = 64;

/// Pause between two attempts of a read.
pub const READ_PAUSE: Duration = Duration::from_millis(250);

/// Checkpoints after which the cleaner tries a segment again that it could not clean.
pub const DAMAGED_CHECKPOINTS: u64 = 64;

/// Segments that a pass of the cleaner surveys for locked units: 2 GiB of 8 MiB each.
pub const SURVEYS_MAX: usize = 256;

/// Passes of the cleaner without a gain after which cleaning is over.
pub const FRUITLESS_PASSES: u32 = 8;

/// Steps without progress after which an evacuation fails. Each step is a pass of the cleaner.
pub const EVACUATION_STEPS: u32 = 1000;

/// Checkpoints for which a write waits when an evacuation has emptied its device, and the others
/// lack free segments for what is reserved. Otherwise hosts would take each segment as soon as the
/// cleaner has freed it.
pub const EVACUATION_HOLDS: u64 = 2;

/// Fewest segments with which an evacuation can fill the other devices. With fewer, a checkpoint
/// may take as much as the pass before it frees, and the evacuation fails: in
/// tests with 32 to 64 segments from 80 % of the capacity on, with 100 segments never.
pub const EVACUATION_SEGMENTS: u32 = 100;

/// Checkpoints that a write waits for in a full pool: the running one, one for sealed changes of a
/// snapshot, and one that merges all earlier writes.
pub const MERGES_WAITED: u64 = 3;

/// Passes that a write waits for while the cleaner frees space, which other writes may take.
pub const PASSES_WAITED: u64 = 64;

/// Memory of the index of deduplication, in bytes per TiB of the pool: entries of 16 B for a
/// quarter of its blocks.
pub const DEDUP_INDEX_BYTES_PER_TIB: u64 = 1 << 30;

/// Most memory of the index of deduplication, in bytes: a window of 256 GiB.
pub const DEDUP_INDEX_BYTES_MAX: u64 = 1 << 30;

/// Pause between two segments that are scanned for equal blocks while hosts write: 8 MiB/s.
pub const DEDUP_PAUSE: Duration = Duration::from_secs(1);

/// Most blocks that are copied to save one by sharing. Each copy may rewrite a leaf of each
/// snapshot.
pub const DEDUP_COPIES_MAX: usize = 16;

/// Live blocks with equal ones that are packed together: 2 MiB, and once more as stored.
pub const DEDUP_BATCH_BLOCKS: usize = 512;

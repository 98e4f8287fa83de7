//! Limits of the format and of the programs that read and write it.

/// Size of a block, in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// Longest piece, in blocks: the unit of compression and of checksums.
pub const PIECE_BLOCKS_MAX: u32 = 64;

/// Longest piece, in bytes.
pub const PIECE_BYTES_MAX: usize = PIECE_BLOCKS_MAX as usize * BLOCK_BYTES as usize;

/// Longest pack, in bytes.
pub const PACK_BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 8 << 20 };

/// Blocks of a range of the volume that has an index of its own: 512 MiB.
pub const RANGE_BLOCKS: u32 = if cfg!(test) { 1 << 9 } else { 1 << 17 };

/// Bytes of a range.
pub const RANGE_BYTES: u64 = RANGE_BLOCKS as u64 * BLOCK_BYTES;

/// Packs of a range that one writer makes at most. Each but the last has 7.75 MiB or more: 67 are
/// needed.
pub const RANGE_PACKS: u32 = 128;

/// Largest volume, in bytes.
pub const VOLUME_BYTES_MAX: u64 = 64 << 40;

/// Writers whose packs an index names. With the extents of a range it is below 8 MiB.
pub const INDEX_WRITERS_MAX: usize = 30_000;

/// Longest index object, in bytes.
pub const INDEX_BYTES_MAX: usize = 8 << 20;

/// Longest object of an index, which may be sealed, in bytes.
pub const INDEX_OBJECT_BYTES_MAX: usize = INDEX_BYTES_MAX + crate::seal::SEAL_BYTES as usize;

/// Longest manifest, in bytes.
pub const MANIFEST_BYTES_MAX: usize = 64 << 20;

/// Longest head object, in bytes.
pub const HEAD_BYTES_MAX: usize = 16 << 20;

/// Longest record of a key, and longest copy of an entry, in bytes.
pub const COPY_BYTES_MAX: usize = 16 << 10;

/// Records of keys of a prefix, of which interruptions may leave several.
pub const KEY_RECORDS_MAX: usize = 1000;

/// Longest name of an object in its folder that a listing keeps, in bytes.
pub const OBJECT_NAME_BYTES_MAX: usize = 64;

/// Backups of a prefix.
pub const BACKUPS_MAX: usize = 10_000;

/// Unfinished backups of a prefix.
pub const UNFINISHED_MAX: usize = 100;

/// Interruptions after which an unfinished backup begins again.
pub const ATTEMPTS_MAX: usize = 100;

/// Longest name of a volume or a snapshot, in bytes.
pub const NAME_BYTES_MAX: usize = 128;

/// Uploads in flight: 32 MiB of packs.
pub const UPLOADS_MAX: usize = 4;

/// Downloads in flight, of at most [`WINDOW_BYTES_MAX`] and the gaps between their pieces.
pub const DOWNLOADS_MAX: usize = 4;

/// Plain bytes of the pieces that are downloaded together.
pub const WINDOW_BYTES_MAX: usize = 8 << 20;

/// Indexes that a reader keeps in memory: at most 12 MiB each.
pub const INDEXES_CACHED: usize = 8;

/// Pieces that a reader keeps in memory: at most 256 KiB each, 64 MiB in all.
pub const PIECES_CACHED: usize = 256;

/// Longest gap between two pieces that a request reads, in bytes.
pub const GAP_BYTES_MAX: u32 = 128 << 10;

/// Attempts of a request that fails for a reason that may pass.
pub const TRIES_MAX: u32 = 7;

/// Attempts to replace the head, which other commands may replace first.
pub const HEAD_TRIES_MAX: u32 = 30;

/// Attempts of a prune, which other prunes may overtake.
pub const PRUNE_TRIES_MAX: u32 = 10;

/// Time limit of a request, in seconds.
pub const REQUEST_S: u64 = 120;

/// Time after which a running backup renews its record, in seconds.
pub const RENEWAL_S: u64 = 3600;

/// Time by which clocks of servers may differ, in seconds. A backup of a later time was made with a
/// wrong clock.
pub const CLOCK_ERROR_S: u64 = 24 * 3600;

/// Objects of one writer that a listing may have.
pub const LISTED_MAX: usize = 20_000_000;

/// Packs that a backup needs: twice those of the largest volume.
pub const PACKS_MAX: u64 = 1 << 24;

/// Damaged objects that a report names.
pub const DAMAGE_MAX: usize = 10_000;

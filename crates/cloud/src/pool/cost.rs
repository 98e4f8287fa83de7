//! Cost of a host's I/O on the disk below a pool, as arithmetic.
//!
//! Model, for random I/O spread evenly over the working set:
//! - **Write amplification.** The log overwrites its segments in turn. A block of a segment is
//!   still live when the cleaner reaches the segment with probability `u`, where `fullness = (1 -
//!   u) / ln(1 / u)` (Menon and Stockmeyer 1995 for arrays, Desnoyers 2012 for SSDs). Each segment
//!   gives back `1 - u` of its space, so each written block costs `1 / (1 - u)` block writes, as in
//!   Rosenblum and Ousterhout 1992. Uneven overwrites cost less.
//! - **Gathering.** Writes that wait for the disk share one device write, up to a chunk.
//! - **Map.** A leaf page has the places of 252 blocks. Leaves beyond the cache are read for every
//!   lookup; a checkpoint writes each leaf that changed since the one before.
//!
//! Figures of the pool come from `docs/pool-format.md` and the limits of the crate `pool`.

/// Unit of the map and the log, in bytes.
const BLOCK_BYTES: f64 = 4096.0;
/// Most payload blocks of a chunk, which has a header of one block.
const CHUNK_BLOCKS: f64 = 255.0;
/// Most blocks that the cleaner copies in one chunk.
const COPIES_PER_CHUNK: f64 = 111.0;
/// Blocks whose places one map page holds.
const LEAF_BLOCKS: f64 = 252.0;
/// Map pages that a checkpoint writes at once.
const PAGES_PER_CHUNK: f64 = 64.0;
/// Changes of blocks between two checkpoints: 64 segments of 8 MiB.
const CHANGES_PER_CHECKPOINT: f64 = 131_072.0;
/// Largest transfer that clouds count as one I/O. The catalogs' pages do not say; 256 KiB is what
/// EBS documents.
const COUNTED_BYTES: f64 = 262_144.0;

/// Live share of the segments that the cleaner reaches, 0 to 1, in a pool that is this full.
pub fn victim_live_share(fullness: f64) -> f64 {
    // (1 - u) / ln(1 / u) rises with u.
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let u: f64 = f64::midpoint(low, high);
        let full = if u > 0.0 { (1.0 - u) / (1.0 / u).ln() } else { 0.0 };
        if full < fullness { low = u } else { high = u }
    }
    low
}

/// Block writes per block that hosts write: 1 without cleaning.
pub fn write_amplification(fullness: f64) -> f64 {
    1.0 / (1.0 - victim_live_share(fullness))
}

/// I/Os and bytes of the disk for one I/O of a host.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct DeviceCost {
    /// Reads, as the cloud counts them.
    pub read_ios: f64,
    /// Writes, as the cloud counts them.
    pub write_ios: f64,
    /// Bytes read.
    pub read_bytes: f64,
    /// Bytes written.
    pub write_bytes: f64,
}

/// A load of a pool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PoolLoad {
    /// Blocks of 4 KiB of each I/O.
    pub(super) blocks: f64,
    /// I/Os in flight, if bounded.
    pub(super) in_flight: Option<f64>,
    /// Live share of the space, above 0 and below 1.
    pub(super) fullness: f64,
    /// Bytes over which the I/O is spread.
    pub(super) working_set_bytes: f64,
    /// Memory of the map cache.
    pub(super) cache_bytes: f64,
}

impl PoolLoad {
    fn leaves(&self) -> f64 {
        (self.working_set_bytes / BLOCK_BYTES / LEAF_BLOCKS).max(1.0)
    }

    /// Share of lookups that read a map page from the disk.
    pub(super) fn miss_share(&self) -> f64 {
        (1.0 - self.cache_bytes / BLOCK_BYTES / self.leaves()).max(0.0)
    }

    /// Blocks of hosts in one chunk.
    fn gathered_blocks(&self) -> f64 {
        let most = self.in_flight.map_or(CHUNK_BLOCKS, |in_flight| in_flight * self.blocks);
        most.clamp(1.0, CHUNK_BLOCKS)
    }

    pub(super) fn of_write(&self) -> DeviceCost {
        let amplification = write_amplification(self.fullness);
        let (gathered, misses) = (self.gathered_blocks(), self.miss_share());
        let (host, copied) = (self.blocks, self.blocks * (amplification - 1.0));
        let examined = self.blocks * amplification;
        let leaves = self.leaves();
        // Blocks that the cleaner copies change leaves too.
        let changed = leaves * (1.0 - (-CHANGES_PER_CHECKPOINT / leaves).exp());
        let pages = changed / CHANGES_PER_CHECKPOINT * examined;
        let write_bytes = BLOCK_BYTES
            * (host * (1.0 + 1.0 / gathered)
                + copied * (1.0 + 1.0 / COPIES_PER_CHUNK)
                + pages * (1.0 + 1.0 / PAGES_PER_CHUNK));
        let counted = |blocks: f64, per_transfer: f64| {
            blocks * (1.0 / per_transfer).max(BLOCK_BYTES / COUNTED_BYTES)
        };
        let write_ios = counted(host * (1.0 + 1.0 / gathered), gathered + 1.0)
            + counted(copied, COPIES_PER_CHUNK)
            + counted(pages, PAGES_PER_CHUNK);
        // The cleaner reads header and payload of each chunk, and looks up every block of it.
        let lookups = misses * (examined + pages);
        let read_ios = examined / gathered + counted(examined, gathered) + lookups;
        let read_bytes = BLOCK_BYTES * (examined * (1.0 + 1.0 / gathered) + lookups);
        DeviceCost { read_ios, write_ios, read_bytes, write_bytes }
    }

    pub(super) fn of_read(&self) -> DeviceCost {
        let misses = self.miss_share();
        // Blocks of one read may lie in as many places of the log.
        DeviceCost {
            read_ios: self.blocks + misses,
            write_ios: 0.0,
            read_bytes: BLOCK_BYTES * (self.blocks + misses),
            write_bytes: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_amplification_matches_published_curve() {
        // Desnoyers 2012, LRU cleaning under uniform random writes.
        for (fullness, expected) in [(0.5, 1.255), (0.75, 2.21), (0.8, 2.69), (0.9, 5.18)] {
            let found = write_amplification(fullness);
            assert!((found / expected - 1.0).abs() < 0.01, "{fullness}: {found}");
        }
        assert!(write_amplification(0.01) < 1.001);
    }

    const LOAD: PoolLoad = PoolLoad {
        blocks: 1.0,
        in_flight: None,
        fullness: 0.5,
        working_set_bytes: 1e9,
        cache_bytes: 67_108_864.0,
    };

    #[test]
    fn cached_map_costs_no_reads() {
        assert_eq!(LOAD.miss_share(), 0.0);
        let wide = PoolLoad { working_set_bytes: 250e9, ..LOAD };
        assert!((wide.miss_share() - 0.932).abs() < 0.001, "{}", wide.miss_share());
        let (near, far) = (LOAD.of_write(), wide.of_write());
        assert!(near.read_ios < 0.1 && far.read_ios > 1.5, "{near:?} {far:?}");
        assert!(LOAD.of_read().read_ios == 1.0 && wide.of_read().read_ios > 1.9);
    }

    #[test]
    fn shallow_queue_gathers_less() {
        let shallow = PoolLoad { in_flight: Some(1.0), ..LOAD }.of_write();
        let deep = PoolLoad { in_flight: Some(32.0), ..LOAD }.of_write();
        assert!(shallow.write_ios > 1.0 && deep.write_ios < 0.06, "{shallow:?} {deep:?}");
        assert!(shallow.write_bytes > 1.5 * deep.write_bytes);
    }
}

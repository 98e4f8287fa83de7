//! Assembly of a manifest from new ranges and those of the base.

use std::collections::{BTreeMap, BTreeSet};

use crate::document::{Manifest, PackRun, RangeEntry};
use crate::id::{Checksum, WriterId};
use crate::index::{Extent, PieceRef};
use crate::limits::BLOCK_BYTES;

/// Content of a range of the new backup.
#[derive(Default)]
pub(crate) struct RangeResult {
    pub(crate) writer: WriterId,
    pub(crate) index_bytes: u64,
    pub(crate) index_sha256: Checksum,
    pub(crate) data_bytes: u64,
    pub(crate) stored_bytes: u64,
    /// Pieces and index that were stored for this backup.
    pub(crate) new_bytes: u64,
    pub(crate) packs: BTreeSet<(WriterId, u32)>,
}

impl RangeResult {
    pub(crate) fn new(
        writer: WriterId,
        index: &[u8],
        extents: &[Extent],
        own: &[WriterId],
    ) -> RangeResult {
        let pieces: BTreeSet<&PieceRef> = extents.iter().map(|extent| &extent.piece).collect();
        let stored = |piece: &&PieceRef| u64::from(piece.stored);
        let is_new = |piece: &&&PieceRef| own.contains(&piece.writer);
        RangeResult {
            writer,
            index_bytes: index.len() as u64,
            index_sha256: Checksum::of(index),
            data_bytes: extents.iter().map(|extent| u64::from(extent.blocks) * BLOCK_BYTES).sum(),
            stored_bytes: pieces.iter().map(stored).sum(),
            new_bytes: pieces.iter().filter(is_new).map(stored).sum::<u64>() + index.len() as u64,
            packs: pieces.iter().map(|piece| (piece.writer, piece.pack)).collect(),
        }
    }
}

/// List of writers of a manifest.
#[derive(Default)]
pub(crate) struct Writers {
    pub(crate) list: Vec<WriterId>,
    places: BTreeMap<WriterId, u32>,
}

impl Writers {
    fn place(&mut self, writer: WriterId) -> u32 {
        *self.places.entry(writer).or_insert_with(|| {
            self.list.push(writer);
            self.list.len() as u32 - 1
        })
    }

    /// Entry of a range of this backup.
    pub(crate) fn new_entry(&mut self, range: u32, result: &RangeResult) -> RangeEntry {
        let mut packs: Vec<PackRun> = Vec::new();
        for (writer, number) in &result.packs {
            let place = self.place(*writer);
            match packs.last_mut() {
                Some(PackRun(last, first, count))
                    if *last == place && *first + *count == *number =>
                {
                    *count += 1;
                }
                _ => packs.push(PackRun(place, *number, 1)),
            }
        }
        RangeEntry {
            range,
            writer: self.place(result.writer),
            index_bytes: result.index_bytes,
            index_sha256: result.index_sha256,
            data_bytes: result.data_bytes,
            stored_bytes: result.stored_bytes,
            packs,
        }
    }

    /// Entry of another manifest, with the places of this list.
    pub(crate) fn old_entry(&mut self, base: &Manifest, entry: &RangeEntry) -> RangeEntry {
        let mut moved = |place: u32| self.place(base.writer(place).expect("a manifest is checked"));
        let writer = moved(entry.writer);
        let packs = entry.packs.iter();
        let packs =
            packs.map(|PackRun(place, first, count)| PackRun(moved(*place), *first, *count));
        RangeEntry { writer, packs: packs.collect(), ..entry.clone() }
    }
}

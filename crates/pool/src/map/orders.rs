//! Orders: effect of a record on the volume table and the trees, the same at run time and in a
//! replay.

use std::collections::BTreeMap;

use super::tree::Tree;
use crate::ondisk::FormatError;
use crate::ondisk::chunk::ChunkRecord;
use crate::ondisk::entry::MapEntry;
use crate::ondisk::volume_table::VolumeTable;

/// Trees by volume or snapshot.
pub(crate) type Trees = BTreeMap<u32, Tree>;

/// Applies an order with its sequence in the log; other records change nothing. A new snapshot has
/// no tree until the checkpoint that merges the earlier changes.
///
/// # Errors
/// [`FormatError::Field`] for an order that does not fit the volume table.
pub(crate) fn apply_order(
    volume_table: &mut VolumeTable,
    trees: &mut Trees,
    record: &ChunkRecord,
    sequence: u64,
) -> Result<(), FormatError> {
    let unmerged = FormatError::Field("snapshot");
    match record {
        ChunkRecord::Volume(volume) => {
            let fresh = Tree { volume: volume.id, level: 1, root: MapEntry::HOLE };
            let from = match (trees.get(&volume.id), volume.parent) {
                (Some(tree), _) => *tree,
                (None, 0) => fresh,
                (None, parent) => *trees.get(&parent).ok_or(unmerged)?,
            };
            volume_table.upsert(volume)?;
            trees.insert(volume.id, Tree { volume: volume.id, ..from });
        }
        ChunkRecord::Delete { volume } => volume_table.delete(*volume)?,
        ChunkRecord::Snapshot(order) => volume_table.snapshot(order, sequence)?,
        ChunkRecord::Rollback { volume, snapshot } => {
            let to = *trees.get(snapshot).ok_or(unmerged)?;
            let hidden = volume_table.rollback(*volume, *snapshot)?;
            let former = trees.insert(*volume, Tree { volume: *volume, ..to }).ok_or(unmerged)?;
            trees.insert(hidden, Tree { volume: hidden, ..former });
        }
        ChunkRecord::Promote { volume } => volume_table.promote(*volume)?,
        ChunkRecord::Data { .. }
        | ChunkRecord::Unit { .. }
        | ChunkRecord::Zero { .. }
        | ChunkRecord::Moved { .. }
        | ChunkRecord::MovedUnit { .. }
        | ChunkRecord::Page { .. } => {}
    }
    Ok(())
}

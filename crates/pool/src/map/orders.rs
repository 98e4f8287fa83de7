//! Orders: effect of a record on the catalog and the trees, the same at run time and in a replay.

use std::collections::BTreeMap;

use super::tree::Tree;
use crate::ondisk::FormatError;
use crate::ondisk::catalog::Catalog;
use crate::ondisk::chunk::Record;
use crate::ondisk::entry::Entry;

/// Trees by volume or snapshot.
pub(crate) type Trees = BTreeMap<u32, Tree>;

/// Applies an order with its sequence in the log; other records change nothing. A new snapshot has
/// no tree until the checkpoint that merges the earlier changes.
///
/// # Errors
/// [`FormatError::Field`] for an order that contradicts the catalog.
pub(crate) fn apply_order(
    catalog: &mut Catalog,
    trees: &mut Trees,
    record: &Record,
    sequence: u64,
) -> Result<(), FormatError> {
    let unmerged = FormatError::Field("snapshot");
    match record {
        Record::Volume(volume) => {
            let fresh = Tree { volume: volume.id, level: 1, root: Entry::HOLE };
            let from = match (trees.get(&volume.id), volume.parent) {
                (Some(tree), _) => *tree,
                (None, 0) => fresh,
                (None, parent) => *trees.get(&parent).ok_or(unmerged)?,
            };
            catalog.upsert(volume)?;
            trees.insert(volume.id, Tree { volume: volume.id, ..from });
        }
        Record::Delete { volume } => catalog.delete(*volume)?,
        Record::Snapshot(order) => catalog.snapshot(order, sequence)?,
        Record::Rollback { volume, snapshot } => {
            let to = *trees.get(snapshot).ok_or(unmerged)?;
            let hidden = catalog.rollback(*volume, *snapshot)?;
            let former = trees.insert(*volume, Tree { volume: *volume, ..to }).ok_or(unmerged)?;
            trees.insert(hidden, Tree { volume: hidden, ..former });
        }
        Record::Promote { volume } => catalog.promote(*volume)?,
        Record::Data { .. } | Record::Zero { .. } | Record::Moved { .. } | Record::Page { .. } => {}
    }
    Ok(())
}

//! Owners: finds the volumes and snapshots that have a block or page, by its birth.
//!
//! The nodes that share a block are connected in the [ancestry](crate::ondisk::ancestry). Their top
//! is at least as new as the block, and its parent is older. It is a volume or snapshot of the
//! source that wrote the block, or a node that replaced such a snapshot when that was deleted.

use std::collections::BTreeMap;

use crate::manage::shared::State;
use crate::map::tree::Tree;

/// A volume or snapshot in the ancestry.
#[derive(Clone, Copy, Debug)]
pub(super) struct AncestryNode {
    pub(super) id: u32,
    pub(super) tree: Tree,
    /// False for a volume, whose blocks may change.
    pub(super) is_snapshot: bool,
    sequence: u64,
    /// Sequence of the parent.
    floor: u64,
}

/// Ancestry at the beginning of a cleaning pass. It does not change during the pass.
#[derive(Debug, Default)]
pub(super) struct Owners {
    by_source: BTreeMap<u32, Vec<AncestryNode>>,
    adopted: Vec<AncestryNode>,
    children: BTreeMap<u32, Vec<AncestryNode>>,
}

impl Owners {
    pub(super) fn of(state: &State) -> Owners {
        let mut owners = Owners::default();
        let volume_table = &state.volume_table;
        for volume in volume_table.volumes.values() {
            let Some(tree) = state.trees.get(&volume.id).copied() else { continue };
            let sequence = volume.sequence();
            let node = AncestryNode {
                id: volume.id,
                tree,
                is_snapshot: sequence.is_some(),
                sequence: sequence.unwrap_or(u64::MAX),
                floor: volume_table.sequence_of(volume.parent),
            };
            if volume.parent != 0 {
                owners.children.entry(volume.parent).or_default().push(node);
            }
            match volume.adopted {
                true => owners.adopted.push(node),
                false => owners.by_source.entry(volume.source()).or_default().push(node),
            }
        }
        owners
    }

    /// Candidates for the top owner of a block with this source and birth. Exactly one has the
    /// block if it is live.
    pub(super) fn tops(&self, source: u32, birth: u64) -> impl Iterator<Item = AncestryNode> {
        let own = self.by_source.get(&source).into_iter().flatten();
        let fits = move |node: &&AncestryNode| node.floor < birth && birth <= node.sequence;
        own.chain(&self.adopted).filter(fits).copied()
    }

    /// Volumes and snapshots whose parent is this snapshot.
    pub(super) fn children(&self, id: u32) -> impl Iterator<Item = AncestryNode> {
        self.children.get(&id).into_iter().flatten().copied()
    }
}

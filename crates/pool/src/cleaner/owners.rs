//! Owners: which volumes and snapshots have a block or page, found by its birth.
//!
//! What has a block is connected in the ancestry (see [`crate::ondisk::ancestry`]). Its top is the
//! volume or snapshot that is not older than the block, with a parent that is; it was taken from
//! the volume that wrote the block, or adopted its place.

use std::collections::BTreeMap;

use crate::manage::shared::State;
use crate::map::tree::Tree;

/// A volume or snapshot in the ancestry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) id: u32,
    pub(super) tree: Tree,
    /// False for a volume, whose blocks change.
    pub(super) is_snapshot: bool,
    sequence: u64,
    /// Sequence of its parent.
    floor: u64,
}

/// The ancestry as it was when a pass of the cleaner began; it does not change meanwhile.
#[derive(Debug, Default)]
pub(super) struct Owners {
    by_source: BTreeMap<u32, Vec<Node>>,
    adopted: Vec<Node>,
    children: BTreeMap<u32, Vec<Node>>,
}

impl Owners {
    pub(super) fn of(state: &State) -> Owners {
        let mut owners = Owners::default();
        let volume_table = &state.volume_table;
        for volume in volume_table.volumes.values() {
            let Some(tree) = state.trees.get(&volume.id).copied() else { continue };
            let sequence = volume.sequence();
            let node = Node {
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

    /// The volumes and snapshots of which one has a block with this source and birth, unless it is
    /// dead.
    pub(super) fn tops(&self, source: u32, birth: u64) -> impl Iterator<Item = Node> {
        let own = self.by_source.get(&source).into_iter().flatten();
        let fits = move |node: &&Node| node.floor < birth && birth <= node.sequence;
        own.chain(&self.adopted).filter(fits).copied()
    }

    /// What continues from a snapshot.
    pub(super) fn children(&self, id: u32) -> impl Iterator<Item = Node> {
        self.children.get(&id).into_iter().flatten().copied()
    }
}

//! Ancestry: forest of volumes and snapshots, and the orders that change it.
//!
//! Ownership by birth. The owner of a block or map page is the topmost node whose sequence is at
//! least the birth of the block. The node's descendants share the block until they overwrite it. So
//! the nodes that share a block are connected, and no reference counts are needed: a volume frees
//! blocks newer than its parent. A deleted snapshot frees blocks newer than its parent that its
//! only child does not have.

use std::collections::BTreeSet;

use super::FormatError;
use super::chunk::SnapshotOrder;
use super::volume_table::{LEG_PROPERTY, VolumeKind, VolumePresence, VolumeRecord, VolumeTable};
use crate::id::PoolId;

/// Range of births that a map owns, in contrast to blocks shared with its parent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    /// The map owns blocks with a birth above this sequence.
    pub parent: u64,
    /// Position up to which the parent was reaped, if it is being deleted.
    pub reaped: u64,
    /// Sequence of the grandparent, which counts instead of `parent` below `reaped`.
    pub grandparent: u64,
}

impl Ownership {
    /// True if the map owns an entry that covers the blocks before `end`.
    pub fn is_own(&self, birth: u64, end: u64) -> bool {
        birth > if end <= self.reaped { self.grandparent } else { self.parent }
    }
}

impl VolumeRecord {
    /// True for a volume that can be opened.
    pub fn is_present_volume(&self) -> bool {
        self.state == VolumePresence::Present && self.kind == VolumeKind::Volume
    }

    /// Sequence of a snapshot: it contains the chunks before it.
    pub fn sequence(&self) -> Option<u64> {
        match self.kind {
            VolumeKind::Volume => None,
            VolumeKind::Snapshot { sequence, .. } => Some(sequence),
        }
    }

    /// Volume that wrote the unshared blocks of this node.
    pub fn source(&self) -> u32 {
        match self.kind {
            VolumeKind::Volume => self.id,
            VolumeKind::Snapshot { source, .. } => source,
        }
    }

    /// Volume whose name a present snapshot has.
    pub fn owner(&self) -> Option<u32> {
        match (self.kind, self.state) {
            (VolumeKind::Snapshot { owner, .. }, VolumePresence::Present) => Some(owner),
            _ => None,
        }
    }
}

impl VolumeTable {
    /// True if a change of blocks takes effect. A change in flight has no effect if its volume was
    /// deleted, or rolled back to a smaller size.
    pub fn takes_effect(&self, volume: u32, block: u64, count: u64) -> bool {
        let volume = self.volumes.get(&volume).filter(|volume| volume.is_present_volume());
        volume.is_some_and(|volume| block + count <= volume.blocks)
    }

    /// A snapshot that can be opened.
    pub fn present_snapshot(&self, id: u32) -> Option<&VolumeRecord> {
        self.volumes.get(&id).filter(|snapshot| snapshot.owner().is_some())
    }

    /// Present snapshots by identifier, which is the order of creation.
    pub fn snapshots(&self) -> impl Iterator<Item = &VolumeRecord> {
        self.volumes.values().filter(|snapshot| snapshot.owner().is_some())
    }

    /// The present snapshot `volume@snapshot`.
    pub fn snapshot_by_name(&self, name: &str) -> Option<&VolumeRecord> {
        let (volume, name) = name.split_once('@')?;
        let owner = self.by_name(volume)?.id;
        self.snapshots().find(|snapshot| snapshot.owner() == Some(owner) && snapshot.name == name)
    }

    /// Full name of a present snapshot.
    pub fn snapshot_name(&self, snapshot: &VolumeRecord) -> Option<String> {
        Some(format!("{}@{}", self.volumes.get(&snapshot.owner()?)?.name, snapshot.name))
    }

    /// Name of a volume, or full name of a snapshot.
    pub fn full_name(&self, of: &VolumeRecord) -> String {
        self.snapshot_name(of).unwrap_or_else(|| of.name.clone())
    }

    /// Volumes and snapshots whose parent is this snapshot.
    pub fn children(&self, id: u32) -> impl Iterator<Item = &VolumeRecord> {
        self.volumes.values().filter(move |child| child.parent == id)
    }

    /// Sequence of a snapshot; 0 without one.
    pub fn sequence_of(&self, id: u32) -> u64 {
        self.volumes.get(&id).and_then(VolumeRecord::sequence).unwrap_or(0)
    }

    /// Ownership of the blocks in the map of a volume or snapshot.
    pub fn ownership(&self, id: u32) -> Ownership {
        let parent = self.volumes.get(&id).map_or(0, |volume| volume.parent);
        let of_parent = self.volumes.get(&parent);
        Ownership {
            parent: self.sequence_of(parent),
            reaped: match of_parent.map(|parent| parent.state) {
                Some(VolumePresence::Deleting { reaped }) => reaped,
                _ => 0,
            },
            grandparent: of_parent.map_or(0, |parent| self.sequence_of(parent.parent)),
        }
    }

    /// Takes snapshots at a sequence of the log. They share the present maps of the volumes.
    ///
    /// # Errors
    /// [`FormatError::Field`] unless each volume is present, is named once, and has no snapshot of
    /// this name.
    pub fn snapshot(&mut self, order: &SnapshotOrder, sequence: u64) -> Result<(), FormatError> {
        let conflict = FormatError::Field("snapshot");
        let mut seen = BTreeSet::new();
        for id in &order.volumes {
            let taken = |snapshot: &VolumeRecord| {
                snapshot.owner() == Some(*id) && snapshot.name == order.name
            };
            let volume = self.volumes.get(id).filter(|volume| volume.is_present_volume());
            if volume.is_none() || !seen.insert(id) || self.snapshots().any(taken) {
                return Err(conflict);
            }
        }
        for id in &order.volumes {
            let fresh = self.next_id;
            let volume = self.volumes.get_mut(id).ok_or(conflict)?;
            let snapshot = VolumeRecord {
                id: fresh,
                kind: VolumeKind::Snapshot {
                    owner: *id,
                    source: *id,
                    sequence,
                    created_s: order.created_s,
                },
                name: order.name.clone(),
                uuid: order.uuid,
                thick: false,
                properties: Default::default(),
                encryption: None,
                ..volume.clone()
            };
            (volume.parent, volume.adopted) = (fresh, false);
            (volume.shared, volume.shared_weight) = (volume.mapped, volume.weight);
            self.insert(snapshot)?;
        }
        Ok(())
    }

    /// Gives a volume the map and size of a snapshot. A nameless volume that is being deleted gets
    /// the former map; returns its identifier.
    ///
    /// # Errors
    /// [`FormatError::Field`] unless the volume is present and owns the snapshot.
    pub fn rollback(&mut self, volume: u32, snapshot: u32) -> Result<u32, FormatError> {
        let conflict = FormatError::Field("rollback");
        let to = self.present_snapshot(snapshot).ok_or(conflict)?;
        if to.owner() != Some(volume) {
            return Err(conflict);
        }
        let (root, blocks, mapped, weight) = (to.root, to.blocks, to.mapped, to.weight);
        let hidden = self.next_id;
        let state = VolumePresence::Deleting { reaped: 0 };
        let rolled = self.volumes.get_mut(&volume).ok_or(conflict)?;
        let former = VolumeRecord {
            id: hidden,
            state,
            uuid: PoolId::default(),
            properties: Default::default(),
            encryption: None,
            ..rolled.clone()
        };
        (rolled.root, rolled.blocks, rolled.mapped, rolled.shared) = (root, blocks, mapped, mapped);
        (rolled.weight, rolled.shared_weight) = (weight, weight);
        (rolled.parent, rolled.adopted) = (snapshot, false);
        // The lost changes belonged to the content that this rollback replaces.
        rolled.incomplete = false;
        // Its rollback as a leg continues.
        rolled.properties.remove(LEG_PROPERTY);
        self.insert(former)?;
        Ok(hidden)
    }

    /// Ancestors of a volume, newest first.
    pub fn ancestors(&self, id: u32) -> impl Iterator<Item = &VolumeRecord> {
        let parent = |volume: &&VolumeRecord| self.volumes.get(&volume.parent);
        std::iter::successors(self.volumes.get(&id), parent).skip(1)
    }

    /// Newest ancestor of a volume that another volume owns: for a clone, the snapshot from which
    /// it and its own snapshots continue.
    pub fn origin(&self, id: u32) -> Option<&VolumeRecord> {
        self.ancestors(id).find(|snapshot| snapshot.owner().is_some_and(|owner| owner != id))
    }

    /// Makes a clone the owner of its ancestors that other volumes own.
    ///
    /// # Errors
    /// [`FormatError::Field`] unless the volume is a clone, or if two snapshots would have one
    /// name.
    pub fn promote(&mut self, volume: u32) -> Result<(), FormatError> {
        let conflict = FormatError::Field("promotion");
        if !self.volumes.get(&volume).is_some_and(VolumeRecord::is_present_volume) {
            return Err(conflict);
        }
        let mut names: BTreeSet<String> = self
            .snapshots()
            .filter(|snapshot| snapshot.owner() == Some(volume))
            .map(|snapshot| snapshot.name.clone())
            .collect();
        let foreign =
            |snapshot: &&VolumeRecord| snapshot.owner().is_some_and(|owner| owner != volume);
        let taken: Vec<(u32, String)> = self
            .ancestors(volume)
            .filter(foreign)
            .map(|snapshot| (snapshot.id, snapshot.name.clone()))
            .collect();
        if taken.is_empty() || !taken.iter().all(|(_, name)| names.insert(name.clone())) {
            return Err(conflict);
        }
        for (id, _) in taken {
            let snapshot = self.volumes.get_mut(&id).ok_or(conflict)?;
            if let VolumeKind::Snapshot { owner, .. } = &mut snapshot.kind {
                *owner = volume;
            }
        }
        Ok(())
    }

    /// Marks a volume or snapshot as deleted. Checkpoints free its blocks.
    ///
    /// # Errors
    /// [`FormatError::Field`] unless it is a present volume that owns no snapshot, or a present
    /// snapshot with at most one child.
    pub fn delete(&mut self, id: u32) -> Result<(), FormatError> {
        let conflict = FormatError::Field("deletion");
        let deletable = match self.volumes.get(&id) {
            Some(volume) if volume.is_present_volume() => {
                !self.snapshots().any(|snapshot| snapshot.owner() == Some(id))
            }
            Some(snapshot) if snapshot.owner().is_some() => self.children(id).count() <= 1,
            _ => false,
        };
        match self.volumes.get_mut(&id) {
            Some(volume) if deletable => {
                volume.state = VolumePresence::Deleting { reaped: 0 };
                Ok(())
            }
            _ => Err(conflict),
        }
    }

    /// Removes a volume or snapshot after its last block was freed. Its parent becomes the parent
    /// of its child, which then owns the remaining blocks that the parent lacks.
    pub(crate) fn remove_reaped(&mut self, id: u32) {
        let Some(gone) = self.volumes.remove(&id) else { return };
        let left = gone.mapped.saturating_sub(gone.shared);
        let left_weight = gone.own_weight();
        for child in self.volumes.values_mut().filter(|child| child.parent == id) {
            child.parent = gone.parent;
            child.adopted |= gone.adopted || child.source() != gone.source();
            (child.shared, child.shared_weight) = match gone.parent {
                0 => (0, 0),
                _ => (
                    child.shared.saturating_sub(left),
                    child.shared_weight.saturating_sub(left_weight),
                ),
            };
        }
    }

    /// Checks the relations between volumes, which decoding of a single volume cannot check.
    pub(super) fn check_ancestry(&self) -> Result<(), FormatError> {
        let bad = FormatError::Field("ancestry");
        let mut midway = 0;
        for volume in self.volumes.values() {
            // A parent always has a lower sequence, so there are no cycles.
            let older = match self.volumes.get(&volume.parent).map(VolumeRecord::sequence) {
                None => volume.parent == 0,
                Some(None) => false,
                Some(Some(parent)) => volume.sequence().is_none_or(|own| parent < own),
            };
            let is_volume = |id| self.volumes.get(&id).is_some_and(VolumeRecord::is_present_volume);
            let owned = volume.owner().is_none_or(is_volume);
            // Shared blocks are encrypted with one key, or plain.
            let is_present = |id: &u32| {
                self.volumes.get(id).is_some_and(|other| other.state == VolumePresence::Present)
            };
            let is_alike = !is_present(&volume.id)
                || !is_present(&volume.parent)
                || self.is_encrypted(volume.id) == self.is_encrypted(volume.parent);
            midway += usize::from(
                matches!(volume.state, VolumePresence::Deleting { reaped } if reaped > 0),
            );
            let is_shared = volume.shared > 0 || volume.shared_weight > 0;
            if !older || !owned || !is_alike || midway > 1 || is_shared && volume.parent == 0 {
                return Err(bad);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn order(volumes: &[u32], name: &str) -> SnapshotOrder {
        let volumes = volumes.to_vec();
        SnapshotOrder { name: name.to_owned(), volumes, uuid: PoolId([1; 16]), created_s: 7 }
    }

    fn volume(id: u32, name: &str, parent: u32) -> VolumeRecord {
        VolumeRecord { parent, ..VolumeRecord::new(id, name.to_owned(), 100) }
    }

    /// Volume 1 with snapshots 3 and 4, and clone 5 of snapshot 3; volume 2 with snapshot 6.
    fn family() -> VolumeTable {
        let mut volume_table = VolumeTable::default();
        volume_table.upsert(&volume(1, "db", 0)).unwrap();
        volume_table.upsert(&volume(2, "log", 0)).unwrap();
        volume_table.snapshot(&order(&[1], "a"), 10).unwrap();
        volume_table.snapshot(&order(&[1], "b"), 20).unwrap();
        volume_table.upsert(&volume(5, "test", 3)).unwrap();
        volume_table.snapshot(&order(&[2], "a"), 30).unwrap();
        volume_table.check_ancestry().unwrap();
        volume_table
    }

    fn parents(volume_table: &VolumeTable) -> Vec<(u32, u32)> {
        volume_table.volumes.values().map(|volume| (volume.id, volume.parent)).collect()
    }

    #[test]
    fn snapshots_are_found_by_name_and_order() {
        let volume_table = family();
        assert_eq!(parents(&volume_table), [(1, 4), (2, 6), (3, 0), (4, 3), (5, 3), (6, 0)]);
        assert_eq!(volume_table.snapshot_by_name("db@b").unwrap().id, 4);
        assert!(volume_table.snapshot_by_name("test@a").is_none());
        let of_clone = Ownership { parent: 10, reaped: 0, grandparent: 0 };
        assert_eq!(volume_table.ownership(5), of_clone);
        assert!(of_clone.is_own(11, 50) && !of_clone.is_own(10, 50));
        assert_eq!(VolumeTable::decode(&volume_table.encode(), 1000), Ok(volume_table));
    }

    #[test]
    fn impossible_orders_change_nothing() {
        let volume_table = family();
        let refused = |change: &dyn Fn(&mut VolumeTable) -> Result<(), FormatError>| {
            let mut tried = volume_table.clone();
            assert!(change(&mut tried).is_err());
            assert_eq!(tried, volume_table);
        };
        refused(&|volume_table| volume_table.snapshot(&order(&[1, 1], "c"), 40));
        refused(&|volume_table| volume_table.snapshot(&order(&[2, 1], "b"), 40));
        refused(&|volume_table| volume_table.snapshot(&order(&[3], "c"), 40));
        refused(&|volume_table| volume_table.rollback(2, 3).map(drop));
        refused(&|volume_table| volume_table.promote(1));
        refused(&|volume_table| volume_table.delete(1));
        refused(&|volume_table| volume_table.delete(3));
        refused(&|volume_table| volume_table.upsert(&volume(7, "more", 2)));
        refused(&|volume_table| {
            volume_table.upsert(&VolumeRecord { blocks: 99, ..volume(7, "more", 3) })
        });
    }

    #[test]
    fn promoted_clone_outlives_its_origin() {
        let mut volume_table = family();
        volume_table.promote(5).unwrap();
        assert_eq!(volume_table.snapshot_by_name("test@a").unwrap().id, 3);
        assert!(volume_table.promote(5).is_err());
        volume_table.delete(4).unwrap();
        volume_table.remove_reaped(4);
        volume_table.delete(1).unwrap();
        volume_table.remove_reaped(1);
        volume_table.delete(3).unwrap();
        volume_table.remove_reaped(3);
        assert_eq!(parents(&volume_table), [(2, 6), (5, 0), (6, 0)]);
        let clone = &volume_table.volumes[&5];
        assert!(clone.adopted, "blocks that volume 1 wrote are below a volume of another source");
        volume_table.check_ancestry().unwrap();
    }

    #[test]
    fn rollback_keeps_later_snapshots() {
        let mut volume_table = family();
        let volume = volume_table.volumes.get_mut(&1).unwrap();
        volume.incomplete = true;
        volume.properties.insert(LEG_PROPERTY.to_owned(), volume.uuid.to_string());
        assert_eq!(volume_table.rollback(1, 3), Ok(7));
        assert!(volume_table.volumes[&1].properties.is_empty(), "no mirror wrote its content");
        assert!(!volume_table.volumes[&1].incomplete, "the snapshot has all of its writes");
        assert_eq!(parents(&volume_table)[..2], [(1, 3), (2, 6)]);
        let former = &volume_table.volumes[&7];
        assert_eq!((former.parent, former.state), (4, VolumePresence::Deleting { reaped: 0 }));
        volume_table.check_ancestry().unwrap();
    }

    #[test]
    fn grandparent_owns_blocks_below_the_deletion_walk() {
        let mut volume_table = family();
        volume_table.delete(4).unwrap();
        volume_table.volumes.get_mut(&4).unwrap().state = VolumePresence::Deleting { reaped: 50 };
        let ownership = volume_table.ownership(1);
        assert!(ownership.is_own(15, 50) && !ownership.is_own(15, 51));
        assert!(!ownership.is_own(10, 50) && ownership.is_own(21, 51));
    }

    #[test]
    fn impossible_ancestry_is_refused() {
        let damage = |change: &dyn Fn(&mut BTreeMap<u32, VolumeRecord>)| {
            let mut volume_table = family();
            change(&mut volume_table.volumes);
            assert_eq!(volume_table.check_ancestry(), Err(FormatError::Field("ancestry")));
        };
        let set = |volumes: &mut BTreeMap<u32, VolumeRecord>, id, parent| {
            volumes.get_mut(&id).unwrap().parent = parent;
        };
        damage(&|volumes| set(volumes, 3, 4));
        damage(&|volumes| set(volumes, 3, 3));
        damage(&|volumes| set(volumes, 5, 1));
        damage(&|volumes| set(volumes, 5, 99));
        damage(&|volumes| drop(volumes.remove(&2)));
    }
}

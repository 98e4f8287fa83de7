//! Snapshots and clones: the orders that change the ancestry of volumes, and the differences
//! between two snapshots.
//!
//! Invariant: ancestry changes only while neither a checkpoint nor the cleaner runs, so neither
//! sees it change. Hosts continue to write.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use flagstone_blockdev::IoError;
use flagstone_runtime::time::wall_clock;

use super::backing::{Claim, ClaimedSpace};
use super::pool::{OrderGuard, Pool};
use super::shared::{MaintenancePause, Shared, State};
use super::space::OrderKind;
use super::volume::PoolVolume;
use crate::error::VolumeError;
use crate::id::PoolId;
use crate::limits::{BLOCK_BYTES, SNAPSHOT_GROUP_MAX};
use crate::map::recent::Recent;
use crate::map::tree::{Tree, read_page};
use crate::ondisk::chunk::{ChunkRecord, SnapshotOrder};
use crate::ondisk::entry::MapEntry;
use crate::ondisk::page::{FANOUT, MapPage, PagePlace, span};
use crate::ondisk::volume_table::{VolumeKind, VolumePresence, VolumeRecord, VolumeTable, is_name};

/// Most map pages that a call of [`Pool::diff`] compares, and most ranges in its result.
const DIFF_STEPS: usize = 4096;

/// A snapshot, as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Full name, `volume@snapshot`.
    pub name: String,
    /// Common identifier of the snapshots that were taken together, also of other pools.
    pub id: PoolId,
    /// Identifier of its volume. One that is created anew under the name has another.
    pub volume_id: PoolId,
    /// Identifier of the pool.
    pub pool_id: PoolId,
    /// Time of the snapshot, in seconds since 1970.
    pub created_s: u64,
    /// Size of the snapshot, in bytes.
    pub size_bytes: u64,
    /// Mapped bytes, including those shared with other volumes and snapshots.
    pub referenced_bytes: u64,
    /// Its data is encrypted at rest.
    pub is_encrypted: bool,
    /// Volumes of which it is the origin.
    pub clones: Vec<String>,
    /// Volumes and snapshots whose parent is this snapshot. With more than one it cannot be
    /// deleted.
    pub users: Vec<String>,
}

/// Ranges that differ between two snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    /// Ranges in bytes, ascending. Blocks written twice with the same content count as different.
    pub ranges: Vec<Range<u64>>,
    /// Offset at which to continue; `None` at the end.
    pub next: Option<u64>,
}

/// Right to keep the maintenance task from working. Released on drop.
pub(crate) struct MaintenanceTurn(Arc<Shared>);

impl Drop for MaintenanceTurn {
    fn drop(&mut self) {
        self.0.state.lock().pause = MaintenancePause::None;
        self.0.progress.notify();
    }
}

/// A checked snapshot that can be taken at once: no checkpoint or cleaning runs, and none begins.
/// Take it soon, because writes may wait for a checkpoint. Dropping it takes no snapshot.
pub struct PreparedSnapshot {
    pool: Pool,
    order: SnapshotOrder,
    locks: (MaintenanceTurn, OrderGuard, ClaimedSpace),
}

impl PreparedSnapshot {
    /// Takes the snapshots durably, at one point of the order of writes. They contain every write
    /// that was acknowledged before the call, and none that begins after it returns.
    ///
    /// # Errors
    /// Errors of the devices.
    pub async fn take(self) -> Result<(), VolumeError> {
        let PreparedSnapshot { pool, order, locks } = self;
        pool.commit(locks, ChunkRecord::Snapshot(Box::new(order))).await.map(drop)
    }
}

impl Pool {
    /// Waits until the maintenance task is idle and all snapshots are merged, and keeps it idle.
    pub(crate) async fn maintenance_turn(&self) -> Result<MaintenanceTurn, VolumeError> {
        let shared = self.shared();
        shared.state.lock().pause = MaintenancePause::Waiting;
        let turn = MaintenanceTurn(shared.clone());
        let rests = || {
            let mut state = shared.state.lock();
            if let Err(error) = state.check() {
                return Some(Err(error));
            }
            let rests = !state.maintenance.works() && state.frozen.is_none();
            rests.then(|| {
                state.pause = MaintenancePause::Held;
                Ok(())
            })
        };
        shared.progress.notify();
        shared.progress.wait_for(rests).await?;
        // Sealing the recent changes needs an empty table, which is allocated here because that
        // takes time.
        if shared.state.lock().spare.is_none() {
            let log = shared.state.lock().position.log;
            let spare = Recent::new(shared.sizes.table(), log);
            shared.state.lock().spare = Some(spare);
        }
        Ok(turn)
    }

    pub(super) fn unknown_snapshot(&self, name: &str) -> VolumeError {
        let (pool, name) = (self.shared().name.clone(), name.to_owned());
        VolumeError::UnknownSnapshot { pool, name }
    }

    /// Prepares a snapshot of volumes. `id` identifies the snapshots that are taken together, also
    /// those of other pools.
    ///
    /// # Errors
    /// [`VolumeError`] for unknown volumes, a name in use or impossible, too many volumes, a
    /// reservation of a thick volume that no longer fits, and errors of the devices.
    pub async fn prepare_snapshot(
        &self,
        volumes: &[&str],
        name: &str,
        id: PoolId,
    ) -> Result<PreparedSnapshot, VolumeError> {
        let found = |volume_table: &VolumeTable| {
            let found = volumes.iter().filter_map(|name| volume_table.by_name(name));
            Some(Claim::Snapshots(found.map(|volume| volume.id).collect()))
        };
        let backing = self.shared().back(found).await?;
        let order = self.order(OrderKind::Other).await?;
        let ids = {
            let mut state = self.shared().state.lock();
            let ids = self.snapshot_volumes(&state, volumes, name)?;
            self.check_space(&mut state, &backing, Some(Claim::Snapshots(ids.clone())))?;
            ids
        };
        let turn = self.maintenance_turn().await?;
        let created_s = wall_clock().as_secs();
        let locks = (turn, order, backing);
        let order = SnapshotOrder { name: name.to_owned(), volumes: ids, uuid: id, created_s };
        Ok(PreparedSnapshot { pool: self.clone(), order, locks })
    }

    /// Checks an order to take snapshots, except for space. Returns the identifiers of the volumes.
    pub(super) fn snapshot_volumes(
        &self,
        state: &State,
        volumes: &[&str],
        name: &str,
    ) -> Result<Vec<u32>, VolumeError> {
        if !is_name(name) {
            return Err(VolumeError::Field("name"));
        }
        if !(1..=SNAPSHOT_GROUP_MAX).contains(&volumes.len()) {
            return Err(VolumeError::Field("number of volumes"));
        }
        let mut ids = Vec::with_capacity(volumes.len());
        for volume in volumes {
            let found = state.volume_table.by_name(volume).ok_or_else(|| self.unknown(volume))?;
            if found.incomplete {
                return Err(VolumeError::Incomplete { name: (*volume).to_owned() });
            }
            let full = format!("{volume}@{name}");
            if ids.contains(&found.id) || state.volume_table.snapshot_by_name(&full).is_some() {
                let pool = self.shared().name.clone();
                return Err(VolumeError::SnapshotExists { pool, name: full });
            }
            ids.push(found.id);
        }
        let bytes = ids.len() * VolumeRecord::new(1, name.to_owned(), 1).encoded_len();
        self.check_room(state, ids.len(), bytes)?;
        Ok(ids)
    }

    /// Takes a snapshot of each of these volumes, all at one point of the order of writes. Writes
    /// continue, unless the table of recent changes is full.
    ///
    /// # Errors
    /// As [`Pool::prepare_snapshot`].
    pub async fn create_snapshot(
        &self,
        volumes: &[&str],
        name: &str,
    ) -> Result<PoolId, VolumeError> {
        let id = PoolId::random();
        self.prepare_snapshot(volumes, name, id).await?.take().await?;
        Ok(id)
    }

    /// The snapshots, in the order of their creation.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        let state = self.shared().state.lock();
        let volume_table = &state.volume_table;
        let mut clones: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        let mut users: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for volume in volume_table.present().chain(volume_table.snapshots()) {
            if volume.is_present_volume()
                && let Some(origin) = volume_table.origin(volume.id)
            {
                clones.entry(origin.id).or_default().push(volume.name.clone());
            }
            users.entry(volume.parent).or_default().push(volume_table.full_name(volume));
        }
        let mut info = |snapshot: &VolumeRecord| {
            let VolumeKind::Snapshot { created_s, .. } = snapshot.kind else { return None };
            Some(SnapshotInfo {
                name: volume_table.snapshot_name(snapshot)?,
                id: snapshot.uuid,
                volume_id: volume_table.key_volume(snapshot.id)?.uuid,
                pool_id: state.superblock.pool,
                created_s,
                size_bytes: snapshot.blocks * BLOCK_BYTES as u64,
                referenced_bytes: snapshot.mapped * BLOCK_BYTES as u64,
                is_encrypted: volume_table.is_encrypted(snapshot.id),
                clones: clones.remove(&snapshot.id).unwrap_or_default(),
                users: users.remove(&snapshot.id).unwrap_or_default(),
            })
        };
        volume_table.snapshots().filter_map(&mut info).collect()
    }

    /// Identifiers of the snapshots of a volume, in the order of their creation.
    pub fn snapshot_ids(&self, volume: &str) -> Vec<PoolId> {
        let state = self.shared().state.lock();
        let Some(owner) = state.volume_table.by_name(volume) else { return Vec::new() };
        let snapshots = state.volume_table.snapshots();
        let own = snapshots.filter(|snapshot| snapshot.owner() == Some(owner.id));
        own.map(|snapshot| snapshot.uuid).collect()
    }

    /// The snapshot `volume@snapshot` as a read-only device.
    ///
    /// # Errors
    /// [`VolumeError::UnknownSnapshot`]; [`VolumeError::Locked`] without the key.
    pub fn open_snapshot(&self, name: &str) -> Result<Arc<PoolVolume>, VolumeError> {
        let mut state = self.shared().state.lock();
        let found = state.volume_table.snapshot_by_name(name);
        let (id, blocks) = found
            .map(|snapshot| (snapshot.id, snapshot.blocks))
            .ok_or_else(|| self.unknown_snapshot(name))?;
        self.open_by_id(&mut state, id, blocks, true)
    }

    /// Deletes a snapshot. Its handles fail every call from now on. Checkpoints free its unshared
    /// space. Works in a full pool.
    ///
    /// # Errors
    /// [`VolumeError::UnknownSnapshot`]; [`VolumeError::InUse`] if more than one volume or snapshot
    /// has it as parent; errors of the devices.
    pub async fn delete_snapshot(&self, name: &str) -> Result<(), VolumeError> {
        self.delete_matching(name, None).await
    }

    /// As [`Pool::delete_snapshot`], unless the snapshot of this name has another identifier by
    /// then.
    ///
    /// # Errors
    /// As [`Pool::delete_snapshot`].
    pub async fn delete_exact_snapshot(&self, name: &str, id: PoolId) -> Result<(), VolumeError> {
        self.delete_matching(name, Some(id)).await
    }

    async fn delete_matching(&self, name: &str, id: Option<PoolId>) -> Result<(), VolumeError> {
        let order = self.order(OrderKind::Deletion).await?;
        let snapshot = loop {
            let reaping = {
                let state = self.shared().state.lock();
                let found = state.volume_table.snapshot_by_name(name);
                let found = found.filter(|found| id.is_none_or(|id| found.uuid == id));
                let snapshot = found.ok_or_else(|| self.unknown_snapshot(name))?.id;
                let children: Vec<_> = state.volume_table.children(snapshot).collect();
                if children.len() <= 1 {
                    break snapshot;
                }
                let present =
                    children.iter().filter(|child| child.state == VolumePresence::Present);
                let users: Vec<String> =
                    present.map(|child| state.volume_table.full_name(child)).collect();
                if users.len() > 1 {
                    let users = users.join(", ");
                    return Err(VolumeError::InUse { snapshot: name.to_owned(), users });
                }
                self.checkpoint()
            };
            reaping.await?;
        };
        let _order = self.commit(order, ChunkRecord::Delete { volume: snapshot }).await?;
        self.want_checkpoint();
        Ok(())
    }

    /// Replaces content and size of a volume by those of one of its snapshots. Later writes are
    /// lost, unless a later snapshot has them; later snapshots stay. Hosts must not use the volume
    /// meanwhile: its content changes under them.
    ///
    /// # Errors
    /// [`VolumeError`] for an unknown volume or snapshot, a reservation of a thick volume that no
    /// longer fits, and errors of the devices.
    pub async fn rollback(&self, volume: &str, snapshot: &str) -> Result<(), VolumeError> {
        if let Some(info) = self.volume(volume).filter(|info| info.leg_rollback().is_some()) {
            // Otherwise it would go on in the new content.
            self.release_leg(&info).await?;
        }
        self.replace_content(volume, snapshot).await
    }

    /// As [`Pool::rollback`], which may be a step of the rollback of a leg.
    pub(super) async fn replace_content(
        &self,
        volume: &str,
        snapshot: &str,
    ) -> Result<(), VolumeError> {
        let full = format!("{volume}@{snapshot}");
        let claim = |volume_table: &VolumeTable| {
            let (volume, snapshot) =
                (volume_table.by_name(volume)?.id, volume_table.snapshot_by_name(&full)?.id);
            Some(Claim::Rollback { volume, snapshot })
        };
        let backing = self.shared().back(claim).await?;
        let order = self.order(OrderKind::Other).await?;
        let (volume, snapshot) = {
            let mut state = self.shared().state.lock();
            let ids = self.rollback_ids(&state, volume, &full)?;
            let claim = claim(&state.volume_table);
            self.check_space(&mut state, &backing, claim)?;
            ids
        };
        let turn = self.maintenance_turn().await?;
        let record = ChunkRecord::Rollback { volume, snapshot };
        let (turn, _order, backing) = self.commit((turn, order, backing), record).await?;
        drop((turn, backing));
        self.want_checkpoint();
        Ok(())
    }

    /// Checks a rollback, except for space. Returns the identifiers of volume and snapshot.
    pub(super) fn rollback_ids(
        &self,
        state: &State,
        volume: &str,
        snapshot: &str,
    ) -> Result<(u32, u32), VolumeError> {
        let target = state.volume_table.by_name(volume).ok_or_else(|| self.unknown(volume))?;
        let found = state.volume_table.snapshot_by_name(snapshot);
        let found = found.ok_or_else(|| self.unknown_snapshot(snapshot))?;
        let hidden = VolumeRecord::new(1, target.name.clone(), 1).encoded_len();
        self.check_room(state, 1, hidden)?;
        Ok((target.id, found.id))
    }

    /// True if the volume was written or resized since one of its snapshots.
    ///
    /// # Errors
    /// [`VolumeError`] for an unknown volume or snapshot, and errors of the devices.
    pub async fn has_changed(&self, volume: &str, snapshot: &str) -> Result<bool, VolumeError> {
        self.checkpoint().await?;
        let state = self.shared().state.lock();
        let own = state.volume_table.by_name(volume).ok_or_else(|| self.unknown(volume))?;
        let found = state.volume_table.snapshot_by_name(snapshot);
        let found = found.ok_or_else(|| self.unknown_snapshot(snapshot))?;
        let tree = |of: &VolumeRecord| state.trees.get(&of.id).map(|tree| (tree.level, tree.root));
        let has_changes = state.view(own.id)?.has_changes();
        Ok(has_changes || own.blocks != found.blocks || tree(own) != tree(found))
    }

    /// Creates a thin volume with the content of a snapshot, whose blocks it shares, and whose data
    /// key it has.
    ///
    /// # Errors
    /// [`VolumeError`] for an unknown or locked snapshot, a name in use or impossible, and errors
    /// of the devices.
    pub async fn clone_volume(
        &self,
        snapshot: &str,
        name: &str,
        properties: BTreeMap<String, String>,
    ) -> Result<Arc<PoolVolume>, VolumeError> {
        let order = self.order(OrderKind::Other).await?;
        let turn = self.maintenance_turn().await?;
        let (record, cipher) = {
            let state = self.shared().state.lock();
            let found = state.volume_table.snapshot_by_name(snapshot);
            let found = found.ok_or_else(|| self.unknown_snapshot(snapshot))?;
            let cipher = state.cipher_of(found.id)?;
            let mut record =
                VolumeRecord::new(state.volume_table.next_id, name.to_owned(), found.blocks);
            record.parent = found.id;
            record.uuid = PoolId::random();
            record.properties = properties;
            let key = state.volume_table.key_volume(found.id);
            record.encryption = key.and_then(|volume| volume.encryption);
            self.check(&state, &record)?;
            (record, cipher)
        };
        let id = record.id;
        let _locks = self.commit((turn, order), ChunkRecord::Volume(Box::new(record))).await?;
        if let Some(cipher) = cipher {
            self.shared().state.lock().ciphers.insert(id, cipher);
        }
        self.open_volume(name)
    }

    /// Makes a clone the owner of its ancestors. The volume that owned them can then be deleted.
    ///
    /// # Errors
    /// [`VolumeError`] for an unknown volume, one that is no clone, two snapshots of one name, and
    /// errors of the devices.
    pub async fn promote_volume(&self, name: &str) -> Result<(), VolumeError> {
        let order = self.order(OrderKind::Other).await?;
        let volume = {
            let state = self.shared().state.lock();
            self.promotion_of(&state, name)?
        };
        self.commit(order, ChunkRecord::Promote { volume }).await.map(drop)
    }

    /// Checks a promotion. Returns the identifier of the volume.
    pub(super) fn promotion_of(&self, state: &State, name: &str) -> Result<u32, VolumeError> {
        let volume = state.volume_table.by_name(name).ok_or_else(|| self.unknown(name))?.id;
        check_promotion(&state.volume_table, volume, name)?;
        Ok(volume)
    }

    /// The trees of merged snapshots.
    async fn snapshot_trees(&self, names: [&str; 2]) -> Result<[Tree; 2], VolumeError> {
        let shared = self.shared();
        let find = || {
            let state = shared.state.lock();
            if let Err(error) = state.check() {
                return Some(Err(error.into()));
            }
            let mut trees = [None; 2];
            for (name, tree) in names.iter().zip(&mut trees) {
                let Some(snapshot) = state.volume_table.snapshot_by_name(name) else {
                    return Some(Err(self.unknown_snapshot(name)));
                };
                *tree = state.trees.get(&snapshot.id).copied();
            }
            let [Some(from), Some(to)] = trees else { return None };
            Some(Ok([from, to]))
        };
        shared.progress.wait_for(find).await
    }

    /// Ranges from `offset` on that differ between two snapshots `volume@snapshot`. Blocks of
    /// unrelated volumes differ wherever either snapshot has data.
    ///
    /// # Errors
    /// [`VolumeError::UnknownSnapshot`], or errors of the devices.
    pub async fn diff(&self, from: &str, to: &str, offset: u64) -> Result<Diff, VolumeError> {
        let block_bytes = BLOCK_BYTES as u64;
        // Maps may move between calls: each call looks them up again.
        let _guard = self.shared().state.lock().guard();
        let [from, to] = self.snapshot_trees([from, to]).await?;
        let end = span(from.level.max(to.level));
        let mut diff = Diff::default();
        let mut at = offset / block_bytes;
        for _ in 0..DIFF_STEPS {
            if at >= end || diff.ranges.len() >= DIFF_STEPS {
                break;
            }
            at = self.diff_step(&from, &to, at, &mut diff.ranges).await?;
        }
        diff.next = (at < end).then_some(at * block_bytes);
        Ok(diff)
    }

    /// Compares both trees at a block; returns the first block that was not compared.
    async fn diff_step(
        &self,
        from: &Tree,
        to: &Tree,
        at: u64,
        ranges: &mut Vec<Range<u64>>,
    ) -> Result<u64, IoError> {
        let (storage, cache) = (&self.shared().storage, &self.shared().cache);
        let mut level = from.level.min(to.level);
        let mut index = at / span(level);
        let mut old = from.lookup_page(storage, cache, level, index).await?;
        let mut new = to.lookup_page(storage, cache, level, index).await?;
        loop {
            if is_same(&old, &new) {
                return Ok((index + 1).saturating_mul(span(level)));
            }
            let [old_page, new_page] = {
                let place = PagePlace { volume: from.volume, level, index };
                let mut pages: [Arc<MapPage>; 2] = Default::default();
                for (entry, page) in [old, new].into_iter().zip(&mut pages) {
                    if !entry.is_hole() {
                        *page = read_page(storage, cache, entry, place).await?;
                    }
                }
                pages
            };
            if level == 1 {
                let first = index * FANOUT as u64;
                let pairs = old_page.entries.iter().zip(&new_page.entries);
                for ((old, new), block) in pairs.zip(first..).skip((at - first) as usize) {
                    push_difference(ranges, old, new, block);
                }
                return Ok(first + FANOUT as u64);
            }
            level -= 1;
            index = at / span(level);
            let below = index as usize % FANOUT;
            (old, new) = (old_page.entries[below], new_page.entries[below]);
        }
    }
}

/// Lost blocks count as different: their content is unknown.
fn is_same(old: &MapEntry, new: &MapEntry) -> bool {
    old.location == new.location && ![*old, *new].contains(&MapEntry::LOST)
}

fn push_difference(ranges: &mut Vec<Range<u64>>, old: &MapEntry, new: &MapEntry, block: u64) {
    if is_same(old, new) {
        return;
    }
    let range = block * BLOCK_BYTES as u64..(block + 1) * BLOCK_BYTES as u64;
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

fn check_promotion(volume_table: &VolumeTable, volume: u32, name: &str) -> Result<(), VolumeError> {
    let mut tried = volume_table.clone();
    if tried.promote(volume).is_ok() {
        return Ok(());
    }
    Err(match volume_table.origin(volume).is_some() {
        true => VolumeError::PromotedNames { name: name.to_owned() },
        false => VolumeError::NotAClone { name: name.to_owned() },
    })
}

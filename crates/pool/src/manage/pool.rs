//! Pool: opening, closing, orders on volumes, and the maintenance task.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use flagstone_blockdev::IoError;
use flagstone_runtime::sync::SharedNotify;
use flagstone_runtime::{CoreLocal, spawn, spawn_detached};
use parking_lot::Mutex;

use super::backing::{Claim, ClaimedSpace};
use super::handle::VolumeHandle;
use super::leg;
use super::log_device::LogDeviceStatus;
use super::shared::{MaintenanceTask, MaintenanceWork, Opened, Shared, State, Update, WriteOut};
use super::space::{OrderKind, Sizes};
use super::volume::{PoolVolume, VolumeInfo, VolumeOptions};
use crate::crypt::VolumeCipher;
use crate::crypt::key::WrappedKey;
use crate::dedup::{DedupStatus, domain_name};
use crate::error::{PoolError, VolumeError};
use crate::id::PoolId;
use crate::limits::{BLOCK_BYTES, CACHE_PAGES, MAP_CACHE_BYTES, VOLUMES_MAX};
use crate::log::append::chunk_memory;
use crate::log::position::BEGINNING_SEGMENTS;
use crate::map::cache::PageCache;
use crate::ondisk::FormatError;
use crate::ondisk::chunk::ChunkRecord;
use crate::ondisk::volume_table::{VolumeRecord, VolumeTable};
use crate::pairs::{LegInfo, rebuild};
use crate::storage::Storage;

/// Stops the maintenance task when the last handle of the pool and its volumes is dropped.
pub(crate) struct PoolGuard(pub(crate) Arc<Shared>);

impl Drop for PoolGuard {
    fn drop(&mut self) {
        self.0.state.lock().wanted.stop = true;
        self.0.progress.notify();
    }
}

/// An open pool. Clones refer to the same pool. Dropping the last handle of the pool and its
/// volumes stops it like a crash: call [`Pool::close`] first to make a checkpoint.
#[derive(Clone)]
pub struct Pool {
    pub(super) guard: Arc<PoolGuard>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({})", self.guard.0.name)
    }
}

/// State of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolStatus {
    /// Name.
    pub name: String,
    /// Identifier.
    pub id: PoolId,
    /// Names of the devices, in the order of the device table.
    pub devices: Vec<String>,
    /// Space for volumes and their maps, in bytes.
    pub capacity_bytes: u64,
    /// Space in use, in bytes. Counts recent changes in full, even if a checkpoint will find them
    /// overwritten.
    pub used_bytes: u64,
    /// Space beyond `used_bytes` that overwritten parts of compressed data hold until they are
    /// cleaned, in bytes, at most.
    pub held_bytes: u64,
    /// Sizes of the volumes together, in bytes.
    pub provisioned_bytes: u64,
    /// Data of the volumes as of the last checkpoint, before compression, in bytes. Blocks that
    /// volumes share count for each.
    pub data_bytes: u64,
    /// Space of this data after compression, in bytes.
    pub stored_bytes: u64,
    /// Space reserved for thick volumes that they do not use yet, in bytes.
    pub reserved_bytes: u64,
    /// Free segments, in bytes.
    pub free_segment_bytes: u64,
    /// Limit for cached map pages, in bytes.
    pub map_cache_bytes: u64,
    /// Number of volumes.
    pub volumes: usize,
    /// Checkpoints since the opening.
    pub checkpoints: u64,
    /// Segments that the cleaner emptied since the opening.
    pub cleaned_segments: u64,
    /// Live blocks that the cleaner copied since the opening.
    pub copied_blocks: u64,
    /// Bytes that sharing equal blocks freed since the opening, when they were copied: what is
    /// overwritten, or stored apart again, still counts.
    pub deduplicated_bytes: u64,
    /// State of deduplication, if a volume has it on.
    pub dedup: Option<DedupStatus>,
    /// True while the space of deleted volumes and snapshots is being freed.
    pub is_freeing: bool,
    /// Failure after which the pool fails changes, until it is opened again.
    pub failed: Option<IoError>,
    /// The log device, if the pool has one.
    pub log: Option<LogDeviceStatus>,
    /// The copies, in a pool with redundancy.
    pub redundancy: Option<RedundancyStatus>,
}

/// Copies of a pool with redundancy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedundancyStatus {
    /// The devices, two for each pair.
    pub legs: Vec<LegInfo>,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Reads since the opening that one device failed and the other answered.
    pub failed_reads: u64,
    /// Blocks since the opening that were rewritten from the other device.
    pub repaired_blocks: u64,
    /// Blocks since the opening that a rebuild could not read, and so did not copy. They may be
    /// free: a scrub finds those in use.
    pub left_out_blocks: u64,
}

/// Lock of the running order: only one order runs at a time. Released on drop.
pub(super) struct OrderGuard(Arc<Shared>);

impl Drop for OrderGuard {
    fn drop(&mut self) {
        self.0.state.lock().ordering = false;
        self.0.progress.notify();
    }
}

impl Pool {
    /// Makes the first checkpoint, which begins a new log, and starts the maintenance task.
    pub(crate) async fn start(
        storage: Storage,
        sizes: Sizes,
        mut opened: Opened,
    ) -> Result<Pool, PoolError> {
        let free = opened.segments.free() + BEGINNING_SEGMENTS;
        let shared = Arc::new(Shared {
            name: opened.superblock.name.clone(),
            storage,
            cache: PageCache::new(CACHE_PAGES),
            sizes,
            state: Mutex::new(State::new(opened, sizes)),
            progress: SharedNotify::default(),
            gatherers: CoreLocal::new(),
        });
        // Dropping the opening ends the write-out task, which holds the devices.
        let guard = Arc::new(PoolGuard(shared.clone()));
        if let Some(log) = shared.storage.log.clone() {
            shared.state.lock().write_out = WriteOut::Runs;
            let shared = shared.clone();
            spawn_detached(async move { shared.keep_writing_out(log).await });
        }
        // One checkpoint for changes replayed before a snapshot, and one for the rest.
        while shared.state.lock().needs_first_checkpoint() {
            if let Err(error) = shared.checkpoint().await {
                // The write-out task uses the devices until it ends.
                shared.write_out_ended().await;
                let pool = shared.name.clone();
                // A file as device cannot be written if its file system is full.
                let is_full = shared.state.lock().segments.free() == 0;
                return Err(match error {
                    IoError::NoSpace if is_full => PoolError::Full { pool, free },
                    _ => PoolError::Device { device: format!("a device of pool {pool}"), error },
                });
            }
        }
        shared.state.lock().maintenance = MaintenanceTask::Waits;
        spawn_detached(keep(shared.clone()));
        if let Some(pairs) = &shared.storage.pairs {
            pairs.are_equal.store(true, Ordering::Relaxed);
        }
        rebuild::start(&shared);
        Ok(Pool { guard })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.guard.0
    }

    /// Makes a checkpoint of all earlier changes.
    ///
    /// # Errors
    /// Errors of the devices.
    pub async fn checkpoint(&self) -> Result<(), IoError> {
        let shared = self.shared();
        let target = {
            let mut state = shared.state.lock();
            state.wanted.checkpoint = true;
            state.checkpoints + 1 + u64::from(state.frozen.is_some())
        };
        shared.progress.notify();
        let done = || {
            let state = shared.state.lock();
            let done = state.checkpoints >= target;
            if done { Some(Ok(())) } else { state.check().err().map(Err) }
        };
        shared.progress.wait_for(done).await
    }

    /// Makes a checkpoint, so that the next opening replays nothing, writes out the log device, and
    /// stops. Later changes fail.
    ///
    /// # Errors
    /// Errors of the devices. The pool is stopped anyway, and the next opening replays its log.
    pub async fn close(&self) -> Result<(), IoError> {
        let made = self.checkpoint().await;
        let shared = self.shared();
        {
            let mut state = shared.state.lock();
            state.fail(IoError::Unreachable);
            state.wanted.stop = true;
        }
        shared.progress.notify();
        shared.write_out_ended().await;
        shared.maintenance_ended().await;
        if let Some(pairs) = &shared.storage.pairs {
            pairs.stop().await;
        }
        match made {
            Ok(()) if shared.has_tail() => Err(IoError::WriteFault),
            made => made,
        }
    }

    /// Stops the pool and removes its superblocks: its data is lost, and its devices are free.
    /// After a crash or an error, [`Pool::complete_destruction`] removes the rest.
    ///
    /// # Errors
    /// Errors of the first device whose superblock was not removed.
    pub async fn destroy(&self) -> Result<(), PoolError> {
        let shared = self.shared();
        {
            let mut state = shared.state.lock();
            state.fail(IoError::Unreachable);
            state.wanted.stop = true;
            if state.write_out == WriteOut::Runs {
                state.write_out = WriteOut::Abandoned;
            }
        }
        shared.progress.notify();
        shared.write_out_ended().await;
        // A checkpoint in progress could write a superblock afterwards.
        shared.maintenance_ended().await;
        // After a failure of the pool, no update can be in progress.
        let _turn = shared.update_turn().await;
        shared.state.lock().update = Update::Over;
        if let Some(pairs) = &shared.storage.pairs {
            pairs.stop().await;
        }
        let mut done = Ok(());
        for (_, named) in &shared.storage.members() {
            done = done.and(super::create::wipe(named).await);
        }
        done
    }

    /// Changes the limit for cached map pages, in bytes. Frees pages beyond it at once.
    ///
    /// # Errors
    /// [`PoolError::Options`] beyond [`MAP_CACHE_BYTES`].
    pub fn set_map_cache(&self, bytes: u64) -> Result<(), PoolError> {
        if !MAP_CACHE_BYTES.contains(&bytes) {
            return Err(PoolError::Options("a map cache has 1 MiB to 64 GiB"));
        }
        self.shared().cache.set_capacity((bytes / BLOCK_BYTES as u64) as usize);
        Ok(())
    }

    /// State of the pool.
    pub fn status(&self) -> PoolStatus {
        let shared = self.shared();
        let mut state = shared.state.lock();
        let supply = state.supply();
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
        let segment = u64::from(shared.storage.layout.segment_blocks());
        PoolStatus {
            name: shared.name.clone(),
            id: state.superblock.pool,
            devices: match &shared.storage.pairs {
                Some(pairs) => pairs.legs().into_iter().map(|leg| leg.device).collect(),
                None => {
                    let present = shared.storage.devices.present();
                    present.map(|(_, named)| named.name.clone()).collect()
                }
            },
            redundancy: shared.storage.pairs.as_ref().map(|pairs| RedundancyStatus {
                legs: pairs.legs(),
                segment_bytes: bytes(segment),
                failed_reads: pairs.failed_reads.load(Ordering::Relaxed),
                repaired_blocks: pairs.repaired_blocks.load(Ordering::Relaxed),
                left_out_blocks: pairs.left_out_blocks.load(Ordering::Relaxed),
            }),
            capacity_bytes: bytes(state.sizes.capacity),
            used_bytes: bytes(supply.live + supply.entries as u64),
            held_bytes: bytes(supply.held),
            provisioned_bytes: bytes(sum_of(&state.volume_table, |volume| volume.blocks)),
            data_bytes: bytes(sum_of(&state.volume_table, |volume| volume.mapped)),
            stored_bytes: bytes(sum_of(&state.volume_table, VolumeRecord::stored)),
            reserved_bytes: bytes(supply.reserved),
            free_segment_bytes: bytes(supply.free as u64 * segment),
            map_cache_bytes: bytes(shared.cache.capacity() as u64),
            volumes: state.volume_table.present().count(),
            checkpoints: state.checkpoints,
            cleaned_segments: state.cleaned.0,
            copied_blocks: state.cleaned.1,
            deduplicated_bytes: state.dedup.freed_bytes(),
            dedup: state.dedup.status(bytes(segment)),
            is_freeing: supply.reaping,
            failed: state.check().err(),
            log: LogDeviceStatus::of(shared, &state),
        }
    }

    /// True if volumes can have deduplication: it needs compressed units, for which the chunks of
    /// small segments are too short.
    pub fn can_share_blocks(&self) -> bool {
        self.shared().has_units()
    }

    /// The volumes, by identifier.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        let state = self.shared().state.lock();
        let volume_table = &state.volume_table;
        volume_table.present().map(|volume| VolumeInfo::of(&state, volume)).collect()
    }

    /// A volume by name.
    pub fn volume(&self, name: &str) -> Option<VolumeInfo> {
        let state = self.shared().state.lock();
        let volume_table = &state.volume_table;
        volume_table.by_name(name).map(|volume| VolumeInfo::of(&state, volume))
    }

    /// Opens a volume as a device. Handles of one volume see the same data and size.
    ///
    /// # Errors
    /// [`VolumeError::Unknown`]; [`VolumeError::Incomplete`] after the log device was lost;
    /// [`VolumeError::Locked`] without the key.
    pub fn open_volume(&self, name: &str) -> Result<Arc<PoolVolume>, VolumeError> {
        let mut state = self.shared().state.lock();
        let (id, blocks) = match state.volume_table.by_name(name) {
            Some(volume) if volume.incomplete => {
                return Err(VolumeError::Incomplete { name: name.to_owned() });
            }
            Some(volume) => (volume.id, volume.blocks),
            None => return Err(self.unknown(name)),
        };
        self.open_by_id(&mut state, id, blocks, false)
    }

    /// Opens a volume that may lack changes, to mark its content as such before
    /// [`Pool::accept_incomplete`].
    ///
    /// # Errors
    /// [`VolumeError::Unknown`].
    pub fn open_incomplete(&self, name: &str) -> Result<Arc<PoolVolume>, VolumeError> {
        let mut state = self.shared().state.lock();
        let found = state.volume_table.by_name(name).map(|volume| (volume.id, volume.blocks));
        let (id, blocks) = found.ok_or_else(|| self.unknown(name))?;
        self.open_by_id(&mut state, id, blocks, false)
    }

    pub(super) fn open_by_id(
        &self,
        state: &mut State,
        id: u32,
        blocks: u64,
        read_only: bool,
    ) -> Result<Arc<PoolVolume>, VolumeError> {
        let cipher = state.cipher_of(id)?;
        let record = state.volume_table.volumes.get(&id);
        let new = || Arc::new(VolumeHandle::new(blocks, read_only, record, cipher));
        let handle = state.handles.entry(id).or_insert_with(new);
        Ok(Arc::new(PoolVolume::new(self.guard.clone(), id, handle.clone())))
    }

    pub(super) fn unknown(&self, name: &str) -> VolumeError {
        VolumeError::Unknown { pool: self.shared().name.clone(), name: name.to_owned() }
    }

    /// Waits until no other order runs and the log has room.
    ///
    /// # Errors
    /// [`VolumeError::Full`], except for deletions.
    pub(super) async fn order(&self, kind: OrderKind) -> Result<OrderGuard, VolumeError> {
        let shared = self.shared();
        let begin = || {
            let mut state = shared.state.lock();
            (!std::mem::replace(&mut state.ordering, true)).then_some(())
        };
        shared.progress.wait_for(begin).await;
        let order = OrderGuard(shared.clone());
        shared.admit_order(kind).await.map_err(|error| match error {
            IoError::NoSpace => VolumeError::Full { pool: shared.name.clone() },
            error => VolumeError::Io(error),
        })?;
        Ok(order)
    }

    /// Writes the record of an order durably, in a task that holds the locks of the order. So
    /// dropping the call leaves no unfinished chunk, and no other order sees the volume table
    /// without this one. Returns the locks.
    pub(super) async fn commit<L: 'static>(
        &self,
        locks: L,
        record: ChunkRecord,
    ) -> Result<L, VolumeError> {
        let shared = self.shared().clone();
        let task = spawn(async move {
            // No admission: an order takes no entry and no block. An order that blocks the
            // maintenance task must not wait for a checkpoint.
            let memory = chunk_memory(0).await;
            shared.append(vec![record], memory).await?;
            shared.flush().await?;
            Ok::<L, VolumeError>(locks)
        });
        task.await.unwrap_or(Err(VolumeError::Io(IoError::Unreachable)))
    }

    /// Checks a new or changed volume against the others.
    pub(super) fn check(&self, state: &State, new: &VolumeRecord) -> Result<(), VolumeError> {
        new.check().map_err(|error| match error {
            FormatError::Field(field) => VolumeError::Field(field),
            _ => VolumeError::Field("record"),
        })?;
        if state.volume_table.by_name(&new.name).is_some_and(|other| other.id != new.id) {
            let (pool, name) = (self.shared().name.clone(), new.name.clone());
            return Err(VolumeError::Exists { pool, name });
        }
        let old = state.volume_table.volumes.get(&new.id);
        // Blocks are encrypted from the beginning or never.
        if old.is_some_and(|old| old.encryption.is_some() != new.encryption.is_some()) {
            return Err(VolumeError::Field("encryption"));
        }
        let is_new = usize::from(old.is_none());
        let more = new.encoded_len().saturating_sub(old.map_or(0, VolumeRecord::encoded_len));
        self.check_room(state, is_new, more)
    }

    /// Checks that the volume table has room for `count` more volumes and snapshots, and their
    /// bytes.
    pub(super) fn check_room(
        &self,
        state: &State,
        count: usize,
        bytes: usize,
    ) -> Result<(), VolumeError> {
        let (volume_table, bytes_max) = (&state.volume_table, state.sizes.volume_table);
        if volume_table.volumes.len() + count > VOLUMES_MAX {
            return Err(VolumeError::TooMany);
        }
        if bytes > 0 && volume_table.encoded_len() + bytes > bytes_max {
            return Err(VolumeError::VolumeTableFull { bytes_max });
        }
        match volume_table.next_id.checked_add(count as u32) {
            Some(_) => Ok(()),
            None => Err(VolumeError::Field("id: the pool has given out all of them")),
        }
    }

    /// Checks that what an order claims can be reserved, and holds it until the order has ended.
    pub(super) fn check_space(
        &self,
        state: &mut State,
        backing: &ClaimedSpace,
        claim: Option<Claim>,
    ) -> Result<(), VolumeError> {
        let more = claim.as_ref().map_or(0, |claim| claim.more(&state.volume_table));
        match backing.hold(state, claim) {
            true => Ok(()),
            false => Err(state.no_space(more)),
        }
    }

    /// Creates a volume. It exists durably when the call returns.
    ///
    /// # Errors
    /// [`VolumeError`] for a name in use, a field out of range, a reservation that does not fit, or
    /// errors of the devices.
    pub async fn create_volume(
        &self,
        name: &str,
        options: &VolumeOptions,
    ) -> Result<Arc<PoolVolume>, VolumeError> {
        self.make_volume(name, options, None).await
    }

    /// Creates a volume whose record has this data key.
    pub(super) async fn make_volume(
        &self,
        name: &str,
        options: &VolumeOptions,
        key: Option<(WrappedKey, VolumeCipher)>,
    ) -> Result<Arc<PoolVolume>, VolumeError> {
        let (encryption, cipher) = key.unzip();
        let (uuid, blocks) = (PoolId::random(), blocks_of(options.size_bytes)?);
        let claim = options.thick.then_some(Claim::New { uuid, blocks });
        let backing = self.shared().back(|_| claim.clone()).await?;
        let order = self.order(OrderKind::Other).await?;
        let record = {
            let mut state = self.shared().state.lock();
            let id = state.volume_table.next_id;
            let mut record = VolumeRecord::new(id, name.to_owned(), blocks);
            (record.thick, record.uuid) = (options.thick, uuid);
            record.properties = options.properties.clone();
            record.encryption = encryption;
            self.check(&state, &record)?;
            self.check_space(&mut state, &backing, claim)?;
            record
        };
        let id = record.id;
        if record.encryption.is_some() {
            // After the checks, so that a refusal leaves the pool to older programs. In a task,
            // because no update follows one that was dropped.
            let shared = self.shared().clone();
            let required = spawn(async move { shared.require_encryption().await });
            required.await.unwrap_or(Err(IoError::Unreachable))?;
        }
        let record = ChunkRecord::Volume(Box::new(record));
        let _locks = self.commit((order, backing), record).await?;
        if let Some(cipher) = cipher {
            self.shared().state.lock().ciphers.insert(id, Arc::new(cipher));
        }
        self.open_volume(name)
    }

    /// Changes the volume `name` in one durable step: `change` gets the present record.
    pub(super) async fn change(
        &self,
        name: &str,
        change: impl Fn(&mut VolumeRecord) -> Result<(), VolumeError>,
    ) -> Result<(), VolumeError> {
        self.change_found(name, |volume_table| volume_table.by_name(name), change).await
    }

    /// Changes a volume that `find` finds again after another order; `name` is for errors.
    pub(super) async fn change_found(
        &self,
        name: &str,
        find: impl Fn(&VolumeTable) -> Option<&VolumeRecord>,
        change: impl Fn(&mut VolumeRecord) -> Result<(), VolumeError>,
    ) -> Result<(), VolumeError> {
        let claim = |record: &VolumeRecord| {
            let (volume, blocks) = (record.id, record.blocks);
            record.thick.then_some(Claim::Thick { volume, blocks })
        };
        let changed = |volume_table: &VolumeTable| {
            let mut record = find(volume_table)?.clone();
            change(&mut record).ok()?;
            claim(&record)
        };
        let backing = self.shared().back(changed).await?;
        let order = self.order(OrderKind::Other).await?;
        let sets_dedup = {
            let state = self.shared().state.lock();
            find(&state.volume_table).is_some_and(|old| {
                let mut new = old.clone();
                let is_changed = change(&mut new).is_ok();
                is_changed && domain_name(&old.properties) != domain_name(&new.properties)
            })
        };
        // A step of the scan for equal blocks shares them by the settings at its begin.
        let turn = if sets_dedup { Some(self.maintenance_turn().await?) } else { None };
        let record = {
            let mut state = self.shared().state.lock();
            let old = find(&state.volume_table).cloned().ok_or_else(|| self.unknown(name))?;
            let mut record = old.clone();
            change(&mut record)?;
            if record == old {
                return Ok(());
            }
            self.check(&state, &record)?;
            self.check_space(&mut state, &backing, claim(&record))?;
            record.root = crate::ondisk::entry::MapEntry::HOLE;
            record
        };
        self.commit((turn, order, backing), ChunkRecord::Volume(Box::new(record))).await.map(drop)
    }

    /// Grows a volume; the same size changes nothing.
    ///
    /// # Errors
    /// [`VolumeError::Shrink`] for a smaller size, and as [`Pool::create_volume`].
    pub async fn resize_volume(&self, name: &str, size_bytes: u64) -> Result<(), VolumeError> {
        let blocks = blocks_of(size_bytes)?;
        self.change(name, |record| grow_record(record, blocks)).await
    }

    /// Renames a volume. Handles stay valid.
    ///
    /// # Errors
    /// As [`Pool::create_volume`].
    pub async fn rename_volume(&self, name: &str, new: &str) -> Result<(), VolumeError> {
        self.change(name, |record| {
            new.clone_into(&mut record.name);
            Ok(())
        })
        .await
    }

    /// Replaces the properties of a volume, except [`LEG_PROPERTY`](crate::LEG_PROPERTY), and
    /// whether its size is reserved.
    ///
    /// # Errors
    /// As [`Pool::create_volume`].
    pub async fn set_volume(
        &self,
        name: &str,
        thick: bool,
        properties: BTreeMap<String, String>,
    ) -> Result<(), VolumeError> {
        self.change(name, |record| {
            record.thick = thick;
            leg::set_properties(record, &properties);
            Ok(())
        })
        .await
    }

    /// Deletes a volume. Its handles fail every call from now on. Checkpoints free its space. Works
    /// in a full pool.
    ///
    /// # Errors
    /// [`VolumeError::Unknown`], [`VolumeError::HasSnapshots`], or errors of the devices.
    pub async fn delete_volume(&self, name: &str) -> Result<(), VolumeError> {
        let order = self.order(OrderKind::Deletion).await?;
        let volume = {
            let state = self.shared().state.lock();
            let volume = state.volume_table.by_name(name).ok_or_else(|| self.unknown(name))?.id;
            let own = |snapshot: &&VolumeRecord| snapshot.owner() == Some(volume);
            let snapshots = state.volume_table.snapshots().filter(own).count();
            if snapshots > 0 {
                return Err(VolumeError::HasSnapshots { name: name.to_owned(), snapshots });
            }
            volume
        };
        let _order = self.commit(order, ChunkRecord::Delete { volume }).await?;
        self.want_checkpoint();
        Ok(())
    }

    pub(super) fn want_checkpoint(&self) {
        self.shared().state.lock().wanted.checkpoint = true;
        self.shared().progress.notify();
    }
}

/// Sum over the present volumes.
fn sum_of(volume_table: &VolumeTable, blocks: impl Fn(&VolumeRecord) -> u64) -> u64 {
    volume_table.present().map(blocks).fold(0, u64::saturating_add)
}

pub(super) fn grow_record(record: &mut VolumeRecord, blocks: u64) -> Result<(), VolumeError> {
    if blocks < record.blocks {
        let is_bytes = record.blocks * BLOCK_BYTES as u64;
        return Err(VolumeError::Shrink { is_bytes });
    }
    record.blocks = blocks;
    Ok(())
}

pub(super) fn blocks_of(size_bytes: u64) -> Result<u64, VolumeError> {
    let block = BLOCK_BYTES as u64;
    if !size_bytes.is_multiple_of(block) {
        return Err(VolumeError::Field("size, which is not a multiple of 4096"));
    }
    Ok(size_bytes / block)
}

/// Maintenance task: makes checkpoints and cleans, one at a time, until the pool stops.
async fn keep(shared: Arc<Shared>) {
    keep_until_stopped(&shared).await;
    shared.state.lock().maintenance = MaintenanceTask::Stopped;
    shared.progress.notify();
}

async fn keep_until_stopped(shared: &Shared) {
    loop {
        let work = shared.next_work().await;
        let done = match work {
            MaintenanceWork::Stop => return,
            MaintenanceWork::Checkpoint => shared.checkpoint().await,
            MaintenanceWork::Clean => shared.clean().await,
            MaintenanceWork::Share => shared.share().await,
        };
        shared.state.lock().maintenance = MaintenanceTask::Waits;
        shared.progress.notify();
        if done.is_err() {
            return;
        }
    }
}

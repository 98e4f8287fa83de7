//! Durability: which completed writes a target may still lose, and whether it has lost any.
//!
//! A target with a volatile write cache loses completed writes in a crash until they are flushed,
//! and a new connection does not distinguish a crash from a network failure. Flagstone's target
//! identifies the *instance* of a namespace: the same value over a new connection proves that the
//! target kept the device open and every completed write with it. Other targets report none, so
//! each of their links is an instance of its own, which ends with the link.
//!
//! Several paths may lead to one target, or to nodes with instances of their own that restore each
//! other's writes. Paths that all join one instance lead to one target ([`PathGroup`]).
//!
//! Invariants:
//! - a write counts for the instance that completed it, and a flush covers only its own instance;
//! - an instance that ends, or has ended, with an unflushed write makes the device lose its writes;
//! - an instance that has ended stays ended, even if a link to it joins late;
//! - the state only gets worse. Opening the device again is the only way back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use flagstone_blockdev::IoError;
use flagstone_nvme::identify::NamespaceInstance;
use parking_lot::Mutex;

use crate::limits::ENDED_INSTANCES_MAX;

/// Durability that a device may still promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum DurabilityState {
    /// Every completed write is durable or in the target's cache.
    Sound,
    /// A flush failed. The target may have dropped writes that it still shows.
    FlushFailed,
    /// Completed writes are lost: even reads would be wrong.
    WritesLost,
}

/// Durability of the writes of one path of a device, shared by all cores.
pub(super) struct Durability {
    state: AtomicU8,
    /// Index of the path.
    path: usize,
    group: Arc<PathGroup>,
}

/// The paths of a device, usually one. Until all have joined one instance, a device with several
/// paths counts on its targets to restore completed writes; from then on, they are one target,
/// which loses them when it restarts.
pub(super) struct PathGroup {
    /// State of all paths.
    state: AtomicU8,
    /// The target restores completed writes after a crash.
    target_is_durable: AtomicBool,
    /// Number of paths that show that they lead to one target; `None` if this makes no difference.
    paths: Option<usize>,
    instances: Mutex<Instances>,
}

impl PathGroup {
    /// `target_is_durable`: see [`HostOptions::target_is_durable`](super::HostOptions).
    pub(super) fn new(paths: usize, target_is_durable: bool) -> Arc<PathGroup> {
        let several = (paths > 1 && !target_is_durable).then_some(paths);
        Arc::new(PathGroup {
            state: AtomicU8::new(DurabilityState::Sound as u8),
            target_is_durable: AtomicBool::new(target_is_durable || several.is_some()),
            paths: several,
            instances: Mutex::default(),
        })
    }

    fn target_is_durable(&self) -> bool {
        self.target_is_durable.load(Ordering::SeqCst)
    }

    /// A path has joined an identified instance. Called under the lock of the instances.
    fn joined(&self, instance: &CacheInstance, path: usize) {
        let bit = 1_u64.checked_shl(path as u32).unwrap_or(0);
        let joined = instance.paths.fetch_or(bit, Ordering::SeqCst) | bit;
        if self.paths.is_some_and(|paths| joined.count_ones() as usize == paths) {
            self.target_is_durable.store(false, Ordering::SeqCst);
        }
    }
}

#[derive(Default)]
struct Instances {
    /// Instances that have not ended: one, or one per link if the target identifies none.
    live: Vec<Arc<CacheInstance>>,
    /// The latest identified instances that have ended, at most [`ENDED_INSTANCES_MAX`].
    ended: VecDeque<NamespaceInstance>,
}

/// Volatile write cache of one instance of a namespace.
pub(super) struct CacheInstance {
    /// `None` if the target identifies none: it has one link, and ends with it.
    id: Option<NamespaceInstance>,
    /// Number of writes that completed without being durable.
    completed: AtomicU64,
    /// How many of them are durable: a flush that began after their completion has succeeded.
    durable: AtomicU64,
    ended: AtomicBool,
    /// The paths that have joined it, one bit each.
    paths: AtomicU64,
}

impl CacheInstance {
    fn new(id: Option<NamespaceInstance>) -> Arc<CacheInstance> {
        Arc::new(CacheInstance {
            id,
            completed: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            paths: AtomicU64::new(0),
        })
    }

    /// Number of writes that a flush sent from now on covers.
    pub(super) fn completed(&self) -> u64 {
        self.completed.load(Ordering::SeqCst)
    }

    /// Records a successful flush that covers the first `count` writes.
    pub(super) fn flushed(&self, count: u64) {
        self.durable.fetch_max(count, Ordering::SeqCst);
    }

    /// True while a completed write is not durable.
    pub(super) fn has_unflushed(&self) -> bool {
        self.durable.load(Ordering::SeqCst) < self.completed.load(Ordering::SeqCst)
    }
}

impl Durability {
    /// For a device with one path; `target_is_durable` as for [`PathGroup::new`].
    pub(super) fn new(target_is_durable: bool) -> Arc<Durability> {
        Durability::of(&PathGroup::new(1, target_is_durable), 0)
    }

    /// For the path with this index.
    pub(super) fn of(group: &Arc<PathGroup>, path: usize) -> Arc<Durability> {
        let state = AtomicU8::new(DurabilityState::Sound as u8);
        Arc::new(Durability { state, path, group: group.clone() })
    }

    /// A link to `id` is up. Every other identified instance has ended: one target has only one at
    /// a time. A link that was made before the restart and joins after it ends no later instance.
    pub(super) fn join(&self, id: Option<NamespaceInstance>) -> Arc<CacheInstance> {
        let mut instances = self.group.instances.lock();
        let Instances { live, ended } = &mut *instances;
        if let Some(known) = live.iter().find(|instance| id.is_some() && instance.id == id) {
            self.group.joined(known, self.path);
            return known.clone();
        }
        let instance = CacheInstance::new(id);
        if id.is_some_and(|id| ended.contains(&id)) {
            instance.ended.store(true, Ordering::SeqCst);
            return instance;
        }
        live.retain(|instance| {
            let stays = id.is_none() && instance.id.is_none();
            if !stays {
                self.end(instance);
                ended.extend(instance.id);
            }
            stays
        });
        ended.drain(..ended.len().saturating_sub(ENDED_INSTANCES_MAX));
        if id.is_some() {
            self.group.joined(&instance, self.path);
        }
        live.push(instance.clone());
        instance
    }

    /// A link is down. An identified instance may return with the next link.
    pub(super) fn leave(&self, instance: &Arc<CacheInstance>) {
        if instance.id.is_none() {
            let mut instances = self.group.instances.lock();
            // The target may have crashed: the other links, whose writes are lost then, too, may
            // not know yet.
            instances.live.retain(|known| !Arc::ptr_eq(known, instance));
            let endangers = instances.live.iter().any(|one| one.has_unflushed());
            drop(instances);
            self.end(instance);
            if endangers {
                self.writes_lost();
            }
        }
    }

    /// Live instances, each with the number of writes that a flush over it covers from now on.
    pub(super) fn completed(&self) -> Vec<(u64, Arc<CacheInstance>)> {
        let instances = self.group.instances.lock();
        instances.live.iter().map(|one| (one.completed(), one.clone())).collect()
    }

    fn end(&self, instance: &CacheInstance) {
        // Stored first: a write that completes meanwhile sees it, or is seen here.
        instance.ended.store(true, Ordering::SeqCst);
        if instance.has_unflushed() {
            self.writes_lost();
        }
    }

    /// Counts a write of `instance` that completed without being durable.
    #[inline]
    pub(super) fn write_completed(&self, instance: &CacheInstance) {
        instance.completed.fetch_add(1, Ordering::SeqCst);
        if instance.ended.load(Ordering::SeqCst) {
            self.writes_lost();
        }
    }

    #[cold]
    fn writes_lost(&self) {
        if !self.group.target_is_durable() {
            tracing::error!(
                "the target restarted, or its connection was lost, before completed writes were \
                 flushed: they may be lost, and the device is unusable until it is reopened"
            );
            self.worsen(DurabilityState::WritesLost);
        }
    }

    /// Records the failure of a flush. Errors of a flush that was not executed do not count: if
    /// they endanger data, an instance has ended.
    pub(super) fn flush_failed(&self, error: IoError) {
        if !matches!(error, IoError::Unreachable | IoError::NoMemory) {
            self.worsen(DurabilityState::FlushFailed);
        }
    }

    fn worsen(&self, state: DurabilityState) {
        self.state.fetch_max(state as u8, Ordering::SeqCst);
        if !self.group.target_is_durable() {
            self.group.state.fetch_max(state as u8, Ordering::SeqCst);
        }
    }

    fn is_at_most(&self, state: DurabilityState) -> bool {
        let of_all = &self.group.state;
        [&self.state, of_all].iter().all(|found| found.load(Ordering::SeqCst) <= state as u8)
    }

    /// Fails reads after writes were lost.
    #[inline]
    pub(super) fn check_read(&self) -> Result<(), IoError> {
        let fits = self.is_at_most(DurabilityState::FlushFailed);
        if fits { Ok(()) } else { Err(IoError::Poisoned) }
    }

    /// Fails changes and flushes after a failed flush or lost writes.
    #[inline]
    pub(super) fn check_change(&self) -> Result<(), IoError> {
        let fits = self.is_at_most(DurabilityState::Sound);
        if fits { Ok(()) } else { Err(IoError::Poisoned) }
    }

    /// True if writes are unflushed that a flush of `own` does not cover, because the target does
    /// not prove that it is one instance over all links.
    pub(super) fn has_unflushed_besides(&self, own: Option<&Arc<CacheInstance>>) -> bool {
        // An identified instance of another node restores its writes.
        let counts = |other: &CacheInstance| other.id.is_none() || !self.group.target_is_durable();
        let instances = self.group.instances.lock();
        instances.live.iter().any(|other| {
            let is_own = own.is_some_and(|own| Arc::ptr_eq(own, other));
            counts(other) && other.has_unflushed() && !is_own
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Option<NamespaceInstance> = Some(NamespaceInstance([1; 16]));
    const SECOND: Option<NamespaceInstance> = Some(NamespaceInstance([2; 16]));

    fn is_lost(durability: &Durability) -> bool {
        durability.check_read().is_err()
    }

    #[test]
    fn identified_instance_survives_its_links() {
        let durability = Durability::new(false);
        let first = durability.join(FIRST);
        durability.write_completed(&first);
        durability.leave(&first);
        let again = durability.join(FIRST);
        assert!(Arc::ptr_eq(&first, &again) && !is_lost(&durability));
        durability.join(SECOND);
        assert!(is_lost(&durability));
    }

    #[test]
    fn flush_covers_earlier_writes_of_its_instance() {
        let durability = Durability::new(false);
        let first = durability.join(FIRST);
        durability.write_completed(&first);
        let covers = first.completed();
        durability.write_completed(&first);
        first.flushed(covers);
        assert!(first.has_unflushed(), "the second write came after the flush");
        first.flushed(first.completed());
        durability.join(SECOND);
        assert!(!is_lost(&durability));
    }

    /// The completion was received before the restart, and is processed after another core has
    /// reconnected.
    #[test]
    fn late_completion_of_ended_instance_is_lost() {
        let durability = Durability::new(false);
        let first = durability.join(FIRST);
        durability.join(SECOND);
        assert!(!is_lost(&durability));
        durability.write_completed(&first);
        assert!(is_lost(&durability));
    }

    /// A link that was made before the target's restart joins after another core's later link.
    #[test]
    fn late_link_of_ended_instance_ends_no_other() {
        let durability = Durability::new(false);
        durability.join(FIRST);
        let second = durability.join(SECOND);
        durability.write_completed(&second);
        let late = durability.join(FIRST);
        assert!(!is_lost(&durability), "the second instance still has its writes");
        assert!(Arc::ptr_eq(&second, &durability.join(SECOND)) && !is_lost(&durability));
        durability.write_completed(&late);
        assert!(is_lost(&durability), "a write to an instance that has ended");
    }

    #[test]
    fn list_of_ended_instances_is_bounded() {
        let durability = Durability::new(false);
        for number in 0..=u8::MAX {
            durability.join(Some(NamespaceInstance([number; 16])));
        }
        let instances = durability.group.instances.lock();
        assert_eq!((instances.live.len(), instances.ended.len()), (1, ENDED_INSTANCES_MAX));
        assert_eq!(instances.ended.back().map(|id| id.0[0]), Some(u8::MAX - 1));
    }

    /// The target may have crashed, which the other link has not noticed yet: reads over a new link
    /// would show the data from before the write.
    #[test]
    fn lost_link_endangers_writes_of_other_links() {
        let durability = Durability::new(false);
        let (one, two) = (durability.join(None), durability.join(None));
        durability.write_completed(&one);
        durability.leave(&two);
        assert!(is_lost(&durability));
    }

    #[test]
    fn unidentified_instance_ends_with_its_link() {
        let durability = Durability::new(false);
        let (one, two) = (durability.join(None), durability.join(None));
        durability.write_completed(&one);
        assert!(!durability.has_unflushed_besides(Some(&one)));
        assert!(durability.has_unflushed_besides(Some(&two)));
        one.flushed(one.completed());
        durability.leave(&two);
        assert!(!is_lost(&durability), "everything is flushed");
        durability.write_completed(&one);
        durability.leave(&one);
        assert!(is_lost(&durability));
    }

    #[test]
    fn durable_target_loses_nothing() {
        let durability = Durability::new(true);
        let first = durability.join(FIRST);
        durability.write_completed(&first);
        durability.join(SECOND);
        assert_eq!(durability.check_change(), Ok(()));
    }

    fn paths(count: usize) -> Vec<Arc<Durability>> {
        let group = PathGroup::new(count, false);
        (0..count).map(|path| Durability::of(&group, path)).collect()
    }

    /// Regression: over several addresses of one target, a flush after its restart succeeded.
    #[test]
    fn paths_of_one_instance_lose_its_writes_together() {
        let paths = paths(2);
        let first = paths[0].join(FIRST);
        assert!(Arc::ptr_eq(&first, &paths[1].join(FIRST)));
        paths[0].write_completed(&first);
        paths[1].join(SECOND);
        assert!(paths.iter().all(|path| is_lost(path)));
    }

    #[test]
    fn flush_over_one_path_covers_the_other() {
        let paths = paths(2);
        let [one, two] = [0, 1].map(|path: usize| paths[path].join(FIRST));
        paths[0].write_completed(&one);
        assert!(!paths[1].has_unflushed_besides(Some(&two)));
        two.flushed(two.completed());
        paths[1].join(SECOND);
        assert!(!paths.iter().any(|path| is_lost(path)));
        paths[0].flush_failed(IoError::WriteFault);
        assert!(paths.iter().all(|path| path.check_change().is_err()), "it is one target");
    }

    /// The nodes of a mirror have instances of their own, also if one has two addresses.
    #[test]
    fn nodes_with_other_instances_restore_writes() {
        let paths = paths(3);
        let first = paths[0].join(FIRST);
        paths[1].join(FIRST);
        paths[0].write_completed(&first);
        let second = paths[2].join(SECOND);
        paths[2].write_completed(&second);
        paths[0].join(FIRST);
        assert!(!paths[0].has_unflushed_besides(Some(&first)));
        assert!(!paths.iter().any(|path| is_lost(path)));
        paths[0].flush_failed(IoError::WriteFault);
        let fail = paths.iter().filter(|path| path.check_change().is_err());
        assert_eq!(fail.count(), 1, "another node may go on");
    }

    #[test]
    fn failed_flush_ends_changes_but_not_reads() {
        let durability = Durability::new(true);
        durability.flush_failed(IoError::Unreachable);
        assert_eq!(durability.check_change(), Ok(()));
        durability.flush_failed(IoError::WriteFault);
        assert_eq!(
            (durability.check_change(), durability.check_read()),
            (Err(IoError::Poisoned), Ok(()))
        );
    }
}

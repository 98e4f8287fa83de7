//! Snapshots of a leg by the order of its source: the mirror asks from any core, and a task of the
//! control thread asks the pool.
//!
//! Invariants:
//! - requests wait in a queue of at most [`LEG_SNAPSHOTS_MAX`], and are carried out one by one;
//! - a request is refused when it is as old as its source is ready to wait, because an older one
//!   ends the connection. Only the durable change itself takes as long as a write;
//! - a deletion that takes longer continues, and has ended before the next request begins;
//! - they take no order lock, because hosts may wait for them: the pool serializes its own orders.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::IoFuture;
use flagstone_config::device_spec::PoolVolumeSpec;
use flagstone_mirror::limits::{SNAPSHOT_WAIT_MS, SNAPSHOTS_PER_PAGE};
use flagstone_mirror::wire::peer::PeerRefusal;
use flagstone_mirror::wire::snapshot::{SnapshotAction, SnapshotId, SnapshotRequest};
use flagstone_mirror::{LegSnapshots, SnapshotFuture};
use flagstone_pool::{Pool, PoolId, PreparedSnapshot, SnapshotInfo, VolumeError};
use flagstone_runtime::sync::{OneSender, SharedNotify, oneshot};
use flagstone_runtime::time::{self, Instant};
use flagstone_runtime::{JoinHandle, spawn};
use parking_lot::Mutex;

use super::legs::LegOpener;
use super::snapshot_orders::is_name;
use crate::limits::LEG_SNAPSHOTS_MAX;

enum LegRequest {
    Order(SnapshotRequest, Deadline, OneSender<Result<(), PeerRefusal>>),
    Ids(SnapshotId, OneSender<Result<Vec<SnapshotId>, PeerRefusal>>),
}

/// End of the time for which the source of a request is ready to wait.
#[derive(Clone, Copy)]
struct Deadline(Instant);

impl Deadline {
    /// The source does not decide for how long its successor waits.
    fn of(request: &SnapshotRequest) -> Deadline {
        let wait_ms = request.wait_ms.min(SNAPSHOT_WAIT_MS);
        Deadline(time::now() + Duration::from_millis(wait_ms.into()))
    }

    fn left(self) -> Result<Duration, PeerRefusal> {
        match self.0 - time::now() {
            Duration::ZERO => Err(PeerRefusal::NotNow),
            left => Ok(left),
        }
    }

    /// Waits for the pool until then.
    async fn wait<F: Future>(self, work: F) -> Result<F::Output, PeerRefusal> {
        time::timeout(self.left()?, work).await.map_err(|_| PeerRefusal::NotNow)
    }
}

/// Requests that wait for the control thread; `None` after the last sender ended.
struct Inbox {
    waiting: Mutex<Option<VecDeque<LegRequest>>>,
    arrived: SharedNotify,
}

/// Passes requests to the task of a leg, which ends with it.
struct LegSender(Arc<Inbox>);

impl Drop for LegSender {
    fn drop(&mut self) {
        self.0.waiting.lock().take();
        self.0.arrived.notify();
    }
}

impl LegSender {
    fn send<T: 'static>(
        &self,
        request: impl FnOnce(OneSender<Result<T, PeerRefusal>>) -> LegRequest,
    ) -> SnapshotFuture<T> {
        let (sender, receiver) = oneshot();
        {
            let mut waiting = self.0.waiting.lock();
            match &mut *waiting {
                Some(waiting) if waiting.len() < LEG_SNAPSHOTS_MAX => {
                    waiting.push_back(request(sender));
                }
                _ => return IoFuture::ready(Ok(Err(PeerRefusal::NotNow))),
            }
        }
        self.0.arrived.notify();
        IoFuture::later(async move { Ok(receiver.await.unwrap_or(Err(PeerRefusal::NotNow))) })
    }
}

impl LegSnapshots for LegSender {
    fn order(&self, request: SnapshotRequest) -> SnapshotFuture<()> {
        let deadline = Deadline::of(&request);
        self.send(|sender| LegRequest::Order(request, deadline, sender))
    }

    fn ids(&self, after: SnapshotId) -> SnapshotFuture<Vec<SnapshotId>> {
        self.send(|sender| LegRequest::Ids(after, sender))
    }
}

impl LegOpener {
    /// Takes snapshots of a leg, whenever its pool is open. Called on the control thread.
    pub(crate) fn snapshots_of(&self, leg: &PoolVolumeSpec) -> Arc<dyn LegSnapshots> {
        let waiting = Mutex::new(Some(VecDeque::new()));
        let inbox = Arc::new(Inbox { waiting, arrived: SharedNotify::default() });
        let task = LegTask { legs: self.clone(), leg: leg.clone(), deletion: None };
        drop(spawn(task.run(inbox.clone())));
        Arc::new(LegSender(inbox))
    }
}

struct LegTask {
    legs: LegOpener,
    leg: PoolVolumeSpec,
    /// A deletion that took longer than its source waited.
    deletion: Option<JoinHandle<Result<(), VolumeError>>>,
}

impl LegTask {
    async fn run(mut self, inbox: Arc<Inbox>) {
        loop {
            let next = inbox.arrived.wait_for(|| match &mut *inbox.waiting.lock() {
                None => Some(None),
                Some(waiting) => waiting.pop_front().map(Some),
            });
            match next.await {
                None => return,
                Some(LegRequest::Order(request, deadline, sender)) => {
                    sender.send(self.order(request, deadline).await);
                }
                Some(LegRequest::Ids(after, sender)) => sender.send(self.ids(after)),
            }
        }
    }

    fn pool(&self) -> Result<Pool, PeerRefusal> {
        self.legs.open_pool(&self.leg.pool).map_err(|why| self.refused(&why))
    }

    fn refused(&self, why: &dyn std::fmt::Display) -> PeerRefusal {
        let PoolVolumeSpec { pool, volume } = &self.leg;
        tracing::error!("the source's snapshot of leg {volume} in pool {pool} failed: {why}");
        PeerRefusal::SnapshotFailed
    }

    fn ids(&self, after: SnapshotId) -> Result<Vec<SnapshotId>, PeerRefusal> {
        if self.deletion.as_ref().is_some_and(|deletion| !deletion.is_finished()) {
            return Err(PeerRefusal::NotNow);
        }
        let own = self.pool()?.snapshot_ids(&self.leg.volume);
        Ok(page_after(own.into_iter().map(|id| SnapshotId(id.0)), after))
    }

    /// Prepares a snapshot, unless the pool is busy for longer; `None` if it exists already.
    async fn prepare(
        &self,
        pool: &Pool,
        (own, id): (&str, PoolId),
        deadline: Deadline,
    ) -> Result<Option<PreparedSnapshot>, PeerRefusal> {
        let volume = self.leg.volume.as_str();
        match deadline.wait(pool.prepare_snapshot(&[volume], own, id)).await? {
            Err(VolumeError::SnapshotExists { name, .. }) => {
                let existing = own_snapshots(pool, volume);
                match existing.iter().any(|found| found.name == name && found.id == id) {
                    true => Ok(None),
                    false => Err(PeerRefusal::SnapshotExists),
                }
            }
            prepared => prepared.map(Some).map_err(|error| self.refused(&error)),
        }
    }

    async fn order(
        &mut self,
        request: SnapshotRequest,
        deadline: Deadline,
    ) -> Result<(), PeerRefusal> {
        deadline.left()?;
        if let Some(deletion) = &mut self.deletion {
            // Its own source repeats the order, and finds the result.
            let _ = deadline.wait(deletion).await?;
            self.deletion = None;
        }
        let pool = self.pool()?;
        let (id, own) = (PoolId(request.id.0), request.name.as_str());
        if !is_name(own) {
            return Err(self.refused(&format!("{own:?} is no name of a snapshot")));
        }
        match request.action {
            SnapshotAction::Check => self.prepare(&pool, (own, id), deadline).await.map(drop),
            SnapshotAction::Take => {
                let prepared = self.prepare(&pool, (own, id), deadline).await?;
                let Some(prepared) = prepared else { return Ok(()) };
                prepared.take().await.map_err(|error| self.refused(&error))?;
                let PoolVolumeSpec { pool, volume } = &self.leg;
                tracing::info!("snapshot {volume}@{own} was taken in pool {pool} for the source");
                Ok(())
            }
            SnapshotAction::Find => match self.find(&pool, request) {
                Some(found) if found.users.len() > 1 => Err(PeerRefusal::SnapshotInUse),
                Some(_) => Ok(()),
                None => Err(PeerRefusal::SnapshotMissing),
            },
            SnapshotAction::Delete => match self.find(&pool, request) {
                Some(found) => self.delete(pool, found, deadline).await,
                None => Ok(()),
            },
        }
    }

    fn find(&self, pool: &Pool, request: SnapshotRequest) -> Option<SnapshotInfo> {
        let volume = &self.leg.volume;
        let full = format!("{volume}@{}", request.name.as_str());
        own_snapshots(pool, volume).into_iter().find(|found| match request.id {
            SnapshotId::NONE => found.name == full,
            SnapshotId(id) => found.id == PoolId(id),
        })
    }

    async fn delete(
        &mut self,
        pool: Pool,
        found: SnapshotInfo,
        deadline: Deadline,
    ) -> Result<(), PeerRefusal> {
        let SnapshotInfo { name, id, .. } = found;
        let deleted = name.clone();
        // It is not given up in the middle.
        let deletion = spawn(async move { pool.delete_exact_snapshot(&deleted, id).await });
        let deletion = self.deletion.insert(deletion);
        let result = deadline.wait(deletion).await?;
        self.deletion = None;
        match result.map_err(|_| PeerRefusal::SnapshotFailed)? {
            Ok(()) | Err(VolumeError::UnknownSnapshot { .. }) => {}
            Err(VolumeError::InUse { .. }) => return Err(PeerRefusal::SnapshotInUse),
            Err(error) => return Err(self.refused(&error)),
        }
        tracing::info!("snapshot {name} was deleted from pool {} for the source", self.leg.pool);
        Ok(())
    }
}

/// The lowest identifiers above one. A list that changes between two pages keeps the order, so no
/// snapshot that stays is left out.
fn page_after(ids: impl Iterator<Item = SnapshotId>, after: SnapshotId) -> Vec<SnapshotId> {
    let mut page: Vec<SnapshotId> = ids.filter(|id| *id > after).collect();
    page.sort_unstable();
    page.dedup();
    page.truncate(SNAPSHOTS_PER_PAGE);
    page
}

/// Snapshots of one volume of a pool, in the order of their creation.
pub(super) fn own_snapshots(pool: &Pool, volume: &str) -> Vec<SnapshotInfo> {
    let is_own = |snapshot: &SnapshotInfo| {
        snapshot.name.split_once('@').is_some_and(|(owner, _)| owner == volume)
    };
    pool.snapshots().into_iter().filter(is_own).collect()
}

#[cfg(test)]
mod tests {
    use flagstone_mirror::wire::snapshot::SnapshotName;

    use super::super::tests::{Bed, test};
    use super::*;

    fn id(number: usize) -> SnapshotId {
        let mut id = [0; 16];
        id[8..].copy_from_slice(&(number as u64).to_be_bytes());
        SnapshotId(id)
    }

    /// Two sources that list at once, and deletions between two pages, must not lead to a list that
    /// lacks a snapshot.
    #[test]
    fn pages_have_all_snapshots_that_stay() {
        let newest_first = |range: std::ops::Range<usize>| range.rev().map(id);
        let first = page_after(newest_first(1..301), SnapshotId::NONE);
        assert_eq!(first, (1..257).map(id).collect::<Vec<_>>());
        let last = first.last().copied().expect("it is full");
        let rest = page_after(newest_first(100..301), last);
        assert_eq!(rest, (257..301).map(id).collect::<Vec<_>>());
        assert!(page_after(newest_first(1..301), id(300)).is_empty());
    }
    fn request(action: SnapshotAction, id: SnapshotId, wait_ms: u32) -> SnapshotRequest {
        let name = SnapshotName::new("a").expect("it is short");
        SnapshotRequest { id, name, action, wait_ms }
    }

    async fn with_leg(work: impl AsyncFnOnce(Pool, Arc<dyn LegSnapshots>)) {
        let bed = Bed::with_volume().await;
        let pool = bed.server.pools.open_pool("fast").unwrap();
        let spec = PoolVolumeSpec { pool: "fast".to_owned(), volume: "db".to_owned() };
        work(pool, bed.server.pools.leg_opener().snapshots_of(&spec)).await;
    }

    const OTHER: PoolId = PoolId([9; 16]);

    #[test]
    fn snapshots_are_found_and_deleted_by_name() {
        use SnapshotAction::{Delete, Find, Take};
        test(with_leg(async |pool: Pool, leg: Arc<dyn LegSnapshots>| {
            let order = async |action, id| leg.order(request(action, id, 1000)).await.unwrap();
            assert_eq!(order(Take, id(1)).await, Ok(()));
            assert_eq!(order(Take, id(1)).await, Ok(()), "it exists already");
            assert_eq!(order(Take, id(2)).await, Err(PeerRefusal::SnapshotExists));
            assert_eq!(order(Find, id(2)).await, Err(PeerRefusal::SnapshotMissing));
            assert_eq!(order(Delete, id(2)).await, Ok(()), "there is none");
            assert_eq!(order(Find, id(1)).await, Ok(()));
            assert_eq!(order(Find, SnapshotId::NONE).await, Ok(()));
            assert_eq!(leg.ids(SnapshotId::NONE).await.unwrap(), Ok(vec![id(1)]));
            assert_eq!(leg.ids(id(1)).await.unwrap(), Ok(Vec::new()));
            assert_eq!(order(Delete, SnapshotId::NONE).await, Ok(()));
            assert!(pool.snapshots().is_empty());
        }));
    }

    /// Regression: a deletion that ended late was not waited for, so an order in between found the
    /// snapshot, and reported that all nodes have it.
    #[test]
    fn late_deletion_ends_before_later_requests() {
        use SnapshotAction::{Delete, Find, Take};
        test(with_leg(async |pool: Pool, leg: Arc<dyn LegSnapshots>| {
            let order =
                async |action, wait_ms| leg.order(request(action, id(1), wait_ms)).await.unwrap();
            assert_eq!(order(Take, 1000).await, Ok(()));
            let busy = pool.prepare_snapshot(&["db"], "busy", OTHER).await.unwrap();
            assert_eq!(order(Delete, 0).await, Err(PeerRefusal::NotNow), "too old");
            assert_eq!(order(Find, 1000).await, Ok(()), "it was not begun");
            assert_eq!(order(Delete, 1).await, Err(PeerRefusal::NotNow));
            assert_eq!(order(Find, 1).await, Err(PeerRefusal::NotNow));
            assert_eq!(leg.ids(SnapshotId::NONE).await.unwrap(), Err(PeerRefusal::NotNow));
            drop(busy);
            assert_eq!(order(Find, 1000).await, Err(PeerRefusal::SnapshotMissing));
            assert_eq!(leg.ids(SnapshotId::NONE).await.unwrap(), Ok(Vec::new()));
        }));
    }
}

//! Snapshots of a leg by the order of its source: the mirror asks from any core, and a task of the
//! control thread asks the pool.
//!
//! Invariants:
//! - requests wait in a queue of at most [`LEG_SNAPSHOTS_MAX`], and are carried out one by one;
//! - a request is answered within a part of the shortest timeout of a peer, because an older one
//!   ends the connection of its source. Only the durable change itself takes as long as a write;
//! - they take no order lock, because hosts may wait for them: the pool serializes its own orders.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::IoFuture;
use flagstone_config::Config;
use flagstone_config::device_spec::PoolVolumeSpec;
use flagstone_mirror::limits::SNAPSHOTS_PER_PAGE;
use flagstone_mirror::wire::peer::PeerRefusal;
use flagstone_mirror::wire::snapshot::{SnapshotAction, SnapshotId, SnapshotRequest};
use flagstone_mirror::{LegSnapshots, SnapshotFuture};
use flagstone_pool::{Pool, PoolId, PreparedSnapshot, SnapshotInfo, VolumeError};
use flagstone_runtime::sync::{OneSender, SharedNotify, oneshot};
use flagstone_runtime::{spawn, time};
use parking_lot::Mutex;

use super::legs::LegOpener;
use super::snapshot_orders::is_name;
use crate::limits::{LEG_SNAPSHOT_TIMEOUT_PART, LEG_SNAPSHOTS_MAX};

enum LegRequest {
    Order(SnapshotRequest, OneSender<Result<(), PeerRefusal>>),
    Ids(u64, OneSender<Result<Vec<SnapshotId>, PeerRefusal>>),
}

/// Requests that wait for the control thread; `None` when nobody sends any more.
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
        self.send(|sender| LegRequest::Order(request, sender))
    }

    fn ids(&self, page: u64) -> SnapshotFuture<Vec<SnapshotId>> {
        self.send(|sender| LegRequest::Ids(page, sender))
    }
}

impl LegOpener {
    /// Takes snapshots of a leg, whenever its pool is open. Called on the control thread.
    pub(crate) fn snapshots_of(
        &self,
        config: &Config,
        leg: &PoolVolumeSpec,
    ) -> Arc<dyn LegSnapshots> {
        let timeouts = config.peers.iter().map(|peer| peer.timeout);
        let limit = timeouts.min().unwrap_or_default() / LEG_SNAPSHOT_TIMEOUT_PART;
        let waiting = Mutex::new(Some(VecDeque::new()));
        let inbox = Arc::new(Inbox { waiting, arrived: SharedNotify::default() });
        let task = LegTask { legs: self.clone(), leg: leg.clone(), limit, listed: Vec::new() };
        drop(spawn(task.run(inbox.clone())));
        Arc::new(LegSender(inbox))
    }
}

struct LegTask {
    legs: LegOpener,
    leg: PoolVolumeSpec,
    /// Longest time for which a request waits for the pool.
    limit: Duration,
    /// The list whose first page was asked for last.
    listed: Vec<SnapshotId>,
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
                Some(LegRequest::Order(request, sender)) => sender.send(self.order(request).await),
                Some(LegRequest::Ids(page, sender)) => sender.send(self.ids(page)),
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

    fn ids(&mut self, page: u64) -> Result<Vec<SnapshotId>, PeerRefusal> {
        if page == 0 {
            let own = own_snapshots(&self.pool()?, &self.leg.volume);
            self.listed = own.iter().map(|snapshot| SnapshotId(snapshot.id.0)).collect();
        }
        let skipped =
            usize::try_from(page).unwrap_or(usize::MAX).saturating_mul(SNAPSHOTS_PER_PAGE);
        let ids: Vec<SnapshotId> =
            self.listed.iter().skip(skipped).take(SNAPSHOTS_PER_PAGE).copied().collect();
        if ids.len() < SNAPSHOTS_PER_PAGE {
            self.listed = Vec::new();
        }
        Ok(ids)
    }

    /// Prepares a snapshot, unless the pool is busy for longer.
    async fn prepare(
        &self,
        pool: &Pool,
        own: &str,
        id: PoolId,
    ) -> Result<Option<PreparedSnapshot>, PeerRefusal> {
        let volume = self.leg.volume.as_str();
        let prepared = time::timeout(self.limit, pool.prepare_snapshot(&[volume], own, id)).await;
        match prepared {
            Err(_) => Err(PeerRefusal::NotNow),
            Ok(Err(VolumeError::SnapshotExists { name, .. })) => {
                let existing = own_snapshots(pool, volume);
                match existing.iter().any(|found| found.name == name && found.id == id) {
                    true => Ok(None),
                    false => Err(PeerRefusal::SnapshotExists),
                }
            }
            Ok(prepared) => prepared.map(Some).map_err(|error| self.refused(&error)),
        }
    }

    async fn order(&self, request: SnapshotRequest) -> Result<(), PeerRefusal> {
        let pool = self.pool()?;
        let (id, own, volume) = (PoolId(request.id.0), request.name.as_str(), &self.leg.volume);
        let full = format!("{volume}@{own}");
        if !is_name(own) {
            return Err(self.refused(&format!("{own:?} is no name of a snapshot")));
        }
        match request.action {
            SnapshotAction::Check => self.prepare(&pool, own, id).await.map(drop),
            SnapshotAction::Take { .. } => {
                let Some(prepared) = self.prepare(&pool, own, id).await? else { return Ok(()) };
                prepared.take().await.map_err(|error| self.refused(&error))?;
                let pool = &self.leg.pool;
                tracing::info!("snapshot {full} was taken in pool {pool} for the source");
                Ok(())
            }
            SnapshotAction::Delete => {
                let own = own_snapshots(&pool, volume);
                let Some(found) = own.into_iter().find(|snapshot| snapshot.id == id) else {
                    return Ok(());
                };
                // It is not given up in the middle: a repeated request finds its result.
                let name = found.name.clone();
                let deletion = spawn(async move { pool.delete_snapshot(&name).await });
                match time::timeout(self.limit, deletion).await {
                    Err(_) => return Err(PeerRefusal::NotNow),
                    Ok(Ok(Err(VolumeError::UnknownSnapshot { .. }))) => {}
                    Ok(Ok(Err(VolumeError::InUse { .. }))) => {
                        return Err(PeerRefusal::SnapshotInUse);
                    }
                    Ok(Ok(deleted)) => deleted.map_err(|error| self.refused(&error))?,
                    Ok(Err(_)) => return Err(PeerRefusal::SnapshotFailed),
                }
                let pool = &self.leg.pool;
                tracing::info!(
                    "snapshot {} was deleted from pool {pool} for the source",
                    found.name
                );
                Ok(())
            }
        }
    }
}

/// Snapshots of one volume of a pool, in the order of their creation.
pub(super) fn own_snapshots(pool: &Pool, volume: &str) -> Vec<SnapshotInfo> {
    let is_own = |snapshot: &SnapshotInfo| {
        snapshot.name.split_once('@').is_some_and(|(owner, _)| owner == volume)
    };
    pool.snapshots().into_iter().filter(is_own).collect()
}

//! Snapshots at the source: see [`crate::snapshot`] for the steps.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use flagstone_runtime::{spawn, time};

use crate::agree::versions::LinkVersion;
use crate::join::join_all;
use crate::limits::{
    SNAPSHOT_CHECK_MS, SNAPSHOT_DRAIN_MS, SNAPSHOT_HOLD_MS, SNAPSHOT_MARKER_MS, SNAPSHOT_PEER_MS,
    SNAPSHOT_POLL_MS, SNAPSHOT_WAIT_MS, SNAPSHOT_WAIT_PART,
};
use crate::mirror::{Inner, LegState, Mirror};
use crate::options::Mode;
use crate::snapshot::marker::MarkerPlacement;
use crate::state::status::LegPhase;
use crate::wire::peer::{PeerRefusal, PeerRequest, RequestError, SharedSession, execute};
use crate::wire::snapshot::{SnapshotAction, SnapshotId, SnapshotName, SnapshotRequest};

pub use crate::snapshot::marker::MarkerState;

/// Why a peer cannot take part in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotObstacle {
    /// It is not in sync.
    #[error("{}", not_in_sync(.0))]
    NotInSync(LegPhase),
    /// Its release does not know snapshots of mirrored volumes.
    #[error("its release takes no snapshots for a source: upgrade Flagstone there")]
    Version,
    /// It refused.
    #[error("{0}")]
    Refused(PeerRefusal),
    /// It did not answer.
    #[error("it does not answer")]
    Silent,
    /// Too many snapshots wait in its queue.
    #[error("too many snapshots wait in its queue")]
    TooMany,
    /// It was not asked: the device of this node took too long.
    #[error("it was not asked, because the device of this node took too long")]
    NoTime,
    /// A deleted snapshot of the same name waits in its queue.
    #[error("a deleted snapshot of this name still waits in its queue")]
    NameWaits,
}

fn not_in_sync(phase: &LegPhase) -> &'static str {
    match phase {
        LegPhase::Resync(_) | LegPhase::InSync => "it is not in sync: a resync to it runs",
        LegPhase::Disconnected => "it is not connected",
        LegPhase::Handshake(_) => "it is not mirrored to",
    }
}

/// Failure of a snapshot. `volume` is a position in the list of mirrors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError<E> {
    /// Nothing has changed: this node does not serve the volume from its own device.
    #[error("this node does not serve the volume")]
    NotServing {
        /// The volume.
        volume: usize,
    },
    /// Nothing has changed.
    #[error("{why}")]
    Peer {
        /// The volume.
        volume: usize,
        /// The peer, by position in the configuration.
        leg: usize,
        /// Why.
        why: SnapshotObstacle,
    },
    /// Nothing has changed: writes in flight have not ended in time.
    #[error("writes in flight did not end within {} s", SNAPSHOT_DRAIN_MS / 1000)]
    Busy,
    /// The device of this node refused, and no peer was asked.
    #[error("{0}")]
    Local(E),
    /// The device of this node does not answer. It may take the snapshot later; no peer does.
    #[error("the device of this node did not answer within {} s", SNAPSHOT_HOLD_MS / 1000)]
    LocalHangs,
    /// This node has the snapshot, and this peer has not.
    #[error("{why}")]
    PeerLacks {
        /// The volume.
        volume: usize,
        /// The peer.
        leg: usize,
        /// Why.
        why: SnapshotObstacle,
        /// Other peers.
        others: OtherPeers,
    },
    /// This node has the snapshot, and this peer may have it.
    #[error("the peer did not answer")]
    Unknown {
        /// The volume.
        volume: usize,
        /// The peer.
        leg: usize,
    },
}

/// Peers of a snapshot that one of them lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherPeers {
    /// All have confirmed that they have no snapshot of this identifier, and none takes one later.
    LackIt,
    /// One may have it, or take it later.
    MayHaveIt,
}

/// An asynchronous peer that takes the snapshot when it has the writes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingPeer {
    /// The volume, by position in the list of mirrors.
    pub volume: usize,
    /// The peer, by position in the configuration.
    pub leg: usize,
}

/// Hold of new writes and flushes; ends on drop.
struct WriteHold(Arc<Inner>);

impl WriteHold {
    fn new(inner: &Arc<Inner>) -> WriteHold {
        inner.change(|state| state.write_holds += 1);
        WriteHold(inner.clone())
    }
}

impl Drop for WriteHold {
    fn drop(&mut self) {
        self.0.change(|state| state.write_holds -= 1);
    }
}

impl LegState {
    /// True while this session takes writes, and its peer is in sync.
    pub(crate) fn takes_snapshots(&self, session_id: u64) -> bool {
        self.is_current(session_id) && self.receives_writes && self.phase == LegPhase::InSync
    }
}

impl Inner {
    /// Longest time for which a request may wait for the pool of a peer, in milliseconds.
    pub(crate) fn snapshot_wait_ms(&self, leg: usize) -> u32 {
        let part = self.legs[leg].options().timeout / SNAPSHOT_WAIT_PART;
        u32::try_from(part.as_millis()).unwrap_or(u32::MAX).min(SNAPSHOT_WAIT_MS)
    }

    pub(super) fn speaks_snapshots(&self, own: &LegState) -> bool {
        let common = own.versions.map(|peers| self.versions.highest_common(peers));
        common.is_some_and(|common| common.is_ok_and(|one| one >= LinkVersion::SNAPSHOTS))
    }
}

/// A peer that takes part.
struct Participant {
    volume: usize,
    leg: usize,
    inner: Arc<Inner>,
    session: SharedSession,
    session_id: u64,
    /// See [`State::service_ends`](crate::mirror::State).
    service_ends: u64,
    mode: Mode,
}

impl Participant {
    fn lacks<E>(&self, why: SnapshotObstacle, others: OtherPeers) -> SnapshotError<E> {
        SnapshotError::PeerLacks { volume: self.volume, leg: self.leg, why, others }
    }

    fn request(
        &self,
        id: SnapshotId,
        name: SnapshotName,
        action: SnapshotAction,
    ) -> SnapshotRequest {
        SnapshotRequest { id, name, action, wait_ms: self.inner.snapshot_wait_ms(self.leg) }
    }

    async fn ask(&self, request: SnapshotRequest) -> Result<(), RequestError> {
        execute(&self.session, PeerRequest::Snapshot(request)).await
    }

    /// Checks that the queue of an asynchronous peer takes a marker.
    fn check_marker(&self, name: SnapshotName) -> Result<(), SnapshotObstacle> {
        let state = self.inner.lock();
        if self.mode == Mode::Sync {
            return Ok(());
        }
        if state.markers.awaits(name, self.leg) {
            return Err(SnapshotObstacle::NameWaits);
        }
        state.markers.have_room().then_some(()).ok_or(SnapshotObstacle::TooMany)
    }

    /// Checks that everything is as at the beginning.
    fn check(&self) -> Result<(), SnapshotObstacle> {
        let state = self.inner.lock();
        let own = &state.legs[self.leg];
        let serves = state.serving && state.service_ends == self.service_ends;
        let stays = serves && !state.has_ended() && !state.local_device_failed;
        match stays && own.takes_snapshots(self.session_id) {
            true => Ok(()),
            false => Err(SnapshotObstacle::NotInSync(own.phase)),
        }
    }
}

/// Asks until the peer's pool is not busy, for a limited time. An answer that comes too late is not
/// waited for, so this is not for requests that take a snapshot.
pub(super) async fn ask_until_free(
    session: &SharedSession,
    request: SnapshotRequest,
) -> Result<(), SnapshotObstacle> {
    let last = Cell::new(SnapshotObstacle::Silent);
    let asked = async {
        loop {
            match execute(session, PeerRequest::Snapshot(request)).await.map_err(obstacle) {
                Err(busy @ SnapshotObstacle::Refused(PeerRefusal::NotNow)) => last.set(busy),
                answer => return answer,
            }
            time::sleep(Duration::from_millis(SNAPSHOT_POLL_MS)).await;
        }
    };
    let answered = time::timeout(Duration::from_millis(SNAPSHOT_CHECK_MS), asked).await;
    answered.unwrap_or_else(|_| Err(last.get()))
}

pub(super) fn obstacle(error: RequestError) -> SnapshotObstacle {
    match error {
        RequestError::Refused(PeerRefusal::Version) => SnapshotObstacle::Version,
        RequestError::Refused(refusal) => SnapshotObstacle::Refused(refusal),
        _ => SnapshotObstacle::Silent,
    }
}

/// Finds the peers of all volumes, which must be in sync.
fn participants<E>(mirrors: &[Mirror]) -> Result<Vec<Participant>, SnapshotError<E>> {
    let mut found = Vec::new();
    for (volume, Mirror(inner)) in mirrors.iter().enumerate() {
        let state = inner.lock();
        if !state.serving || state.has_ended() || state.local_device_failed {
            return Err(SnapshotError::NotServing { volume });
        }
        for (leg, own) in state.legs.iter().enumerate() {
            let failed = |why| SnapshotError::Peer { volume, leg, why };
            let (session_id, mode) = (own.session_id, inner.legs[leg].options().mode);
            let not_in_sync = failed(SnapshotObstacle::NotInSync(own.phase));
            let session = own.session.clone().filter(|_| own.takes_snapshots(session_id));
            let session = session.ok_or(not_in_sync)?;
            if !inner.speaks_snapshots(own) {
                return Err(failed(SnapshotObstacle::Version));
            }
            let (inner, service_ends) = (inner.clone(), state.service_ends);
            found.push(Participant { volume, leg, inner, session, session_id, service_ends, mode });
        }
    }
    Ok(found)
}

/// A checked snapshot of all replicas of some volumes, at one point of the order of their writes.
/// Dropping it takes none.
pub struct SnapshotPoint {
    mirrors: Vec<Mirror>,
    peers: Vec<Participant>,
    id: SnapshotId,
    name: SnapshotName,
}

impl SnapshotPoint {
    /// Checks whether a snapshot could be taken now.
    ///
    /// # Errors
    /// See [`SnapshotError`]: nothing has changed.
    pub async fn check<E>(
        mirrors: Vec<Mirror>,
        id: SnapshotId,
        name: SnapshotName,
    ) -> Result<SnapshotPoint, SnapshotError<E>> {
        let peers = participants(&mirrors)?;
        let answers = join_all(peers.iter().map(|peer| async move {
            peer.check_marker(name)?;
            ask_until_free(&peer.session, peer.request(id, name, SnapshotAction::Check)).await
        }));
        for (peer, answer) in peers.iter().zip(answers.await) {
            let &Participant { volume, leg, .. } = peer;
            answer.map_err(|why| SnapshotError::Peer { volume, leg, why })?;
        }
        Ok(SnapshotPoint { mirrors, peers, id, name })
    }

    /// Its identifier.
    pub fn id(&self) -> SnapshotId {
        self.id
    }

    /// Takes it: it has every write that completed before the call, and none that begins after
    /// the call. `local` takes the snapshots of this node, durably, and runs to its end even if
    /// the call fails. Returns the asynchronous peers that take it later; all others have it.
    ///
    /// # Errors
    /// See [`SnapshotError`].
    pub async fn take<E: 'static>(
        self,
        local: impl Future<Output = Result<(), E>> + 'static,
    ) -> Result<Vec<WaitingPeer>, SnapshotError<E>> {
        let result = {
            let hold = |mirror: &Mirror| WriteHold::new(&mirror.0);
            let _holds: Vec<WriteHold> = self.mirrors.iter().map(hold).collect();
            self.take_held(local).await
        };
        let result = match result {
            Ok(()) => self.await_markers().await,
            Err(error) => Err(error),
        };
        match result {
            Err(SnapshotError::PeerLacks { volume, leg, why, others: OtherPeers::MayHaveIt }) => {
                Err(SnapshotError::PeerLacks { volume, leg, why, others: self.undo().await })
            }
            result => result,
        }
    }

    /// Deletes the snapshot from the peers, unless one takes it later: a deletion would overtake
    /// the marker in its queue.
    async fn undo(&self) -> OtherPeers {
        self.markers_ended().await;
        if self.asynchronous().any(|peer| peer.marker(self.id) == Some(MarkerState::Waiting)) {
            return OtherPeers::MayHaveIt;
        }
        let deleted = join_all(self.peers.iter().map(|peer| {
            let request = peer.request(self.id, self.name, SnapshotAction::Delete);
            ask_until_free(&peer.session, request)
        }));
        match deleted.await.iter().all(Result::is_ok) {
            true => OtherPeers::LackIt,
            false => OtherPeers::MayHaveIt,
        }
    }

    fn asynchronous(&self) -> impl Iterator<Item = &Participant> {
        self.peers.iter().filter(|peer| peer.mode == Mode::Async)
    }

    /// Waits for the asynchronous peers, for a limited time.
    async fn markers_ended(&self) {
        let limit = Duration::from_millis(SNAPSHOT_MARKER_MS);
        let ended = self.asynchronous().map(|peer| {
            peer.inner.wait(|state| match state.markers.state(self.id, peer.leg) {
                Some(MarkerState::Waiting) => None,
                _ => Some(()),
            })
        });
        let _ = time::timeout(limit, join_all(ended)).await;
    }

    /// Steps 2 to 5. The caller holds the writes.
    async fn take_held<E: 'static>(
        &self,
        local: impl Future<Output = Result<(), E>> + 'static,
    ) -> Result<(), SnapshotError<E>> {
        let SnapshotPoint { mirrors, peers, id, name } = self;
        let (id, name) = (*id, *name);
        let begun = time::now();
        let left = || Duration::from_millis(SNAPSHOT_HOLD_MS).saturating_sub(begun.elapsed());
        let drained = join_all(mirrors.iter().map(|mirror| mirror.0.drain()));
        let limit = Duration::from_millis(SNAPSHOT_DRAIN_MS);
        time::timeout(limit, drained).await.map_err(|_| SnapshotError::Busy)?;
        for peer in peers {
            let &Participant { volume, leg, .. } = peer;
            let checked = peer.check().and_then(|()| peer.check_marker(name));
            checked.map_err(|why| SnapshotError::Peer { volume, leg, why })?;
        }
        match time::timeout(left(), spawn(local)).await {
            Ok(Ok(taken)) => taken.map_err(SnapshotError::Local)?,
            Ok(Err(_)) | Err(_) => return Err(SnapshotError::LocalHangs),
        }
        for peer in peers {
            peer.check().map_err(|why| peer.lacks(why, OtherPeers::LackIt))?;
        }
        let (synchronous, asynchronous): (Vec<_>, Vec<_>) =
            peers.iter().partition(|peer| peer.mode == Mode::Sync);
        // A peer that is asked and does not answer is disconnected. A slow device here is no reason
        // for that.
        if let Some(peer) = synchronous.first()
            && left() < Duration::from_millis(SNAPSHOT_PEER_MS)
        {
            return Err(peer.lacks(SnapshotObstacle::NoTime, OtherPeers::LackIt));
        }
        let asked = synchronous.iter().map(|peer| async move {
            let request = peer.request(id, name, SnapshotAction::Take);
            let answer = time::timeout(left(), peer.ask(request)).await;
            match answer {
                Ok(Err(RequestError::Refused(refusal))) => {
                    Err(peer.lacks(obstacle(RequestError::Refused(refusal)), OtherPeers::MayHaveIt))
                }
                Ok(Ok(())) => Ok(()),
                Ok(Err(_)) | Err(_) => {
                    // Before writes continue: see step 4.
                    peer.inner.disconnect(peer.leg, peer.session_id);
                    Err(SnapshotError::Unknown { volume: peer.volume, leg: peer.leg })
                }
            }
        });
        let answers = join_all(asked).await;
        // A peer that may have it decides whether this node keeps its own.
        let is_unknown = |answer: &&Result<(), SnapshotError<E>>| {
            matches!(answer, Err(SnapshotError::Unknown { .. }))
        };
        let unknown = answers.iter().position(|answer| is_unknown(&answer));
        match unknown {
            Some(unknown) => answers.into_iter().nth(unknown).unwrap_or(Ok(())),
            None => answers.into_iter().collect(),
        }?;
        for peer in asynchronous {
            let placed = peer.place_marker(id, name);
            placed.map_err(|why| peer.lacks(why, OtherPeers::MayHaveIt))?;
        }
        Ok(())
    }

    /// Result of the markers, after a limited time.
    async fn await_markers<E>(&self) -> Result<Vec<WaitingPeer>, SnapshotError<E>> {
        self.markers_ended().await;
        let (mut waiting, mut lacking) = (Vec::new(), None);
        for peer in self.asynchronous() {
            let &Participant { volume, leg, .. } = peer;
            match peer.marker(self.id) {
                Some(MarkerState::Taken) => {}
                Some(MarkerState::Waiting) => waiting.push(WaitingPeer { volume, leg }),
                Some(MarkerState::Refused(refusal)) => {
                    let why = SnapshotObstacle::Refused(refusal);
                    lacking = Some(peer.lacks(why, OtherPeers::MayHaveIt));
                }
                Some(MarkerState::Lost) | None => {
                    return Err(SnapshotError::Unknown { volume, leg });
                }
            }
        }
        lacking.map_or(Ok(waiting), Err)
    }
}

impl Participant {
    fn marker(&self, id: SnapshotId) -> Option<MarkerState> {
        self.inner.lock().markers.state(id, self.leg)
    }

    fn place_marker(&self, id: SnapshotId, name: SnapshotName) -> Result<(), SnapshotObstacle> {
        match self.inner.place_marker((self.leg, self.session_id), id, name) {
            MarkerPlacement::Placed => Ok(()),
            MarkerPlacement::TooMany => Err(SnapshotObstacle::TooMany),
            MarkerPlacement::Lost => {
                let phase = self.inner.lock().legs[self.leg].phase;
                Err(SnapshotObstacle::NotInSync(phase))
            }
        }
    }
}

//! Markers: places of snapshots in the order of writes of asynchronous peers.
//!
//! Invariants: a marker depends on all writes before it, and all writes after it depend on it. It
//! counts as a call to its peer until it has ended. Its session ends unless the target has
//! completed its number: later writes would wait for it forever. Markers have no payload, so a full
//! queue takes them, at most [`SNAPSHOT_MARKERS_MAX`].

use std::collections::VecDeque;
use std::sync::Arc;

use flagstone_blockdev::IoError;
use flagstone_runtime::spawn_detached;

use crate::group::GroupSession;
use crate::io::admission::QueueSlots;
use crate::io::call_admission::Counted;
use crate::limits::SNAPSHOT_MARKERS_MAX;
use crate::mirror::Inner;
use crate::wire::peer::{PeerAnswer, PeerRefusal, PeerRequest, SharedSession};
use crate::wire::snapshot::{SnapshotAction, SnapshotId, SnapshotName, SnapshotRequest};

/// State of a snapshot at an asynchronous peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkerState {
    /// Writes before it are on their way.
    Waiting,
    /// The peer has it.
    Taken,
    /// The peer refused it.
    Refused(PeerRefusal),
    /// The session ended before an answer.
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct SnapshotMarker {
    id: SnapshotId,
    leg: usize,
    state: MarkerState,
}

/// The latest markers, at most [`SNAPSHOT_MARKERS_MAX`].
#[derive(Debug, Default)]
pub(crate) struct SnapshotMarkers(VecDeque<SnapshotMarker>);

impl SnapshotMarkers {
    /// Whether another marker may begin.
    pub(crate) fn have_room(&self) -> bool {
        let waits = |marker: &SnapshotMarker| marker.state == MarkerState::Waiting;
        self.0.iter().filter(|marker| waits(marker)).count() < SNAPSHOT_MARKERS_MAX
    }

    /// Adds a marker in place of the oldest one that has ended; false if none has.
    fn begin(&mut self, id: SnapshotId, leg: usize) -> bool {
        if self.0.len() >= SNAPSHOT_MARKERS_MAX {
            let ended = self.0.iter().position(|marker| marker.state != MarkerState::Waiting);
            let Some(ended) = ended else { return false };
            self.0.remove(ended);
        }
        self.0.push_back(SnapshotMarker { id, leg, state: MarkerState::Waiting });
        true
    }

    fn ended(&mut self, id: SnapshotId, leg: usize, state: MarkerState) {
        let mut markers = self.0.iter_mut();
        if let Some(marker) = markers.find(|marker| (marker.id, marker.leg) == (id, leg)) {
            marker.state = state;
        }
    }

    /// State of a snapshot at a peer, if it is known.
    pub(crate) fn state(&self, id: SnapshotId, leg: usize) -> Option<MarkerState> {
        let mut markers = self.0.iter().rev();
        markers.find(|marker| (marker.id, marker.leg) == (id, leg)).map(|marker| marker.state)
    }
}

/// Result of placing a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkerPlacement {
    Placed,
    /// Too many markers wait.
    TooMany,
    /// The session has ended.
    Lost,
}

impl Inner {
    /// Places a marker after all admitted writes of a session. The caller holds the writes.
    pub(crate) fn place_marker(
        self: &Arc<Self>,
        (leg, session_id): (usize, u64),
        id: SnapshotId,
        name: SnapshotName,
    ) -> MarkerPlacement {
        let mut state = self.lock();
        let own = &state.legs[leg];
        let Some(session) = own.session.clone().filter(|_| own.takes_snapshots(session_id)) else {
            return MarkerPlacement::Lost;
        };
        if !state.markers.begin(id, leg) {
            return MarkerPlacement::TooMany;
        }
        let own = &state.legs[leg];
        let (numbers, in_group) = {
            let mut numbering = own.numbering.lock();
            // In the order of the numbers.
            let in_group = own.group_session.as_ref().map(GroupSession::push_marker);
            let numbers = numbering.begin(1);
            numbering.completed(numbers);
            (numbers, in_group)
        };
        let own = self.legs[leg].queue().push_marker(Inner::boot_ns());
        self.calls.begin(Counted::Leg(leg, None));
        let action = SnapshotAction::Take { order: Some(numbers.first) };
        let request = SnapshotRequest { id, name, action };
        let slots = QueueSlots { own, in_group };
        drop(state);
        spawn_detached(send(self.clone(), (leg, session_id), session, slots, request));
        MarkerPlacement::Placed
    }
}

async fn send(
    inner: Arc<Inner>,
    (leg, session_id): (usize, u64),
    session: SharedSession,
    slots: QueueSlots,
    request: SnapshotRequest,
) {
    let answer = match inner.wait_for_turn(leg, session_id, &slots).await {
        true => session.ask(PeerRequest::Snapshot(request)).await,
        false => Err(IoError::Unreachable),
    };
    let completed = has_completed(&answer);
    if !completed {
        inner.disconnect(leg, session_id);
    }
    inner.leave_queues(leg, &slots);
    inner.call_ended(Counted::Leg(leg, None));
    let ended = match answer {
        Ok(Ok(_)) => MarkerState::Taken,
        Ok(Err(refusal)) => MarkerState::Refused(refusal),
        Err(_) => MarkerState::Lost,
    };
    if ended != MarkerState::Taken {
        let replica = inner.local.superblock().replica;
        tracing::error!(%replica, leg, "the peer has no snapshot {:?}: {ended:?}", request.name);
    }
    inner.change(|state| state.markers.ended(request.id, leg, ended));
    if !completed {
        inner.record_loss().await;
    }
}

/// True if the target has completed the number of the marker.
fn has_completed(answer: &Result<PeerAnswer, IoError>) -> bool {
    use PeerRefusal::{Inconsistent, NoSnapshots, NotNow, SnapshotExists, SnapshotFailed};
    let refused = |refusal: &PeerRefusal| {
        matches!(refusal, Inconsistent | NoSnapshots | NotNow | SnapshotExists | SnapshotFailed)
    };
    match answer {
        Ok(Ok(_)) => true,
        Ok(Err(refusal)) => refused(refusal),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a busy pool of the target would end the session, and begin a resync.
    #[test]
    fn refused_marker_keeps_its_session() {
        assert!(has_completed(&Ok(Err(PeerRefusal::NotNow))));
        assert!(!has_completed(&Ok(Err(PeerRefusal::NotAttached))));
        assert!(!has_completed(&Err(IoError::Unreachable)));
    }

    #[test]
    fn only_ended_markers_are_forgotten() {
        let mut markers = SnapshotMarkers::default();
        let id = |number: usize| SnapshotId([number as u8; 16]);
        for number in 0..SNAPSHOT_MARKERS_MAX {
            assert!(markers.begin(id(number), 1));
        }
        assert!(!markers.have_room() && !markers.begin(id(200), 1), "all wait");
        markers.ended(id(3), 0, MarkerState::Taken);
        assert!(!markers.begin(id(200), 1), "of another peer");
        markers.ended(id(3), 1, MarkerState::Taken);
        assert_eq!(markers.state(id(3), 1), Some(MarkerState::Taken));
        assert!(markers.have_room());
        assert!(markers.begin(id(200), 1));
        assert_eq!(markers.state(id(3), 1), None);
        assert_eq!(markers.state(id(200), 1), Some(MarkerState::Waiting));
    }
}

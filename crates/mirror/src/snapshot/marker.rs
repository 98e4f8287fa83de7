//! Markers: places of snapshots in the queues of asynchronous peers.
//!
//! Invariants: a marker is sent when the peer has everything before it, and nothing after it is
//! sent before its result is known, so the target takes the snapshot at rest, and a request is
//! never older than the target takes to answer it. A busy target is asked again for a limited time.
//! If the result is unknown, the session ends, and nothing after the marker is sent: the target may
//! still take the snapshot. Markers are at most [`SNAPSHOT_MARKERS_MAX`]; a full queue takes them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_runtime::{spawn_detached, time};

use crate::group::GroupSession;
use crate::io::admission::QueueSlots;
use crate::io::call_admission::Counted;
use crate::limits::{SNAPSHOT_BUSY_MS, SNAPSHOT_MARKERS_MAX, SNAPSHOT_POLL_MS};
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
    name: SnapshotName,
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
    fn begin(&mut self, (id, name): (SnapshotId, SnapshotName), leg: usize) -> bool {
        if self.0.len() >= SNAPSHOT_MARKERS_MAX {
            let ended = self.0.iter().position(|marker| marker.state != MarkerState::Waiting);
            let Some(ended) = ended else { return false };
            self.0.remove(ended);
        }
        self.0.push_back(SnapshotMarker { id, name, leg, state: MarkerState::Waiting });
        true
    }

    fn ended(&mut self, id: SnapshotId, leg: usize, state: MarkerState) {
        let mut markers = self.0.iter_mut();
        if let Some(marker) = markers.find(|marker| (marker.id, marker.leg) == (id, leg)) {
            marker.state = state;
        }
    }

    /// Whether a peer takes a snapshot of this name later.
    pub(crate) fn awaits(&self, name: SnapshotName, leg: usize) -> bool {
        let waits = |marker: &SnapshotMarker| marker.state == MarkerState::Waiting;
        self.0.iter().any(|marker| (marker.name, marker.leg) == (name, leg) && waits(marker))
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
        if !state.markers.begin((id, name), leg) {
            return MarkerPlacement::TooMany;
        }
        let own = &state.legs[leg];
        let in_group = {
            let _numbering = own.numbering.lock();
            own.group_session.as_ref().map(GroupSession::push_marker)
        };
        let own = self.legs[leg].queue().push_marker();
        self.calls.begin(Counted::Leg(leg, None));
        let slots = QueueSlots { own, in_group };
        drop(state);
        let wait_ms = self.snapshot_wait_ms(leg);
        let request = SnapshotRequest { id, name, action: SnapshotAction::Take, wait_ms };
        spawn_detached(send(self.clone(), (leg, session_id), session, slots, request));
        MarkerPlacement::Placed
    }

    /// Asks until the target is not busy, for a limited time. `None` if the session has ended, and
    /// no request is in flight: a write before the marker may have been given up, which the target
    /// would lack, and later writes may be of the next session.
    ///
    /// A hand-over, a stop or a change of the mirror waits for the queue, with hosts blocked: then
    /// a busy target refuses at once.
    async fn ask_in_turn(
        &self,
        (leg, session_id): (usize, u64),
        session: &SharedSession,
        request: SnapshotRequest,
    ) -> Option<Result<PeerAnswer, IoError>> {
        let begun = time::now();
        loop {
            if !self.lock().legs[leg].is_current(session_id) {
                return None;
            }
            let answer = session.ask(PeerRequest::Snapshot(request)).await;
            let is_busy = answer == Ok(Err(PeerRefusal::NotNow));
            let is_awaited = {
                let state = self.lock();
                state.admission_blocks > 0 || !state.serving || state.is_moving()
            };
            let is_late = begun.elapsed() >= Duration::from_millis(SNAPSHOT_BUSY_MS);
            if !is_busy || is_awaited || is_late {
                return Some(answer);
            }
            time::sleep(Duration::from_millis(SNAPSHOT_POLL_MS)).await;
        }
    }
}

async fn send(
    inner: Arc<Inner>,
    (leg, session_id): (usize, u64),
    session: SharedSession,
    slots: QueueSlots,
    request: SnapshotRequest,
) {
    let asked = match inner.wait_for_turn(leg, session_id, &slots).await {
        true => inner.ask_in_turn((leg, session_id), &session, request).await,
        false => None,
    };
    if asked.as_ref().is_some_and(Result::is_err) {
        inner.disconnect(leg, session_id);
        inner.legs[leg].queue().lose_after_marker();
    }
    // Without a request, the session has ended.
    let answer = asked.unwrap_or(Err(IoError::Unreachable));
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
    if answer.is_err() {
        inner.record_loss().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ended_markers_are_forgotten() {
        let mut markers = SnapshotMarkers::default();
        let id = |number: usize| SnapshotId([number as u8; 16]);
        let name = SnapshotName::new("a").expect("it is short");
        for number in 0..SNAPSHOT_MARKERS_MAX {
            assert!(markers.begin((id(number), name), 1));
        }
        assert!(!markers.have_room() && !markers.begin((id(200), name), 1), "all wait");
        markers.ended(id(3), 0, MarkerState::Taken);
        assert!(!markers.begin((id(200), name), 1), "of another peer");
        markers.ended(id(3), 1, MarkerState::Taken);
        assert_eq!(markers.state(id(3), 1), Some(MarkerState::Taken));
        assert!(markers.have_room());
        assert!(markers.begin((id(200), name), 1));
        assert_eq!(markers.state(id(3), 1), None);
        assert_eq!(markers.state(id(200), 1), Some(MarkerState::Waiting));
        let other = SnapshotName::new("b").expect("it is short");
        assert!(markers.awaits(name, 1) && !markers.awaits(name, 0) && !markers.awaits(other, 1));
    }
}

//! State of a mirror: role, legs and blocked calls, behind one lock.
//!
//! Invariants ([`State::assert_sound`], checked after each change):
//! - only a source serves hosts, and it has no source attached;
//! - writes are sent only to a peer with a session and, in a consistency group, within its session.
//!
//! A change through [`StateGuard`] invalidates the views of all cores until the lock is released.

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::task::Waker;

use flagstone_blockdev::IoError;
use parking_lot::{Mutex, MutexGuard};

use crate::agree::decide::ResyncAmount;
use crate::agree::versions::LinkVersions;
use crate::failover::Published;
use crate::group::{GroupSession, SharedNumbering};
use crate::id::{Generation, MirrorId};
use crate::io::admission::AdmissionView;
use crate::io::call_admission::CallAdmission;
use crate::io::deliver::Undelivered;
use crate::io::reorder::ReorderBuffer;
use crate::manage::command::CommandError;
use crate::manage::transfer::RoleTransfer;
use crate::ondisk::superblock::ReplicaRole;
use crate::snapshot::marker::SnapshotMarkers;
use crate::state::arbitration::ServingRight;
use crate::state::machine::Resolution;
use crate::state::status::{DesiredState, LegPhase};
use crate::wire::peer::{ReplicaIdentity, SharedSession};

/// Start of a generation, because a write lacks a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum GenerationBump {
    #[default]
    Idle,
    /// Nothing is recorded: the arbiter has not excluded the peer, which may return.
    Waits,
    /// The generation may be on the disk.
    Records,
}

impl GenerationBump {
    pub(crate) fn is_running(self) -> bool {
        self != GenerationBump::Idle
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) role: ReplicaRole,
    pub(crate) serving: bool,
    /// How often this node has stopped serving hosts. A read compares it before and after.
    pub(crate) service_ends: u64,
    /// Number of reasons for which new host calls are blocked.
    pub(crate) admission_blocks: u32,
    /// Snapshots that hold host writes and flushes. Unlike `admission_blocks`, writes follow, so
    /// this has no other effect.
    pub(crate) write_holds: u32,
    /// The latest snapshots that asynchronous peers take.
    pub(crate) markers: SnapshotMarkers,
    /// Blocked writes: waiting for admission, or recorded and waiting to be acknowledged.
    pub(crate) blocked: usize,
    pub(crate) legs: Vec<LegState>,
    pub(crate) local_device_failed: bool,
    /// A flush of the local device failed earlier. Its contents may not be durable, even after
    /// later successful flushes, until a resync to it completes.
    pub(crate) unverified: bool,
    pub(crate) generation_bump: GenerationBump,
    pub(crate) generation_error: Option<IoError>,
    pub(crate) changing_role: bool,
    /// In a group with automatic failover: this mirror has started, and waits for its leader to
    /// serve.
    pub(crate) awaits_leader: bool,
    /// Result of a stop of the whole group, for the order that stops this member.
    pub(crate) stopped: Option<Result<Vec<Undelivered>, CommandError>>,
    /// Orders to change the role that have not ended, including orders that wait for another
    /// change.
    pub(crate) orders: usize,
    /// See [`promised`](crate::state::machine::MachineState::promised).
    pub(crate) promised: u64,
    /// See [`announced`](crate::state::machine::MachineState::announced).
    pub(crate) announced: u64,
    pub(crate) resolution: Resolution,
    /// Right to serve without the peer, of a node that serves.
    pub(crate) serving_right: ServingRight,
    /// Record of the peer at the arbiter.
    pub(crate) published: Option<Published>,
    /// How often a source has attached, or has announced that it becomes the source.
    pub(crate) attachments: u64,
    /// The local leg has just failed, and a peer is being asked to run degraded.
    pub(crate) degrading: bool,
    /// The session that may write to this replica.
    pub(crate) attached: Option<AttachedSource>,
    /// Bad ranges that the attached source has begun to report.
    pub(crate) reported_bad_ranges: Vec<Range<u64>>,
    /// The attached source counts this replica as in sync.
    pub(crate) counted_in_sync: bool,
    pub(crate) reorder: Option<Arc<Mutex<ReorderBuffer>>>,
    pub(crate) closed: bool,
    pub(crate) transfer: RoleTransfer,
    pub(crate) requested_bytes: Option<u64>,
    /// The space that the volume is about to grow into is being zeroed for a source.
    pub(crate) zeroing: bool,
    /// That zeroing failed, and the source has not been informed yet.
    pub(crate) zeroing_failed: bool,
    pub(crate) changes: u64,
}

/// The locked state. Changing it invalidates the views of all cores: see
/// [`crate::io::call_admission`].
pub(crate) struct StateGuard<'a> {
    pub(super) calls: &'a CallAdmission<AdmissionView>,
    pub(super) locked: MutexGuard<'a, (State, Vec<Waker>)>,
    /// The version is invalid until the lock is released.
    pub(super) is_changing: bool,
}

impl Deref for StateGuard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.locked.0
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        if !std::mem::replace(&mut self.is_changing, true) {
            self.calls.begin_change();
        }
        &mut self.locked.0
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        if self.is_changing {
            self.calls.end_change();
        }
    }
}

impl State {
    /// From now on hosts are not served here, and reads may find data of the next source.
    pub(crate) fn stop_serving(&mut self) {
        self.serving = false;
        self.service_ends += 1;
    }

    /// The mirror has ended, or moves to another one.
    pub(crate) fn has_ended(&self) -> bool {
        self.closed || matches!(self.transfer, RoleTransfer::Running | RoleTransfer::Done(_))
    }

    /// The local leg has failed and no peer serves the volume.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.local_device_failed && !self.legs.iter().any(|leg| leg.phase == LegPhase::InSync)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttachedSource {
    pub(crate) session: u64,
    pub(crate) source: MirrorId,
}

/// The part of a leg that is under the state's lock.
#[derive(Default)]
pub(crate) struct LegState {
    pub(crate) desired_state: DesiredState,
    pub(crate) phase: LegPhase,
    /// The peer's replica at the last handshake; none before the first.
    pub(crate) peer: MirrorId,
    pub(crate) session: Option<SharedSession>,
    /// Identifies the session. Each new session gets the next number.
    pub(crate) session_id: u64,
    pub(crate) receives_writes: bool,
    /// The last session that received writes; 0 for none.
    pub(crate) last_open_session: u64,
    /// With automatic failover: the peer has admitted this session as its source.
    pub(crate) is_admitted: bool,
    /// A generation was started after this peer was lost.
    pub(crate) generation_bumped: bool,
    pub(crate) unflushed_half: usize,
    /// The last session ended with writes that were not flushed, or may have: that is unknown after
    /// a start.
    pub(crate) has_unflushed: bool,
    pub(crate) volatile_cache: bool,
    pub(crate) last_handshake: Option<ReplicaIdentity>,
    /// Versions of the link that the peer announced then, even if nothing else could be parsed.
    pub(crate) versions: Option<LinkVersions>,
    /// Attach no earlier, in nanoseconds: the peer was detached for a congested queue.
    pub(crate) attach_not_before_ns: u64,
    /// Incremented by each command that the connection task has to act on.
    pub(crate) reconnect_requests: u64,
    /// Copy everything after the next handshake.
    pub(crate) full_resync: bool,
    /// The session that was ended to set marks for the peer. None begins before they exist: see
    /// [`crate::session::outdated`].
    pub(crate) awaits_marks: Option<u64>,
    /// An order is about to end the session, and relies on a record that excludes the peer: see
    /// [`crate::session::outdated`].
    pub(crate) is_excluded: bool,
    /// The role is being handed over through this session, which is kept meanwhile.
    pub(crate) handing_over: bool,
    /// The peer is durably inconsistent: a resync to it has begun, and the peer has not been
    /// informed of its end. Until then, differences need no other record.
    pub(crate) inconsistent: bool,
    /// Bad ranges, in whole bits, that were reported to the peer in this session.
    pub(crate) reported_bad_ranges: Vec<Range<u64>>,
    /// Generation under which the peer was asked to run degraded, until it answers.
    pub(crate) degraded_as: Generation,
    /// Of this session, or of the group session. Locked after the state.
    pub(crate) numbering: SharedNumbering,
    /// The group session of this session, also after its end.
    pub(crate) group_session: Option<Arc<GroupSession>>,
    /// Writes have been sent in it.
    pub(crate) opened_group_session: bool,
    /// The peer refused the last attachment because of its group.
    pub(crate) refused_group: bool,
}

impl State {
    /// Holds after each change, also in release: going on would lose or mix data.
    pub(super) fn assert_sound(&self, grouped: bool) {
        let sound = !self.serving || self.role == ReplicaRole::Source;
        assert!(sound, "hosts are served only by the source, and not by a {} node", self.role);
        let two_sources = self.serving && self.attached.is_some();
        assert!(!two_sources, "a node that serves hosts has a source attached");
        for leg in self.legs.iter().filter(|leg| leg.receives_writes) {
            assert!(leg.session.is_some(), "writes are sent to a peer without a session");
            assert_eq!(
                leg.opened_group_session, grouped,
                "writes of a consistency group are sent outside of its session"
            );
        }
    }
}

impl LegState {
    pub(super) fn new(desired_state: DesiredState) -> LegState {
        LegState { desired_state, volatile_cache: true, ..LegState::default() }
    }

    /// The phase, as far as it decides about the arbiter's record.
    pub(crate) fn recorded_phase(&self) -> LegPhase {
        match self.phase {
            LegPhase::InSync if self.is_excluded => LegPhase::Resync(ResyncAmount::Partial),
            phase => phase,
        }
    }

    /// True while this session takes writes and has not been lost.
    pub(crate) fn is_current(&self, session_id: u64) -> bool {
        self.session_id == session_id && self.session.is_some()
    }
}

//! Consistency groups: the leader, the first volume, asks the arbiter for all members.
//!
//! There is one record for the group, under the leader's volume and replica. Only the leader runs
//! races; [`crate::state::members`] adds the members to its decision.
//!
//! Invariants:
//! - a grant is durable in the superblock of every member before any member is served by it, or
//!   acknowledges a write without its peer;
//! - all members have left the right to run degraded, durably, before the record lists the peer;
//! - no member is served by a grant before the leader is.
//!
//! After a crash between two superblocks, the leader asks again, and the record says who won. Then
//! it serves, and brings the members that were left behind.

use std::sync::Arc;

use flagstone_arbiter::epoch::next_epoch;
use flagstone_arbiter::{ArbiterRecord, RecordStamp};
use flagstone_blockdev::IoError;

use super::Published;
use super::task::id;
use crate::group::{ConsistencyGroup, Membership};
use crate::manage::command::CommandError;
use crate::manage::group_order::{self, GroupMember};
use crate::manage::order::{OrderProgress, RunningOrder, disk_of};
use crate::manage::roles::RoleChange;
use crate::mirror::{Inner, LegState, State};
use crate::ondisk::superblock::{ArbiterMark, ReplicaRole, Superblock};
use crate::state::arbitration::{PeerExclusion, ServingRight, Situation};
use crate::state::machine::{DiskState, Event, NodeRole, next};
use crate::state::members::{Member, combine};
use crate::state::outlook::Obstacle;
use crate::state::status::LegPhase;

/// State of a member, as its leader sees it: a copy, because the leader's state is locked after
/// that of another member, never before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberState {
    ended: bool,
    serving: bool,
    role: ReplicaRole,
    attached: bool,
    local_device_failed: bool,
    unverified: bool,
    is_promised: bool,
    phase: LegPhase,
    is_admitted: bool,
    is_published: bool,
    serving_right: ServingRight,
    write_waits: bool,
}

impl MemberState {
    pub(crate) fn of(state: &State) -> MemberState {
        let leg = state.legs.first();
        let session_id = leg.map(|leg| leg.session_id);
        MemberState {
            ended: state.has_ended(),
            serving: state.serving,
            role: state.role,
            attached: state.attached.is_some(),
            local_device_failed: state.local_device_failed,
            unverified: state.unverified,
            is_promised: state.promised > 0,
            phase: leg.map(LegState::recorded_phase).unwrap_or_default(),
            is_admitted: leg.is_some_and(|leg| leg.is_admitted),
            is_published: state
                .published
                .is_some_and(|published| Some(published.session_id) == session_id),
            serving_right: state.serving_right,
            write_waits: state.generation_bump.is_running(),
        }
    }
}

/// How often a source has attached to each member, by mirror.
pub(super) type Attachments = Vec<(usize, u64)>;

/// Role locks of all members.
pub(crate) struct GroupLock {
    _orders: Vec<RunningOrder>,
    _role_changes: Vec<RoleChange>,
}

impl Inner {
    /// True if this mirror asks the arbiter: alone, or as the leader of its group.
    pub(crate) fn asks_arbiter(&self) -> bool {
        self.group.as_ref().is_none_or(Membership::is_leader)
    }

    /// The mirror that asks the arbiter for this one.
    pub(crate) fn arbitrating(self: &Arc<Self>) -> Arc<Inner> {
        let leader = self.group.as_ref().filter(|group| !group.is_leader());
        leader.and_then(Membership::leader).unwrap_or_else(|| self.clone())
    }

    /// Open members other than this one. None without a group.
    pub(super) fn others_of_group(&self) -> Vec<Arc<Inner>> {
        let Some(membership) = &self.group else { return Vec::new() };
        let members = membership.group().members().into_iter().flatten();
        members.filter(|member| !std::ptr::eq(&**member, self)).collect()
    }

    /// This mirror, or all members of its group, the leader first; `None` if one is not open.
    pub(super) fn all_of_group(self: &Arc<Self>) -> Option<Vec<Arc<Inner>>> {
        match &self.group {
            None => Some(vec![self.clone()]),
            Some(membership) => membership.group().members().into_iter().collect(),
        }
    }

    /// As [`Inner::all_of_group`], without closed members.
    pub(super) fn open_of_group(self: &Arc<Self>) -> Vec<Arc<Inner>> {
        match &self.group {
            None => vec![self.clone()],
            Some(membership) => membership.group().members().into_iter().flatten().collect(),
        }
    }

    /// Adds the other members to the situation of a leader.
    pub(super) fn with_members(&self, own: Situation) -> Situation {
        let leads = |membership: &&Membership| membership.is_leader();
        match self.group.as_ref().filter(leads).filter(|_| self.failover.is_automatic()) {
            Some(membership) => combine(own, &membership.group().other_members()),
            None => own,
        }
    }

    /// True for the leader of a group that does not serve, while a member cannot be served here:
    /// the peer may serve all of them.
    pub(crate) fn waits_for_members(&self) -> bool {
        let leads = |membership: &&Membership| membership.is_leader();
        let group = self.group.as_ref().filter(leads).filter(|_| self.failover.is_automatic());
        let is_unsound = |member: &Option<Member>| {
            member.is_none_or(|member| member.disk != DiskState::Consistent || member.is_promised)
        };
        group.is_some_and(|membership| {
            !self.lock().serving && membership.group().other_members().iter().any(is_unsound)
        })
    }

    /// This member, as its leader sees it.
    fn as_member(&self, state: &MemberState) -> Option<Member> {
        if state.ended {
            return None;
        }
        let superblock = self.local.superblock();
        let epoch = superblock.epoch;
        let role = match state.role {
            _ if state.serving => NodeRole::Serving { epoch },
            ReplicaRole::Source => {
                NodeRole::Waiting { epoch, handed_over: superblock.designated_successor.is_some() }
            }
            ReplicaRole::Target => NodeRole::Target { epoch, attached: state.attached },
            ReplicaRole::Deposed => NodeRole::Deposed { by: epoch },
        };
        let mark = superblock.arbiter;
        Some(Member {
            role,
            disk: disk_of(&superblock, state.local_device_failed, state.unverified),
            is_promised: state.is_promised,
            phase: state.phase,
            is_admitted: state.is_admitted,
            is_published: state.is_published,
            serving_right: state.serving_right,
            write_waits: state.write_waits,
            mark: mark.serving_right,
            source_asks: mark.source_asks,
            is_other_store: mark.is_of_other_store(self.failover.store()),
        })
    }

    /// Locks the roles of the members, in their order, as an order to the group does.
    pub(crate) async fn lock_group(members: &[Arc<Inner>]) -> GroupLock {
        let _orders = members.iter().map(|member| member.running_order()).collect();
        let mut _role_changes = Vec::new();
        for member in members {
            _role_changes.push(member.begin_role_change().await);
        }
        GroupLock { _orders, _role_changes }
    }

    /// See [`Attachments`]. Empty if a member is not open.
    pub(super) fn attachments(self: &Arc<Self>) -> Attachments {
        let members = self.all_of_group().unwrap_or_default();
        let of = |member: &Arc<Inner>| (Arc::as_ptr(member) as usize, member.lock().attachments);
        members.iter().map(of).collect()
    }

    /// Sessions of all members with the peer.
    pub(super) fn sessions(self: &Arc<Self>) -> Vec<(Arc<Inner>, u64)> {
        let session = |member: Arc<Inner>| {
            let session_id = member.lock().legs[0].session_id;
            (member, session_id)
        };
        self.open_of_group().into_iter().map(session).collect()
    }

    /// Durably notes a record at all members that `changes` accepts. Calls to a device that hangs
    /// fail after a while.
    pub(super) async fn store_marks(
        self: &Arc<Self>,
        members: &[Arc<Inner>],
        change: impl Fn(&Superblock) -> ArbiterMark + Clone + 'static,
    ) -> Result<(), IoError> {
        let _orders: Vec<RunningOrder> = match self.group {
            Some(_) => members.iter().map(|member| member.running_order()).collect(),
            None => Vec::new(),
        };
        // The leader last: what it notes is true of all.
        for member in members.iter().rev() {
            let before = member.local.superblock();
            if change(&before) == before.arbiter {
                continue;
            }
            let change = change.clone();
            // Computed at the time of the write, because another change may come first.
            let put = move |superblock: &mut Superblock| superblock.arbiter = change(superblock);
            member.local.update(put).await?;
        }
        Ok(())
    }

    /// The record lists the peers of these sessions: the members offer them the role.
    pub(super) fn publish(sessions: &[(Arc<Inner>, u64)], record: RecordStamp) {
        for (member, session_id) in sessions {
            member.change(|state| {
                state.published = Some(Published::now(*session_id, record));
                if let ServingRight::Contested { peer_left, .. } = &mut state.serving_right {
                    *peer_left = false;
                }
            });
        }
    }

    /// The arbiter's record excludes the peer, durably noted at every member that is served here:
    /// they need the peer no more.
    pub(super) fn run_alone(members: &[Arc<Inner>]) {
        for member in members {
            member.change(|state| {
                if state.serving {
                    let exclusion = PeerExclusion::Recorded { checked_ns: Inner::boot_ns() };
                    member.set_serving_right(state, ServingRight::Alone(exclusion));
                }
            });
        }
    }

    /// Serves the members that were left behind, by the record of a leader that is alone. False if
    /// one cannot be served.
    pub(super) async fn bring_members(self: &Arc<Self>, record: &ArbiterRecord) -> bool {
        let mut done = true;
        for member in self.others_of_group() {
            let is_alone = |state: &State| {
                let exclusion = state.serving_right;
                matches!(exclusion, ServingRight::Alone(PeerExclusion::Recorded { .. }))
                    && state.serving
            };
            if member.lock().serving || Inner::boot_ns() < self.failover.lease.ask_not_before_ns() {
                continue;
            }
            let _order = member.running_order();
            // An order that holds the lock may wait for a call that waits for this task.
            let Some(_role_change) = member.try_begin_role_change() else {
                done = false;
                continue;
            };
            let seen = MemberState::of(&member.lock());
            let may = member.as_member(&seen).is_some_and(|member| member.may_be_granted());
            if !may || !is_alone(&self.lock()) {
                continue;
            }
            let replica = member.local.superblock().replica;
            tracing::warn!(%replica, "served with the other volumes of its group");
            let decided = next(&member.machine_state(), Event::Granted);
            let served = match decided {
                Ok((after, actions)) => {
                    let progress = member.granted_progress(record);
                    member.perform(after, actions.iter(), progress).await.map(drop)
                }
                Err(refusal) => Err(refusal.into()),
            };
            if let Err(error) = served {
                tracing::error!(%replica, "cannot be served with its group: {error}");
                done = false;
            }
        }
        done
    }

    /// Progress of a member that the record makes the source. Each replica has epochs of its own,
    /// so only the one that is named in the record takes its epoch.
    fn granted_progress(&self, record: &ArbiterRecord) -> OrderProgress {
        let superblock = self.local.superblock();
        let epoch = match record.source == id(superblock.replica) {
            true => record.epoch,
            false => next_epoch(superblock.epoch.max(record.epoch), self.rank()),
        };
        OrderProgress::granted(epoch, record.revision)
    }

    /// Serves all members by a grant to the leader, or none. The caller holds their locks.
    pub(super) async fn serve_granted(
        self: &Arc<Self>,
        members: &[Arc<Inner>],
        record: &ArbiterRecord,
    ) -> Result<(), CommandError> {
        let mut decided = Vec::new();
        for inner in members {
            let (after, actions) = next(&inner.machine_state(), Event::Granted)?;
            let progress = inner.granted_progress(record);
            decided.push(GroupMember::new(inner.clone(), (after, actions), progress));
        }
        if members.len() > 1 {
            let (revision, store) = (record.revision, self.failover.store());
            // The right stays that of a target until it serves. After a crash, the leader asks
            // again for all; it notes the record when it serves, before the others.
            let mark = move |superblock: &Superblock| ArbiterMark {
                revision: superblock.arbiter.revision.max(revision),
                store,
                ..superblock.arbiter
            };
            let stored = self.store_marks(&members[1..], mark).await;
            stored.map_err(crate::manage::roles::RoleError::Io)?;
        }
        group_order::carry_out_decided(&mut decided).await
    }

    /// The first obstacle of a mirror, or of the members of its group, and then the volume that has
    /// it.
    pub(super) fn first_obstacle(
        self: &Arc<Self>,
        obstacle: impl Fn(&Inner) -> Option<Obstacle>,
    ) -> (Option<Obstacle>, Option<String>) {
        let Some(membership) = &self.group else { return (obstacle(self), None) };
        let group = membership.group();
        for (volume, member) in group.volumes().iter().zip(group.members()) {
            let found = match member {
                Some(member) => obstacle(&member),
                None => Some(Obstacle::Absent),
            };
            if found.is_some() {
                return (found, Some(volume.clone()));
            }
        }
        (None, None)
    }
}

impl ConsistencyGroup {
    /// The members besides the leader, in their order; `None` for a closed member.
    fn other_members(&self) -> Vec<Option<Member>> {
        let seen = self.seen();
        let view = |(member, state): (Option<Arc<Inner>>, MemberState)| {
            member.and_then(|member| member.as_member(&state))
        };
        seen.into_iter().skip(1).map(view).collect()
    }
}

//! Orders: carries out the transitions of [`crate::state::machine`].
//!
//! A transition is decided and carried out under the role lock, so that nothing it depends on
//! changes in between. The exception is [`Event::Announced`]: it takes effect before the lock,
//! because a change of role in progress may wait for a disk that hangs. Until this node has acted
//! on it, no change of role ends with this node serving.

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_runtime::{spawn, time};

use crate::io::deliver::Undelivered;
use crate::limits::{EXCLUDE_MS, LOCAL_IO_MS, PEERS_MAX, QUEUE_DELIVERY_MS};
use crate::manage::announce::{Announcement, ConnectAttempts};
use crate::manage::command::CommandError;
use crate::manage::roles::{AdmissionBlock, Promotion, RoleError};
use crate::mirror::{Inner, Mirror, State};
use crate::ondisk::superblock::{ReplicaRole, Superblock};
use crate::session::outdated::{Exclusion, NotOutdated};
use crate::state::machine::{
    self, Action, Answers, DiskState, Event, Leader, Leg, NodeRole, OperatorOrder, OrderRefusal,
    PeerDataState, ServeClaim, next,
};

impl From<OrderRefusal> for RoleError {
    fn from(refusal: OrderRefusal) -> RoleError {
        match refusal {
            OrderRefusal::Inconsistent => RoleError::Inconsistent,
            OrderRefusal::Blank => RoleError::Blank,
            OrderRefusal::Failed => RoleError::LocalFailed,
            OrderRefusal::Unverified => RoleError::Unverified,
            other => RoleError::Refused(other),
        }
    }
}

impl From<OrderRefusal> for CommandError {
    fn from(refusal: OrderRefusal) -> CommandError {
        match refusal {
            OrderRefusal::NoPeer => CommandError::NoPeer,
            OrderRefusal::NotInSync => CommandError::NotInSync,
            other => CommandError::Role(other.into()),
        }
    }
}

impl Mirror {
    /// The state on which [`next`] decides.
    pub fn machine_state(&self) -> machine::MachineState {
        self.0.machine_state()
    }

    /// True if [`Mirror::start`] asks peers first, which may take
    /// [`ASK_MS`](crate::limits::ASK_MS).
    pub fn asks_before_it_serves(&self) -> bool {
        let opened = next(&self.machine_state(), Event::Opened);
        opened.is_ok_and(|(_, actions)| actions.iter().any(|action| action == Action::AskPeers))
    }

    /// Asks every peer whether it serves hosts, for [`OperatorOrder::Failover`]. Changes nothing.
    pub async fn ask_peers(&self) -> Answers {
        self.0.ask_peers(ConnectAttempts::Once).await.0
    }

    /// Carries out an order.
    ///
    /// # Errors
    /// See [`CommandError`].
    pub async fn order(&self, order: OperatorOrder) -> Result<(), CommandError> {
        self.0.order(order).await.map(drop)
    }
}

/// How long an order waits until a desired state is durable. It continues after that.
pub(super) const SET_DESIRED_LIMIT: Duration = Duration::from_millis(LOCAL_IO_MS + EXCLUDE_MS);

/// An order to change the role; ends on drop. Meanwhile, calls to a hung local device fail after a
/// while, so that the order ends.
pub(crate) struct RunningOrder(Arc<Inner>);

impl Drop for RunningOrder {
    fn drop(&mut self) {
        self.0.change(|state| state.orders -= 1);
    }
}

/// State of [`Inner::perform`] from one action to the next.
#[derive(Default)]
pub(crate) struct OrderProgress {
    /// Blocks host calls from [`Action::Drain`] until the transition ends.
    block: Option<AdmissionBlock>,
    /// The highest epoch that a peer has reported.
    pub(super) seen: u64,
    /// A source was reached and deposed.
    pub(super) deposed: bool,
    pub(super) announcement: Option<Announcement>,
    /// Epoch and revision that the arbiter has recorded.
    granted: Option<(u64, u64)>,
    /// Terms on which the source has handed its role to this node.
    handed_over: Option<Promotion>,
    /// True if this node stops after handing over its role.
    leaves: bool,
    /// The peer of [`Action::ExcludePeer`].
    excluded: Option<Exclusion>,
    /// Acknowledged writes that peers lack after [`Action::DeliverQueues`].
    pub(crate) undelivered: Vec<Undelivered>,
}

impl OrderProgress {
    /// For a transition that takes an epoch after `seen`.
    pub(crate) fn after(seen: u64) -> OrderProgress {
        OrderProgress { seen, ..OrderProgress::default() }
    }

    /// For a transition of a target to which its source hands over, as [`OrderProgress::after`].
    pub(crate) fn handed_over(seen: u64, revision: u64, leaves: bool) -> OrderProgress {
        let handed_over = Some(Promotion::HandedOver { revision, leaves });
        OrderProgress { handed_over, ..OrderProgress::after(seen) }
    }

    /// For a hand-over by a node that stops afterwards.
    pub(crate) fn leaving() -> OrderProgress {
        OrderProgress { leaves: true, ..OrderProgress::default() }
    }

    /// For a transition granted by the arbiter.
    pub(crate) fn granted(epoch: u64, revision: u64) -> OrderProgress {
        OrderProgress { granted: Some((epoch, revision)), ..OrderProgress::default() }
    }
}

/// State of the local data.
pub(crate) fn disk_of(superblock: &Superblock, has_failed: bool, is_unverified: bool) -> DiskState {
    match superblock.flags.inconsistent {
        _ if has_failed => DiskState::Failed,
        true if !superblock.not_received.is_empty() => DiskState::Incomplete,
        true => DiskState::Inconsistent,
        false if superblock.current.is_none() => DiskState::Blank,
        false if is_unverified => DiskState::Unverified,
        false if superblock.removed => DiskState::Removed,
        false => DiskState::Consistent,
    }
}

impl Inner {
    pub(crate) fn machine_state(&self) -> machine::MachineState {
        self.machine_state_in(&self.lock())
    }

    pub(crate) fn machine_state_in(&self, state: &State) -> machine::MachineState {
        let superblock = self.local.superblock();
        let epoch = superblock.epoch;
        let role = match state.role {
            _ if state.has_ended() => NodeRole::Closed,
            _ if state.serving => NodeRole::Serving { epoch },
            ReplicaRole::Source => {
                NodeRole::Waiting { epoch, handed_over: superblock.designated_successor.is_some() }
            }
            ReplicaRole::Target => NodeRole::Target { epoch, attached: state.attached.is_some() },
            ReplicaRole::Deposed => NodeRole::Deposed { by: epoch },
        };
        let disk = disk_of(&superblock, state.local_device_failed, state.unverified);
        let mut legs = [None; PEERS_MAX];
        for (place, leg) in legs.iter_mut().zip(&state.legs) {
            *place = Some(Leg { desired: leg.desired_state, phase: leg.phase });
        }
        let records = superblock.peers.each_ref().map(|record| match record {
            record if record.replica.is_none() => PeerDataState::Unknown,
            record if record.is_outdated() => PeerDataState::Outdated,
            _ => PeerDataState::Current,
        });
        let State { promised, announced, .. } = *state;
        // The leader's state is locked after another member's, never before it.
        let follows = self.group.as_ref().filter(|membership| !membership.is_leader());
        let leader = follows.map(|membership| match membership.leader() {
            Some(leader) => Leader::of(leader.machine_state().role),
            None => Leader::Absent,
        });
        machine::MachineState { role, disk, legs, records, promised, announced, leader }
    }

    /// Carries out an order, for all members of a group. Returns the undelivered writes. A stop
    /// concerns only this member: [`Inner::stop_with_group`] stops all.
    pub(crate) async fn order(
        self: &Arc<Self>,
        order: OperatorOrder,
    ) -> Result<Vec<Undelivered>, CommandError> {
        match &self.group {
            Some(membership) if order != OperatorOrder::Stop => {
                Box::pin(membership.group.order(order)).await
            }
            _ => self.order_alone(order).await,
        }
    }

    /// Stops, together with the other members of its group.
    pub(crate) async fn stop_with_group(
        self: &Arc<Self>,
    ) -> Result<Vec<Undelivered>, CommandError> {
        let Some(membership) = &self.group else {
            return self.order_alone(OperatorOrder::Stop).await;
        };
        membership.group.stop().await;
        // Perhaps by an earlier call for another member.
        self.change(|state| state.stopped.take()).unwrap_or(Ok(Vec::new()))
    }

    /// As [`Inner::order`], for this mirror only.
    pub(crate) async fn order_alone(
        self: &Arc<Self>,
        order: OperatorOrder,
    ) -> Result<Vec<Undelivered>, CommandError> {
        match order {
            // The peer changes the role here when it hands over its own.
            OperatorOrder::TakeOver(_) => self.transition(Event::Order(order)).await,
            OperatorOrder::SetDesired(..) => {
                let (inner, limit) = (self.clone(), SET_DESIRED_LIMIT);
                // The role does not matter: a change of role may wait for a disk. Do not abandon
                // the task, because the only copy of the data may be behind a hung disk.
                let task = spawn(async move {
                    let _guard = inner.desired_state_lock.acquire().await;
                    inner.transition(Event::Order(order)).await
                });
                let ended = time::timeout(limit, task).await.ok().and_then(Result::ok);
                ended.unwrap_or(Err(CommandError::DeviceBusy))
            }
            OperatorOrder::Failover { .. } => {
                let _order = self.running_order();
                let _role_change = self.begin_role_change().await;
                // The order's answers were given before the lock was taken.
                let answers = self.ask_all_peers().await;
                self.transition(Event::Order(OperatorOrder::Failover { answers })).await
            }
            _ => {
                let _order = self.running_order();
                let _role_change = self.begin_role_change().await;
                self.change(|state| state.awaits_leader = false);
                let done = self.transition(Event::Order(order)).await;
                // A node that was ordered to stop does not take the role back at once.
                self.failover.answered();
                done
            }
        }
    }

    /// Decides an event and carries it out. The caller holds the role lock.
    pub(crate) async fn transition(
        self: &Arc<Self>,
        event: Event,
    ) -> Result<Vec<Undelivered>, CommandError> {
        let (after, actions) = next(&self.machine_state(), event)?;
        self.perform(after, actions.iter(), OrderProgress::default()).await
    }

    pub(crate) fn running_order(self: &Arc<Self>) -> RunningOrder {
        self.change(|state| state.orders += 1);
        RunningOrder(self.clone())
    }

    /// Serves after a start, if this node's records and the peers allow it. With `ask` false, this
    /// process was serving until now.
    pub(crate) async fn serve_after_start(self: &Arc<Self>, ask: bool) -> Result<bool, RoleError> {
        let waits = self.waits_for_leader();
        self.change(|state| state.awaits_leader = waits);
        if waits {
            return Ok(false);
        }
        let mut answers = Answers::default();
        if ask && Mirror(self.clone()).asks_before_it_serves() {
            answers = self.ask_peers(ConnectAttempts::Retry).await.0;
        }
        // A source that attaches meanwhile would make this side a target.
        let _role_change = self.begin_role_change().await;
        self.transition(Event::Asked(answers)).await.map_err(|error| match error {
            CommandError::Role(error) => error,
            _ => RoleError::Refused(OrderRefusal::Closed),
        })?;
        Ok(self.lock().serving)
    }

    /// True for a member of a group with automatic failover whose leader does not serve: the
    /// arbiter decides for the leader. This member then follows it.
    pub(crate) fn waits_for_leader(&self) -> bool {
        let follows = self.group.as_ref().filter(|membership| !membership.is_leader());
        let serves = |leader: Arc<Inner>| leader.lock().serving;
        self.failover.is_automatic()
            && follows.is_some_and(|membership| !membership.leader().is_some_and(serves))
    }

    /// Carries out actions in order. The caller holds the role lock.
    pub(crate) async fn perform(
        self: &Arc<Self>,
        after: machine::MachineState,
        actions: impl Iterator<Item = Action>,
        mut progress: OrderProgress,
    ) -> Result<Vec<Undelivered>, CommandError> {
        for action in actions {
            self.act(after.role.epoch(), action, &mut progress).await?;
        }
        Ok(progress.undelivered)
    }

    pub(crate) async fn act(
        self: &Arc<Self>,
        epoch: u64,
        action: Action,
        progress: &mut OrderProgress,
    ) -> Result<(), CommandError> {
        match action {
            // `serve_after_start` has done this.
            Action::AskPeers => {}
            Action::RefuseHosts => self.refuse_hosts(),
            Action::Drain => {
                progress.block = Some(self.block_admission());
                self.drain().await;
            }
            Action::CheckDevices => {
                self.local.check_devices().await.map_err(RoleError::Io)?;
                // A call in flight may have failed the local leg, so that the peer serves the
                // volume.
                if self.lock().local_device_failed {
                    return Err(RoleError::LocalFailed.into());
                }
            }
            Action::DeliverQueues | Action::LeaveBehind => {
                let delivers = action == Action::DeliverQueues;
                let limit_ms = if delivers { QUEUE_DELIVERY_MS } else { 0 };
                self.deliver(Duration::from_millis(limit_ms), progress).await;
                self.leave_behind(&mut progress.undelivered).await;
            }
            Action::AwaitCalls => self.drain().await,
            Action::EndSessions => self.end_sessions(),
            Action::Record(role) => self.record_role(role, epoch).await.map_err(RoleError::Io)?,
            Action::PutAway(role) => self.record_unused(role, None).await.map_err(RoleError::Io)?,
            Action::RecordEpoch(epoch) => {
                let record = move |superblock: &mut Superblock| {
                    superblock.epoch = superblock.epoch.max(epoch);
                };
                self.local.update(record).await.map_err(RoleError::Io)?;
            }
            Action::RecordSuccessor(slot) => {
                let record = move |superblock: &mut Superblock| {
                    superblock.designated_successor = Some(slot);
                };
                self.local.update(record).await.map_err(RoleError::Io)?;
            }
            Action::Announce { forced } => self.announce(forced, progress).await?,
            Action::Detach => self.detach_source(),
            Action::EndAttachment => self.end_attachment().await,
            Action::RecordRemoved => {
                let record = |superblock: &mut Superblock| superblock.removed = true;
                self.local.update(record).await.map_err(RoleError::Io)?;
            }
            Action::TrustData(_) => self.trust_data().await.map_err(RoleError::Io)?,
            Action::LeaveRole => self.change(|state| state.role = ReplicaRole::Target),
            Action::ServeThroughPeer => self.serve_through_peer()?,
            Action::RaiseEpoch => {
                self.raise_epoch(progress.seen).await.map_err(RoleError::Io)?;
            }
            // The requests of a peer do this; they have the details.
            Action::Admit | Action::Discard => {}
            Action::Serve(claim) => {
                let promotion = match (claim, progress.deposed) {
                    (ServeClaim::Granted, _) => {
                        let (epoch, revision) =
                            progress.granted.ok_or(OrderRefusal::NotEntitled)?;
                        Promotion::Granted { epoch, revision }
                    }
                    (ServeClaim::Resumed, _) => Promotion::Resumed,
                    (ServeClaim::Agreed, _) => progress.handed_over.unwrap_or(Promotion::Agreed),
                    (ServeClaim::Forced, false) => Promotion::Alone,
                    (ServeClaim::Forced, true) => Promotion::Overriding,
                };
                self.start_serving_as_source(progress.seen, promotion).await?;
                self.reconnect_all();
            }
            Action::HandOver(leg) => {
                let done = self.hand_over_to(leg, progress.leaves).await;
                // The peer may serve, and is waited for as long as a source.
                self.failover.answered();
                done?;
            }
            Action::AskForRole(leg) => self.ask_for_role(leg).await?,
            Action::ExcludePeer(leg) => {
                let excluded = self.exclude_peer(leg).await;
                progress.excluded = excluded.map_err(|error| self.not_excluded(error))?;
            }
            // Without a new generation: each replica has all acknowledged writes until the next
            // write, or the loss of queued ones, begins one.
            Action::MarkAll(leg) => {
                self.mark(leg, 0, self.local.superblock().geometry.usable_bytes);
                self.local.persist_marks().await.map_err(RoleError::Io)?;
            }
            Action::StoreDesired(leg, desired) => {
                self.store_desired_state(leg, desired).await.map_err(RoleError::Io)?;
            }
            Action::Reconnect => self.reconnect_all(),
        }
        Ok(())
    }

    fn not_excluded(&self, error: NotOutdated) -> CommandError {
        match error {
            NotOutdated::Arbiter => CommandError::NotExcluded,
            NotOutdated::Local(error) => RoleError::Io(error).into(),
            NotOutdated::Changed => match self.lock().role {
                ReplicaRole::Source => OrderRefusal::Waiting.into(),
                ReplicaRole::Target | ReplicaRole::Deposed => OrderRefusal::NotSource.into(),
            },
        }
    }

    /// Delivers the queues within a limit, and notes what peers lack.
    pub(super) async fn deliver(self: &Arc<Self>, limit: Duration, progress: &mut OrderProgress) {
        // Nothing may enter a queue from here on.
        let block = progress.block.get_or_insert_with(|| self.block_admission());
        progress.undelivered = self.deliver_queues(block, limit).await;
    }

    async fn trust_data(&self) -> Result<(), IoError> {
        let trust = |superblock: &mut Superblock| {
            (superblock.unverified, superblock.removed) = (false, false);
            let lacks = std::mem::take(&mut superblock.not_received);
            superblock.flags.inconsistent &= lacks.is_empty();
            lacks
        };
        let lacks = self.local.update(trust).await?;
        if !lacks.is_empty() {
            let replica = self.local.superblock().replica;
            tracing::warn!(%replica, "serving older data in the byte ranges {lacks:?}");
        }
        self.change(|state| state.unverified = false);
        Ok(())
    }

    pub(crate) fn refuse_hosts(&self) {
        let refused = self.change(|state| {
            let serving = state.serving;
            if serving {
                state.stop_serving();
            }
            serving
        });
        if refused {
            tracing::info!(replica = %self.local.superblock().replica, "no longer serving hosts");
        }
    }

    /// Durably records the role, and an epoch seen with it. The role is already in effect.
    async fn record_role(&self, role: ReplicaRole, epoch: u64) -> Result<(), IoError> {
        self.change(|state| state.role = role);
        self.local
            .update(move |superblock| {
                (superblock.role, superblock.designated_successor) = (role, None);
                superblock.epoch = superblock.epoch.max(epoch);
            })
            .await
    }
}

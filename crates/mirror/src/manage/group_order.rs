//! Orders of a consistency group: decided for every member first, then carried out step by step for
//! all. See rules 6 and 7 of [`crate::group`].
//!
//! The role locks are taken in the order of the members, so orders cannot deadlock. If a step
//! fails, the order ends before the first member serves or is handed over. Members that have
//! stopped serving then serve again, if their peer was not asked. Every offer of the role is ended,
//! even after a failure: a member with an open offer is served nowhere.
//!
//! Before a group stops in order, all members deliver their queues. If one cannot, all record that
//! the peer is out of date, by rule 9. A stop, however, ends for each member on its own: a failed
//! disk must not make the others look crashed.

use std::sync::Arc;
use std::time::Duration;

use flagstone_runtime::{spawn, time};

use crate::group::{ConsistencyGroup, Membership};
use crate::io::deliver::Undelivered;
use crate::join::join_all;
use crate::limits::QUEUE_DELIVERY_MS;
use crate::manage::command::{CommandError, RoleOffer};
use crate::manage::order::{OrderProgress, SET_DESIRED_LIMIT};
use crate::manage::roles::RoleError;
use crate::mirror::Inner;
use crate::state::machine::{
    Action, Actions, Event, Handover, MachineState, OperatorOrder, OrderRefusal, next,
    next_in_group,
};

/// True for the actions that come after all members have prepared: to serve, or to hand over.
fn commits(action: Action) -> bool {
    matches!(action, Action::Serve(_) | Action::HandOver(_))
}

/// A member with the transition that was decided for it.
pub(crate) struct GroupMember {
    inner: Arc<Inner>,
    after: MachineState,
    actions: Actions,
    progress: OrderProgress,
}

impl GroupMember {
    pub(crate) fn new(
        inner: Arc<Inner>,
        (after, actions): (MachineState, Actions),
        progress: OrderProgress,
    ) -> GroupMember {
        GroupMember { inner, after, actions, progress }
    }

    fn action(&self, step: usize) -> Option<Action> {
        self.actions.iter().nth(step)
    }

    async fn act(&mut self, action: Action) -> Result<(), CommandError> {
        self.inner.act(self.after.role.epoch(), action, &mut self.progress).await
    }
}

impl ConsistencyGroup {
    /// Hands all members to the peer before this node stops.
    pub(crate) async fn leave(self: &Arc<Self>) -> Result<(), CommandError> {
        let members: Option<Vec<Arc<Inner>>> = self.members().into_iter().collect();
        let members = members.ok_or(OrderRefusal::GroupIncomplete)?;
        let _lock = Inner::lock_group(&members).await;
        // The task of another member has done it.
        if members.iter().all(|member| !member.lock().serving) {
            return Ok(());
        }
        let done = carry_out(&members, OperatorOrder::HandOver(0), true).await;
        members.iter().for_each(|member| member.failover.answered());
        done.map(drop)
    }

    /// Carries out an order for all members.
    pub(crate) async fn order(
        self: &Arc<Self>,
        order: OperatorOrder,
    ) -> Result<Vec<Undelivered>, CommandError> {
        let members: Option<Vec<Arc<Inner>>> = self.members().into_iter().collect();
        let members = members.ok_or(OrderRefusal::GroupIncomplete)?;
        match order {
            // The peer moves all members.
            OperatorOrder::TakeOver(_) => {
                match members.iter().find(|member| !member.lock().serving) {
                    Some(member) => member.order_alone(order).await,
                    None => Ok(Vec::new()),
                }
            }
            OperatorOrder::SetDesired(..) => {
                let task = spawn(async move {
                    let mut guards = Vec::new();
                    for member in &members {
                        guards.push(member.desired_state_lock.acquire().await);
                    }
                    carry_out(&members, order, false).await
                });
                let ended = time::timeout(SET_DESIRED_LIMIT, task).await.ok().and_then(Result::ok);
                ended.unwrap_or(Err(CommandError::DeviceBusy))
            }
            _ => {
                let _lock = Inner::lock_group(&members).await;
                let done = carry_out(&members, order, false).await;
                // A node that was ordered to stop does not take the role back at once.
                members.iter().for_each(|member| member.failover.answered());
                done
            }
        }
    }
}

impl ConsistencyGroup {
    /// Stops all members that serve hosts, and leaves each its result in
    /// [`State::stopped`](crate::mirror::State).
    pub(crate) async fn stop(self: &Arc<Self>) {
        let members: Vec<Arc<Inner>> = self.members().into_iter().flatten().collect();
        let _orders: Vec<_> = members.iter().map(|member| member.running_order()).collect();
        let mut role_changes = Vec::new();
        for member in &members {
            role_changes.push(member.begin_role_change().await);
        }
        let order = Event::Order(OperatorOrder::Stop);
        let decided = members.iter().filter_map(|inner| {
            let (after, actions) = next(&inner.machine_state(), order).ok()?;
            let (inner, progress) = (inner.clone(), OrderProgress::default());
            let member = GroupMember { inner, after, actions, progress };
            (!actions.is_empty()).then_some((member, Ok(())))
        });
        let mut stopping: Vec<(GroupMember, Result<(), CommandError>)> = decided.collect();
        let longest = stopping.iter().map(|(member, _)| member.actions.iter().count()).max();
        for step in 0..longest.unwrap_or(0) {
            deliver_together(step, stopping.iter_mut().map(|(member, _)| member)).await;
            let acting = stopping.iter_mut().map(|(member, result)| async move {
                let action = member.action(step).filter(|_| result.is_ok());
                if let Some(action) = action.filter(|action| *action != Action::DeliverQueues) {
                    *result = member.act(action).await;
                }
            });
            join_all(acting).await;
        }
        for (GroupMember { inner, progress, .. }, result) in stopping {
            let stopped = result.map(|()| progress.undelivered);
            inner.change(|state| state.stopped = Some(stopped));
        }
    }
}

/// Carries out [`Action::DeliverQueues`] for the members that have it as this step. If one leaves a
/// peer behind, all do.
async fn deliver_together(step: usize, members: impl Iterator<Item = &mut GroupMember>) {
    let limit = Duration::from_millis(QUEUE_DELIVERY_MS);
    let mut members: Vec<&mut GroupMember> =
        members.filter(|member| member.action(step) == Some(Action::DeliverQueues)).collect();
    join_all(members.iter_mut().map(|member| member.inner.deliver(limit, &mut member.progress)))
        .await;
    let leaves = |member: &&mut GroupMember| {
        !member.progress.undelivered.is_empty() || member.inner.has_left_behind()
    };
    if members.iter().any(leaves) {
        let leaving = members.iter_mut();
        join_all(leaving.map(|GroupMember { inner, progress, .. }| {
            inner.leave_all_behind(&mut progress.undelivered)
        }))
        .await;
    }
}

/// Decides and carries out an order. The caller holds the locks.
async fn carry_out(
    members: &[Arc<Inner>],
    order: OperatorOrder,
    leaves: bool,
) -> Result<Vec<Undelivered>, CommandError> {
    let mut decided = Vec::new();
    for inner in members {
        let order = match order {
            // The order's answers were given before the locks were taken.
            OperatorOrder::Failover { .. } => {
                OperatorOrder::Failover { answers: inner.ask_all_peers().await }
            }
            order => order,
        };
        let (after, actions) = next_in_group(&inner.machine_state(), order)?;
        decided.push(GroupMember::new(inner.clone(), (after, actions), OrderProgress::default()));
    }
    if let OperatorOrder::HandOver(_) = order
        && decided.iter().all(|member| member.actions.is_empty())
    {
        return Err(OrderRefusal::NotSource.into());
    }
    prepare(&mut decided).await?;
    let done = match order {
        OperatorOrder::HandOver(leg) => hand_over(&decided, leg, leaves).await,
        _ => commit(&mut decided).await,
    };
    done?;
    Ok(decided.into_iter().flat_map(|member| member.progress.undelivered).collect())
}

/// Carries out decided transitions that begin to serve, for all members. The caller holds the
/// locks.
pub(crate) async fn carry_out_decided(decided: &mut [GroupMember]) -> Result<(), CommandError> {
    prepare(decided).await?;
    commit(decided).await
}

/// Carries out the actions that precede the first member that serves or is handed over.
async fn prepare(decided: &mut [GroupMember]) -> Result<(), CommandError> {
    let longest = decided.iter().map(|member| member.actions.iter().count()).max();
    for step in 0..longest.unwrap_or(0) {
        deliver_together(step, decided.iter_mut()).await;
        for member in decided.iter_mut() {
            let acts = |action: &Action| !commits(*action) && *action != Action::DeliverQueues;
            if let Some(action) = member.action(step).filter(acts) {
                member.act(action).await?;
            }
        }
    }
    Ok(())
}

/// Stops at a failure of the leader, without which no other member may serve. Continues after a
/// failure of another member, so that the rest is served.
async fn commit(decided: &mut [GroupMember]) -> Result<(), CommandError> {
    // The log of a target is not written otherwise, so a failure would show only later.
    for member in decided.iter() {
        if member.actions.iter().any(|action| matches!(action, Action::Serve(_))) {
            member.inner.local.check_log().await.map_err(RoleError::Io)?;
        }
    }
    let mut result = Ok(());
    for member in decided {
        let actions = member.actions;
        for action in actions.iter().filter(|action| commits(*action)) {
            let done = member.act(action).await;
            let leads = member.inner.group.as_ref().is_none_or(Membership::is_leader);
            if done.is_err() && leads {
                return done;
            }
            result = result.and(done);
        }
    }
    result
}

/// Hands over all members. The outcome of the first member decides for all.
async fn hand_over(decided: &[GroupMember], leg: usize, leaves: bool) -> Result<(), CommandError> {
    let mut offers: Vec<(&Arc<Inner>, RoleOffer)> = Vec::new();
    for member in decided.iter().filter(|member| !member.actions.is_empty()) {
        match member.inner.offer_role(leg).await {
            Ok(offer) => {
                let offer = RoleOffer { leaves: leaves || offer.leaves, ..offer };
                offers.push((&member.inner, offer));
            }
            Err(error) => {
                let mut result = Err(error);
                for (inner, offer) in &offers {
                    result = result.and(inner.end_hand_over(offer, Handover::Declined).await);
                }
                return result;
            }
        }
    }
    let Some((inner, offer)) = offers.first() else { return Ok(()) };
    let (outcome, mut result) = inner.promote_peer(offer).await;
    result = result.and(inner.end_hand_over(offer, outcome).await);
    for (inner, offer) in &offers[1..] {
        if outcome == Handover::Accepted {
            // If this member does not serve now, it follows its leader later.
            let (other, _) = inner.promote_peer(offer).await;
            if other != Handover::Accepted {
                let replica = inner.local.superblock().replica;
                tracing::warn!(%replica, "the peer takes this volume of the group later: {other:?}");
                result = result.and(Err(CommandError::GroupPartly));
            }
        }
        result = result.and(inner.end_hand_over(offer, outcome).await);
    }
    result
}

//! Roles: taking and giving up the role of the source.
//!
//! Changes of role run one at a time. Role epochs are unique among the replicas of a volume: each
//! replica uses the numbers of one residue class, which depends only on its identity. So two
//! replicas that promote themselves without contact do not pick the same epoch, even after one of
//! them replaced a third replica that not all have met.

use std::sync::Arc;

use flagstone_arbiter::epoch::{EPOCH_STRIDE, next_epoch};
use flagstone_blockdev::IoError;

use crate::id::{Generation, MirrorId};
use crate::io::call_admission::Counted;
use crate::io::new_generation::NewGeneration;
use crate::mirror::{Inner, StateGuard};
use crate::ondisk::superblock::{ReplicaRole, Superblock};
use crate::state::machine::{AdmittedBy, Event, OrderRefusal, servable};
use crate::wire::peer::{PeerRequest, ReplicaIdentity, execute};

/// The residue class of a replica's epochs.
fn epoch_rank(replica: MirrorId) -> u64 {
    crate::session::checksums::checksum(&replica.0) % EPOCH_STRIDE
}

/// A change of role in progress; ends on drop.
pub(crate) struct RoleChange(Arc<Inner>);

impl Drop for RoleChange {
    fn drop(&mut self) {
        self.0.change(|state| state.changing_role = false);
    }
}

/// The switch to running degraded; ends on drop.
struct Degrading(Arc<Inner>);

impl Drop for Degrading {
    fn drop(&mut self) {
        self.0.change(|state| state.degrading = false);
    }
}

/// Block of new host calls; ends on drop.
pub(crate) struct AdmissionBlock(Arc<Inner>);

impl Drop for AdmissionBlock {
    fn drop(&mut self) {
        self.0.change(|state| state.admission_blocks -= 1);
    }
}

/// Way in which a replica becomes the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promotion {
    /// It is already the source, under its present epoch.
    Resumed,
    /// The peers agree, or are recorded as out of date.
    Agreed,
    /// The source handed over its role: see [`PeerRequest::Promote`].
    HandedOver { revision: u64, leaves: bool },
    /// The arbiter excluded the peer, under this epoch, in this revision of its record.
    Granted { epoch: u64, revision: u64 },
    /// By force, without contact to a source.
    Alone,
    /// By force, after a source was deposed.
    Overriding,
}

/// Failure of a change of role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum RoleError {
    #[error("the replica's device failed: {0}")]
    Io(#[from] IoError),
    #[error("the local data is inconsistent: a resync to it has not completed")]
    Inconsistent,
    #[error("the replica holds no data yet")]
    Blank,
    #[error("the local leg has failed")]
    LocalFailed,
    /// See [`crate::manage::replica::Replica::mark_unverified`].
    #[error(
        "a flush of the local device failed, and no source has brought the replica up to date since: \
         recent data may be lost in a power failure. Bring back the node that was the source; if it is \
         gone for good, use what the device returns with `failover --force`"
    )]
    Unverified,
    /// See [`TRANSFER_CHECK_MS`](crate::limits::TRANSFER_CHECK_MS). Nothing has changed.
    #[error(
        "host calls in flight, or calls to a device of the replica, have not ended within 5 s: nothing was \
         changed, and hosts go on. Repeat the command when the disks of all nodes answer"
    )]
    DeviceBusy,
    /// See [`TRANSFER_MS`](crate::limits::TRANSFER_MS). Hosts are refused.
    #[error("a device of the replica has not answered for 20 s")]
    DeviceHangs,
    /// The order is not allowed in this state.
    #[error("{0}")]
    Refused(OrderRefusal),
}

impl Inner {
    /// Starts a change of role, after any that is in progress.
    pub(crate) async fn begin_role_change(self: &Arc<Self>) -> RoleChange {
        let begin = |state: &mut StateGuard<'_>| {
            (!std::mem::replace(&mut state.changing_role, true)).then_some(())
        };
        self.wait(begin).await;
        RoleChange(self.clone())
    }

    /// Starts a change of role, unless one is in progress.
    pub(crate) fn try_begin_role_change(self: &Arc<Self>) -> Option<RoleChange> {
        let mut state = self.lock();
        (!std::mem::replace(&mut state.changing_role, true)).then(|| RoleChange(self.clone()))
    }

    pub(crate) fn block_admission(self: &Arc<Self>) -> AdmissionBlock {
        self.change(|state| state.admission_blocks += 1);
        AdmissionBlock(self.clone())
    }

    /// Waits until no host write or flush is in flight. For reads see [`crate::io::device`].
    pub(crate) async fn drain(&self) {
        self.wait_for_calls(Counted::HostCall).await;
        self.wait(|state| (!state.generation_bump.is_running()).then_some(())).await;
    }

    pub(crate) fn rank(&self) -> u64 {
        epoch_rank(self.local.superblock().replica)
    }

    /// Event of a handshake in which the peer may admit this node as its source.
    pub(crate) fn admitted_by(&self, peers: &ReplicaIdentity) -> Event {
        let superblock = self.local.superblock();
        let successor =
            superblock.designated_successor.map(|place| superblock.peers[place].replica);
        let epoch = peers.view.epoch;
        // This node may have crashed after the peer admitted it, before it recorded that itself.
        let own = epoch % EPOCH_STRIDE == self.rank();
        Event::Admitted(AdmittedBy {
            successor: successor == Some(peers.view.replica),
            epoch,
            overtaken: epoch > superblock.epoch && !own,
            unusable: peers.view.inconsistent || peers.view.generations.current.is_none(),
        })
    }

    pub(crate) fn may_serve(&self) -> Result<(), RoleError> {
        Ok(servable(&self.machine_state(), false)?)
    }

    /// The next epoch of this replica, after `seen` and all epochs recorded here.
    pub(crate) fn epoch_after(&self, seen: u64) -> u64 {
        next_epoch(self.local.superblock().epoch.max(seen), self.rank())
    }

    /// While serving, takes an epoch later than all seen, because a peer has seen a later one.
    pub(crate) async fn raise_epoch(&self, seen: u64) -> Result<(), IoError> {
        let rank = self.rank();
        self.local
            .update(move |superblock| {
                superblock.epoch = next_epoch(superblock.epoch.max(seen), rank);
            })
            .await
    }

    /// Becomes the source, with an epoch later than all seen unless it resumes. The caller holds
    /// the role lock, and no source is attached.
    pub(crate) async fn start_serving_as_source(
        self: &Arc<Self>,
        seen: u64,
        promotion: Promotion,
    ) -> Result<(), RoleError> {
        // The last request of the previous source may have started a resync here.
        self.may_serve()?;
        let rank = self.rank();
        let granted = matches!(promotion, Promotion::Granted { .. });
        let alone = granted || matches!(promotion, Promotion::Alone | Promotion::Overriding);
        let several = self.legs.len() > 1;
        // A deposed source may have written data that this replica lacks. The next handshake must
        // not prefer that data. In a group, this applies to all volumes alike.
        let grouped = self.group.is_some();
        let parts = alone && (several || granted || grouped || promotion == Promotion::Overriding);
        if parts {
            self.local.data().flush().await?;
        }
        if alone && several {
            self.mark_all_legs().await?;
        }
        let new_generation = NewGeneration::alone(self);
        let mark = self.failover.mark_after(promotion);
        let promote = move |superblock: &mut Superblock| {
            (superblock.role, superblock.designated_successor) = (ReplicaRole::Source, None);
            superblock.epoch = match promotion {
                Promotion::Resumed => superblock.epoch,
                Promotion::Granted { epoch, .. } => superblock.epoch.max(epoch),
                _ => next_epoch(superblock.epoch.max(seen), rank),
            };
            superblock.arbiter = mark(superblock.arbiter);
            // Hosts are about to read the local data, whatever the peer has.
            superblock.flags.served_alone |= alone && superblock.flags.crashed;
            if parts {
                new_generation.apply(superblock);
            }
        };
        self.local.begin_use(promote).await?;
        self.load_out_of_sync();
        let Superblock { replica, epoch, .. } = self.local.superblock();
        // Which writes peers had only in memory is not known any more.
        let doubts = alone && self.local.superblock().flags.served_alone;
        let overtaken = self.change(|state| {
            state.role = ReplicaRole::Source;
            if state.promised > 0 {
                return true;
            }
            self.begin_serving_right(state, promotion);
            (state.serving, state.stopped) = (true, None);
            for (own, leg) in state.legs.iter_mut().zip(&self.legs) {
                if !own.receives_writes {
                    own.generation_bumped = parts;
                    // The previous process, or mirror, may have blocked flushes for these blocks.
                    let lacks = leg.options().acks_from_memory() && leg.out_of_sync.count() > 0;
                    own.has_unflushed |= doubts || lacks;
                }
                // Peers may be waiting: from now on, this is the current data.
                own.reconnect_requests += 1;
            }
            assert!(
                state.announced == 0 || state.announced == epoch,
                "hosts are served under epoch {epoch}, and {} was announced",
                state.announced
            );
            false
        });
        if overtaken {
            self.record_unused(ReplicaRole::Source, None).await?;
            return Err(OrderRefusal::Overtaken.into());
        }
        tracing::info!(%replica, epoch, ?promotion, "now serving hosts");
        if let Some(membership) = &self.group {
            membership.wake_others();
        }
        Ok(())
    }

    /// Marks everything as out of sync for all legs. After a forced takeover from a source with
    /// several targets, its writes in flight may be on any of them, and no log names them.
    async fn mark_all_legs(&self) -> Result<(), IoError> {
        for leg in 0..self.legs.len() {
            self.mark(leg, 0, self.local.superblock().geometry.usable_bytes);
        }
        self.local.persist_marks().await
    }

    /// Ends the sessions to all peers.
    pub(crate) fn end_sessions(&self) {
        let session_ids: Vec<u64> = self.lock().legs.iter().map(|leg| leg.session_id).collect();
        for (leg, session_id) in session_ids.into_iter().enumerate() {
            self.disconnect(leg, session_id);
        }
    }

    /// Stops serving without recording it, like a crash.
    pub(crate) async fn end_service(self: &Arc<Self>) {
        let _block = self.block_admission();
        self.drain().await;
        self.change(|state| {
            if state.serving {
                state.stop_serving();
            }
        });
    }

    /// Durably records that the replica is not in use, and that the peer in slot
    /// `designated_successor` is about to be asked to serve.
    pub(crate) async fn record_unused(
        self: &Arc<Self>,
        role: ReplicaRole,
        designated_successor: Option<usize>,
    ) -> Result<(), IoError> {
        self.local.data().flush().await?;
        let put = move |superblock: &mut Superblock| {
            (superblock.role, superblock.designated_successor) = (role, designated_successor);
        };
        if self.local.superblock().flags.in_use {
            self.local.end_use(put).await?;
        } else {
            self.local.update(put).await?;
        }
        self.change(|state| state.role = role);
        Ok(())
    }

    /// Runs degraded after a failure of the local leg: a peer with all data, or whose queue will
    /// complete it, serves by itself. Otherwise fails with `error`, and no differing peer may look
    /// equal.
    pub(crate) async fn run_degraded(
        self: &Arc<Self>,
        designated_successor: Option<(usize, u64)>,
        error: IoError,
    ) -> Result<(), IoError> {
        let Some((leg, session_id)) = designated_successor else { return Err(error) };
        if self.failover.is_automatic() {
            self.leave_service(leg, session_id, error);
            return Err(error);
        }
        // A deposed source has a successor, and does not continue.
        let continues = {
            let state = self.lock();
            state.serving || state.legs[leg].handing_over && state.promised == 0
        };
        if !continues {
            return Err(error);
        }
        // Not a change of role, which would wait for the calls in flight, and this is one of them.
        let begin = |state: &mut StateGuard<'_>| {
            (!std::mem::replace(&mut state.degrading, true)).then_some(())
        };
        self.wait(begin).await;
        let _leaving = Degrading(self.clone());
        if self.lock().local_device_failed {
            return if self.is_up_to_date(leg, session_id) { Ok(()) } else { Err(error) };
        }
        // Other peers are recorded as out of date, because no log would record their differences.
        let others: Vec<(usize, u64)> =
            self.lock().legs.iter().map(|leg| leg.session_id).enumerate().collect();
        for (other, session_id) in others.into_iter().filter(|(other, _)| *other != leg) {
            self.disconnect(other, session_id);
        }
        let session = self.lock().legs[leg].session.clone().ok_or(error)?;
        // No write may come between the last queued write and the first synchronous one.
        let _block = self.block_admission();
        if !self.is_up_to_date(leg, session_id) && !self.catch_up(leg, session_id).await {
            self.disconnect(leg, session_id);
            return Err(error);
        }
        // The peer flushes before it adopts the generation, so flushed data of hosts is durable.
        let lost = self.local.superblock().replica;
        let generation = Generation::random();
        self.lock().legs[leg].degraded_as = generation;
        let request = PeerRequest::RunDegraded { generation, lost };
        if execute(&session, request).await.is_err() {
            self.disconnect(leg, session_id);
            return Err(error);
        }
        tracing::error!(
            replica = %lost,
            "the local leg has failed ({error}): the peer serves the volume without it"
        );
        self.change(|state| state.local_device_failed = true);
        if self.is_up_to_date(leg, session_id) { Ok(()) } else { Err(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rank of a replica does not depend on which peers it has met.
    #[test]
    fn replaced_peer_has_its_own_epochs() {
        let ranks = [1, 2, 3].map(|byte| epoch_rank(MirrorId([byte; 16])));
        let [old, stays, new] = ranks.map(|rank| next_epoch(7, rank));
        assert!(old != stays && stays != new && old != new);
    }
}

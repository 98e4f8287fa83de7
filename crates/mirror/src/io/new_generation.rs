//! New generation: the durable step before a write that a peer lacks is acknowledged.
//!
//! 1. Flush the local leg: from now on only it holds data that both legs had.
//! 2. Write the superblock with a new generation and the old one as a base generation. That records
//!    the peer as out of date.
//! 3. Inform any other peer that is in sync. Under the old generation it would look equal to the
//!    lost one.
//!
//! With automatic failover, the arbiter has to exclude the peer first ([`crate::failover`]).
//!
//! The work runs in a task of its own, so it completes even when the caller stops waiting.

use std::sync::Arc;

use flagstone_blockdev::IoError;
use flagstone_runtime::spawn_detached;

use crate::agree::generation::GenerationHistory;
use crate::id::Generation;
use crate::io::call_admission::Counted;
use crate::io::memory::with_memory;
use crate::limits::PEERS_MAX;
use crate::mirror::{GenerationBump, Inner, State, StateGuard};
use crate::ondisk::superblock::Superblock;
use crate::state::status::LegPhase;
use crate::wire::peer::{PeerRequest, execute};

/// Peers lost since the last generation was started.
pub(crate) fn due(state: &State) -> [bool; PEERS_MAX] {
    let mut due = [false; PEERS_MAX];
    for (due, leg) in due.iter_mut().zip(&state.legs) {
        *due = !leg.receives_writes && !leg.generation_bumped;
    }
    due
}

impl Inner {
    /// Makes sure that every lost peer is recorded as out of date.
    ///
    /// # Errors
    /// When that cannot be recorded. The write must not be acknowledged then.
    pub(crate) async fn ensure_new_generation(self: &Arc<Self>) -> Result<(), IoError> {
        loop {
            let start = {
                let mut state = self.lock();
                // A deposed source acknowledges nothing that its successor lacks.
                if !state.serving {
                    return Err(IoError::Unreachable);
                }
                if state.local_device_failed || !due(&state).contains(&true) {
                    return Ok(());
                }
                let starts = !state.generation_bump.is_running();
                if starts {
                    state.generation_bump = GenerationBump::Waits;
                }
                starts
            };
            if start {
                spawn_detached(bump_generation(self.clone()));
            }
            let ended = |state: &mut StateGuard<'_>| {
                let has_ended = !state.generation_bump.is_running();
                has_ended.then_some(state.generation_error)
            };
            if let Some(error) = self.wait(ended).await {
                return Err(error);
            }
        }
    }
}

impl Inner {
    /// Like `ensure_new_generation`, after data was written locally that a peer may lack, or was
    /// not written locally but may have reached a peer. Reads return the local data from then on.
    /// If the difference cannot be recorded, this side stops serving: after a crash the peer's data
    /// may be preferred, and data that was read must not change.
    ///
    /// # Errors
    /// When it cannot be recorded, or another peer serves: the write must not be acknowledged then.
    pub(crate) async fn record_difference(self: &Arc<Self>) -> Result<(), IoError> {
        let generation_bumped = self.ensure_new_generation().await;
        if self.lock().local_device_failed {
            return Err(IoError::Unreachable);
        }
        let Err(error) = generation_bumped else { return Ok(()) };
        if !self.lock().serving {
            return Err(IoError::Unreachable);
        }
        let degraded = self.run_degraded(self.successor_candidate(), error).await;
        if degraded.is_err() {
            let replica = self.local.superblock().replica;
            tracing::error!(%replica, "cannot record that a peer is out of date ({error}): not \
                serving until the replica is reopened");
            self.change(|state| state.local_device_failed = true);
        }
        degraded
    }
}

impl Inner {
    /// Called when a peer lacks acknowledged writes: queued ones were lost, or it could not flush
    /// and may forget them by the next handshake. It is recorded as out of date now, not with the
    /// next write: if this node crashed in between, the peer would look equal or be preferred. An
    /// order that blocks hosts records it itself ([`crate::io::deliver`]).
    pub(crate) async fn record_loss(self: &Arc<Self>) {
        let serves = {
            let state = self.lock();
            let serves = state.serving && state.admission_blocks == 0 && !state.is_moving();
            if serves {
                // Counted like a host call, so the role is not given up meanwhile.
                self.calls.begin(Counted::HostCall);
            }
            serves
        };
        if serves {
            // If this fails, the next write tries again and is not acknowledged without it.
            let _ = self.ensure_new_generation().await;
            self.call_ended(Counted::HostCall);
        }
    }
}

async fn bump_generation(inner: Arc<Inner>) {
    inner.freeze_group();
    let (lost, opened) = {
        let state = inner.lock();
        let opened: Vec<u64> = state.legs.iter().map(|leg| leg.last_open_session).collect();
        (due(&state), opened)
    };
    if inner.failover.is_automatic() {
        // The task that asks the arbiter waits for changes.
        inner.change(|_| {});
    }
    let (result, recorded) = match inner.may_go_alone().await {
        Ok(true) => (record(&inner).await, true),
        Ok(false) => (Ok(()), false),
        Err(error) => (Err(error), true),
    };
    inner.change(|state| {
        state.generation_bump = GenerationBump::Idle;
        state.generation_error = result.err();
        if result.is_ok() && recorded {
            for (leg, (lost, opened)) in state.legs.iter_mut().zip(lost.into_iter().zip(opened)) {
                // A peer that returned meanwhile may have adopted this generation, and may be lost
                // again.
                leg.generation_bumped |= lost && leg.last_open_session == opened;
                if lost {
                    leg.degraded_as = Generation::NONE;
                }
            }
        }
    });
}

async fn record(inner: &Arc<Inner>) -> Result<(), IoError> {
    with_memory(|| inner.local.data().flush()).await?;
    let new_generation = NewGeneration::new(inner);
    let replica = inner.local.superblock().replica;
    tracing::info!(%replica, generation = new_generation.new.0, "recorded a peer as out of date under a new generation");
    inner.local.update(move |superblock| new_generation.apply(superblock)).await?;
    for leg in 0..inner.legs.len() {
        inner.rename(leg).await;
    }
    Ok(())
}

/// A new generation, with the state of the peers when it was started.
pub(crate) struct NewGeneration {
    new: Generation,
    /// Number of configured peers.
    configured: usize,
    /// By slot in the superblock.
    contacts: [PeerContact; PEERS_MAX],
}

#[derive(Clone, Copy)]
struct PeerContact {
    /// The peer may hold the generation that was current until now.
    may_hold_current: bool,
    /// The peer is in sync and is informed of the new generation next.
    in_sync: bool,
    /// The peer was asked to run degraded under this generation, and may have adopted it.
    degraded_as: Generation,
}

impl PeerContact {
    /// No contact with the peer.
    const NONE: PeerContact =
        PeerContact { may_hold_current: true, in_sync: false, degraded_as: Generation::NONE };
}

impl NewGeneration {
    pub(crate) fn new(inner: &Inner) -> NewGeneration {
        let peers = inner.local.superblock().peers;
        let state = inner.lock();
        let contacts = peers.map(|peer| {
            let mut legs = state.legs.iter();
            let leg = legs.find(|leg| !leg.peer.is_none() && leg.peer == peer.replica);
            leg.map_or(PeerContact::NONE, |leg| PeerContact {
                // Not if it was lost before the last generation started, without a handshake since.
                may_hold_current: leg.receives_writes
                    || !leg.generation_bumped
                    || peer.bases.is_empty(),
                in_sync: leg.phase == LegPhase::InSync,
                degraded_as: leg.degraded_as,
            })
        });
        NewGeneration { new: Generation::random(), configured: inner.legs.len(), contacts }
    }

    /// Assumes no contact with any peer.
    pub(crate) fn alone(inner: &Inner) -> NewGeneration {
        NewGeneration::without_contact(inner.legs.len())
    }

    /// Of a replica with `configured` peers, without contact with any.
    pub(crate) fn without_contact(configured: usize) -> NewGeneration {
        let contacts = [PeerContact::NONE; PEERS_MAX];
        NewGeneration { new: Generation::random(), configured, contacts }
    }

    /// Records that every known peer may have the previous generation. So may a peer without a
    /// handshake since both were targets: its data at the hand-over equals the data here.
    pub(crate) fn apply(&self, superblock: &mut Superblock) {
        let before = superblock.current;
        let known = superblock.peers.iter().filter(|peer| !peer.replica.is_none()).count();
        let zeroes = superblock.zeroes().is_some();
        if known == 0 && !zeroes {
            superblock.history.remember(before);
        }
        for (slot, contact) in self.contacts.iter().enumerate() {
            let is_free = superblock.peers[slot].replica.is_none();
            if known == 0 && !zeroes || is_free && known >= self.configured {
                continue;
            }
            let mut generations =
                GenerationHistory { current: before, ..superblock.generations(slot) };
            if !contact.degraded_as.is_none() {
                generations.expect_name(contact.degraded_as);
            }
            if contact.may_hold_current {
                generations.bump(self.new);
            }
            superblock.set_generations(slot, &generations);
            superblock.peers[slot].renaming = contact.in_sync;
        }
        superblock.current = self.new;
    }
}

impl Inner {
    /// Informs a peer that is in sync of the current generation.
    pub(crate) async fn rename(self: &Arc<Self>, leg: usize) {
        let found = {
            let state = self.lock();
            let own = &state.legs[leg];
            let in_sync = own.phase == LegPhase::InSync;
            own.session.clone().filter(|_| in_sync).map(|session| (session, own.session_id))
        };
        let Some((session, session_id)) = found else { return };
        let generation = self.local.superblock().current;
        let renamed = execute(&session, PeerRequest::NewGeneration { generation }).await;
        if renamed.is_err() || self.settle_generations(leg, generation).await.is_err() {
            self.disconnect(leg, session_id);
        }
    }

    /// Forgets the bases of a peer that adopted `generation`; false if that is not the newest.
    pub(crate) async fn settle_generations(
        &self,
        leg: usize,
        generation: Generation,
    ) -> Result<bool, IoError> {
        let slot = self.slot_of_leg(leg);
        self.local
            .update(move |superblock| {
                if superblock.current != generation {
                    return false;
                }
                let mut generations = superblock.generations(slot);
                generations.settle();
                superblock.set_generations(slot, &generations);
                superblock.peers[slot].renaming = false;
                (superblock.flags.crashed, superblock.flags.served_alone) = (false, false);
                true
            })
            .await
    }
}

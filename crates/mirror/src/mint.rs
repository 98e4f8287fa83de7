//! What is made durable before a write that a peer lacks is acknowledged: a new generation.
//!
//! The local leg is flushed first: from now on it alone has what both had. Then the superblock gets
//! the new generation, and the old one as a base: with it the peer is recorded as out of date. Then
//! the other peer, if it is in sync, learns the new name: with the old one it would look equal to
//! the one that was lost.
//!
//! A task of its own does it: it ends whoever gives up waiting.

use std::sync::Arc;

use flagstone_blockdev::IoError;
use flagstone_runtime::spawn_detached;

use crate::format::superblock::Superblock;
use crate::generation::Lineage;
use crate::id::Generation;
use crate::limits::PEERS_MAX;
use crate::mirror::{Inner, State};
use crate::peer::{Request, order};
use crate::state::Phase;

/// Peers that were lost since the last generation was minted.
fn due(state: &State) -> [bool; PEERS_MAX] {
    let mut due = [false; PEERS_MAX];
    for (due, leg) in due.iter_mut().zip(&state.legs) {
        *due = !leg.foreground && !leg.minted;
    }
    due
}

impl Inner {
    /// Makes sure that each peer that was lost is recorded as out of date.
    ///
    /// # Errors
    /// When that cannot be recorded: the write must not be acknowledged.
    pub(crate) async fn ensure_minted(self: &Arc<Self>) -> Result<(), IoError> {
        loop {
            let start = {
                let mut state = self.lock();
                if state.local_failed || !due(&state).contains(&true) {
                    return Ok(());
                }
                !std::mem::replace(&mut state.minting, true)
            };
            if start {
                spawn_detached(mint(self.clone()));
            }
            let ended = |state: &mut State| (!state.minting).then_some(state.mint_error);
            if let Some(error) = self.wait(ended).await {
                return Err(error);
            }
        }
    }
}

impl Inner {
    /// The same after data was written here that a peer may lack, or not written here that a peer
    /// may have: reads find what is here. Where it cannot be recorded that the peer is out of date
    /// nothing is read here any more, for after a crash the peer's data may be the better one, and
    /// what was read must not change.
    ///
    /// # Errors
    /// When it cannot be recorded, or another peer carries the volume by now: the write must not be
    /// acknowledged.
    pub(crate) async fn record_difference(self: &Arc<Self>) -> Result<(), IoError> {
        let minted = self.ensure_minted().await;
        if self.lock().local_failed {
            return Err(IoError::Unreachable);
        }
        let Err(error) = minted else { return Ok(()) };
        let gone_on = self.go_on_without_local(self.heir(), error).await;
        if gone_on.is_err() {
            let replica = self.local.superblock().replica;
            tracing::error!(%replica, "a peer cannot be recorded as out of date ({error}): nothing \
                is served here until the replica is opened anew");
            self.change(|state| state.local_failed = true);
        }
        gone_on
    }
}

impl Inner {
    /// A peer has answered that it could not flush what it was told. It may forget that before it is
    /// met again, and shows what it will never write: it is recorded as out of date at once, and not
    /// with the next write. Else, if this node crashed meanwhile, it would be taken for the better one.
    pub(crate) async fn record_failed_flush(self: &Arc<Self>) {
        let serves = {
            let mut state = self.lock();
            let serves = state.active && state.holds == 0 && !state.moving;
            // As a call of a host: the role is not given up meanwhile.
            state.in_flight += usize::from(serves);
            serves
        };
        if serves {
            // What cannot be recorded now is with the next write, or that is not acknowledged.
            let _ = self.ensure_minted().await;
            self.ended();
        }
    }
}

async fn mint(inner: Arc<Inner>) {
    let lost = due(&inner.lock());
    let result = record(&inner).await;
    inner.change(|state| {
        state.minting = false;
        state.mint_error = result.err();
        if result.is_ok() {
            for (leg, lost) in state.legs.iter_mut().zip(lost) {
                leg.minted |= lost;
                if lost {
                    leg.alone_as = Generation::NONE;
                }
            }
        }
    });
}

async fn record(inner: &Arc<Inner>) -> Result<(), IoError> {
    inner.local.data().flush().await?;
    let minting = Minting::new(inner);
    let replica = inner.local.superblock().replica;
    tracing::info!(%replica, generation = minting.new.0, "a peer is recorded as out of date");
    inner.local.update(move |superblock| minting.apply(superblock)).await?;
    for leg in 0..inner.legs.len() {
        inner.rename(leg).await;
    }
    Ok(())
}

/// A new generation, and what is known of the peers when it is minted.
pub(crate) struct Minting {
    new: Generation,
    /// Peers of the configuration.
    configured: usize,
    /// By their places in the superblock.
    contacts: [Contact; PEERS_MAX],
}

#[derive(Clone, Copy)]
struct Contact {
    /// The peer may hold what is current until now.
    may_hold_current: bool,
    /// It is in sync, and is told the new name next.
    in_sync: bool,
    /// It was asked to go on alone, and did not answer: it may be called so.
    alone_as: Generation,
}

impl Contact {
    /// Nothing was heard of the peer.
    const NONE: Contact =
        Contact { may_hold_current: true, in_sync: false, alone_as: Generation::NONE };
}

impl Minting {
    /// With what is known of the peers.
    pub(crate) fn new(inner: &Inner) -> Minting {
        let peers = inner.local.superblock().peers;
        let state = inner.lock();
        let contacts = peers.map(|peer| {
            let mut legs = state.legs.iter();
            let leg = legs.find(|leg| !leg.peer.is_none() && leg.peer == peer.replica);
            leg.map_or(Contact::NONE, |leg| Contact {
                // Not if it was lost before the last minting, and not met since.
                may_hold_current: leg.foreground || !leg.minted || peer.bases.is_empty(),
                in_sync: leg.phase == Phase::InSync,
                alone_as: leg.alone_as,
            })
        });
        Minting { new: Generation::random(), configured: inner.legs.len(), contacts }
    }

    /// Nobody was asked.
    pub(crate) fn alone(inner: &Inner) -> Minting {
        let contacts = [Contact::NONE; PEERS_MAX];
        Minting { new: Generation::random(), configured: inner.legs.len(), contacts }
    }

    /// Each peer that is known may hold what was current until now. So may one that this source has
    /// not met as one yet: it was a target of the source before, as we were, and the role was
    /// handed over, so with the generation of then it has the data of then.
    pub(crate) fn apply(&self, superblock: &mut Superblock) {
        let before = superblock.current;
        let known = superblock.peers.iter().filter(|peer| !peer.replica.is_none()).count();
        if known == 0 {
            superblock.history.remember(before);
        }
        for (slot, contact) in self.contacts.iter().enumerate() {
            let is_free = superblock.peers[slot].replica.is_none();
            if known == 0 || is_free && known >= self.configured {
                continue;
            }
            let mut lineage = Lineage { current: before, ..superblock.lineage(slot) };
            if !contact.alone_as.is_none() {
                lineage.expect(contact.alone_as);
            }
            if contact.may_hold_current {
                lineage.mint(self.new);
            }
            superblock.set_lineage(slot, &lineage);
            superblock.peers[slot].renaming = contact.in_sync;
        }
        superblock.current = self.new;
    }
}

impl Inner {
    /// Tells a peer that is in sync what our data is called now.
    pub(crate) async fn rename(self: &Arc<Self>, leg: usize) {
        let found = {
            let state = self.lock();
            let own = &state.legs[leg];
            let in_sync = own.phase == Phase::InSync;
            own.session.clone().filter(|_| in_sync).map(|session| (session, own.serial))
        };
        let Some((session, serial)) = found else { return };
        let generation = self.local.superblock().current;
        let told = order(&session, Request::Rename { generation }).await;
        if told.is_err() || self.settle_lineage(leg, generation).await.is_err() {
            self.lose(leg, serial);
        }
    }

    /// The peer has taken this generation over, durably. False when we have minted since.
    pub(crate) async fn settle_lineage(
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
                let mut lineage = superblock.lineage(slot);
                lineage.settle();
                superblock.set_lineage(slot, &lineage);
                superblock.peers[slot].renaming = false;
                (superblock.flags.crashed, superblock.flags.served_alone) = (false, false);
                true
            })
            .await
    }
}

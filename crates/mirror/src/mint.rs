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

async fn mint(inner: Arc<Inner>) {
    let lost = due(&inner.lock());
    let result = record(&inner).await;
    inner.change(|state| {
        state.minting = false;
        state.mint_error = result.err();
        if result.is_ok() {
            for (leg, lost) in state.legs.iter_mut().zip(lost) {
                leg.minted |= lost;
            }
        }
    });
}

async fn record(inner: &Arc<Inner>) -> Result<(), IoError> {
    inner.local.data().flush().await?;
    let new = Generation::random();
    let replica = inner.local.superblock().replica;
    tracing::info!(%replica, generation = new.0, "a peer is recorded as out of date");
    let stranger = inner.stranger();
    inner.local.update(move |superblock| mint_for_all(superblock, new, stranger)).await?;
    for leg in 0..inner.legs.len() {
        inner.rename(leg).await;
    }
    Ok(())
}

/// A peer that this source has not met as one yet: it was a target of the source before, as we were.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stranger {
    /// There is none.
    None,
    /// The role was handed over: with the generation of then it has the data of then.
    Equal,
    /// The role was taken by force: it may have heard of writes that we have not.
    Unlike,
}

/// Each peer that is known may hold what was current until now, and so may a stranger.
pub(crate) fn mint_for_all(superblock: &mut Superblock, new: Generation, stranger: Stranger) {
    let before = superblock.current;
    let known = |slot: usize| !superblock.peers[slot].replica.is_none();
    let free = |slot: usize| !known(slot) && stranger == Stranger::Equal;
    let slots: Vec<usize> = (0..PEERS_MAX).filter(|slot| known(*slot) || free(*slot)).collect();
    if slots.is_empty() {
        superblock.current = new;
    }
    let remember = slots.is_empty() || stranger == Stranger::Unlike;
    let old: [Lineage; PEERS_MAX] = std::array::from_fn(|slot| superblock.lineage(slot));
    for slot in slots {
        let mut lineage = old[slot];
        lineage.mint(new);
        superblock.set_lineage(slot, &lineage);
    }
    if remember {
        superblock.history.remember(before);
    }
}

impl Inner {
    pub(crate) fn stranger(&self) -> Stranger {
        let peers = self.local.superblock().peers;
        let known = peers.iter().filter(|peer| !peer.replica.is_none()).count();
        match self.lock().forced {
            _ if known == 0 || known >= self.legs.len() => Stranger::None,
            true => Stranger::Unlike,
            false => Stranger::Equal,
        }
    }

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
                (superblock.flags.crashed, superblock.flags.served_alone) = (false, false);
                true
            })
            .await
    }
}

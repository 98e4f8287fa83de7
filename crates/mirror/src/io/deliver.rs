//! Delivery of queued writes before a source stops serving, also if another peer takes the role.
//!
//! Guarantee: when a source stops in order, each asynchronous peer has received and flushed every
//! acknowledged write, or the missing ones are reported, or recorded by a generation that began
//! after the loss. A peer that makes no progress delays the stop for at most a limit. Undelivered
//! writes stay marked as out of sync, under a new generation: hosts rely on them, so the peer must
//! not look equal.
//!
//! A peer that acknowledges from memory has flushed every write, too. Otherwise it may have lost
//! some in a power failure, and a new generation begins as well; it is reported only if that fails.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_runtime::time;

use crate::join::join_all;
use crate::limits::LEAVE_MS;
use crate::manage::roles::AdmissionBlock;
use crate::mirror::{Inner, Leg};

/// Writes that were acknowledged to hosts and that a peer lacks after the source stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undelivered {
    /// The peer, by position in the configuration.
    pub leg: usize,
    /// Number of writes; of marked blocks, for a peer that acknowledges from memory.
    pub writes: u64,
    /// Their size, in bytes.
    pub bytes: u64,
}

impl Inner {
    /// Waits until the peers' queues are empty and the peers have flushed. `_block` keeps new
    /// writes out. Returns the undelivered writes.
    pub(crate) async fn deliver_queues(
        &self,
        _block: &AdmissionBlock,
        limit: Duration,
    ) -> Vec<Undelivered> {
        // At the same time: a peer that hangs must not use up the time of another.
        let deliver_all = join_all((0..self.legs.len()).map(|leg| self.deliver_queue(leg)));
        let _ = time::timeout(limit, deliver_all).await;
        if !limit.is_zero() {
            self.give_up_unflushed();
        }
        let mut undelivered = Vec::new();
        for (leg, own) in self.legs.iter().enumerate() {
            let (mut writes, mut bytes) = {
                let queue = own.queue();
                (queue.writes() as u64, queue.lag(Inner::boot_ns()).0)
            };
            let recorded = {
                let state = &self.lock().legs[leg];
                !state.receives_writes && state.generation_bumped
            };
            // Also writes that were lost before the stop, unless a generation has begun since.
            if !recorded {
                writes += own.counters.lost_writes.load(Ordering::Relaxed);
                bytes += own.counters.lost_bytes.load(Ordering::Relaxed);
            }
            if writes > 0 {
                undelivered.push(Undelivered { leg, writes, bytes });
            }
        }
        for Undelivered { leg, writes, bytes } in &undelivered {
            tracing::error!(
                replica = %self.local.superblock().replica,
                leg,
                writes,
                bytes,
                "not all queued writes were delivered: the peer lacks acknowledged writes, which stay \
                 marked as out of sync"
            );
        }
        undelivered
    }

    /// Ends the sessions of peers that have not flushed what they acknowledged from memory.
    fn give_up_unflushed(&self) {
        for (leg, own) in
            self.legs.iter().enumerate().filter(|(_, own)| own.options().acks_from_memory())
        {
            if own.unflushed.iter().any(|half| half.count() > 0) {
                let session_id = self.lock().legs[leg].session_id;
                self.disconnect(leg, session_id);
            }
        }
    }

    /// Records that these peers lack acknowledged writes, and that others may have lost some which
    /// they acknowledged from memory. If that fails, adds the others to the list. The record that
    /// this node has stopped, which follows, then fails as well, unless only the arbiter is silent.
    pub(crate) async fn leave_behind(self: &Arc<Self>, undelivered: &mut Vec<Undelivered>) {
        for Undelivered { leg, .. } in &*undelivered {
            let session_id = self.lock().legs[*leg].session_id;
            self.disconnect(*leg, session_id);
        }
        let unflushed = self.lost_unflushed();
        if !undelivered.is_empty() || !unflushed.is_empty() {
            self.record_left_behind(undelivered, unflushed).await;
        }
    }

    /// As [`Inner::leave_behind`], for all peers: another member of the group leaves them behind.
    pub(crate) async fn leave_all_behind(self: &Arc<Self>, undelivered: &mut Vec<Undelivered>) {
        self.end_sessions();
        self.record_left_behind(undelivered, Vec::new()).await;
    }

    /// True if a peer was lost, and is recorded as out of date since.
    pub(crate) fn has_left_behind(&self) -> bool {
        self.lock().legs.iter().any(|leg| !leg.receives_writes && leg.generation_bumped)
    }

    async fn record_left_behind(
        self: &Arc<Self>,
        undelivered: &mut Vec<Undelivered>,
        unflushed: Vec<Undelivered>,
    ) {
        let began = match self.failover.is_automatic() {
            // The generation waits for the arbiter, and begins later if that answers.
            true => {
                let limit = Duration::from_millis(LEAVE_MS);
                let began = time::timeout(limit, self.ensure_new_generation()).await;
                began.unwrap_or(Err(IoError::Unreachable))
            }
            false => self.ensure_new_generation().await,
        };
        if let Err(error) = began {
            let replica = self.local.superblock().replica;
            tracing::error!(%replica, "cannot record that a peer is out of date: {error}");
            let listed: Vec<usize> = undelivered.iter().map(|peer| peer.leg).collect();
            undelivered.extend(unflushed.into_iter().filter(|peer| !listed.contains(&peer.leg)));
        }
    }

    /// Peers that were lost with writes which they had acknowledged from memory, unless a
    /// generation has begun since.
    fn lost_unflushed(&self) -> Vec<Undelivered> {
        let state = self.lock();
        let legs = self.legs.iter().zip(&state.legs).enumerate();
        let lost = legs.filter(|(_, (own, state))| {
            let is_unflushed = !state.receives_writes && state.has_unflushed;
            own.options().acks_from_memory() && is_unflushed && !state.generation_bumped
        });
        let of_leg = |(leg, (own, _)): (usize, (&Leg, _))| {
            let (writes, bytes) = (own.out_of_sync.count(), own.out_of_sync.bytes());
            Undelivered { leg, writes, bytes }
        };
        lost.map(of_leg).collect()
    }

    async fn deliver_queue(&self, leg: usize) {
        let session = {
            let state = self.lock();
            let own = &state.legs[leg];
            let tracks = self.legs[leg].options().tracks_unflushed();
            own.session
                .clone()
                .filter(|_| own.receives_writes && tracks)
                .map(|session| (session, own.session_id))
        };
        let Some((session, session_id)) = session else { return };
        if !self.catch_up(leg, session_id).await || session.flush().await.is_err() {
            return;
        }
        // Nothing is in flight, so the flush covers both halves.
        for half in 0..self.legs[leg].unflushed.len() {
            self.unflushed_is_durable(leg, session_id, half);
        }
    }
}

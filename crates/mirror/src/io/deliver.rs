//! Delivery of queued writes before a source stops serving, also if another peer takes the role.
//!
//! Guarantee: when a source stops in order, each asynchronous peer has received and flushed every
//! acknowledged write, or the missing ones are reported, or recorded by a generation that began
//! after the loss. A peer that makes no progress delays the stop for at most a limit. Undelivered
//! writes stay marked as out of sync, under a new generation: hosts rely on them, so the peer must
//! not look equal.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flagstone_runtime::time;

use crate::manage::roles::AdmissionBlock;
use crate::mirror::Inner;

/// Writes that were acknowledged to hosts and that a peer lacks after the source stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undelivered {
    /// The peer, by position in the configuration.
    pub leg: usize,
    /// Number of writes.
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
        let deliver_all = async {
            for leg in 0..self.legs.len() {
                self.deliver_queue(leg).await;
            }
        };
        let _ = time::timeout(limit, deliver_all).await;
        let mut undelivered = Vec::new();
        for (leg, own) in self.legs.iter().enumerate() {
            let (mut writes, mut bytes) = {
                let queue = own.queue();
                (queue.writes() as u64, queue.lag(Inner::now_ns()).0)
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

    /// Records that these peers lack acknowledged writes. If that fails, so does the record that
    /// this node has stopped, which follows.
    pub(crate) async fn leave_behind(self: &Arc<Self>, undelivered: &[Undelivered]) {
        for Undelivered { leg, .. } in undelivered {
            let session_id = self.lock().legs[*leg].session_id;
            self.disconnect(*leg, session_id);
        }
        if !undelivered.is_empty()
            && let Err(error) = self.ensure_new_generation().await
        {
            let replica = self.local.superblock().replica;
            tracing::error!(%replica, "cannot record that a peer is out of date: {error}");
        }
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

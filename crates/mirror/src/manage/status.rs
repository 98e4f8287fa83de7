//! Status: state of a mirror and its peers.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::agree::decide::ResyncAmount;
use crate::manage::replica::IntentLogStatistics;
use crate::manage::transfer::RoleTransfer;
use crate::mirror::{Inner, LegState, Mirror, State, StateGuard};
use crate::ondisk::superblock::{PeerRecord, ReplicaRole, Superblock};
use crate::options::PeerOptions;
use crate::session::bad_ranges::{BadRange, BadRangeCause};
use crate::state::status::{
    DesiredState, LegPhase, MirrorFacts, MirrorPeerStatus, MirrorState, MirrorStatus, derive,
};
use crate::wire::peer::ReplicaIdentity;

impl Mirror {
    /// True for a target, a former source that has handed over its role, or a deposed source, while
    /// it serves no hosts. Its devices may be closed, because no hosts rely on their data alone.
    pub fn is_idle_target(&self) -> bool {
        let state = self.0.lock();
        let busy = state.serving || state.closed || !matches!(state.transfer, RoleTransfer::None);
        state.role != ReplicaRole::Source && !busy
    }

    /// See [`mark_unverified`](crate::manage::replica::Replica::mark_unverified).
    pub fn is_unverified(&self) -> bool {
        self.0.lock().unverified
    }

    /// True while hosts are served here.
    pub fn is_serving(&self) -> bool {
        let state = self.0.lock();
        state.replacement().map_or(state.serving, Mirror::is_serving)
    }

    /// True if the local leg has failed; a peer may be serving the volume. While this node serves
    /// or an order runs, an abandoned device counts only after a peer has recorded it.
    pub fn has_failed(&self) -> bool {
        let state = self.0.lock();
        let is_idle = !state.serving && state.orders == 0;
        state.local_device_failed || is_idle && self.0.local.local_io().has_failed()
    }

    /// True while a source is attached to this replica.
    pub fn has_source(&self) -> bool {
        self.0.lock().attached.is_some()
    }

    /// Leg of the attached source. `None` without a source, and with several peers until a leg has
    /// identified the source.
    pub fn source(&self) -> Option<usize> {
        let state = self.0.lock();
        state.attached.and_then(|attached| state.leg_of(attached.source))
    }

    /// Waits until the mirror, or its replacement, starts or stops serving; returns the new value.
    pub async fn serving_changed(&self, was: bool) -> bool {
        let changed = self.0.wait(|state| match state.replacement() {
            Some(replacement) => Some(Err(replacement.clone())),
            // During a transfer, host calls wait.
            None => (!state.is_moving() && state.serving != was).then_some(Ok(state.serving)),
        });
        match changed.await {
            Ok(serving) => serving,
            Err(replacement) => Box::pin(replacement.serving_changed(was)).await,
        }
    }

    /// The state toward a peer.
    ///
    /// # Panics
    /// When there is no such peer.
    pub fn state(&self, leg: usize) -> MirrorState {
        self.0.shown(leg)
    }

    /// Waits until the state toward a peer differs from `was`, and returns it.
    ///
    /// # Panics
    /// When there is no such peer.
    pub async fn state_changed(&self, leg: usize, was: MirrorState) -> MirrorState {
        let inner = &self.0;
        let changed =
            |state: &mut StateGuard<'_>| Some(inner.shown_in(state, leg)).filter(|now| *now != was);
        inner.wait(changed).await
    }

    /// The desired state of a peer; the default if there is no such peer.
    pub fn desired_state(&self, leg: usize) -> DesiredState {
        self.0.lock().legs.get(leg).map_or_else(DesiredState::default, |leg| leg.desired_state)
    }

    /// The options of a peer, as they were given.
    pub fn options(&self, leg: usize) -> Option<PeerOptions> {
        self.0.legs.get(leg).map(|leg| leg.options().clone())
    }

    /// The peer's identity at the last handshake.
    pub fn last_handshake(&self, leg: usize) -> Option<ReplicaIdentity> {
        self.0.lock().legs.get(leg)?.last_handshake
    }

    /// True while a full resync to a peer is running or pending.
    pub fn is_full_resync(&self, leg: usize) -> bool {
        let state = self.0.lock();
        let full =
            |leg: &LegState| leg.full_resync || leg.phase == LegPhase::Resync(ResyncAmount::Full);
        state.legs.get(leg).is_some_and(full)
    }

    /// Counters of the log.
    pub fn log_statistics(&self) -> IntentLogStatistics {
        self.0.local.statistics()
    }

    /// The status of the mirror and its peers.
    pub fn status(&self) -> MirrorStatus {
        let inner = &self.0;
        let superblock = inner.local.superblock();
        let peers = (0..inner.legs.len()).map(|leg| inner.peer_status(leg)).collect();
        let (in_flight, waiting) = inner.range_lock.counts();
        let local_device_failed = self.has_failed();
        let state = inner.lock();
        MirrorStatus {
            volume: superblock.volume,
            replica: superblock.replica,
            versions: inner.versions,
            role: state.role,
            serving: state.serving,
            local_device_failed,
            role_epoch: superblock.epoch,
            generation: superblock.current,
            inconsistent: superblock.flags.inconsistent,
            removed: superblock.removed,
            bad_ranges: inner.listed_bad_ranges(&superblock),
            peers,
            in_flight: in_flight as u64,
            waiting_for_range_lock: waiting as u64,
            writes: inner.counters.writes.load(Ordering::Relaxed),
            local_us: inner.counters.local_ns.load(Ordering::Relaxed) / 1000,
            repairs: inner.counters.repairs.load(Ordering::Relaxed),
            repaired_bytes: inner.counters.repaired_bytes.load(Ordering::Relaxed),
            blocked: state.blocked as u64,
        }
    }
}

impl Inner {
    /// Bad ranges of resyncs from here and of the resync to this replica.
    fn listed_bad_ranges(&self, superblock: &Superblock) -> Vec<BadRange> {
        let lacks = superblock.not_received.iter().map(|range| BadRange {
            offset: range.start,
            len: range.end - range.start,
            cause: BadRangeCause::NotReceived,
        });
        let mut list: Vec<BadRange> = lacks.collect();
        self.legs.iter().for_each(|leg| list.extend_from_slice(leg.bad_ranges().list()));
        list
    }

    fn shown(&self, leg: usize) -> MirrorState {
        self.shown_in(&self.lock(), leg)
    }

    fn shown_in(&self, state: &State, leg: usize) -> MirrorState {
        let superblock = self.local.superblock();
        let own = &state.legs[leg];
        let record = superblock.peers.iter().find(|peer| peer.replica == own.peer);
        let behind = record.is_some_and(PeerRecord::is_outdated);
        let outdated = behind || self.legs[leg].out_of_sync.count() > 0;
        let attached = state.attached.is_some();
        derive(MirrorFacts {
            role: state.role,
            desired_state: own.desired_state,
            phase: own.phase,
            outdated,
            attached,
        })
    }

    fn peer_status(&self, leg: usize) -> MirrorPeerStatus {
        let own = &self.legs[leg];
        let (lag_bytes, lag_ns) = own.queue().lag(Inner::boot_ns());
        let lag_writes = own.queue().writes() as u64;
        let peer = self.lock().legs[leg].peer;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &own.counters;
        let link = own.options().connector.link();
        MirrorPeerStatus {
            replica: peer,
            state: self.shown(leg),
            out_of_sync_bytes: own.out_of_sync.bytes(),
            last_in_sync_s: read(&counters.last_in_sync_s),
            lag_bytes,
            lag_writes,
            lag_us: lag_ns / 1000,
            resync_done_bytes: read(&counters.copied_bytes) + read(&counters.skipped_bytes),
            resync_total_bytes: read(&counters.total_bytes),
            resync_skipped_bytes: read(&counters.skipped_bytes),
            resync_bytes_per_s: read(&counters.rate),
            resynced_bytes: read(&counters.resynced_bytes),
            added_us: read(&counters.added_ns) / 1000,
            added_writes: read(&counters.added_writes),
            disconnects: read(&counters.disconnects),
            discards: read(&counters.discards),
            discarded_bytes: read(&counters.discarded_bytes),
            link,
            versions: self.lock().legs[leg].versions,
        }
    }
}

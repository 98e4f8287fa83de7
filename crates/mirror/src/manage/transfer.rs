//! Transfer: moves a replica from one mirror to its replacement while hosts keep running, to change
//! properties that are fixed while a mirror runs: its size and its peers.
//!
//! 1. New host calls wait; calls in flight complete, and the devices must answer.
//! 2. The mirror ends as in a shutdown of its node, and writes nothing afterwards.
//! 3. The replica is changed on its devices ([`ReplicaTransfer::resize`],
//!    [`ReplicaTransfer::change_peers`]) and opened again.
//! 4. The replacement serves if this mirror did, and the waiting calls move to it. Calls that reach
//!    the replacement itself before that ([`ReplicaTransfer::begin_replacement`]) wait, too.
//!
//! A source records its peers as out of date in the same write as the change, as before a write
//! that they lack. So it may serve without asking them, and they get its data and size at the next
//! handshake. If step 3 fails, only that record is written.
//!
//! Host calls wait for at most [`TRANSFER_CHECK_MS`] and [`TRANSFER_MS`], whatever a device does.
//! If step 1 exceeds the first limit, the transfer is abandoned and the mirror continues: a hung
//! disk is then treated as usual, and a peer in sync carries the volume. If the rest exceeds the
//! second limit, all calls to the devices count as failed, and hosts are refused here. The replica
//! can be opened again, as after a crash, when the abandoned calls have ended. A peer may have
//! become the source since, so [`Mirror::start`] asks it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{IoError, SharedDevice};
use flagstone_runtime::time::{self, Instant};

use crate::agree::versions::{LinkVersion, LinkVersions};
use crate::id::MirrorId;
use crate::io::local::{LocalIo, WatchedDevice};
use crate::io::new_generation::NewGeneration;
use crate::limits::{DEPOSE_MS, PEERS_MAX, TRANSFER_CHECK_MS, TRANSFER_MS};
use crate::manage::command::{CommandError, role_error};
use crate::manage::order::OrderProgress;
use crate::manage::replica::{Replica, ReplicaError};
use crate::manage::resize::Sizes;
use crate::manage::roles::{RoleChange, RoleError};
use crate::mirror::{Inner, Mirror, State};
use crate::ondisk::layout::ReplicaGeometry;
use crate::ondisk::member::Member;
use crate::ondisk::superblock::{PeerRecord, Superblock};
use crate::session::connect::CloseOnDrop;
use crate::state::machine::{Action, Event, OrderRefusal, next};
use crate::state::status::DesiredState;
use crate::wire::peer::{
    PeerRefusal, PeerRequest, RequestError, SharedConnector, execute, identify,
};

/// State of a transfer, a part of the mirror's state.
#[derive(Default)]
pub(crate) enum RoleTransfer {
    /// None, or abandoned: the role decides about host calls.
    #[default]
    None,
    /// Host calls wait.
    Running,
    /// Host calls move to this mirror.
    Done(Mirror),
    /// At the replacement, until the transfer to it ends: host calls wait.
    Incoming,
}

impl State {
    /// The replica is being transferred to another mirror.
    pub(crate) fn is_moving(&self) -> bool {
        matches!(self.transfer, RoleTransfer::Running)
    }

    /// The mirror that has taken over the replica.
    pub(crate) fn replacement(&self) -> Option<&Mirror> {
        match &self.transfer {
            RoleTransfer::Done(replacement) => Some(replacement),
            RoleTransfer::None | RoleTransfer::Running | RoleTransfer::Incoming => None,
        }
    }

    /// Host calls wait for the end of a transfer.
    pub(crate) fn holds_calls(&self) -> bool {
        matches!(self.transfer, RoleTransfer::Running | RoleTransfer::Incoming)
    }
}

/// A mirror that has ended so that another takes over its replica. If it is dropped before
/// [`ReplicaTransfer::finish`], waiting calls fail.
pub struct ReplicaTransfer {
    was_serving: bool,
    /// Calls to the devices, including calls of the reopened replica.
    io: Arc<LocalIo>,
    deadline: Instant,
    running: Running,
    incoming: Option<Incoming>,
    _role_change: RoleChange,
}

/// Makes host calls wait; ends on drop, or when the mirror has a replacement.
struct Running(Arc<Inner>);

impl Running {
    fn new(inner: &Arc<Inner>) -> Running {
        inner.change(|state| state.transfer = RoleTransfer::Running);
        Running(inner.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.change(|state| {
            if state.is_moving() {
                state.transfer = RoleTransfer::None;
            }
        });
    }
}

/// Makes host calls wait at the replacement; ends on drop.
struct Incoming(Arc<Inner>);

impl Drop for Incoming {
    fn drop(&mut self) {
        self.0.change(|state| {
            if matches!(state.transfer, RoleTransfer::Incoming) {
                state.transfer = RoleTransfer::None;
            }
        });
    }
}

/// Peers of the replacement.
#[derive(Clone, Debug)]
pub struct PeerChange {
    /// For each leg of the replacement, in order, the leg of this mirror with the same peer; `None`
    /// for a new peer. At most [`PEERS_MAX`].
    pub legs: Vec<Option<usize>>,
    /// Replaces [`Superblock::members`].
    pub members: Vec<Member>,
}

/// Superblock slots of peers that are removed, or were replaced long ago. `None` if unknown,
/// because not all legs had a handshake (`known_peers`) since the start.
fn slots_to_forget(
    recorded: [MirrorId; PEERS_MAX],
    known_peers: &[MirrorId],
    legs: &[Option<usize>],
) -> Option<Vec<usize>> {
    let kept = |leg: usize| legs.contains(&Some(leg));
    let unmet = |of_kept: bool| {
        known_peers.iter().enumerate().any(|(leg, peer)| peer.is_none() && kept(leg) == of_kept)
    };
    let mut forget = Vec::new();
    for (slot, replica) in recorded.iter().enumerate().filter(|(_, replica)| !replica.is_none()) {
        match known_peers.iter().position(|peer| peer == replica) {
            Some(leg) if kept(leg) => {}
            Some(_) => forget.push(slot),
            None if !unmet(true) => forget.push(slot),
            None if unmet(false) => return None,
            None => {}
        }
    }
    // A new peer must not take the slot of a peer without a handshake since the start.
    let known = recorded.iter().filter(|replica| !replica.is_none()).count() - forget.len();
    (known <= legs.iter().flatten().count()).then_some(forget)
}

impl Mirror {
    /// Ends this mirror so that another can take over its replica, as described in this module.
    /// Host calls wait meanwhile.
    ///
    /// # Errors
    /// Errors of the local leg, [`RoleError::LocalFailed`] if it failed earlier, or
    /// [`RoleError::DeviceBusy`]: the mirror continues. If the mirror has ended nevertheless
    /// ([`Mirror::is_closed`], e.g. with [`RoleError::DeviceHangs`]), it ended like in a crash, and
    /// hosts are not served.
    pub async fn begin_transfer(&self) -> Result<ReplicaTransfer, RoleError> {
        let inner = &self.0;
        let role_change = inner.begin_role_change().await;
        let (after, actions) = next(&inner.machine_state(), Event::Transferred)?;
        let (epoch, was_serving) = (after.role.epoch(), inner.lock().serving);
        let running = Running::new(inner);
        let mut progress = OrderProgress::default();
        let is_last = |action: Action| action == Action::CheckDevices;
        let checks = actions.iter().position(is_last).map_or(0, |at| at + 1);
        let receiving = inner.receiving_legs();
        let prepared = time::timeout(Duration::from_millis(TRANSFER_CHECK_MS), async {
            for action in actions.iter().take(checks) {
                inner.act(epoch, action, &mut progress).await?;
            }
            // The node may have stopped meanwhile: a replacement would serve after that.
            inner.check_open()
        })
        .await;
        if let Err(error) = role_error(prepared.unwrap_or(Err(RoleError::DeviceBusy.into()))) {
            drop((progress, running));
            // The replacement would record an outdated list of receiving legs.
            if inner.receiving_legs() != receiving {
                inner.record_loss().await;
            }
            return Err(error);
        }
        let deadline = time::now() + Duration::from_millis(TRANSFER_MS);
        let ends = async {
            for action in actions.iter().skip(checks) {
                inner.act(epoch, action, &mut progress).await?;
            }
            Ok(())
        };
        let io = inner.local.local_io();
        let ended = inner.until(deadline, io, ends).await;
        let still_open = inner.check_open();
        self.close();
        let ended =
            ended.map_or(Err(RoleError::DeviceHangs), |ended| role_error(ended.and(still_open)));
        let left = deadline.since(time::now());
        let retired = time::timeout(left, inner.local.retire()).await;
        if let Err(error) = ended.and(retired.map_err(|_| RoleError::DeviceHangs)) {
            inner.end_transfer(io);
            return Err(error);
        }
        let io = Arc::<LocalIo>::default();
        inner.local.begin_transfer(&io);
        let incoming = None;
        Ok(ReplicaTransfer {
            was_serving,
            io,
            deadline,
            running,
            incoming,
            _role_change: role_change,
        })
    }

    /// Waits until a source requests another size for this replica, and returns it, in bytes. The
    /// request is repeated until the replica has that size.
    pub async fn resize_requested(&self) -> u64 {
        self.0.wait(|state| state.requested_bytes.take()).await
    }

    /// True if [`ReplicaTransfer::change_peers`] can match these legs to records of peers.
    pub fn knows_records_of(&self, legs: &[Option<usize>]) -> bool {
        self.0.slots_to_forget(legs).is_some()
    }

    /// Changes of peers in the superblock.
    pub fn members(&self) -> Vec<Member> {
        self.0.local.superblock().members
    }

    /// Informs a replica, over a new connection, that it was removed from this mirror.
    ///
    /// # Errors
    /// Errors of the connection, or the peer's refusal.
    pub async fn report_removal(&self, connector: &SharedConnector) -> Result<(), RequestError> {
        let Superblock { volume, replica, epoch, .. } = self.0.local.superblock();
        let versions = self.0.versions;
        let tell = async {
            let session = CloseOnDrop(connector.connect().await?);
            let peer = identify(&session.0, replica, versions).await?;
            if versions.highest_common(peer.versions)? < LinkVersion::REMOVES {
                return Err(PeerRefusal::Version.into());
            }
            execute(&session.0, PeerRequest::Remove { volume, epoch }).await
        };
        let limit = Duration::from_millis(DEPOSE_MS);
        time::timeout(limit, tell).await.unwrap_or(Err(IoError::Unreachable.into()))
    }

    /// True after [`Mirror::close`] or [`Mirror::begin_transfer`].
    pub fn is_closed(&self) -> bool {
        self.0.lock().closed
    }

    /// Size and granularities of the local replica.
    pub fn replica_geometry(&self) -> ReplicaGeometry {
        self.0.local.superblock().geometry
    }

    /// Versions of the link that this node speaks.
    pub fn versions(&self) -> LinkVersions {
        self.0.versions
    }

    /// Size of the volume here, in bytes.
    pub fn usable_bytes(&self) -> u64 {
        self.0.local.superblock().geometry.usable_bytes
    }

    /// The largest size possible here, in bytes. Checks whether the devices have grown.
    pub fn room_bytes(&self) -> u64 {
        self.0.local.room_bytes()
    }
}

impl Inner {
    /// Refuses a mirror that was closed.
    fn check_open(&self) -> Result<(), CommandError> {
        match self.lock().closed {
            true => Err(OrderRefusal::Closed.into()),
            false => Ok(()),
        }
    }

    /// Legs to which writes are sent.
    fn receiving_legs(&self) -> Vec<bool> {
        self.lock().legs.iter().map(|leg| leg.receives_writes).collect()
    }

    /// Runs a part of a transfer. `None` if the deadline passes: hosts are then refused, and the
    /// part ends because its calls to the devices fail.
    async fn until<T>(
        &self,
        deadline: Instant,
        io: &Arc<LocalIo>,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut work = pin!(work);
        let left = deadline.since(time::now());
        if let Ok(done) = time::timeout(left, &mut work).await {
            return Some(done);
        }
        tracing::error!(
            replica = %self.local.superblock().replica,
            "a device of the replica has not answered for {TRANSFER_MS} ms during a change of the \
             mirror: hosts are refused here"
        );
        self.end_transfer(io);
        work.await;
        None
    }

    /// Fails all calls to the devices, and refuses hosts.
    fn end_transfer(&self, io: &Arc<LocalIo>) {
        self.change(|state| {
            if state.serving {
                state.stop_serving();
            }
            (state.closed, state.transfer) = (true, RoleTransfer::None);
        });
        io.fail();
        // Also reads that began before the transfer.
        self.local.local_io().fail();
    }

    fn slots_to_forget(&self, legs: &[Option<usize>]) -> Option<Vec<usize>> {
        let recorded = self.local.superblock().peers.map(|peer| peer.replica);
        let known_peers: Vec<MirrorId> = self.lock().legs.iter().map(|leg| leg.peer).collect();
        slots_to_forget(recorded, &known_peers, legs)
    }
}

/// Clears the peer records of these slots, and with `free` the records of free slots, because marks
/// are cleared, too. A new peer in such a slot gets a full resync.
fn forget_peers(superblock: &mut Superblock, slots: &[usize], free: bool) {
    for slot in 0..PEERS_MAX {
        let peer = superblock.peers[slot];
        if slots.contains(&slot) || free && peer.replica.is_none() {
            peer.bases.iter().for_each(|base| superblock.history.remember(base));
            superblock.peers[slot] = PeerRecord::default();
        }
    }
}

impl ReplicaTransfer {
    fn inner(&self) -> &Arc<Inner> {
        &self.running.0
    }

    async fn within<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.inner().until(self.deadline, &self.io, work).await
    }

    /// Opens the replica for other peers. One superblock write has the change.
    ///
    /// # Errors
    /// If the replica cannot be opened or its superblock not written, or
    /// [`ReplicaError::DeviceHangs`].
    pub async fn change_peers(
        &self,
        device: &SharedDevice,
        log: Option<SharedDevice>,
        change: PeerChange,
    ) -> Result<Replica, ReplicaError> {
        let work = self.change_peers_now(device, log, change);
        self.within(work).await.unwrap_or(Err(ReplicaError::DeviceHangs))
    }

    async fn change_peers_now(
        &self,
        device: &SharedDevice,
        log: Option<SharedDevice>,
        change: PeerChange,
    ) -> Result<Replica, ReplicaError> {
        let inner = self.inner();
        let replica = Replica::open_watched(device.clone(), log, self.io.clone()).await?;
        let new_generation = self.was_serving.then(|| NewGeneration::new(inner));
        let PeerChange { legs, members } = change;
        let forget = inner.slots_to_forget(&legs).unwrap_or_default();
        let removes = (0..inner.legs.len()).any(|leg| !legs.contains(&Some(leg)));
        let kept = legs.clone();
        let record = move |superblock: &mut Superblock| {
            if let Some(new_generation) = new_generation {
                new_generation.apply(superblock);
            }
            forget_peers(superblock, &forget, removes);
            let before = superblock.desired_states;
            let desired = |place: usize| kept.get(place).copied().flatten().map(|leg| before[leg]);
            superblock.desired_states =
                std::array::from_fn(|place| desired(place).unwrap_or(DesiredState::Connected));
            superblock.members = members;
        };
        replica.update(record).await?;
        if removes && self.was_serving {
            // After the record: before it, these marks are the only record of the differences.
            self.keep_marks_of(&replica, &legs);
        }
        Ok(replica)
    }

    /// Clears the marks of blocks that only removed peers lack.
    fn keep_marks_of(&self, replica: &Replica, legs: &[Option<usize>]) {
        let kept: Vec<_> = legs.iter().flatten().map(|leg| &self.inner().legs[*leg]).collect();
        for index in 0..replica.bits().words() {
            // Ended sessions have merged their unflushed blocks into this bitmap.
            let marked = kept.iter().fold(0, |all, leg| all | leg.out_of_sync.word(index));
            let gone = replica.word(index) & !marked;
            let first = index * 64;
            match gone {
                0 => {}
                u64::MAX => replica.clear(first..first + 64),
                _ => (0..64)
                    .filter(|bit| gone >> bit & 1 == 1)
                    .for_each(|bit| replica.clear(first + bit..first + bit + 1)),
            }
        }
    }

    /// Resizes the replica and opens it. Space zeroed in advance ([`Mirror::zero_new_space`]) does
    /// not count as different. A replica that cannot be resized is opened with its size, and the
    /// second value is the error.
    ///
    /// # Errors
    /// If the replica cannot be opened, or [`ReplicaError::DeviceHangs`].
    pub async fn resize(
        &self,
        device: &SharedDevice,
        log: Option<SharedDevice>,
        usable_bytes: u64,
    ) -> Result<(Replica, Option<ReplicaError>), ReplicaError> {
        let work = self.resize_now(device, log, usable_bytes);
        self.within(work).await.unwrap_or(Err(ReplicaError::DeviceHangs))
    }

    async fn resize_now(
        &self,
        device: &SharedDevice,
        log: Option<SharedDevice>,
        usable_bytes: u64,
    ) -> Result<(Replica, Option<ReplicaError>), ReplicaError> {
        let local = &self.inner().local;
        let resized = match local.check_room(log.as_ref(), usable_bytes) {
            Ok(()) => {
                let new_generation = self.was_serving.then(|| NewGeneration::new(self.inner()));
                let change = move |superblock: &mut Superblock| {
                    if let Some(new_generation) = new_generation {
                        new_generation.apply(superblock);
                    }
                };
                let sizes = Sizes { usable_bytes, zeroed_bytes: local.zeroed_bytes() };
                let end = Some(local.end());
                // Announcing space does not extend the device's own size; using it does.
                device.refresh();
                let watched = |device: SharedDevice| WatchedDevice::over(device, &self.io);
                let (device, log) = (watched(device.clone()), log.clone().map(watched));
                Replica::resize_at(&device, log, end, sizes, change).await
            }
            // Before the metadata follows the device, whose new space may be taken back.
            refused => refused,
        };
        let replica = Replica::open_watched(device.clone(), log, self.io.clone()).await?;
        Ok((replica, resized.err()))
    }

    /// Makes host calls wait at the replacement until [`ReplicaTransfer::finish`] has ended. To be
    /// called before hosts reach it.
    pub fn begin_replacement(&mut self, next: &Mirror) {
        if self.was_serving {
            next.0.change(|state| state.transfer = RoleTransfer::Incoming);
            self.incoming = Some(Incoming(next.0.clone()));
        }
    }

    /// Lets the replacement take over.
    ///
    /// # Errors
    /// See [`RoleError`]. Hosts are not served then, and waiting calls fail at the replacement.
    /// With [`RoleError::DeviceHangs`], the replacement has ended, too.
    pub async fn finish(self, next: &Mirror) -> Result<(), RoleError> {
        let serves = async { if self.was_serving { self.serve(next).await } else { Ok(()) } };
        let Some(served) = self.within(serves).await else {
            next.close();
            return Err(RoleError::DeviceHangs);
        };
        self.inner().change(|state| state.transfer = RoleTransfer::Done(next.clone()));
        served
    }

    async fn serve(&self, next: &Mirror) -> Result<(), RoleError> {
        if !next.0.serve_after_start(false).await? {
            // The size is unchanged, so the peers are not recorded as out of date yet.
            let new_generation = NewGeneration::new(self.inner());
            next.0.local.update(move |superblock| new_generation.apply(superblock)).await?;
            next.0.serve_after_start(false).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use flagstone_blockdev::{
        BlockDevice, DelayConfig, DelayLayer, DelayTime, MemoryDevice, SharedDevice,
    };
    use flagstone_runtime::sim::{SimConfig, Simulation};
    use flagstone_runtime::{buf, spawn};

    use super::*;
    use crate::limits::ACTIVE_REGIONS_MIN;
    use crate::manage::replica::CreateReplica;

    /// A mirror without peers that serves, whose writes take half a second.
    async fn slow_source() -> Mirror {
        let geometry = ReplicaGeometry {
            usable_bytes: 4096,
            bit_bytes: 4096,
            region_bytes: 4096,
            active_regions_max: ACTIVE_REGIONS_MIN,
        };
        let volume = MirrorId([7; 16]);
        let create = CreateReplica { volume, with_data: true, zeroes: false, geometry };
        let memory: SharedDevice = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
        Replica::create(memory.clone(), None, create).await.unwrap();
        let write = DelayTime::fixed(Duration::from_millis(500));
        let slow = DelayLayer::new(memory, DelayConfig { write, ..DelayConfig::default() });
        let slow: SharedDevice = Arc::new(slow.unwrap());
        let mirror = Mirror::new(Replica::open(slow, None).await.unwrap(), Vec::new());
        assert!(mirror.start().await.unwrap());
        mirror
    }

    /// A transfer whose node stopped while it waited for the calls in flight, or while it put the
    /// replica away, was continued: the replacement served after the stop.
    #[test]
    fn mirror_closed_during_a_transfer_has_no_replacement() {
        for closed_after_ms in [0, 300, 700, 1500, 2500, 4000, 30_000] {
            let sim = Simulation::new(1, SimConfig::default());
            let node = sim.add_node("server");
            let done = sim.spawn_on(node, async move {
                let mirror = slow_source().await;
                let host = mirror.clone();
                let write = spawn(async move {
                    let data = buf::alloc(4096).await.freeze();
                    host.write(0, data, false).await
                });
                time::sleep(Duration::from_millis(100)).await;
                let moved = mirror.clone();
                let moving = spawn(async move { moved.begin_transfer().await.map(drop) });
                time::sleep(Duration::from_millis(closed_after_ms)).await;
                let was_closed = mirror.is_closed();
                mirror.close();
                let moved = moving.await.unwrap();
                write.await.unwrap().ok();
                (was_closed, moved)
            });
            let (was_closed, moved) = sim.block_on(async { done.await.unwrap() });
            let refused = Err(RoleError::Refused(OrderRefusal::Closed));
            let expected = if was_closed { Ok(()) } else { refused };
            assert_eq!(moved, expected, "closed after {closed_after_ms} ms");
            assert!(!was_closed || closed_after_ms > 1000, "{closed_after_ms}");
            assert!(was_closed || closed_after_ms < 30_000);
        }
    }

    #[test]
    fn records_are_forgotten_only_if_their_peer_is_known() {
        let [none, b, c, old] = [0, 1, 2, 3].map(|byte| MirrorId([byte; 16]));
        let (stay, add) = (vec![Some(0)], vec![Some(0), None]);
        for (recorded, known_peers, legs, forget) in [
            // The second leg is removed.
            ([b, c], vec![b, c], &stay, Some(vec![1])),
            ([b, c], vec![b, none], &stay, Some(vec![1])),
            ([c, b], vec![none, c], &stay, Some(vec![0])),
            ([b, c], vec![none, none], &stay, None),
            ([none, none], vec![none, none], &stay, Some(vec![])),
            ([b, none], vec![b, none], &stay, Some(vec![])),
            // A peer is added, also after another one was replaced.
            ([b, none], vec![none], &add, Some(vec![])),
            ([b, old], vec![b], &add, Some(vec![1])),
            ([b, old], vec![none], &add, None),
            ([none, none], vec![none], &add, Some(vec![])),
        ] {
            assert_eq!(
                slots_to_forget(recorded, &known_peers, legs),
                forget,
                "{recorded:?} {known_peers:?}"
            );
        }
    }
}

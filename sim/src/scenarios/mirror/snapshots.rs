//! Snapshots of a mirror: of equal content on both nodes, whatever is queued, lost or busy.
//!
//! Left out: pools. The simulated devices take a snapshot by reading themselves, which takes time,
//! so any write that is not held meanwhile shows.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{BlockDevice as _, FileDevice, FileOptions, IoFuture};
use flagstone_mirror::snapshot::peer::PeerSnapshot;
use flagstone_mirror::snapshot::source::{
    MarkerState, OtherPeers, SnapshotError, SnapshotObstacle, SnapshotPoint, WaitingPeer,
};
use flagstone_mirror::state::status::MirrorState;
use flagstone_mirror::wire::peer::{PeerRefusal, PeerRequest};
use flagstone_mirror::wire::snapshot::{SnapshotAction, SnapshotId, SnapshotName, SnapshotRequest};
use flagstone_mirror::{LegSnapshots, Mirror, Mode, PeerOptions, SnapshotFuture};
use flagstone_runtime::{buf, time};
use parking_lot::Mutex;

use super::link::{CallOutcome, Stage};
use super::pair::{BLOCK, BLOCKS, DATA, Pair, fill};

const ID: SnapshotId = SnapshotId([5; 16]);

type Taken = Result<Vec<WaitingPeer>, SnapshotError<()>>;

fn name() -> SnapshotName {
    SnapshotName::new("a").expect("it is short")
}

/// Snapshots of a node's device.
#[derive(Clone, Default)]
struct Copies {
    taken: Arc<Mutex<BTreeMap<SnapshotId, Vec<u8>>>>,
    /// Requests to take a snapshot that are refused first.
    busy: Arc<Mutex<u32>>,
}

impl Copies {
    async fn take(&self, id: SnapshotId) {
        let options = FileOptions { exclusive: false, ..FileOptions::default() };
        let device = FileDevice::open(DATA, &options).expect("a sound disk");
        let mut content = Vec::new();
        for block in 0..BLOCKS {
            let found = device.read(block * BLOCK, buf::alloc(4096).await).await;
            content.extend_from_slice(&found.expect("a sound disk"));
        }
        self.taken.lock().insert(id, content);
    }

    fn content(&self) -> Option<Vec<u8>> {
        self.taken.lock().get(&ID).cloned()
    }

    fn is_busy(&self) -> bool {
        let mut busy = self.busy.lock();
        let is_busy = *busy > 0;
        *busy = busy.saturating_sub(1);
        is_busy
    }
}

impl LegSnapshots for Copies {
    fn order(&self, request: SnapshotRequest) -> SnapshotFuture<()> {
        let (copies, id) = (self.clone(), request.id);
        let exists = self.taken.lock().contains_key(&id);
        IoFuture::ready(Ok(match request.action {
            SnapshotAction::Check => Ok(()),
            SnapshotAction::Take if self.is_busy() => Err(PeerRefusal::NotNow),
            SnapshotAction::Take => {
                return IoFuture::later(async move {
                    copies.take(id).await;
                    Ok(Ok(()))
                });
            }
            SnapshotAction::Find if !exists => Err(PeerRefusal::SnapshotMissing),
            SnapshotAction::Find => Ok(()),
            SnapshotAction::Delete => {
                self.taken.lock().remove(&id);
                Ok(())
            }
        }))
    }

    fn ids(&self, after: SnapshotId) -> SnapshotFuture<Vec<SnapshotId>> {
        let found = self.taken.lock().keys().copied().filter(|id| *id > after).collect();
        IoFuture::ready(Ok(Ok(found)))
    }
}

struct Scene {
    pair: Pair,
    copies: [Copies; 2],
    stop: Rc<Cell<bool>>,
}

impl Scene {
    /// A mirror whose hosts write without a pause.
    fn new(seed: u64, options: fn(&mut PeerOptions)) -> Scene {
        let pair = Pair::new(seed, options);
        let copies: [Copies; 2] = Default::default();
        let scene = Scene { pair, copies, stop: Rc::default() };
        (0..2).for_each(|index| scene.give_snapshots(index));
        for host in 0..8 {
            let (mirror, stop) = (scene.pair.mirror(0), scene.stop.clone());
            scene.pair.sim.spawn_on(scene.pair.nodes[0], async move {
                for number in 0u64.. {
                    if stop.get() {
                        return;
                    }
                    let block = (host + number * 7) % BLOCKS;
                    fill(&mirror, block, (number % 251) as u8 + 1).await.expect("it is queued");
                }
            });
        }
        scene
    }

    fn give_snapshots(&self, index: usize) {
        self.pair.mirror(index).set_leg_snapshots(Arc::new(self.copies[index].clone()));
    }

    fn take(&self) -> Taken {
        self.take_slowly(Duration::ZERO)
    }

    /// The device of the source takes a while.
    fn take_slowly(&self, pause: Duration) -> Taken {
        let copies = self.copies[0].clone();
        self.pair.on(0, move |mirror| async move {
            let point = SnapshotPoint::check::<()>(vec![Mirror::clone(&mirror)], ID, name());
            let local = async move {
                time::sleep(pause).await;
                copies.take(ID).await;
                Ok(())
            };
            point.await?.take(local).await
        })
    }

    fn marker(&self) -> Option<MarkerState> {
        self.pair.mirror(0).snapshot_marker(ID, 0)
    }

    fn until_marker_ended(&self) -> Option<MarkerState> {
        let deadline = self.pair.sim.now() + Duration::from_secs(60);
        while self.marker() == Some(MarkerState::Waiting) {
            self.pair.sim.run_for(Duration::from_millis(1));
            assert!(self.pair.sim.now() < deadline, "the marker waits forever");
        }
        self.marker()
    }

    fn find(&self) -> Result<PeerSnapshot, SnapshotObstacle> {
        self.pair.on(0, |mirror| async move { mirror.find_peer_snapshot(0, (ID, name())).await })
    }

    /// If the target has the snapshot, its content is that of the source.
    fn assert_equal(&self, place: &str) {
        let (own, other) = (self.copies[0].content(), self.copies[1].content());
        let own = own.expect("the source has taken it");
        assert!(other.is_none_or(|other| other == own), "{place}: the content differs");
    }

    fn end(self) {
        self.stop.set(true);
        self.pair.network().heal();
        self.pair.until(0, MirrorState::Mirroring);
        self.pair.clear();
    }
}

/// The link is much slower than the hosts.
fn backlog(peer: &mut PeerOptions) {
    (peer.mode, peer.queue.window_bytes) = (Mode::Async, 1);
    (peer.queue.high_bytes, peer.queue.low_bytes) = (32 << 20, 16 << 20);
}

#[test]
fn async_target_has_same_content_under_load() {
    for seed in 0..12 {
        let scene = Scene::new(seed, |peer| peer.mode = Mode::Async);
        *scene.copies[1].busy.lock() = (seed % 3) as u32;
        scene.pair.sim.run_for(Duration::from_millis(20 + seed));
        scene.take().expect("both can take it");
        assert_eq!(scene.until_marker_ended(), Some(MarkerState::Taken), "{seed}");
        assert!(scene.copies[1].content().is_some(), "{seed}");
        scene.assert_equal(&format!("seed {seed}"));
        assert_eq!(scene.find(), Ok(PeerSnapshot::Present));
        scene.end();
    }
}

/// A request that is in flight has an age, which ends its connection. So the source sends it when
/// the target can answer it.
#[test]
fn marker_is_sent_after_the_backlog() {
    let scene = Scene::new(3, backlog);
    scene.pair.network().set_slow(Duration::from_millis(20));
    // The request begins at the target when it has all that the source had queued before.
    let (own, node) = (scene.copies[0].clone(), scene.pair.nodes[1]);
    let (world, equal) = (scene.pair.sim.world(), Rc::new(Cell::new(None)));
    let seen = equal.clone();
    scene.pair.network().set_watcher(move |to, request, stage| {
        let takes = matches!(request, PeerRequest::Snapshot(request)
            if request.action == SnapshotAction::Take);
        if takes && to == node && stage == Stage::Begins {
            let whole = world.peek(node, DATA, 0, (BLOCKS * BLOCK) as usize);
            let first_pages = whole.chunks(BLOCK as usize).flat_map(|block| block[..4096].to_vec());
            seen.set(Some(own.content() == Some(first_pages.collect())));
        }
    });
    scene.pair.sim.run_for(Duration::from_secs(1));
    let waiting = scene.take().expect("both can take it");
    assert_eq!(waiting.len(), 1, "it waits for the backlog");
    assert_eq!(scene.find(), Ok(PeerSnapshot::Waiting));
    // Another one of this name, after the operator deleted the first one here.
    let again = scene.pair.on(0, |mirror| async move {
        let mirrors = vec![Mirror::clone(&mirror)];
        SnapshotPoint::check::<()>(mirrors, SnapshotId([6; 16]), name()).await.err()
    });
    let why = SnapshotObstacle::NameWaits;
    assert_eq!(again, Some(SnapshotError::Peer { volume: 0, leg: 0, why }));
    assert_eq!(scene.until_marker_ended(), Some(MarkerState::Taken));
    assert_eq!(equal.get(), Some(true), "it was sent before its predecessors were answered");
    scene.assert_equal("backlog");
    scene.end();
}

/// Regression: a marker that waited at the target kept the session of its source attached.
#[test]
fn cut_link_ends_marker_and_attachment() {
    let scene = Scene::new(4, backlog);
    scene.pair.network().set_slow(Duration::from_millis(20));
    scene.pair.sim.run_for(Duration::from_secs(1));
    scene.take().expect("both can take it");
    assert_eq!(scene.marker(), Some(MarkerState::Waiting));
    scene.pair.cut();
    assert_eq!(scene.until_marker_ended(), Some(MarkerState::Lost));
    scene.pair.sim.run_for(Duration::from_secs(2));
    assert!(!scene.pair.mirror(1).has_source(), "the session of the source stays attached");
    scene.pair.network().heal();
    scene.pair.until(0, MirrorState::Mirroring);
    assert_eq!(scene.find(), Ok(PeerSnapshot::Missing));
    assert!(scene.copies[1].content().is_none(), "it was not asked");
    scene.end();
}

/// The target takes the snapshot although its source does not know: nothing that the source writes
/// meanwhile may reach it before.
#[test]
fn lost_answer_leaves_equal_content() {
    for (seed, outcome) in (20..32).zip([CallOutcome::Unanswered, CallOutcome::Lost].repeat(6)) {
        let scene = match seed % 4 {
            0 | 1 => Scene::new(seed, |_| {}),
            _ => Scene::new(seed, |peer| peer.mode = Mode::Async),
        };
        scene.pair.network().set_outcome(move |request| match request {
            PeerRequest::Snapshot(request) if request.action == SnapshotAction::Take => outcome,
            _ => CallOutcome::Arrives,
        });
        scene.pair.sim.run_for(Duration::from_millis(20 + seed));
        let taken = scene.take();
        let unknown = matches!(taken, Err(SnapshotError::Unknown { .. }));
        assert!(unknown, "seed {seed}: {taken:?}");
        scene.pair.until(0, MirrorState::Mirroring);
        let has = outcome == CallOutcome::Unanswered;
        let expected = if has { PeerSnapshot::Present } else { PeerSnapshot::Missing };
        assert_eq!(scene.find(), Ok(expected), "seed {seed}");
        scene.assert_equal(&format!("seed {seed}"));
        scene.end();
    }
}

/// A busy target is asked again, for a limited time, and the mirror continues.
#[test]
fn busy_target_refuses_at_last() {
    let scene = Scene::new(6, |peer| peer.mode = Mode::Async);
    *scene.copies[1].busy.lock() = u32::MAX;
    scene.pair.sim.run_for(Duration::from_millis(20));
    let waiting = scene.take().expect("it waits");
    assert_eq!(waiting.len(), 1);
    let ended = scene.until_marker_ended();
    assert_eq!(ended, Some(MarkerState::Refused(PeerRefusal::NotNow)));
    let disconnects = scene.pair.peer_status(0).disconnects;
    assert_eq!(disconnects, 0, "a busy pool ends no session");
    assert_eq!(scene.find(), Ok(PeerSnapshot::Missing));
    scene.end();
}

/// Regression: a synchronous peer was asked with the rest of the time, and disconnected.
#[test]
fn slow_device_of_source_disconnects_no_peer() {
    let scene = Scene::new(7, |_| {});
    let taken = scene.take_slowly(Duration::from_millis(2500));
    let (why, others) = (SnapshotObstacle::NoTime, OtherPeers::LackIt);
    assert_eq!(taken, Err(SnapshotError::PeerLacks { volume: 0, leg: 0, why, others }));
    assert_eq!(scene.find(), Ok(PeerSnapshot::Missing));
    assert_eq!(scene.pair.peer_status(0).disconnects, 0);
    assert_eq!(scene.pair.state(0), MirrorState::Mirroring);
    scene.end();
}

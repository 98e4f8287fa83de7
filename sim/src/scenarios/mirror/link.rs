//! Simulated link between two mirrors: a [`PeerConnector`] whose messages are delayed and
//! reordered, hang while the link is cut, and arrive even after their sender stopped waiting.
//!
//! It replaces the real TCP session, so wire encoding, authentication and encryption are not tested
//! here.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{IoError, IoFuture, ZeroFlags};
use flagstone_mirror::io::reorder::WriteOrder;
use flagstone_mirror::session::target::TargetSession;
use flagstone_mirror::wire::peer::{PeerAnswer, PeerConnector, PeerRequest, PeerSession};
use flagstone_mirror::{LinkVersion, LinkVersions, Mirror};
use flagstone_runtime::sim::{NodeId, OBSERVER, World};
use flagstone_runtime::sync::Notify;
use flagstone_runtime::{Buf, BufMut, CoreLocal, spawn_detached, time};

/// A session without any message for this time is lost.
const KEEP_ALIVE: Duration = Duration::from_millis(300);

/// Network of all links.
pub(super) struct Network {
    world: World,
    /// Directions that are cut.
    cut: RefCell<BTreeSet<(NodeId, NodeId)>>,
    /// Volumes whose connections are cut, while other volumes' work.
    cut_volumes: RefCell<BTreeSet<usize>>,
    /// Mirrors that each node serves, by volume, with the mirror's life number.
    serving: RefCell<Vec<ServedMirror>>,
    lives: Cell<u64>,
    /// Longest delay of a message.
    slow: Cell<Duration>,
    pub(super) messages: Cell<u64>,
    pub(super) ordered: Cell<Ordered>,
    /// Decides the outcome of requests, for tests that lose particular messages.
    outcome: RefCell<Option<OutcomeOf>>,
    /// Observer of the requests that nodes handle.
    watcher: RefCell<Option<Rc<Watcher>>>,
}

type ServedMirror = (NodeId, usize, u64, Arc<Mirror>);
type OutcomeOf = Box<dyn Fn(&PeerRequest) -> CallOutcome>;
type Watcher = dyn Fn(NodeId, &PeerRequest, Stage);

/// Stage of a request at its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The receiver starts to handle it.
    Begins,
    /// The receiver has carried it out and answers.
    Done,
    /// The receiver refused it, or it failed.
    Refused,
}

/// CallOutcome of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallOutcome {
    /// The request arrives, and so does the answer.
    Arrives,
    /// The request is lost in transit, and the session with it.
    Lost,
    /// The request is carried out. The answer is lost, and the session with it.
    Unanswered,
}

/// Writes with numbers, over all volumes.
#[derive(Clone, Copy, Default)]
pub(super) struct Ordered {
    last: u32,
    in_flight: u64,
    /// The most bytes in flight.
    pub(super) most_in_flight: u64,
    /// Writes that were sent after one with a higher number, even one of an earlier session.
    pub(super) early: u64,
}

/// Handle of the network, held by mirrors.
#[derive(Clone)]
pub(super) struct NetworkHandle(Arc<CoreLocal<Network>>);

impl NetworkHandle {
    pub(super) fn new(world: World) -> NetworkHandle {
        let local = CoreLocal::new();
        local.get_or_init(|| Network {
            world,
            cut: RefCell::default(),
            cut_volumes: RefCell::default(),
            serving: RefCell::default(),
            lives: Cell::new(0),
            slow: Cell::new(Duration::from_micros(300)),
            messages: Cell::new(0),
            ordered: Cell::default(),
            outcome: RefCell::default(),
            watcher: RefCell::default(),
        });
        NetworkHandle(Arc::new(local))
    }

    pub(super) fn network(&self) -> Rc<Network> {
        self.0.get().expect("a simulation has one thread")
    }

    pub(super) fn peer(&self, from: NodeId, to: NodeId) -> Arc<dyn PeerConnector> {
        self.peer_of(0, from, to)
    }

    /// Peer of one of several volumes.
    pub(super) fn peer_of(
        &self,
        volume: usize,
        from: NodeId,
        to: NodeId,
    ) -> Arc<dyn PeerConnector> {
        Arc::new(SimPeer { network: self.clone(), volume, from, to })
    }
}

impl Network {
    /// Registers the mirror that the node serves to its peers.
    pub(super) fn serve(&self, node: NodeId, mirror: Arc<Mirror>) {
        self.serve_volume(node, 0, mirror);
    }

    /// As [`Network::serve`], for one of several volumes.
    pub(super) fn serve_volume(&self, node: NodeId, volume: usize, mirror: Arc<Mirror>) {
        self.lives.set(self.lives.get() + 1);
        self.serving.borrow_mut().retain(|other| (other.0, other.1) != (node, volume));
        self.serving.borrow_mut().push((node, volume, self.lives.get(), mirror));
    }

    /// Unregisters the node, whose process ended.
    pub(super) fn stop(&self, node: NodeId) {
        self.serving.borrow_mut().retain(|(other, ..)| *other != node);
    }

    /// Breaks the reference cycle at the end of the world.
    pub(super) fn clear(&self) {
        self.serving.borrow_mut().clear();
        self.outcome.borrow_mut().take();
        self.watcher.borrow_mut().take();
    }

    pub(super) fn cut(&self, from: NodeId, to: NodeId) {
        self.cut.borrow_mut().insert((from, to));
    }

    pub(super) fn cut_volume(&self, volume: usize) {
        self.cut_volumes.borrow_mut().insert(volume);
    }

    pub(super) fn heal(&self) {
        self.cut.borrow_mut().clear();
        self.cut_volumes.borrow_mut().clear();
    }

    /// Sets the function that decides the outcome of requests.
    #[cfg(test)]
    pub(super) fn set_outcome(&self, outcome: impl Fn(&PeerRequest) -> CallOutcome + 'static) {
        *self.outcome.borrow_mut() = Some(Box::new(outcome));
    }

    /// Sets the observer of the requests that nodes handle.
    pub(super) fn set_watcher(&self, watcher: impl Fn(NodeId, &PeerRequest, Stage) + 'static) {
        *self.watcher.borrow_mut() = Some(Rc::new(watcher));
    }

    fn tell(&self, node: NodeId, request: &PeerRequest, stage: Stage) {
        let watcher = self.watcher.borrow().clone();
        if let Some(watcher) = watcher {
            watcher(node, request, stage);
        }
    }

    fn outcome_of(&self, request: &PeerRequest) -> CallOutcome {
        self.outcome.borrow().as_ref().map_or(CallOutcome::Arrives, |outcome| outcome(request))
    }

    pub(super) fn set_slow(&self, slow: Duration) {
        self.slow.set(slow);
    }

    fn count_ordered(&self, number: u32, len: u64) {
        let Ordered { last, in_flight, most_in_flight, early } = self.ordered.get();
        let in_flight = in_flight + len;
        self.ordered.set(Ordered {
            last: number,
            in_flight,
            most_in_flight: most_in_flight.max(in_flight),
            early: early + u64::from(number < last),
        });
    }

    fn passes(&self, volume: usize, from: NodeId, to: NodeId) -> bool {
        !self.cut.borrow().contains(&(from, to)) && !self.cut_volumes.borrow().contains(&volume)
    }

    fn life(&self, node: NodeId, volume: usize) -> Option<(u64, Arc<Mirror>)> {
        let serving = self.serving.borrow();
        let found = serving.iter().find(|other| (other.0, other.1) == (node, volume));
        found.map(|(_, _, life, mirror)| (*life, mirror.clone()))
    }

    fn delay(&self) -> Duration {
        let longest = self.slow.get();
        let most = if self.world.chance(0.02) { longest * 20 } else { longest };
        self.world.random_span(Duration::from_micros(20), most)
    }
}

struct SimPeer {
    network: NetworkHandle,
    volume: usize,
    from: NodeId,
    to: NodeId,
}

impl PeerConnector for SimPeer {
    fn connect(&self) -> IoFuture<Arc<dyn PeerSession>> {
        let (handle, volume, from, to) = (self.network.clone(), self.volume, self.from, self.to);
        IoFuture::later(async move {
            let network = handle.network();
            time::sleep(network.delay()).await;
            let open = network.passes(volume, from, to) && network.passes(volume, to, from);
            let Some((life, mirror)) = network.life(to, volume).filter(|_| open) else {
                time::sleep(KEEP_ALIVE).await;
                return Err(IoError::Unreachable);
            };
            let local = CoreLocal::new();
            local.get_or_init(|| Wire {
                network: network.clone(),
                volume,
                from,
                to,
                life,
                target: mirror.session(),
                versions: mirror.versions(),
                broken: Cell::new(false),
                lost: Cell::new(false),
                ended: Notify::new(),
                waiting: RefCell::default(),
                calls: Cell::new(0),
            });
            let session = SimSession(Arc::new(local));
            spawn_detached(keep_alive(session.0.clone()));
            Ok(Arc::new(session) as Arc<dyn PeerSession>)
        })
    }
}

/// One session, with both ends.
struct Wire {
    network: Rc<Network>,
    volume: usize,
    from: NodeId,
    to: NodeId,
    life: u64,
    target: Arc<TargetSession>,
    /// Link versions that the target speaks.
    versions: LinkVersions,
    /// A message was lost: calls hang until the session is abandoned.
    broken: Cell<bool>,
    lost: Cell<bool>,
    /// The session was lost.
    ended: Notify,
    /// Calls without an answer, by number: each waits for its own, or a long queue would wake all
    /// of them for every answer.
    waiting: RefCell<BTreeMap<u64, Rc<Notify>>>,
    calls: Cell<u64>,
}

impl Wire {
    fn is_alive(&self) -> bool {
        let network = &self.network;
        let life = network.life(self.to, self.volume).is_some_and(|(life, _)| life == self.life);
        let open = network.passes(self.volume, self.from, self.to)
            && network.passes(self.volume, self.to, self.from);
        life && open && !self.broken.get()
    }

    fn lose(&self) {
        self.lost.set(true);
        self.ended.notify();
        self.waiting.borrow().values().for_each(|call| call.notify());
    }

    /// Registers a call that waits for its answer.
    fn begin_call(&self) -> (u64, Rc<Notify>) {
        let (number, answered) = (self.calls.get(), Rc::new(Notify::new()));
        self.calls.set(number + 1);
        self.waiting.borrow_mut().insert(number, answered.clone());
        (number, answered)
    }
}

async fn keep_alive(wire: Arc<CoreLocal<Wire>>) {
    let Some(wire) = wire.get() else { return };
    let mut silent = Duration::ZERO;
    while !wire.lost.get() {
        let step = Duration::from_millis(50);
        time::sleep(step).await;
        silent = if wire.is_alive() { Duration::ZERO } else { silent + step };
        if silent >= KEEP_ALIVE {
            wire.lose();
        }
    }
}

struct SimSession(Arc<CoreLocal<Wire>>);

impl SimSession {
    /// Carries a call to the other node and its answer back.
    fn call<T: 'static>(
        &self,
        outcome: CallOutcome,
        work: impl FnOnce(&Arc<TargetSession>) -> IoFuture<T> + 'static,
    ) -> IoFuture<T> {
        let Some(wire) = self.0.get() else { return IoFuture::ready(Err(IoError::Unreachable)) };
        if wire.lost.get() {
            return IoFuture::ready(Err(IoError::Unreachable));
        }
        let network = wire.network.clone();
        network.messages.set(network.messages.get() + 1);
        let answer: Rc<RefCell<Option<Result<T, IoError>>>> = Rc::default();
        let (sent, there) = (wire.clone(), answer.clone());
        let (number, answered) = wire.begin_call();
        let arrived = answered.clone();
        // A message in transit has no owner: it arrives even if its sender has died.
        network.world.spawn_on(OBSERVER, async move {
            let network = &sent.network;
            time::sleep(network.delay()).await;
            let arrives = network.passes(sent.volume, sent.from, sent.to)
                && network.life(sent.to, sent.volume).is_some_and(|(life, _)| life == sent.life);
            if !arrives || outcome == CallOutcome::Lost {
                return sent.broken.set(true);
            }
            let target = sent.target.clone();
            let done = network.world.spawn_on(sent.to, async move { work(&target).await });
            let Ok(result) = done.await else { return sent.broken.set(true) };
            time::sleep(network.delay()).await;
            if !network.passes(sent.volume, sent.to, sent.from)
                || outcome == CallOutcome::Unanswered
            {
                return sent.broken.set(true);
            }
            *there.borrow_mut() = Some(result);
            arrived.notify();
        });
        IoFuture::later(async move {
            let lost = || wire.lost.get().then_some(Err(IoError::Unreachable));
            let result = answered.wait_for(|| answer.borrow_mut().take().or_else(lost)).await;
            wire.waiting.borrow_mut().remove(&number);
            result
        })
    }
}

impl PeerSession for SimSession {
    fn ask(&self, request: PeerRequest) -> IoFuture<PeerAnswer> {
        let Some(wire) = self.0.get() else { return IoFuture::ready(Err(IoError::Unreachable)) };
        let needs = match request {
            PeerRequest::ZeroNewSpace { .. } => LinkVersion::ZEROES_NEW_SPACE,
            PeerRequest::Depose { .. } | PeerRequest::Claim { .. } => LinkVersion::DEPOSES,
            PeerRequest::Remove { .. } => LinkVersion::REMOVES,
            PeerRequest::JoinGroup { .. } => LinkVersion::JOINS_GROUPS,
            PeerRequest::BadRange(_) => LinkVersion::REPORTS_BAD_RANGES,
            PeerRequest::Renew { .. } => LinkVersion::RENEWS,
            PeerRequest::Snapshot(_) | PeerRequest::SnapshotIds { .. } => LinkVersion::SNAPSHOTS,
            _ => LinkVersion(0),
        };
        let known = wire.versions.highest() >= needs;
        assert!(known, "a node of {} received a request that it does not know", wire.versions);
        let (network, to) = (wire.network.clone(), wire.to);
        let outcome = network.outcome_of(&request);
        self.call(outcome, move |target| {
            network.tell(to, &request, Stage::Begins);
            let answer = target.ask(request.clone());
            IoFuture::later(async move {
                let answer = answer.await;
                let done = matches!(answer, Ok(Ok(_)));
                network.tell(to, &request, if done { Stage::Done } else { Stage::Refused });
                answer
            })
        })
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.call(CallOutcome::Arrives, move |target| target.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Buf, fua: bool, order: Option<WriteOrder>) -> IoFuture<()> {
        let (network, len) = (self.0.get().map(|wire| wire.network.clone()), data.len() as u64);
        if let (Some(network), Some(order)) = (&network, order) {
            network.count_ordered(order.number, len);
        }
        let call =
            self.call(CallOutcome::Arrives, move |target| target.write(offset, data, fua, order));
        IoFuture::later(async move {
            let done = call.await;
            if let (Some(network), Some(_)) = (network, order) {
                let ordered = network.ordered.get();
                network.ordered.set(Ordered { in_flight: ordered.in_flight - len, ..ordered });
            }
            done
        })
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
        order: Option<WriteOrder>,
    ) -> IoFuture<()> {
        self.call(CallOutcome::Arrives, move |target| {
            target.write_zeroes(offset, len, flags, order)
        })
    }

    fn flush(&self) -> IoFuture<()> {
        self.call(CallOutcome::Arrives, |target| target.flush())
    }

    fn lost(&self) -> IoFuture<()> {
        let Some(wire) = self.0.get() else { return IoFuture::ready(Ok(())) };
        IoFuture::later(async move {
            wire.ended.wait_for(|| wire.lost.get().then_some(())).await;
            Ok(())
        })
    }

    fn close(&self) {
        if let Some(wire) = self.0.get() {
            wire.lose();
        }
    }
}

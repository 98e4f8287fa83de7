//! Conversation harness: a server and its clients in a simulated world, with fuzzed bytes on its
//! connections.
//!
//! The real server runs over the simulated network. Bytes are split at random places, simulated
//! time costs nothing, and the same input gives the same history. Invariant of every server: after
//! its clients have left, their connections and tasks end in bounded time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use flagstone_runtime::net::{Address, Listener, Stream};
use flagstone_runtime::sim::{NodeId, SimConfig, Simulation};
use flagstone_runtime::{Buf, BufMut, SendList, buf, spawn, spawn_detached, time};

use crate::tamper::{self, Tampering};

/// Limit of the pooled memory. A request beyond it fails and gets an error response, which counts
/// as a finding.
const MEMORY_BYTES: usize = 64 << 20;
/// Time without a byte after which the server is considered to have sent everything.
const SETTLED: Duration = Duration::from_millis(5);
/// Time within which a server must release a vanished client: longer than all its timeouts.
const GONE: Duration = Duration::from_secs(300);
/// Bytes that a client receives at a time.
const RECEIVE_BYTES: usize = 64 << 10;

/// Client side of a connection. Keeps everything it receives.
pub(crate) struct Client {
    stream: Stream,
    received: Rc<RefCell<Vec<u8>>>,
    hung_up: Rc<Cell<bool>>,
}

impl Client {
    pub(crate) async fn connect(address: &Address) -> Client {
        let stream = loop {
            match Stream::connect(address).await {
                Ok(stream) => break stream,
                // The server does not listen yet.
                Err(_) => time::sleep(Duration::from_micros(10)).await,
            }
        };
        let received = Rc::new(RefCell::new(Vec::new()));
        let hung_up = Rc::new(Cell::new(false));
        let (into, from, ended) = (received.clone(), stream.clone(), hung_up.clone());
        spawn_detached(async move {
            let mut place: BufMut = buf::alloc(RECEIVE_BYTES).await;
            loop {
                let (result, back) = from.recv(place).await;
                place = back;
                match result {
                    Ok(count) if count > 0 => into.borrow_mut().extend_from_slice(&place[..count]),
                    _ => return ended.set(true),
                }
            }
        });
        Client { stream, received, hung_up }
    }

    /// True once the server has ended the connection. Its last message may be truncated then: a
    /// server that closes with unread bytes sends a reset, as TCP does.
    pub(crate) fn is_hung_up(&self) -> bool {
        self.hung_up.get()
    }

    /// Sends all bytes, unless the server hangs up first.
    pub(crate) async fn send(&self, bytes: &[u8]) {
        let mut list = SendList::new();
        for part in bytes.chunks(16 << 10) {
            let Some(part) = Buf::copy_of(part) else { return };
            list.push(part);
        }
        // A server that hung up does not take the rest.
        let _ = self.stream.send_all(list).await;
    }

    /// Sends in the background, because the server may stop reading.
    pub(crate) fn send_beside(self: &Rc<Self>, bytes: Vec<u8>) {
        let this = self.clone();
        drop(spawn(async move { this.send(&bytes).await }));
    }

    /// Waits until the server pauses, and passes everything received so far to `look`.
    pub(crate) async fn settle<T>(&self, look: impl FnOnce(&[u8]) -> T) -> T {
        loop {
            let before = self.received.borrow().len();
            time::sleep(SETTLED).await;
            if self.received.borrow().len() == before {
                return look(&self.received.borrow());
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stream.shutdown();
    }
}

/// Runs `serve` on every connection that `client` makes to the given address, until `client`
/// returns. Then checks that nothing is left of the connections.
pub(crate) fn run<S, SF, C, CF>(seed: u64, serve: S, client: C)
where
    S: Fn(Stream) -> SF + 'static,
    SF: Future<Output = ()> + 'static,
    C: FnOnce(Address) -> CF,
    CF: Future<Output = ()>,
{
    let world = World::new(seed);
    let address = world.serve(SERVER_PORT, serve);
    world.converse(async move || client(address).await);
}

/// As [`run`], with a relay that tampers with the messages of one side; `client` is Flagstone's
/// own.
pub(crate) fn run_tampered<S, SF, C, CF>(seed: u64, tampering: Tampering, serve: S, client: C)
where
    S: Fn(Stream) -> SF + 'static,
    SF: Future<Output = ()> + 'static,
    C: FnOnce(Address) -> CF,
    CF: Future<Output = ()>,
{
    let world = World::new(seed);
    let server = world.serve(SERVER_PORT, serve);
    let tampering = Rc::new(tampering);
    let address = world.serve(SERVER_PORT + 1, move |stream| {
        tamper::relay(stream, server.clone(), tampering.clone())
    });
    world.converse(async move || client(address).await);
}

const SERVER_PORT: u16 = 4420;

/// A simulated world with one serving node. Clients run on the observer.
struct World {
    simulation: Simulation,
    node: NodeId,
}

impl World {
    fn new(seed: u64) -> World {
        buf::set_memory_limit(MEMORY_BYTES);
        let mut config = SimConfig::default();
        // Several small pieces of a message per segment, and no rare events that only cost time
        // here.
        config.network.segment_bytes = 4096;
        config.network.latency.spike_chance = 0.0;
        let simulation = Simulation::new(seed, config);
        let node = simulation.add_node("server");
        World { simulation, node }
    }

    /// Serves every connection to `port`.
    fn serve<S, SF>(&self, port: u16, serve: S) -> Address
    where
        S: Fn(Stream) -> SF + 'static,
        SF: Future<Output = ()> + 'static,
    {
        let address = Address::Tcp((self.simulation.ip(self.node), port).into());
        let there = address.clone();
        self.simulation.spawn_on(self.node, async move {
            let listener = Listener::bind(&there).expect("a free port");
            while let Ok(stream) = listener.accept().await {
                spawn_detached(serve(stream));
            }
        });
        address
    }

    /// Runs the clients, then checks that everything of them is released.
    fn converse(&self, clients: impl AsyncFnOnce()) {
        let Self { simulation, .. } = self;
        simulation.run_for(Duration::from_millis(1));
        let before = simulation.alive();
        simulation.block_on(clients());
        let gone_at = simulation.now();
        simulation.run_until(Duration::from_secs(1), || {
            let gone = simulation.alive() == before && simulation.connections() == 0;
            assert!(
                gone || simulation.now().since(gone_at) < GONE,
                "something is left of a client that went away: {:?}, was {before:?}\n{}",
                simulation.alive(),
                simulation.report()
            );
            gone
        });
    }
}

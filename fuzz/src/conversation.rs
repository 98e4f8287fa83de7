//! A server and its clients in a simulated world: what a target is told over its connections.
//!
//! The real server runs, over the simulated network: bytes are cut at random places, time passes
//! at once, and a run of the same input is the same history. What is asserted of every server:
//! when its clients have gone, their connections and tasks are gone too, in bounded time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use flagstone_runtime::net::{Address, Listener, Stream};
use flagstone_runtime::sim::{Config, Simulation};
use flagstone_runtime::{Buf, BufMut, SendList, buf, spawn, spawn_detached, time};

/// Pooled memory of the process: more is a finding (the request fails and is answered so).
const MEMORY_BYTES: usize = 64 << 20;
/// Time without a byte after which a server is taken to have said all that it will.
const SETTLED: Duration = Duration::from_millis(5);
/// A server must have let go of a client that went away in this time: every time-out of it and
/// then some.
const GONE: Duration = Duration::from_secs(300);
/// What a client receives at a time, in bytes.
const RECEIVE_BYTES: usize = 64 << 10;

/// One connection as its client has it. Everything that comes is received and kept.
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
                // Not listening yet.
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

    /// Whether the server has ended the connection. What it said last may then be cut short: a
    /// server that ends with bytes unread resets it, as TCP does.
    pub(crate) fn is_hung_up(&self) -> bool {
        self.hung_up.get()
    }

    /// Sends all of it, unless the server hangs up first.
    pub(crate) async fn send(&self, bytes: &[u8]) {
        let mut list = SendList::new();
        for part in bytes.chunks(16 << 10) {
            let Some(part) = Buf::copy_of(part) else { return };
            list.push(part);
        }
        // A server that hung up does not want the rest.
        let _ = self.stream.send_all(list).await;
    }

    /// Sends without waiting for it to be taken: the server may be one that stops reading.
    pub(crate) fn send_beside(self: &Rc<Self>, bytes: Vec<u8>) {
        let this = self.clone();
        drop(spawn(async move { this.send(&bytes).await }));
    }

    /// Waits until the server has nothing more to say for now, and looks at all that it said.
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

/// Runs `serve` on every connection that `client` makes to the address that it is given, until
/// `client` returns; then checks that nothing is left of its connections.
pub(crate) fn run<S, SF, C, CF>(seed: u64, serve: S, client: C)
where
    S: Fn(Stream) -> SF + 'static,
    SF: Future<Output = ()> + 'static,
    C: FnOnce(Address) -> CF,
    CF: Future<Output = ()>,
{
    buf::set_memory_limit(MEMORY_BYTES);
    let mut config = Config::default();
    // Small pieces of a message in each segment; no rare events that only cost time here.
    config.network.segment_bytes = 4096;
    config.network.latency.spike_chance = 0.0;
    let simulation = Simulation::new(seed, config);
    let node = simulation.add_node("server");
    let address = Address::Tcp((simulation.ip(node), 4420).into());
    let there = address.clone();
    simulation.spawn_on(node, async move {
        let listener = Listener::bind(&there).expect("a free port");
        while let Ok(stream) = listener.accept().await {
            spawn_detached(serve(stream));
        }
    });
    simulation.run_for(Duration::from_millis(1));
    let (tasks, operations) = simulation.alive();
    simulation.block_on(client(address));
    let world = simulation.world();
    let deadline = simulation.now();
    simulation.run_until(Duration::from_secs(1), || {
        let gone = world.alive() == (tasks, operations) && world.connections() == 0;
        assert!(
            gone || world.now().since(deadline) < GONE,
            "something is left of a client that went away: {:?}, was {:?}\n{}",
            world.alive(),
            (tasks, operations),
            world.report()
        );
        gone
    });
}

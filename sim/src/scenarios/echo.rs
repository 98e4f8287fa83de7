//! Echo server and its clients, through partitions, resets, kills and power losses.
//!
//! The scenario tests the simulated streams that the other scenarios rely on. It leaves out devices
//! and storage protocols.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_runtime::net::{Address, Listener, Stream};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::sim::{NodeId, SimConfig, Simulation};
use flagstone_runtime::{Buf, buf, random_u64, task, time};

use crate::{Outcome, Scenario};

/// The scenario; the module documentation describes it.
pub const SCENARIO: Scenario = Scenario {
    name: "echo",
    about: "streams give back what was sent, in order, until they say that they failed; all heals",
    run,
};

const CLIENTS: usize = 3;
const LARGEST_BYTES: u64 = 300 << 10;
/// A client drops its connection when an answer takes longer.
const TIMEOUT: Duration = Duration::from_secs(5);

fn run(seed: u64) -> Outcome {
    let sim = Simulation::new(seed, SimConfig::default());
    let server = sim.add_node("server");
    let address = Address::Tcp((sim.ip(server), 7).into());
    sim.spawn_on(server, serve(address.clone()));
    let checks = Rc::new(Cell::new(0));
    let stop = Rc::new(Cell::new(false));
    let mut clients = Vec::new();
    let nodes: Vec<NodeId> = (0..CLIENTS).map(|_| sim.add_node("client")).collect();
    for node in &nodes {
        let client = client(address.clone(), checks.clone(), stop.clone());
        clients.push(sim.spawn_on(*node, client));
    }
    let faults = sim.random_between(1, 8);
    sim.block_on(async {
        for _ in 0..faults {
            time::sleep(sim.random_span(Duration::ZERO, Duration::from_secs(1))).await;
            break_something(&sim, server, &nodes, &address).await;
        }
        sim.heal_all();
        stop.set(true);
        for client in clients {
            client.await.expect("clients do not fail");
        }
        // Connections abandoned by clients must end as well, by a reset or a timeout.
        time::sleep(Duration::from_secs(2000)).await;
    });
    assert_eq!(sim.connections(), 0, "a connection was not released\n{}", sim.report());
    Outcome::of(&sim, checks.get(), faults)
}

async fn break_something(sim: &Simulation, server: NodeId, nodes: &[NodeId], address: &Address) {
    let node = nodes[sim.random_between(0, nodes.len() as u64 - 1) as usize];
    match sim.random_between(0, 5) {
        0 => sim.partition(server, node),
        1 => sim.partition_one_way(server, node),
        2 => sim.partition_one_way(node, server),
        3 => sim.heal_all(),
        4 => sim.reset_connections(server, node),
        _ => {
            if sim.chance(0.5) {
                sim.crash(server)
            } else {
                sim.power_off(server)
            }
            time::sleep(sim.random_span(Duration::ZERO, Duration::from_secs(10))).await;
            sim.restart(server);
            sim.spawn_on(server, serve(address.clone()));
        }
    }
}

async fn serve(address: Address) {
    let listener = Listener::bind(&address).expect("the port is free");
    loop {
        let Ok(stream) = listener.accept().await else { return };
        task::spawn_detached(async move {
            // A peer that vanished without closing its connection is abandoned after this time.
            let patient = Duration::from_secs(30);
            while let Ok((Ok(count @ 1..), data)) =
                time::timeout(patient, stream.recv(buf::alloc(32 << 10).await)).await
            {
                let echo = stream.send_buf(data.freeze().slice(0..count));
                if !matches!(time::timeout(patient, echo).await, Ok(Ok(()))) {
                    return;
                }
            }
        });
    }
}

/// Sends and checks messages until the stop flag is set, then until one exchange succeeds.
async fn client(address: Address, checks: Rc<Cell<u64>>, stop: Rc<Cell<bool>>) {
    loop {
        let connected = time::timeout(TIMEOUT, Stream::connect(&address)).await;
        let Ok(Ok(stream)) = connected else {
            time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let stopping = stop.get();
        while exchange(&stream).await {
            checks.set(checks.get() + 1);
            if stopping {
                return;
            }
            if stop.get() {
                break;
            }
            let pause = Duration::from_millis(random_u64() % 100);
            time::sleep(pause).await;
        }
    }
}

/// One message there and back. Returns false when the connection failed.
async fn exchange(stream: &Stream) -> bool {
    let mut rng = Rng::new(random_u64());
    let len = rng.between(1, LARGEST_BYTES).min(rng.between(1, LARGEST_BYTES)) as usize;
    let mut message = buf::alloc(len).await;
    let tag = rng.next_u64();
    fill(&mut message, tag);
    let message = message.freeze();
    let sender = stream.clone();
    let outgoing: Buf = message.clone();
    let sending =
        flagstone_runtime::spawn(async move { sender.send_buf(outgoing).await }).abort_on_drop();
    let echoed = time::timeout(TIMEOUT, stream.recv_exact(buf::alloc(len).await)).await;
    drop(sending);
    match echoed {
        Ok((Ok(()), data)) => {
            assert!(data[..] == message[..], "the echo of {len} bytes differs");
            true
        }
        _ => false,
    }
}

fn fill(bytes: &mut [u8], tag: u64) {
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for (number, word) in words.iter_mut().enumerate() {
        *word = (tag ^ number as u64).to_le_bytes();
    }
    rest.fill(tag as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::run_seed;

    #[test]
    fn streams_keep_guarantees_and_replay() {
        for seed in 0..3 {
            run_seed(&SCENARIO, seed, true).unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
}

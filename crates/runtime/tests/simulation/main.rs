//! Simulated world: it has the worst-case behavior of the real one, and repeats it for the same
//! seed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use flagstone_runtime::fs::{File, OpenOptions, PunchMode};
use flagstone_runtime::net::{Address, KeepAlive, Listener, Stream};
use flagstone_runtime::sim::{
    DiskConfig, DiskFaults, LinkConfig, NodeId, SimConfig, Simulation, World,
};
use flagstone_runtime::{Buf, RecvList, SendList, alive, buf, random_u64, spawn, task, time};

mod disks;
mod loss;
mod nodes;
mod streams;
mod worlds;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const DISK: &str = "/dev/disk";

fn two_nodes(seed: u64) -> (Simulation, NodeId, NodeId) {
    let sim = Simulation::new(seed, SimConfig::default());
    let (a, b) = (sim.add_node("a"), sim.add_node("b"));
    (sim, a, b)
}

fn port(world: &World, node: NodeId, port: u16) -> Address {
    Address::Tcp((world.ip(node), port).into())
}

async fn filled(len: usize, value: u8) -> Buf {
    let mut buf = buf::alloc(len).await;
    buf.fill(value);
    buf.freeze()
}

/// Echoes received data on every connection.
async fn echo_server(address: Address) {
    let listener = Listener::bind(&address).unwrap();
    while let Ok(stream) = listener.accept().await {
        task::spawn_detached(async move {
            loop {
                let (result, buf) = stream.recv(buf::alloc(65536).await).await;
                let Ok(count @ 1..) = result else { return };
                if stream.send_buf(buf.freeze().slice(0..count)).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// Connects as soon as the address has a listener.
async fn connect(address: &Address) -> Stream {
    loop {
        match Stream::connect(address).await {
            Ok(stream) => return stream,
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionRefused),
        }
    }
}

/// A pair of connected streams: (a's, b's).
async fn pair(world: &World, a: NodeId, b: NodeId) -> (Stream, Stream) {
    pair_at(world, a, b, 1).await
}

async fn pair_at(world: &World, a: NodeId, b: NodeId, number: u16) -> (Stream, Stream) {
    let address = port(world, b, number);
    let there = address.clone();
    let accepted = world.spawn_on(b, async move {
        let listener = Listener::bind(&there).unwrap();
        listener.accept().await.unwrap()
    });
    let connected = world.spawn_on(a, async move { connect(&address).await });
    (connected.await.unwrap(), accepted.await.unwrap())
}

async fn recv(stream: &Stream) -> std::io::Result<usize> {
    stream.recv(buf::alloc(65536).await).await.0
}

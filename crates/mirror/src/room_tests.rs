//! What is zeroed, and what is not.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::{FileDevice, FileOptions};
use flagstone_runtime::sim::{Config, DiskConfig, NodeId, Simulation};

use super::*;
use crate::id::Uuid;
use crate::limits::HOT_MIN;
use crate::replica::{Create, Replica};
use crate::shape::{Shape, layout};

const DATA: &str = "/dev/data";
const OLD: u64 = 600 << 12;
const NEW: u64 = 6 << 20;

fn device() -> SharedDevice {
    FileDevice::open(DATA, &FileOptions::default()).expect("the disk is free")
}

fn shape() -> Shape {
    Shape { usable_bytes: 4096, bit_bytes: 8192, region_bytes: 8192, hot_regions: HOT_MIN }
}

fn usable(device_bytes: u64) -> u64 {
    layout(device_bytes, &shape()).expect("room").usable_bytes
}

fn on<T: 'static>(sim: &Simulation, node: NodeId, work: impl Future<Output = T> + 'static) -> T {
    let task = sim.spawn_on(node, work);
    sim.block_on(task).expect("nobody ends it")
}

/// An open replica, on a device that has grown since and is full of something: the metadata is where
/// the device ended before.
fn world(seed: u64) -> (Simulation, NodeId, Replica) {
    let sim = Simulation::new(seed, Config::default());
    let node = sim.add_node("node");
    sim.add_disk(node, DATA, DiskConfig::block_device(OLD));
    sim.poke(node, DATA, 0, &vec![0xee; OLD as usize]);
    on(&sim, node, async {
        let create = Create { volume: Uuid([7; 16]), with_data: true, shape: shape() };
        Replica::create(device(), None, create).await.expect("a sound disk");
    });
    let replica = on(&sim, node, open());
    sim.grow_disk(node, DATA, NEW);
    sim.poke(node, DATA, OLD, &vec![0xdd; (NEW - OLD) as usize]);
    (sim, node, replica)
}

async fn open() -> Replica {
    Replica::open(device(), None).await.expect("a sound disk")
}

/// The bits of a larger volume that was opened.
fn named(replica: &Replica) -> Vec<u64> {
    let bits = replica.superblock().shape.bits();
    (0..bits).filter(|bit| replica.bits().any(*bit..bit + 1)).collect()
}

#[test]
fn what_was_zeroed_on_an_open_replica_is_no_difference() {
    for restarts in [false, true] {
        let (sim, node, replica) = world(1);
        let cleared = on(&sim, node, async move {
            assert_eq!(replica.clear_room(2 * NEW).await, Err(IoError::OutOfRange));
            assert_eq!(replica.cleared_bytes(), usable(OLD));
            replica.clear_room(usable(NEW)).await.expect("a sound disk");
            replica.retire().await;
            let cleared = replica.cleared_bytes();
            drop(replica);
            if restarts { open().await.cleared_bytes() } else { cleared }
        });
        on(&sim, node, async move {
            Replica::resize(&device(), None, usable(NEW), cleared, |_| {}).await.expect("room");
            let replica = open().await;
            let new = usable(OLD) / 8192..usable(NEW).div_ceil(8192);
            let expected: Vec<u64> = if restarts { new.collect() } else { Vec::new() };
            assert_eq!(named(&replica), expected, "after a restart {restarts}");
        });
        // It is durable.
        sim.power_off(node);
        let found = sim.peek(node, DATA, 0, usable(NEW) as usize);
        let (before, after) = found.split_at(usable(OLD) as usize);
        assert!(before.iter().all(|byte| *byte == 0xee), "hosts' data stays");
        assert!(after.iter().all(|byte| *byte == 0), "what is new is zero");
    }
}

#[test]
fn what_was_begun_by_one_that_has_ended_zeroes_nothing_later() {
    let mut cut = 0;
    for delay_us in (0..8000).step_by(400) {
        let (sim, node, replica) = world(delay_us);
        let done = Rc::new(Cell::new(None));
        let said = done.clone();
        let (clearing, retiring) = (replica.clone(), replica);
        sim.spawn_on(node, async move {
            said.set(Some(clearing.clear_room(usable(NEW)).await));
        });
        sim.run_for(Duration::from_micros(delay_us));
        on(&sim, node, async move { retiring.retire().await });
        // From here on it may be hosts' data.
        sim.poke(node, DATA, OLD, &vec![0xaa; (NEW - OLD) as usize]);
        sim.run_for(Duration::from_secs(1));
        let found = sim.peek(node, DATA, OLD, (NEW - OLD) as usize);
        assert!(found.iter().all(|byte| *byte == 0xaa), "zeroed after {delay_us} µs");
        cut += u32::from(done.get() == Some(Err(IoError::Unreachable)));
    }
    assert!(cut > 1, "none was cut short");
}

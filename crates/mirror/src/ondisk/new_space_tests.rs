//! Zeroing of new space.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::{FileDevice, FileOptions};
use flagstone_runtime::sim::{DiskConfig, NodeId, SimConfig, Simulation};

use super::*;
use crate::id::MirrorId;
use crate::limits::ACTIVE_REGIONS_MIN;
use crate::manage::replica::{CreateReplica, Replica};
use crate::ondisk::layout::{ReplicaGeometry, layout};

const DATA: &str = "/dev/data";
const OLD: u64 = 600 << 12;
const NEW: u64 = 6 << 20;

fn device() -> SharedDevice {
    FileDevice::open(DATA, &FileOptions::default()).expect("the device opens")
}

fn geometry() -> ReplicaGeometry {
    ReplicaGeometry {
        usable_bytes: 4096,
        bit_bytes: 8192,
        region_bytes: 8192,
        active_regions_max: ACTIVE_REGIONS_MIN,
    }
}

fn usable(device_bytes: u64) -> u64 {
    layout(device_bytes, &geometry()).expect("room").usable_bytes
}

fn on<T: 'static>(sim: &Simulation, node: NodeId, work: impl Future<Output = T> + 'static) -> T {
    let task = sim.spawn_on(node, work);
    sim.block_on(task).expect("the task completes")
}

/// An open replica on a device that has grown since and is filled with other data: the metadata is
/// at the old end.
fn world(seed: u64) -> (Simulation, NodeId, Replica) {
    let sim = Simulation::new(seed, SimConfig::default());
    let node = sim.add_node("node");
    sim.add_disk(node, DATA, DiskConfig::block_device(OLD));
    sim.poke(node, DATA, 0, &vec![0xee; OLD as usize]);
    on(&sim, node, async {
        let create = CreateReplica {
            volume: MirrorId([7; 16]),
            with_data: true,
            zeroes: false,
            geometry: geometry(),
        };
        Replica::create(device(), None, create).await.expect("the disk works");
    });
    let replica = on(&sim, node, open());
    sim.grow_disk(node, DATA, NEW);
    sim.poke(node, DATA, OLD, &vec![0xdd; (NEW - OLD) as usize]);
    (sim, node, replica)
}

async fn open() -> Replica {
    Replica::open(device(), None).await.expect("the disk works")
}

/// The set bits of a larger volume after it was opened.
fn named(replica: &Replica) -> Vec<u64> {
    let bits = replica.superblock().geometry.bits();
    (0..bits).filter(|bit| replica.bits().any(*bit..bit + 1)).collect()
}

#[test]
fn zeroed_space_is_not_out_of_sync_after_growth() {
    for restarts in [false, true] {
        let (sim, node, replica) = world(1);
        let cleared = on(&sim, node, async move {
            assert_eq!(replica.zero_new_space(2 * NEW).await, Err(IoError::OutOfRange));
            assert_eq!(replica.zeroed_bytes(), usable(OLD));
            replica.zero_new_space(usable(NEW)).await.expect("the disk works");
            replica.retire().await;
            let cleared = replica.zeroed_bytes();
            drop(replica);
            if restarts { open().await.zeroed_bytes() } else { cleared }
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
        assert!(before.iter().all(|byte| *byte == 0xee), "host data is unchanged");
        assert!(after.iter().all(|byte| *byte == 0), "the new space is zero");
    }
}

#[test]
fn no_zeroing_after_end() {
    let mut cut = 0;
    for delay_us in (0..8000).step_by(400) {
        let (sim, node, replica) = world(delay_us);
        let done = Rc::new(Cell::new(None));
        let said = done.clone();
        let (zeroing, retiring) = (replica.clone(), replica);
        sim.spawn_on(node, async move {
            said.set(Some(zeroing.zero_new_space(usable(NEW)).await));
        });
        sim.run_for(Duration::from_micros(delay_us));
        on(&sim, node, async move { retiring.retire().await });
        // From here on it may be host data.
        sim.poke(node, DATA, OLD, &vec![0xaa; (NEW - OLD) as usize]);
        sim.run_for(Duration::from_secs(1));
        let found = sim.peek(node, DATA, OLD, (NEW - OLD) as usize);
        assert!(found.iter().all(|byte| *byte == 0xaa), "zeroed after {delay_us} µs");
        cut += u32::from(done.get() == Some(Err(IoError::Unreachable)));
    }
    assert!(cut > 1, "none was cut short");
}

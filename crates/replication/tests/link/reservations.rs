//! The record of reservations on both nodes: after failovers, lost links, and beside a peer that
//! keeps none.

use flagstone_blockdev::IoFuture;
use flagstone_mirror::{ReservationObstacle, ReservationRecords};
use parking_lot::Mutex;

use super::*;

/// A durable record, which outlives its node.
#[derive(Default)]
pub(crate) struct Record(Mutex<Vec<u8>>);

impl ReservationRecords for Record {
    fn record(&self) -> Vec<u8> {
        self.0.lock().clone()
    }

    fn replace(&self, record: Vec<u8>) -> IoFuture<()> {
        *self.0.lock() = record;
        IoFuture::ready(Ok(()))
    }
}

fn record(world: &World, index: usize) -> Vec<u8> {
    world.reservations.borrow()[index].as_ref().expect("it keeps one").record()
}

/// A change by a host, which publishes it at its end.
fn change(world: &World, index: usize, next: &[u8]) -> Result<(), IoError> {
    let changed = begin_change(world, index, next);
    world.sim.block_on(changed).expect("the task completes")
}

fn begin_change(
    world: &World,
    index: usize,
    next: &[u8],
) -> flagstone_runtime::JoinHandle<Result<(), IoError>> {
    let (mirror, next) = (world.mirror(index), next.to_vec());
    let here = world.reservations.borrow()[index].clone().expect("it keeps one");
    world.sim.spawn_on(world.nodes[index], async move {
        mirror.check_reservable().expect("it serves");
        mirror.replicate_reservations(&next).await?;
        *here.0.lock() = next;
        Ok(())
    })
}

fn long(byte: u8) -> Vec<u8> {
    (0..10_000).map(|at| at as u8 ^ byte).collect()
}

#[test]
fn reservations_survive_failovers() {
    for mode in [Mode::Sync, Mode::Async] {
        let world = World::new(1, mode);
        world.until_mirroring(0);
        for next in [long(1), vec![7], long(2)] {
            change(&world, 0, &next).unwrap();
            assert_eq!(record(&world, 1), next, "before the host is answered");
        }
        assert_eq!(world.mirror(1).check_reservable(), Err(ReservationObstacle::NotServing));
        world.fail_over_to(1);
        change(&world, 1, &[3]).unwrap();
        world.sim.restart(world.nodes[0]);
        world.start(0);
        world.until_mirroring(1);
        assert_eq!(record(&world, 0), [3]);
    }
}

/// No write was lost, so that only the reservations tell that the peer is out of date.
#[test]
fn peer_without_change_is_out_of_date() {
    for (crashes, seed) in [(false, 2), (true, 3)] {
        let world = World::new(seed, Mode::Sync);
        world.until_mirroring(0);
        change(&world, 0, &[1]).unwrap();
        world.sim.partition(world.nodes[0], world.nodes[1]);
        let cut = world.sim.now();
        change(&world, 0, &long(2)).unwrap();
        let held = world.sim.now() - cut;
        assert!(held <= 2 * TIMEOUT + MOMENT, "the host waited for {held:?}");
        assert_eq!(record(&world, 1), [1]);
        if crashes {
            world.stop(0);
            world.sim.heal(world.nodes[0], world.nodes[1]);
            world.sim.run_for(Duration::from_secs(5));
            world.sim.restart(world.nodes[0]);
            world.start(0);
        } else {
            world.sim.heal(world.nodes[0], world.nodes[1]);
        }
        world.until_mirroring(0);
        assert_eq!(record(&world, 1), long(2));
    }
}

/// The link is lost at any moment of a change. Then either no peer has it in the end, or all.
#[test]
fn lost_link_ends_no_change_early() {
    for moment in 0..40u32 {
        let world = World::new(u64::from(moment) + 10, Mode::Sync);
        world.until_mirroring(0);
        let changed = begin_change(&world, 0, &long(5));
        world.sim.run_for(Duration::from_micros(25) * moment);
        world.sim.partition(world.nodes[0], world.nodes[1]);
        if moment % 2 == 0 {
            world.sim.run_for(Duration::from_millis(u64::from(moment) * 60));
            world.sim.heal(world.nodes[0], world.nodes[1]);
        }
        world.sim.block_on(changed).expect("the task completes").unwrap();
        world.sim.heal(world.nodes[0], world.nodes[1]);
        world.until_mirroring(0);
        assert_eq!(record(&world, 1), long(5), "moment {moment}");
    }
}

#[test]
fn peer_without_reservations_is_refused() {
    let world = World::new(5, Mode::Sync);
    world.until_mirroring(0);
    world.reservations.borrow_mut()[1] = None;
    world.stop(1);
    world.sim.restart(world.nodes[1]);
    world.start(1);
    world.until_mirroring(0);
    assert_eq!(world.mirror(0).check_reservable(), Err(ReservationObstacle::Peer));
    world.stop(1);
    world.sim.run_for(2 * TIMEOUT);
    change(&world, 0, &[1]).unwrap();
    world.sim.restart(world.nodes[1]);
    world.start(1);
    world.sim.run_for(Duration::from_secs(20));
    assert_ne!(world.mirror(0).state(0), MirrorState::Mirroring, "it would lose them");
    change(&world, 0, &[]).unwrap();
    world.until_mirroring(0);
}

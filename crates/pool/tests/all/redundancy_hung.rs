//! Pools with redundancy: devices that do not answer, and calls that end late.

use std::time::Duration;

use flagstone_pool::{CreateOptions, LegState, NamedDevice, Pool, Redundancy};
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{block_on, spawn_detached, time};

use crate::gate::{Call, Gate, gated, is_superblock};
use crate::redundancy::{
    Disk, crashed, create_on, disk, fill, holds, open_any, options, read, rebuilt, write,
};

/// Runs a test in simulated time.
fn simulated(test: impl Future<Output = ()> + 'static) {
    let sim = Simulation::new(1, SimConfig::default());
    let node = sim.add_node("server");
    let done = sim.spawn_on(node, test);
    sim.block_on(async { done.await.unwrap() });
}

/// Holds the next write, and no other.
fn hold_next_write(gate: &Gate) {
    let mut is_next = true;
    gate.hold(move |call| matches!(call, Call::Write { .. }) && std::mem::take(&mut is_next));
}

fn leg(pool: &Pool, leg: usize) -> LegState {
    pool.status().redundancy.unwrap().legs[leg].state
}

/// A write of an earlier opening could overwrite what the next one wrote.
#[test]
fn device_with_calls_of_an_earlier_opening_is_not_used() {
    simulated(async {
        let (a, b) = (disk("/a"), disk("/b"));
        let (gate, gated) = gated(&b);
        let devices = vec![a.named.clone(), gated];
        let (pool, volume) = create_on(devices.clone()).await;
        fill(&volume, 1).await;
        hold_next_write(&gate);
        let unacknowledged = time::timeout(Duration::from_secs(1), write(&volume, 1, 1)).await;
        assert!(unacknowledged.is_err());
        drop((pool, volume));
        let pool = open_any(devices.clone()).await.unwrap();
        assert_eq!(leg(&pool, 1), LegState::Missing);
        let volume = pool.open_volume("db").unwrap();
        fill(&volume, 2).await;
        drop((pool, volume));
        gate.release();
        gate.is_idle().await;
        let pool = open_any(devices).await.unwrap();
        rebuilt(&pool).await;
        holds(&pool.open_volume("db").unwrap(), 2).await;
    });
}

/// A device failed while another of its calls was in progress, which had not reached its limit.
#[test]
fn failed_device_is_not_reused_before_its_calls_end() {
    block_on(async {
        let (a, b) = (disk("/a"), disk("/b"));
        let (gate, gated) = gated(&b);
        let (pool, volume) = create_on(vec![a.named.clone(), gated.clone()]).await;
        fill(&volume, 1).await;
        hold_next_write(&gate);
        let begin_write = |block| {
            let volume = volume.clone();
            spawn_detached(async move {
                let _late = write(&volume, block, 2).await;
            });
        };
        begin_write(1);
        gate.holds_a_call().await;
        b.control.set_unreachable(true);
        begin_write(2);
        while leg(&pool, 1) != LegState::Missing {
            time::sleep(Duration::from_millis(1)).await;
        }
        b.control.set_unreachable(false);
        b.control.reopen();
        let refused = pool.replace_device("/b", gated.clone(), true).await.unwrap_err();
        assert!(refused.to_string().contains("have not ended"), "{refused}");
        gate.release();
        gate.is_idle().await;
        pool.replace_device("/b", gated, true).await.unwrap();
        rebuilt(&pool).await;
        fill(&volume, 3).await;
        holds(&volume, 3).await;
    })
    .unwrap();
}

fn is_read(call: Call) -> bool {
    matches!(call, Call::Read { .. })
}

/// Releases a gate after this time.
fn release_after(gate: &Gate, seconds: u64) {
    let gate = gate.clone();
    spawn_detached(async move {
        time::sleep(Duration::from_secs(seconds)).await;
        gate.release();
    });
}

/// The time limit of legs once applied to the superblocks of all pools.
#[test]
fn slow_device_of_a_plain_pool_is_awaited() {
    simulated(async {
        let a = disk("/a");
        let (gate, gated) = gated(&a);
        let plain = CreateOptions { redundancy: Redundancy::None, ..options() };
        drop(Pool::create(vec![gated.clone()], &plain).await.unwrap());
        gate.hold(is_read);
        release_after(&gate, 25);
        Pool::open(vec![gated]).await.unwrap();
    });
}

#[test]
fn opening_continues_without_a_silent_device() {
    for silent in 0..2 {
        simulated(async move {
            let disks = [disk("/a"), disk("/b")];
            let (gate, gated) = gated(&disks[silent]);
            let mut devices = vec![disks[0].named.clone(), disks[1].named.clone()];
            devices[silent] = gated;
            let (pool, volume) = create_on(devices.clone()).await;
            fill(&volume, 1).await;
            drop((pool, volume));
            gate.hold(is_read);
            let pool = open_any(devices).await.unwrap();
            assert_eq!(leg(&pool, silent), LegState::Missing);
            holds(&pool.open_volume("db").unwrap(), 1).await;
        });
    }
}

/// A stall of a controller that has both legs once failed the pool after ten seconds.
#[test]
fn stall_of_both_legs_fails_neither() {
    simulated(async {
        let disks = [disk("/a"), disk("/b")];
        let gates = [gated(&disks[0]), gated(&disks[1])];
        let named = gates.each_ref().map(|(_, named)| named.clone());
        let (pool, volume) = create_on(named.to_vec()).await;
        fill(&volume, 1).await;
        for (gate, _) in &gates {
            gate.hold(|_| true);
            release_after(gate, 25);
        }
        write(&volume, 1, 2).await.unwrap();
        for (gate, _) in &gates {
            gate.hold(|_| true);
            release_after(gate, 25);
        }
        assert_eq!(read(&volume, 1).await, Ok(2));
        for (gate, _) in &gates {
            gate.hold(|_| true);
            release_after(gate, 25);
        }
        pool.checkpoint().await.unwrap();
        assert_eq!([leg(&pool, 0), leg(&pool, 1)], [LegState::InSync; 2]);
        assert_eq!(pool.status().failed, None);
    });
}

#[test]
fn stall_of_the_last_leg_is_awaited() {
    simulated(async {
        let (a, b) = (disk("/a"), disk("/b"));
        let (gate, gated) = gated(&a);
        let (pool, volume) = create_on(vec![gated, b.named.clone()]).await;
        fill(&volume, 1).await;
        b.control.set_unreachable(true);
        fill(&volume, 2).await;
        gate.hold(|_| true);
        release_after(&gate, 25);
        write(&volume, 1, 3).await.unwrap();
        gate.hold(|_| true);
        release_after(&gate, 25);
        pool.checkpoint().await.unwrap();
        assert_eq!(read(&volume, 1).await, Ok(3));
        assert_eq!(pool.status().failed, None);
    });
}

/// Each hung leg once cost an update ten seconds.
#[test]
fn several_hung_legs_delay_an_update_once() {
    simulated(async {
        let disks: Vec<Disk> = ["/a", "/b", "/c", "/d", "/e", "/f"].map(disk).into();
        let gates: Vec<(Gate, NamedDevice)> = disks.iter().map(gated).collect();
        let named = gates.iter().map(|(_, named)| named.clone()).collect();
        let (pool, volume) = create_on(named).await;
        fill(&volume, 1).await;
        for second in [1, 3, 5] {
            gates[second].0.hold(is_superblock);
        }
        let begun = time::now();
        pool.checkpoint().await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
        fill(&volume, 2).await;
        holds(&volume, 2).await;
        for second in [1, 3, 5] {
            assert_eq!(leg(&pool, second), LegState::Missing);
        }
    });
}

/// The copies that an interrupted update lacks were once written without a time limit.
#[test]
fn opening_continues_if_a_superblock_write_hangs() {
    for hung in 0..2 {
        simulated(async move {
            let disks = [disk("/a"), disk("/b")];
            let gates = [gated(&disks[0]), gated(&disks[1])];
            let named = gates.each_ref().map(|(_, named)| named.clone());
            let (pool, volume) = create_on(named.to_vec()).await;
            fill(&volume, 1).await;
            gates[hung].0.hold(is_superblock);
            let interrupted = time::timeout(Duration::from_secs(1), pool.checkpoint()).await;
            assert!(interrupted.is_err());
            let crashed = [crashed(&disks[0]).await, crashed(&disks[1]).await];
            let mut devices = crashed.each_ref().map(|disk| disk.named.clone());
            let (gate, again) = gated(&crashed[hung]);
            devices[hung] = again;
            gate.hold(is_superblock);
            let opening = open_any(devices.to_vec());
            let pool = time::timeout(Duration::from_secs(60), opening).await.unwrap().unwrap();
            assert_eq!(leg(&pool, hung), LegState::Missing);
            holds(&pool.open_volume("db").unwrap(), 1).await;
        });
    }
}

/// The stall begins between the ends of two writes: one was complete on one leg, and one on the
/// other. Each write once gave up the other leg, and the pool failed.
#[test]
fn stall_after_crossed_writes_fails_neither() {
    simulated(async {
        let disks = [disk("/a"), disk("/b")];
        let gates = [gated(&disks[0]), gated(&disks[1])];
        let named = gates.each_ref().map(|(_, named)| named.clone());
        let (pool, volume) = create_on(named.to_vec()).await;
        fill(&volume, 1).await;
        for (passes, (gate, _)) in [0, 1].into_iter().zip(&gates) {
            let mut writes = 0;
            gate.hold(move |call| {
                let number = writes;
                writes += usize::from(matches!(call, Call::Write { .. }));
                !(matches!(call, Call::Write { .. }) && number == passes)
            });
        }
        let begin_write = |block| {
            let volume = volume.clone();
            flagstone_runtime::spawn(async move { write(&volume, block, 2).await })
        };
        let first = begin_write(1);
        gates[1].0.holds_a_call().await;
        let second = begin_write(2);
        gates[0].0.holds_a_call().await;
        gates.iter().for_each(|(gate, _)| release_after(gate, 25));
        assert_eq!(first.await.unwrap(), Ok(()));
        assert_eq!(second.await.unwrap(), Ok(()));
        assert_eq!([leg(&pool, 0), leg(&pool, 1)], [LegState::InSync; 2]);
        assert_eq!(pool.status().failed, None);
    });
}

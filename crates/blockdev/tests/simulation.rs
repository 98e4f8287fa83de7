//! File device on a simulated disk that fails and loses power.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, FileDevice, FileOptions, IoError, ZeroFlags};
use flagstone_runtime::sim::{DiskConfig, DiskFaults, NodeId, SimConfig, Simulation};
use flagstone_runtime::{Buf, buf, random_u64};

const DISK: &str = "/dev/disk";
const BLOCK_BYTES: u64 = 512;
const TASKS: u64 = 6;
const BLOCKS_PER_TASK: u64 = 8;
/// Number of simulated histories; each takes milliseconds.
const SEEDS: u64 = 200;

/// Possible values of a block after a power loss: the durable one, or any written since.
#[derive(Clone, Default)]
struct Block {
    durable: u8,
    newest: u8,
    since: Vec<u8>,
}

type Ledger = Rc<RefCell<Vec<Block>>>;

fn open(direct: bool) -> Arc<FileDevice> {
    let options = FileOptions { block_bytes: Some(512), direct, ..FileOptions::default() };
    FileDevice::open(DISK, &options).unwrap()
}

fn start(seed: u64) -> (Simulation, NodeId) {
    let sim = Simulation::new(seed, SimConfig::default());
    let node = sim.add_node("server");
    sim.add_disk(node, DISK, DiskConfig::block_device(1 << 20));
    (sim, node)
}

/// Writes, zeroes and flushes the blocks of one task until a call fails, and records which values
/// are durable.
async fn work(device: Arc<FileDevice>, ledger: Ledger, task: u64) -> Result<(), IoError> {
    let mine = task * BLOCKS_PER_TASK..(task + 1) * BLOCKS_PER_TASK;
    for step in 1u64.. {
        let block = mine.start + random_u64() % BLOCKS_PER_TASK;
        let (index, offset) = (block as usize, block * BLOCK_BYTES);
        let value = (step % 255 + 1) as u8;
        let fua = random_u64().is_multiple_of(5);
        let note = |value| ledger.borrow_mut()[index].since.push(value);
        let value = match random_u64() % 10 {
            0..2 => {
                device.flush().await?;
                ledger.borrow_mut()[mine.start as usize..mine.end as usize]
                    .iter_mut()
                    .for_each(settle);
                continue;
            }
            2 => {
                note(0);
                let flags = ZeroFlags { fua, may_deallocate: step % 2 == 0, fast_only: false };
                device.write_zeroes(offset, BLOCK_BYTES, flags).await?;
                0
            }
            _ => {
                note(value);
                let data = Buf::copy_of(&[value; BLOCK_BYTES as usize]).unwrap();
                device.write(offset, data, fua).await?;
                value
            }
        };
        let block = &mut ledger.borrow_mut()[index];
        block.newest = value;
        if fua {
            settle(block);
        }
    }
    Ok(())
}

/// All completed changes are durable.
fn settle(block: &mut Block) {
    block.durable = block.newest;
    block.since.clear();
}

async fn check(device: &FileDevice, ledger: &Ledger, seed: u64) {
    let bytes = TASKS * BLOCKS_PER_TASK * BLOCK_BYTES;
    let read = device.read(0, buf::alloc(bytes as usize).await).await.unwrap();
    for (number, part) in read.chunks(BLOCK_BYTES as usize).enumerate() {
        let mut ledger = ledger.borrow_mut();
        let block = &mut ledger[number];
        let value = part[0];
        assert!(part.iter().all(|byte| *byte == value), "seed {seed}: block {number} is torn");
        let known = value == block.durable || block.since.contains(&value);
        assert!(known, "seed {seed}: block {number} holds {value}, {} is durable", block.durable);
        (block.newest, block.durable) = (value, value);
        block.since.clear();
    }
    device.flush().await.unwrap();
}

fn history(seed: u64, faults: DiskFaults) {
    let (sim, node) = start(seed);
    let ledger: Ledger =
        Rc::new(RefCell::new(vec![Block::default(); (TASKS * BLOCKS_PER_TASK) as usize]));
    for _ in 0..3 {
        let tasks = ledger.clone();
        sim.set_faults(node, DISK, faults.clone());
        let (direct, faulty) = (seed.is_multiple_of(2), faults != DiskFaults::default());
        drop(sim.spawn_on(node, async move {
            let device = open(direct);
            for task in 0..TASKS {
                let work = work(device.clone(), tasks.clone(), task);
                flagstone_runtime::spawn_detached(async move {
                    let ended = work.await;
                    assert!(faulty, "a sound disk failed a call: {ended:?}");
                });
            }
        }));
        sim.run_for(sim.random_span(Duration::from_micros(10), Duration::from_millis(40)));
        sim.power_off(node);
        sim.set_faults(node, DISK, DiskFaults::default());
        sim.restart(node);
        let found = ledger.clone();
        let checked = sim.spawn_on(node, async move { check(&open(direct), &found, seed).await });
        sim.block_on(async { checked.await.unwrap() });
        let settled = ledger.borrow().iter().all(|block| block.since.is_empty());
        assert!(settled, "the check leaves what is on the disk");
        sim.power_off(node);
        sim.restart(node);
    }
}

#[test]
fn durable_data_survives_power_loss() {
    for seed in 0..SEEDS {
        history(seed, DiskFaults::default());
    }
}

#[test]
fn concurrent_flushes_report_own_outcome() {
    for seed in 0..SEEDS {
        let faults = DiskFaults { flush_errors: 0.2, write_errors: 0.01, ..DiskFaults::default() };
        history(seed, faults);
    }
}

#[test]
fn failed_flush_poisons_file_device_until_reopened() {
    for direct in [true, false] {
        let (sim, node) = start(1);
        let world = sim.world();
        let faulty = sim.spawn_on(node, async move {
            let data = || Buf::copy_of(&[7; 512]).unwrap();
            let device = open(direct);
            device.write(0, data(), false).await.unwrap();
            let faults = DiskFaults { flush_errors: 1.0, ..DiskFaults::default() };
            world.set_faults(node, DISK, faults);
            assert_eq!(device.flush().await, Err(IoError::WriteFault));
            world.set_faults(node, DISK, DiskFaults::default());
            let flags = ZeroFlags::default();
            assert!(device.must_reopen());
            assert_eq!(device.flush().await, Err(IoError::Poisoned));
            assert_eq!(device.write(0, data(), false).await, Err(IoError::Poisoned));
            assert_eq!(device.discard(0, 512).await, Err(IoError::Poisoned));
            assert_eq!(device.write_zeroes(0, 512, flags).await, Err(IoError::Poisoned));
            let read = device.read(0, buf::alloc(512).await).await.unwrap();
            assert_eq!(read[..], [7; 512]);
            drop(device);
            let device = open(direct);
            device.write(0, data(), true).await.unwrap();
            assert_eq!(device.flush().await, Ok(()));
            world.set_faults(node, DISK, DiskFaults { flush_errors: 1.0, ..DiskFaults::default() });
            assert_eq!(device.write(0, data(), true).await, Err(IoError::WriteFault));
            assert!(device.must_reopen(), "a durable write flushes too");
        });
        sim.block_on(async { faulty.await.unwrap() });
    }
}

#[test]
fn disk_errors_keep_their_kind() {
    let (sim, node) = start(1);
    let world = sim.world();
    let (bad_read, bad_write) = (4096..4608, 8192..8704);
    let tried = sim.spawn_on(node, async move {
        let device = open(true);
        let (unreadable, unwritable) = (vec![bad_read], vec![bad_write]);
        world.set_faults(
            node,
            DISK,
            DiskFaults { unreadable, unwritable, ..DiskFaults::default() },
        );
        let read = device.read(4096, buf::alloc(512).await).await;
        assert_eq!(read.map(drop), Err(IoError::ReadFault));
        let data = Buf::copy_of(&[1; 512]).unwrap();
        assert_eq!(device.write(8192, data.clone(), false).await, Err(IoError::WriteFault));
        assert_eq!(device.write(0, data, false).await, Ok(()), "other blocks are well");
        assert_eq!(device.flush().await, Ok(()), "a failed write was never promised");
    });
    sim.block_on(async { tried.await.unwrap() });
}

#[test]
fn zeroes_are_written_without_punch_support() {
    for (can_deallocate, can_zero) in [(false, false), (false, true), (true, false)] {
        let sim = Simulation::new(1, SimConfig::default());
        let node = sim.add_node("server");
        let disk = DiskConfig { can_deallocate, can_zero, ..DiskConfig::block_device(1 << 20) };
        sim.add_disk(node, DISK, disk);
        let tried = sim.spawn_on(node, async move {
            let device = open(true);
            let fill = async || {
                let data = Buf::copy_of(&[9; 1 << 18]).unwrap();
                device.write(0, data, false).await.unwrap();
            };
            for may_deallocate in [true, false] {
                fill().await;
                let flags = ZeroFlags { may_deallocate, ..ZeroFlags::default() };
                assert_eq!(device.write_zeroes(512, 200_704, flags).await, Ok(()));
                let read = device.read(0, buf::alloc(1 << 18).await).await.unwrap();
                assert_eq!(read.iter().filter(|byte| **byte == 0).count(), 200_704);
                let flags = ZeroFlags { fast_only: true, ..flags };
                let fast = device.write_zeroes(0, 512, flags).await;
                let expected = if may_deallocate && can_deallocate {
                    Ok(())
                } else {
                    Err(IoError::Unsupported)
                };
                assert_eq!(fast, expected, "on a disk the kernel may zero slowly");
            }
            fill().await;
            for _ in 0..2 {
                assert_eq!(device.discard(0, 4096).await, Ok(()));
            }
            let read = device.read(0, buf::alloc(4096).await).await.unwrap();
            let expected = if can_deallocate { 0 } else { 9 };
            assert!(read.iter().all(|byte| *byte == expected));
        });
        sim.block_on(async { tried.await.unwrap() });
    }
}

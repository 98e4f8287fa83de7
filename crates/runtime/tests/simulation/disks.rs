//! Simulated disks and files: content after a power loss, and faults.

use super::*;

/// Writes, flushes half, loses power. Returns for each half: (kept, lost, torn).
fn power_loss(seed: u64) -> [(usize, usize, usize); 2] {
    let (sim, a, _) = two_nodes(seed);
    sim.add_disk(a, DISK, DiskConfig::block_device(1 << 20));
    let writer = sim.spawn_on(a, async {
        let disk = File::open(DISK, &OpenOptions::default()).unwrap();
        for block in 0..8 {
            disk.write_at(filled(4096, 1).await, block * 4096, false).await.unwrap();
        }
        disk.sync().await.unwrap();
        for block in 8..16 {
            disk.write_at(filled(4096, 1).await, block * 4096, false).await.unwrap();
        }
    });
    sim.block_on(writer).unwrap();
    assert!(sim.disk_stats(a, DISK).unflushed_writes >= 8);
    sim.power_off(a);
    [0, 8].map(|first| {
        let mut counts = (0, 0, 0);
        for block in first..first + 8 {
            match sim.peek(a, DISK, block * 4096, 4096).iter().filter(|byte| **byte == 1).count() {
                4096 => counts.0 += 1,
                0 => counts.1 += 1,
                some => {
                    assert_eq!(some % 512, 0, "a sector is kept or lost as a whole");
                    counts.2 += 1;
                }
            }
        }
        counts
    })
}

/// Writes a block with a fault, flushes, and writes another as durable.
fn write_with(sim: &Simulation, node: NodeId, faults: DiskFaults) {
    sim.add_disk(node, DISK, DiskConfig::block_device(1 << 20));
    sim.set_faults(node, DISK, faults);
    let writer = sim.spawn_on(node, async {
        let disk = File::open(DISK, &OpenOptions::default()).unwrap();
        disk.write_at(filled(4096, 1).await, 0, false).await.unwrap();
        disk.sync().await.unwrap();
        disk.write_at(filled(4096, 2).await, 4096, true).await.unwrap();
    });
    sim.block_on(writer).unwrap();
}

#[test]
fn lying_flushes_succeed_and_lose_data() {
    let lost = |seed| {
        let (sim, a, _) = two_nodes(seed);
        write_with(&sim, a, DiskFaults { lying_flushes: true, ..DiskFaults::default() });
        assert_eq!(sim.peek(a, DISK, 0, 4096), [1; 4096], "reads return it");
        sim.power_off(a);
        sim.peek(a, DISK, 0, 8192).contains(&0)
    };
    assert!((0..20).filter(|seed| lost(*seed)).count() > 5);
}

#[test]
fn misdirected_write_lands_elsewhere() {
    let (sim, a, _) = two_nodes(3);
    write_with(&sim, a, DiskFaults { misdirected_writes: 1.0, ..DiskFaults::default() });
    let content = sim.peek(a, DISK, 0, 1 << 20);
    let place = |value: u8| content.iter().position(|byte| *byte == value).unwrap();
    assert_ne!((place(1), place(2)), (0, 4096));
    assert_eq!(content.iter().filter(|byte| **byte != 0).count(), 8192);
}

#[test]
fn power_loss_keeps_flushed_and_tears_unflushed() {
    let outcomes: Vec<_> = (0..60).map(power_loss).collect();
    assert!(outcomes.iter().all(|[flushed, _]| *flushed == (8, 0, 0)));
    let seen = |wanted: fn(&(usize, usize, usize)) -> bool| {
        outcomes.iter().any(|[_, unflushed]| wanted(unflushed))
    };
    assert!(seen(|(kept, ..)| *kept == 8), "all kept");
    assert!(seen(|(_, lost, _)| *lost == 8), "all lost");
    assert!(seen(|(kept, lost, torn)| *kept > 0 && *lost > 0 && *torn == 0), "some of each");
    assert!(seen(|(.., torn)| *torn > 0), "torn");
}

#[test]
fn durable_writes_survive_crash() {
    for seed in 0..40 {
        let (sim, a, _) = two_nodes(seed);
        sim.add_disk(a, DISK, DiskConfig::block_device(1 << 20));
        let writer = sim.spawn_on(a, async {
            let disk = File::open(DISK, &OpenOptions::default()).unwrap();
            disk.write_at(filled(4096, 1).await, 0, false).await.unwrap();
            disk.write_at(filled(4096, 2).await, 0, true).await.unwrap();
            disk.write_at(filled(4096, 3).await, 4096, false).await.unwrap();
        });
        sim.block_on(writer).unwrap();
        sim.crash(a);
        assert_eq!(sim.peek(a, DISK, 4096, 4096), [3; 4096]);
        sim.power_off(a);
        assert_eq!(sim.peek(a, DISK, 0, 4096), [2; 4096], "an old write never comes back");
    }
}

#[test]
fn writes_in_flight_may_be_kept_lost_or_torn() {
    for power in [false, true] {
        let mut ones = BTreeSet::new();
        for seed in 0..60 {
            let (sim, a, _) = two_nodes(seed);
            sim.add_disk(a, DISK, DiskConfig::block_device(1 << 20));
            sim.spawn_on(a, async {
                let disk = File::open(DISK, &OpenOptions::default()).unwrap();
                disk.write_at(filled(4096, 1).await, 0, true).await.unwrap();
            });
            sim.run_for(Duration::from_micros(5));
            if power {
                sim.power_off(a)
            } else {
                sim.crash(a)
            }
            assert_eq!(sim.disk_stats(a, DISK).writes, 0, "it had not completed");
            ones.insert(sim.peek(a, DISK, 0, 4096).iter().filter(|byte| **byte == 1).count());
        }
        assert!(ones.len() > 3 && ones.contains(&0) && ones.contains(&4096), "{ones:?}");
    }
}

#[test]
fn flush_covers_writes_completed_before_it() {
    // The write completes during the flush, so the flush does not cover it.
    let lost = (0..60).filter(|seed| {
        let (sim, a, _) = two_nodes(*seed);
        sim.add_disk(a, DISK, DiskConfig::block_device(1 << 20));
        let both = sim.spawn_on(a, async {
            let disk = Rc::new(File::open(DISK, &OpenOptions::default()).unwrap());
            let flusher = disk.clone();
            let flush = spawn(async move { flusher.sync().await });
            disk.write_at(filled(4096, 1).await, 0, false).await.unwrap();
            flush.await.unwrap().unwrap();
        });
        sim.block_on(both).unwrap();
        sim.power_off(a);
        sim.peek(a, DISK, 0, 4096) != [1; 4096]
    });
    assert!(lost.count() > 5);
}

#[test]
fn simulated_files_behave_like_real_ones() {
    let (sim, a, b) = two_nodes(16);
    let work = async || {
        let missing = File::open("/disk", &OpenOptions::default()).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        let options = OpenOptions { create_bytes: Some(1 << 20), ..OpenOptions::default() };
        let file = File::open("/disk", &options).unwrap();
        assert_eq!(file.info().size_bytes, 1 << 20);
        let locked = File::open("/disk", &OpenOptions::default()).unwrap_err();
        assert_eq!(locked.kind(), ErrorKind::WouldBlock);
        let read_only = OpenOptions { read_only: true, exclusive: false, ..options };
        let reader = File::open("/disk", &read_only).unwrap();
        assert!(reader.write_at(filled(512, 1).await, 0, false).await.is_err());
        for (offset, len) in [(1, 512), (0, 100)] {
            let error = file.write_at(filled(len, 1).await, offset, false).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "unaligned");
        }
        file.write_at(filled(8192, 5).await, 4096, false).await.unwrap();
        file.punch(4096, 4096, PunchMode::Deallocate).await.unwrap();
        for (offset, expected) in [(4096, 0), (8192, 5), (12288, 0)] {
            let (count, data) = reader.read_at(buf::alloc(4096).await, offset).await;
            assert_eq!((count.unwrap(), data[0], data[4095]), (4096, expected, expected));
        }
        let (count, _) = file.read_at(buf::alloc(4096).await, (1 << 20) - 512).await;
        assert_eq!(count.unwrap(), 512, "short at the end");
        file.write_at(filled(512, 1).await, 1 << 20, false).await.unwrap();
        drop((file, reader));
        let again = File::open("/disk", &options).unwrap();
        assert_eq!(again.info().size_bytes, (1 << 20) + 512, "it grew");
    };
    // Each node has its own `/disk`.
    let (first, second) = (sim.spawn_on(a, work()), sim.spawn_on(b, work()));
    sim.block_on(async { (first.await.unwrap(), second.await.unwrap()) });
}

#[test]
fn full_disk_and_device_end_refuse_writes() {
    let (sim, a, _) = two_nodes(17);
    sim.add_disk(a, DISK, DiskConfig { space_bytes: 8192, ..DiskConfig::block_device(1 << 20) });
    let writer = sim.spawn_on(a, async {
        let disk = File::open(DISK, &OpenOptions::default()).unwrap();
        let full = disk.write_at(filled(12288, 1).await, 0, false).await.unwrap_err();
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        disk.write_at(filled(4096, 2).await, 4096, false).await.unwrap();
        disk.punch(0, 4096, PunchMode::Deallocate).await.unwrap();
        disk.write_at(filled(4096, 3).await, 16384, false).await.unwrap();
        let end = disk.write_at(filled(4096, 1).await, 1 << 20, false).await.unwrap_err();
        assert_eq!(end.kind(), ErrorKind::StorageFull);
    });
    sim.block_on(writer).unwrap();
    assert_eq!(sim.peek(a, DISK, 4096, 1), [2]);
}

#[test]
fn faults_hit_configured_operations() {
    let (sim, a, _) = two_nodes(18);
    sim.add_disk(a, DISK, DiskConfig::block_device(1 << 20));
    let world = sim.world();
    let work = sim.spawn_on(a, async move {
        let disk = File::open(DISK, &OpenOptions::default()).unwrap();
        let set = |faults| world.set_faults(a, DISK, faults);
        set(DiskFaults::default().unreadable_at(8192..8704));
        assert!(disk.read_at(buf::alloc(4096).await, 4096).await.0.is_ok());
        assert!(disk.read_at(buf::alloc(4096).await, 8192).await.0.is_err());
        assert!(disk.write_at(filled(4096, 1).await, 8192, false).await.is_ok());
        set(DiskFaults::default().unwritable_at(0..512));
        assert!(disk.write_at(filled(4096, 1).await, 0, false).await.is_err());
        assert!(disk.punch(0, 4096, PunchMode::Zero).await.is_err());
        set(DiskFaults { flush_errors: 1.0, ..DiskFaults::default() });
        assert!(disk.sync().await.is_err());
        assert!(disk.write_at(filled(4096, 1).await, 4096, true).await.is_err());
        set(DiskFaults { read_errors: 0.5, write_errors: 0.5, ..DiskFaults::default() });
        let mut failed = (0, 0);
        for _ in 0..40 {
            failed.0 += u32::from(disk.read_at(buf::alloc(512).await, 0).await.0.is_err());
            failed.1 += u32::from(disk.write_at(filled(512, 1).await, 0, false).await.is_err());
        }
        assert!((5..35).contains(&failed.0) && (5..35).contains(&failed.1), "{failed:?}");
        set(DiskFaults::default());
        world.poke(a, DISK, 0, &[7; 512]);
        assert_eq!(disk.read_at(buf::alloc(512).await, 0).await.1[511], 7);
        world.stall(a, DISK, 10 * SECOND);
        let started = time::now();
        disk.sync().await.unwrap();
        assert!(started.elapsed() >= 10 * SECOND);
    });
    sim.block_on(work).unwrap();
    assert!(sim.disk_stats(a, DISK).faults > 10);
}

/// A signal failed the write of a host.
#[test]
fn interrupted_operations_are_repeated() {
    let (sim, a, _) = two_nodes(19);
    sim.add_disk(a, DISK, DiskConfig::block_device(1 << 20));
    let world = sim.world();
    let work = sim.spawn_on(a, async move {
        let disk = File::open(DISK, &OpenOptions::default()).unwrap();
        let interrupt = |interruptions| {
            world.set_faults(a, DISK, DiskFaults { interruptions, ..DiskFaults::default() });
        };
        interrupt(3);
        disk.write_at(filled(4096, 1).await, 0, false).await.unwrap();
        interrupt(3);
        let (read, data) = disk.read_at(buf::alloc(4096).await, 0).await;
        assert_eq!((read.unwrap(), data[4095]), (4096, 1));
        interrupt(3);
        disk.punch(0, 4096, PunchMode::Zero).await.unwrap();
        // A file system that interrupts for good, and what might hide a lost write.
        interrupt(u32::MAX);
        assert!(disk.write_at(filled(4096, 1).await, 0, false).await.is_err());
        interrupt(1);
        assert!(disk.sync().await.is_err());
        interrupt(1);
        assert!(disk.write_at(filled(4096, 1).await, 0, true).await.is_err());
    });
    sim.block_on(work).unwrap();
}

#[test]
fn concurrent_reads_can_see_torn_writes() {
    let torn = (0..300).any(|seed| {
        let (sim, a, _) = two_nodes(seed);
        sim.add_disk(a, DISK, DiskConfig::block_device(1 << 20));
        let read = sim.spawn_on(a, async {
            let disk = Rc::new(File::open(DISK, &OpenOptions::default()).unwrap());
            let writer = disk.clone();
            spawn(async move { writer.write_at(filled(4096, 1).await, 0, false).await });
            disk.read_at(buf::alloc(4096).await, 0).await.1
        });
        let data = sim.block_on(read).unwrap();
        data.contains(&0) && data.contains(&1)
    });
    assert!(torn);
}

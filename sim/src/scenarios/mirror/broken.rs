//! Disks that fail at a moment that is chosen, one test each: among them those for the rules 22 to 25
//! of `docs/mirror-handshake.md`, which fail without their rule. See [`super::rules`].

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, IoError};
use flagstone_mirror::peer::Request;
use flagstone_mirror::state::MirrorState;
use flagstone_mirror::{Ack, Mode, RoleError};
use flagstone_runtime::sim::DiskFaults;
use flagstone_runtime::{buf, time};

use super::link::Fate;
use super::pair::{BLOCK, DATA, METADATA, Pair, SUPERBLOCKS, fill};

fn unwritable(pair: &Pair, index: usize, range: Range<u64>) {
    set(pair, index, DiskFaults::default().unwritable_at(range));
}

fn set(pair: &Pair, index: usize, faults: DiskFaults) {
    pair.sim.set_faults(pair.nodes[index], DATA, faults);
}

fn block(number: u64) -> Range<u64> {
    number * BLOCK..(number + 1) * BLOCK
}

/// A block as a host of a node reads it.
fn read(pair: &Pair, index: usize, block: u64) -> Result<Vec<u8>, IoError> {
    pair.on(index, move |mirror| async move {
        let memory = buf::alloc(BLOCK as usize).await;
        mirror.read(block * BLOCK, memory).await.map(|found| found.to_vec())
    })
}

/// The node that serves once both are whole.
fn whole(pair: &Pair) -> usize {
    let deadline = pair.sim.now() + Duration::from_secs(60);
    loop {
        let whole = |index: &usize| pair.state(*index) == MirrorState::Mirroring;
        if let Some(index) = [0, 1].into_iter().find(whole) {
            pair.becomes_whole(index);
            return index;
        }
        pair.sim.run_for(Duration::from_millis(10));
        assert!(pair.sim.now() < deadline, "nobody leads");
    }
}

#[test]
fn rule_23_what_failed_at_the_source_is_not_there_after_its_crash() {
    let mut failed = 0;
    for seed in 0..6 {
        let pair = Pair::new(seed, |_| {});
        pair.write(0, 9, 1).expect("both are there");
        pair.cut();
        pair.write(0, 20, 3).expect("the peer is lost");
        unwritable(&pair, 0, block(9));
        let said = Rc::new(Cell::new(None));
        let (mirror, world, node) = (pair.mirror(0), pair.sim.world(), pair.nodes[0]);
        let saying = said.clone();
        // All is copied, and the target learns that it is whole; a write fails here meanwhile.
        pair.hub().set_fate(move |request| {
            if !matches!(request, Request::EndResync { .. }) || saying.get().is_some() {
                return Fate::Arrives;
            }
            let (mirror, saying) = (mirror.clone(), saying.clone());
            world.spawn_on(node, async move { saying.set(Some(fill(&mirror, 9, 2).await)) });
            Fate::Arrives
        });
        pair.hub().heal();
        while said.get().is_none() {
            pair.sim.run_for(Duration::from_micros(100));
        }
        // The target may have been whole in time to carry the volume.
        failed += u32::from(said.get().is_some_and(|said| said.is_err()));
        // The hand-over ends meanwhile, if it does.
        pair.sim.run_for(Duration::from_millis(20));
        let before = read(&pair, 0, 9).expect("it can be read");
        pair.end(0, false);
        set(&pair, 0, DiskFaults::default());
        pair.restart(0);
        let source = whole(&pair);
        assert!(read(&pair, source, 9) == Ok(before), "what was read has changed, seed {seed}");
    }
    assert!(failed > 0, "no write failed while the target was told that it is whole");
}

#[test]
fn rule_22_in_sync_is_said_of_the_generation_that_was_found() {
    for delay_us in (0..4000).step_by(100) {
        let pair = Pair::new(18, |_| {});
        pair.cut();
        pair.write(0, 50, 1).expect("the peer is lost");
        pair.hub().heal();
        pair.becomes_whole(0);
        pair.cut();
        pair.sim.run_for(Duration::from_secs(1));
        // Equal still. The first write without the peer comes while the answer is on its way.
        pair.hub().set_slow(Duration::from_millis(5));
        let (mirror, world, node) = (pair.mirror(0), pair.sim.world(), pair.nodes[0]);
        let source = pair.superblock(0).replica;
        let written = Rc::new(RefCell::new(None));
        let writing = written.clone();
        pair.hub().set_fate(move |request| {
            if *request == (Request::Identify { asker: source }) && writing.borrow().is_none() {
                let mirror = mirror.clone();
                *writing.borrow_mut() = Some(world.spawn_on(node, async move {
                    time::sleep(Duration::from_micros(delay_us)).await;
                    fill(&mirror, 3, 5).await
                }));
            }
            Fate::Arrives
        });
        pair.hub().heal();
        while written.borrow().is_none() {
            pair.sim.run_for(Duration::from_micros(100));
        }
        let written = written.borrow_mut().take().expect("it has begun");
        assert_eq!(pair.sim.block_on(written), Ok(Ok(())));
        pair.becomes_whole(0);
        let names = [0, 1].map(|index| pair.superblock(index).current);
        assert_eq!(names[0], names[1], "in sync under two names: {delay_us} µs");
        // What the peer had is known still, so no more is copied than what was written.
        let copied = pair.peer_status(0).resync_done_bytes;
        assert!(copied <= BLOCK, "{copied} bytes were copied: {delay_us} µs");
    }
}

#[test]
fn rule_24_a_peer_that_may_have_gone_on_alone_is_no_split_brain() {
    for fate in [Fate::Lost, Fate::Unanswered] {
        let pair = Pair::new(19, |_| {});
        unwritable(&pair, 0, block(9));
        pair.hub().set_fate(move |request| match request {
            Request::GoAlone { .. } => fate,
            _ => Fate::Arrives,
        });
        assert!(pair.write(0, 9, 2).is_err(), "nobody goes on alone");
        let before = read(&pair, 0, 9).expect("it can be read");
        set(&pair, 0, DiskFaults::default());
        pair.becomes_whole(0);
        assert!(read(&pair, 0, 9) == Ok(before), "{fate:?}");
        assert_eq!(pair.superblock(0).current, pair.superblock(1).current);
    }
}

#[test]
fn rule_25_a_flush_that_fails_at_the_only_leg_is_not_acknowledged() {
    let pair = Pair::new(20, |peer| peer.ack = Ack::Memory);
    unwritable(&pair, 0, block(9));
    pair.write(0, 9, 2).expect("the peer goes on alone");
    set(&pair, 1, DiskFaults { flush_errors: 1.0, ..DiskFaults::default() });
    let flushed = pair.on(0, |mirror| async move { mirror.flush().await });
    assert!(flushed.is_err(), "the one leg that is there has not flushed");
    let flushed = pair.on(0, |mirror| async move { mirror.flush().await });
    assert_eq!(flushed, Err(IoError::Unreachable), "and none is left");
}

/// What a leg shows once its power was gone: what was durable.
fn durable(pair: &Pair, index: usize) -> Vec<u8> {
    pair.end(index, true);
    pair.leg(index)
}

fn flush_fails(pair: &Pair, index: usize) {
    set(pair, index, DiskFaults { flush_errors: 1.0, ..DiskFaults::default() });
}

/// A leg whose flush failed shows what it could not write, and never writes it. It is opened again, and
/// a resync that compares checksums would find it equal: all that it may lack is written once more.
#[test]
fn a_target_whose_flush_failed_gets_all_that_it_could_not_write_once_more() {
    let mut lost = 0;
    for seed in 0..12 {
        let pair = Pair::new(seed, |peer| (peer.ack, peer.compare) = (Ack::Memory, true));
        for number in 0..8 {
            pair.write(0, number, 1 + number as u8).expect("both are there");
        }
        flush_fails(&pair, 1);
        pair.on(0, |mirror| async move { mirror.flush().await }).expect("the source has all");
        set(&pair, 1, DiskFaults::default());
        let shown = pair.leg(1);
        pair.reopen(1);
        let refused = pair.on(1, |mirror| async move { mirror.failover().await });
        let doubtful = pair.mirror(1).is_doubtful();
        assert!(!doubtful || refused == Err(RoleError::Doubtful), "{refused:?}");
        pair.becomes_whole(0);
        assert!(!pair.mirror(1).is_doubtful(), "a resync has ended");
        let (copied, found) = (pair.peer_status(0), durable(&pair, 1));
        assert!(found == pair.leg(0), "seed {seed}: not durable after {copied:?}");
        // The test has a point where what was shown was compared.
        lost += u32::from(shown == pair.leg(0));
    }
    assert!(lost > 0, "every leg looked other than its source");
}

/// The same of a source, whose peer carried the volume and took the role over.
#[test]
fn a_source_whose_flush_failed_comes_back_as_a_target() {
    for seed in 0..6 {
        let pair = Pair::new(seed, |peer| peer.compare = true);
        pair.write(0, 3, 3).expect("both are there");
        flush_fails(&pair, 0);
        pair.on(0, |mirror| async move { mirror.flush().await }).expect("the peer has all");
        assert!(pair.mirror(0).has_failed());
        pair.write(0, 5, 5).expect("the peer goes on alone");
        let given = pair.on(0, |mirror| async move { mirror.give_target_up().await });
        assert!(!given, "hosts are served through it");
        pair.on(0, |mirror| async move { mirror.switchover(0).await }).expect("it has all");
        set(&pair, 0, DiskFaults::default());
        pair.reopen(0);
        pair.becomes_whole(1);
        assert_eq!((pair.read(1, 3), pair.read(1, 5)), (3, 5));
        assert!(durable(&pair, 0) == pair.leg(1), "seed {seed}");
    }
}

/// What each leg keeps without its power is what it showed, and the same.
fn are_durable(pair: &Pair) {
    for source in pair.active() {
        pair.on(source, |mirror| async move { mirror.flush().await }).expect("sound disks");
    }
    let shown = [0, 1].map(|index| pair.leg(index));
    assert!(shown[0] == shown[1], "the legs differ");
    for (index, shown) in shown.iter().enumerate() {
        assert!(durable(pair, index) == *shown, "node {index} has lost what it showed");
    }
}

fn sound(pair: &Pair) {
    (0..2).for_each(|index| set(pair, index, DiskFaults::default()));
}

/// A process that ends takes what it knew of the failed flush with it. The file is opened anew, and its
/// flushes succeed.
#[test]
fn a_target_that_was_restarted_after_its_flush_failed_gets_all_once_more() {
    for seed in 0..12 {
        let pair = Pair::new(seed, |peer| (peer.ack, peer.compare) = (Ack::Memory, true));
        for number in 0..8 {
            pair.write(0, number, 1 + number as u8).expect("both are there");
        }
        flush_fails(&pair, 1);
        pair.on(0, |mirror| async move { mirror.flush().await }).expect("the source has all");
        pair.end(1, false);
        // Every other time the source knows by its log alone what the target was told.
        if seed % 2 == 1 {
            pair.end(0, false);
            pair.restart(0);
        }
        sound(&pair);
        pair.restart(1);
        pair.becomes_whole(0);
        are_durable(&pair);
    }
}

/// The flush that failed was the target's own affair, and the source had written nothing since when its
/// power failed: the target, which was restarted, must not be the better one.
#[test]
fn a_target_that_was_restarted_after_a_failed_flush_is_not_preferred_to_its_source() {
    for seed in 0..12 {
        let pair = Pair::new(seed, |peer| (peer.ack, peer.compare) = (Ack::Memory, true));
        // The target has written of its log what it had to: the next thing that fails is the flush.
        pair.sim.run_for(Duration::from_secs(5));
        for number in 0..8 {
            pair.write(0, number, 1 + number as u8).expect("both are there");
        }
        flush_fails(&pair, 1);
        pair.sim.run_for(Duration::from_secs(2));
        pair.end(0, true);
        pair.end(1, false);
        sound(&pair);
        (0..2).for_each(|index| pair.restart(index));
        whole(&pair);
        are_durable(&pair);
    }
}

/// The doubt about a target that was opened again outlives its process, and it serves nobody but by
/// force.
#[test]
fn doubt_outlives_the_process() {
    let mut lost = 0;
    for seed in 0..6 {
        let pair = Pair::new(seed, |peer| (peer.ack, peer.compare) = (Ack::Memory, true));
        for number in 0..8 {
            pair.write(0, number, 1 + number as u8).expect("both are there");
        }
        flush_fails(&pair, 1);
        pair.on(0, |mirror| async move { mirror.flush().await }).expect("the source has all");
        pair.cut();
        sound(&pair);
        pair.reopen(1);
        pair.end(1, seed % 2 == 1);
        pair.restart(1);
        assert!(pair.mirror(1).is_doubtful(), "seed {seed}");
        let refused = pair.on(1, |mirror| async move { mirror.failover().await });
        assert_eq!(refused, Err(RoleError::Doubtful));
        if seed == 5 {
            pair.end(0, true);
            let forced = pair.on(1, |mirror| async move { mirror.failover_in_doubt().await });
            assert_eq!((forced, pair.active()), (Ok(()), vec![1]));
            return assert!(lost > 0, "no disk has lost what it showed");
        }
        lost += u32::from(pair.leg(1) != pair.leg(0));
        pair.hub().heal();
        pair.becomes_whole(0);
        assert!(!pair.superblock(1).doubtful, "a resync has ended");
        are_durable(&pair);
    }
}

/// The peer carries the volume, and copies everything back to the source, whose process has ended and
/// knows of no failed flush.
#[test]
fn a_source_that_was_restarted_after_its_flush_failed_gets_all_once_more() {
    for seed in 0..12 {
        let pair = Pair::new(seed, |peer| peer.compare = true);
        for number in 0..8 {
            pair.write(0, number, 1 + number as u8).expect("both are there");
        }
        flush_fails(&pair, 0);
        pair.on(0, |mirror| async move { mirror.flush().await }).expect("the peer has all");
        pair.write(0, 5, 55).expect("the peer goes on alone");
        pair.end(0, false);
        if seed % 2 == 1 {
            pair.end(1, seed % 4 == 1);
            pair.restart(1);
        }
        sound(&pair);
        pair.restart(0);
        pair.until(1, MirrorState::Mirroring);
        pair.becomes_whole(1);
        assert_eq!((pair.read(1, 3), pair.read(1, 5)), (4, 55));
        are_durable(&pair);
    }
}

/// Nobody has what the source's failed flush lost, and the operator goes on with what its disk shows. It
/// is what the target gets: so it has to be what the source keeps.
#[test]
fn a_source_that_goes_on_after_its_flush_failed_keeps_what_its_target_gets() {
    for seed in 0..12 {
        let pair = Pair::new(seed, |peer| peer.compare = true);
        pair.cut();
        for number in 0..8 {
            pair.write(0, number, 1 + number as u8).expect("the peer is lost");
        }
        flush_fails(&pair, 0);
        assert!(pair.on(0, |mirror| async move { mirror.flush().await }).is_err());
        pair.end(0, false);
        sound(&pair);
        pair.restart(0);
        pair.write(0, 20, 20).expect("it goes on alone");
        pair.hub().heal();
        pair.becomes_whole(0);
        are_durable(&pair);
    }
}

/// Without a peer nobody has what a source's failed flush lost: it is not opened again by itself.
#[test]
fn a_source_alone_whose_flush_failed_is_left_to_the_operator() {
    let pair = Pair::new(1, |_| {});
    pair.cut();
    pair.write(0, 3, 3).expect("the peer is lost");
    flush_fails(&pair, 0);
    assert!(pair.on(0, |mirror| async move { mirror.flush().await }).is_err());
    set(&pair, 0, DiskFaults::default());
    assert!(pair.write(0, 4, 4).is_err(), "it has the poison still");
    assert!(!pair.on(0, |mirror| async move { mirror.give_target_up().await }));
}

#[test]
fn rule_24_a_log_that_cannot_be_written_leaves_the_peer_to_go_on() {
    let pair = Pair::new(21, |_| {});
    unwritable(&pair, 0, METADATA);
    pair.write(0, 40, 7).expect("the peer goes on alone");
    assert!(pair.mirror(0).has_failed());
    assert_eq!(pair.read(0, 40), 7);
}

/// What is in the queue of an asynchronous peer when the source's disk fails is there before the peer
/// goes on alone, and is durable there if hosts had it flushed.
#[test]
fn rule_24_an_asynchronous_peer_goes_on_when_it_has_the_queue() {
    let pair = Pair::new(24, |peer| peer.mode = Mode::Async);
    pair.hub().set_slow(Duration::from_millis(5));
    for number in 0..8 {
        pair.write(0, number, 1 + number as u8).expect("the source has it");
    }
    pair.on(0, |mirror| async move { mirror.flush().await }).expect("the source's disk is sound");
    assert!(pair.peer_status(0).lag_writes > 0, "the link is slower than the disk");
    unwritable(&pair, 0, block(9));
    pair.write(0, 9, 9).expect("the peer goes on alone");
    assert!(pair.mirror(0).has_failed());
    assert_eq!(pair.peer_status(0).lag_writes, 0);
    for number in 0..8 {
        assert_eq!(pair.read(0, number), 1 + number as u8);
    }
    assert_eq!(pair.read(0, 9), 9);
    // From now on it is waited for, and flushes are its own.
    pair.write(0, 10, 10).expect("the peer is there");
    assert_eq!(pair.peer_status(0).lag_writes, 0);
    let kept = durable(&pair, 1);
    for number in 0..8_usize {
        assert_eq!(kept[number * BLOCK as usize], 1 + number as u8, "it was flushed by its host");
    }
}

/// The same of the role: it goes over without the failed disk, and back.
#[test]
fn an_asynchronous_source_whose_disk_failed_comes_back_as_a_target() {
    let pair = Pair::new(25, |peer| peer.mode = Mode::Async);
    pair.hub().set_slow(Duration::from_millis(2));
    pair.write(0, 3, 3).expect("the source has it");
    flush_fails(&pair, 0);
    pair.on(0, |mirror| async move { mirror.flush().await }).expect("the peer has all");
    pair.write(0, 5, 5).expect("the peer goes on alone");
    pair.on(0, |mirror| async move { mirror.switchover(0).await }).expect("it has all");
    set(&pair, 0, DiskFaults::default());
    pair.reopen(0);
    pair.becomes_whole(1);
    assert_eq!((pair.read(1, 3), pair.read(1, 5)), (3, 5));
}

/// Nodes that have parted often remember so many generations that each new one costs an old one. Who
/// goes on alone forgets none for it by which the other is known when it is back.
#[test]
fn a_source_with_a_long_past_whose_disk_failed_comes_back_as_a_target() {
    let pair = Pair::new(27, |_| {});
    for number in 0..20 {
        pair.cut();
        pair.write(0, number, 1).expect("the peer is lost");
        pair.hub().heal();
        pair.becomes_whole(0);
    }
    unwritable(&pair, 0, block(3));
    pair.write(0, 3, 3).expect("the peer goes on alone");
    pair.on(0, |mirror| async move { mirror.switchover(0).await }).expect("it has all");
    set(&pair, 0, DiskFaults::default());
    pair.give_up(0);
    pair.becomes_whole(1);
    assert_eq!(pair.read(1, 3), 3);
}

/// A block that the source cannot read comes from an asynchronous peer, behind what was queued.
#[test]
fn what_a_source_cannot_read_its_asynchronous_peer_has_after_the_queue() {
    let pair = Pair::new(26, |peer| peer.mode = Mode::Async);
    pair.write(0, 4, 1).expect("the source has it");
    pair.hub().set_slow(Duration::from_millis(5));
    pair.write(0, 4, 2).expect("the source has it");
    let range = block(4);
    set(&pair, 0, DiskFaults { unreadable: vec![range], ..DiskFaults::default() });
    assert_eq!(read(&pair, 0, 4).map(|found| found[0]), Ok(2));
    // Without it there is nobody else.
    pair.cut();
    pair.write(0, 7, 7).expect("the peer is lost");
    pair.until(0, MirrorState::ResyncPending);
    assert_eq!(read(&pair, 0, 4), Err(IoError::ReadFault));
}

#[test]
fn rule_23_what_cannot_be_recorded_is_not_read() {
    let pair = Pair::new(22, |_| {});
    pair.write(0, 5, 1).expect("both are there");
    unwritable(&pair, 0, SUPERBLOCKS);
    pair.cut();
    // It is written here. But the peer, which looks equal, has what was there before, and would be
    // the better one after a crash.
    assert!(pair.write(0, 5, 2).is_err(), "the peer is not recorded as out of date");
    let found = read(&pair, 0, 5).map(|_| ());
    assert_eq!(found, Err(IoError::Unreachable));
}

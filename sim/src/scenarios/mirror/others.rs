//! What other mirrors have failed at, one test each, named after it: each was a bug in a change log
//! of a mirror that many use.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_mirror::order::Order;
use flagstone_mirror::peer::{Attach, Refusal, Reply, Request};
use flagstone_mirror::queue::{QueueLimits, WhenFull};
use flagstone_mirror::state::{MirrorState, Wish};
use flagstone_mirror::{CommandError, Mode, RoleError, Versions};
use flagstone_runtime::time;

use super::link::Fate;
use super::pair::{BLOCK, BLOCKS, Pair, REGION, fill};

/// Loses the first so many requests of a kind in this way, and counts them.
fn lose(pair: &Pair, fate: Fate, count: u64, kind: fn(&Request) -> bool) -> Rc<Cell<u64>> {
    let lost = Rc::new(Cell::new(0));
    let counter = lost.clone();
    pair.hub().set_fate(move |request| {
        if !kind(request) || counter.get() == count {
            return Fate::Arrives;
        }
        counter.set(counter.get() + 1);
        fate
    });
    lost
}

/// The node that serves once both have met.
fn leader(pair: &Pair) -> usize {
    let deadline = pair.sim.now() + Duration::from_secs(60);
    loop {
        let whole = |index: &usize| pair.state(*index) == MirrorState::Mirroring;
        if let Some(index) = [0, 1].into_iter().find(whole) {
            return index;
        }
        pair.sim.run_for(Duration::from_millis(10));
        assert!(pair.sim.now() < deadline, "nobody leads");
    }
}

/// Lets all regions leave the hot set, and bits that were cleared reach the disk.
fn cool(pair: &Pair) {
    pair.sim.run_for(Duration::from_secs(10));
}

#[test]
fn a_decision_never_clears_a_bitmap() {
    let pair = Pair::new(1, |_| {});
    pair.cut();
    for block in [3, 20, 41] {
        pair.write(0, block, 7).expect("the peer is lost, and the policy is to go on");
    }
    assert_eq!(pair.peer_status(0).out_of_date_bytes, 3 * BLOCK);
    // However often both meet and decide, and wherever it ends: what differs stays marked.
    type Kind = fn(&Request) -> bool;
    let kinds: [Kind; 4] = [
        |request| matches!(request, Request::Identify { .. }),
        |request| matches!(request, Request::Attach(_)),
        |request| matches!(request, Request::Bits { .. }),
        |request| matches!(request, Request::BeginResync { .. }),
    ];
    for kind in kinds {
        for fate in [Fate::Lost, Fate::Unanswered] {
            let lost = lose(&pair, fate, 1, kind);
            pair.hub().heal();
            while lost.get() == 0 {
                pair.sim.run_for(Duration::from_millis(1));
                assert_ne!(pair.state(0), MirrorState::Mirroring);
                assert_eq!(pair.peer_status(0).out_of_date_bytes, 3 * BLOCK);
            }
            pair.cut();
            pair.sim.run_for(Duration::from_secs(1));
        }
    }
    // Nor does it matter that both have forgotten everything but their disks.
    pair.end(0, true);
    pair.end(1, true);
    pair.restart(1);
    pair.restart(0);
    pair.hub().heal();
    pair.becomes_whole(0);
    assert_eq!([3, 20, 41].map(|block| pair.read(0, block)), [7; 3]);
}

#[test]
fn the_stale_node_is_never_the_source() {
    let pair = Pair::new(2, |_| {});
    pair.write(0, 5, 1).expect("both are there");
    pair.cut();
    pair.write(0, 5, 2).expect("the peer is recorded as out of date");
    pair.end(0, true);
    pair.end(1, true);
    pair.hub().heal();
    // The stale one is back first, and alone.
    pair.restart(1);
    pair.sim.run_for(Duration::from_secs(10));
    assert!(!pair.mirror(1).is_active(), "it serves what is out of date, and nobody told it to");
    // The operator has it serve; nothing is written there.
    pair.on(1, |mirror| async move { mirror.failover().await }).expect("whole data");
    assert_eq!(pair.read(1, 5), 1);
    pair.restart(0);
    pair.becomes_whole(0);
    assert_eq!(pair.read(0, 5), 2);
    assert!(!pair.mirror(1).is_active());
}

/// The link is lost in a switchover before the peer was asked to serve: the source goes on at once.
#[test]
fn a_source_that_has_asked_nobody_serves_on() {
    let pair = Pair::new(17, |_| {});
    pair.write(0, 4, 1).expect("both are there");
    let lost = lose(&pair, Fate::Lost, 1, |request| matches!(request, Request::Ancestors { .. }));
    let done = pair.on(0, |mirror| async move { mirror.switchover(0).await });
    assert_eq!(lost.get(), 1);
    assert!(matches!(done, Err(CommandError::Peer(_))), "{done:?}");
    assert!(pair.mirror(0).is_active() && !pair.mirror(1).is_active());
    assert_eq!(pair.superblock(0).heir, None);
    assert_eq!(pair.read(0, 4), 1);
    pair.becomes_whole(0);
}

#[test]
fn in_sync_is_never_shown_during_a_split_brain() {
    let pair = Pair::new(3, |_| {});
    pair.cut();
    pair.write(0, 1, 1).expect("the peer is lost");
    pair.on(1, |mirror| async move { mirror.failover().await }).expect("whole data");
    pair.write(1, 1, 2).expect("the peer is lost");
    pair.hub().heal();
    pair.until(0, MirrorState::SplitBrain);
    pair.until(1, MirrorState::SplitBrain);
    let never_whole = |span: u64| {
        for _ in 0..span {
            pair.sim.run_for(Duration::from_millis(100));
            for index in [0, 1] {
                let state = pair.state(index);
                let wrong = [MirrorState::Mirroring, MirrorState::Resynchronizing];
                assert!(!wrong.contains(&state), "node {index} shows {state}");
            }
        }
    };
    // Commands that do not choose change nothing of it, and nor does a restart.
    for index in [0, 1] {
        pair.on(index, |mirror| async move {
            mirror.set_wish(0, Wish::Pause).await.expect("a sound disk");
            mirror.set_wish(0, Wish::Mirror).await.expect("a sound disk");
            mirror.resync_all(0).expect("there is a peer");
            assert!(mirror.switchover(0).await.is_err());
        });
        never_whole(50);
    }
    assert_eq!((pair.read(0, 1), pair.read(1, 1)), (1, 2), "both go on with what is theirs");
    pair.end(0, false);
    pair.end(1, true);
    pair.restart(0);
    pair.restart(1);
    never_whole(100);
    assert_eq!([0, 1].map(|index| pair.leg(index)[BLOCK as usize]), [1, 2], "all data is kept");
    pair.until(0, MirrorState::SplitBrain);
    pair.until(1, MirrorState::SplitBrain);
}

/// At the end of a resync the source's generation is announced, and is `fated`; the source writes
/// on alone, and dies, or not.
fn announced(seed: u64, fate: Fate, crash: bool) {
    let pair = Pair::new(seed, |_| {});
    pair.cut();
    pair.write(0, 9, 1).expect("the peer is lost");
    let lost = lose(&pair, fate, 1, |request| matches!(request, Request::EndResync { .. }));
    pair.hub().heal();
    while lost.get() == 0 {
        pair.sim.run_for(Duration::from_millis(1));
    }
    pair.cut();
    pair.write(0, 10, 2).expect("the peer is lost");
    if crash {
        pair.end(0, false);
        pair.restart(0);
    }
    assert_ne!(pair.state(0), MirrorState::Mirroring);
    pair.hub().heal();
    pair.becomes_whole(0);
    assert_eq!((pair.read(0, 9), pair.read(0, 10)), (1, 2));
    let copied = pair.peer_status(0).resync_done_bytes;
    let bound = if crash { 2 * REGION } else { 2 * BLOCK };
    assert!((BLOCK..=bound).contains(&copied), "{copied} bytes were copied");
    let generations = [0, 1].map(|index| pair.superblock(index).current);
    assert_eq!(generations[0], generations[1]);
}

#[test]
fn a_generation_that_was_announced_and_never_received() {
    announced(4, Fate::Lost, false);
    announced(5, Fate::Lost, true);
}

#[test]
fn the_end_of_a_resync_of_which_the_source_never_heard() {
    announced(6, Fate::Unanswered, false);
    announced(7, Fate::Unanswered, true);
}

#[test]
fn equal_generations_with_leftover_bits() {
    for back_first in [0, 1] {
        let pair = Pair::new(8 + back_first as u64, |_| {});
        cool(&pair);
        let before = pair.superblock(0).current;
        for block in 0..8 {
            pair.write(0, block, 3).expect("both are there");
        }
        // It dies while a write is under way: that may be on one leg alone.
        let mirror = pair.mirror(0);
        pair.sim.spawn_on(pair.nodes[0], async move { fill(&mirror, 2, 4).await });
        pair.sim.run_for(Duration::from_micros(150));
        pair.end(0, true);
        pair.sim.run_for(Duration::from_secs(1));
        assert_eq!(pair.superblock(1).current, before, "nothing was written without the peer");
        if back_first == 1 {
            pair.on(1, |mirror| async move { mirror.failover().await }).expect("whole data");
        }
        pair.restart(0);
        let source = leader(&pair);
        assert!(source == 1 || back_first == 0, "hosts have read what node 1 has");
        pair.becomes_whole(source);
        let status = pair.peer_status(source);
        assert!(status.resync_done_bytes > 0, "what was under way is copied");
        assert!(status.resync_done_bytes <= 2 * REGION, "and what was hot, no more");
        for block in (0..8).filter(|block| *block != 2) {
            assert_eq!(pair.read(source, block), 3);
        }
        assert!([3, 4].contains(&pair.read(source, 2)));
    }
}

#[test]
fn a_resync_ends_though_hosts_write_all_the_while() {
    let pair = Pair::new(10, |peer| {
        // Slower than what is written.
        peer.pace.max_bytes_per_s = Some(4 << 20);
        peer.pace.adaptive = true;
        peer.pace.min_bytes_per_s = 1 << 20;
    });
    pair.cut();
    for block in 0..BLOCKS {
        pair.write(0, block, 1).expect("the peer is lost");
    }
    let written = Rc::new(Cell::new(0));
    for lane in 0..8 {
        let (mirror, written) = (pair.mirror(0), written.clone());
        pair.sim.spawn_on(pair.nodes[0], async move {
            for round in 0u64.. {
                let block = (round * 7 + lane) % BLOCKS;
                fill(&mirror, block, round as u8).await.expect("it serves");
                time::sleep(Duration::from_millis(2)).await;
                written.set(written.get() + BLOCK);
            }
        });
    }
    pair.sim.run_for(Duration::from_secs(1));
    pair.hub().heal();
    let (began, before) = (pair.sim.now(), written.get());
    pair.until(0, MirrorState::Mirroring);
    let span = pair.sim.now().as_nanos() - began.as_nanos();
    // 4 MiB at 1 to 4 MiB/s.
    assert!(span < 8_000_000_000, "it took {span} ns");
    assert!(written.get() - before > 3 * BLOCKS * BLOCK, "hosts wrote all the while");
    assert_eq!(pair.peer_status(0).resync_done_bytes, BLOCKS * BLOCK, "once each");
}

#[test]
fn a_target_that_is_too_slow_does_not_flap_between_ahead_and_behind() {
    let pair = Pair::new(11, |peer| {
        (peer.mode, peer.when_full) = (Mode::Async, WhenFull::Track);
        peer.queue = QueueLimits {
            high_bytes: 4 * BLOCK,
            low_bytes: 2 * BLOCK,
            writes: 64,
            window_bytes: 2 * BLOCK,
        };
    });
    pair.hub().set_slow(Duration::from_millis(20));
    for lane in 0..4 {
        let mirror = pair.mirror(0);
        pair.sim.spawn_on(pair.nodes[0], async move {
            for round in 0u64.. {
                fill(&mirror, (round * 5 + lane) % BLOCKS, round as u8).await.expect("it serves");
                time::sleep(Duration::from_millis(4)).await;
            }
        });
    }
    let losses = pair.peer_status(0).losses;
    pair.sim.run_for(Duration::from_secs(60));
    let status = pair.peer_status(0);
    let flaps = status.losses - losses;
    // Left behind at once, and not taken up again for ten seconds each time.
    assert!((1..=7).contains(&flaps), "it fell behind {flaps} times in a minute");
    assert!(status.out_of_date_bytes <= BLOCKS * BLOCK);
}

#[test]
fn an_attachment_does_not_wait_for_writes_whose_order_never_comes() {
    let pair = Pair::new(12, |peer| peer.mode = Mode::Async);
    pair.cut();
    let source = pair.superblock(0);
    pair.on(1, move |mirror| async move {
        let attach = |epoch| {
            let expected = source.current;
            let (volume, source) = (source.volume, source.replica);
            Request::Attach(Attach {
                volume,
                source,
                epoch,
                expected,
                in_sync: true,
                usable_bytes: 0,
                version: Versions::SPOKEN.highest(),
            })
        };
        let epoch = mirror.status().epoch;
        let first = mirror.session();
        assert_eq!(first.ask(attach(epoch)).await, Ok(Ok(Reply::Done)));
        // One that follows from another, which is lost with its connection.
        let data = flagstone_runtime::buf::alloc(BLOCK as usize).await.freeze();
        let waits = first.write(0, data, false, Some(Order { number: 2, beside: 0 }));
        let waits = flagstone_runtime::spawn(waits);
        time::sleep(Duration::from_millis(10)).await;
        let second = mirror.session();
        let attached = time::timeout(Duration::from_secs(5), second.ask(attach(epoch + 4))).await;
        assert_eq!(attached, Ok(Ok(Ok(Reply::Done))), "it waits for what never comes");
        assert!(waits.await.expect("nobody ends it").is_err());
        // The old connection is there still, and is refused.
        let refused = first.ask(Request::Bits { page: 0 }).await;
        assert_eq!(refused, Ok(Err(Refusal::NotAttached)));
    });
}

#[test]
fn a_target_that_takes_over_by_itself_asks_before_it_serves() {
    let pair = Pair::new(17, |_| {});
    pair.cut();
    pair.write(0, 9, 1).expect("the peer is lost");
    let lost = lose(&pair, Fate::Unanswered, 1, |ask| matches!(ask, Request::EndResync { .. }));
    pair.hub().heal();
    while lost.get() == 0 {
        pair.sim.run_for(Duration::from_millis(1));
    }
    pair.end(0, false);
    // Equal generations, and the source has crashed: the target leads. But the source, which has
    // its peer recorded as out of date, may begin to serve at any moment.
    let lost = lose(&pair, Fate::Lost, u64::MAX, |ask| matches!(ask, Request::Attach(_)));
    pair.sim.restart(pair.nodes[0]);
    pair.open(0);
    while lost.get() == 0 {
        pair.sim.run_for(Duration::from_millis(1));
    }
    pair.sim.run_for(Duration::from_secs(2));
    assert!(!pair.mirror(1).is_active(), "it serves, and the source has not heard of it");
    assert_eq!(pair.on(0, |mirror| async move { mirror.start().await }), Ok(true));
    pair.hub().set_fate(|_| Fate::Arrives);
    pair.becomes_whole(0);
    assert!(!pair.mirror(1).is_active());
    assert_eq!(pair.read(0, 9), 1);
}

#[test]
fn a_resync_that_begins_while_the_target_is_made_the_source() {
    let pair = Pair::new(13, |_| {});
    pair.cut();
    pair.sim.run_for(Duration::from_secs(1));
    let source = pair.superblock(0);
    pair.on(1, move |mirror| async move {
        let (volume, replica) = (source.volume, source.replica);
        let (epoch, expected) = (mirror.status().epoch, source.current);
        let attach = Attach {
            volume,
            source: replica,
            epoch,
            expected,
            in_sync: false,
            usable_bytes: 0,
            version: Versions::SPOKEN.highest(),
        };
        let session = mirror.session();
        assert_eq!(session.ask(Request::Attach(attach)).await, Ok(Ok(Reply::Done)));
        let begins = Request::BeginResync { base: flagstone_mirror::id::Generation::NONE };
        let begins = flagstone_runtime::spawn(session.ask(begins));
        // Less than a disk needs to write the superblock.
        time::sleep(Duration::from_micros(5)).await;
        let promoted = mirror.failover().await;
        let began = begins.await.expect("nobody ends it");
        assert_eq!(began, Ok(Ok(Reply::Done)));
        assert_eq!(promoted, Err(RoleError::Inconsistent));
        assert!(!mirror.is_active());
    });
}

/// Found by real processes whose link was cut: the target had been restarted, and its source had come
/// before it could ask it who it is.
#[test]
fn a_target_that_has_not_met_its_source_knows_until_when_they_were_in_sync() {
    let pair = Pair::new(18, |_| {});
    pair.until(0, MirrorState::Mirroring);
    let target = pair.superblock(1).replica;
    pair.hub().set_fate(move |request| match request {
        Request::Identify { asker } if *asker == target => Fate::Lost,
        _ => Fate::Arrives,
    });
    pair.end(1, false);
    pair.sim.run_for(Duration::from_secs(2));
    pair.sim.restart(pair.nodes[1]);
    pair.open(1);
    pair.until(0, MirrorState::Mirroring);
    pair.end(0, true);
    pair.sim.run_for(Duration::from_secs(5));
    pair.on(1, |mirror| async move { mirror.failover().await }).expect("its data is whole");
    assert!(pair.peer_status(1).last_in_sync_s > 0);
}

#[test]
fn what_the_operator_wants_outlives_the_node() {
    let pair = Pair::new(14, |_| {});
    for (wish, state) in [(Wish::Pause, MirrorState::Paused), (Wish::Break, MirrorState::Broken)] {
        pair.on(0, move |mirror| async move { mirror.set_wish(0, wish).await }).expect("sound");
        pair.write(0, 30, 9).expect("nobody waits for the peer");
        pair.end(0, false);
        pair.restart(0);
        pair.sim.run_for(Duration::from_secs(20));
        assert_eq!(pair.state(0), state);
    }
    pair.on(0, |mirror| async move { mirror.set_wish(0, Wish::Mirror).await }).expect("sound");
    pair.becomes_whole(0);
    assert_eq!(pair.read(0, 30), 9);
    // What was not tracked is all copied.
    assert_eq!(pair.peer_status(0).resync_done_bytes, BLOCKS * BLOCK);
}

/// Blocks that are in as many regions, and no two of them neighbours.
const SCATTERED: [u64; 7] = [1, 6, 11, 23, 30, 47, 63];

#[test]
fn only_what_was_written_while_the_peer_was_away_is_copied() {
    let pair = Pair::new(15, |_| {});
    cool(&pair);
    pair.cut();
    for (byte, block) in (1..).zip(SCATTERED) {
        pair.write(0, block, byte).expect("the peer is lost");
    }
    let expected = SCATTERED.len() as u64 * BLOCK;
    assert_eq!(pair.peer_status(0).out_of_date_bytes, expected);
    pair.hub().heal();
    pair.becomes_whole(0);
    let status = pair.peer_status(0);
    assert_eq!((status.resync_done_bytes, status.resync_total_bytes), (expected, expected));
    assert_eq!(status.out_of_date_bytes, 0);
}

#[test]
fn after_a_crash_of_the_source_no_more_is_copied_than_its_log_names() {
    for power in [false, true] {
        let pair = Pair::new(16, |_| {});
        cool(&pair);
        for (byte, block) in (1..).zip(SCATTERED) {
            pair.write(0, block, byte).expect("both are there");
        }
        pair.end(0, power);
        pair.restart(0);
        let source = leader(&pair);
        pair.becomes_whole(source);
        let copied = pair.peer_status(source).resync_done_bytes;
        // The blocks lie in six regions: two share one.
        let regions =
            SCATTERED.iter().map(|block| block / 4).collect::<std::collections::BTreeSet<_>>();
        let bound = regions.len() as u64 * REGION;
        assert!(copied <= bound, "{copied} bytes were copied, {bound} were hot");
        for (byte, block) in (1..).zip(SCATTERED) {
            assert_eq!(pair.read(source, block), byte);
        }
    }
}

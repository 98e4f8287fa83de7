//! Regression tests for known failures of other mirrors: each case was a bug in the change log of a
//! widely used mirror, and the test is named after it.
//!
//! Left out, besides what [`super::pair`] leaves out: bugs of parts that this mirror does not have.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_mirror::io::queue::QueueLimits;
use flagstone_mirror::io::reorder::WriteOrder;
use flagstone_mirror::options::OnCongestion;
use flagstone_mirror::state::status::{DesiredState, MirrorState};
use flagstone_mirror::wire::peer::{AttachRequest, PeerRefusal, PeerReply, PeerRequest};
use flagstone_mirror::{CommandError, LinkVersions, Mode, RoleError};
use flagstone_runtime::time;

use super::link::CallOutcome;
use super::pair::{BLOCK, BLOCKS, Pair, REGION, fill};

/// Applies `outcome` to the first `count` requests of a kind, and counts the requests.
fn lose(
    pair: &Pair,
    outcome: CallOutcome,
    count: u64,
    kind: fn(&PeerRequest) -> bool,
) -> Rc<Cell<u64>> {
    let lost = Rc::new(Cell::new(0));
    let counter = lost.clone();
    pair.network().set_outcome(move |request| {
        if !kind(request) || counter.get() == count {
            return CallOutcome::Arrives;
        }
        counter.set(counter.get() + 1);
        outcome
    });
    lost
}

/// The serving node, after the handshake.
fn leader(pair: &Pair) -> usize {
    let deadline = pair.sim.now() + Duration::from_secs(60);
    loop {
        let whole = |index: &usize| pair.state(*index) == MirrorState::Mirroring;
        if let Some(index) = [0, 1].into_iter().find(whole) {
            return index;
        }
        pair.sim.run_for(Duration::from_millis(10));
        assert!(pair.sim.now() < deadline, "no node serves");
    }
}

/// Lets all regions become inactive, and the cleared bits reach the disk.
fn cool(pair: &Pair) {
    pair.sim.run_for(Duration::from_secs(10));
}

#[test]
fn handshake_decision_never_clears_the_bitmap() {
    let pair = Pair::new(1, |_| {});
    pair.cut();
    for block in [3, 20, 41] {
        pair.write(0, block, 7).expect("the peer is lost, and the policy is to degrade");
    }
    assert_eq!(pair.peer_status(0).out_of_sync_bytes, 3 * BLOCK);
    // Blocks that differ stay marked, however often the nodes repeat the handshake, and wherever it
    // is interrupted.
    type Kind = fn(&PeerRequest) -> bool;
    let kinds: [Kind; 4] = [
        |request| matches!(request, PeerRequest::Identify { .. }),
        |request| matches!(request, PeerRequest::Attach(_)),
        |request| matches!(request, PeerRequest::BitmapPage { .. }),
        |request| matches!(request, PeerRequest::BeginResync { .. }),
    ];
    for kind in kinds {
        for outcome in [CallOutcome::Lost, CallOutcome::Unanswered] {
            let lost = lose(&pair, outcome, 1, kind);
            pair.network().heal();
            while lost.get() == 0 {
                pair.sim.run_for(Duration::from_millis(1));
                assert_ne!(pair.state(0), MirrorState::Mirroring);
                assert_eq!(pair.peer_status(0).out_of_sync_bytes, 3 * BLOCK);
            }
            pair.cut();
            pair.sim.run_for(Duration::from_secs(1));
        }
    }
    // The same holds after a restart of both nodes from their disks.
    pair.end(0, true);
    pair.end(1, true);
    pair.restart(1);
    pair.restart(0);
    pair.network().heal();
    pair.becomes_in_sync(0);
    assert_eq!([3, 20, 41].map(|block| pair.read(0, block)), [7; 3]);
}

#[test]
fn stale_node_never_becomes_source() {
    let pair = Pair::new(2, |_| {});
    pair.write(0, 5, 1).expect("both are there");
    pair.cut();
    pair.write(0, 5, 2).expect("the peer is recorded as out of date");
    pair.end(0, true);
    pair.end(1, true);
    pair.network().heal();
    // The stale node comes back first, without its peer.
    pair.restart(1);
    pair.sim.run_for(Duration::from_secs(10));
    assert!(!pair.mirror(1).is_serving(), "it serves outdated data without a command");
    // The operator makes it serve; nothing is written there.
    pair.on(1, |mirror| async move { mirror.failover().await }).expect("complete data");
    assert_eq!(pair.read(1, 5), 1);
    pair.restart(0);
    pair.becomes_in_sync(0);
    assert_eq!(pair.read(0, 5), 2);
    assert!(!pair.mirror(1).is_serving());
}

/// In a switchover, the link fails before the request reaches the peer: the source continues at
/// once.
#[test]
fn interrupted_switchover_leaves_source_serving() {
    let pair = Pair::new(17, |_| {});
    pair.write(0, 4, 1).expect("both are there");
    let lost = lose(&pair, CallOutcome::Lost, 1, |request| {
        matches!(request, PeerRequest::Ancestors { .. })
    });
    let done = pair.on(0, |mirror| async move { mirror.switchover(0).await });
    assert_eq!(lost.get(), 1);
    assert!(matches!(done, Err(CommandError::Peer(_))), "{done:?}");
    assert!(pair.mirror(0).is_serving() && !pair.mirror(1).is_serving());
    assert_eq!(pair.superblock(0).designated_successor, None);
    assert_eq!(pair.read(0, 4), 1);
    pair.becomes_in_sync(0);
}

#[test]
fn split_brain_never_reports_in_sync() {
    let pair = Pair::new(3, |_| {});
    pair.cut();
    pair.write(0, 1, 1).expect("the peer is lost");
    pair.on(1, |mirror| async move { mirror.failover().await }).expect("complete data");
    pair.write(1, 1, 2).expect("the peer is lost");
    pair.network().heal();
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
    // Commands that do not choose a side change nothing, and neither does a restart.
    for index in [0, 1] {
        pair.on(index, |mirror| async move {
            // The deposed node refuses it.
            let _ = mirror.set_desired_state(0, DesiredState::Paused).await;
            let _ = mirror.set_desired_state(0, DesiredState::Connected).await;
            mirror.resync_all(0).expect("there is a peer");
            assert!(mirror.switchover(0).await.is_err());
        });
        never_whole(50);
    }
    assert_eq!((pair.active(), pair.read(1, 1)), (vec![1], 2), "the later source serves");
    pair.end(0, false);
    pair.end(1, true);
    pair.restart(0);
    pair.restart(1);
    never_whole(100);
    assert_eq!([0, 1].map(|index| pair.leg(index)[BLOCK as usize]), [1, 2], "all data is kept");
    pair.until(0, MirrorState::SplitBrain);
    pair.until(1, MirrorState::SplitBrain);
}

/// At the end of a resync, the source announces its generation, and `outcome` decides whether it
/// arrives. The source then writes degraded, and optionally dies.
fn announced(seed: u64, outcome: CallOutcome, crash: bool) {
    let pair = Pair::new(seed, |_| {});
    pair.cut();
    pair.write(0, 9, 1).expect("the peer is lost");
    let lost = lose(&pair, outcome, 1, |request| matches!(request, PeerRequest::EndResync { .. }));
    pair.network().heal();
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
    pair.network().heal();
    pair.becomes_in_sync(0);
    assert_eq!((pair.read(0, 9), pair.read(0, 10)), (1, 2));
    let copied = pair.peer_status(0).resync_done_bytes;
    let bound = if crash { 2 * REGION } else { 2 * BLOCK };
    assert!((BLOCK..=bound).contains(&copied), "{copied} bytes were copied");
    let generations = [0, 1].map(|index| pair.superblock(index).current);
    assert_eq!(generations[0], generations[1]);
}

#[test]
fn announced_generation_is_never_received() {
    announced(4, CallOutcome::Lost, false);
    announced(5, CallOutcome::Lost, true);
}

#[test]
fn source_misses_the_end_of_a_resync() {
    announced(6, CallOutcome::Unanswered, false);
    announced(7, CallOutcome::Unanswered, true);
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
        // The source dies during a write, which may be on one leg only.
        let mirror = pair.mirror(0);
        pair.sim.spawn_on(pair.nodes[0], async move { fill(&mirror, 2, 4).await });
        pair.sim.run_for(Duration::from_micros(150));
        pair.end(0, true);
        pair.sim.run_for(Duration::from_secs(1));
        assert_eq!(pair.superblock(1).current, before, "nothing was written without the peer");
        if back_first == 1 {
            pair.on(1, |mirror| async move { mirror.failover().await }).expect("complete data");
        }
        pair.restart(0);
        let source = leader(&pair);
        assert!(source == 1 || back_first == 0, "hosts have read node 1's data");
        pair.becomes_in_sync(source);
        let status = pair.peer_status(source);
        assert!(status.resync_done_bytes > 0, "writes in flight are copied");
        assert!(status.resync_done_bytes <= 2 * REGION, "and the active regions, no more");
        for block in (0..8).filter(|block| *block != 2) {
            assert_eq!(pair.read(source, block), 3);
        }
        assert!([3, 4].contains(&pair.read(source, 2)));
    }
}

#[test]
fn resync_completes_under_continuous_writes() {
    let pair = Pair::new(10, |peer| {
        // Slower than the host's writes.
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
    pair.network().heal();
    let (began, before) = (pair.sim.now(), written.get());
    pair.until(0, MirrorState::Mirroring);
    let span = pair.sim.now().as_nanos() - began.as_nanos();
    // 4 MiB at 1 to 4 MiB/s.
    assert!(span < 8_000_000_000, "it took {span} ns");
    assert!(written.get() - before > 3 * BLOCKS * BLOCK, "hosts wrote continuously");
    assert_eq!(pair.peer_status(0).resync_done_bytes, BLOCKS * BLOCK, "once each");
}

#[test]
fn slow_target_does_not_flap() {
    let pair = Pair::new(11, |peer| {
        (peer.mode, peer.on_congestion) = (Mode::Async, OnCongestion::Detach);
        peer.queue = QueueLimits {
            high_bytes: 4 * BLOCK,
            low_bytes: 2 * BLOCK,
            writes: 64,
            window_bytes: 2 * BLOCK,
        };
    });
    pair.network().set_slow(Duration::from_millis(20));
    for lane in 0..4 {
        let mirror = pair.mirror(0);
        pair.sim.spawn_on(pair.nodes[0], async move {
            for round in 0u64.. {
                fill(&mirror, (round * 5 + lane) % BLOCKS, round as u8).await.expect("it serves");
                time::sleep(Duration::from_millis(4)).await;
            }
        });
    }
    let disconnects = pair.peer_status(0).disconnects;
    pair.sim.run_for(Duration::from_secs(60));
    let status = pair.peer_status(0);
    let flaps = status.disconnects - disconnects;
    // The target falls behind at once, and each attempt waits ten seconds.
    assert!((1..=7).contains(&flaps), "it fell behind {flaps} times in a minute");
    assert!(status.out_of_sync_bytes <= BLOCKS * BLOCK);
}

#[test]
fn attach_does_not_wait_for_lost_ordered_writes() {
    let pair = Pair::new(12, |peer| peer.mode = Mode::Async);
    pair.cut();
    let source = pair.superblock(0);
    pair.on(1, move |mirror| async move {
        let attach = |epoch| {
            let expected = source.current;
            let (volume, source) = (source.volume, source.replica);
            PeerRequest::Attach(AttachRequest {
                group: 0,
                asks: None,
                volume,
                source,
                epoch,
                expected,
                in_sync: true,
                usable_bytes: 0,
                version: LinkVersions::SPOKEN.highest(),
            })
        };
        let epoch = mirror.status().role_epoch;
        let first = mirror.session();
        assert_eq!(first.ask(attach(epoch)).await, Ok(Ok(PeerReply::Done)));
        // A write ordered after another one, which is lost with its connection.
        let data = flagstone_runtime::buf::alloc(BLOCK as usize).await.freeze();
        let waits = first.write(0, data, false, Some(WriteOrder { number: 2, concurrent: 0 }));
        let waits = flagstone_runtime::spawn(waits);
        time::sleep(Duration::from_millis(10)).await;
        let second = mirror.session();
        let attached = time::timeout(Duration::from_secs(5), second.ask(attach(epoch + 4))).await;
        assert_eq!(attached, Ok(Ok(Ok(PeerReply::Done))), "it waits for a write that never comes");
        assert!(waits.await.expect("the task is not aborted").is_err());
        // The old connection still exists, and is refused.
        let refused = first.ask(PeerRequest::BitmapPage { page: 0 }).await;
        assert_eq!(refused, Ok(Err(PeerRefusal::NotAttached)));
    });
}

#[test]
fn automatic_takeover_asks_the_peer_before_serving() {
    let pair = Pair::new(17, |_| {});
    pair.cut();
    pair.write(0, 9, 1).expect("the peer is lost");
    let lost =
        lose(&pair, CallOutcome::Unanswered, 1, |ask| matches!(ask, PeerRequest::EndResync { .. }));
    pair.network().heal();
    while lost.get() == 0 {
        pair.sim.run_for(Duration::from_millis(1));
    }
    pair.end(0, false);
    // Generations are equal and the source has crashed: the target leads. But the source has its
    // peer recorded as out of date, and may start to serve at any moment.
    let lost =
        lose(&pair, CallOutcome::Lost, u64::MAX, |ask| matches!(ask, PeerRequest::Attach(_)));
    pair.sim.restart(pair.nodes[0]);
    pair.open(0);
    while lost.get() == 0 {
        pair.sim.run_for(Duration::from_millis(1));
    }
    pair.sim.run_for(Duration::from_secs(2));
    assert!(!pair.mirror(1).is_serving(), "it serves, and the source does not know it");
    assert_eq!(pair.on(0, |mirror| async move { mirror.start().await }), Ok(true));
    pair.network().set_outcome(|_| CallOutcome::Arrives);
    pair.becomes_in_sync(0);
    assert!(!pair.mirror(1).is_serving());
    assert_eq!(pair.read(0, 9), 1);
}

#[test]
fn resync_starts_while_the_target_is_promoted() {
    let pair = Pair::new(13, |_| {});
    pair.cut();
    pair.sim.run_for(Duration::from_secs(1));
    let source = pair.superblock(0);
    pair.on(1, move |mirror| async move {
        let (volume, replica) = (source.volume, source.replica);
        let (epoch, expected) = (mirror.status().role_epoch, source.current);
        let attach = AttachRequest {
            group: 0,
            asks: None,
            volume,
            source: replica,
            epoch,
            expected,
            in_sync: false,
            usable_bytes: 0,
            version: LinkVersions::SPOKEN.highest(),
        };
        let session = mirror.session();
        assert_eq!(session.ask(PeerRequest::Attach(attach)).await, Ok(Ok(PeerReply::Done)));
        let begins = PeerRequest::BeginResync { base: flagstone_mirror::id::Generation::NONE };
        let begins = flagstone_runtime::spawn(session.ask(begins));
        // Shorter than a disk needs to write the superblock.
        time::sleep(Duration::from_micros(5)).await;
        let promoted = mirror.failover().await;
        let began = begins.await.expect("the task is not aborted");
        assert_eq!(began, Ok(Ok(PeerReply::Done)));
        assert_eq!(promoted, Err(RoleError::Inconsistent));
        assert!(!mirror.is_serving());
    });
}

/// Found by real processes whose link was cut: the target had restarted, and its source connected
/// before the target could identify it.
#[test]
fn restarted_target_knows_when_it_was_last_in_sync() {
    let pair = Pair::new(18, |_| {});
    pair.until(0, MirrorState::Mirroring);
    let target = pair.superblock(1).replica;
    pair.network().set_outcome(move |request| match request {
        PeerRequest::Identify { asker } if *asker == target => CallOutcome::Lost,
        _ => CallOutcome::Arrives,
    });
    pair.end(1, false);
    pair.sim.run_for(Duration::from_secs(2));
    pair.sim.restart(pair.nodes[1]);
    pair.open(1);
    pair.until(0, MirrorState::Mirroring);
    pair.end(0, true);
    pair.sim.run_for(Duration::from_secs(5));
    pair.on(1, |mirror| async move { mirror.failover().await }).expect("its data is complete");
    assert!(pair.peer_status(1).last_in_sync_s > 0);
}

#[test]
fn desired_state_survives_a_restart() {
    let pair = Pair::new(14, |_| {});
    for (desired, state) in
        [(DesiredState::Paused, MirrorState::Paused), (DesiredState::Detached, MirrorState::Broken)]
    {
        pair.on(0, move |mirror| async move { mirror.set_desired_state(0, desired).await })
            .expect("sound");
        pair.write(0, 30, 9).expect("no write waits for the peer");
        pair.end(0, false);
        pair.restart(0);
        pair.sim.run_for(Duration::from_secs(20));
        assert_eq!(pair.state(0), state);
    }
    pair.on(0, |mirror| async move { mirror.set_desired_state(0, DesiredState::Connected).await })
        .expect("sound");
    pair.becomes_in_sync(0);
    assert_eq!(pair.read(0, 30), 9);
    // Untracked blocks are all copied.
    assert_eq!(pair.peer_status(0).resync_done_bytes, BLOCKS * BLOCK);
}

/// Non-adjacent blocks, all in different regions but two.
const SCATTERED: [u64; 7] = [1, 6, 11, 23, 30, 47, 63];

#[test]
fn only_degraded_writes_are_copied() {
    let pair = Pair::new(15, |_| {});
    cool(&pair);
    pair.cut();
    for (byte, block) in (1..).zip(SCATTERED) {
        pair.write(0, block, byte).expect("the peer is lost");
    }
    let expected = SCATTERED.len() as u64 * BLOCK;
    assert_eq!(pair.peer_status(0).out_of_sync_bytes, expected);
    pair.network().heal();
    pair.becomes_in_sync(0);
    let status = pair.peer_status(0);
    assert_eq!((status.resync_done_bytes, status.resync_total_bytes), (expected, expected));
    assert_eq!(status.out_of_sync_bytes, 0);
}

#[test]
fn source_crash_copies_only_regions_in_its_log() {
    for power in [false, true] {
        let pair = Pair::new(16, |_| {});
        cool(&pair);
        for (byte, block) in (1..).zip(SCATTERED) {
            pair.write(0, block, byte).expect("both are there");
        }
        pair.end(0, power);
        pair.restart(0);
        let source = leader(&pair);
        pair.becomes_in_sync(source);
        let copied = pair.peer_status(source).resync_done_bytes;
        // The blocks lie in six regions, because two of them share one.
        let regions =
            SCATTERED.iter().map(|block| block / 4).collect::<std::collections::BTreeSet<_>>();
        let bound = regions.len() as u64 * REGION;
        assert!(copied <= bound, "{copied} bytes were copied, {bound} were active");
        for (byte, block) in (1..).zip(SCATTERED) {
            assert_eq!(pair.read(source, block), byte);
        }
    }
}

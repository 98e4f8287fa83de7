//! Flushes that wait for a lost peer, because the policy blocks writes without it.
//!
//! Left out, besides what [`super::pair`] leaves out: automatic failover, which refuses the policy.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, IoError};
use flagstone_mirror::state::status::{DesiredState, MirrorState};
use flagstone_mirror::{Ack, OnPeerLoss, PeerChange, PeerOptions};

use super::broken::{block, unwritable};
use super::pair::{Change, Pair};

/// A mirror in sync in which writes block without the peer, which acknowledges from memory.
fn blocking(seed: u64) -> Pair {
    let options = |peer: &mut PeerOptions| {
        (peer.ack, peer.on_peer_loss) = (Ack::Memory, OnPeerLoss::Block);
    };
    let pair = Pair::new(seed, options);
    pair.write(0, 9, 1).expect("both are there");
    pair
}

/// Begins a flush at node 0, and runs for a while. Returns its result as soon as there is one.
fn begin_flush(pair: &Pair) -> Rc<Cell<Option<Result<(), IoError>>>> {
    let (mirror, flushed) = (pair.mirror(0), Rc::new(Cell::new(None)));
    let done = flushed.clone();
    pair.sim.spawn_on(pair.nodes[0], async move { done.set(Some(mirror.flush().await)) });
    pair.sim.run_for(Duration::from_secs(20));
    flushed
}

/// With `block`, what a flush makes durable is durable on both nodes.
#[test]
fn flush_waits_for_lost_peer_if_writes_do() {
    for is_lost_first in [true, false] {
        let pair = blocking(31);
        let (mirror, flushed) = (pair.mirror(0), Rc::new(Cell::new(None)));
        let done = flushed.clone();
        let begin = || {
            pair.sim.spawn_on(pair.nodes[0], async move { done.set(Some(mirror.flush().await)) })
        };
        match is_lost_first {
            true => {
                pair.cut();
                pair.sim.run_for(Duration::from_secs(20));
                begin();
            }
            // The peer does not answer the flush any more.
            false => {
                pair.network().set_slow(Duration::from_millis(50));
                begin();
                pair.sim.run_for(Duration::from_millis(10));
                pair.cut();
            }
        }
        pair.sim.run_for(Duration::from_secs(20));
        assert_eq!(flushed.get(), None, "only one node has the write");
        pair.network().set_slow(Duration::ZERO);
        pair.network().heal();
        pair.becomes_in_sync(0);
        pair.sim.run_for(Duration::from_secs(1));
        assert_eq!(flushed.get(), Some(Ok(())));
    }
}

#[test]
fn flush_ends_if_lost_peer_has_flushed() {
    let pair = blocking(31);
    assert_eq!(begin_flush(&pair).get(), Some(Ok(())));
    pair.cut();
    assert_eq!(begin_flush(&pair).get(), Some(Ok(())), "nothing is to be flushed");
}

/// The operator's order ends the wait, as for writes.
#[test]
fn pause_releases_blocked_flush() {
    let pair = blocking(31);
    pair.cut();
    let flushed = begin_flush(&pair);
    assert_eq!(flushed.get(), None);
    pair.on(0, |mirror| async move { mirror.set_desired_state(0, DesiredState::Paused).await })
        .expect("it is the source");
    pair.sim.run_for(Duration::from_secs(1));
    assert_eq!(flushed.get(), Some(Ok(())));
}

/// Regression: with `block`, a flush waited for the end of each resync, which never comes while the
/// peer has a bad block.
#[test]
fn flush_does_not_wait_for_resync() {
    let pair = blocking(31);
    pair.write(0, 3, 2).expect("both are there");
    pair.cut();
    pair.sim.run_for(Duration::from_secs(20));
    let waiting = begin_flush(&pair);
    assert_eq!(waiting.get(), None);
    unwritable(&pair, 1, block(3));
    pair.network().heal();
    pair.sim.run_for(Duration::from_secs(20));
    assert_eq!(pair.state(0), MirrorState::Resynchronizing);
    assert_eq!(waiting.get(), Some(Ok(())));
    pair.write(0, 5, 3).expect("the peer is attached");
    assert_eq!(begin_flush(&pair).get(), Some(Ok(())));
    assert_eq!(pair.state(0), MirrorState::Resynchronizing);
}

/// Regression: only the mirror in memory knew what the peer may lack, so its replacement and the
/// next process acknowledged the flush that it had blocked.
#[test]
fn flush_stays_blocked_in_a_replacement() {
    let pair = blocking(31);
    pair.cut();
    let waiting = begin_flush(&pair);
    assert_eq!(waiting.get(), None);
    let resizing = pair.resizing(0);
    let change = Change::Peers(PeerChange { legs: vec![Some(0)], members: Vec::new() });
    pair.on(0, move |mirror| async move { resizing.change(&mirror, change).await })
        .expect("a sound disk");
    assert_eq!(pair.active(), [0]);
    let later = begin_flush(&pair);
    assert_eq!([waiting.get(), later.get()], [None; 2], "only one node has the write");
    pair.network().heal();
    pair.sim.run_for(Duration::from_secs(20));
    assert_eq!([waiting.get(), later.get()], [Some(Ok(())); 2]);
}

#[test]
fn flush_stays_blocked_after_a_restart() {
    for power in [false, true] {
        let pair = blocking(31);
        pair.cut();
        assert_eq!(begin_flush(&pair).get(), None);
        pair.end(0, power);
        pair.restart(0);
        pair.sim.run_for(Duration::from_secs(10));
        assert_eq!(pair.active(), [0]);
        let waiting = begin_flush(&pair);
        assert_eq!(waiting.get(), None, "only one node has the write");
        pair.network().heal();
        pair.sim.run_for(Duration::from_secs(20));
        assert_eq!(waiting.get(), Some(Ok(())));
    }
}

//! What an operator asks of mirrors that nothing is wrong with, and what is shown of it.

use std::time::Duration;

use flagstone_mirror::peer::{Refusal, Request};
use flagstone_mirror::state::{MirrorState, Wish};

use super::pair::{BLOCK, Pair, Trio};

/// Of two targets that are both in sync the one gets the role that asks for it.
#[test]
fn a_target_that_asks_for_the_role_gets_it_and_not_the_other() {
    for asker in [1, 2] {
        let trio = Trio::new(1, |_| {});
        trio.write(0, 5, 1).expect("all are there");
        trio.on(asker, |mirror| async move { mirror.switchover(Trio::leg_to(1, 0)).await })
            .expect("all are in sync");
        assert_eq!(trio.active(), [asker]);
        trio.becomes_whole(asker);
        assert_eq!(trio.read(asker, 5), 1);
    }
}

/// One that did not say who it is could be either of two targets; of one there is no doubt.
#[test]
fn who_asks_for_the_role_and_is_unknown_gets_it_only_without_another_target() {
    let ask = |mirror: std::sync::Arc<flagstone_mirror::Mirror>| async move {
        mirror.session().ask(Request::HandOver).await.expect("it answers").map(drop)
    };
    let trio = Trio::new(2, |_| {});
    assert_eq!(trio.on(0, ask), Err(Refusal::NotNow));
    assert_eq!(trio.active(), [0]);
    let pair = Pair::new(2, |_| {});
    assert_eq!(pair.on(0, ask), Ok(()));
    assert_eq!(pair.active(), [1]);
}

/// A loss is what nobody asked for.
#[test]
fn what_an_operator_asks_for_is_no_loss() {
    let pair = Pair::new(3, |_| {});
    let losses = || pair.peer_status(0).losses;
    for wish in [Wish::Pause, Wish::Mirror, Wish::Break, Wish::Mirror] {
        pair.on(0, move |mirror| async move { mirror.set_wish(0, wish).await }).expect("sound");
        match wish {
            Wish::Mirror => pair.becomes_whole(0),
            Wish::Pause => pair.until(0, MirrorState::Paused),
            Wish::Break => pair.until(0, MirrorState::Broken),
        }
    }
    pair.on(0, |mirror| async move { mirror.resync_all(0) }).expect("there is one");
    pair.until(0, MirrorState::Resynchronizing);
    pair.becomes_whole(0);
    pair.sim.poke(pair.nodes[1], super::pair::DATA, 7 * BLOCK, &[1]);
    let found = pair.on(0, |mirror| async move { mirror.verify(0, None, true, |_| {}).await });
    assert_eq!(found.expect("both are there").differing_bytes, BLOCK);
    pair.becomes_whole(0);
    for (from, to) in [(0, 1), (1, 0)] {
        pair.on(from, |mirror| async move { mirror.switchover(0).await }).expect("in sync");
        pair.becomes_whole(to);
    }
    assert_eq!(losses(), 0);
    pair.cut();
    pair.write(0, 1, 1).expect("it goes on alone");
    assert_eq!(losses(), 1);
}

/// Nor are the other targets of one that hands its role over.
#[test]
fn a_switchover_is_no_loss_of_any_target() {
    let trio = Trio::new(5, |_| {});
    trio.write(0, 5, 1).expect("all are there");
    trio.on(0, |mirror| async move { mirror.switchover(Trio::leg_to(0, 1)).await })
        .expect("all are in sync");
    trio.becomes_whole(1);
    for other in [1, 2] {
        assert_eq!(trio.status_of(0, other).losses, 0, "of {other}");
    }
}

/// What is copied is no call of a host.
#[test]
fn a_resync_is_not_taken_for_calls_of_hosts() {
    let pair = Pair::new(4, |_| {});
    pair.on(0, |mirror| async move { mirror.resync_all(0) }).expect("there is one");
    pair.until(0, MirrorState::Resynchronizing);
    let mut looks = 0;
    while pair.state(0) != MirrorState::Mirroring {
        let status = pair.on(0, |mirror| async move { mirror.status() });
        assert_eq!((status.in_flight, status.waiting_for_overlap), (0, 0));
        looks += 1;
        pair.sim.run_for(Duration::from_micros(100));
    }
    assert!(looks > 10, "{looks} looks");
}

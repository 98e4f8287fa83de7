//! Split brain, with a policy and without.

use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_mirror::peer::{AskError, Refusal};
use flagstone_mirror::state::MirrorState;
use flagstone_mirror::{CommandError, WhenSplit};

use super::pair::{BLOCK, Pair};

/// With the policy that keeps who serves: as long as both do nobody gives up, and once one does not
/// it takes the other's data, of which nothing is lost.
#[test]
fn a_split_brain_ends_by_policy_when_one_serves_and_the_other_does_not() {
    let pair = Pair::new(4, |peer| peer.when_split = WhenSplit::KeepServing);
    pair.write(0, 5, 9).expect("both are there");
    pair.cut();
    pair.write(0, 1, 1).expect("the peer is lost");
    pair.write(0, 2, 1).expect("the peer is lost");
    pair.on(1, |mirror| async move { mirror.failover().await }).expect("whole data");
    pair.write(1, 1, 2).expect("the peer is lost");
    pair.write(1, 3, 2).expect("the peer is lost");
    pair.hub().heal();
    pair.until(0, MirrorState::SplitBrain);
    pair.until(1, MirrorState::SplitBrain);
    pair.sim.run_for(Duration::from_secs(20));
    assert_eq!([0, 1].map(|index| pair.state(index)), [MirrorState::SplitBrain; 2]);
    assert_eq!((pair.read(0, 2), pair.read(1, 3)), (1, 2), "both go on with what is theirs");
    pair.on(0, |mirror| async move { mirror.demote().await }).expect("sound disks");
    pair.becomes_whole(1);
    let found = [1, 2, 3, 5].map(|block| pair.read(1, block));
    assert_eq!(found, [2, 0, 2, 9], "what node 0 wrote alone is gone");
    let [gave, kept] = [0, 1].map(|index| pair.peer_status(index));
    assert_eq!((gave.given_up, kept.given_up, kept.given_up_bytes), (1, 0, 0));
    // A region of which any block is hot counts with what is in it.
    assert!(gave.given_up_bytes >= 2 * BLOCK, "{}", gave.given_up_bytes);
}

/// By default a demotion chooses nothing.
#[test]
fn without_a_policy_a_split_brain_stays() {
    let pair = Pair::new(4, |_| {});
    pair.cut();
    pair.write(0, 1, 1).expect("the peer is lost");
    pair.on(1, |mirror| async move { mirror.failover().await }).expect("whole data");
    pair.write(1, 1, 2).expect("the peer is lost");
    pair.on(0, |mirror| async move { mirror.demote().await }).expect("sound disks");
    pair.hub().heal();
    pair.until(0, MirrorState::SplitBrain);
    pair.sim.run_for(Duration::from_secs(20));
    assert_eq!([0, 1].map(|index| pair.state(index)), [MirrorState::SplitBrain; 2]);
    assert_eq!([0, 1].map(|index| pair.leg(index)[BLOCK as usize]), [1, 2]);
}

/// What a dry run of a choice says is what the choice itself would: the peer is asked.
#[test]
fn a_choice_is_foreseen_as_it_ends() {
    let pair = Pair::new(6, |_| {});
    let foreseen = |keep_mine| {
        pair.on(0, move |mirror| async move { mirror.foresee_resolve(0, keep_mine).await })
    };
    let mine = || pair.on(0, |mirror| async move { mirror.resolve_keep_mine(0).await });
    let none = Err(CommandError::NoSplitBrain);
    assert_eq!((foreseen(true), foreseen(false), mine()), (none, none, none));
    pair.cut();
    pair.write(0, 1, 1).expect("the peer is lost");
    pair.on(1, |mirror| async move { mirror.failover().await }).expect("whole data");
    pair.write(1, 1, 2).expect("the peer is lost");
    let silent = Err(CommandError::Peer(AskError::Io(IoError::Unreachable)));
    assert_eq!((foreseen(true), mine()), (silent, silent));
    pair.hub().heal();
    pair.until(0, MirrorState::SplitBrain);
    let active = Err(CommandError::Peer(AskError::Refused(Refusal::Active)));
    assert_eq!((foreseen(true), mine()), (active, active));
    assert_eq!(foreseen(false), Ok(()), "this side stops by itself");
    pair.on(1, |mirror| async move { mirror.demote().await }).expect("sound disks");
    assert_eq!(foreseen(true), Ok(()));
    pair.sim.run_for(Duration::from_secs(10));
    assert_eq!(pair.state(0), MirrorState::SplitBrain, "nothing was done");
    assert_eq!([0, 1].map(|index| pair.leg(index)[BLOCK as usize]), [1, 2]);
    assert_eq!(mine(), Ok(()));
    pair.becomes_whole(0);
    assert_eq!(pair.read(0, 1), 1);
}

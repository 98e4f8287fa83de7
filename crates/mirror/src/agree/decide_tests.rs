//! A test for each row of the table in `docs/mirror-handshake.md`, and general laws.

use proptest::prelude::*;

use super::*;
use crate::agree::generation::GenerationList;
use crate::id::Generation;

fn list<const N: usize>(items: &[u64]) -> GenerationList<N> {
    let mut list = GenerationList::default();
    for (slot, item) in list.0.iter_mut().zip(items) {
        *slot = Generation(*item);
    }
    list
}

fn view(replica: u8, current: u64, bases: &[u64], history: &[u64]) -> ReplicaView {
    ReplicaView {
        volume: MirrorId([1; 16]),
        replica: MirrorId([replica; 16]),
        usable_bytes: 1 << 30,
        bit_bytes: 65536,
        generations: GenerationHistory {
            current: Generation(current),
            bases: list(bases),
            history: list(history),
        },
        ..ReplicaView::default()
    }
}

const FROM_MINE: fn(ResyncAmount) -> HandshakeDecision =
    |amount| HandshakeDecision::Resync { source: ReplicaSide::Local, amount };

/// Checks both directions.
fn expect(mine: &ReplicaView, peers: &ReplicaView, decision: HandshakeDecision) {
    assert_eq!(decide(mine, peers), decision);
    assert_eq!(decide(peers, mine), decision.mirrored());
}

#[test]
fn row_1_other_volume_or_same_replica_is_unrelated() {
    let mine = view(1, 5, &[], &[]);
    expect(
        &mine,
        &ReplicaView { volume: MirrorId([9; 16]), ..view(2, 5, &[], &[]) },
        HandshakeDecision::Unrelated,
    );
    expect(&mine, &mine, HandshakeDecision::Unrelated);
}

#[test]
fn row_2_granularity_block_size_or_size_mismatch() {
    let peers = ReplicaView { bit_bytes: 4096, ..view(2, 5, &[], &[]) };
    expect(&view(1, 5, &[], &[]), &peers, HandshakeDecision::Incompatible);
    // Logical block sizes, whichever side would be the source, and whatever there is to copy.
    let blocks = |block_bytes, view| ReplicaView { block_bytes, ..view };
    for peers in [view(2, 5, &[], &[]), view(2, 0, &[], &[]), view(2, 4, &[], &[])] {
        let mine = view(1, 5, &[4], &[]);
        for (one, other) in [(512, 4096), (4096, 512)] {
            expect(&blocks(one, mine), &blocks(other, peers), HandshakeDecision::Incompatible);
        }
        // Equal, or unknown on one side.
        for (one, other) in [(4096, 4096), (512, 0), (0, 4096)] {
            expect(&blocks(one, mine), &blocks(other, peers), decide(&mine, &peers));
        }
    }
    // The target would have to be as large as its source.
    let small = ReplicaView { usable_bytes: 1 << 29, room_bytes: 1 << 29, ..view(2, 5, &[], &[]) };
    let larger = view(1, 6, &[5], &[]);
    expect(&larger, &small, HandshakeDecision::Incompatible);
    let grown = ReplicaView { room_bytes: 1 << 30, ..small };
    expect(&larger, &grown, FROM_MINE(ResyncAmount::Partial));
    // A larger target adopts its source's size.
    let smaller = ReplicaView { usable_bytes: 1 << 29, ..view(1, 6, &[5], &[]) };
    expect(&smaller, &view(2, 5, &[], &[]), FROM_MINE(ResyncAmount::Partial));
}

#[test]
fn growth_is_never_in_sync_with_old_size() {
    // A source that grew has started a generation, so its target is known to lack the new space,
    // whatever the names and epochs. Equal generations of different sizes come from no valid
    // history: they are never in sync, and hosts never see a size shrink.
    let grown = ReplicaView { usable_bytes: 1 << 31, room_bytes: 1 << 31, ..view(1, 5, &[], &[]) };
    let peers = ReplicaView { room_bytes: 1 << 31, epoch: 9, ..view(2, 5, &[], &[]) };
    expect(&grown, &peers, FROM_MINE(ResyncAmount::Partial));
    expect(
        &grown,
        &ReplicaView { serving: true, ..peers },
        FROM_MINE(ResyncAmount::Partial).mirrored(),
    );
}

#[test]
fn row_3_two_blank_replicas_have_no_source() {
    expect(&view(1, 0, &[], &[]), &view(2, 0, &[], &[]), HandshakeDecision::NoSource);
}

#[test]
fn row_4_blank_replica_gets_full_resync() {
    expect(&view(1, 5, &[], &[]), &view(2, 0, &[], &[]), FROM_MINE(ResyncAmount::Full));
}

#[test]
fn row_5_equal_and_clean_is_in_sync() {
    expect(&view(1, 5, &[], &[]), &view(2, 5, &[], &[]), HandshakeDecision::InSync);
    expect(&view(1, 5, &[3], &[]), &view(2, 5, &[], &[3]), HandshakeDecision::InSync);
}

#[test]
fn row_6_inconsistent_replica_is_the_target() {
    let peers = ReplicaView { inconsistent: true, ..view(2, 5, &[], &[]) };
    expect(&view(1, 5, &[], &[]), &peers, FROM_MINE(ResyncAmount::Partial));
    // Regardless of other properties.
    let peers = ReplicaView { serving: true, epoch: 9, ..peers };
    let mine = ReplicaView { crashed: true, ..view(1, 5, &[], &[]) };
    expect(&mine, &peers, FROM_MINE(ResyncAmount::Partial));
    expect(&ReplicaView { inconsistent: true, ..mine }, &peers, HandshakeDecision::NoSource);
}

#[test]
fn row_7_equal_generations_with_bits_are_resynced() {
    // Data that hosts are reading is kept.
    let mine = ReplicaView { serving: true, crashed: true, dirty: true, ..view(1, 5, &[], &[]) };
    let peers = ReplicaView { epoch: 7, ..view(2, 5, &[], &[]) };
    expect(&mine, &peers, FROM_MINE(ResyncAmount::Partial));
    // A crashed source from which no host has read since follows its target.
    let peers = ReplicaView { serving: false, ..mine };
    let mine = ReplicaView { replica: MirrorId([3; 16]), ..view(3, 5, &[], &[]) };
    expect(&mine, &peers, FROM_MINE(ResyncAmount::Partial));
    // Otherwise the later epoch, the side with bits, or else the larger identifier.
    let mine = ReplicaView { dirty: true, epoch: 3, ..view(1, 5, &[], &[]) };
    let peers = ReplicaView { dirty: true, epoch: 2, ..view(2, 5, &[], &[]) };
    expect(&mine, &peers, FROM_MINE(ResyncAmount::Partial));
    let mine = ReplicaView { dirty: true, ..view(1, 5, &[], &[]) };
    expect(&mine, &view(2, 5, &[], &[]), FROM_MINE(ResyncAmount::Partial));
    let mine = ReplicaView { dirty: true, ..view(3, 5, &[], &[]) };
    let peers = ReplicaView { dirty: true, ..view(2, 5, &[], &[]) };
    expect(&mine, &peers, FROM_MINE(ResyncAmount::Partial));
}

#[test]
fn row_8_replica_with_peer_as_base_is_the_source() {
    expect(&view(1, 6, &[5], &[]), &view(2, 5, &[], &[]), FROM_MINE(ResyncAmount::Partial));
    // The answer at the end of a resync was lost: the peer may hold any of the bases.
    expect(&view(1, 7, &[5, 6], &[]), &view(2, 6, &[], &[5]), FROM_MINE(ResyncAmount::Partial));
    // The outdated node is not chosen, whatever it reports about itself.
    let stale = ReplicaView { serving: true, epoch: 9, dirty: true, ..view(2, 5, &[], &[]) };
    expect(&view(1, 6, &[5], &[]), &stale, FROM_MINE(ResyncAmount::Partial));
    let torn = ReplicaView { inconsistent: true, ..view(1, 6, &[5], &[]) };
    expect(&torn, &view(2, 5, &[], &[]), HandshakeDecision::NoSource);
}

#[test]
fn row_9_mutual_claims_are_split_brain() {
    expect(&view(1, 6, &[5], &[]), &view(2, 5, &[6], &[]), HandshakeDecision::SplitBrain);
    expect(&view(1, 6, &[], &[5]), &view(2, 5, &[], &[6]), HandshakeDecision::SplitBrain);
}

#[test]
fn row_10_data_from_history_gets_full_resync() {
    expect(&view(1, 7, &[], &[6, 5]), &view(2, 5, &[], &[]), FROM_MINE(ResyncAmount::Full));
}

#[test]
fn row_11_common_ancestor_is_split_brain() {
    expect(&view(1, 6, &[5], &[]), &view(2, 7, &[5], &[]), HandshakeDecision::SplitBrain);
    expect(&view(1, 6, &[], &[4]), &view(2, 7, &[5], &[4]), HandshakeDecision::SplitBrain);
    expect(&view(1, 6, &[4], &[]), &view(2, 7, &[5], &[4]), HandshakeDecision::SplitBrain);
}

#[test]
fn row_12_nothing_in_common_is_unrelated() {
    expect(&view(1, 6, &[5], &[4]), &view(2, 9, &[8], &[7]), HandshakeDecision::Unrelated);
}

prop_compose! {
    fn any_view(replica: u8)(
        current in 0u64..6,
        bases in prop::collection::vec(0u64..6, 0..3),
        history in prop::collection::vec(0u64..6, 0..3),
        epoch in 0u64..3,
        flags in any::<[bool; 4]>(),
    ) -> ReplicaView {
        let [serving, crashed, inconsistent, dirty] = flags;
        let generations = view(replica, current, &bases, &history);
        ReplicaView { epoch, serving, crashed, inconsistent, dirty, ..generations }
    }
}

proptest! {
    #[test]
    fn decision_is_symmetric(mine in any_view(1), peers in any_view(2)) {
        prop_assert_eq!(decide(&peers, &mine), decide(&mine, &peers).mirrored());
    }

    #[test]
    fn set_bits_are_never_in_sync(mine in any_view(1), peers in any_view(2)) {
        if decide(&mine, &peers) == HandshakeDecision::InSync {
            prop_assert!(!mine.dirty && !peers.dirty);
            prop_assert!(!mine.inconsistent && !peers.inconsistent);
        }
    }

    #[test]
    fn inconsistent_replica_is_never_the_source(mine in any_view(1), peers in any_view(2)) {
        if let HandshakeDecision::Resync { source, .. } = decide(&mine, &peers) {
            let source = if source == ReplicaSide::Local { mine } else { peers };
            prop_assert!(!source.inconsistent && !source.generations.current.is_none());
        }
    }

    /// Whatever their common past, two replicas that each started a generation since then are in
    /// split brain.
    #[test]
    fn independent_generations_are_split_brain(
        past in prop::collection::vec(1u64..100, 0..20),
        mine in 1u64..4,
        peers in 1u64..4,
        flags in any::<[bool; 4]>(),
    ) {
        let mut common = GenerationHistory { current: Generation(1000), ..GenerationHistory::default() };
        for old in past {
            if !common.knows(Generation(old)) {
                common.bump(Generation(old));
                common.settle();
            }
        }
        let (mut a, mut b) = (view(1, 0, &[], &[]), view(2, 0, &[], &[]));
        (a.generations, b.generations) = (common, common);
        (0..mine).for_each(|n| a.generations.bump(Generation(2000 + n)));
        (0..peers).for_each(|n| b.generations.bump(Generation(3000 + n)));
        [a.serving, a.crashed, b.serving, b.crashed] = flags;
        prop_assert_eq!(decide(&a, &b), HandshakeDecision::SplitBrain);
    }
}

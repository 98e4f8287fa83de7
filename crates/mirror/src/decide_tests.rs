//! A test for each row of the table in `docs/mirror-handshake.md`, and laws of all of them.

use proptest::prelude::*;

use super::*;
use crate::generation::List;
use crate::id::Generation;

fn list<const N: usize>(items: &[u64]) -> List<N> {
    let mut list = List::default();
    for (slot, item) in list.0.iter_mut().zip(items) {
        *slot = Generation(*item);
    }
    list
}

fn view(replica: u8, current: u64, bases: &[u64], history: &[u64]) -> View {
    View {
        volume: Uuid([1; 16]),
        replica: Uuid([replica; 16]),
        usable_bytes: 1 << 30,
        bit_bytes: 65536,
        lineage: Lineage {
            current: Generation(current),
            bases: list(bases),
            history: list(history),
        },
        ..View::default()
    }
}

const FROM_MINE: fn(Amount) -> Decision = |amount| Decision::Resync { source: Side::Mine, amount };

/// Both ways round.
fn expect(mine: &View, peers: &View, decision: Decision) {
    assert_eq!(decide(mine, peers), decision);
    assert_eq!(decide(peers, mine), decision.mirrored());
}

#[test]
fn row_1_other_volumes_and_oneself_are_unrelated() {
    let mine = view(1, 5, &[], &[]);
    expect(&mine, &View { volume: Uuid([9; 16]), ..view(2, 5, &[], &[]) }, Decision::Unrelated);
    expect(&mine, &mine, Decision::Unrelated);
}

#[test]
fn row_2_other_granularities_and_sizes_without_room_are_incompatible() {
    let peers = View { bit_bytes: 4096, ..view(2, 5, &[], &[]) };
    expect(&view(1, 5, &[], &[]), &peers, Decision::Incompatible);
    // Logical blocks, whoever would be the source, and whatever there is to copy.
    let blocks = |block_bytes, view| View { block_bytes, ..view };
    for peers in [view(2, 5, &[], &[]), view(2, 0, &[], &[]), view(2, 4, &[], &[])] {
        let mine = view(1, 5, &[4], &[]);
        for (one, other) in [(512, 4096), (4096, 512)] {
            expect(&blocks(one, mine), &blocks(other, peers), Decision::Incompatible);
        }
        // Equal, or not known of one.
        for (one, other) in [(4096, 4096), (512, 0), (0, 4096)] {
            expect(&blocks(one, mine), &blocks(other, peers), decide(&mine, &peers));
        }
    }
    // The target would have to be as large as its source.
    let small = View { usable_bytes: 1 << 29, room_bytes: 1 << 29, ..view(2, 5, &[], &[]) };
    let larger = view(1, 6, &[5], &[]);
    expect(&larger, &small, Decision::Incompatible);
    let grown = View { room_bytes: 1 << 30, ..small };
    expect(&larger, &grown, FROM_MINE(Amount::Partial));
    // A target that is larger takes its source's size over.
    let smaller = View { usable_bytes: 1 << 29, ..view(1, 6, &[5], &[]) };
    expect(&smaller, &view(2, 5, &[], &[]), FROM_MINE(Amount::Partial));
}

#[test]
fn resize_during_activity() {
    // A source that grew has minted, so its target is known to lack what is new, whatever their
    // names and epochs. Equal generations of other sizes are no history of ours: never in sync, and
    // what hosts have seen does not get smaller.
    let grown = View { usable_bytes: 1 << 31, room_bytes: 1 << 31, ..view(1, 5, &[], &[]) };
    let peers = View { room_bytes: 1 << 31, epoch: 9, ..view(2, 5, &[], &[]) };
    expect(&grown, &peers, FROM_MINE(Amount::Partial));
    expect(&grown, &View { serving: true, ..peers }, FROM_MINE(Amount::Partial).mirrored());
}

#[test]
fn row_3_two_blank_replicas_have_no_source() {
    expect(&view(1, 0, &[], &[]), &view(2, 0, &[], &[]), Decision::NoSource);
}

#[test]
fn row_4_a_blank_replica_is_filled() {
    expect(&view(1, 5, &[], &[]), &view(2, 0, &[], &[]), FROM_MINE(Amount::Full));
}

#[test]
fn row_5_equal_and_clean_is_in_sync_though_bases_are_left_over() {
    expect(&view(1, 5, &[], &[]), &view(2, 5, &[], &[]), Decision::InSync);
    expect(&view(1, 5, &[3], &[]), &view(2, 5, &[], &[3]), Decision::InSync);
}

#[test]
fn row_6_of_equals_the_inconsistent_one_is_the_target() {
    let peers = View { inconsistent: true, ..view(2, 5, &[], &[]) };
    expect(&view(1, 5, &[], &[]), &peers, FROM_MINE(Amount::Partial));
    // Whatever else speaks for it.
    let peers = View { serving: true, epoch: 9, ..peers };
    let mine = View { crashed: true, ..view(1, 5, &[], &[]) };
    expect(&mine, &peers, FROM_MINE(Amount::Partial));
    expect(&View { inconsistent: true, ..mine }, &peers, Decision::NoSource);
}

#[test]
fn row_7_equal_generations_with_leftover_bits_are_never_in_sync() {
    // What hosts read now is kept.
    let mine = View { serving: true, crashed: true, dirty: true, ..view(1, 5, &[], &[]) };
    let peers = View { epoch: 7, ..view(2, 5, &[], &[]) };
    expect(&mine, &peers, FROM_MINE(Amount::Partial));
    // A crashed source that nobody has read from since follows its target.
    let peers = View { serving: false, ..mine };
    let mine = View { replica: Uuid([3; 16]), ..view(3, 5, &[], &[]) };
    expect(&mine, &peers, FROM_MINE(Amount::Partial));
    // Else the later epoch, else the larger name.
    let mine = View { dirty: true, epoch: 3, ..view(1, 5, &[], &[]) };
    let peers = View { epoch: 2, ..view(2, 5, &[], &[]) };
    expect(&mine, &peers, FROM_MINE(Amount::Partial));
    let mine = View { dirty: true, ..view(3, 5, &[], &[]) };
    expect(&mine, &view(2, 5, &[], &[]), FROM_MINE(Amount::Partial));
}

#[test]
fn row_8_who_went_on_from_the_others_data_is_the_source() {
    expect(&view(1, 6, &[5], &[]), &view(2, 5, &[], &[]), FROM_MINE(Amount::Partial));
    // A hand-over whose answer was lost: the peer may hold any of the bases.
    expect(&view(1, 7, &[5, 6], &[]), &view(2, 6, &[], &[5]), FROM_MINE(Amount::Partial));
    // The stale node is not chosen, whatever it believes of itself.
    let stale = View { serving: true, epoch: 9, dirty: true, ..view(2, 5, &[], &[]) };
    expect(&view(1, 6, &[5], &[]), &stale, FROM_MINE(Amount::Partial));
    let torn = View { inconsistent: true, ..view(1, 6, &[5], &[]) };
    expect(&torn, &view(2, 5, &[], &[]), Decision::NoSource);
}

#[test]
fn row_9_two_that_claim_each_others_data_are_split() {
    expect(&view(1, 6, &[5], &[]), &view(2, 5, &[6], &[]), Decision::SplitBrain);
    expect(&view(1, 6, &[], &[5]), &view(2, 5, &[], &[6]), Decision::SplitBrain);
}

#[test]
fn row_10_data_of_the_past_is_replaced_as_a_whole() {
    expect(&view(1, 7, &[], &[6, 5]), &view(2, 5, &[], &[]), FROM_MINE(Amount::Full));
}

#[test]
fn row_11_two_that_went_on_from_common_data_are_split() {
    expect(&view(1, 6, &[5], &[]), &view(2, 7, &[5], &[]), Decision::SplitBrain);
    expect(&view(1, 6, &[], &[4]), &view(2, 7, &[5], &[4]), Decision::SplitBrain);
    expect(&view(1, 6, &[4], &[]), &view(2, 7, &[5], &[4]), Decision::SplitBrain);
}

#[test]
fn row_12_nothing_in_common_is_unrelated() {
    expect(&view(1, 6, &[5], &[4]), &view(2, 9, &[8], &[7]), Decision::Unrelated);
}

prop_compose! {
    fn any_view(replica: u8)(
        current in 0u64..6,
        bases in prop::collection::vec(0u64..6, 0..3),
        history in prop::collection::vec(0u64..6, 0..3),
        epoch in 0u64..3,
        flags in any::<[bool; 4]>(),
    ) -> View {
        let [serving, crashed, inconsistent, dirty] = flags;
        let lineage = view(replica, current, &bases, &history);
        View { epoch, serving, crashed, inconsistent, dirty, ..lineage }
    }
}

proptest! {
    #[test]
    fn both_sides_decide_alike(mine in any_view(1), peers in any_view(2)) {
        prop_assert_eq!(decide(&peers, &mine), decide(&mine, &peers).mirrored());
    }

    #[test]
    fn bits_are_never_explained_away(mine in any_view(1), peers in any_view(2)) {
        if decide(&mine, &peers) == Decision::InSync {
            prop_assert!(!mine.dirty && !peers.dirty);
            prop_assert!(!mine.inconsistent && !peers.inconsistent);
        }
    }

    #[test]
    fn torn_data_is_never_the_source(mine in any_view(1), peers in any_view(2)) {
        if let Decision::Resync { source, .. } = decide(&mine, &peers) {
            let source = if source == Side::Mine { mine } else { peers };
            prop_assert!(!source.inconsistent && !source.lineage.current.is_none());
        }
    }

    /// Whatever the common past, two that each minted since then are split.
    #[test]
    fn independent_mints_are_always_a_split_brain(
        past in prop::collection::vec(1u64..100, 0..20),
        mine in 1u64..4,
        peers in 1u64..4,
        flags in any::<[bool; 4]>(),
    ) {
        let mut common = Lineage { current: Generation(1000), ..Lineage::default() };
        for old in past {
            if !common.knows(Generation(old)) {
                common.mint(Generation(old));
                common.settle();
            }
        }
        let (mut a, mut b) = (view(1, 0, &[], &[]), view(2, 0, &[], &[]));
        (a.lineage, b.lineage) = (common, common);
        (0..mine).for_each(|n| a.lineage.mint(Generation(2000 + n)));
        (0..peers).for_each(|n| b.lineage.mint(Generation(3000 + n)));
        [a.serving, a.crashed, b.serving, b.crashed] = flags;
        prop_assert_eq!(decide(&a, &b), Decision::SplitBrain);
    }
}

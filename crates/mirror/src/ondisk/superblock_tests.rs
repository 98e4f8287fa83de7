//! Superblocks of any content: encoding, decoding, and the documented offsets.

use proptest::prelude::*;

use super::*;
use crate::ondisk::layout::tests::any_shape;
use crate::ondisk::member::MemberChange;

fn any_list<const N: usize>() -> impl Strategy<Value = GenerationList<N>> {
    prop::array::uniform::<_, N>(any::<u64>())
        .prop_map(|items| GenerationList(items.map(Generation)))
}

fn any_member() -> impl Strategy<Value = Member> {
    let address = prop::option::of("[a-z:é]{1,60}");
    ("[a-z0-9-]{1,64}", address).prop_map(|(name, address)| Member {
        name,
        change: address.map_or(MemberChange::Removed, MemberChange::Added),
    })
}

prop_compose! {
    pub(crate) fn any_superblock()(
        numbers in any::<[u64; 7]>(),
        names in prop::array::uniform5(prop::array::uniform16(1u8..)),
        geometry in any_shape(),
        source in any::<bool>(),
        flags in 0u16..16,
        designated_successor in prop::option::of(0..PEERS_MAX),
        device_pages in (1u64..1 << 40, 0.0..1.0),
        history in any_list(),
        bases in (any_list(), any_list()),
        renaming in any::<[bool; 2]>(),
        unverified in any::<bool>(),
        desired_states in prop::array::uniform2(prop::sample::select(&DesiredState::ALL[..])),
        log_place in "[a-z/é]{0,400}",
        removed in any::<bool>(),
        arbiter in (
            any::<u64>(),
            prop::sample::select(&RecordedRight::ALL[..]),
            any::<bool>(),
            any::<u32>(),
            any::<bool>(),
            any::<u64>(),
        ),
        members in prop::collection::vec(any_member(), 0..=MEMBERS_MAX),
        not_received in prop::collection::vec((0u64..1 << 30, 1u64..1 << 10), 0..BAD_RANGES_MAX),
    ) -> Superblock {
        let [volume, replica, log, first, second] = names.map(MirrorId);
        Superblock {
            sequence: numbers[0],
            volume,
            replica,
            geometry,
            device_bytes: device_pages.0 * 4096,
            moved_from: (device_pages.0 as f64 * device_pages.1) as u64 * 4096,
            role: if source { ReplicaRole::Source } else { ReplicaRole::Target },
            flags: Flags::of(flags).expect("known flags"),
            unverified,
            designated_successor,
            epoch: numbers[1],
            current: Generation(numbers[2]),
            history,
            log,
            incarnation: numbers[3],
            log_progress: LogProgress { record_sequence: numbers[5], page_writes: numbers[6] },
            volume_tag: numbers[4],
            desired_states,
            peers: [
                PeerRecord { replica: first, bases: bases.0, renaming: renaming[0] },
                PeerRecord { replica: second, bases: bases.1, renaming: renaming[1] },
            ],
            not_received: not_received
                .into_iter()
                .scan(0, |at, (gap, pages)| {
                    let start = *at + gap * 4096;
                    *at = start + pages * 4096;
                    Some(start..*at)
                })
                .collect(),
            log_place,
            removed,
            members,
            arbiter: ArbiterMark {
                revision: arbiter.0,
                serving_right: arbiter.1,
                suspended: arbiter.2,
                source_after_ms: arbiter.3,
                source_asks: arbiter.4,
                store: StoreId(arbiter.5),
            },
        }
    }
}

fn mark_of(store: u64, serving_right: RecordedRight) -> ArbiterMark {
    let store = StoreId(store);
    ArbiterMark { revision: 7, serving_right, source_asks: true, store, ..ArbiterMark::default() }
}

/// Regression: the mark of a target was moved to the store in its configuration, and its next
/// record had a revision of the former store.
#[test]
fn mark_stays_at_its_store() {
    for serving_right in RecordedRight::ALL {
        let mark = mark_of(1, serving_right);
        assert_eq!([1, 2].map(|store| mark.at_first_store(StoreId(store))), [mark; 2]);
        assert_eq!([1, 2].map(|store| mark.revision_at(StoreId(store))), [7, (1 << 32) + 7]);
    }
    let first = ArbiterMark::default().at_first_store(StoreId(2));
    assert_eq!((first.store, first.revision_at(StoreId(2))), (StoreId(2), 0));
    let empty = ArbiterMark { revision: 0, ..mark_of(1, RecordedRight::Ordered) };
    assert_eq!(empty.at_first_store(StoreId(2)).store, StoreId(2), "there is no record");
}

#[test]
fn asking_source_supersedes_earlier_target_records() {
    let mark = mark_of(1, RecordedRight::Unknown);
    let asked = |mark: ArbiterMark, asks| {
        let after = mark.asked_by(asks);
        (after.revision, after.source_asks)
    };
    assert_eq!(asked(mark, Some((1 << 32) + 8)), ((1 << 32) + 8, true));
    assert_eq!((asked(mark, Some(6)), asked(mark, None)), ((7, true), (7, false)));
    let never = ArbiterMark { revision: 0, ..mark };
    assert_eq!(asked(never, Some(8)), (0, true));
}

proptest! {
    #[test]
    fn superblock_round_trips(superblock in any_superblock()) {
        prop_assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    }

    #[test]
    fn changed_byte_is_detected(
        superblock in any_superblock(),
        at in 0usize..4096,
        change in 1u8..,
    ) {
        let mut page = superblock.encode();
        page[at] ^= change;
        prop_assert!(Superblock::decode(&page).is_err());
    }

    /// Hostile bytes with a valid checksum are refused, or decode to a consistent superblock.
    #[test]
    fn forged_fields_are_refused_or_consistent(
        superblock in any_superblock(),
        at in 10usize..448,
        value in any::<u8>(),
    ) {
        let mut page = superblock.encode();
        page[at] = value;
        seal(&mut page);
        if let Ok(forged) = Superblock::decode(&page) {
            prop_assert_eq!(forged.geometry.check(), Ok(()));
            prop_assert_eq!(Superblock::decode(&forged.encode()), Ok(forged));
        }
    }
}

/// The byte map in `docs/mirror-format.md`, which other programs rely on.
#[test]
fn field_offsets_match_documentation() {
    let document = include_str!("../../../../docs/mirror-format.md");
    let peers = format!("- {PEERS_AT} ({PEERS_MAX} × {PEER_BYTES}): peers");
    let rows = [
        format!("- 10 (2): length up to the last field of the first release, {END}"),
        format!("- {LOG_PROGRESS_AT} (8): progress of the log: sequence"),
        format!("- {} (8): progress of the log: sum of the write counts", LOG_PROGRESS_AT + 8),
        format!("- {SUCCESSOR_AT} (1): designated successor"),
        format!("- {DESIRED_STATES_AT} ({PEERS_MAX}): desired states"),
        format!("- {DEVICE_AT} (8): size of the device"),
        format!("- {} (8): where the metadata ended", DEVICE_AT + 8),
        format!("- {RENAMING_AT} (1): renaming"),
        format!("- {UNVERIFIED_AT} (1): unverified"),
        format!("- {REMOVED_AT} (1): removed"),
        format!("- {ARBITER_REVISION_AT} (8): arbiter revision"),
        format!("- {ARBITER_RIGHT_AT} (1): right to serve"),
        format!("- {ARBITER_SUSPENDED_AT} (1): arbiter suspended"),
        format!("- {ARBITER_LEASE_AT} (4): arbiter lease"),
        format!("- {ARBITER_STORE_AT} (8): arbiter store"),
        format!("- {MEMBERS_AT} ({MEMBERS_MAX} × {MEMBER_BYTES}): members"),
        format!("- {VOLUME_TAG_AT} (8): volume tag"),
        format!("- {HISTORY_AT} ({}): history: {HISTORY_LEN} generations", 8 * HISTORY_LEN),
        peers,
    ];
    for row in rows {
        assert!(document.contains(&row), "missing from the documentation: {row}");
    }
    let names = ["`FSMIRSB\\n`", "`FSMIRLG\\n`", "`FSMIRHT\\n`", "`FSMIRBM\\n`"];
    assert!(names.iter().all(|name| document.contains(name)));
}

/// An earlier release writes zeroes in place of the log's progress, and ignores the field when
/// it reads.
#[test]
fn superblock_of_earlier_release_has_no_log_progress() {
    proptest!(|(superblock in any_superblock())| {
        let mut page = superblock.encode();
        prop_assert_eq!(&page[10..12], &408_u16.to_le_bytes(), "the only length that it reads");
        page[408..4092].fill(0);
        seal(&mut page);
        let read = Superblock::decode(&page).expect("the superblock is valid");
        prop_assert_eq!(read.log_progress, LogProgress::default());
        prop_assert!(LogProgress::default().has_reached(read.log_progress));
    });
}

#[test]
fn zeroes_differ_from_later_version() {
    assert_eq!(Superblock::decode(&[0; 4096]), Err(FormatError::Absent));
    let mut page = begin(MAGIC);
    page[8] = 3;
    assert_eq!(Superblock::decode(&page), Err(FormatError::Version(3)));
}

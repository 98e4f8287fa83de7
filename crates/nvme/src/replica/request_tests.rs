//! Tests of requests to a replica: every request is decoded as it was encoded, and others are
//! refused.

use super::*;
use crate::replica::RESERVATION_RECORD_MAX_BYTES;
use crate::replica::snapshot::SnapshotAction;
use proptest::prelude::*;

fn any_offer() -> impl Strategy<Value = LossPermission> {
    prop_oneof![
        any::<Option<u64>>().prop_map(|asks| LossPermission::Unrecorded { asks }),
        Just(LossPermission::Suspended),
        Just(LossPermission::Behind),
        (1u64.., any::<u64>())
            .prop_map(|(revision, writer)| LossPermission::Recorded { revision, writer }),
    ]
}

fn any_snapshot_command() -> impl Strategy<Value = SnapshotCommand> {
    let action = |code: u32| SnapshotAction::of(code).expect("it is known");
    (1u32..=4, any::<u32>())
        .prop_map(move |(code, wait_ms)| SnapshotCommand { action: action(code), wait_ms })
}

fn any_request() -> impl Strategy<Value = ReplicaRequest> {
    let uuid = || any::<[u8; 16]>().prop_map(|uuid| if uuid == [0; 16] { [1; 16] } else { uuid });
    let parts = || (1u32..=256).prop_map(|parts| parts * 4096);
    let state = prop_oneof![
        Just(StateChange::BeginResync),
        Just(StateChange::EndResync),
        Just(StateChange::NewGeneration)
    ];
    prop_oneof![
        any::<[u8; 16]>().prop_map(|asker| ReplicaRequest::Identify { asker }),
        (uuid(), uuid(), any::<[u64; 3]>(), any::<(bool, Option<u64>)>(), any::<u16>()).prop_map(
            |(a, b, [c, d, size], (e, asks), version)| {
                let attach = Attach::new(a, b, c, d, e).of_size(size).asking(asks.is_some());
                let attach = attach.of_version(version);
                ReplicaRequest::Attach { attach, revision: asks.unwrap_or(0) }
            }
        ),
        any::<[u64; ANCESTORS]>().prop_map(|said| ReplicaRequest::Ancestors(Ancestors::new(said))),
        any::<u64>().prop_map(|page| ReplicaRequest::Bitmap { page }),
        (0..u64::MAX - CHECK_BYTES, parts(), parts()).prop_map(|(offset, len, unit_bytes)| {
            ReplicaRequest::Checksum { offset, len, unit_bytes }
        }),
        (state, 1u64..)
            .prop_map(|(state, generation)| ReplicaRequest::SetState { state, generation }),
        any::<(u64, u64, bool)>().prop_map(|(epoch, revision, leaves)| {
            ReplicaRequest::Promote { epoch, revision, leaves }
        }),
        (any_offer(), 1..=FAILOVER_AFTER_MAX_MS, 0..=LAG_MAX_MS).prop_map(
            |(offer, failover_after_ms, lag_ms)| {
                ReplicaRequest::Renew { offer, failover_after_ms, lag_ms }
            }
        ),
        Just(ReplicaRequest::HandOver),
        (1u64..1 << 40)
            .prop_map(|pages| ReplicaRequest::ZeroNewSpace { usable_bytes: pages * 4096 }),
        (0u64..1 << 40, 1u64..1 << 11, any::<u16>(), any::<u16>()).prop_map(
            |(offset, len, one, other)| ReplicaRequest::BadRange {
                offset: offset * 4096,
                len: len * 4096,
                index: one.min(other).min(u16::MAX - 1),
                count: one.max(other).max(one.min(other).saturating_add(1)),
            }
        ),
        (uuid(), 1u64..)
            .prop_map(|(lost, generation)| ReplicaRequest::RunDegraded { lost, generation }),
        (uuid(), any::<u64>()).prop_map(|(volume, epoch)| ReplicaRequest::Depose { volume, epoch }),
        (uuid(), any::<u64>()).prop_map(|(volume, epoch)| ReplicaRequest::Claim { volume, epoch }),
        (uuid(), any::<u64>()).prop_map(|(volume, epoch)| ReplicaRequest::Remove { volume, epoch }),
        (1u64..).prop_map(|session| ReplicaRequest::JoinGroup { session }),
        any::<(u64, u64)>().prop_map(|(base, expected)| ReplicaRequest::Discard { base, expected }),
        (uuid(), "[a-zä.]{1,60}", any_snapshot_command()).prop_map(|(id, name, command)| {
            let snapshot = Snapshot::new(id, &name).expect("it is short");
            ReplicaRequest::Snapshot { snapshot, command }
        }),
        any::<[u8; 16]>().prop_map(|after| ReplicaRequest::Snapshots { after }),
        (1..RESERVATION_RECORD_MAX_BYTES, any::<u32>(), any::<u8>()).prop_map(|(len, at, byte)| {
            let number = at % len.div_ceil(RESERVATION_PAGE_BYTES) as u32;
            let begin = number as usize * RESERVATION_PAGE_BYTES;
            let part = vec![byte; (len - begin).min(RESERVATION_PAGE_BYTES)];
            let page = ReservationPage::new(number, len as u32, &part).expect("it is within");
            ReplicaRequest::Reservations(page)
        }),
    ]
}

#[test]
fn bytes_match_document() {
    let run_degraded = ReplicaRequest::RunDegraded {
        lost: std::array::from_fn(|at| at as u8),
        generation: 0x1122,
    };
    let command = run_degraded.command(7, 1);
    assert!(run_degraded.data().is_empty());
    assert_eq!((command.opcode, command.nsid.get(), command.cid.get()), (0xd0, 1, 7));
    assert_eq!(command.cdw10.get(), 0x0302_0100);
    assert_eq!(command.cdw13.get(), 0x0f0e_0d0c);
    assert_eq!((command.cdw14.get(), command.cdw15.get()), (0x1122, 0));
    let attach = Attach::new([1; 16], [2; 16], 3, 4, true).of_size(5);
    let mut expected = [0; 64];
    expected[..16].fill(1);
    expected[16..32].fill(2);
    (expected[32], expected[40], expected[48], expected[56]) = (3, 4, 1, 5);
    assert_eq!(attach.bytes(), expected);
    // A target of version 2 refuses any value there.
    assert_eq!((attach.version(), attach.of_version(2).bytes()), (2, &expected[..]));
    (expected[52], expected[53]) = (3, 1);
    let later = attach.of_version(0x103);
    assert_eq!((later.version(), later.bytes()), (0x103, &expected[..]));
    let clear = ReplicaRequest::ZeroNewSpace { usable_bytes: (1 << 33) + 4096 }.command(1, 1);
    assert_eq!((clear.opcode, clear.cdw10.get(), clear.cdw11.get()), (0xd8, 4096, 2));
    let bad = ReplicaRequest::BadRange { offset: 1 << 33, len: 8192, index: 2, count: 5 };
    let bad = bad.command(1, 1);
    assert_eq!((bad.opcode, bad.cdw11.get(), bad.cdw12.get()), (0xe0, 2, 8192));
    assert_eq!(bad.cdw14.get(), 0x0005_0002);
    let check = ReplicaRequest::Checksum { offset: 1 << 33, len: 8192, unit_bytes: 4096 };
    let command = check.command(1, 1);
    assert_eq!((command.cdw10.get(), command.cdw11.get()), (0, 2));
    assert_eq!((command.cdw12.get(), command.cdw13.get()), (8192, 4096));
    assert_eq!(command.data.data_bytes.get(), 16);
}

#[test]
fn snapshot_bytes_match_document() {
    let snapshot = Snapshot::new([3; 16], "ab").expect("it is short");
    let command = SnapshotCommand { action: SnapshotAction::Take, wait_ms: 5 };
    let request = ReplicaRequest::Snapshot { snapshot, command };
    let mut expected = [0; SNAPSHOT_BYTES];
    expected[..16].fill(3);
    expected[16..18].copy_from_slice(b"ab");
    assert_eq!(request.data(), expected);
    let command = request.command(1, 1);
    assert_eq!((command.opcode, command.cdw10.get(), command.cdw11.get()), (0xf5, 2, 5));
    let parse = |command: &Sqe, data: &[u8]| ReplicaRequest::parse(command, data);
    assert_eq!(parse(&command, &expected), Ok(request));
    for (at, value) in [(0, 0), (0, 5), (1, 2), (8, 1)] {
        // Unknown actions, and a reserved field.
        let mut bad = command;
        bad.parameters_mut()[at] = value;
        assert_eq!(parse(&bad, &expected), Err(INVALID), "{at} {value}");
    }
    let mut of_name = expected;
    of_name[..16].fill(0);
    for (action, by_name) in [(1, false), (2, false), (3, true), (4, true)] {
        let mut command = command;
        command.parameters_mut()[0] = action;
        assert_eq!(parse(&command, &of_name).is_ok(), by_name, "{action}");
    }
    // No identifier, no name, a gap in the name, and no UTF-8.
    for (range, value) in [(0..16, 0), (16..18, 0), (20..21, b'c'), (17..18, 0xff)] {
        let mut bad = expected;
        bad[range.clone()].fill(value);
        assert_eq!(parse(&command, &bad), Err(INVALID), "{range:?}");
    }
    let short = Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
    assert_eq!(parse(&command, &expected[1..]), short);
}

#[test]
fn invalid_values_are_refused() {
    let parse =
        |request: ReplicaRequest| ReplicaRequest::parse(&request.command(1, 1), request.data());
    for request in [
        ReplicaRequest::Checksum { offset: 0, len: 0, unit_bytes: 4096 },
        ReplicaRequest::Checksum { offset: 0, len: 4096, unit_bytes: 512 },
        ReplicaRequest::Checksum { offset: 0, len: 2 << 20, unit_bytes: 4096 },
        ReplicaRequest::SetState { state: StateChange::EndResync, generation: 0 },
        ReplicaRequest::ZeroNewSpace { usable_bytes: 0 },
        ReplicaRequest::ZeroNewSpace { usable_bytes: (1 << 33) + 512 },
        ReplicaRequest::BadRange { offset: 0, len: 0, index: 0, count: 1 },
        ReplicaRequest::BadRange { offset: 512, len: 4096, index: 0, count: 1 },
        ReplicaRequest::BadRange { offset: 0, len: 4096, index: 1, count: 1 },
        ReplicaRequest::RunDegraded { lost: [0; 16], generation: 1 },
        ReplicaRequest::JoinGroup { session: 0 },
        ReplicaRequest::RunDegraded { lost: [1; 16], generation: 0 },
        ReplicaRequest::Renew {
            offer: LossPermission::Recorded { revision: 0, writer: 1 },
            failover_after_ms: 1,
            lag_ms: 0,
        },
        ReplicaRequest::Renew { offer: LossPermission::Suspended, failover_after_ms: 0, lag_ms: 0 },
        ReplicaRequest::Renew {
            offer: LossPermission::Suspended,
            failover_after_ms: u32::MAX,
            lag_ms: 0,
        },
        ReplicaRequest::Attach { attach: Attach::new([0; 16], [1; 16], 1, 1, false), revision: 0 },
        ReplicaRequest::Attach { attach: Attach::new([1; 16], [1; 16], 1, 1, false), revision: 1 },
    ] {
        assert_eq!(parse(request.clone()), Err(INVALID), "{request:?}");
    }
    let far = ReplicaRequest::Checksum { offset: u64::MAX - 4095, len: 4096, unit_bytes: 4096 };
    assert_eq!(parse(far), Err(Status::LBA_OUT_OF_RANGE.dnr()));
    let attach = ReplicaRequest::Attach { attach: Attach::default(), revision: 0 }.command(1, 1);
    let short = Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
    assert_eq!(ReplicaRequest::parse(&attach, &[1; 63]), short);
    let mut other = Sqe::keep_alive(1);
    other.opcode = 0xc3;
    assert_eq!(ReplicaRequest::parse(&other, &[]), Err(Status::INVALID_OPCODE.dnr()));
}

proptest! {
    #[test]
    fn source_requests_reach_target(request in any_request()) {
        let (command, data) = (request.command(3, 9), request.data());
        let parsed = ReplicaRequest::parse(Sqe::view(command.bytes()).unwrap(), data);
        prop_assert_eq!(parsed, Ok(request.clone()));
        prop_assert_eq!(ReplicaRequest::sent_bytes(request.opcode()), Some(data.len()));
        let moved = command.data.data_bytes.get() as usize;
        prop_assert_eq!(moved, data.len().max(request.reply_bytes()));
    }

    #[test]
    fn reserved_bytes_are_checked(request in any_request(), at in 0usize..24, change in 1u8..) {
        let mut command = request.command(3, 9);
        command.parameters_mut()[at] ^= change;
        if let Ok(other) = ReplicaRequest::parse(&command, request.data()) {
            prop_assert_ne!(other, request, "no byte is without a meaning");
        }
    }
}

//! Transitions of reservations, row by row and from random commands.

use flagstone_nvme::Nqn;
use flagstone_nvme::command::reservation::{
    Acquire, AcquireAction, Register, RegisterAction, Release, ReleaseAction, ReservationType,
};
use flagstone_nvme::digest::crc32c;
use flagstone_nvme::log::reservation::NotificationType;
use flagstone_nvme::status::Status;
use proptest::prelude::*;

use super::record::{decode, encode};
use super::state::{
    DataUse, HostId, Registration, Reservation, ReservationChange, Reservations, Restriction,
};
use crate::controller::HostIdentity;
use crate::limits::RESERVATION_REGISTRANTS;

const CONFLICT: Status = Status::RESERVATION_CONFLICT.dnr();
const WRITE_EXCLUSIVE: ReservationType = ReservationType::ALL[0];
const EXCLUSIVE_ACCESS: ReservationType = ReservationType::ALL[1];
const WRITE_REGISTRANTS: ReservationType = ReservationType::ALL[2];
const ACCESS_REGISTRANTS: ReservationType = ReservationType::ALL[3];
const WRITE_ALL: ReservationType = ReservationType::ALL[4];
const ACCESS_ALL: ReservationType = ReservationType::ALL[5];

fn id(number: u8) -> HostId {
    [number; 16]
}

fn host(number: u8) -> HostIdentity {
    HostIdentity { nqn: Nqn::from_uuid([number; 16]), id: id(number) }
}

fn register(state: &Reservations, number: u8, key: u64) -> Result<Reservations, Status> {
    let command = Register { action: RegisterAction::Register { key }, persist: None };
    state.register(host(number), command, false).map(|change| change.next)
}

/// Hosts 1, 2 and 3 with keys 10, 20 and 20.
fn registered() -> Reservations {
    let one = register(&Reservations::default(), 1, 10).unwrap();
    register(&register(&one, 2, 20).unwrap(), 3, 20).unwrap()
}

fn acquire(
    state: &Reservations,
    number: u8,
    kind: ReservationType,
    current: u64,
) -> Result<ReservationChange, Status> {
    state.acquire(host(number), Acquire { action: AcquireAction::Acquire, kind, current })
}

fn preempt(
    state: &Reservations,
    number: u8,
    kind: ReservationType,
    current: u64,
    key: u64,
) -> Result<ReservationChange, Status> {
    state.acquire(host(number), Acquire { action: AcquireAction::Preempt { key }, kind, current })
}

fn release(
    state: &Reservations,
    number: u8,
    kind: ReservationType,
    current: u64,
) -> Result<ReservationChange, Status> {
    state.release(host(number), Release { action: ReleaseAction::Release(kind), current })
}

fn unregister(state: &Reservations, number: u8) -> ReservationChange {
    let action = RegisterAction::Unregister { current: None };
    state.register(host(number), Register { action, persist: None }, false).unwrap()
}

/// Which of hosts 1, 3 and 4 (no registrant) may read, and which may write.
fn admitted(state: &Reservations) -> ([bool; 3], [bool; 3]) {
    let restriction = Restriction::of(state);
    let may = |data| {
        [1, 3, 4].map(|number| {
            restriction.as_ref().is_none_or(|one| one.check(&host(number), data).is_ok())
        })
    };
    (may(DataUse::Reads), may(DataUse::Writes))
}

#[test]
fn registration_key_must_match() {
    let state = registered();
    assert_eq!(register(&state, 1, 11).unwrap_err(), CONFLICT);
    assert_eq!(register(&state, 1, 10).unwrap().registrants, state.registrants);
    let change = |action| state.register(host(1), Register { action, persist: None }, false);
    let wrong = Some(11);
    assert_eq!(change(RegisterAction::Unregister { current: wrong }).unwrap_err(), CONFLICT);
    assert_eq!(change(RegisterAction::Replace { current: wrong, key: 5 }).unwrap_err(), CONFLICT);
    let replaced = change(RegisterAction::Replace { current: Some(10), key: 5 }).unwrap().next;
    assert_eq!(replaced.registrants[&id(1)].key, 5);
    assert_eq!(replaced.generation, state.generation + 1);
    let unknown_host =
        Register { action: RegisterAction::Replace { current: None, key: 1 }, persist: None };
    assert_eq!(state.register(host(4), unknown_host, false).unwrap_err(), CONFLICT);
}

/// A fenced host wrote again by claiming the identifier of the host that had fenced it.
#[test]
fn identifier_of_another_host_gives_no_access() {
    let held = acquire(&registered(), 1, WRITE_REGISTRANTS, 10).unwrap().next;
    let claim = HostIdentity { nqn: host(4).nqn, id: id(1) };
    let restriction = Restriction::of(&held).unwrap();
    assert_eq!(restriction.check(&claim, DataUse::Writes), Err(CONFLICT));
    assert_eq!(restriction.check(&host(1), DataUse::Writes), Ok(()));
    for action in [
        RegisterAction::Register { key: 10 },
        RegisterAction::Unregister { current: None },
        RegisterAction::Replace { current: Some(10), key: 11 },
    ] {
        let refused = held.register(claim, Register { action, persist: None }, true);
        assert_eq!(refused.unwrap_err(), CONFLICT, "{action:?}");
    }
    let action = AcquireAction::Preempt { key: 10 };
    let preempts = Acquire { action, kind: EXCLUSIVE_ACCESS, current: 10 };
    assert_eq!(held.acquire(claim, preempts).unwrap_err(), CONFLICT);
    let clears = Release { action: ReleaseAction::Clear, current: 10 };
    assert_eq!(held.release(claim, clears).unwrap_err(), CONFLICT);
}

/// Version 1 has no NQNs: 24 bytes for each registrant.
#[test]
fn record_of_version_1_is_read() {
    let mut record = b"FSRESV1\n".to_vec();
    record.extend([5, 0, 0, 0, 1, 0, 1, 0]);
    record.extend(id(1));
    record.resize(64, 0);
    record.extend(id(1));
    record.extend(10u64.to_le_bytes());
    record.extend(crc32c(&record).to_le_bytes());
    let state = decode(&record).unwrap();
    assert_eq!(state.registrants[&id(1)], Registration { key: 10, nqn: None });
    let other = HostIdentity { nqn: host(4).nqn, id: id(1) };
    let may = |state: &Reservations, host| {
        Restriction::of(state).unwrap().check(&host, DataUse::Writes).is_ok()
    };
    assert!(may(&state, host(1)) && may(&state, other));
    // The host that registers again has the registration for itself.
    let again = register(&state, 1, 10).unwrap();
    assert!(may(&again, host(1)) && !may(&again, other));
    assert_eq!(decode(&encode(&again).unwrap()), Ok(again));
}

#[test]
fn registrants_are_bounded() {
    let mut state = Reservations::default();
    for number in 0..RESERVATION_REGISTRANTS {
        state = register(&state, number as u8, 1).unwrap();
    }
    assert_eq!(register(&state, 255, 1).unwrap_err(), Status::INTERNAL_ERROR.dnr());
    register(&state, 0, 1).unwrap();
}

#[test]
fn persistence_needs_storage() {
    let action = RegisterAction::Register { key: 1 };
    let command = Register { action, persist: Some(true) };
    let refused = Reservations::default().register(host(1), command, false);
    assert_eq!(refused.unwrap_err(), Status::INVALID_FIELD.dnr());
    assert!(Reservations::default().register(host(1), command, true).unwrap().next.persists);
}

#[test]
fn each_reservation_type_admits_its_hosts() {
    let (all, holder, registrants) = ([true; 3], [true, false, false], [true, true, false]);
    assert_eq!(admitted(&registered()), (all, all));
    for (kind, reads, writes) in [
        (WRITE_EXCLUSIVE, all, holder),
        (EXCLUSIVE_ACCESS, holder, holder),
        (WRITE_REGISTRANTS, all, registrants),
        (ACCESS_REGISTRANTS, registrants, registrants),
        (WRITE_ALL, all, registrants),
        (ACCESS_ALL, registrants, registrants),
    ] {
        let held = acquire(&registered(), 1, kind, 10).unwrap().next;
        assert_eq!(admitted(&held), (reads, writes), "{kind:?}");
    }
}

#[test]
fn acquire_needs_registration_and_free_reservation() {
    let state = registered();
    assert_eq!(acquire(&state, 4, WRITE_EXCLUSIVE, 0).unwrap_err(), CONFLICT);
    assert_eq!(acquire(&state, 1, WRITE_EXCLUSIVE, 11).unwrap_err(), CONFLICT);
    let held = acquire(&state, 1, WRITE_EXCLUSIVE, 10).unwrap().next;
    assert_eq!(acquire(&held, 2, WRITE_EXCLUSIVE, 20).unwrap_err(), CONFLICT);
    assert_eq!(acquire(&held, 1, EXCLUSIVE_ACCESS, 10).unwrap_err(), CONFLICT);
    assert_eq!(acquire(&held, 1, WRITE_EXCLUSIVE, 10).unwrap().next, held);
    let shared = acquire(&state, 1, WRITE_ALL, 10).unwrap().next;
    assert_eq!(acquire(&shared, 2, WRITE_ALL, 20).unwrap().next, shared);
}

#[test]
fn preempt_takes_reservation_of_its_key() {
    let held = acquire(&registered(), 2, WRITE_REGISTRANTS, 20).unwrap().next;
    let taken = preempt(&held, 1, EXCLUSIVE_ACCESS, 10, 20).unwrap();
    let by = Reservation::Held { kind: EXCLUSIVE_ACCESS, by: id(1) };
    assert_eq!(taken.next.reservation, Some(by));
    assert_eq!(taken.next.registrants.keys().collect::<Vec<_>>(), [&id(1)]);
    let preempted = NotificationType::REGISTRATION_PREEMPTED;
    assert_eq!(taken.notices, [(id(2), preempted), (id(3), preempted)]);
}

#[test]
fn preempt_of_other_key_keeps_the_reservation() {
    let held = acquire(&registered(), 1, WRITE_REGISTRANTS, 10).unwrap().next;
    let change = preempt(&held, 1, EXCLUSIVE_ACCESS, 10, 20).unwrap().next;
    assert_eq!(change.reservation, held.reservation);
    assert_eq!(change.registrants.len(), 1);
    assert_eq!(preempt(&held, 1, WRITE_EXCLUSIVE, 10, 99).unwrap_err(), CONFLICT);
    let zero = preempt(&held, 1, WRITE_EXCLUSIVE, 10, 0);
    assert_eq!(zero.unwrap_err(), Status::INVALID_FIELD.dnr());
}

#[test]
fn preempt_of_shared_reservation_with_key_0() {
    let held = acquire(&registered(), 2, ACCESS_ALL, 20).unwrap().next;
    let change = preempt(&held, 3, WRITE_EXCLUSIVE, 20, 0).unwrap().next;
    assert_eq!(change.registrants.keys().collect::<Vec<_>>(), [&id(3)]);
    let by = Reservation::Held { kind: WRITE_EXCLUSIVE, by: id(3) };
    assert_eq!(change.reservation, Some(by));
}

#[test]
fn holder_may_change_type_by_preempting_itself() {
    let held = acquire(&registered(), 1, WRITE_REGISTRANTS, 10).unwrap().next;
    let change = preempt(&held, 1, EXCLUSIVE_ACCESS, 10, 10).unwrap();
    assert_eq!(change.next.registrants, held.registrants);
    let released = NotificationType::RESERVATION_RELEASED;
    assert_eq!(change.notices, [(id(2), released), (id(3), released)]);
}

#[test]
fn release_notifies_registrants_that_were_admitted() {
    let state = registered();
    for (kind, notices) in [(WRITE_EXCLUSIVE, 0), (WRITE_REGISTRANTS, 2), (ACCESS_ALL, 2)] {
        let held = acquire(&state, 1, kind, 10).unwrap().next;
        let other = ReservationType::ALL.into_iter().find(|other| *other != kind).unwrap();
        let mismatch = release(&held, 1, other, 10);
        assert_eq!(mismatch.unwrap_err(), Status::INVALID_FIELD.dnr());
        let released = release(&held, 1, kind, 10).unwrap();
        assert_eq!((released.next.reservation, released.notices.len()), (None, notices));
    }
    let held = acquire(&state, 1, WRITE_EXCLUSIVE, 10).unwrap().next;
    assert_eq!(release(&held, 2, WRITE_EXCLUSIVE, 20).unwrap().next, held);
}

#[test]
fn clear_removes_everything() {
    let held = acquire(&registered(), 1, WRITE_EXCLUSIVE, 10).unwrap().next;
    let clear = Release { action: ReleaseAction::Clear, current: 20 };
    let cleared = held.release(host(2), clear).unwrap();
    assert!(cleared.next.registrants.is_empty() && cleared.next.reservation.is_none());
    let preempted = NotificationType::RESERVATION_PREEMPTED;
    assert_eq!(cleared.notices, [(id(1), preempted), (id(3), preempted)]);
}

#[test]
fn unregistered_holder_loses_the_reservation() {
    let held = acquire(&registered(), 1, WRITE_REGISTRANTS, 10).unwrap().next;
    let change = unregister(&held, 1);
    assert_eq!((change.next.reservation, change.notices.len()), (None, 2));
    let mut shared = acquire(&registered(), 1, ACCESS_ALL, 10).unwrap().next;
    for number in [1, 2] {
        shared = unregister(&shared, number).next;
        assert!(shared.reservation.is_some());
    }
    assert_eq!(unregister(&shared, 3).next.reservation, None);
}

#[test]
fn damaged_record_is_refused() {
    let mut state = acquire(&registered(), 1, EXCLUSIVE_ACCESS, 10).unwrap().next;
    assert_eq!(encode(&state), None);
    state.persists = true;
    let record = encode(&state).unwrap();
    assert_eq!(decode(&record), Ok(state));
    for at in 0..record.len() {
        let mut damaged = record.clone();
        damaged[at] ^= 1;
        decode(&damaged).unwrap_err();
        decode(&record[..at]).unwrap_err();
    }
}

fn command() -> impl Strategy<Value = (u8, u8, u64, u64, u8, bool)> {
    (1u8..6, 0u8..8, 0u64..4, 0u64..4, 1u8..7, any::<bool>())
}

proptest! {
    #[test]
    fn random_commands_keep_the_invariants(
        commands in prop::collection::vec(command(), 0..60),
    ) {
        let mut state = Reservations::default();
        for (number, action, current, key, kind, persist) in commands {
            let (from, kind) = (host(number), ReservationType::from_code(kind).unwrap());
            let of_register = |action| Register { action, persist: Some(persist) };
            let result = match action {
                0 => state.register(from, of_register(RegisterAction::Register { key }), true),
                1 => {
                    let action = RegisterAction::Unregister { current: Some(current) };
                    state.register(from, of_register(action), true)
                }
                2 => {
                    let action = RegisterAction::Replace { current: None, key };
                    state.register(from, of_register(action), true)
                }
                3 => acquire(&state, number, kind, current),
                4 | 5 => preempt(&state, number, kind, current, key),
                6 => release(&state, number, kind, current),
                _ => state.release(from, Release { action: ReleaseAction::Clear, current }),
            };
            let Ok(change) = result else { continue };
            prop_assert!(change.notices.iter().all(|(to, _)| *to != from.id));
            let (old, new) = (Restriction::of(&state), Restriction::of(&change.next));
            if Restriction::is_widened(old.as_ref(), new.as_ref()) {
                for other in (1..7).map(host) {
                    for data in [DataUse::Reads, DataUse::Writes] {
                        let may = |one: &Option<Restriction>| {
                            one.as_ref().is_none_or(|one| one.check(&other, data).is_ok())
                        };
                        prop_assert!(!may(&old) || may(&new));
                    }
                }
            }
            state = change.next;
            if let Some(record) = encode(&state) {
                prop_assert_eq!(decode(&record), Ok(state.clone()));
            }
        }
    }

    #[test]
    fn any_record_decodes_or_fails(record in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(decode(&record).is_err());
    }
}

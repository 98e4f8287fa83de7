//! Reservation state of one namespace: registrants, the reservation, and the pure transitions that
//! Register, Acquire and Release make (Base 2.0 8.19).
//!
//! Invariants, checked after each transition:
//! - the holder of a reservation is a registrant;
//! - an all-registrants reservation has at least one registrant, and no single holder;
//! - there are at most [`RESERVATION_REGISTRANTS`] registrants;
//! - a registration is used only by hosts with the NQN of the host that made it. A host proves its
//!   NQN, where it has a key, but chooses its identifier.
//!
//! A host is its host identifier: registrations survive reconnects, and all controllers of a host
//! share them. Linux allows one identifier for each NQN, and one NQN for each identifier.

use std::collections::BTreeMap;

use flagstone_nvme::Nqn;
use flagstone_nvme::command::reservation::{
    Acquire, AcquireAction, ExcludedAccess, Register, RegisterAction, Release, ReleaseAction,
    ReservationScope, ReservationType,
};
use flagstone_nvme::log::reservation::NotificationType;
use flagstone_nvme::status::Status;

use crate::controller::HostIdentity;
use crate::limits::RESERVATION_REGISTRANTS;

/// Host identifier, as given by Connect.
pub(crate) type HostId = [u8; 16];

const CONFLICT: Status = Status::RESERVATION_CONFLICT.dnr();

/// A reservation and who holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reservation {
    /// One host holds it. The scope is not all registrants.
    Held { kind: ReservationType, by: HostId },
    /// Every registrant holds it. The scope is all registrants.
    Shared { kind: ReservationType },
}

impl Reservation {
    fn new(kind: ReservationType, host: HostId) -> Reservation {
        match kind.scope {
            ReservationScope::AllRegistrants => Reservation::Shared { kind },
            ReservationScope::Holder | ReservationScope::Registrants => {
                Reservation::Held { kind, by: host }
            }
        }
    }

    pub(crate) fn kind(self) -> ReservationType {
        match self {
            Reservation::Held { kind, .. } | Reservation::Shared { kind } => kind,
        }
    }

    /// True if `host`, a registrant, holds it.
    pub(crate) fn is_held_by(self, host: &HostId) -> bool {
        match self {
            Reservation::Held { by, .. } => by == *host,
            Reservation::Shared { .. } => true,
        }
    }
}

/// Registration of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    pub(crate) key: u64,
    /// Who made it. `None` if it was stored by a version that did not record this: every host with
    /// the identifier uses it until one registers again.
    pub(crate) nqn: Option<Nqn>,
}

impl Registration {
    /// True unless a host with this name has only claimed the identifier.
    pub(crate) fn is_of(&self, nqn: &Nqn) -> bool {
        self.nqn.is_none_or(|own| own == *nqn)
    }
}

/// Registrants and reservation of one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reservations {
    pub(super) registrants: BTreeMap<HostId, Registration>,
    pub(super) reservation: Option<Reservation>,
    /// PTPL: all of this survives a restart.
    pub(super) persists: bool,
    /// GEN.
    pub(super) generation: u32,
}

/// Outcome of a successful command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReservationChange {
    pub(crate) next: Reservations,
    /// Notifications to other hosts.
    pub(crate) notices: Vec<(HostId, NotificationType)>,
}

impl Reservations {
    /// Registers, unregisters or replaces the key of `host`.
    ///
    /// # Errors
    /// Reservation Conflict; Invalid Field if persistence is requested where it is impossible (not
    /// `can_persist`); Internal Error at the limit of registrants.
    pub(crate) fn register(
        &self,
        host: HostIdentity,
        command: Register,
        can_persist: bool,
    ) -> Result<ReservationChange, Status> {
        if command.persist == Some(true) && !can_persist {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let known = self.registrants.get(&host.id);
        if known.is_some_and(|known| !known.is_of(&host.nqn)) {
            return Err(CONFLICT);
        }
        let matches = |current: Option<u64>| match known {
            Some(known) => current.is_none_or(|current| current == known.key),
            None => false,
        };
        let with = |key| Registration { key, nqn: Some(host.nqn) };
        let mut change = self.begin();
        let next = &mut change.next;
        match command.action {
            RegisterAction::Register { key } => match known {
                Some(same) if same.key != key => return Err(CONFLICT),
                None if next.registrants.len() >= RESERVATION_REGISTRANTS => {
                    return Err(Status::INTERNAL_ERROR.dnr());
                }
                Some(_) | None => drop(next.registrants.insert(host.id, with(key))),
            },
            RegisterAction::Unregister { current } if matches(current) => {
                change.unregister(host.id);
            }
            RegisterAction::Replace { current, key } if matches(current) => {
                next.registrants.insert(host.id, with(key));
            }
            RegisterAction::Unregister { .. } | RegisterAction::Replace { .. } => {
                return Err(CONFLICT);
            }
        }
        change.next.persists = command.persist.unwrap_or(change.next.persists);
        change.next.generation = change.next.generation.wrapping_add(1);
        Ok(change.checked())
    }

    /// Acquires the reservation, or preempts registrations and the reservation with them.
    ///
    /// # Errors
    /// Reservation Conflict; Invalid Field for a key of 0 that preempts nothing.
    pub(crate) fn acquire(
        &self,
        host: HostIdentity,
        command: Acquire,
    ) -> Result<ReservationChange, Status> {
        self.check_registered(&host, command.current)?;
        let host = host.id;
        let mut change = self.begin();
        match (command.action, self.reservation) {
            (AcquireAction::Acquire, None) => {
                change.next.reservation = Some(Reservation::new(command.kind, host));
            }
            (AcquireAction::Acquire, Some(reservation)) => {
                if !reservation.is_held_by(&host) || reservation.kind() != command.kind {
                    return Err(CONFLICT);
                }
            }
            (AcquireAction::Preempt { key }, reservation) => {
                change.preempt(host, key, reservation, command.kind)?;
                change.next.generation = change.next.generation.wrapping_add(1);
            }
        }
        Ok(change.checked())
    }

    /// Releases the reservation, or clears everything.
    ///
    /// # Errors
    /// Reservation Conflict; Invalid Field if the reservation has another type.
    pub(crate) fn release(
        &self,
        host: HostIdentity,
        command: Release,
    ) -> Result<ReservationChange, Status> {
        self.check_registered(&host, command.current)?;
        let host = host.id;
        let mut change = self.begin();
        match (command.action, self.reservation) {
            (ReleaseAction::Clear, _) => {
                change.notify_others(&host, NotificationType::RESERVATION_PREEMPTED);
                change.next.registrants.clear();
                change.next.reservation = None;
                change.next.generation = change.next.generation.wrapping_add(1);
            }
            (ReleaseAction::Release(kind), Some(held)) if held.is_held_by(&host) => {
                if held.kind() != kind {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                change.release(&host);
            }
            // A release by a host that holds nothing succeeds without an effect.
            (ReleaseAction::Release(_), _) => {}
        }
        Ok(change.checked())
    }

    fn check_registered(&self, host: &HostIdentity, key: u64) -> Result<(), Status> {
        let known = self.registrants.get(&host.id);
        match known.is_some_and(|known| known.key == key && known.is_of(&host.nqn)) {
            true => Ok(()),
            false => Err(CONFLICT),
        }
    }

    fn begin(&self) -> ReservationChange {
        ReservationChange { next: self.clone(), notices: Vec::new() }
    }

    /// True if the invariants of the module hold.
    pub(super) fn is_consistent(&self) -> bool {
        let holder = match self.reservation {
            None => true,
            Some(Reservation::Held { kind, by }) => {
                kind.scope != ReservationScope::AllRegistrants && self.registrants.contains_key(&by)
            }
            Some(Reservation::Shared { kind }) => {
                kind.scope == ReservationScope::AllRegistrants && !self.registrants.is_empty()
            }
        };
        holder && self.registrants.len() <= RESERVATION_REGISTRANTS
    }
}

impl ReservationChange {
    /// Removes registrations with `key`, and takes the reservation if it is theirs.
    fn preempt(
        &mut self,
        host: HostId,
        key: u64,
        reservation: Option<Reservation>,
        kind: ReservationType,
    ) -> Result<(), Status> {
        let takes = match reservation {
            None => false,
            Some(Reservation::Shared { .. }) => key == 0,
            Some(Reservation::Held { by, .. }) => {
                self.next.registrants.get(&by).is_some_and(|holder| holder.key == key)
            }
        };
        // A key of 0 addresses all other registrants of a shared reservation.
        let all_others = takes && matches!(reservation, Some(Reservation::Shared { .. }));
        if key == 0 && reservation.is_some() && !takes {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let preempted = |(other, registered): (&HostId, &Registration)| {
            let chosen = all_others || registered.key == key;
            (chosen && !(takes && *other == host)).then_some(*other)
        };
        let removed: Vec<HostId> = self.next.registrants.iter().filter_map(preempted).collect();
        if removed.is_empty() && !takes {
            return Err(CONFLICT);
        }
        if takes {
            // Before the registrations go, so that there is no moment without a reservation.
            self.next.reservation = Some(Reservation::new(kind, host));
        }
        for other in removed {
            self.unregister(other);
            if other != host {
                self.notices.push((other, NotificationType::REGISTRATION_PREEMPTED));
            }
        }
        if let Some(old) = reservation
            && takes
            && old.kind() != kind
        {
            self.notify_others(&host, NotificationType::RESERVATION_RELEASED);
        }
        Ok(())
    }

    /// Removes the registration of `host`, and the reservation if no other host holds it.
    fn unregister(&mut self, host: HostId) {
        self.next.registrants.remove(&host);
        match self.next.reservation {
            Some(Reservation::Held { by, .. }) if by == host => self.release(&host),
            Some(Reservation::Shared { .. }) if self.next.registrants.is_empty() => {
                self.next.reservation = None;
            }
            _ => {}
        }
    }

    /// Ends the reservation that `host` holds. Other registrants of a reservation that admitted
    /// them are notified.
    fn release(&mut self, host: &HostId) {
        let ended = self.next.reservation.take();
        if ended.is_some_and(|ended| ended.kind().scope != ReservationScope::Holder) {
            self.notify_others(host, NotificationType::RESERVATION_RELEASED);
        }
    }

    fn notify_others(&mut self, host: &HostId, kind: NotificationType) {
        let others = self.next.registrants.keys().filter(|other| *other != host);
        self.notices.extend(others.map(|other| (*other, kind)));
    }

    fn checked(self) -> ReservationChange {
        assert!(self.next.is_consistent(), "reservation state is inconsistent: {:?}", self.next);
        self
    }
}

/// Commands by their use of data (Base 2.0 8.19.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataUse {
    Reads,
    Writes,
}

/// Restriction that a reservation places on hosts, as connections see it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Restriction {
    exclusion: ExcludedAccess,
    /// Hosts without restriction, by ascending identifier.
    admitted: Box<[(HostId, Registration)]>,
}

impl Restriction {
    /// The restriction of `state`; `None` without a reservation.
    pub(crate) fn of(state: &Reservations) -> Option<Restriction> {
        let reservation = state.reservation?;
        let only = match reservation {
            Reservation::Held { kind, by } if kind.scope == ReservationScope::Holder => Some(by),
            _ => None,
        };
        let registrants = state.registrants.iter();
        let admitted = registrants.filter(|(host, _)| only.is_none_or(|only| only == **host));
        let admitted = admitted.map(|(host, registration)| (*host, *registration)).collect();
        Some(Restriction { exclusion: reservation.kind().exclusion, admitted })
    }

    /// Checks a command of `host`.
    ///
    /// # Errors
    /// Reservation Conflict.
    #[inline]
    pub(crate) fn check(&self, host: &HostIdentity, data: DataUse) -> Result<(), Status> {
        let excluded = self.exclusion == ExcludedAccess::All || data == DataUse::Writes;
        if !excluded || self.registration(&host.id).is_some_and(|one| one.is_of(&host.nqn)) {
            return Ok(());
        }
        Err(CONFLICT)
    }

    #[inline]
    fn registration(&self, host: &HostId) -> Option<&Registration> {
        let at = self.admitted.binary_search_by_key(&host, |(host, _)| host).ok()?;
        Some(&self.admitted[at].1)
    }

    /// True if `new` refuses no command that `old` admits.
    pub(crate) fn is_widened(old: Option<&Restriction>, new: Option<&Restriction>) -> bool {
        match (old, new) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(old), Some(new)) => {
                (old.exclusion == new.exclusion || new.exclusion == ExcludedAccess::Writes)
                    && old.admitted.iter().all(|(host, registration)| {
                        new.registration(host).is_some_and(|one| one.nqn == registration.nqn)
                    })
            }
        }
    }
}

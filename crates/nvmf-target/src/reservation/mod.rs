//! Reservations of a namespace, with which hosts of a cluster exclude each other (Base 2.0 8.19).
//!
//! [`state`] is the pure state machine, [`record`] its durable form, [`notify`] the log of a
//! controller. This module applies a command of a host: it makes the change durable if it has to
//! survive a restart, publishes it in the namespace table, and waits for the commands that the
//! change no longer admits.
//!
//! Invariants:
//! - one change at a time in a subsystem, in order of arrival;
//! - a change that survives restarts is durable before any host sees it. If it cannot be stored,
//!   the command fails and nothing changes. A failed save may have taken effect on the disk: the
//!   former record is saved again, at once, and before every later change until that succeeds;
//! - on a mirrored volume, a change is also durable on every node that could serve the volume next,
//!   and such a node enforces it before it serves ([`ReservationReplication`]);
//! - when a command completes that restricted other hosts, none of their earlier writes is in
//!   flight, on any connection, closed or not. So a preempted host's write cannot land later.
//!   Preempt and Preempt and Abort are therefore the same. A device that never answers blocks the
//!   command, because nothing else would be safe.

mod notify;
mod record;
mod state;
#[cfg(test)]
mod tests;

use std::io::{self, ErrorKind::InvalidData};
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::IoFuture;
use flagstone_nvme::command::reservation::{
    Acquire, Register, Release, ReportHeader, ReportRegistrant, ReservationReport,
};
use flagstone_nvme::log::reservation::NotificationType;
use flagstone_nvme::status::Status;
use flagstone_nvme::wire::{U16, U32, U64, Wire};
use flagstone_nvme::{IoOpcode, Nqn, Sqe};
use flagstone_runtime::sync::SharedNotify;
use flagstone_runtime::{BufMut, cores, spawn_blocking, time};
use flagstone_transport::grace_period;
use parking_lot::Mutex;

use super::namespace::{NamespaceAccess, NamespaceConfig};
use super::subsystem::ServedSubsystem;
use super::{Target, TargetError};
use crate::admin::reply_data;
use crate::config::TargetConfig;
use crate::controller::HostIdentity;
use crate::io::status_of;
pub(crate) use notify::NotificationLog;
use record::{decode, encode, encode_used};
pub(crate) use state::{DataUse, HostId, Restriction};
use state::{ReservationChange, Reservations};

/// CNTLID of every registrant: the dynamic controller model has no fixed identifiers.
const DYNAMIC_CONTROLLER: u16 = 0xffff;
/// Polling interval of the commands that a change waits for: a few commands of a fast disk.
const DRAIN_PERIOD: Duration = Duration::from_micros(200);

/// Longest record that a [`ReservationStore`] keeps, in bytes.
pub const RESERVATION_RECORD_MAX_BYTES: usize = record::RECORD_MAX_BYTES;

/// Storage of the reservations of one namespace.
pub trait ReservationStore: Send + Sync {
    /// Durably replaces the record, of at most [`RESERVATION_RECORD_MAX_BYTES`]; `None` removes it.
    /// Called on a thread of its own, one call at a time.
    ///
    /// # Errors
    /// The record may be stored or not, or not durably.
    fn save(&self, record: Option<&[u8]>) -> std::io::Result<()>;

    /// The other nodes that serve the namespace, of a mirrored volume. Its record has all
    /// reservations, also those that end with a power loss: one node does not know that all lost
    /// power.
    fn replication(&self) -> Option<&dyn ReservationReplication> {
        None
    }
}

/// Storage of the reservations of one namespace on other nodes, of which one serves it.
pub trait ReservationReplication: Send + Sync {
    /// Checks that this node may change the reservations now.
    ///
    /// # Errors
    /// The status of the command.
    fn check(&self) -> Result<(), Status>;

    /// Durably replaces the record on the other nodes, after it was saved on this one. A node that
    /// serves the namespace later has it.
    ///
    /// # Errors
    /// The command fails. This node no longer serves the namespace, or no other one has the record.
    fn replicate(&self, record: &[u8]) -> IoFuture<()>;
}

/// Reservations of one namespace.
pub(crate) struct NamespaceReservations {
    state: Mutex<Reservations>,
    store: Option<Arc<dyn ReservationStore>>,
    stored: Mutex<StoredRecord>,
    /// Order of the changes by hosts and by the source of a mirror.
    turn: ReservationTurn,
}

/// Relation of the stored record to the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoredRecord {
    Current,
    /// A save failed: it may be the record of a change that failed.
    Uncertain,
}

/// Reservations of a namespace, which outlive it: for a namespace that comes back under another
/// name, or with another device.
#[derive(Clone)]
pub struct ReservationState(Arc<NamespaceReservations>);

impl ReservationState {
    /// Reservations as `record` has them; none without a record. With a `store` they survive
    /// restarts if a host asks for that; `record` is what it stored.
    ///
    /// # Errors
    /// [`TargetError::ReservationRecord`]: hosts that are excluded may be unknown.
    pub fn open(
        store: Option<Arc<dyn ReservationStore>>,
        record: Option<&[u8]>,
    ) -> Result<ReservationState, TargetError> {
        let opened = NamespaceReservations::open(store, record);
        opened
            .map(|opened| ReservationState(Arc::new(opened)))
            .map_err(TargetError::ReservationRecord)
    }

    /// The present record for another node of a mirror; empty if hosts have never used
    /// reservations.
    pub fn replicated_record(&self) -> Vec<u8> {
        encode_used(&self.0.state.lock()).unwrap_or_default()
    }

    /// True while a namespace or another handle uses it, or a host is registered.
    pub fn is_needed(&self) -> bool {
        Arc::strong_count(&self.0) > 1 || !self.0.state.lock().registrants.is_empty()
    }
}

/// Handles of the same reservations are equal.
impl PartialEq for ReservationState {
    fn eq(&self, other: &ReservationState) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for ReservationState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ReservationState").field(&self.0.state.lock()).finish()
    }
}

/// Order of the changes in a subsystem.
#[derive(Debug, Default)]
pub(crate) struct ReservationTurn {
    /// Tickets given out, and tickets served.
    tickets: Mutex<(u64, u64)>,
    served: SharedNotify,
}

/// The turn of one change, until it is dropped.
struct ChangeGuard<'a>(&'a ReservationTurn);

impl ReservationTurn {
    async fn take(&self) -> ChangeGuard<'_> {
        let ticket = {
            let mut tickets = self.tickets.lock();
            tickets.0 += 1;
            tickets.0 - 1
        };
        self.served.wait_for(|| (self.tickets.lock().1 == ticket).then_some(())).await;
        ChangeGuard(self)
    }
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        self.0.tickets.lock().1 += 1;
        self.0.served.notify();
    }
}

impl NamespaceReservations {
    /// Reservations as `record` has them; none without a record.
    fn open(
        store: Option<Arc<dyn ReservationStore>>,
        record: Option<&[u8]>,
    ) -> Result<NamespaceReservations, &'static str> {
        let state = record.map_or_else(|| Ok(Reservations::default()), decode)?;
        let stored = Mutex::new(StoredRecord::Current);
        let turn = ReservationTurn::default();
        Ok(NamespaceReservations { state: Mutex::new(state), store, stored, turn })
    }

    /// RESCAP bit 0 and PTPL: reservations can persist.
    pub(crate) fn can_persist(&self) -> bool {
        self.store.is_some()
    }

    /// PTPL: reservations persist.
    pub(crate) fn persists(&self) -> bool {
        self.state.lock().persists
    }

    pub(crate) fn restriction(&self) -> Option<Arc<Restriction>> {
        Restriction::of(&self.state.lock()).map(Arc::new)
    }

    /// The change that `command` of `host` makes.
    fn plan(
        &self,
        host: HostIdentity,
        command: &Sqe,
        data: &[u8],
    ) -> Result<ReservationChange, Status> {
        let state = self.state.lock();
        match IoOpcode(command.opcode) {
            IoOpcode::RESERVATION_REGISTER => {
                let register = Register::parse(command, data)?;
                if host.id == HostId::default() {
                    return Err(Status::HOST_ID_NOT_INITIALIZED.dnr());
                }
                state.register(host, register, self.can_persist())
            }
            IoOpcode::RESERVATION_ACQUIRE => state.acquire(host, Acquire::parse(command, data)?),
            IoOpcode::RESERVATION_RELEASE => state.release(host, Release::parse(command, data)?),
            _ => Err(Status::INVALID_OPCODE.dnr()),
        }
    }

    /// Makes `next` durable as far as it survives a restart, then current.
    async fn commit(&self, nsid: u32, next: Reservations) -> Result<(), Status> {
        let replication = self.replication();
        let encode = if replication.is_some() { encode_used } else { encode };
        let (record, former) = (encode(&next), encode(&self.state.lock()));
        let replicated = record.clone();
        let is_stored = record == former && *self.stored.lock() == StoredRecord::Current;
        // Also without a change: another node may serve the namespace by now.
        let must_store = !is_stored || replication.is_some();
        if let Some(store) = self.store.as_ref().filter(|_| must_store) {
            let store = store.clone();
            let before = former.clone();
            // Until the result is known.
            *self.stored.lock() = StoredRecord::Uncertain;
            let save = move || {
                store.save(record.as_deref()).map_err(|error| {
                    let restored = store.save(before.as_deref());
                    (error, restored)
                })
            };
            let saved = spawn_blocking("reservations", save).await;
            let saved =
                saved.unwrap_or_else(|error| Err((error, Err(io::ErrorKind::Other.into()))));
            if !matches!(saved, Err((_, Err(_)))) {
                *self.stored.lock() = StoredRecord::Current;
            }
            if let Err((error, restored)) = saved {
                let unrestored = restored.err().map(|error| error.to_string());
                tracing::error!(
                    nsid,
                    unrestored,
                    "reservations cannot be stored, and stay as they are: {error}"
                );
                return Err(Status::INTERNAL_ERROR);
            }
            if let Some(replication) = replication
                && let Err(error) =
                    replication.replicate(replicated.as_deref().unwrap_or_default()).await
            {
                self.store_again(nsid, former).await;
                return Err(status_of(error));
            }
        }
        *self.state.lock() = next;
        Ok(())
    }

    /// Stores the record of the present state, after a change of it has failed.
    async fn store_again(&self, nsid: u32, record: Option<Vec<u8>>) {
        let Some(store) = self.store.clone() else { return };
        *self.stored.lock() = StoredRecord::Uncertain;
        let saved = spawn_blocking("reservations", move || store.save(record.as_deref())).await;
        match saved.and_then(|saved| saved) {
            Ok(()) => *self.stored.lock() = StoredRecord::Current,
            Err(error) => {
                tracing::error!(nsid, "reservations cannot be stored as they were: {error}");
            }
        }
    }

    /// Takes over the record of the source of a mirror: durably, then in effect.
    async fn replace(&self, record: Vec<u8>) -> io::Result<()> {
        let next = match record.as_slice() {
            [] => Reservations::default(),
            record => decode(record).map_err(|why| io::Error::new(InvalidData, why))?,
        };
        let is_stored = *self.stored.lock() == StoredRecord::Current && *self.state.lock() == next;
        if let Some(store) = self.store.clone().filter(|_| !is_stored) {
            *self.stored.lock() = StoredRecord::Uncertain;
            let kept = encode_used(&next);
            let saved = spawn_blocking("reservations", move || store.save(kept.as_deref())).await;
            saved.and_then(|saved| saved)?;
            *self.stored.lock() = StoredRecord::Current;
        }
        *self.state.lock() = next;
        Ok(())
    }

    fn replication(&self) -> Option<&dyn ReservationReplication> {
        self.store.as_ref().and_then(|store| store.replication())
    }

    /// Checks that no other node of a mirror serves the namespace.
    fn check_served(&self) -> Result<(), Status> {
        self.replication().map_or(Ok(()), |replication| replication.check())
    }

    /// Data of Reservation Report `command`.
    pub(crate) fn report(&self, command: &Sqe, config: &TargetConfig) -> Result<BufMut, Status> {
        let report = ReservationReport::parse(command)?;
        self.check_served()?;
        let asked = u32::try_from(report.data_bytes).ok().filter(|&all| all <= config.mdts_bytes);
        let mut data = reply_data(command, asked.ok_or(Status::INVALID_FIELD.dnr())? as usize)?;
        let state = self.state.lock();
        let header = ReportHeader {
            generation: U32::new(state.generation),
            kind: state.reservation.map_or(0, |held| held.kind().code()),
            registrants: U16::new(state.registrants.len() as u16),
            persists: u8::from(state.persists),
            ..ReportHeader::default()
        };
        let mut at = 0;
        let mut push = |bytes: &[u8]| {
            let room = data.len().saturating_sub(at).min(bytes.len());
            data[at..at + room].copy_from_slice(&bytes[..room]);
            at += room;
        };
        push(header.bytes());
        for (host, registration) in &state.registrants {
            let registrant = ReportRegistrant {
                controller: U16::new(DYNAMIC_CONTROLLER),
                status: u8::from(state.reservation.is_some_and(|held| held.is_held_by(host))),
                key: U64::new(registration.key),
                host_id: *host,
                ..ReportRegistrant::default()
            };
            push(registrant.bytes());
        }
        Ok(data)
    }
}

impl Target {
    /// Like [`Target::add_namespace`](Target::add_namespace), and lets hosts use reservations.
    /// Namespaces that are served at the same time must not share them.
    ///
    /// # Errors
    /// As [`Target::add_namespace`](Target::add_namespace).
    pub fn add_reservable_namespace(
        &self,
        nqn: &Nqn,
        config: NamespaceConfig,
        reservations: &ReservationState,
    ) -> Result<u32, TargetError> {
        let access = NamespaceAccess::Hosts { reservations: Some(reservations.0.clone()) };
        let subsystem = self.subsystem_named(nqn)?;
        let nsid = subsystem.add_namespace(config, access, self.config().max_namespaces)?;
        // They may have been replaced meanwhile.
        subsystem.set_restriction(nsid, &reservations.0, reservations.0.restriction());
        Ok(nsid)
    }

    /// Replaces the reservations by the record of the source of a mirror, of
    /// [`ReservationState::replicated_record`]. They are durable, and in force for all commands
    /// that begin later. Hosts are not served meanwhile: earlier commands are not waited for.
    ///
    /// # Errors
    /// The record is damaged, or cannot be stored. They stay as they were, but the new ones may be
    /// stored.
    pub async fn replace_reservations(
        &self,
        reservations: &ReservationState,
        record: Vec<u8>,
    ) -> io::Result<()> {
        let reservations = &reservations.0;
        let _turn = reservations.turn.take().await;
        reservations.replace(record).await?;
        for subsystem in self.subsystems() {
            let table = subsystem.table();
            for namespace in table.iter() {
                // Others are left as they are.
                subsystem.set_restriction(namespace.nsid, reservations, reservations.restriction());
            }
        }
        Ok(())
    }
}

impl ServedSubsystem {
    /// Executes Reservation Register, Acquire or Release of `host`.
    pub(crate) async fn change_reservations(
        &self,
        nsid: u32,
        host: HostIdentity,
        command: &Sqe,
        data: &[u8],
    ) -> Result<(), Status> {
        let _subsystem_turn = self.reservation_turn.take().await;
        let find = || self.table().get(nsid).cloned().ok_or(Status::INVALID_NAMESPACE.dnr());
        let reservations = find()?.reservations.clone().ok_or(Status::INVALID_OPCODE.dnr())?;
        let _turn = reservations.turn.take().await;
        let namespace = find()?;
        reservations.check_served()?;
        let ReservationChange { next, notices } = reservations.plan(host, command, data)?;
        reservations.commit(nsid, next).await?;
        let restriction = reservations.restriction();
        if restriction != namespace.restriction {
            self.set_restriction(nsid, &reservations, restriction.clone());
        }
        for (to, kind) in notices {
            self.notify_reservation(nsid, to, kind);
        }
        if !Restriction::is_widened(namespace.restriction.as_deref(), restriction.as_deref()) {
            self.earlier_commands_ended(&host).await;
        }
        Ok(())
    }

    fn notify_reservation(&self, nsid: u32, host: HostId, kind: NotificationType) {
        for controller in self.controllers() {
            if controller.host.id == host && !controller.masks_reservation(nsid, kind) {
                controller.events.reservation_changed(nsid, kind);
            }
        }
    }

    /// Waits for the commands in flight of all hosts but `host`, which no longer count if they are
    /// admitted from now on.
    async fn earlier_commands_ended(&self, host: &HostIdentity) {
        // Commands that cores are executing now may use the previous table. They are admitted in
        // the same turn, so afterwards all of them are counted in the phase that ends.
        grace_period(&cores()).await;
        let queues = self.queues_of_others(host);
        let mut earlier: Vec<_> = queues.iter().map(|queue| (queue, queue.begin_phase())).collect();
        grace_period(&cores()).await;
        loop {
            earlier.retain(|(queue, phase)| !queue.has_ended(*phase));
            if earlier.is_empty() {
                return;
            }
            time::sleep(DRAIN_PERIOD).await;
        }
    }
}

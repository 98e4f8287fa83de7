//! Reservations of hosts: one record of the front end, which all replicas keep.
//!
//! Invariants:
//! - a change that has ended successfully is durable on every peer that is in sync. A peer that
//!   lacks it was durably recorded as out of date before, as one that lacks a write;
//! - a peer is in sync, and a resync to it ends, only after it has stored the present record;
//! - only the attached source replaces the record of a target, which serves no hosts meanwhile;
//! - a peer gets one record at a time, in the order of the changes.
//!
//! The front end stores a change on its own node first. If the change then fails, this node no
//! longer serves hosts, or no peer has the change.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use flagstone_blockdev::{IoError, IoFuture};
use parking_lot::Mutex;

use crate::io::admission::{Dispatch, LegDispatch, MirrorAdmission};
use crate::io::call_admission::Counted;
use crate::io::fifo_lock::FifoLock;
use crate::io::request::RunToCompletion;
use crate::limits::{RESERVATION_PAGE_BYTES, RESERVATION_RECORD_MAX_BYTES};
use crate::mirror::{Inner, Mirror};
use crate::session::connect::SessionEnd;
use crate::session::target::SourceCall;
use crate::wire::peer::{
    PeerAnswer, PeerRefusal, PeerReply, PeerRequest, ReplicaIdentity, RequestError,
    ReservationPage, SharedSession, execute,
};

/// The record on this node. Called from any core.
pub trait ReservationRecords: Send + Sync + 'static {
    /// The present record, of at most
    /// [`RESERVATION_RECORD_MAX_BYTES`](crate::limits::RESERVATION_RECORD_MAX_BYTES); empty if
    /// hosts have never used reservations.
    fn record(&self) -> Vec<u8>;

    /// Durably replaces the record by the source's, and then enforces it, in the order of calls.
    fn replace(&self, record: Vec<u8>) -> IoFuture<()>;
}

/// Why reservations cannot be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservationObstacle {
    /// This node serves no hosts.
    #[error("this node does not serve the volume")]
    NotServing,
    /// Its server has no state directory, or is of an earlier release.
    #[error("a peer keeps no reservations")]
    Peer,
}

/// State of the replication, at the source.
#[derive(Default)]
pub(crate) struct ReplicatedReservations {
    records: OnceLock<Arc<dyn ReservationRecords>>,
    /// Held while a record is chosen and sent.
    order: Arc<FifoLock>,
    /// Record of the latest change, which the front end may not have published yet.
    latest: Mutex<Option<Arc<[u8]>>>,
    has_warned: AtomicBool,
}

impl ReplicatedReservations {
    pub(crate) fn are_kept(&self) -> bool {
        self.records.get().is_some()
    }

    /// The present record; `None` if this node keeps none.
    fn record(&self) -> Option<Arc<[u8]>> {
        let records = self.records.get()?;
        let latest = self.latest.lock().clone();
        Some(latest.unwrap_or_else(|| records.record().into()))
    }
}

impl Mirror {
    /// Sets what keeps the reservations on this node. The first call decides.
    pub fn set_reservation_records(&self, records: Arc<dyn ReservationRecords>) {
        let _ = self.0.reservations.records.set(records);
    }

    /// Checks that the reservations can be changed on this node now.
    ///
    /// # Errors
    /// See [`ReservationObstacle`].
    pub fn check_reservable(&self) -> Result<(), ReservationObstacle> {
        let state = self.0.lock();
        let serves = state.serving && !self.0.failover.lease_has_ended();
        if !serves && state.moved().is_none() {
            return Err(ReservationObstacle::NotServing);
        }
        let attached = state.legs.iter().filter(|leg| leg.session.is_some());
        let mut known = attached.filter_map(|leg| leg.last_handshake.as_ref());
        match known.all(|peer| peer.keeps_reservations) {
            true => Ok(()),
            false => Err(ReservationObstacle::Peer),
        }
    }

    /// Stores a record, which is durable on this node, on the peers: see the module.
    ///
    /// # Errors
    /// This node no longer serves hosts.
    pub fn replicate_reservations(&self, record: &[u8]) -> IoFuture<()> {
        IoFuture::later(RunToCompletion::new(replicate(self.0.clone(), record.into())))
    }
}

async fn replicate(inner: Arc<Inner>, record: Arc<[u8]>) -> Result<(), IoError> {
    let order = inner.reservations.order.acquire().await;
    *inner.reservations.latest.lock() = Some(record.clone());
    let mut is_sent = false;
    let replicated = loop {
        let step = match inner.admit_request() {
            MirrorAdmission::Admitted(dispatch) => {
                is_sent = true;
                match send(&inner, dispatch, &record).await {
                    Ok(true) => break Ok(()),
                    // A lost peer may come back equal, without the record.
                    Ok(false) => Ok(()),
                    Err(error) => Err(error),
                }
            }
            MirrorAdmission::NeedsGeneration => {
                let begun = match is_sent {
                    true => inner.record_difference().await,
                    false => inner.ensure_new_generation().await,
                };
                // Abandoned when the replica begins to move to another mirror.
                begun.or_else(|error| inner.lock().moved().map(drop).ok_or(error))
            }
            MirrorAdmission::Refused(error) => Err(error),
            MirrorAdmission::Moved(replacement) => {
                *inner.reservations.latest.lock() = None;
                drop(order);
                return Box::pin(replicate(replacement.0, record)).await;
            }
            admission => inner.wait_for_admission(admission).await,
        };
        if let Err(error) = step {
            break Err(error);
        }
    };
    if replicated.is_err() {
        *inner.reservations.latest.lock() = None;
    }
    replicated
}

/// Sends a record to the admitted peers; false if one was lost.
async fn send(inner: &Arc<Inner>, dispatch: Dispatch, record: &[u8]) -> Result<bool, IoError> {
    let mut all = true;
    for (index, leg) in dispatch.legs.iter().enumerate() {
        let LegDispatch::Send(call) = leg else { continue };
        if let Err(error) = send_pages(&call.session, record).await {
            let replica = inner.local.superblock().replica;
            tracing::warn!(%replica, leg = index, "a peer has not stored the reservations: {error}");
            inner.disconnect(index, call.session_id);
            all = false;
        }
        inner.call_ended(Counted::Leg(index, call.half));
    }
    match inner.call_completed(&dispatch) {
        true => Ok(all),
        false => Err(IoError::Unreachable),
    }
}

async fn send_pages(session: &SharedSession, record: &[u8]) -> Result<(), RequestError> {
    let record_bytes = u32::try_from(record.len()).map_err(|_| PeerRefusal::Range)?;
    let mut parts = record.chunks(RESERVATION_PAGE_BYTES);
    let first = parts.next().unwrap_or_default();
    for (number, part) in (0..).zip(std::iter::once(first).chain(parts)) {
        let page = ReservationPage { number, record_bytes, part: part.to_vec() };
        execute(session, PeerRequest::Reservations(page)).await?;
    }
    Ok(())
}

impl Inner {
    /// Sends the present record to a peer that receives writes, before it counts as in sync.
    pub(crate) async fn send_reservations(
        &self,
        leg: usize,
        session: &SharedSession,
    ) -> Result<(), SessionEnd> {
        if !self.reservations.are_kept() {
            return Ok(());
        }
        let _order = self.reservations.order.acquire().await;
        // As it was in the handshake of this session.
        let Some(peer) = self.lock().legs[leg].last_handshake else { return Ok(()) };
        self.check_keeps_reservations(leg, &peer)?;
        let record = self.reservations.record().filter(|_| peer.keeps_reservations);
        match record {
            Some(record) => Ok(send_pages(session, &record).await?),
            None => Ok(()),
        }
    }

    /// Checks that the peer keeps reservations, if hosts have any.
    pub(crate) fn check_keeps_reservations(
        &self,
        leg: usize,
        peer: &ReplicaIdentity,
    ) -> Result<(), SessionEnd> {
        let has_any = || self.reservations.record().is_some_and(|record| !record.is_empty());
        if peer.keeps_reservations || !has_any() {
            self.reservations.has_warned.store(false, Ordering::Relaxed);
            return Ok(());
        }
        // Logged once, not at each attempt.
        if !self.reservations.has_warned.swap(true, Ordering::Relaxed) {
            let replica = self.local.superblock().replica;
            tracing::warn!(
                %replica,
                leg,
                "the peer is not attached: hosts have reservations, which it does not keep. Give its \
                 server a state directory, or upgrade it"
            );
        }
        Err(SessionEnd::KeepsNoReservations)
    }

    /// Takes a page of the source's record into `arrived`, and stores the record with the last one.
    /// No role change and no other source interferes until it is stored, even if the connection of
    /// the source ends.
    pub(crate) async fn keep_reservations(
        &self,
        served: SourceCall,
        arrived: &Mutex<Vec<u8>>,
        page: ReservationPage,
    ) -> PeerAnswer {
        let records = self.reservations.records.get().ok_or(PeerRefusal::Version)?.clone();
        let record = {
            let mut arrived = arrived.lock();
            let begin = page.number as usize * RESERVATION_PAGE_BYTES;
            let end = page.record_bytes as usize;
            if begin > arrived.len() || end > RESERVATION_RECORD_MAX_BYTES {
                return Err(PeerRefusal::Range);
            }
            // A request may be repeated, with what came after it.
            arrived.truncate(begin);
            arrived.extend(&page.part);
            if arrived.len() < end {
                return Ok(PeerReply::Done);
            }
            arrived.clone()
        };
        *self.reservations.latest.lock() = None;
        let work = RunToCompletion::new(async move {
            let _served = served;
            records.replace(record).await
        });
        work.await.map_err(|error| {
            let replica = self.local.superblock().replica;
            tracing::error!(%replica, "the source's reservations cannot be stored: {error}");
            PeerRefusal::Failed
        })?;
        Ok(PeerReply::Done)
    }
}

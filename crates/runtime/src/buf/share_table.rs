//! Share table of buffer memory: which connection may hold how much, and which one ends when others
//! wait. A pure state machine: time comes in as an argument, and nothing here waits or allocates
//! buffers. [`super::share`] connects it to tasks.
//!
//! Invariants:
//! - every connection has [`ShareTable::guaranteed`] bytes that no other connection can take;
//! - everything beyond comes from one shared part. The last [`RESERVE_PART`] of the shared part
//!   goes only to connections of [`DrainState::Draining`];
//! - a connection that holds some of the shared part gets more only up to a fraction of what is
//!   free (dynamic thresholds, as in the buffers of switches), a host only up to what is free, and
//!   a protocol only up to [`PROTOCOL_PARTS`] of the shared part. So some of the shared part stays
//!   free for the next connection, host and protocol;
//! - a connection ends only while others wait, after they have waited [`OTHERS_WAIT`] together, and
//!   only if its own peer has made no progress for [`STALL_MIN`];
//! - time during which this process did not run is charged to no peer. Waits and stalls are counted
//!   in looks: each counts at most [`SHARE_LOOK`], and a stall only between two reports of its
//!   connection.
//!
//! A connection that holds nothing and waits longer than [`OVERTAKE_MAX`] for each
//! [`SHARE_BYTES_MAX`] that it requests is not overtaken any more. So small requests pass large
//! ones, and large ones are not starved.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::limits::{
    OTHERS_WAIT, OVERTAKE_MAX, PROTOCOL_PARTS, RESERVE_PART, SHARE_BYTES_MAX, SHARE_BYTES_MIN,
    SHARE_LOOK, STALL_MIN,
};
use crate::time::Instant;

/// Protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// NVMe/TCP.
    Nvme,
    /// NBD.
    Nbd,
}

/// Whether the peer of a connection reads what it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainState {
    /// Its peer has read or sent less than the sockets of both sides can hold, so it is unknown
    /// whether it reads.
    New,
    /// Its peer has read or sent more than that.
    Draining,
}

/// State of a connection's peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProgress {
    /// A value that changes whenever the peer reads or sends.
    pub mark: u64,
    /// The connection waits for its peer, and not for a device or memory.
    pub is_awaited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemberId(u64);

#[derive(Debug)]
struct ShareRequest {
    target: usize,
    since: Instant,
}

#[derive(Debug)]
struct Stall {
    mark: u64,
    /// For how long the peer has made no progress.
    duration: Duration,
    /// [`ShareTable::clock`] at the latest report.
    reported: Duration,
}

#[derive(Debug)]
struct ConnectionShare {
    protocol: Protocol,
    host: String,
    /// Bytes of the shared part, at most all of it.
    extra: usize,
    request: Option<ShareRequest>,
    /// Drain state at the latest request.
    drain_state: DrainState,
    /// The peer makes no progress, as far as reports show.
    stall: Option<Stall>,
    has_ended: bool,
}

/// Bytes of the shared part that the connections of one host hold.
#[derive(Debug, Default)]
struct HostUse {
    members: usize,
    extra: usize,
}

#[derive(Debug)]
pub(super) struct ShareTable {
    guaranteed: usize,
    shared_bytes: usize,
    used: usize,
    protocols: BTreeMap<Protocol, usize>,
    hosts: BTreeMap<String, HostUse>,
    members: BTreeMap<MemberId, ConnectionShare>,
    /// Connections with a request, in order of arrival.
    queue: VecDeque<MemberId>,
    next: u64,
    /// Time that requests have waited together since the queue was empty.
    waited: Duration,
    looked: Option<Instant>,
    /// Sum of the times between looks while requests waited, each at most [`SHARE_LOOK`].
    clock: Duration,
}

impl ShareTable {
    /// Divides `memory_bytes` among at most `connections`.
    pub(super) fn new(memory_bytes: usize, connections: usize) -> ShareTable {
        // A block may be twice as large as its request, and receiving ahead has a quarter.
        let total = memory_bytes / 8 * 3;
        let even = total / 2 / connections.max(1);
        let even = even - even % SHARE_BYTES_MIN;
        ShareTable {
            guaranteed: even.clamp(SHARE_BYTES_MIN, SHARE_BYTES_MAX),
            shared_bytes: total / 2,
            used: 0,
            protocols: BTreeMap::new(),
            hosts: BTreeMap::new(),
            members: BTreeMap::new(),
            queue: VecDeque::new(),
            next: 0,
            waited: Duration::ZERO,
            looked: None,
            clock: Duration::ZERO,
        }
    }

    /// Bytes that every connection may hold at any time.
    pub(super) fn guaranteed(&self) -> usize {
        self.guaranteed
    }

    /// Adds a connection of `host`.
    pub(super) fn join(&mut self, protocol: Protocol, host: String) -> MemberId {
        let id = MemberId(self.next);
        self.next += 1;
        self.hosts.entry(host.clone()).or_default().members += 1;
        let member = ConnectionShare {
            protocol,
            host,
            extra: 0,
            request: None,
            drain_state: DrainState::New,
            stall: None,
            has_ended: false,
        };
        self.members.insert(id, member);
        id
    }

    /// Removes a connection, which no longer holds anything. Returns the connections whose requests
    /// are granted thereby.
    pub(super) fn leave(&mut self, id: MemberId, now: Instant) -> Vec<MemberId> {
        self.withdraw(id);
        let granted = self.give_back(id, 0, now);
        if let Some(member) = self.members.remove(&id)
            && let Some(host) = self.hosts.get_mut(&member.host)
        {
            host.members -= 1;
            if host.members == 0 {
                self.hosts.remove(&member.host);
            }
        }
        granted
    }

    /// Requests that the connection may hold `target` bytes of the shared part. True if granted at
    /// once; otherwise it waits.
    pub(super) fn ask(
        &mut self,
        id: MemberId,
        target: usize,
        drain_state: DrainState,
        now: Instant,
    ) -> bool {
        if self.try_ask(id, target, drain_state, now) {
            self.withdraw(id);
            return true;
        }
        let Some(member) = self.members.get_mut(&id) else { return false };
        let since = member.request.as_ref().map_or(now, |request| request.since);
        if member.request.replace(ShareRequest { target, since }).is_none() {
            if self.queue.is_empty() {
                self.looked = Some(now);
            }
            self.queue.push_back(id);
        }
        false
    }

    /// Same as [`ShareTable::ask`], without waiting.
    pub(super) fn try_ask(
        &mut self,
        id: MemberId,
        target: usize,
        drain_state: DrainState,
        now: Instant,
    ) -> bool {
        if let Some(member) = self.members.get_mut(&id) {
            member.drain_state = drain_state;
        }
        let blocked = self.queue.iter().take_while(|other| **other != id).any(|other| {
            let member = self.members.get(other);
            member.is_some_and(|member| member.drain_state >= drain_state)
                && self.is_due(*other, now)
        });
        if blocked || !self.admits(id, target, drain_state) {
            return false;
        }
        self.set_extra(id, target.min(self.shared_limit(drain_state)));
        true
    }

    pub(super) fn withdraw(&mut self, id: MemberId) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if member.request.take().is_none() {
            return;
        }
        self.queue.retain(|other| *other != id);
        if self.queue.is_empty() {
            self.waited = Duration::ZERO;
            // In the next shortage, connections report before they can end.
            self.clock += 2 * SHARE_LOOK;
        }
    }

    /// The connection keeps at most `keep` bytes of the shared part. Returns the connections whose
    /// requests are granted thereby.
    pub(super) fn give_back(&mut self, id: MemberId, keep: usize, now: Instant) -> Vec<MemberId> {
        let Some(member) = self.members.get(&id) else { return Vec::new() };
        if member.extra <= keep {
            return Vec::new();
        }
        self.set_extra(id, keep);
        self.serve(now)
    }

    /// True if the connection's request waits.
    pub(super) fn is_waiting(&self, id: MemberId) -> bool {
        self.members.get(&id).is_some_and(|member| member.request.is_some())
    }

    /// True if it is time for another [`ShareTable::stalled`].
    pub(super) fn may_look(&self, now: Instant) -> bool {
        self.looked.is_none_or(|looked| now.since(looked) >= SHARE_LOOK / 2)
    }

    /// True if some connection waits for memory.
    pub(super) fn is_short(&self) -> bool {
        !self.queue.is_empty()
    }

    /// True if the connection has reported since the previous look of this shortage.
    fn is_recent(&self, stall: &Stall) -> bool {
        self.clock - stall.reported <= SHARE_LOOK
    }

    /// Records the progress of a connection's peer.
    pub(super) fn report(&mut self, id: MemberId, progress: PeerProgress) {
        let Some(member) = self.members.get(&id) else { return };
        let PeerProgress { mark, is_awaited } = progress;
        let duration = match &member.stall {
            Some(stall) if stall.mark == mark => {
                stall.duration + (self.clock - stall.reported).min(SHARE_LOOK)
            }
            _ => Duration::ZERO,
        };
        let stall = is_awaited.then_some(Stall { mark, duration, reported: self.clock });
        if let Some(member) = self.members.get_mut(&id) {
            member.stall = stall;
        }
    }

    /// The connections that have to report, because they hold some of the shared part.
    pub(super) fn holders(&self) -> impl Iterator<Item = MemberId> {
        self.members.iter().filter(|(_, member)| member.extra > 0).map(|(id, _)| *id)
    }

    /// The connections to end, as many as the requests need: those whose peers have never drained
    /// first, then the longest stalled.
    pub(super) fn stalled(&mut self, now: Instant) -> Vec<MemberId> {
        let since = self.looked.replace(now).unwrap_or(now);
        if self.queue.is_empty() {
            return Vec::new();
        }
        let step = now.since(since).min(SHARE_LOOK);
        self.clock += step;
        let waiting = u32::try_from(self.queue.len()).unwrap_or(u32::MAX);
        self.waited = self.waited.saturating_add(step.saturating_mul(waiting));
        if self.waited < OTHERS_WAIT {
            return Vec::new();
        }
        let mut stalled: Vec<(DrainState, Reverse<Duration>, MemberId, usize)> = Vec::new();
        let mut ending = 0;
        for (id, member) in &self.members {
            if member.has_ended {
                ending += member.extra;
            } else if let Some(stall) = &member.stall
                && member.extra > 0
                && stall.duration >= STALL_MIN
                && self.is_recent(stall)
            {
                let duration = Reverse(stall.duration);
                stalled.push((member.drain_state, duration, *id, member.extra));
            }
        }
        stalled.sort_unstable();
        let wanted: usize = self
            .queue
            .iter()
            .filter_map(|id| self.members.get(id))
            .filter_map(|member| Some(member.request.as_ref()?.target.min(self.shared_bytes)))
            .fold(0, usize::saturating_add)
            .min(self.shared_bytes);
        let mut ended = Vec::new();
        for (_, _, id, extra) in stalled {
            if ending >= wanted {
                break;
            }
            ending += extra;
            if let Some(member) = self.members.get_mut(&id) {
                member.has_ended = true;
                ended.push(id);
            }
        }
        ended
    }

    /// Bytes of the shared part in use, and the shared part.
    #[cfg(test)]
    pub(super) fn used(&self) -> (usize, usize) {
        (self.used, self.shared_bytes)
    }

    /// True if the request may no longer be overtaken.
    fn is_due(&self, id: MemberId, now: Instant) -> bool {
        let Some(member) = self.members.get(&id) else { return false };
        let Some(ShareRequest { target, since, .. }) = member.request else { return false };
        let steps = u32::try_from(target.div_ceil(SHARE_BYTES_MAX)).unwrap_or(u32::MAX);
        member.extra == 0 && now.since(since) >= OVERTAKE_MAX.saturating_mul(steps)
    }

    /// True if the connection may hold `target` bytes of the shared part now.
    fn admits(&self, id: MemberId, target: usize, drain_state: DrainState) -> bool {
        let Some(member) = self.members.get(&id) else { return false };
        let shared_bytes = self.shared_limit(drain_state);
        let fraction = match drain_state {
            DrainState::New => 8,
            DrainState::Draining => 4,
        };
        // A request beyond the shared part gets all of it.
        let target = target.min(shared_bytes);
        let Some(ask) = target.checked_sub(member.extra).filter(|ask| *ask > 0) else {
            return true;
        };
        let free = shared_bytes.saturating_sub(self.used);
        let host = self.hosts.get(&member.host).map_or(0, |host| host.extra);
        let protocol = self.protocols.get(&member.protocol).copied().unwrap_or(0);
        let (most, of) = PROTOCOL_PARTS;
        ask <= free
            && (member.extra == 0 || target <= free / fraction)
            && (host == 0 || host + ask <= free)
            && (protocol == 0 || protocol + ask <= shared_bytes / of * most)
    }

    /// Bytes of the shared part that a connection in this drain state may take.
    fn shared_limit(&self, drain_state: DrainState) -> usize {
        match drain_state {
            DrainState::New => self.shared_bytes - self.shared_bytes / RESERVE_PART,
            DrainState::Draining => self.shared_bytes,
        }
    }

    fn set_extra(&mut self, id: MemberId, target: usize) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let before = std::mem::replace(&mut member.extra, target);
        let host = self.hosts.entry(member.host.clone()).or_default();
        host.extra = host.extra - before + target;
        let protocol = self.protocols.entry(member.protocol).or_default();
        *protocol = *protocol - before + target;
        self.used = self.used - before + target;
    }

    /// Grants requests that fit: draining connections first, then in order of arrival.
    fn serve(&mut self, now: Instant) -> Vec<MemberId> {
        let mut granted = Vec::new();
        for drain_state in [DrainState::Draining, DrainState::New] {
            let mut at = 0;
            while let Some(id) = self.queue.get(at).copied() {
                let member =
                    self.members.get(&id).filter(|member| member.drain_state == drain_state);
                let target = member.and_then(|member| Some(member.request.as_ref()?.target));
                match target {
                    Some(target) if self.admits(id, target, drain_state) => {
                        self.set_extra(id, target.min(self.shared_limit(drain_state)));
                        self.withdraw(id);
                        granted.push(id);
                    }
                    Some(_) if self.is_due(id, now) => return granted,
                    _ => at += 1,
                }
            }
        }
        granted
    }
}

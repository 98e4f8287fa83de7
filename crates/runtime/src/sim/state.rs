//! State of the simulated world: time, events, nodes, handles and operations in flight.
//!
//! Operations start in [`State::submit`], are carried by events, and end in [`State::finish`];
//! results reach the executor in the turn of the driver. The effects of events are in `files` for
//! disks, and in `connect`, `streams` and `endings` for sockets.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;

use super::config::{LinkConfig, SimConfig};
use super::conn::Conn;
use super::disk::{Disk, WrittenData};
use super::trace::Trace;
use crate::net::Address;
use crate::op::{OpId, Ops, PunchMode};
use crate::rng::Rng;

/// First wall clock of a world: 2025-01-01, in nanoseconds since the Unix epoch.
const WALL_CLOCK_START_NS: u64 = 1_735_689_600_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Power {
    /// Its process runs.
    Up,
    /// Its process was killed; its kernel still answers.
    Killed,
    /// No power: it does not answer.
    Off,
}

pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) power: Power,
}

/// Object behind a raw handle.
pub(crate) enum Entry {
    File {
        disk: usize,
        read_only: bool,
        direct: bool,
    },
    Listener(Listening),
    /// A socket, with the number of its connection and its end, once connected.
    Socket(Option<(u64, usize)>),
}

pub(crate) struct Listening {
    pub(crate) address: Address,
    /// Handles of connections that were not accepted yet.
    pub(crate) queue: VecDeque<i32>,
    pub(crate) waiting: VecDeque<OpId>,
}

pub(crate) struct Owned {
    pub(crate) node: u32,
    pub(crate) entry: Entry,
}

/// An operation in flight.
pub(crate) struct Pending {
    /// Distinguishes it from earlier and later operations with the same id.
    pub(crate) serial: u64,
    pub(crate) node: u32,
    pub(crate) raw: i32,
    pub(crate) work: SimWork,
}

pub(crate) enum SimWork {
    Read { disk: usize, offset: u64 },
    Write { disk: usize, offset: u64, data: WrittenData, durable: bool },
    Sync { disk: usize, mark: u64 },
    Punch { disk: usize, offset: u64, len: u64, mode: PunchMode },
    Recv,
    Send { sent: usize },
    Accept,
    Connect { address: Address },
}

impl SimWork {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            SimWork::Read { .. } => "read",
            SimWork::Write { durable: false, .. } => "write",
            SimWork::Write { durable: true, .. } => "durable write",
            SimWork::Sync { .. } => "flush",
            SimWork::Punch { .. } => "punch",
            SimWork::Recv => "receive",
            SimWork::Send { .. } => "send",
            SimWork::Accept => "accept",
            SimWork::Connect { .. } => "connect",
        }
    }
}

pub(crate) enum SimEvent {
    /// The first part of a write reaches the disk.
    Land(OpId, u64),
    /// A disk operation is done.
    DiskDone(OpId, u64),
    /// The first packet of a connection reaches the remote node, at its n-th attempt.
    Knock(OpId, u64, u32),
    /// A connect succeeds on the connecting side.
    Connected(OpId, u64),
    /// A connect fails.
    Refused(OpId, u64, i32),
    /// Segments in this direction of a connection arrive.
    Deliver(u64, usize),
    /// A reset reaches this end of a connection.
    Reset(u64, usize),
    /// Operations that wait at this end of a connection are retried.
    Wake(u64, usize),
    /// The retransmissions of undeliverable data in this direction have timed out.
    GiveUp(u64, usize),
    /// The peer of this end of a connection has not answered keep-alive probes since that time.
    Unanswered(u64, usize, u64),
}

/// State of a simulated world.
pub(crate) struct State {
    pub(crate) config: SimConfig,
    pub(crate) rng: Rng,
    pub(crate) trace: Trace,
    pub(crate) nodes: Vec<Node>,
    pub(crate) handles: BTreeMap<i32, Owned>,
    pub(crate) disks: Vec<Disk>,
    pub(crate) paths: BTreeMap<(u32, PathBuf), usize>,
    pub(crate) conns: BTreeMap<u64, Conn>,
    /// Listeners by node and address.
    pub(crate) listeners: BTreeMap<(u32, Address), i32>,
    /// Unix socket files, which outlive their listeners.
    pub(crate) socket_files: BTreeSet<(u32, PathBuf)>,
    pub(crate) links: BTreeMap<(u32, u32), LinkConfig>,
    /// Per direction between two nodes, the time at which it is free again.
    pub(crate) link_free_at: BTreeMap<(u32, u32), u64>,
    /// Directions between two nodes that are cut.
    pub(crate) blocked: BTreeSet<(u32, u32)>,
    /// The world is ending: every operation is cancelled.
    pub(crate) closing: bool,
    pub(crate) next_conn: u64,
    pub(crate) now: u64,
    /// Wall clock at time 0, in nanoseconds since the Unix epoch.
    pub(crate) wall_clock_start: u64,
    events: BTreeMap<(u64, u64), SimEvent>,
    next_event: u64,
    next_serial: u64,
    next_raw: i32,
    pending: BTreeMap<OpId, Pending>,
    /// Dropped handles, to be closed at the next turn.
    dropped: Vec<i32>,
    /// Operations to start at the next turn.
    fresh: Vec<OpId>,
    /// Socket operations to end early, at the next turn.
    pub(crate) cancelled: Vec<OpId>,
    pub(crate) done: Vec<(OpId, io::Result<u32>)>,
}

/// The keys of the values that `wanted` selects, in order.
pub(crate) fn keys_where<K: Copy, V>(map: &BTreeMap<K, V>, wanted: impl Fn(&V) -> bool) -> Vec<K> {
    map.iter().filter(|(_, value)| wanted(value)).map(|(key, _)| *key).collect()
}

pub(crate) fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

impl State {
    pub(crate) fn new(seed: u64, config: SimConfig) -> State {
        let observer = Node { name: "observer".to_owned(), power: Power::Up };
        State {
            config,
            rng: Rng::new(seed),
            trace: Trace::new(),
            nodes: vec![observer],
            handles: BTreeMap::new(),
            disks: Vec::new(),
            paths: BTreeMap::new(),
            conns: BTreeMap::new(),
            listeners: BTreeMap::new(),
            socket_files: BTreeSet::new(),
            links: BTreeMap::new(),
            link_free_at: BTreeMap::new(),
            blocked: BTreeSet::new(),
            closing: false,
            next_conn: 1,
            // The clock does not start at zero, which would hide underflows.
            now: 1_000_000_000,
            wall_clock_start: WALL_CLOCK_START_NS,
            events: BTreeMap::new(),
            next_event: 0,
            next_serial: 0,
            next_raw: 1,
            pending: BTreeMap::new(),
            dropped: Vec::new(),
            fresh: Vec::new(),
            cancelled: Vec::new(),
            done: Vec::new(),
        }
    }

    pub(crate) fn note(&mut self, node: u32, what: &'static str, details: [u64; 2]) {
        self.trace.note(self.now, node, what, details);
    }

    pub(crate) fn schedule(&mut self, at: u64, event: SimEvent) {
        self.next_event += 1;
        self.events.insert((at.max(self.now), self.next_event), event);
    }

    pub(crate) fn new_handle(&mut self, node: u32, entry: Entry) -> i32 {
        let raw = self.next_raw;
        self.next_raw += 1;
        self.handles.insert(raw, Owned { node, entry });
        raw
    }

    /// Starts an operation at the next turn.
    pub(crate) fn submit(&mut self, id: OpId, node: u32, raw: i32, work: SimWork) {
        self.next_serial += 1;
        let pending = Pending { serial: self.next_serial, node, raw, work };
        self.note(node, pending.work.name(), [u64::from(id), raw as u64]);
        self.pending.insert(id, pending);
        if self.closing || self.nodes[node as usize].power != Power::Up {
            return self.finish(id, Err(errno(libc::ECANCELED)));
        }
        self.fresh.push(id);
    }

    /// The operation, unless it has ended.
    pub(crate) fn pending(&mut self, id: OpId) -> Option<&mut Pending> {
        self.pending.get_mut(&id)
    }

    /// The same, if the serial number matches.
    pub(crate) fn pending_as(&mut self, id: OpId, serial: u64) -> Option<&mut Pending> {
        self.pending.get_mut(&id).filter(|pending| pending.serial == serial)
    }

    pub(crate) fn take_pending(&mut self, id: OpId) -> Option<Pending> {
        self.pending.remove(&id)
    }

    /// Completes an operation; the executor sees it in this turn or the next.
    pub(crate) fn finish(&mut self, id: OpId, result: io::Result<u32>) {
        self.pending.remove(&id);
        self.finished(id, result);
    }

    /// The same for an operation that was already removed.
    pub(crate) fn finished(&mut self, id: OpId, result: io::Result<u32>) {
        let code = match &result {
            Ok(count) => u64::from(*count),
            Err(error) => u64::MAX - error.raw_os_error().unwrap_or(0) as u64,
        };
        self.note(0, "  done", [u64::from(id), code]);
        self.done.push((id, result));
    }

    /// Closes dropped handles, starts submitted operations, ends cancelled ones.
    pub(crate) fn absorb(&mut self, ops: &mut Ops) {
        for id in std::mem::take(&mut self.fresh) {
            match self.pending.get(&id).map(|pending| &pending.work) {
                Some(
                    SimWork::Recv
                    | SimWork::Send { .. }
                    | SimWork::Accept
                    | SimWork::Connect { .. },
                ) => {
                    self.begin_socket_op(id, ops);
                }
                Some(_) => self.begin_disk_op(id),
                None => {}
            }
        }
        for id in std::mem::take(&mut self.cancelled) {
            if self.pending.contains_key(&id) {
                self.end_cancelled(id);
            }
        }
        self.release_dropped();
        for raw in std::mem::take(&mut self.dropped) {
            self.close(raw, ops);
        }
    }

    /// Releases the locks and addresses of dropped handles, so that they can be taken again at
    /// once.
    pub(crate) fn release_dropped(&mut self) {
        for raw in crate::handle::take_dropped() {
            match self.handles.get(&raw) {
                Some(Owned { entry: Entry::File { disk, .. }, .. }) => {
                    let lock = &mut self.disks[*disk].locked_by;
                    *lock = lock.filter(|owner| *owner != raw);
                }
                Some(Owned { entry: Entry::Listener(listening), node }) => {
                    self.listeners.remove(&(*node, listening.address.clone()));
                }
                _ => {}
            }
            self.dropped.push(raw);
        }
    }

    /// Advances time by a little.
    pub(crate) fn spend(&mut self) {
        self.now += self.rng.between(1, self.config.turn_ns.max(1));
    }

    pub(crate) fn fire_due(&mut self, ops: &mut Ops) {
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > self.now {
                return;
            }
            let event = entry.remove();
            self.fire(event, ops);
        }
    }

    fn fire(&mut self, event: SimEvent, ops: &mut Ops) {
        match event {
            SimEvent::Land(id, serial) => self.land_part(id, serial),
            SimEvent::DiskDone(id, serial) => self.disk_done(id, serial, ops),
            SimEvent::Knock(id, serial, attempt) => self.knock(id, serial, attempt),
            SimEvent::Connected(id, serial) => self.connected(id, serial),
            SimEvent::Refused(id, serial, number) => {
                if self.pending_as(id, serial).is_some() {
                    self.finish(id, Err(errno(number)));
                }
            }
            SimEvent::Deliver(conn, direction) => self.deliver(conn, direction, ops),
            SimEvent::Reset(conn, end) => self.fail_end(conn, end, libc::ECONNRESET, ops),
            SimEvent::Wake(conn, end) => self.wake_end(conn, end, ops),
            SimEvent::GiveUp(conn, direction) => self.give_up(conn, direction, ops),
            SimEvent::Unanswered(conn, end, since) => self.unanswered(conn, end, since, ops),
        }
    }

    pub(crate) fn next_event(&self) -> Option<u64> {
        self.events.keys().next().map(|key| key.0)
    }

    /// True if no event is scheduled.
    pub(crate) fn is_quiet(&self) -> bool {
        self.events.is_empty()
            && self.fresh.is_empty()
            && self.cancelled.is_empty()
            && self.done.is_empty()
    }

    /// Ends every operation that a node had in flight. Returns the writes in transit to its disks.
    pub(crate) fn end_operations_of(&mut self, node: u32) -> Vec<(usize, u64, WrittenData)> {
        let mut writes = Vec::new();
        for id in keys_where(&self.pending, |pending| pending.node == node) {
            self.forget_waiting(id);
            let Some(pending) = self.pending.remove(&id) else { continue };
            match pending.work {
                SimWork::Write { disk, offset, data, .. } => writes.push((disk, offset, data)),
                SimWork::Punch { disk, offset, len, .. } => {
                    writes.push((disk, offset, WrittenData::Zero(len)));
                }
                _ => {}
            }
            self.finished(id, Err(errno(libc::ECANCELED)));
        }
        writes
    }

    /// Cancels everything, now and from now on.
    pub(crate) fn close_world(&mut self) {
        self.closing = true;
        for id in keys_where(&self.pending, |_| true) {
            // Remove it first: destructors may act on its connection, which must not end it twice.
            self.forget_waiting(id);
            self.finish(id, Err(errno(libc::ECANCELED)));
        }
        self.events.clear();
    }

    /// Description of the operations in flight.
    pub(crate) fn pending_in_words(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for pending in self.pending.values() {
            let name = &self.nodes[pending.node as usize].name;
            let on = match self.handles.get(&pending.raw).map(|owned| &owned.entry) {
                Some(Entry::File { disk, .. }) => self.path_of(*disk),
                Some(Entry::Listener(listening)) => listening.address.to_string(),
                Some(Entry::Socket(Some(_))) => self.peer_of(pending.raw),
                _ => String::new(),
            };
            lines.push(format!("{name}: {} {on}", pending.work.name()));
        }
        lines
    }

    /// Description of the connections: for each direction, the data on the wire and the reason that
    /// holds it up.
    pub(crate) fn connections_in_words(&self) -> Vec<String> {
        let words = |(number, conn): (&u64, &Conn)| {
            let mut line = format!("{number}:");
            for (end, pipe) in conn.ends.iter().zip(&conn.pipes) {
                let name = &self.nodes[end.node as usize].name;
                let (open, on_wire, waiting) =
                    (end.raw.is_some(), pipe.wire.len(), pipe.unacknowledged);
                line += &format!(
                    " {name} (open {open}, failed {:?}) sends: {on_wire} segments, {waiting} B \
                     unacknowledged, blocked since {:?} ns;",
                    end.failed, pipe.blocked_since
                );
            }
            line
        };
        self.conns.iter().map(words).collect()
    }
}

//! The simulated world's state: time, events, nodes, handles and the operations in flight.
//!
//! Operations begin in [`State::submit`], are carried by events, and end in [`State::finish`];
//! results reach the executor in the driver's turn. What events do to disks is in `files`, to
//! sockets in `connect`, `streams` and `endings`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;

use super::config::{Config, LinkConfig};
use super::conn::Conn;
use super::disk::{Disk, Extent};
use super::rng::Rng;
use super::trace::Trace;
use crate::net::Address;
use crate::op::{OpId, Ops, PunchMode};

/// How a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Power {
    /// Its process runs.
    Up,
    /// Its process was killed; its kernel answers for it.
    Killed,
    /// No power: it answers nothing.
    Off,
}

pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) power: Power,
}

/// What a raw handle stands for.
pub(crate) enum Entry {
    File {
        disk: usize,
        read_only: bool,
        direct: bool,
    },
    Listener(Listening),
    /// A socket, with its connection's number and its end of it once there is one.
    Socket(Option<(u64, usize)>),
}

pub(crate) struct Listening {
    pub(crate) address: Address,
    /// Handles of connections that nobody has accepted.
    pub(crate) queue: VecDeque<i32>,
    pub(crate) waiting: VecDeque<OpId>,
}

pub(crate) struct Owned {
    pub(crate) node: u32,
    pub(crate) entry: Entry,
}

/// An operation in flight.
pub(crate) struct Pending {
    /// Tells it from earlier and later operations with the same id.
    pub(crate) serial: u64,
    pub(crate) node: u32,
    pub(crate) raw: i32,
    pub(crate) work: Work,
}

pub(crate) enum Work {
    Read { disk: usize, offset: u64 },
    Write { disk: usize, offset: u64, data: Extent, durable: bool },
    Sync { disk: usize, mark: u64 },
    Punch { disk: usize, offset: u64, len: u64, mode: PunchMode },
    Recv,
    Send { sent: usize },
    Accept,
    Connect { address: Address },
}

impl Work {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Work::Read { .. } => "read",
            Work::Write { durable: false, .. } => "write",
            Work::Write { durable: true, .. } => "durable write",
            Work::Sync { .. } => "flush",
            Work::Punch { .. } => "punch",
            Work::Recv => "receive",
            Work::Send { .. } => "send",
            Work::Accept => "accept",
            Work::Connect { .. } => "connect",
        }
    }
}

/// What will happen at a point of time.
pub(crate) enum Event {
    /// Part of a write reaches the disk ahead of the rest.
    Land(OpId, u64),
    /// A disk operation is done.
    DiskDone(OpId, u64),
    /// The first packet of a connection reaches the far node, at its n-th attempt.
    Knock(OpId, u64, u32),
    /// A connect succeeds on the connecting side.
    Connected(OpId, u64),
    /// A connect fails.
    Refused(OpId, u64, i32),
    /// Segments in this direction of a connection arrive.
    Deliver(u64, usize),
    /// A reset reaches this end of a connection.
    Reset(u64, usize),
    /// Operations that wait at this end of a connection look again.
    Wake(u64, usize),
    /// Undeliverable data in this direction has been sent again for long enough.
    GiveUp(u64, usize),
    /// The peer of this end of a connection has answered no keep alive since a point of time.
    Unanswered(u64, usize, u64),
}

/// See the module's head.
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) rng: Rng,
    pub(crate) trace: Trace,
    pub(crate) nodes: Vec<Node>,
    pub(crate) handles: BTreeMap<i32, Owned>,
    pub(crate) disks: Vec<Disk>,
    pub(crate) paths: BTreeMap<(u32, PathBuf), usize>,
    pub(crate) conns: BTreeMap<u64, Conn>,
    /// Who listens, by node and address.
    pub(crate) listeners: BTreeMap<(u32, Address), i32>,
    /// Unix socket files, which outlive those who listen.
    pub(crate) socket_files: BTreeSet<(u32, PathBuf)>,
    pub(crate) links: BTreeMap<(u32, u32), LinkConfig>,
    /// When each direction between two nodes has carried what it was given.
    pub(crate) link_free_at: BTreeMap<(u32, u32), u64>,
    /// Directions between two nodes that carry nothing.
    pub(crate) blocked: BTreeSet<(u32, u32)>,
    /// The world ends: every operation is cancelled.
    pub(crate) closing: bool,
    pub(crate) next_conn: u64,
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    next_event: u64,
    next_serial: u64,
    next_raw: i32,
    pending: BTreeMap<OpId, Pending>,
    /// Handles given up, to be closed at the next turn.
    dropped: Vec<i32>,
    /// Operations to begin at the next turn.
    fresh: Vec<OpId>,
    cancelled: Vec<OpId>,
    done: Vec<(OpId, io::Result<u32>)>,
}

/// An error of the system with this number.
pub(crate) fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

impl State {
    pub(crate) fn new(seed: u64, config: Config) -> State {
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
            // A clock that begins at zero hides underflows.
            now: 1_000_000_000,
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

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    pub(crate) fn note(&mut self, node: u32, what: &'static str, details: [u64; 2]) {
        self.trace.note(self.now, node, what, details);
    }

    pub(crate) fn schedule(&mut self, at: u64, event: Event) {
        self.next_event += 1;
        self.events.insert((at.max(self.now), self.next_event), event);
    }

    pub(crate) fn new_handle(&mut self, node: u32, entry: Entry) -> i32 {
        let raw = self.next_raw;
        self.next_raw += 1;
        self.handles.insert(raw, Owned { node, entry });
        raw
    }

    /// Begins an operation at the next turn.
    pub(crate) fn submit(&mut self, id: OpId, node: u32, raw: i32, work: Work) {
        self.next_serial += 1;
        let pending = Pending { serial: self.next_serial, node, raw, work };
        self.note(node, pending.work.name(), [u64::from(id), raw as u64]);
        self.pending.insert(id, pending);
        if self.closing || self.nodes[node as usize].power != Power::Up {
            return self.finish(id, Err(errno(libc::ECANCELED)));
        }
        self.fresh.push(id);
    }

    /// Ends a socket operation early, at the next turn.
    pub(crate) fn cancel(&mut self, id: OpId) {
        self.cancelled.push(id);
    }

    /// The operation, unless it has ended.
    pub(crate) fn pending(&mut self, id: OpId) -> Option<&mut Pending> {
        self.pending.get_mut(&id)
    }

    /// The same, if it is that very operation.
    pub(crate) fn pending_as(&mut self, id: OpId, serial: u64) -> Option<&mut Pending> {
        self.pending.get_mut(&id).filter(|pending| pending.serial == serial)
    }

    pub(crate) fn take_pending(&mut self, id: OpId) -> Option<Pending> {
        self.pending.remove(&id)
    }

    /// Ends an operation; the executor learns of it in this turn or the next.
    pub(crate) fn finish(&mut self, id: OpId, result: io::Result<u32>) {
        self.pending.remove(&id);
        self.finished(id, result);
    }

    /// The same for an operation that was taken.
    pub(crate) fn finished(&mut self, id: OpId, result: io::Result<u32>) {
        let code = match &result {
            Ok(count) => u64::from(*count),
            Err(error) => u64::MAX - error.raw_os_error().unwrap_or(0) as u64,
        };
        self.note(0, "  done", [u64::from(id), code]);
        self.done.push((id, result));
    }

    /// The results since the last call.
    pub(crate) fn take_done(&mut self) -> Vec<(OpId, io::Result<u32>)> {
        std::mem::take(&mut self.done)
    }

    pub(crate) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Closes what was dropped, begins what was asked for, ends what was cancelled.
    pub(crate) fn absorb(&mut self, ops: &mut Ops) {
        for id in std::mem::take(&mut self.fresh) {
            match self.pending.get(&id).map(|pending| &pending.work) {
                Some(Work::Recv | Work::Send { .. } | Work::Accept | Work::Connect { .. }) => {
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

    /// Frees the locks and addresses of handles given up: they can be taken again at once.
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

    /// Spends a little time.
    pub(crate) fn spend(&mut self) {
        self.now += self.rng.between(1, self.config.turn_ns.max(1));
    }

    /// Lets everything happen that is due.
    pub(crate) fn fire_due(&mut self, ops: &mut Ops) {
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > self.now {
                return;
            }
            let event = entry.remove();
            self.fire(event, ops);
        }
    }

    fn fire(&mut self, event: Event, ops: &mut Ops) {
        match event {
            Event::Land(id, serial) => self.land_part(id, serial),
            Event::DiskDone(id, serial) => self.disk_done(id, serial, ops),
            Event::Knock(id, serial, attempt) => self.knock(id, serial, attempt),
            Event::Connected(id, serial) => self.connected(id, serial),
            Event::Refused(id, serial, number) => {
                if self.pending_as(id, serial).is_some() {
                    self.finish(id, Err(errno(number)));
                }
            }
            Event::Deliver(conn, direction) => self.deliver(conn, direction, ops),
            Event::Reset(conn, end) => self.reset_arrives(conn, end, ops),
            Event::Wake(conn, end) => self.wake_end(conn, end, ops),
            Event::GiveUp(conn, direction) => self.give_up(conn, direction, ops),
            Event::Unanswered(conn, end, since) => self.unanswered(conn, end, since, ops),
        }
    }

    /// The time of the next event.
    pub(crate) fn next_event(&self) -> Option<u64> {
        self.events.keys().next().map(|key| key.0)
    }

    /// Jumps forward to `at`.
    pub(crate) fn advance_to(&mut self, at: u64) {
        self.now = self.now.max(at);
    }

    /// True when nothing will happen by itself.
    pub(crate) fn is_quiet(&self) -> bool {
        self.events.is_empty()
            && self.fresh.is_empty()
            && self.cancelled.is_empty()
            && self.done.is_empty()
    }

    /// Ends every operation that a node had in flight; `cut` sees what was on its way to a disk.
    pub(crate) fn end_operations_of(&mut self, node: u32) -> Vec<(usize, u64, Extent)> {
        let ids: Vec<OpId> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.node == node)
            .map(|(id, _)| *id)
            .collect();
        let mut writes = Vec::new();
        for id in ids {
            self.forget_waiting(id);
            let Some(pending) = self.pending.remove(&id) else { continue };
            match pending.work {
                Work::Write { disk, offset, data, .. } => writes.push((disk, offset, data)),
                Work::Punch { disk, offset, len, .. } => {
                    writes.push((disk, offset, Extent::Zero(len)));
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
        let ids: Vec<OpId> = self.pending.keys().copied().collect();
        for id in ids {
            // What destructors do to its connection must not end it a second time.
            self.forget_waiting(id);
            self.finish(id, Err(errno(libc::ECANCELED)));
        }
        self.events.clear();
    }

    /// The operations in flight, in words.
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

    /// The connections, in words: for each direction what is on the wire, and what holds it up.
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

//! Sockets of simulated nodes: what TCP would do, at random speed and cut at random places.
//!
//! Bytes of one connection keep their order, those of different connections overtake each other.
//! A blocked path holds data back, as retransmission does, until it is healed or the sender gives
//! up; a process that dies ends or resets its connections, a node without power says nothing, and
//! one that comes back answers old connections with resets.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::config::{LinkConfig, nanos};
use super::conn::{Cargo, Conn, End, Pipe, Segment};
use super::state::{Entry, Event, Listening, Power, State, Work, errno};
use crate::limits::SIM_BACKLOG;
use crate::net::Address;
use crate::op::{Op, OpId, Ops};

/// A first packet that is lost is sent again after 1 s, 2 s, 4 s, …; after so many the connect
/// fails, as Linux does (`tcp_syn_retries`).
const CONNECT_ATTEMPTS: u32 = 7;
/// Shortest and longest pause between two retransmissions, in nanoseconds.
const RETRY_NS: (u64, u64) = (200_000_000, 60_000_000_000);
/// Small messages are cut in two this often, large ones at every segment.
const CUT_CHANCE: f64 = 0.1;
const FIRST_EPHEMERAL_PORT: u16 = 32768;
const LAST_EPHEMERAL_PORT: u16 = 60999;

/// The address of a node: 10.x.y.z with the node's number in x.y.z; the observer's is the last.
pub(crate) fn ip_of(node: u32) -> Ipv4Addr {
    let number = if node == 0 { 0x00FF_FFFE } else { node };
    Ipv4Addr::from(0x0A00_0000 | number)
}

impl State {
    fn node_at(&self, ip: IpAddr, from: u32) -> Option<u32> {
        match ip {
            ip if ip.is_loopback() => Some(from),
            IpAddr::V4(ip) => (0..self.nodes.len() as u32).find(|node| ip_of(*node) == ip),
            IpAddr::V6(_) => None,
        }
    }

    pub(crate) fn link(&self, from: u32, to: u32) -> LinkConfig {
        let usual = if from == to { self.config.loopback } else { self.config.network };
        self.links.get(&(from, to)).copied().unwrap_or(usual)
    }

    fn is_blocked(&self, from: u32, to: u32) -> bool {
        let off = |node: u32| self.nodes[node as usize].power == Power::Off;
        off(from) || off(to) || self.blocked.contains(&(from, to))
    }

    pub(crate) fn listen(&mut self, address: &Address, node: u32) -> io::Result<(i32, Address)> {
        if self.nodes[node as usize].power != Power::Up {
            return Err(errno(libc::ENETDOWN));
        }
        self.release_dropped();
        let address = match address {
            Address::Unix(path) => {
                self.socket_files.insert((node, path.clone()));
                address.clone()
            }
            Address::Tcp(tcp) => {
                let own = tcp.ip().is_unspecified() || self.node_at(tcp.ip(), node) == Some(node);
                if !own {
                    return Err(errno(libc::EADDRNOTAVAIL));
                }
                let port = if tcp.port() == 0 { self.free_port(node) } else { tcp.port() };
                Address::Tcp(SocketAddr::new(tcp.ip(), port))
            }
        };
        if self.listener_like(node, &address) {
            return Err(errno(libc::EADDRINUSE));
        }
        let (queue, waiting) = (VecDeque::new(), VecDeque::new());
        let listening = Listening { address: address.clone(), queue, waiting };
        let raw = self.new_handle(node, Entry::Listener(listening));
        self.listeners.insert((node, address.clone()), raw);
        self.note(node, "listen", [raw as u64, 0]);
        Ok((raw, address))
    }

    fn free_port(&mut self, node: u32) -> u16 {
        loop {
            let (first, last) = (FIRST_EPHEMERAL_PORT.into(), LAST_EPHEMERAL_PORT.into());
            let port = self.rng.between(first, last) as u16;
            let taken = |address: &Address| matches!(address, Address::Tcp(a) if a.port() == port);
            if !self.listeners.keys().any(|(owner, address)| *owner == node && taken(address)) {
                return port;
            }
        }
    }

    /// True when a listener of the node has this address or one that includes it.
    fn listener_like(&self, node: u32, address: &Address) -> bool {
        self.listeners.keys().filter(|(owner, _)| *owner == node).any(|(_, other)| {
            match (other, address) {
                (Address::Tcp(a), Address::Tcp(b)) if a.port() == b.port() => {
                    a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified()
                }
                (a, b) => a == b,
            }
        })
    }

    fn find_listener(&self, node: u32, address: &Address) -> Option<i32> {
        let exact = self.listeners.get(&(node, address.clone()));
        let any = || {
            let Address::Tcp(tcp) = address else { return None };
            let wild = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), "::".parse().expect("an address")];
            wild.iter().find_map(|ip| {
                self.listeners.get(&(node, Address::Tcp(SocketAddr::new(*ip, tcp.port()))))
            })
        };
        exact.or_else(any).copied()
    }

    pub(crate) fn peer_of(&self, raw: i32) -> String {
        let conn = self.conn_of(raw).and_then(|(conn, end)| Some((self.conns.get(&conn)?, end)));
        conn.map_or_else(String::new, |(conn, end)| conn.ends[end].peer.clone())
    }

    fn conn_of(&self, raw: i32) -> Option<(u64, usize)> {
        match self.handles.get(&raw)?.entry {
            Entry::Socket(conn) => conn,
            _ => None,
        }
    }

    // ---- operations ----------------------------------------------------------------------------

    pub(crate) fn begin_socket_op(&mut self, id: OpId, ops: &mut Ops) {
        let Some(pending) = self.pending(id) else { return };
        let raw = pending.raw;
        match &pending.work {
            Work::Connect { .. } => self.begin_connect(id),
            Work::Accept => self.begin_accept(id, raw),
            work => {
                let receive = matches!(work, Work::Recv);
                let Some((number, end)) = self.conn_of(raw) else {
                    return self.finish(id, Err(errno(libc::ENOTCONN)));
                };
                let Some(conn) = self.conns.get_mut(&number) else {
                    return self.finish(id, Err(errno(libc::EBADF)));
                };
                if receive {
                    conn.ends[end].receiving.push_back(id);
                    self.pump_receives(number, end, ops);
                } else {
                    conn.ends[end].sending.push_back(id);
                    self.pump_sends(number, end, ops);
                }
            }
        }
    }

    fn begin_accept(&mut self, id: OpId, raw: i32) {
        let Some(Entry::Listener(listening)) =
            self.handles.get_mut(&raw).map(|owned| &mut owned.entry)
        else {
            return self.finish(id, Err(errno(libc::EINVAL)));
        };
        match listening.queue.pop_front() {
            Some(accepted) => self.finish(id, Ok(accepted as u32)),
            None => listening.waiting.push_back(id),
        }
    }

    fn begin_connect(&mut self, id: OpId) {
        let Some(pending) = self.pending(id) else { return };
        let (node, serial) = (pending.node, pending.serial);
        let Work::Connect { address } = &pending.work else { return };
        let target = match address.clone() {
            Address::Unix(path) if !self.socket_files.contains(&(node, path.clone())) => {
                return self.finish(id, Err(errno(libc::ENOENT)));
            }
            Address::Unix(_) => Some(node),
            Address::Tcp(tcp) => self.node_at(tcp.ip(), node),
        };
        let Some(target) = target else {
            // Nobody has this address: the neighbour search gives up after three seconds.
            let at = self.now() + 3_000_000_000;
            return self.schedule(at, Event::Refused(id, serial, libc::EHOSTUNREACH));
        };
        let delay = self.link(node, target).latency.sample(&mut self.rng);
        self.schedule(self.now() + delay, Event::Knock(id, serial, 0));
    }

    /// The first packet of a connection reaches the far node.
    pub(crate) fn knock(&mut self, id: OpId, serial: u64, attempt: u32) {
        let now = self.now();
        let Some(pending) = self.pending_as(id, serial) else { return };
        let (node, raw) = (pending.node, pending.raw);
        let Work::Connect { address } = &pending.work else { return };
        let address = address.clone();
        let target = match &address {
            Address::Unix(_) => node,
            Address::Tcp(tcp) => self.node_at(tcp.ip(), node).unwrap_or(node),
        };
        let back = now + self.link(target, node).latency.sample(&mut self.rng);
        let lost = self.is_blocked(node, target) || self.is_blocked(target, node);
        let listener = self.find_listener(target, &address);
        let full = listener.is_some_and(|raw| self.backlog_is_full(raw));
        if lost || full {
            if attempt + 1 == CONNECT_ATTEMPTS {
                return self.finish(id, Err(errno(libc::ETIMEDOUT)));
            }
            let at = now + (1_000_000_000 << attempt);
            return self.schedule(at, Event::Knock(id, serial, attempt + 1));
        }
        let Some(listener) = listener else {
            return self.schedule(back, Event::Refused(id, serial, libc::ECONNREFUSED));
        };
        self.make_connection(raw, node, listener, target, &address);
        self.schedule(back, Event::Connected(id, serial));
    }

    fn backlog_is_full(&self, listener: i32) -> bool {
        match self.handles.get(&listener).map(|owned| &owned.entry) {
            Some(Entry::Listener(listening)) => listening.queue.len() >= SIM_BACKLOG,
            _ => true,
        }
    }

    fn make_connection(
        &mut self,
        raw: i32,
        node: u32,
        listener: i32,
        target: u32,
        address: &Address,
    ) {
        let number = self.next_conn;
        self.next_conn += 1;
        let own = match address {
            Address::Unix(_) => "unix".to_owned(),
            Address::Tcp(_) => SocketAddr::from((ip_of(node), self.free_port(node))).to_string(),
        };
        let accepted = self.new_handle(target, Entry::Socket(Some((number, 1))));
        let ends = [End::new(node, raw, address.to_string()), End::new(target, accepted, own)];
        self.conns.insert(number, Conn { ends, pipes: [Pipe::default(), Pipe::default()] });
        if let Some(owned) = self.handles.get_mut(&raw) {
            owned.entry = Entry::Socket(Some((number, 0)));
        }
        self.note(target, "connection", [number, u64::from(node)]);
        let Some(Entry::Listener(listening)) =
            self.handles.get_mut(&listener).map(|owned| &mut owned.entry)
        else {
            return;
        };
        match listening.waiting.pop_front() {
            Some(waiting) => self.finish(waiting, Ok(accepted as u32)),
            None => listening.queue.push_back(accepted),
        }
    }

    pub(crate) fn connected(&mut self, id: OpId, serial: u64) {
        let Some(pending) = self.pending_as(id, serial) else { return };
        let raw = pending.raw;
        let conn = self.conn_of(raw).and_then(|(conn, end)| Some((self.conns.get(&conn)?, end)));
        match conn.map(|(conn, end)| conn.ends[end].failed) {
            Some(None) => self.finish(id, Ok(0)),
            Some(Some(number)) => self.finish(id, Err(errno(number))),
            None => self.finish(id, Err(errno(libc::ECONNREFUSED))),
        }
    }

    /// Takes an operation off the queue that it waits in.
    pub(crate) fn forget_waiting(&mut self, id: OpId) {
        let Some(pending) = self.pending(id) else { return };
        let raw = pending.raw;
        match self.handles.get_mut(&raw).map(|owned| &mut owned.entry) {
            Some(Entry::Listener(listening)) => listening.waiting.retain(|other| *other != id),
            Some(Entry::Socket(Some((conn, end)))) => {
                if let Some(conn) = self.conns.get_mut(conn) {
                    conn.ends[*end].receiving.retain(|other| *other != id);
                    conn.ends[*end].sending.retain(|other| *other != id);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn end_cancelled(&mut self, id: OpId) {
        self.forget_waiting(id);
        let sent = match self.pending(id).map(|pending| &pending.work) {
            Some(Work::Send { sent }) => *sent,
            _ => 0,
        };
        let result = if sent > 0 { Ok(sent as u32) } else { Err(errno(libc::ECANCELED)) };
        self.finish(id, result);
    }

    // ---- sending -------------------------------------------------------------------------------

    /// Moves bytes from the sends that wait at an end to the wire.
    fn pump_sends(&mut self, number: u64, end: usize, ops: &mut Ops) {
        loop {
            let Some(conn) = self.conns.get_mut(&number) else { return };
            let Some(id) = conn.ends[end].sending.front().copied() else { return };
            if let Some(error) = conn.ends[end].failed {
                self.end_send(number, end, Err(errno(error)));
                continue;
            }
            if conn.ends[end].finished {
                self.end_send(number, end, Err(errno(libc::EPIPE)));
                continue;
            }
            let (from, to) = (conn.ends[end].node, conn.ends[1 - end].node);
            let link = self.link(from, to);
            let pipe = &self.conns[&number].pipes[end];
            let room = link.send_buffer_bytes.saturating_sub(pipe.unacknowledged);
            let Some(Op::Send { list, .. }) = ops.op_mut(id) else {
                unreachable!("an operation in flight keeps its kind")
            };
            let total = list.bytes();
            let Some(Work::Send { sent }) = self.pending(id).map(|pending| &mut pending.work)
            else {
                unreachable!("it is pending")
            };
            let before = *sent;
            let count = room.min(total - before);
            *sent += count;
            let bytes = bytes_of(list.pending(), before, count);
            self.trace.bytes(&bytes);
            self.put_on_wire(number, end, bytes, &link);
            let all = before + count == total;
            let enough = all || (before + count > 0 && self.rng.chance(link.short_chance));
            if !enough {
                return;
            }
            self.end_send(number, end, Ok((before + count) as u32));
        }
    }

    fn end_send(&mut self, number: u64, end: usize, result: io::Result<u32>) {
        let Some(conn) = self.conns.get_mut(&number) else { return };
        let Some(id) = conn.ends[end].sending.pop_front() else { return };
        self.finish(id, result);
    }

    fn put_on_wire(&mut self, number: u64, end: usize, bytes: Vec<u8>, link: &LinkConfig) {
        let largest = link.segment_bytes.max(1) as u64;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let len = rest.len() as u64;
            let cut = len > largest || self.rng.chance(CUT_CHANCE);
            let len = if cut { self.rng.between(1, len.min(largest)) } else { len };
            let (head, tail) = rest.split_at(len as usize);
            let cargo = Cargo::Data { bytes: head.to_vec(), taken: 0 };
            self.send_segment(number, end, cargo, link);
            rest = tail;
        }
    }

    fn send_segment(&mut self, number: u64, end: usize, cargo: Cargo, link: &LinkConfig) {
        let latency = link.latency.sample(&mut self.rng);
        let now = self.now();
        let Some(conn) = self.conns.get_mut(&number) else { return };
        let ends = (conn.ends[end].node, conn.ends[1 - end].node);
        let bytes = match &cargo {
            Cargo::Data { bytes, .. } => bytes.len() as u64,
            Cargo::End => 0,
        };
        let free_at = self.link_free_at.entry(ends).or_default();
        *free_at = (*free_at).max(now) + bytes * 1_000_000_000 / link.bytes_per_second.max(1);
        let pipe = &mut conn.pipes[end];
        pipe.last_at = pipe.last_at.max(*free_at + latency);
        pipe.unacknowledged += bytes as usize;
        let at = pipe.last_at;
        pipe.wire.push_back(Segment { at, cargo });
        self.schedule(at, Event::Deliver(number, end));
    }

    // ---- arriving ------------------------------------------------------------------------------

    /// Segments sent by `end` arrive, as far as path and receiver let them.
    pub(crate) fn deliver(&mut self, number: u64, end: usize, ops: &mut Ops) {
        let now = self.now();
        let Some(conn) = self.conns.get_mut(&number) else { return };
        let (from, to) = (conn.ends[end].node, conn.ends[1 - end].node);
        let due = conn.pipes[end].wire.front().is_some_and(|segment| segment.at <= now);
        if !due || conn.pipes[end].hold_until > now {
            return;
        }
        if self.is_blocked(from, to) {
            return self.hold_back(number, end);
        }
        let acks_blocked = self.is_blocked(to, from);
        let room = self.link(from, to).receive_buffer_bytes;
        let Some(conn) = self.conns.get_mut(&number) else { return };
        if conn.ends[1 - end].is_gone() && conn.pipes[end].brings_data(now) {
            if acks_blocked {
                return self.hold_back(number, end);
            }
            // Nobody takes it: the answer is a reset.
            conn.pipes[end].wire.clear();
            return self.send_reset(number, end);
        }
        let acknowledged = conn.pipes[end].arrive(now, room, acks_blocked);
        if conn.pipes[end].acks_held > 0 {
            self.hold_back(number, end);
        }
        self.pump_receives(number, 1 - end, ops);
        if acknowledged {
            self.pump_sends(number, end, ops);
        }
        self.forget_if_over(number);
    }

    /// Sends a reset to an end. One that is lost is not sent again.
    fn send_reset(&mut self, number: u64, to_end: usize) {
        let Some(conn) = self.conns.get(&number) else { return };
        let (from, to) = (conn.ends[1 - to_end].node, conn.ends[to_end].node);
        if !self.is_blocked(from, to) {
            let delay = self.link(from, to).latency.sample(&mut self.rng);
            self.schedule(self.now() + delay, Event::Reset(number, to_end));
        }
    }

    /// Data or its acknowledgement does not get through: the sender tries again until it gives up.
    fn hold_back(&mut self, number: u64, end: usize) {
        let now = self.now();
        let at = now.saturating_add(nanos(self.config.tcp_timeout));
        let Some(conn) = self.conns.get_mut(&number) else { return };
        if conn.pipes[end].blocked_since.is_none() {
            conn.pipes[end].blocked_since = Some(now);
            self.schedule(at, Event::GiveUp(number, end));
        }
    }

    pub(crate) fn give_up(&mut self, number: u64, end: usize, ops: &mut Ops) {
        let limit = nanos(self.config.tcp_timeout);
        let now = self.now();
        let Some(conn) = self.conns.get_mut(&number) else { return };
        if conn.pipes[end].blocked_since.is_some_and(|since| now >= since.saturating_add(limit)) {
            conn.pipes[end].blocked_since = None;
            self.fail_end(number, end, libc::ETIMEDOUT, ops);
        }
    }

    /// Paths may be open again: what was held back is sent again after a while.
    pub(crate) fn retry_blocked(&mut self) {
        let now = self.now();
        let numbers: Vec<u64> = self.conns.keys().copied().collect();
        for (number, end) in numbers.into_iter().flat_map(|number| [(number, 0), (number, 1)]) {
            let Some(conn) = self.conns.get(&number) else { continue };
            let (from, to) = (conn.ends[end].node, conn.ends[1 - end].node);
            let pipe = &conn.pipes[end];
            let Some(since) = pipe.blocked_since else { continue };
            let needs_answer = pipe.acks_held > 0 || conn.ends[1 - end].is_gone();
            if self.is_blocked(from, to) || (needs_answer && self.is_blocked(to, from)) {
                continue;
            }
            // Pauses double, so the next attempt comes within the time it has lasted already.
            let pause = (now - since).clamp(RETRY_NS.0, RETRY_NS.1);
            let at = now + self.rng.between(0, pause);
            let Some(conn) = self.conns.get_mut(&number) else { continue };
            let pipe = &mut conn.pipes[end];
            pipe.unacknowledged -= std::mem::take(&mut pipe.acks_held);
            pipe.blocked_since = None;
            pipe.hold_until = at;
            self.schedule(at, Event::Deliver(number, end));
            self.schedule(at, Event::Wake(number, end));
        }
    }

    /// Gives what has arrived to the receives that wait at an end.
    pub(crate) fn pump_receives(&mut self, number: u64, end: usize, ops: &mut Ops) {
        let mut taken = false;
        while let Some(conn) = self.conns.get_mut(&number) {
            let Some(id) = conn.ends[end].receiving.front().copied() else { break };
            let pipe = &mut conn.pipes[1 - end];
            let result = if !pipe.arrived.is_empty() && !conn.ends[end].shut {
                let short = self.rng.chance(self.config.network.short_chance);
                let at_most = if short { self.rng.between(1, 64) as usize } else { usize::MAX };
                taken = true;
                let count = pour(&mut pipe.arrived, ops.op_mut(id), at_most);
                Ok(count as u32)
            } else if let Some(error) = conn.ends[end].failed {
                Err(errno(error))
            } else if pipe.ended || conn.ends[end].shut || is_empty(ops.op_mut(id)) {
                Ok(0)
            } else {
                break;
            };
            conn.ends[end].receiving.pop_front();
            self.finish(id, result);
        }
        if taken {
            // There is room for what waited at a full receiver.
            self.deliver(number, 1 - end, ops);
        }
    }

    // ---- endings -------------------------------------------------------------------------------

    /// A program gives a handle up.
    pub(crate) fn close(&mut self, raw: i32, ops: &mut Ops) {
        let Some(owned) = self.handles.remove(&raw) else { return };
        self.note(owned.node, "close", [raw as u64, 0]);
        match owned.entry {
            // Their lock and address are free already.
            Entry::File { .. } => {}
            Entry::Listener(listening) => {
                for accepted in listening.queue {
                    if let Some((number, end)) = self.conn_of(accepted) {
                        self.handles.remove(&accepted);
                        self.abandon(number, end, true, ops);
                    }
                }
            }
            Entry::Socket(Some((number, end))) => {
                let unread = self
                    .conns
                    .get(&number)
                    .is_some_and(|conn| !conn.pipes[1 - end].arrived.is_empty());
                self.abandon(number, end, unread, ops);
            }
            Entry::Socket(None) => {}
        }
    }

    /// Nobody holds this end any more: the peer learns it by an end of stream or a reset.
    pub(crate) fn abandon(&mut self, number: u64, end: usize, reset: bool, ops: &mut Ops) {
        let Some(conn) = self.conns.get_mut(&number) else { return };
        conn.ends[end].raw = None;
        conn.pipes[1 - end].arrived.clear();
        if conn.ends[end].failed.is_none() {
            let (from, to) = (conn.ends[end].node, conn.ends[1 - end].node);
            let link = self.link(from, to);
            if reset {
                self.send_reset(number, 1 - end);
            } else {
                self.finish_stream(number, end, &link);
            }
        }
        // What waits for room at this end is answered by a reset.
        self.deliver(number, 1 - end, ops);
        self.forget_if_over(number);
    }

    fn finish_stream(&mut self, number: u64, end: usize, link: &LinkConfig) {
        let Some(conn) = self.conns.get_mut(&number) else { return };
        if !std::mem::replace(&mut conn.ends[end].finished, true) {
            self.send_segment(number, end, Cargo::End, link);
        }
    }

    /// Both directions end, by the program's wish.
    pub(crate) fn shutdown(&mut self, raw: i32) {
        let Some((number, end)) = self.conn_of(raw) else { return };
        let Some(conn) = self.conns.get_mut(&number) else { return };
        if conn.ends[end].failed.is_some() || conn.ends[end].shut {
            return;
        }
        conn.ends[end].shut = true;
        let (from, to) = (conn.ends[end].node, conn.ends[1 - end].node);
        let link = self.link(from, to);
        self.note(from, "shutdown", [number, end as u64]);
        self.finish_stream(number, end, &link);
        self.schedule(self.now(), Event::Wake(number, end));
    }

    pub(crate) fn reset_arrives(&mut self, number: u64, end: usize, ops: &mut Ops) {
        self.fail_end(number, end, libc::ECONNRESET, ops);
    }

    /// Everything on this end fails from now on.
    pub(crate) fn fail_end(&mut self, number: u64, end: usize, error: i32, ops: &mut Ops) {
        let keep = self.rng.chance(0.5);
        let Some(conn) = self.conns.get_mut(&number) else { return };
        if conn.ends[end].failed.is_some() || conn.ends[end].raw.is_none() {
            conn.pipes[end].wire.clear();
            return self.forget_if_over(number);
        }
        conn.ends[end].failed = Some(error);
        conn.pipes[end].wire.clear();
        conn.pipes[1 - end].wire.clear();
        if !keep {
            conn.pipes[1 - end].arrived.clear();
        }
        let node = conn.ends[end].node;
        self.note(node, "connection lost", [number, error as u64]);
        self.pump_receives(number, end, ops);
        self.pump_sends(number, end, ops);
    }

    /// Resets reach both ends of every connection between two nodes.
    pub(crate) fn reset_between(&mut self, a: u32, b: u32) {
        let between = |conn: &Conn| {
            let nodes = [conn.ends[0].node, conn.ends[1].node];
            nodes == [a, b] || nodes == [b, a]
        };
        let numbers: Vec<u64> = self
            .conns
            .iter()
            .filter(|(_, conn)| between(conn))
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            for end in [0, 1] {
                let delay = self.link(a, b).latency.sample(&mut self.rng);
                self.schedule(self.now() + delay, Event::Reset(number, end));
            }
        }
    }

    /// Lets the operations that wait at an end look again.
    pub(crate) fn wake_end(&mut self, number: u64, end: usize, ops: &mut Ops) {
        self.pump_receives(number, end, ops);
        self.pump_sends(number, end, ops);
    }

    fn forget_if_over(&mut self, number: u64) {
        if self.conns.get(&number).is_some_and(Conn::is_over) {
            self.conns.remove(&number);
        }
    }

    /// A node's process is gone: its sockets and files close. With `power_lost` nobody is told.
    pub(crate) fn drop_handles_of(&mut self, node: u32, power_lost: bool) {
        let raws: Vec<i32> = self
            .handles
            .iter()
            .filter(|(_, owned)| owned.node == node)
            .map(|(raw, _)| *raw)
            .collect();
        for raw in raws {
            let Some(owned) = self.handles.remove(&raw) else { continue };
            match owned.entry {
                Entry::Listener(listening) => {
                    self.listeners.remove(&(node, listening.address));
                    self.cancel_all(listening.waiting);
                }
                Entry::Socket(Some((number, end))) => {
                    let Some(conn) = self.conns.get_mut(&number) else { continue };
                    let own = &mut conn.ends[end];
                    own.raw = None;
                    let mut waiting = std::mem::take(&mut own.receiving);
                    waiting.append(&mut own.sending);
                    self.cancel_all(waiting);
                    if power_lost { self.unplug(number, end) } else { self.orphan(number, end) }
                }
                _ => {}
            }
        }
    }

    fn cancel_all(&mut self, waiting: VecDeque<OpId>) {
        for id in waiting {
            self.finish(id, Err(errno(libc::ECANCELED)));
        }
    }

    /// The kernel closes a dead process's socket: end of stream or reset.
    fn orphan(&mut self, number: u64, end: usize) {
        let reset = self.rng.chance(0.5);
        let now = self.now();
        let Some(conn) = self.conns.get_mut(&number) else { return };
        let unread = !conn.pipes[1 - end].arrived.is_empty();
        conn.pipes[1 - end].arrived.clear();
        if conn.ends[end].failed.is_some() {
            return;
        }
        let (from, to) = (conn.ends[end].node, conn.ends[1 - end].node);
        if reset || unread {
            self.send_reset(number, 1 - end);
        } else {
            let link = self.link(from, to);
            self.finish_stream(number, end, &link);
        }
        self.schedule(now, Event::Deliver(number, 1 - end));
    }

    /// A socket of a node without power: some of what was on its way still arrives, the rest is
    /// gone, and nobody is told.
    fn unplug(&mut self, number: u64, end: usize) {
        let Some(conn) = self.conns.get_mut(&number) else { return };
        let (from, to) = (conn.ends[end].node, conn.ends[1 - end].node);
        conn.pipes[1 - end].arrived.clear();
        let pipe = &mut conn.pipes[end];
        pipe.wire.retain(|segment| matches!(segment.cargo, Cargo::Data { .. }));
        let arriving = self.rng.between(0, pipe.wire.len() as u64) as usize;
        pipe.wire.truncate(arriving);
        let lost = pipe.blocked_since.is_some() || self.blocked.contains(&(from, to));
        if !lost && !conn.ends[1 - end].is_gone() {
            let room = self.link(from, to).receive_buffer_bytes;
            if let Some(conn) = self.conns.get_mut(&number) {
                conn.pipes[end].arrive(u64::MAX, room, false);
            }
            self.schedule(self.now(), Event::Wake(number, 1 - end));
        }
        if let Some(conn) = self.conns.get_mut(&number) {
            conn.pipes[end].wire.clear();
        }
        self.forget_if_over(number);
    }
}

/// `count` bytes of a list from `skip` on.
fn bytes_of(bufs: &[crate::Buf], skip: usize, count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count);
    let mut at = 0;
    for buf in bufs {
        if bytes.len() == count {
            break;
        }
        let from = skip.saturating_sub(at).min(buf.len());
        let part = &buf[from..];
        let part = &part[..part.len().min(count - bytes.len())];
        bytes.extend_from_slice(part);
        at += buf.len();
    }
    bytes
}

/// Moves bytes into a receive's buffers; returns how many.
fn pour(arrived: &mut VecDeque<u8>, op: Option<&mut Op>, at_most: usize) -> usize {
    let mut count = 0;
    let mut fill = |buf: &mut [u8]| {
        let want = buf.len().min(arrived.len()).min(at_most - count);
        let (first, second) = arrived.as_slices();
        let head = want.min(first.len());
        buf[..head].copy_from_slice(&first[..head]);
        buf[head..want].copy_from_slice(&second[..want - head]);
        arrived.drain(..want);
        count += want;
    };
    match op {
        Some(Op::Recv { buf, .. }) => fill(buf),
        Some(Op::RecvVectored { list, .. }) => list.bufs_mut().iter_mut().for_each(|buf| fill(buf)),
        _ => unreachable!("an operation in flight keeps its kind"),
    }
    count
}

fn is_empty(op: Option<&mut Op>) -> bool {
    match op {
        Some(Op::Recv { buf, .. }) => buf.is_empty(),
        Some(Op::RecvVectored { list, .. }) => list.bytes() == 0,
        _ => false,
    }
}

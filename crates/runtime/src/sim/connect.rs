//! Addresses of simulated nodes: listening, connecting, accepting.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::conn::{Conn, End, Pipe};
use super::state::{Entry, Listening, Power, SimEvent, SimWork, State, errno};
use crate::limits::SIM_BACKLOG;
use crate::net::Address;
use crate::op::{OpId, Ops};

/// A lost first packet is sent again after 1 s, 2 s, 4 s, …; after this many attempts the connect
/// fails, as on Linux (`tcp_syn_retries`).
const CONNECT_ATTEMPTS: u32 = 7;
const FIRST_EPHEMERAL_PORT: u16 = 32768;
const LAST_EPHEMERAL_PORT: u16 = 60999;

/// The address of a node: 10.x.y.z with the number of the node in x.y.z; the observer has the last
/// one.
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

    /// True if a listener of the node has this address or a wildcard that includes it.
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
        self.end_of(raw).map_or_else(String::new, |end| end.peer.clone())
    }

    fn end_of(&self, raw: i32) -> Option<&End> {
        let (conn, end) = self.conn_of(raw)?;
        Some(&self.conns.get(&conn)?.ends[end])
    }

    pub(crate) fn conn_of(&self, raw: i32) -> Option<(u64, usize)> {
        match self.handles.get(&raw)?.entry {
            Entry::Socket(conn) => conn,
            _ => None,
        }
    }

    pub(crate) fn begin_socket_op(&mut self, id: OpId, ops: &mut Ops) {
        let Some(pending) = self.pending(id) else { return };
        let raw = pending.raw;
        match &pending.work {
            SimWork::Connect { .. } => self.begin_connect(id),
            SimWork::Accept => self.begin_accept(id, raw),
            work => {
                let receive = matches!(work, SimWork::Recv);
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
        let Some(listening) = self.listening(raw) else {
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
        let SimWork::Connect { address } = &pending.work else { return };
        let target = match address.clone() {
            Address::Unix(path) if !self.socket_files.contains(&(node, path.clone())) => {
                return self.finish(id, Err(errno(libc::ENOENT)));
            }
            Address::Unix(_) => Some(node),
            Address::Tcp(tcp) => self.node_at(tcp.ip(), node),
        };
        let Some(target) = target else {
            // No node has this address: address resolution gives up after three seconds.
            let at = self.now + 3_000_000_000;
            return self.schedule(at, SimEvent::Refused(id, serial, libc::EHOSTUNREACH));
        };
        let delay = self.link(node, target).latency.sample(&mut self.rng);
        self.schedule(self.now + delay, SimEvent::Knock(id, serial, 0));
    }

    /// The first packet of a connection reaches the remote node.
    pub(crate) fn knock(&mut self, id: OpId, serial: u64, attempt: u32) {
        let now = self.now;
        let Some(pending) = self.pending_as(id, serial) else { return };
        let (node, raw) = (pending.node, pending.raw);
        let SimWork::Connect { address } = &pending.work else { return };
        let address = address.clone();
        let target = match &address {
            Address::Unix(_) => node,
            Address::Tcp(tcp) => self.node_at(tcp.ip(), node).unwrap_or(node),
        };
        let back = now + self.link(target, node).latency.sample(&mut self.rng);
        let lost = self.is_blocked(node, target) || self.is_blocked(target, node);
        let listener = self.find_listener(target, &address);
        let full = listener.is_some_and(|raw| {
            self.listening(raw).is_none_or(|listening| listening.queue.len() >= SIM_BACKLOG)
        });
        if lost || full {
            if attempt + 1 == CONNECT_ATTEMPTS {
                return self.finish(id, Err(errno(libc::ETIMEDOUT)));
            }
            let at = now + (1_000_000_000 << attempt);
            return self.schedule(at, SimEvent::Knock(id, serial, attempt + 1));
        }
        let Some(listener) = listener else {
            return self.schedule(back, SimEvent::Refused(id, serial, libc::ECONNREFUSED));
        };
        self.make_connection(raw, node, listener, target, &address);
        self.schedule(back, SimEvent::Connected(id, serial));
    }

    fn listening(&mut self, raw: i32) -> Option<&mut Listening> {
        match &mut self.handles.get_mut(&raw)?.entry {
            Entry::Listener(listening) => Some(listening),
            _ => None,
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
        let Some(listening) = self.listening(listener) else { return };
        match listening.waiting.pop_front() {
            Some(waiting) => self.finish(waiting, Ok(accepted as u32)),
            None => listening.queue.push_back(accepted),
        }
    }

    pub(crate) fn connected(&mut self, id: OpId, serial: u64) {
        let Some(pending) = self.pending_as(id, serial) else { return };
        let raw = pending.raw;
        match self.end_of(raw).map(|end| end.failed) {
            Some(None) => self.finish(id, Ok(0)),
            Some(Some(number)) => self.finish(id, Err(errno(number))),
            None => self.finish(id, Err(errno(libc::ECONNREFUSED))),
        }
    }

    /// Removes an operation from the queue in which it waits.
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
            Some(SimWork::Send { sent }) => *sent,
            _ => 0,
        };
        let result = if sent > 0 { Ok(sent as u32) } else { Err(errno(libc::ECANCELED)) };
        self.finish(id, result);
    }
}

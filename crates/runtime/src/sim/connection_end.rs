//! End of connections: close, shutdown, reset, process death, and power loss.
//!
//! When a process dies, its connections end or are reset. A node without power is silent; after its
//! restart it answers old connections with resets.

use std::collections::VecDeque;

use super::conn::{Cargo, Conn};
use super::state::{Entry, SimEvent, State, errno, keys_where};
use crate::net::Direction;
use crate::op::{OpId, Ops};

impl State {
    /// A program closes a handle.
    pub(crate) fn close(&mut self, raw: i32, ops: &mut Ops) {
        let Some(owned) = self.handles.remove(&raw) else { return };
        self.note(owned.node, "close", [raw as u64, 0]);
        match owned.entry {
            // Its lock and address were already released.
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
                let reset = self.conns.get(&number).is_some_and(|conn| {
                    !conn.pipes[1 - end].arrived.is_empty() || conn.ends[end].aborted
                });
                self.abandon(number, end, reset, ops);
            }
            Entry::Socket(None) => {}
        }
    }

    /// The last user of this end is gone: the peer sees an end of stream or a reset.
    pub(crate) fn abandon(&mut self, number: u64, end: usize, reset: bool, ops: &mut Ops) {
        let Some(conn) = self.conns.get_mut(&number) else { return };
        conn.ends[end].raw = None;
        conn.pipes[1 - end].arrived.clear();
        if conn.ends[end].failed.is_none() {
            if reset {
                self.send_reset(number, 1 - end);
            } else {
                self.finish_stream(number, end);
            }
        }
        // Data that waits for room at this end is answered by a reset.
        self.deliver(number, 1 - end, ops);
        self.forget_if_over(number);
    }

    fn finish_stream(&mut self, number: u64, end: usize) {
        let Some(conn) = self.conns.get_mut(&number) else { return };
        if !std::mem::replace(&mut conn.ends[end].finished, true) {
            let (from, to) = (conn.ends[end].node, conn.ends[1 - end].node);
            let link = self.link(from, to);
            self.send_segment(number, end, Cargo::End, &link);
        }
    }

    /// The program shuts down one direction or both. Data that has arrived can still be read. Later
    /// data is discarded, or answered by a reset if both directions are shut down.
    pub(crate) fn shutdown(&mut self, raw: i32, direction: Direction) {
        let Some((number, end)) = self.conn_of(raw) else { return };
        let Some(conn) = self.conns.get_mut(&number) else { return };
        let from = conn.ends[end].node;
        let own = &mut conn.ends[end];
        if own.failed.is_some() || own.shut {
            return;
        }
        own.deaf |= direction != Direction::Send;
        own.shut = direction == Direction::Both;
        self.note(from, "shutdown", [number, end as u64]);
        if direction != Direction::Receive {
            self.finish_stream(number, end);
        }
        self.schedule(self.now, SimEvent::Wake(number, end));
    }

    /// True if the end of the other side has arrived, or the connection has failed.
    pub(crate) fn peer_has_ended(&self, raw: i32) -> bool {
        let conn =
            self.conn_of(raw).and_then(|(number, end)| Some((self.conns.get(&number)?, end)));
        conn.is_some_and(|(conn, end)| conn.pipes[1 - end].ended || conn.ends[end].failed.is_some())
    }

    /// The program aborts the connection: both directions end, and the close resets the peer.
    pub(crate) fn abort(&mut self, raw: i32) {
        self.shutdown(raw, Direction::Both);
        let Some((number, end)) = self.conn_of(raw) else { return };
        if let Some(conn) = self.conns.get_mut(&number) {
            conn.ends[end].aborted = true;
        }
    }

    /// Makes everything on this end fail from now on.
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

    /// Sends a reset to an end. A lost reset is not sent again.
    pub(crate) fn send_reset(&mut self, number: u64, to_end: usize) {
        let Some(conn) = self.conns.get(&number) else { return };
        let (from, to) = (conn.ends[1 - to_end].node, conn.ends[to_end].node);
        if !self.is_blocked(from, to) {
            let delay = self.link(from, to).latency.sample(&mut self.rng);
            self.schedule(self.now + delay, SimEvent::Reset(number, to_end));
        }
    }

    /// Resets both ends of every connection between two nodes.
    pub(crate) fn reset_between(&mut self, a: u32, b: u32) {
        let between = |conn: &Conn| {
            let nodes = [conn.ends[0].node, conn.ends[1].node];
            nodes == [a, b] || nodes == [b, a]
        };
        for number in keys_where(&self.conns, between) {
            for end in [0, 1] {
                let delay = self.link(a, b).latency.sample(&mut self.rng);
                self.schedule(self.now + delay, SimEvent::Reset(number, end));
            }
        }
    }

    /// Retries the operations that wait at an end.
    pub(crate) fn wake_end(&mut self, number: u64, end: usize, ops: &mut Ops) {
        self.pump_receives(number, end, ops);
        self.pump_sends(number, end, ops);
    }

    pub(crate) fn forget_if_over(&mut self, number: u64) {
        if self.conns.get(&number).is_some_and(Conn::is_over) {
            self.conns.remove(&number);
        }
    }

    /// The process of a node is gone: its sockets and files close. With `power_lost` the peers get
    /// no notice.
    pub(crate) fn drop_handles_of(&mut self, node: u32, power_lost: bool) {
        for raw in keys_where(&self.handles, |owned| owned.node == node) {
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
                    if power_lost {
                        self.unplug(number, end)
                    } else {
                        self.orphan(number, end)
                    }
                    self.forget_if_over(number);
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

    /// The kernel closes the socket of a dead process: end of stream or reset.
    fn orphan(&mut self, number: u64, end: usize) {
        let reset = self.rng.chance(0.5);
        let now = self.now;
        let Some(conn) = self.conns.get_mut(&number) else { return };
        let unread = !conn.pipes[1 - end].arrived.is_empty();
        conn.pipes[1 - end].arrived.clear();
        if conn.ends[end].failed.is_some() {
            return;
        }
        if reset || unread {
            self.send_reset(number, 1 - end);
        } else {
            self.finish_stream(number, end);
        }
        self.schedule(now, SimEvent::Deliver(number, 1 - end));
    }

    /// A socket of a node without power: some of its data in transit still arrives, the rest is
    /// lost, and the peer gets no notice.
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
            self.schedule(self.now, SimEvent::Wake(number, 1 - end));
        }
        if let Some(conn) = self.conns.get_mut(&number) {
            conn.pipes[end].wire.clear();
        }
    }
}

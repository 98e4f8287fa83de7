//! Streams between simulated nodes: TCP with random speed and random segmentation.
//!
//! Bytes of one connection keep their order; bytes of different connections overtake each other. A
//! cut path holds data back, as retransmission does, until it is healed or the sender times out.

use std::collections::VecDeque;
use std::io;

use super::config::{LinkConfig, nanos};
use super::conn::{Cargo, Segment};
use super::state::{Power, SimEvent, SimWork, State, errno, keys_where};
use crate::op::{Op, Ops};

/// Shortest and longest pause between two retransmissions, in nanoseconds.
const RETRY_NS: (u64, u64) = (200_000_000, 60_000_000_000);
/// Probability that a small message is split; large ones are split at every segment.
const CUT_CHANCE: f64 = 0.1;

impl State {
    pub(crate) fn link(&self, from: u32, to: u32) -> LinkConfig {
        let usual = if from == to { self.config.loopback } else { self.config.network };
        self.links.get(&(from, to)).copied().unwrap_or(usual)
    }

    pub(crate) fn is_blocked(&self, from: u32, to: u32) -> bool {
        let off = |node: u32| self.nodes[node as usize].power == Power::Off;
        off(from) || off(to) || self.blocked.contains(&(from, to))
    }

    /// Moves bytes from the sends that wait at an end to the wire.
    pub(crate) fn pump_sends(&mut self, number: u64, end: usize, ops: &mut Ops) {
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
            let Some(SimWork::Send { sent }) = self.pending(id).map(|pending| &mut pending.work)
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

    pub(crate) fn send_segment(
        &mut self,
        number: u64,
        end: usize,
        cargo: Cargo,
        link: &LinkConfig,
    ) {
        let latency = link.latency.sample(&mut self.rng);
        let now = self.now;
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
        self.schedule(at, SimEvent::Deliver(number, end));
    }

    /// Segments sent by `end` arrive, as far as the path and the receiver permit.
    pub(crate) fn deliver(&mut self, number: u64, end: usize, ops: &mut Ops) {
        let now = self.now;
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
            // No program takes the data: answer with a reset.
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

    /// Data or its acknowledgement does not pass: the sender retransmits until it times out.
    fn hold_back(&mut self, number: u64, end: usize) {
        let now = self.now;
        let at = now.saturating_add(nanos(self.config.tcp_timeout));
        let Some(conn) = self.conns.get_mut(&number) else { return };
        if conn.pipes[end].blocked_since.is_none() {
            conn.pipes[end].blocked_since = Some(now);
            self.schedule(at, SimEvent::GiveUp(number, end));
        }
    }

    pub(crate) fn give_up(&mut self, number: u64, end: usize, ops: &mut Ops) {
        let limit = nanos(self.config.tcp_timeout);
        let now = self.now;
        let Some(conn) = self.conns.get_mut(&number) else { return };
        if conn.pipes[end].blocked_since.is_some_and(|since| now >= since.saturating_add(limit)) {
            conn.pipes[end].blocked_since = None;
            self.fail_end(number, end, libc::ETIMEDOUT, ops);
        }
    }

    /// Paths may be open again: data held back is retransmitted after a while.
    pub(crate) fn retry_blocked(&mut self) {
        let now = self.now;
        let numbers = keys_where(&self.conns, |_| true);
        for (number, end) in numbers.into_iter().flat_map(|number| [(number, 0), (number, 1)]) {
            let Some(conn) = self.conns.get(&number) else { continue };
            let (from, to) = (conn.ends[end].node, conn.ends[1 - end].node);
            let pipe = &conn.pipes[end];
            let Some(since) = pipe.blocked_since else { continue };
            let needs_answer = pipe.acks_held > 0 || conn.ends[1 - end].is_gone();
            if self.is_blocked(from, to) || (needs_answer && self.is_blocked(to, from)) {
                continue;
            }
            // Pauses double, so the next attempt comes within the time that the blockage has
            // already lasted.
            let pause = (now - since).clamp(RETRY_NS.0, RETRY_NS.1);
            let at = now + self.rng.between(0, pause);
            let Some(conn) = self.conns.get_mut(&number) else { continue };
            let pipe = &mut conn.pipes[end];
            pipe.unacknowledged -= std::mem::take(&mut pipe.acks_held);
            pipe.blocked_since = None;
            pipe.hold_until = at;
            self.schedule(at, SimEvent::Deliver(number, end));
            self.schedule(at, SimEvent::Wake(number, end));
        }
    }

    /// Gives arrived data to the receives that wait at an end.
    pub(crate) fn pump_receives(&mut self, number: u64, end: usize, ops: &mut Ops) {
        let mut taken = false;
        while let Some(conn) = self.conns.get_mut(&number) {
            let Some(id) = conn.ends[end].receiving.front().copied() else { break };
            let pipe = &mut conn.pipes[1 - end];
            let result = if !pipe.arrived.is_empty() {
                let short = self.rng.chance(self.config.network.short_chance);
                let at_most = if short { self.rng.between(1, 64) as usize } else { usize::MAX };
                taken = true;
                let count = pour(&mut pipe.arrived, ops.op_mut(id), at_most);
                Ok(count as u32)
            } else if let Some(error) = conn.ends[end].failed {
                Err(errno(error))
            } else if pipe.ended || conn.ends[end].deaf || is_empty(ops.op_mut(id)) {
                Ok(0)
            } else {
                break;
            };
            conn.ends[end].receiving.pop_front();
            self.finish(id, result);
        }
        if taken {
            // A full receiver has room again.
            self.deliver(number, 1 - end, ops);
        }
    }
}

/// `count` bytes of a list, starting at `skip`.
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

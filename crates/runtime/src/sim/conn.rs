//! Simulated connection: two ends and a pipe in each direction, with the semantics of TCP.

use std::collections::VecDeque;

use crate::net::KeepAlive;
use crate::op::OpId;

/// Content of a pipe, in order.
pub(crate) enum Cargo {
    /// Bytes, of which the first `taken` have arrived.
    Data { bytes: Vec<u8>, taken: usize },
    /// The end of the stream.
    End,
}

pub(crate) struct Segment {
    pub(crate) at: u64,
    pub(crate) cargo: Cargo,
}

#[derive(Default)]
pub(crate) struct Pipe {
    pub(crate) wire: VecDeque<Segment>,
    /// Arrival time of the last segment on the wire; later segments arrive later.
    pub(crate) last_at: u64,
    /// Bytes accepted from the sender and not yet acknowledged.
    pub(crate) unacknowledged: usize,
    /// Bytes that arrived while acknowledgements could not return.
    pub(crate) acks_held: usize,
    /// Bytes that the receiver can take.
    pub(crate) arrived: VecDeque<u8>,
    /// The end of the stream has arrived.
    pub(crate) ended: bool,
    /// Time since which nothing passes.
    pub(crate) blocked_since: Option<u64>,
    /// Time of the next retransmission; nothing arrives before.
    pub(crate) hold_until: u64,
}

impl Pipe {
    /// True if bytes are due, not only the end of the stream.
    pub(crate) fn brings_data(&self, now: u64) -> bool {
        let first = self.wire.front();
        first
            .is_some_and(|segment| segment.at <= now && matches!(segment.cargo, Cargo::Data { .. }))
    }

    /// Moves due content from the wire to the receiver, which holds at most `room` bytes. True if
    /// the sender has more room than before.
    pub(crate) fn arrive(&mut self, now: u64, room: usize, acks_blocked: bool) -> bool {
        let mut acknowledged = false;
        while let Some(segment) = self.wire.front_mut()
            && segment.at <= now
        {
            let Cargo::Data { bytes, taken } = &mut segment.cargo else {
                self.ended = true;
                self.wire.pop_front();
                continue;
            };
            let count = room.saturating_sub(self.arrived.len()).min(bytes.len() - *taken);
            if count == 0 {
                break;
            }
            self.arrived.extend(&bytes[*taken..*taken + count]);
            *taken += count;
            let all = *taken == bytes.len();
            if acks_blocked {
                self.acks_held += count;
            } else {
                self.unacknowledged -= count;
                acknowledged = true;
            }
            if all {
                self.wire.pop_front();
            }
        }
        acknowledged
    }
}

/// One end, seen from its own node.
#[derive(Default)]
pub(crate) struct End {
    pub(crate) node: u32,
    /// Its handle, while a program has it open.
    pub(crate) raw: Option<i32>,
    /// The address of the other end, as text.
    pub(crate) peer: String,
    /// Its program receives no more: receives return 0 after the data that has arrived.
    pub(crate) deaf: bool,
    /// Its program shut down both directions: receives return 0, sends fail, and arriving data is
    /// answered by a reset.
    pub(crate) shut: bool,
    /// It was aborted: its close resets the peer.
    pub(crate) aborted: bool,
    /// Keep-alive settings for the peer.
    pub(crate) keep_alive: Option<KeepAlive>,
    /// Time since which the peer does not answer; recorded only with keep-alive.
    pub(crate) silent_since: Option<u64>,
    /// Its end of stream was sent.
    pub(crate) finished: bool,
    /// Error of all its operations.
    pub(crate) failed: Option<i32>,
    pub(crate) receiving: VecDeque<OpId>,
    pub(crate) sending: VecDeque<OpId>,
}

impl End {
    pub(crate) fn new(node: u32, raw: i32, peer: String) -> End {
        End { node, raw: Some(raw), peer, ..End::default() }
    }

    /// True if no program can take data any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.raw.is_none() || self.shut || self.failed.is_some()
    }
}

/// A connection. End 0 connected, end 1 accepted; `pipes[n]` carries what end `n` sends.
pub(crate) struct Conn {
    pub(crate) ends: [End; 2],
    pub(crate) pipes: [Pipe; 2],
}

impl Conn {
    /// True if neither end can make progress any more.
    pub(crate) fn is_over(&self) -> bool {
        self.ends.iter().all(|end| end.raw.is_none())
            && self.pipes.iter().all(|pipe| pipe.wire.is_empty())
    }
}

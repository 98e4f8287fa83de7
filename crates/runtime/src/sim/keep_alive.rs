//! TCP keep-alive between simulated nodes: an idle end detects that its peer is gone.
//!
//! No event is scheduled while the peer would answer, so a deadlocked world is still recognized.
//! When paths or nodes change, each watched end whose peer no longer answers is notified after the
//! time that its probes take.

use std::io;

use super::state::{SimEvent, State, errno, keys_where};
use crate::net::KeepAlive;
use crate::op::Ops;

const SECOND_NS: u64 = 1_000_000_000;

/// Response of a peer to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// An acknowledgement.
    There,
    /// A reset: the peer does not know the connection.
    Reset,
    /// No response.
    Silence,
}

impl State {
    /// Watches the peer of a socket from now on.
    pub(crate) fn set_keep_alive(&mut self, raw: i32, keep_alive: KeepAlive) -> io::Result<()> {
        let (number, end) = self.conn_of(raw).ok_or_else(|| errno(libc::ENOTCONN))?;
        let conn = self.conns.get_mut(&number).ok_or_else(|| errno(libc::ENOTCONN))?;
        conn.ends[end].keep_alive = Some(keep_alive);
        self.probe(number, end);
        Ok(())
    }

    /// Paths or nodes have changed: checks every end with a watched peer.
    pub(crate) fn probe_all(&mut self) {
        // `probe` skips ends without a watched peer.
        for number in keys_where(&self.conns, |_| true) {
            self.probe(number, 0);
            self.probe(number, 1);
        }
    }

    fn answer(&self, number: u64, end: usize) -> Answer {
        let Some(conn) = self.conns.get(&number) else { return Answer::There };
        let (own, peer) = (&conn.ends[end], &conn.ends[1 - end]);
        if self.is_blocked(own.node, peer.node) || self.is_blocked(peer.node, own.node) {
            return Answer::Silence;
        }
        // After an orderly close, the kernel of the peer still answers.
        let forgotten = peer.failed.is_some() || (peer.raw.is_none() && !peer.finished);
        if forgotten { Answer::Reset } else { Answer::There }
    }

    fn probe(&mut self, number: u64, end: usize) {
        let answer = self.answer(number, end);
        let now = self.now;
        let Some(conn) = self.conns.get_mut(&number) else { return };
        let own = &mut conn.ends[end];
        let Some(keep_alive) = own.keep_alive else { return };
        if answer == Answer::There {
            own.silent_since = None;
            return;
        }
        let since = *own.silent_since.get_or_insert(now);
        let idle = self.rng.between(0, u64::from(keep_alive.idle_s) * SECOND_NS);
        let probes = match answer {
            Answer::Silence => u64::from(keep_alive.interval_s) * u64::from(keep_alive.probes),
            _ => 0,
        };
        let at = now + idle + probes * SECOND_NS;
        self.schedule(at, SimEvent::Unanswered(number, end, since));
    }

    /// The probes of an end since that time have all failed.
    pub(crate) fn unanswered(&mut self, number: u64, end: usize, since: u64, ops: &mut Ops) {
        let Some(conn) = self.conns.get(&number) else { return };
        let own = &conn.ends[end];
        if own.raw.is_none() || own.silent_since != Some(since) {
            return;
        }
        match self.answer(number, end) {
            Answer::There => {}
            Answer::Reset => self.fail_end(number, end, libc::ECONNRESET, ops),
            Answer::Silence => self.fail_end(number, end, libc::ETIMEDOUT, ops),
        }
    }
}

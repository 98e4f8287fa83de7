//! The seam to the outside world: what every driver does for an executor.

pub(crate) mod os;
pub(crate) mod spin;
pub(crate) mod threads;
pub(crate) mod uring;

use std::io;
use std::path::Path;

use crate::fs::{FileInfo, OpenOptions};
use crate::net::{Address, Direction, KeepAlive, PeerUser};
use crate::op::{Op, OpId, Ops};

/// How long a driver may wait for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all: tasks are ready to run.
    No,
    /// Until a completion, a wake-up from another core, or this time (ns of [`Driver::now`]).
    Until(Option<u64>),
}

/// One executor's way to time, randomness, disks and sockets.
pub(crate) trait Driver {
    /// Monotonic nanoseconds.
    fn now(&self) -> u64;
    /// Nanoseconds since the Unix epoch.
    fn wall_clock(&self) -> u64;
    /// 64 random bits.
    fn random(&mut self) -> u64;
    /// True when the executor should poll ready tasks in random order (simulation).
    fn shuffles(&self) -> bool {
        false
    }
    /// Begins an operation. It completes in a later [`Driver::turn`].
    fn submit(&mut self, id: OpId, op: &mut Op, node: u32);
    /// Asks that an operation end early; it still completes, with any result.
    fn cancel(&mut self, id: OpId);
    /// Submits what is waiting, waits as asked, and completes what is done in `ops`. What must be
    /// dropped outside of any borrow is pushed to `garbage`.
    fn turn(&mut self, wait: Wait, ops: &mut Ops, garbage: &mut Vec<Op>);

    /// Opens a file or block device on `node`.
    fn open(
        &mut self,
        path: &Path,
        options: &OpenOptions,
        node: u32,
    ) -> io::Result<(i32, FileInfo)>;
    /// Size of an open file or block device now, in bytes.
    fn size(&mut self, raw: i32) -> io::Result<u64>;
    /// Listens; returns the handle and the bound address. With `private` a Unix socket's file is of
    /// mode 0600.
    fn listen(&mut self, address: &Address, private: bool, node: u32)
    -> io::Result<(i32, Address)>;
    /// Makes a socket that can connect to `address`.
    fn socket(&mut self, address: &Address, node: u32) -> io::Result<i32>;
    /// The peer of a connected socket, as text for people.
    fn peer(&mut self, raw: i32) -> String;
    /// The address of a connected TCP socket on this side.
    fn local(&mut self, raw: i32) -> Option<std::net::SocketAddr> {
        let _ = raw;
        None
    }
    /// Who is at the other end of a Unix socket, where the system tells.
    fn peer_user(&mut self, raw: i32) -> Option<PeerUser> {
        let _ = raw;
        None
    }
    /// Shuts a direction of a connection down, or both: what is pending in it ends, and of sending
    /// the peer sees the end.
    fn shutdown(&mut self, raw: i32, direction: Direction);
    /// Shuts both directions down and has the close that follows drop what is unsent.
    fn abort(&mut self, raw: i32);
    /// Has a TCP connection's peer asked from time to time whether it is there.
    fn set_keep_alive(&mut self, raw: i32, keep_alive: KeepAlive) -> io::Result<()>;
    /// A name for people: `io_uring`, `threads` or `simulation`.
    fn name(&self) -> &'static str;
}

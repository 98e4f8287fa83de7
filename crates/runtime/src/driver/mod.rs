//! Driver interface: the operations of the outside world that every driver provides to an executor.

pub(crate) mod busy_poll;
pub(crate) mod kernel_tls;
pub(crate) mod os;
pub(crate) mod threads;
pub(crate) mod uring;

use std::io;
use std::path::Path;

use crate::fs::{FileInfo, OpenOptions};
use crate::handle::HandleKind;
use crate::net::{Address, Direction, KeepAlive, PeerUser};
use crate::op::{Op, OpId, Ops};

/// How long a driver may wait for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// No waiting: tasks are ready to run.
    No,
    /// Until a completion, a wake-up from another core, or this time (ns of [`Driver::now`]).
    Until(Option<u64>),
}

/// Access of one executor to time, randomness, disks and sockets. The defaults are the system's;
/// the simulation replaces all of them.
pub(crate) trait Driver {
    /// Monotonic nanoseconds.
    fn now(&self) -> u64 {
        os::now()
    }
    /// Monotonic nanoseconds that also pass while the machine is suspended.
    fn boot_time(&self) -> u64 {
        os::boot_time()
    }
    /// Nanoseconds since the Unix epoch.
    fn wall_clock(&self) -> u64 {
        os::wall_clock()
    }
    /// 64 random bits.
    fn random(&mut self) -> u64 {
        os::random()
    }
    /// True if the executor should poll ready tasks in random order (simulation).
    fn shuffles(&self) -> bool {
        false
    }
    /// Begins an operation. It completes in a later [`Driver::turn`].
    fn submit(&mut self, id: OpId, op: &mut Op, node: u32);
    /// Requests that an operation end early. It still completes, with any result.
    fn cancel(&mut self, id: OpId);
    /// Submits queued operations, waits as specified, and records completions in `ops`. Values that
    /// must be dropped outside of any borrow are pushed to `garbage`.
    fn turn(&mut self, wait: Wait, ops: &mut Ops, garbage: &mut Vec<Op>);

    /// Opens a file or block device on `node`.
    fn open(&mut self, path: &Path, options: &OpenOptions, _: u32) -> io::Result<(i32, FileInfo)> {
        os::open(path, options)
    }
    /// Current size of an open file or block device, in bytes.
    fn size(&mut self, raw: i32) -> io::Result<u64> {
        os::size(raw)
    }
    /// Listens; returns the handle and the bound address. With `private` the file of a Unix socket
    /// has mode 0600.
    fn listen(&mut self, address: &Address, private: bool, _: u32) -> io::Result<(i32, Address)> {
        os::listen(address, private)
    }
    /// Makes a socket that can connect to `address`.
    fn socket(&mut self, address: &Address, _node: u32) -> io::Result<i32> {
        os::socket(address)
    }
    /// The peer of a connected socket, as text.
    fn peer(&mut self, raw: i32) -> String {
        os::peer(raw)
    }
    /// The local address of a connected TCP socket.
    fn local(&mut self, raw: i32) -> Option<std::net::SocketAddr> {
        os::local(raw)
    }
    /// The peer process of a Unix socket, where the system reports it.
    fn peer_user(&mut self, raw: i32) -> Option<PeerUser> {
        os::peer_user(raw)
    }
    /// True if the peer has ended its sending direction, even if data before the end is unread.
    fn peer_has_ended(&mut self, raw: i32) -> bool {
        os::peer_has_ended(raw)
    }
    /// Shuts down one direction of a connection, or both. Pending operations end, and the peer sees
    /// the end of the sending direction.
    fn shutdown(&mut self, raw: i32, direction: Direction) {
        os::shutdown(raw, direction);
    }
    /// Shuts both directions down, and makes the following close drop unsent data.
    fn abort(&mut self, raw: i32) {
        os::abort(raw);
    }
    /// Enables TCP keep-alive.
    fn set_keep_alive(&mut self, raw: i32, keep_alive: KeepAlive) -> io::Result<()> {
        os::set_keep_alive(raw, keep_alive)
    }
    /// True if the kernel may have the records of TLS connections.
    fn may_use_kernel_tls(&self) -> bool {
        false
    }
    /// Name of the I/O engine: `io_uring`, `threads` or `simulation`.
    fn name(&self) -> &'static str;
    /// Namespace of the raw handles.
    fn kind(&self) -> HandleKind {
        HandleKind::Os
    }
}

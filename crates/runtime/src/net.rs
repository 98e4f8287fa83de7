//! TCP and Unix stream sockets.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;

use crate::buf::{Buf, BufMut};
use crate::elsewhere::elsewhere;
use crate::executor::Executor;
use crate::handle::{Handle, Kind};
use crate::op::{Op, OpFuture};
use crate::vectored::{RecvList, SendList};

/// Where a stream socket listens or connects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// TCP over IPv4 or IPv6. In simulation the IP names the node ([`crate::sim`]).
    Tcp(SocketAddr),
    /// A Unix stream socket's path.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "{address}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// An address in the kernel's form, at a place that does not move while a connect is in flight.
#[derive(Clone)]
pub(crate) struct RawAddress {
    pub(crate) address: Address,
    pub(crate) storage: rustix::net::SocketAddrAny,
}

impl fmt::Debug for RawAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl RawAddress {
    pub(crate) fn new(address: &Address) -> io::Result<RawAddress> {
        let storage = match address {
            Address::Tcp(tcp) => (*tcp).into(),
            Address::Unix(path) => rustix::net::SocketAddrUnix::new(path)?.into(),
        };
        Ok(RawAddress { address: address.clone(), storage })
    }
}

/// Resolves `host` (a name, an IPv4 or a bare IPv6 address) and `port`, blocking at most as long as
/// the system's resolver does. In simulation only IP addresses are known.
///
/// # Errors
/// The resolver's.
pub fn resolve(host: &str, port: u16) -> io::Result<Vec<Address>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![Address::Tcp(SocketAddr::new(ip, port))]);
    }
    let simulated = Executor::try_current().is_some_and(|ex| ex.driver().name() == "simulation");
    if simulated {
        return Err(io::Error::new(io::ErrorKind::NotFound, "simulated hosts have addresses only"));
    }
    Ok((host, port).to_socket_addrs()?.map(Address::Tcp).collect())
}

/// As [`resolve`], without holding up this core: a thread of its own asks the system's resolver, which
/// may take its time when no name server answers.
///
/// # Errors
/// The resolver's.
pub async fn lookup(host: &str, port: u16) -> io::Result<Vec<Address>> {
    let simulated = Executor::try_current().is_some_and(|ex| ex.driver().name() == "simulation");
    if simulated || host.parse::<IpAddr>().is_ok() {
        return resolve(host, port);
    }
    let host = host.to_owned();
    elsewhere("resolver", move || resolve(&host, port)).await?
}

/// Whether a connection that failed in this way, or could not be made, may come about later without
/// any change here: nobody listens yet, or the network is down.
pub fn may_pass(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::ConnectionRefused
            | Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::NotConnected
            | Kind::BrokenPipe
            | Kind::UnexpectedEof
            | Kind::TimedOut
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
            | Kind::AddrNotAvailable
            // The file of a Unix socket.
            | Kind::NotFound
    ) || error.raw_os_error() == Some(HOST_DOWN)
}

/// EHOSTDOWN of <errno.h>: its neighbours know that it does not answer.
const HOST_DOWN: i32 = 112;

/// Who connected to a Unix socket, as the kernel knew it then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerUser {
    /// Its effective user; 0 is root.
    pub user_id: u32,
    /// Its effective group.
    pub group_id: u32,
    /// Its process; `None` when that is of another namespace.
    pub process_id: Option<u32>,
}

/// What of a connection to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Receive,
    Send,
    Both,
}

/// When an idle TCP connection's peer is asked whether it is there, and given up. The kernel's
/// answer on its side is enough: its program is not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Silence before the first question, in seconds: 1 to 32,767.
    pub idle_s: u16,
    /// Pause between questions, in seconds: 1 to 32,767.
    pub interval_s: u16,
    /// Questions without an answer after which the connection has failed: 1 to 127.
    pub probes: u8,
}

impl KeepAlive {
    fn check(self) -> io::Result<()> {
        let seconds = 1..=i16::MAX.unsigned_abs();
        let in_range = seconds.contains(&self.idle_s)
            && seconds.contains(&self.interval_s)
            && (1..=127).contains(&self.probes);
        if in_range { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }
}

/// A socket that accepts connections.
#[derive(Debug)]
pub struct Listener {
    handle: Arc<Handle>,
    address: Address,
}

impl Listener {
    /// Listens. Port 0 takes a free port, see [`Listener::address`]. A stale Unix socket that
    /// nobody serves is replaced.
    ///
    /// # Errors
    /// The system's: address in use, permission, not available.
    pub fn bind(address: &Address) -> io::Result<Listener> {
        Listener::bind_with(address, false)
    }

    /// As [`Listener::bind`]; a Unix socket's file is of mode 0600 from the first, so that this
    /// user and root alone can connect. Simulated files have no modes.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn bind_private(address: &Address) -> io::Result<Listener> {
        Listener::bind_with(address, true)
    }

    fn bind_with(address: &Address, private: bool) -> io::Result<Listener> {
        let executor = Executor::current();
        let node = executor.node();
        let mut driver = executor.driver();
        let (raw, address) = driver.listen(address, private, node)?;
        let kind = kind_of(driver.name());
        Ok(Listener { handle: Arc::new(Handle::adopt(raw, kind)), address })
    }

    /// The address that it is bound to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// The system's; out of descriptors and aborted connections are worth a retry after a pause.
    pub async fn accept(&self) -> io::Result<Stream> {
        let (result, _) = OpFuture::new(Op::Accept { socket: self.handle.clone() }).await;
        let raw = result? as i32;
        let handle = Arc::new(Handle::adopt(raw, self.handle.kind()));
        Ok(Stream { handle })
    }
}

pub(crate) fn kind_of(driver: &str) -> Kind {
    if driver == "simulation" { Kind::Sim } else { Kind::Os }
}

/// A connected stream socket. May be used by one receiving and one sending task at a time. It may
/// be moved to another core while nothing is in flight.
#[derive(Clone, Debug)]
pub struct Stream {
    handle: Arc<Handle>,
}

impl Stream {
    /// Connects, with no time-out of its own beyond the system's.
    ///
    /// # Errors
    /// The system's: refused, unreachable, timed out.
    pub async fn connect(address: &Address) -> io::Result<Stream> {
        let executor = Executor::current();
        let node = executor.node();
        let handle = {
            let mut driver = executor.driver();
            let raw = driver.socket(address, node)?;
            let kind = kind_of(driver.name());
            Arc::new(Handle::adopt(raw, kind))
        };
        let address = Box::new(RawAddress::new(address)?);
        let (result, _) = OpFuture::new(Op::Connect { socket: handle.clone(), address }).await;
        result?;
        Ok(Stream { handle })
    }

    /// The peer's address, for people; empty when it is gone.
    pub fn peer(&self) -> String {
        Executor::current().driver().peer(self.handle.raw())
    }

    /// The address of this side, as the peer reached it; `None` of Unix sockets.
    pub fn local(&self) -> Option<SocketAddr> {
        Executor::current().driver().local(self.handle.raw())
    }

    /// Who is at the other end of a Unix socket; `None` of other sockets, and in simulation.
    pub fn peer_user(&self) -> Option<PeerUser> {
        Executor::current().driver().peer_user(self.handle.raw())
    }

    /// Receives at least one byte into `buf`; 0 when the peer has closed (or `buf` is empty).
    pub async fn recv(&self, buf: BufMut) -> (io::Result<usize>, BufMut) {
        let (result, op) = OpFuture::new(Op::Recv { socket: self.handle.clone(), buf }).await;
        match op {
            Op::Recv { buf, .. } => (result.map(|n| n as usize), buf),
            _ => unreachable!("an operation keeps its kind"),
        }
    }

    /// Receives at least one byte into the list's buffers, in order; 0 when the peer has closed.
    pub async fn recv_vectored(&self, list: RecvList) -> (io::Result<usize>, RecvList) {
        let op = Op::RecvVectored { socket: self.handle.clone(), list };
        match OpFuture::new(op).await {
            (result, Op::RecvVectored { list, .. }) => (result.map(|n| n as usize), list),
            _ => unreachable!("an operation keeps its kind"),
        }
    }

    /// Receives exactly `buf.len()` bytes.
    ///
    /// # Errors
    /// `UnexpectedEof` when the peer closes before; the system's otherwise.
    pub async fn recv_exact(&self, mut buf: BufMut) -> (io::Result<()>, BufMut) {
        let want = buf.len();
        let mut have = 0;
        while have < want {
            let tail = buf.split_off(have);
            let (result, tail) = self.recv(tail).await;
            if buf.unsplit(tail).is_err() {
                unreachable!("the tail was cut from this very buffer");
            }
            match result {
                Ok(0) => return (Err(io::ErrorKind::UnexpectedEof.into()), buf),
                Ok(count) => have += count,
                Err(error) => return (Err(error), buf),
            }
        }
        (Ok(()), buf)
    }

    /// Sends at least one byte of the list and drops from it what was sent.
    pub async fn send(&self, list: SendList) -> (io::Result<usize>, SendList) {
        match OpFuture::new(Op::Send { socket: self.handle.clone(), list }).await {
            (result, Op::Send { mut list, .. }) => {
                let sent = result.map(|n| n as usize);
                if let Ok(count) = &sent {
                    list.advance(*count);
                }
                (sent, list)
            }
            _ => unreachable!("an operation keeps its kind"),
        }
    }

    /// Sends the whole list; gives it back empty when all went well.
    pub async fn send_all(&self, mut list: SendList) -> (io::Result<()>, SendList) {
        while !list.is_empty() {
            let (result, rest) = self.send(list).await;
            list = rest;
            match result {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), list),
                Ok(_) => {}
                Err(error) => return (Err(error), list),
            }
        }
        (Ok(()), list)
    }

    /// Sends one buffer. For control paths; data paths batch with [`Stream::send_all`].
    ///
    /// # Errors
    /// The system's.
    pub async fn send_buf(&self, buf: Buf) -> io::Result<()> {
        let mut list = SendList::new();
        list.push(buf);
        self.send_all(list).await.0
    }

    /// Ends the receiving direction: receives end with 0 once what has arrived is read.
    pub fn shutdown_receiving(&self) {
        if let Some(executor) = Executor::try_current() {
            executor.driver().shutdown(self.handle.raw(), Direction::Receive);
        }
    }

    /// Ends the sending direction: the peer sees the end once it has read what was sent, sends fail
    /// with `BrokenPipe` from now on, one in flight included, and receives go on.
    pub fn shutdown_sending(&self) {
        if let Some(executor) = Executor::try_current() {
            executor.driver().shutdown(self.handle.raw(), Direction::Send);
        }
    }

    /// Gives the connection up: both directions end as by [`Stream::shutdown`], and when the last
    /// clone and operation of it are gone, what the kernel has not sent is dropped and the peer is
    /// reset. For peers that must not keep anything of ours, such as memory for data that they do
    /// not take. Of Unix sockets the peer can still read what was sent.
    pub fn abort(&self) {
        if let Some(executor) = Executor::try_current() {
            executor.driver().abort(self.handle.raw());
        }
    }

    /// Has the system find out when the peer's machine is gone though nothing is sent: operations
    /// fail with `TimedOut` then, or with `ConnectionReset` when it is back and knows nothing of
    /// the connection. Data that is under way and not acknowledged is given up on by the system's
    /// own time-outs, about 15 minutes. Unix sockets need none of it: there it does nothing.
    ///
    /// # Errors
    /// `InvalidInput` when a value is out of its range; the system's.
    pub fn set_keep_alive(&self, keep_alive: KeepAlive) -> io::Result<()> {
        keep_alive.check()?;
        Executor::current().driver().set_keep_alive(self.handle.raw(), keep_alive)
    }

    /// Ends both directions: a receive in flight ends with 0, the peer sees the end.
    pub fn shutdown(&self) {
        if let Some(executor) = Executor::try_current() {
            executor.driver().shutdown(self.handle.raw(), Direction::Both);
        }
    }
}

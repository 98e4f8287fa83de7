//! TCP and Unix stream sockets.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;

use crate::blocking::spawn_blocking;
use crate::buf::{Buf, BufMut};
use crate::executor::Executor;
use crate::handle::{Handle, HandleKind};
use crate::op::{Op, OpFuture, SendMode};
use crate::tls::TlsStream;
use crate::vectored::{RecvList, SendList};

/// Address at which a stream socket listens or to which it connects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// TCP over IPv4 or IPv6. In simulation the IP address identifies the node (module `sim`).
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

/// An address in the form of the kernel, boxed so that it does not move during a connect.
#[derive(Clone)]
pub(crate) struct RawAddress {
    #[cfg_attr(not(feature = "sim"), expect(dead_code, reason = "for the simulated network"))]
    pub(crate) address: Address,
    pub(crate) storage: rustix::net::SocketAddrAny,
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

/// Resolves `host` (a name, an IPv4 or a bare IPv6 address) and `port`. Blocks for as long as the
/// resolver of the system. In simulation only IP addresses resolve.
pub fn resolve(host: &str, port: u16) -> io::Result<Vec<Address>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![Address::Tcp(SocketAddr::new(ip, port))]);
    }
    if is_simulated() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "simulated hosts have addresses only"));
    }
    Ok((host, port).to_socket_addrs()?.map(Address::Tcp).collect())
}

/// Same as [`resolve`], without blocking this core: a separate thread calls the resolver of the
/// system, which may take long if no name server answers.
pub async fn lookup(host: &str, port: u16) -> io::Result<Vec<Address>> {
    if is_simulated() || host.parse::<IpAddr>().is_ok() {
        return resolve(host, port);
    }
    let host = host.to_owned();
    spawn_blocking("resolver", move || resolve(&host, port)).await?
}

fn is_simulated() -> bool {
    Executor::try_current().is_some_and(|executor| executor.driver().kind() == HandleKind::Sim)
}

/// True if a failed connection may succeed later without any change here, because the listener is
/// not up yet or the network is down.
pub fn may_pass(error: &io::Error) -> bool {
    use io::ErrorKind as HandleKind;
    matches!(
        error.kind(),
        HandleKind::ConnectionRefused
            | HandleKind::ConnectionReset
            | HandleKind::ConnectionAborted
            | HandleKind::NotConnected
            | HandleKind::BrokenPipe
            | HandleKind::UnexpectedEof
            | HandleKind::TimedOut
            | HandleKind::HostUnreachable
            | HandleKind::NetworkUnreachable
            | HandleKind::NetworkDown
            | HandleKind::AddrNotAvailable
            // The file of a Unix socket does not exist yet.
            | HandleKind::NotFound
    ) || error.raw_os_error() == Some(HOST_DOWN)
}

/// EHOSTDOWN of <errno.h>: the address resolution of a neighbor reports that it does not answer.
const HOST_DOWN: i32 = 112;

/// The process that connected to a Unix socket, recorded by the kernel at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerUser {
    /// Effective user; 0 is root.
    pub user_id: u32,
    /// Effective group.
    pub group_id: u32,
    /// Process; `None` if it is in another PID namespace.
    pub process_id: Option<u32>,
}

/// Direction of a connection to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Receive,
    Send,
    Both,
}

/// TCP keep-alive: when to probe the peer of an idle connection, and when to give up. The kernel of
/// the peer answers the probes, not its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Idle time before the first probe, in seconds: 1 to 32,767.
    pub idle_s: u16,
    /// Interval between probes, in seconds: 1 to 32,767.
    pub interval_s: u16,
    /// Unanswered probes after which the connection fails: 1 to 127.
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
    /// Listens. Port 0 takes a free port; see [`Listener::address`]. A stale Unix socket, which no
    /// process serves, is replaced.
    ///
    /// # Errors
    /// Errors of the system: address in use, permission denied, address not available.
    pub fn bind(address: &Address) -> io::Result<Listener> {
        Listener::bind_with(address, false)
    }

    /// Same as [`Listener::bind`], with mode 0600 on the file of a Unix socket from its creation,
    /// so that only this user and root can connect. Simulated files have no modes.
    pub fn bind_private(address: &Address) -> io::Result<Listener> {
        Listener::bind_with(address, true)
    }

    fn bind_with(address: &Address, private: bool) -> io::Result<Listener> {
        let executor = Executor::current();
        let node = executor.node();
        let mut driver = executor.driver();
        let (raw, address) = driver.listen(address, private, node)?;
        let kind = driver.kind();
        Ok(Listener { handle: Arc::new(Handle::adopt(raw, kind)), address })
    }

    /// The bound address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// Errors of the system. Exhausted descriptors and aborted connections are worth a retry after
    /// a pause.
    pub async fn accept(&self) -> io::Result<Stream> {
        let (result, _) = OpFuture::new(Op::Accept { socket: self.handle.clone() }).await;
        let raw = result? as i32;
        let handle = Arc::new(Handle::adopt(raw, self.handle.kind()));
        Ok(Stream { handle })
    }

    /// The listening socket, non-blocking, for an event loop other than this runtime's.
    ///
    /// # Errors
    /// The system's; `Unsupported` in simulation.
    pub fn into_descriptor(self) -> io::Result<OwnedFd> {
        let descriptor = self.handle.duplicate()?;
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        Ok(descriptor)
    }
}

/// A connected stream socket. One receiving and one sending task may use it at a time. It may move
/// to another core while no operation is in flight.
#[derive(Clone, Debug)]
pub struct Stream {
    handle: Arc<Handle>,
}

impl Stream {
    /// Connects, with the timeout of the system only.
    ///
    /// # Errors
    /// Errors of the system: refused, unreachable, timed out.
    pub async fn connect(address: &Address) -> io::Result<Stream> {
        let executor = Executor::current();
        let node = executor.node();
        let handle = {
            let mut driver = executor.driver();
            let raw = driver.socket(address, node)?;
            let kind = driver.kind();
            Arc::new(Handle::adopt(raw, kind))
        };
        let address = Box::new(RawAddress::new(address)?);
        let (result, _) = OpFuture::new(Op::Connect { socket: handle.clone(), address }).await;
        result?;
        Ok(Stream { handle })
    }

    /// The address of the peer as text; empty if the peer is gone.
    pub fn peer(&self) -> String {
        Executor::current().driver().peer(self.handle.raw())
    }

    /// The local address, as the peer reached it; `None` for Unix sockets.
    pub fn local(&self) -> Option<SocketAddr> {
        Executor::current().driver().local(self.handle.raw())
    }

    /// The peer process of a Unix socket; `None` for other sockets and in simulation.
    pub fn peer_user(&self) -> Option<PeerUser> {
        Executor::current().driver().peer_user(self.handle.raw())
    }

    /// True if the kernel may have the records of this connection.
    pub(crate) fn may_use_kernel_tls(&self) -> bool {
        Executor::current().driver().may_use_kernel_tls() && self.local().is_some()
    }

    /// The descriptor; not for simulated streams.
    pub(crate) fn descriptor(&self) -> RawFd {
        debug_assert_eq!(self.handle.kind(), HandleKind::Os, "a simulated stream");
        self.handle.raw()
    }

    /// Receives at least one byte into `buf`; 0 if the peer has closed or `buf` is empty.
    pub async fn recv(&self, buf: BufMut) -> (io::Result<usize>, BufMut) {
        let (result, op) = OpFuture::new(Op::Recv { socket: self.handle.clone(), buf }).await;
        match op {
            Op::Recv { buf, .. } => (result.map(|n| n as usize), buf),
            _ => unreachable!("an operation keeps its kind"),
        }
    }

    /// Receives at least one byte into the buffers of the list, in order; 0 if the peer has closed.
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
    /// `UnexpectedEof` if the peer closes before; otherwise errors of the system.
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

    /// Sends at least one byte of the list and removes the sent bytes from it.
    pub async fn send(&self, list: SendList) -> (io::Result<usize>, SendList) {
        self.send_from(list, SendMode::Whole).await
    }

    /// As [`Stream::send`], in this mode.
    pub(crate) async fn send_from(
        &self,
        list: SendList,
        mode: SendMode,
    ) -> (io::Result<usize>, SendList) {
        match OpFuture::new(Op::Send { socket: self.handle.clone(), list, mode }).await {
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

    /// Sends the whole list; returns it empty on success.
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
    pub async fn send_buf(&self, buf: Buf) -> io::Result<()> {
        let mut list = SendList::new();
        list.push(buf);
        self.send_all(list).await.0
    }

    /// True if the peer has ended its sending direction, or the connection has failed, even if data
    /// before the end is unread. For receivers that do not receive for a while.
    pub fn peer_has_ended(&self) -> bool {
        Executor::current().driver().peer_has_ended(self.handle.raw())
    }

    /// Ends the receiving direction: receives return 0 after the data that has already arrived.
    pub fn shutdown_receiving(&self) {
        self.end(Direction::Receive);
    }

    /// Ends the sending direction. The peer sees the end after the sent data; later sends, and a
    /// send in flight, fail with `BrokenPipe`. Receives continue.
    pub fn shutdown_sending(&self) {
        self.end(Direction::Send);
    }

    /// Aborts the connection: both directions end as with [`Stream::shutdown`]. When the last clone
    /// and operation are gone, unsent data is dropped and the peer is reset. Use it for peers that
    /// must not hold resources of this side, such as memory for data that they do not receive. The
    /// peer of a Unix socket can still read the data already sent.
    pub fn abort(&self) {
        if let Some(executor) = Executor::try_current() {
            executor.driver().abort(self.handle.raw());
        }
    }

    /// Enables keep-alive, which detects a lost peer while no data is sent. Operations then fail
    /// with `TimedOut`, or with `ConnectionReset` if the peer is back and does not know the
    /// connection. Unacknowledged data in flight is subject to the retransmission timeout of the
    /// system instead, about 15 minutes. Unix sockets do not need it, and ignore it.
    ///
    /// # Errors
    /// `InvalidInput` if a value is out of range; otherwise errors of the system.
    pub fn set_keep_alive(&self, keep_alive: KeepAlive) -> io::Result<()> {
        keep_alive.check()?;
        Executor::current().driver().set_keep_alive(self.handle.raw(), keep_alive)
    }

    /// Ends both directions: a receive in flight returns 0, and the peer sees the end.
    pub fn shutdown(&self) {
        self.end(Direction::Both);
    }

    fn end(&self, direction: Direction) {
        if let Some(executor) = Executor::try_current() {
            executor.driver().shutdown(self.handle.raw(), direction);
        }
    }
}

/// Connected stream of a protocol, encrypted or not. It stays on its core.
#[derive(Clone)]
pub enum Socket {
    /// The stream itself.
    Plain(Stream),
    /// TLS over it.
    Tls(TlsStream),
}

impl From<Stream> for Socket {
    fn from(stream: Stream) -> Socket {
        Socket::Plain(stream)
    }
}

impl From<TlsStream> for Socket {
    fn from(stream: TlsStream) -> Socket {
        Socket::Tls(stream)
    }
}

impl Socket {
    /// Stream below, for its ends and addresses.
    pub fn stream(&self) -> &Stream {
        match self {
            Socket::Plain(stream) => stream,
            Socket::Tls(tls) => tls.stream(),
        }
    }

    /// The encryption, if there is one.
    pub fn tls(&self) -> Option<&TlsStream> {
        match self {
            Socket::Plain(_) => None,
            Socket::Tls(tls) => Some(tls),
        }
    }

    /// As [`Stream::recv`].
    #[inline]
    pub async fn recv(&self, buf: BufMut) -> (io::Result<usize>, BufMut) {
        match self {
            Socket::Plain(stream) => stream.recv(buf).await,
            Socket::Tls(tls) => tls.recv(buf).await,
        }
    }

    /// As [`Stream::recv_vectored`].
    #[inline]
    pub async fn recv_vectored(&self, list: RecvList) -> (io::Result<usize>, RecvList) {
        match self {
            Socket::Plain(stream) => stream.recv_vectored(list).await,
            Socket::Tls(tls) => tls.recv_vectored(list).await,
        }
    }

    /// As [`Stream::send`].
    #[inline]
    pub async fn send(&self, list: SendList) -> (io::Result<usize>, SendList) {
        match self {
            Socket::Plain(stream) => stream.send(list).await,
            Socket::Tls(tls) => tls.send(list).await,
        }
    }

    /// As [`Stream::send_buf`].
    pub async fn send_buf(&self, buf: Buf) -> io::Result<()> {
        let mut list = SendList::new();
        list.push(buf);
        while !list.is_empty() {
            let (result, rest) = self.send(list).await;
            list = rest;
            if result? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Tells an encrypted peer that nothing more is sent. The connection stays open.
    ///
    /// # Errors
    /// Errors of the system.
    pub async fn close(&self) -> io::Result<()> {
        match self {
            Socket::Plain(_) => Ok(()),
            Socket::Tls(tls) => tls.close().await,
        }
    }
}

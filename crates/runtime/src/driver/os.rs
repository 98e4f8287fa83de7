//! System calls that both real drivers share: opening files and sockets, clocks and randomness.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};

use crate::fs::{FileInfo, OpenOptions};
use crate::net::{Address, Direction, KeepAlive, PeerUser, RawAddress};

/// Attempts to lock the directory of a socket file, and the pause between: 0.2 s in total.
const TURN_ATTEMPTS: u32 = 100;
const TURN_PAUSE: Duration = Duration::from_millis(2);

const BACKLOG: i32 = 1024;

/// Monotonic nanoseconds.
pub(crate) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Monotonic nanoseconds that also pass while the machine is suspended.
pub(crate) fn boot_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds since the Unix epoch.
pub(crate) fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |span| span.as_nanos() as u64)
}

/// 64 random bits from the system.
pub(crate) fn random() -> u64 {
    let mut bytes = [0_u8; 8];
    let flags = rustix::rand::GetRandomFlags::empty();
    while rustix::rand::getrandom(&mut bytes, flags) != Ok(bytes.len()) {}
    u64::from_ne_bytes(bytes)
}

/// Borrows the raw descriptor of an operation.
pub(crate) fn borrow(raw: RawFd) -> BorrowedFd<'static> {
    // SAFETY: the callers hold the `Handle` that owns the descriptor while they use the result, and
    // none keeps it beyond the call.
    unsafe { BorrowedFd::borrow_raw(raw) }
}

/// Current size of an open file or block device, in bytes.
pub(crate) fn size(raw: RawFd) -> io::Result<u64> {
    // Reads and writes pass their offset, so the file position is unused.
    Ok(rustix::fs::seek(borrow(raw), rustix::fs::SeekFrom::End(0))?)
}

/// Opens a file or block device and finds its capabilities.
pub(crate) fn open(path: &Path, options: &OpenOptions) -> io::Result<(i32, FileInfo)> {
    let (file, direct) = open_as_asked(path, options)?;
    let meta = file.metadata()?;
    let kind = meta.file_type();
    if kind.is_block_device() {
        let info = block_device_info(&file, meta.rdev(), direct)?;
        return Ok((file.into_raw_fd(), info));
    }
    if !kind.is_file() {
        let text = "neither a regular file nor a block device";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    if options.exclusive {
        lock(&file)?;
    }
    if let (Some(bytes), 0) = (options.create_bytes, meta.len()) {
        file.set_len(bytes)?;
    }
    let info = regular_file_info(&file, direct)?;
    Ok((file.into_raw_fd(), info))
}

fn open_as_asked(path: &Path, options: &OpenOptions) -> io::Result<(std::fs::File, bool)> {
    let is_block = std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device());
    let attempt = |direct: bool| {
        let mut flags = libc::O_CLOEXEC;
        if direct {
            flags |= libc::O_DIRECT;
        }
        if is_block && options.exclusive && !options.read_only {
            flags |= libc::O_EXCL;
        }
        std::fs::OpenOptions::new()
            .read(true)
            .write(!options.read_only)
            .create(options.create_bytes.is_some() && !options.read_only)
            .truncate(false)
            .mode(0o600)
            .custom_flags(flags)
            .open(path)
    };
    if options.direct {
        match attempt(true) {
            // A file system without O_DIRECT fails with EINVAL: fall back to the page cache.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            result => return result.map(|file| (file, true)),
        }
    }
    attempt(false).map(|file| (file, false))
}

fn lock(file: &std::fs::File) -> io::Result<()> {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|error| {
        if error == rustix::io::Errno::WOULDBLOCK {
            let text = "another program has it locked; stop that program first";
            return io::Error::new(io::ErrorKind::WouldBlock, text);
        }
        error.into()
    })
}

/// Releases the lock of a file, for all users of the same open file.
pub(crate) fn unlock(raw: RawFd) {
    let _ = rustix::fs::flock(borrow(raw), FlockOperation::NonBlockingUnlock);
}

/// `STATX_DIOALIGN` (Linux 6.1): (memory, offset) alignment of O_DIRECT, in bytes.
fn direct_alignment(fd: BorrowedFd<'_>) -> Option<(u32, u32)> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    let mask = StatxFlags::from_bits_retain(libc::STATX_DIOALIGN);
    let found = statx(fd, c"", AtFlags::EMPTY_PATH, mask).ok()?;
    let known = found.stx_mask & libc::STATX_DIOALIGN != 0;
    known
        .then_some((found.stx_dio_mem_align, found.stx_dio_offset_align))
        .filter(|(memory, offset)| *memory > 0 && *offset > 0)
}

fn regular_file_info(file: &std::fs::File, direct: bool) -> io::Result<FileInfo> {
    let meta = file.metadata()?;
    let (memory, offset) = match direct_alignment(file.as_fd()) {
        Some(found) if direct => found,
        None if direct => (512, 512),
        _ => (1, 1),
    };
    Ok(FileInfo {
        size_bytes: meta.len(),
        block_device: false,
        direct,
        logical_block_bytes: offset.max(512),
        physical_block_bytes: u32::try_from(meta.blksize()).unwrap_or(4096).max(4096),
        memory_align_bytes: memory.max(1),
        can_deallocate: can_deallocate(file, meta.len()),
        can_zero: true,
    })
}

/// Tries to deallocate beyond the end of the file, where no data can be lost.
fn can_deallocate(file: &std::fs::File, size_bytes: u64) -> bool {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let tried = fallocate(file, mode, size_bytes.next_multiple_of(1 << 16), 1 << 16);
    // Other errors, such as EBADF of a read-only file, do not mean that it is unsupported.
    !matches!(tried, Err(Errno::OPNOTSUPP | Errno::NOSYS))
}

fn block_device_info(file: &std::fs::File, rdev: u64, direct: bool) -> io::Result<FileInfo> {
    let logical = rustix::fs::ioctl_blksszget(file)?;
    let physical = rustix::fs::ioctl_blkpbszget(file)?;
    let queue = |name: &str| -> Option<u64> {
        let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
        // A partition has no queue attributes; its disk's are one level up.
        ["queue", "../queue"].iter().find_map(|place| {
            let path = format!("/sys/dev/block/{major}:{minor}/{place}/{name}");
            std::fs::read_to_string(path).ok()?.trim().parse().ok()
        })
    };
    let size_bytes = std::io::Seek::seek(&mut &*file, std::io::SeekFrom::End(0))?;
    let memory = match direct_alignment(file.as_fd()) {
        Some((memory, _)) if direct => memory,
        _ if direct => logical,
        _ => 1,
    };
    Ok(FileInfo {
        size_bytes,
        block_device: true,
        direct,
        logical_block_bytes: logical,
        physical_block_bytes: physical.max(logical),
        memory_align_bytes: memory,
        can_deallocate: queue("discard_max_bytes").is_some_and(|max| max > 0),
        can_zero: true,
    })
}

/// Listens on `address`; port 0 takes a free port. With `private` the file of a Unix socket has
/// mode 0600 from its creation.
pub(crate) fn listen(address: &Address, private: bool) -> io::Result<(i32, Address)> {
    let raw = RawAddress::new(address)?;
    let socket = new_socket(address)?;
    let bind = || {
        rustix::net::bind(&socket, &raw.storage)?;
        io::Result::Ok(rustix::net::listen(&socket, BACKLOG)?)
    };
    match address {
        Address::Tcp(_) => {
            sockopt::set_socket_reuseaddr(&socket, true)?;
            bind()?;
        }
        Address::Unix(path) => {
            if private {
                // On bind, the file gets the mode of the socket (less the umask).
                rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
            }
            let _turn = take_turn(path);
            remove_stale_socket(path);
            bind()?;
        }
    }
    let bound = match address {
        Address::Tcp(_) => Address::Tcp(rustix::net::getsockname(&socket)?.try_into()?),
        Address::Unix(_) => address.clone(),
    };
    Ok((socket.into_raw_fd(), bound))
}

/// Locks the directory of a socket while a stale socket file is replaced in it: a server that has
/// bound and does not listen yet would look stale to another server starting concurrently. The lock
/// is advisory: a server that cannot take it soon continues without.
fn take_turn(path: &Path) -> Option<OwnedFd> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(parent.unwrap_or(Path::new(".")), flags, Mode::empty()).ok()?;
    for _ in 0..TURN_ATTEMPTS {
        match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(folder),
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(TURN_PAUSE),
            Err(_) => return None,
        }
    }
    None
}

/// Removes a stale Unix socket, left by a killed server, which refuses connections. After any
/// other error, such as a full backlog, the socket is in use.
fn remove_stale_socket(path: &Path) {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    if is_socket && connect_now(path) == Err(rustix::io::Errno::CONNREFUSED) {
        let _ = std::fs::remove_file(path);
    }
}

/// Connects to a Unix socket and disconnects, without waiting for room in its backlog.
fn connect_now(path: &Path) -> rustix::io::Result<()> {
    let address = rustix::net::SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &address)
}

/// The peer process of a Unix socket. This does not use rustix because its process identifier is
/// never zero, and the kernel reports zero for a process in another namespace.
pub(crate) fn peer_user(raw: RawFd) -> Option<PeerUser> {
    if sockopt::socket_domain(borrow(raw)).ok()? != AddressFamily::UNIX {
        return None;
    }
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `found` and `len` are valid for the result of the call, and `len` is the size of
    // `found`.
    let result = unsafe {
        libc::getsockopt(
            raw,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    let process_id = u32::try_from(found.pid).ok().filter(|pid| *pid != 0);
    let whole = result == 0 && len as usize == size_of::<libc::ucred>();
    whole.then_some(PeerUser { user_id: found.uid, group_id: found.gid, process_id })
}

fn new_socket(address: &Address) -> io::Result<OwnedFd> {
    let family = match address {
        Address::Tcp(tcp) if tcp.is_ipv4() => AddressFamily::INET,
        Address::Tcp(_) => AddressFamily::INET6,
        Address::Unix(_) => AddressFamily::UNIX,
    };
    let flags = SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
}

/// A socket that can connect to `address`.
pub(crate) fn socket(address: &Address) -> io::Result<i32> {
    let socket = new_socket(address)?;
    no_delay(socket.as_raw_fd());
    Ok(socket.into_raw_fd())
}

/// Disables Nagle's algorithm, so that small responses are sent at once. Unix sockets do not have
/// it.
pub(crate) fn no_delay(raw: RawFd) {
    let _ = sockopt::set_tcp_nodelay(borrow(raw), true);
}

/// The peer of a connected socket, as text.
pub(crate) fn peer(raw: RawFd) -> String {
    match rustix::net::getpeername(borrow(raw)) {
        Ok(Some(any)) => match std::net::SocketAddr::try_from(any) {
            Ok(tcp) => tcp.to_string(),
            Err(_) => "unix".to_owned(),
        },
        _ => String::new(),
    }
}

/// The local address of a connected TCP socket.
pub(crate) fn local(raw: RawFd) -> Option<std::net::SocketAddr> {
    rustix::net::getsockname(borrow(raw)).ok()?.try_into().ok()
}

/// Shuts a socket down. An error means that it is not connected any more, and is ignored.
pub(crate) fn shutdown(raw: RawFd, direction: Direction) {
    let how = match direction {
        Direction::Receive => Shutdown::Read,
        Direction::Send => Shutdown::Write,
        Direction::Both => Shutdown::Both,
    };
    let _ = rustix::net::shutdown(borrow(raw), how);
}

/// True if the peer has ended its sending direction, or the connection has failed.
pub(crate) fn peer_has_ended(raw: RawFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let socket = borrow(raw);
    let mut polled = [PollFd::new(&socket, PollFlags::RDHUP)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&at_once)).is_ok_and(|_| !polled[0].revents().is_empty())
}

/// Ends both directions. Closing the descriptor then drops unsent data and resets the peer.
pub(crate) fn abort(raw: RawFd) {
    // If this fails, the close is an ordinary one, which is slower but correct.
    let _ = sockopt::set_socket_linger(borrow(raw), Some(Duration::ZERO));
    shutdown(raw, Direction::Both);
}

/// Enables probes of an idle TCP peer. Other sockets do not need them: the end of their peer is
/// visible at once.
pub(crate) fn set_keep_alive(raw: RawFd, keep_alive: KeepAlive) -> io::Result<()> {
    let socket = borrow(raw);
    if sockopt::socket_domain(socket)? == AddressFamily::UNIX {
        return Ok(());
    }
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(keep_alive.idle_s.into()))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(keep_alive.interval_s.into()))?;
    sockopt::set_tcp_keepcnt(socket, keep_alive.probes.into())?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

/// `fallocate` mode bits of a punch.
pub(crate) fn punch_mode(mode: crate::op::PunchMode) -> i32 {
    match mode {
        crate::op::PunchMode::Deallocate => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
        crate::op::PunchMode::Zero => libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
    }
}

/// Involuntary context switches of this thread: other threads wanted its core.
pub(crate) fn preemptions() -> u64 {
    // SAFETY: `rusage` is plain data for which zeroes are valid, and the call fills it in.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for the result of the call.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    if result == 0 { usage.ru_nivcsw as u64 } else { 0 }
}

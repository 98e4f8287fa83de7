//! Signals that ask a program to end or to reload its configuration.

use std::os::fd::IntoRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::buf;
use crate::driver::os;
use crate::handle::{Handle, HandleKind};
use crate::op::{Op, OpFuture};

/// A socket pair from the signal handler to the listener, because every driver can receive from a
/// socket.
static SIGNAL_WRITE: AtomicI32 = AtomicI32::new(-1);
static SIGNAL_READ: AtomicI32 = AtomicI32::new(-1);

extern "C" fn on_signal(signal: libc::c_int) {
    let fd = SIGNAL_WRITE.load(Ordering::Relaxed);
    // SAFETY: write(2) is async-signal-safe, and the socket is never closed.
    unsafe { libc::write(fd, (&raw const signal).cast(), 4) };
}

/// The signal that asks for a reload of the configuration; see [`catch_reload`].
pub const RELOAD: i32 = libc::SIGHUP;

/// Prepares for [`terminated`]: from now on SIGTERM and SIGINT do not end the process at once.
///
/// # Errors
/// Errors of the system, if no socket pair can be created.
pub fn catch_termination() -> std::io::Result<()> {
    catch(&[libc::SIGTERM, libc::SIGINT])
}

/// Same as [`catch_termination`], for SIGHUP: [`terminated`] returns [`RELOAD`] for it.
pub fn catch_reload() -> std::io::Result<()> {
    catch(&[RELOAD])
}

fn catch(signals: &[libc::c_int]) -> std::io::Result<()> {
    open_pipe()?;
    for signal in signals {
        // SAFETY: `sigaction` is plain data for which zeroes are valid; the handler is
        // async-signal-safe and stays for the life of the process.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(*signal, &raw const action, std::ptr::null_mut());
        }
    }
    Ok(())
}

/// Opens both ends, once.
fn open_pipe() -> std::io::Result<()> {
    if SIGNAL_WRITE.load(Ordering::Relaxed) >= 0 {
        return Ok(());
    }
    let flags = SocketFlags::CLOEXEC;
    let (write_end, read_end) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // If the program does not read its signals, the handler must not block.
    rustix::io::ioctl_fionbio(&write_end, true)?;
    SIGNAL_WRITE.store(write_end.into_raw_fd(), Ordering::Relaxed);
    SIGNAL_READ.store(read_end.into_raw_fd(), Ordering::Relaxed);
    Ok(())
}

/// Waits for a caught signal: SIGTERM, SIGINT or [`RELOAD`]. Returns the signal number. Only one
/// task may wait at a time.
///
/// # Panics
/// If [`catch_termination`] was not called before.
pub async fn terminated() -> i32 {
    let read_end = SIGNAL_READ.load(Ordering::Relaxed);
    assert!(read_end >= 0, "catch_termination comes first");
    let duplicate = match rustix::io::dup(os::borrow(read_end)) {
        Ok(duplicate) => duplicate.into_raw_fd(),
        Err(_) => return libc::SIGTERM,
    };
    let socket = Arc::new(Handle::adopt(duplicate, HandleKind::Os));
    let buf = buf::alloc(4).await;
    match OpFuture::new(Op::Recv { socket, buf }).await {
        (Ok(4), Op::Recv { buf, .. }) => i32::from_ne_bytes([buf[0], buf[1], buf[2], buf[3]]),
        _ => libc::SIGTERM,
    }
}

//! Handles of open files and sockets, real or simulated.

use std::cell::RefCell;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::driver::os;

/// Namespace of a raw handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleKind {
    /// A file descriptor of this process.
    Os,
    /// An entry of the simulated world that this thread runs.
    Sim,
}

thread_local! {
    /// Simulated handles dropped since the driver last looked. A drop may happen while the driver
    /// itself is working, so it only records the handle here.
    static DROPPED: RefCell<Vec<i32>> = const { RefCell::new(Vec::new()) };
}

/// An open file or socket. It closes when its last user is gone, including operations in flight.
#[derive(Debug)]
pub(crate) struct Handle {
    raw: i32,
    kind: HandleKind,
    /// This process holds an advisory lock on the file.
    locked: bool,
}

impl Handle {
    /// Takes ownership of a raw handle.
    pub(crate) fn adopt(raw: i32, kind: HandleKind) -> Handle {
        Handle { raw, kind, locked: false }
    }

    /// Same as [`Handle::adopt`], for a file that was locked when it was opened: closing unlocks
    /// it.
    pub(crate) fn adopt_locked(raw: i32, kind: HandleKind) -> Handle {
        Handle { raw, kind, locked: true }
    }

    pub(crate) fn raw(&self) -> i32 {
        self.raw
    }

    pub(crate) fn kind(&self) -> HandleKind {
        self.kind
    }

    /// Another descriptor of the same file or socket; `Unsupported` in simulation.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        match self.kind {
            // SAFETY: the descriptor is open for as long as this handle lives.
            HandleKind::Os => unsafe { BorrowedFd::borrow_raw(self.raw) }.try_clone_to_owned(),
            HandleKind::Sim => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        match self.kind {
            HandleKind::Os => {
                if self.locked {
                    // No operation is in flight, but an io_uring worker may hold a reference to the
                    // file for a moment after its request completed. That reference would keep the
                    // lock, so unlock explicitly.
                    os::unlock(self.raw);
                }
                // SAFETY: this handle owns the descriptor and closes it once, here.
                unsafe { libc::close(self.raw) };
            }
            HandleKind::Sim => {
                let _ = DROPPED.try_with(|dropped| dropped.borrow_mut().push(self.raw));
            }
        }
    }
}

/// Returns the simulated handles dropped since the last call.
#[cfg(feature = "sim")]
pub(crate) fn take_dropped() -> Vec<i32> {
    DROPPED.with(|dropped| std::mem::take(&mut *dropped.borrow_mut()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsFd, IntoRawFd};

    use rustix::fs::{FlockOperation, flock};

    use super::*;

    #[test]
    fn closing_unlocks_despite_duplicate_descriptor() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lock = |file: &File| flock(file, FlockOperation::NonBlockingLockExclusive);
        let ours = file.reopen().unwrap();
        lock(&ours).unwrap();
        let others = ours.as_fd().try_clone_to_owned().unwrap();
        drop(Handle::adopt_locked(ours.into_raw_fd(), HandleKind::Os));
        lock(&file.reopen().unwrap()).expect("its last user has closed it");
        drop(others);
    }
}

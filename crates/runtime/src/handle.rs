//! Handles of open files and sockets, of this machine or of a simulated one.

use std::cell::RefCell;

use crate::driver::os;

/// Where a handle's number means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file descriptor of this process.
    Os,
    /// An entry of the simulated world of this thread.
    Sim,
}

thread_local! {
    /// Simulated handles dropped since the driver last looked: a drop may come in the midst of the
    /// driver's own work, so it only leaves a note.
    static DROPPED: RefCell<Vec<i32>> = const { RefCell::new(Vec::new()) };
}

/// An open file or socket; closes when the last user, in-flight operations included, is gone.
#[derive(Debug)]
pub(crate) struct Handle {
    raw: i32,
    kind: Kind,
    /// Its file has our advisory lock.
    locked: bool,
}

impl Handle {
    /// Takes ownership of a raw handle.
    pub(crate) fn adopt(raw: i32, kind: Kind) -> Handle {
        Handle { raw, kind, locked: false }
    }

    /// As [`Handle::adopt`], of a file that was locked when it was opened: its close unlocks it.
    pub(crate) fn adopt_locked(raw: i32, kind: Kind) -> Handle {
        Handle { raw, kind, locked: true }
    }

    pub(crate) fn raw(&self) -> i32 {
        self.raw
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        match self.kind {
            Kind::Os => {
                if self.locked {
                    // Nothing is in flight, but a worker of io_uring may have the file for a moment
                    // after it said that its request is done, and would keep the lock for as long.
                    os::unlock(self.raw);
                }
                // SAFETY: the descriptor is ours alone and closed once, here.
                unsafe { libc::close(self.raw) };
            }
            Kind::Sim => {
                let _ = DROPPED.try_with(|dropped| dropped.borrow_mut().push(self.raw));
            }
        }
    }
}

/// The simulated handles dropped since the last call.
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
    fn a_closed_file_is_unlocked_though_another_has_it_still() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lock = |file: &File| flock(file, FlockOperation::NonBlockingLockExclusive);
        let ours = file.reopen().unwrap();
        lock(&ours).unwrap();
        let others = ours.as_fd().try_clone_to_owned().unwrap();
        drop(Handle::adopt_locked(ours.into_raw_fd(), Kind::Os));
        lock(&file.reopen().unwrap()).expect("its last user has closed it");
        drop(others);
    }
}

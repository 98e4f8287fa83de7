//! Handles of open files and sockets, of this machine or of a simulated one.

use std::cell::RefCell;

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
}

impl Handle {
    /// Takes ownership of a raw handle.
    pub(crate) fn adopt(raw: i32, kind: Kind) -> Handle {
        Handle { raw, kind }
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

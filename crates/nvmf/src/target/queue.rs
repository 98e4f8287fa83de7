//! A queue of a controller: which connection it is, and what went through it.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use flagstone_runtime::net::Stream;

/// Ends a connection from anywhere: its task finds its stream at an end.
pub(crate) trait Hangup: Send + Sync {
    /// Ends both directions of the connection. May be called again.
    fn hang_up(&self);
}

impl Hangup for Stream {
    fn hang_up(&self) {
        self.shutdown();
    }
}

/// A queue pair, which over TCP is a connection. Queue 0 is the admin queue.
pub(crate) struct Queue {
    /// Queue identifier.
    pub(crate) qid: u16,
    /// Entries of the submission queue: commands outstanding at most.
    pub(crate) entries: u16,
    /// The host counts free entries, so completions carry SQHD.
    pub(crate) flow_control: bool,
    /// What went through it, for the SMART log.
    pub(crate) counters: IoCounters,
    open: AtomicBool,
    /// Commands that a namespace was found for and that are not done. One core counts, so counting
    /// takes no locked instruction.
    admitted: AtomicU64,
    connection: Box<dyn Hangup>,
}

impl Queue {
    pub(super) fn new(
        qid: u16,
        entries: u16,
        flow_control: bool,
        connection: Box<dyn Hangup>,
    ) -> Queue {
        let (counters, open) = (IoCounters::default(), AtomicBool::new(true));
        Queue {
            qid,
            entries,
            flow_control,
            counters,
            open,
            admitted: AtomicU64::new(0),
            connection,
        }
    }

    /// False once the controller was reset or is gone: what still arrives on the connection is not
    /// to be carried out.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    /// Counts a command that was admitted and is not done at once. Called on the queue's core alone.
    #[inline]
    pub(super) fn enter(&self) {
        add(&self.admitted, 1);
    }

    /// Takes back one [`Queue::enter`].
    #[inline]
    pub(super) fn leave(&self) {
        // What the command did is seen by who finds none left.
        self.admitted.store(self.admitted.load(Relaxed).wrapping_sub(1), Release);
    }

    /// No command that was admitted is in hand: known of commands that its core began before the
    /// look, as [`pass_by_all`](crate::countdown::pass_by_all) makes sure.
    pub(super) fn is_idle(&self) -> bool {
        self.admitted.load(Acquire) == 0
    }

    /// Deletes the queue: its connection ends.
    pub(super) fn close(&self) {
        self.open.store(false, Relaxed);
        self.connection.hang_up();
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("qid", &self.qid).field("entries", &self.entries).finish()
    }
}

/// A command of a queue that was admitted, for as long as it is not done.
pub(crate) struct Admitted(Arc<Queue>);

impl Admitted {
    /// To be dropped on the queue's core, where this is.
    pub(super) fn new(queue: Arc<Queue>) -> Admitted {
        queue.enter();
        Admitted(queue)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Queues of one host, of whatever controller of a subsystem, that were cut and whose connections
/// still await commands.
#[derive(Debug, Default)]
pub(super) struct Leftovers(AtomicUsize);

impl Leftovers {
    /// Notes that `queues` were cut.
    pub(super) fn add(&self, queues: usize) {
        self.0.fetch_add(queues, AcqRel);
    }

    /// Notes that nothing is left of one.
    pub(super) fn take_one(&self) {
        self.0.fetch_sub(1, AcqRel);
    }

    /// Whether nothing is left of any.
    pub(super) fn are_none(&self) -> bool {
        self.0.load(Acquire) == 0
    }
}

/// Reads and writes of one queue. One core adds to it, any may read it, so adding takes no locked
/// instruction.
#[derive(Debug, Default)]
pub(crate) struct IoCounters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    media_errors: AtomicU64,
}

/// What went through queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoTotals {
    /// Read and Compare commands that succeeded or failed on the medium.
    pub reads: u64,
    /// What they read, bytes.
    pub read_bytes: u64,
    /// Write commands that succeeded or failed on the medium.
    pub writes: u64,
    /// What they wrote, bytes.
    pub written_bytes: u64,
    /// Commands that failed on the medium.
    pub media_errors: u64,
}

impl IoCounters {
    /// Counts a read of `bytes`.
    #[inline]
    pub(crate) fn read(&self, bytes: u64) {
        add(&self.reads, 1);
        add(&self.read_bytes, bytes);
    }

    /// Counts a write of `bytes`.
    #[inline]
    pub(crate) fn write(&self, bytes: u64) {
        add(&self.writes, 1);
        add(&self.written_bytes, bytes);
    }

    /// Counts a failure of the medium.
    pub(crate) fn media_error(&self) {
        add(&self.media_errors, 1);
    }

    pub(super) fn totals(&self) -> IoTotals {
        IoTotals {
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            media_errors: self.media_errors.load(Relaxed),
        }
    }
}

/// Adds to a number that one core alone changes.
#[inline]
fn add(number: &AtomicU64, more: u64) {
    number.store(number.load(Relaxed).wrapping_add(more), Relaxed);
}

impl std::ops::AddAssign for IoTotals {
    fn add_assign(&mut self, other: IoTotals) {
        self.reads = self.reads.saturating_add(other.reads);
        self.read_bytes = self.read_bytes.saturating_add(other.read_bytes);
        self.writes = self.writes.saturating_add(other.writes);
        self.written_bytes = self.written_bytes.saturating_add(other.written_bytes);
        self.media_errors = self.media_errors.saturating_add(other.media_errors);
    }
}

//! Queue pair of a controller: its connection handle and I/O counters.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use flagstone_auth::KeyUse;
use flagstone_runtime::net::Stream;
use parking_lot::Mutex;

use crate::controller::HostIdentity;

/// Closes a connection from any thread, so that its task sees the end of the stream.
pub(crate) trait Hangup: Send + Sync {
    /// Closes both directions of the connection. May be called repeatedly.
    fn hang_up(&self);
}

impl Hangup for Stream {
    fn hang_up(&self) {
        self.shutdown();
    }
}

/// Queue pair; over TCP, one connection. Queue 0 is the admin queue.
pub(crate) struct ControllerQueue {
    /// Queue identifier.
    pub(crate) qid: u16,
    /// Submission queue entries: the limit of outstanding commands.
    pub(crate) entries: u16,
    /// SQHD is reported in completions, because the host counts free entries.
    pub(crate) flow_control: bool,
    /// I/O counters for the SMART log.
    pub(crate) counters: IoCounters,
    /// Host of the queue.
    pub(crate) host: HostIdentity,
    open: AtomicBool,
    /// The server stops, and all commands have been answered.
    answered: AtomicBool,
    /// Admitted commands (their namespace was found) that have not completed, by the phase in which
    /// they were admitted. Only one core writes it, so counting needs no locked instruction.
    admitted: [AtomicU64; 2],
    /// Current phase, 0 or 1.
    phase: AtomicU8,
    proven: Mutex<ProvenKeys>,
    connection: Box<dyn Hangup>,
}

/// Keys that the host of a queue has proven.
#[derive(Debug, Default)]
struct ProvenKeys {
    /// The key of its TLS channel, or the key by which concatenation has generated that.
    channel: Option<KeyUse>,
    /// The key of its last authentication.
    authentication: Option<KeyUse>,
}

/// Phase in which a command was admitted. A new phase separates earlier from later commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdmissionPhase(u8);

impl ControllerQueue {
    pub(super) fn new(
        qid: u16,
        entries: u16,
        flow_control: bool,
        host: HostIdentity,
        connection: Box<dyn Hangup>,
    ) -> ControllerQueue {
        ControllerQueue {
            qid,
            entries,
            flow_control,
            counters: IoCounters::default(),
            host,
            open: AtomicBool::new(true),
            answered: AtomicBool::new(false),
            admitted: Default::default(),
            phase: AtomicU8::new(0),
            proven: Mutex::default(),
            connection,
        }
    }

    /// False once the controller was reset or is gone: commands that still arrive are not executed.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    /// The server stops, and the last command has been answered.
    pub(super) fn set_answered(&self) {
        self.answered.store(true, Release);
    }

    /// True after [`ControllerQueue::set_answered`].
    pub(super) fn has_answered(&self) -> bool {
        self.answered.load(Acquire)
    }

    /// The host has proven the key of its channel.
    pub(super) fn proved_channel(&self, key: KeyUse) {
        self.proven.lock().channel = Some(key);
    }

    /// The host has authenticated with `key`, for the first time or again.
    pub(crate) fn proved_authentication(&self, key: KeyUse) {
        self.proven.lock().authentication = Some(key);
    }

    /// True if a key that the host has proven was withdrawn since.
    pub(super) fn has_withdrawn_key(&self) -> bool {
        let proven = self.proven.lock();
        [&proven.channel, &proven.authentication].into_iter().flatten().any(KeyUse::is_withdrawn)
    }

    /// Counts an admitted command that did not complete immediately. Only on the queue's core.
    #[inline]
    pub(super) fn enter(&self) -> AdmissionPhase {
        let phase = self.phase.load(Relaxed) & 1;
        add(&self.admitted[usize::from(phase)], 1);
        AdmissionPhase(phase)
    }

    /// Reverts the [`ControllerQueue::enter`] that returned `phase`.
    #[inline]
    pub(super) fn leave(&self, phase: AdmissionPhase) {
        let admitted = &self.admitted[usize::from(phase.0)];
        // Release: an observer of zero also observes the effects of the command.
        admitted.store(admitted.load(Relaxed).wrapping_sub(1), Release);
    }

    /// Begins a new phase, and returns the ended phase. One caller at a time, and only after all
    /// commands of the phase before it have completed.
    pub(crate) fn begin_phase(&self) -> AdmissionPhase {
        AdmissionPhase(self.phase.fetch_xor(1, AcqRel))
    }

    /// True if no command of an earlier `phase` is in flight. Reliable for commands that the
    /// queue's core started before a [`grace_period`](flagstone_transport::grace_period).
    pub(crate) fn has_ended(&self, phase: AdmissionPhase) -> bool {
        self.admitted[usize::from(phase.0)].load(Acquire) == 0
    }

    /// True if no admitted command is in flight. Reliable for commands that the queue's core
    /// started before a [`grace_period`](flagstone_transport::grace_period).
    pub(super) fn is_idle(&self) -> bool {
        self.admitted.iter().all(|admitted| admitted.load(Acquire) == 0)
    }

    /// From now on no command is executed, and none is refused either: the connection is about to
    /// end, and the host learns from that.
    pub(super) fn silence(&self) {
        self.open.store(false, Release);
    }

    /// Deletes the queue, which ends its connection.
    pub(super) fn close(&self) {
        self.silence();
        self.connection.hang_up();
    }
}

impl std::fmt::Debug for ControllerQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("qid", &self.qid).field("entries", &self.entries).finish()
    }
}

/// Admitted command of a queue, from admission to completion.
pub(crate) struct CommandInFlight(Arc<ControllerQueue>, AdmissionPhase);

impl CommandInFlight {
    /// Call it, and drop the result, on the queue's core.
    pub(super) fn new(queue: Arc<ControllerQueue>) -> CommandInFlight {
        let phase = queue.enter();
        CommandInFlight(queue, phase)
    }
}

impl Drop for CommandInFlight {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

/// Queues of one host, on any controller of a subsystem, that were closed while their connections
/// still await commands.
#[derive(Debug, Default)]
pub(super) struct OrphanedQueues(AtomicUsize);

impl OrphanedQueues {
    /// Adds `queues` closed queues.
    pub(super) fn add(&self, queues: usize) {
        self.0.fetch_add(queues, AcqRel);
    }

    /// Removes a queue whose commands have all completed.
    pub(super) fn remove_one(&self) {
        self.0.fetch_sub(1, AcqRel);
    }

    /// True if no closed queue has commands in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.0.load(Acquire) == 0
    }
}

/// I/O counters of one queue. Only one core writes them and any core may read, so counting needs no
/// locked instruction.
#[derive(Debug, Default)]
pub(crate) struct IoCounters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    media_errors: AtomicU64,
}

/// I/O totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoTotals {
    /// Read and Compare commands that succeeded or failed with a media error.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write commands that succeeded or failed with a media error.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Commands that failed with a media error.
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

/// Adds to a counter that only one core writes.
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

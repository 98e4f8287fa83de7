//! io_uring driver: one ring per core.
//!
//! Requires Linux 5.15. Uses SINGLE_ISSUER, DEFER_TASKRUN and TASKRUN_FLAG if the kernel has them,
//! so that completions are delivered only on request and busy-polling needs no system call.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{IoUring, opcode, squeue, types};

use super::busy_poll::BusyPoll;
use super::{Driver, Wait, os};
use crate::executor::Shared;
use crate::limits::{RING_COMPLETIONS, RING_ENTRIES};
use crate::op::{Op, OpId, Ops, SendMode};
use crate::runtime::StartError;

const ENTER_GETEVENTS: u32 = 1;
/// `user_data` of entries that belong to the driver itself.
const WAKE_USER_DATA: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;
/// Disk reads and writes submitted in one call. The kernel holds back the requests of a call until
/// the last one is prepared (its block plug). Submitting all requests of a turn at once would leave
/// a disk idle that has completed its queue. Measured in docs/performance.md.
const DISK_BATCH: u32 = 4;
/// Longest buffer of a receive that is submitted after the other operations of its turn, in bytes.
/// A connection starts with 8 KiB, and gets more when it fills them.
const SHORT_RECEIVE_BYTES: usize = 16 << 10;
const OLDEST_KERNEL: (u32, u32) = (5, 15);

/// io_uring driver of one executor.
pub(crate) struct Uring {
    ring: IoUring,
    /// Short receives of this turn, submitted after its other operations: see [`is_short`]. Bounded
    /// by the operations in flight.
    short_receives: Vec<squeue::Entry>,
    shared: Arc<Shared>,
    busy_poll: BusyPoll,
    /// Buffer for reads of the wake-up eventfd.
    wake_count: Box<u64>,
    wake_armed: bool,
    /// The kernel delivers completions only in calls that ask for them (DEFER_TASKRUN).
    deferred: bool,
    /// Upper bound of disk reads and writes that wait for submission.
    for_disks: u32,
    /// Operations in flight that change files. Kernel threads that complete them may wait for this
    /// core at a lower priority, so the executor does not busy-poll meanwhile.
    changing_files: u32,
}

/// First kernel that takes new keys for a TLS connection. Before, a connection ends when its peer
/// renews its keys, as s2n and GnuTLS do by themselves after 24 million records: minutes of load,
/// and clients of NBD seldom connect again.
const NEW_TLS_KEYS: (u32, u32) = (6, 14);

fn kernel_version() -> (u32, u32) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse());
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => OLDEST_KERNEL,
    }
}

/// Refuses kernels that are too old for every driver.
pub(crate) fn check_kernel() -> Result<(), StartError> {
    let (major, minor) = kernel_version();
    if (major, minor) < OLDEST_KERNEL {
        let text = format!("Linux {major}.{minor} is too old: flagstone needs 5.15 or newer");
        return Err(StartError::Kernel(text));
    }
    Ok(())
}

fn build_ring() -> io::Result<(IoUring, bool)> {
    let deferred = IoUring::builder()
        .setup_cqsize(RING_COMPLETIONS)
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .build(RING_ENTRIES);
    if let Ok(ring) = deferred {
        return Ok((ring, true));
    }
    let cooperative = IoUring::builder()
        .setup_cqsize(RING_COMPLETIONS)
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .build(RING_ENTRIES);
    if let Ok(ring) = cooperative {
        return Ok((ring, false));
    }
    Ok((IoUring::builder().setup_cqsize(RING_COMPLETIONS).build(RING_ENTRIES)?, false))
}

impl Uring {
    /// A ring for the calling thread, which must be its only user.
    pub(crate) fn new(shared: Arc<Shared>, busy_poll_ns: u64) -> io::Result<Uring> {
        let (ring, deferred) = build_ring()?;
        let busy_poll = BusyPoll::new(busy_poll_ns);
        Ok(Uring {
            ring,
            short_receives: Vec::new(),
            shared,
            busy_poll,
            wake_count: Box::new(0),
            wake_armed: false,
            deferred,
            for_disks: 0,
            changing_files: 0,
        })
    }

    fn push(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: every pointer of the entry is into memory that the slot of the operation owns
            // until its completion (buffers, lists, addresses), or that the driver owns (the
            // eventfd).
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            // The queue is full: submit it. If the kernel was interrupted or busy, try again.
            let _ = self.ring.submit();
        }
    }

    /// Queues the short receives of this turn behind everything queued so far.
    fn push_short_receives(&mut self) {
        let mut receives = std::mem::take(&mut self.short_receives);
        receives.drain(..).for_each(|entry| self.push(&entry));
        self.short_receives = receives;
    }

    fn arm_wake(&mut self) {
        if self.wake_armed {
            return;
        }
        self.wake_armed = true;
        let fd = types::Fd(self.shared.wake_fd().as_raw_fd());
        let place = (&raw mut *self.wake_count).cast();
        let entry = opcode::Read::new(fd, place, 8).build().user_data(WAKE_USER_DATA);
        self.push(&entry);
    }

    fn enter(&mut self, want: u32, timeout: Option<u64>) {
        self.for_disks = 0;
        let submitter = self.ring.submitter();
        let result = match timeout {
            Some(ns) => {
                let span = types::Timespec::new()
                    .sec(ns / 1_000_000_000)
                    .nsec((ns % 1_000_000_000) as u32);
                let args = types::SubmitArgs::new().timespec(&span);
                submitter.submit_with_args(want as usize, &args).map(drop)
            }
            None => {
                let waiting = self.ring.submission().len() as u32;
                let submitter = self.ring.submitter();
                // SAFETY: no argument is passed.
                unsafe { submitter.enter::<libc::sigset_t>(waiting, want, ENTER_GETEVENTS, None) }
                    .map(drop)
            }
        };
        if let Err(error) = result {
            match error.raw_os_error() {
                // Timeout, signal, or a completion queue that must be emptied first.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => {}
                _ => panic!("io_uring_enter failed: {error}; the ring is unusable"),
            }
        }
    }

    fn has_completions(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    fn has_task_work(&mut self) -> bool {
        self.ring.submission().taskrun()
    }

    /// Busy-polls for at most `budget_ns` or until `deadline`. True if work arrived.
    fn poll_for(&mut self, budget_ns: u64, started: u64, deadline: u64) -> bool {
        let end = deadline.min(started + budget_ns);
        loop {
            for _ in 0..16 {
                if self.has_completions() || self.has_task_work() || self.shared.has_remote_work() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if os::now() >= end {
                return false;
            }
        }
    }

    /// Submits, and waits for completions until `deadline`.
    fn wait(&mut self, deadline: Option<u64>) {
        self.arm_wake();
        if !self.ring.submission().is_empty() {
            self.enter(0, None);
        }
        if self.has_completions() || self.shared.has_remote_work() {
            return;
        }
        let started = os::now();
        let limit = deadline.unwrap_or(u64::MAX);
        if limit <= started {
            return self.enter(0, None);
        }
        let budget = self.busy_poll.budget(started, limit, self.changing_files == 0);
        if budget > 0 && self.poll_for(budget, started, limit) {
            self.busy_poll.paid();
            if !self.has_completions() && !self.shared.has_remote_work() {
                self.enter(0, None);
            }
            return;
        }
        if self.shared.fall_asleep() {
            let now = os::now();
            match deadline {
                Some(deadline) => self.enter(1, Some(deadline.saturating_sub(now))),
                None => self.enter(1, None),
            }
            let (woken, nothing) =
                (os::now(), !self.has_completions() && !self.shared.has_remote_work());
            if nothing && woken >= limit {
                self.busy_poll.timed_out(woken);
            } else {
                self.busy_poll.slept(woken - started);
            }
        }
        self.shared.wake_up();
    }

    fn reap(&mut self, ops: &mut Ops, garbage: &mut Vec<Op>) {
        // SAFETY: the submission half is not used while this view of the completions is alive.
        let completions = unsafe { self.ring.completion_shared() };
        for entry in completions {
            match entry.user_data() {
                WAKE_USER_DATA => self.wake_armed = false,
                CANCEL => {}
                id => {
                    if ops.op_mut(id as OpId).is_some_and(|op| op.changes_file()) {
                        self.changing_files -= 1;
                    }
                    let result = match entry.result() {
                        error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
                        count => Ok(count as u32),
                    };
                    if let (Ok(raw), Some(Op::Accept { .. })) = (&result, ops.op_mut(id as OpId)) {
                        os::no_delay(*raw as i32);
                    }
                    garbage.extend(ops.complete(id as OpId, result));
                }
            }
        }
    }
}

/// True for a receive into a short buffer, as of a connection with little traffic.
///
/// The kernel executes entries in order. Such a receive mostly finds no data, and is prepared for a
/// wake-up: a response of the same turn should not wait for that. Long receives copy data while
/// responses gather, so they are not delayed. Measured in docs/performance.md.
fn is_short(op: &Op) -> bool {
    matches!(op, Op::Recv { buf, .. } if buf.len() <= SHORT_RECEIVE_BYTES)
}

/// Submission entry of an operation.
fn entry(op: &mut Op) -> squeue::Entry {
    let fd = |handle: &crate::handle::Handle| types::Fd(handle.raw());
    match op {
        Op::ReadAt { file, buf, offset } => {
            let len = buf.len() as u32;
            opcode::Read::new(fd(file), buf.as_mut_ptr(), len).offset(*offset).build()
        }
        Op::WriteAt { file, buf, offset, durable } => {
            let flags = if *durable { libc::RWF_DSYNC } else { 0 };
            opcode::Write::new(fd(file), buf.as_ptr(), buf.len() as u32)
                .offset(*offset)
                .rw_flags(flags)
                .build()
        }
        Op::Sync { file } => {
            opcode::Fsync::new(fd(file)).flags(types::FsyncFlags::DATASYNC).build()
        }
        Op::Punch { file, offset, len, mode } => opcode::Fallocate::new(fd(file), *len)
            .offset(*offset)
            .mode(os::punch_mode(*mode))
            .build(),
        Op::Recv { socket, buf } => {
            opcode::Recv::new(fd(socket), buf.as_mut_ptr(), buf.len() as u32).build()
        }
        Op::RecvVectored { socket, list } => {
            opcode::RecvMsg::new(fd(socket), list.message()).build()
        }
        Op::Send { socket, list, mode } => {
            let whole = if *mode == SendMode::Whole { libc::MSG_WAITALL } else { 0 };
            let entry = opcode::SendMsg::new(fd(socket), list.message())
                .flags((libc::MSG_NOSIGNAL | whole) as u32)
                .build();
            // So that a thread of the kernel sends, which can wait (see `SendMode::Flush`).
            if *mode == SendMode::Flush { entry.flags(squeue::Flags::ASYNC) } else { entry }
        }
        Op::Accept { socket } => {
            opcode::Accept::new(fd(socket), std::ptr::null_mut(), std::ptr::null_mut())
                .flags(libc::SOCK_CLOEXEC)
                .build()
        }
        Op::Connect { socket, address } => {
            let storage = &address.storage;
            opcode::Connect::new(fd(socket), storage.as_ptr().cast(), storage.addr_len() as _)
                .build()
        }
    }
}

impl Driver for Uring {
    fn submit(&mut self, id: OpId, op: &mut Op, _node: u32) {
        let entry = entry(op).user_data(u64::from(id));
        if is_short(op) {
            self.short_receives.push(entry);
            return;
        }
        self.push(&entry);
        self.changing_files += u32::from(op.changes_file());
        if matches!(op, Op::ReadAt { .. } | Op::WriteAt { .. }) {
            self.for_disks += 1;
            if self.for_disks >= DISK_BATCH {
                self.for_disks = 0;
                // If the kernel refuses, the end of the turn tries again.
                let _ = self.ring.submit();
            }
        }
    }

    fn cancel(&mut self, id: OpId) {
        // The kernel has to know the operation before its cancellation.
        self.push_short_receives();
        let entry = opcode::AsyncCancel::new(u64::from(id)).build().user_data(CANCEL);
        self.push(&entry);
    }

    fn turn(&mut self, wait: Wait, ops: &mut Ops, garbage: &mut Vec<Op>) {
        self.push_short_receives();
        match wait {
            Wait::No => {
                let work = !self.ring.submission().is_empty() || self.has_task_work();
                if work || !self.deferred {
                    self.enter(0, None);
                }
            }
            Wait::Until(deadline) => self.wait(deadline),
        }
        self.reap(ops, garbage);
    }

    /// Only this driver: before Linux 6.4, poll(2) calls a socket ready while a record is not
    /// complete. The threads driver would spin; a ring is woken by each piece of a record.
    fn may_use_kernel_tls(&self) -> bool {
        kernel_version() >= NEW_TLS_KEYS
    }

    fn name(&self) -> &'static str {
        "io_uring"
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::buf::{self, Buf};
    use crate::handle::{Handle, HandleKind};
    use crate::vectored::SendList;

    /// A ring, unless the system forbids io_uring, and two connected sockets.
    fn ring_and_pair() -> Option<(Uring, [Arc<Handle>; 2])> {
        let uring = Uring::new(Shared::new().unwrap(), 0);
        let Ok(uring) = uring.map_err(|error| eprintln!("skipped: {error}")) else { return None };
        let (one, other) = UnixStream::pair().unwrap();
        let adopt =
            |socket: UnixStream| Arc::new(Handle::adopt(socket.into_raw_fd(), HandleKind::Os));
        Some((uring, [adopt(one), adopt(other)]))
    }

    fn submit(uring: &mut Uring, ops: &mut Ops, op: Op) -> OpId {
        let id = ops.insert(op);
        uring.submit(id, ops.op_mut(id).unwrap(), 0);
        id
    }

    fn receive(socket: &Arc<Handle>, bytes: usize) -> Op {
        Op::Recv { socket: socket.clone(), buf: buf::try_alloc(bytes).unwrap() }
    }

    #[test]
    fn short_receives_follow_other_operations_of_their_turn() {
        let Some((mut uring, [one, other])) = ring_and_pair() else { return };
        let mut ops = Ops::default();
        let received = submit(&mut uring, &mut ops, receive(&other, SHORT_RECEIVE_BYTES));
        assert_eq!((uring.short_receives.len(), uring.ring.submission().len()), (1, 0));
        let mut list = SendList::new();
        list.push(Buf::copy_of(b"data").unwrap());
        submit(&mut uring, &mut ops, Op::Send { socket: one, list, mode: SendMode::Whole });
        assert_eq!((uring.short_receives.len(), uring.ring.submission().len()), (1, 1));
        // The receive finds the data that was sent in the same turn.
        uring.turn(Wait::No, &mut ops, &mut Vec::new());
        assert!(uring.short_receives.is_empty() && ops.op_mut(received).is_none());
        assert!(!is_short(&receive(&other, SHORT_RECEIVE_BYTES + 1)));
    }

    #[test]
    fn receive_can_be_cancelled_in_its_turn() {
        let Some((mut uring, [_one, other])) = ring_and_pair() else { return };
        let mut ops = Ops::default();
        let received = submit(&mut uring, &mut ops, receive(&other, 4096));
        uring.cancel(received);
        assert_eq!((uring.short_receives.len(), uring.ring.submission().len()), (0, 2));
        while ops.op_mut(received).is_some() {
            uring.turn(Wait::Until(None), &mut ops, &mut Vec::new());
        }
    }
}

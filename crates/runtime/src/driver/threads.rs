//! Threads driver: poll(2) for sockets, and a few worker threads for files.
//!
//! For systems that forbid io_uring: slower, with the same behavior.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Driver, Wait, os};
use crate::executor::Shared;
use crate::limits::FILE_WORKERS;
use crate::net::Address;
use crate::op::{Op, OpId, Ops, PunchMode};

/// A socket operation that waits for readiness.
struct Waiting {
    id: OpId,
    raw: i32,
    interest: PollFlags,
}

/// Threads driver of one executor.
pub(crate) struct Threads {
    shared: Arc<Shared>,
    /// Socket operations to attempt at the next turn.
    fresh: Vec<Waiting>,
    waiting: Vec<Waiting>,
    cancelled: Vec<OpId>,
    workers: Workers,
}

impl Threads {
    pub(crate) fn new(shared: Arc<Shared>) -> io::Result<Threads> {
        let workers = Workers { pool: Arc::new(Pool::default()), threads: Vec::new() };
        let (fresh, waiting, cancelled) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Threads { shared, fresh, waiting, cancelled, workers })
    }

    fn attempt_fresh(&mut self, ops: &mut Ops, garbage: &mut Vec<Op>) -> bool {
        let mut progress = false;
        for waiting in std::mem::take(&mut self.fresh) {
            progress |= self.attempt(waiting, ops, garbage);
        }
        progress
    }

    fn attempt(&mut self, waiting: Waiting, ops: &mut Ops, garbage: &mut Vec<Op>) -> bool {
        let op = ops.op_mut(waiting.id).expect("a waiting operation is in flight");
        match attempt(op) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.waiting.push(waiting);
                false
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                self.fresh.push(waiting);
                true
            }
            result => {
                garbage.extend(ops.complete(waiting.id, result));
                true
            }
        }
    }

    fn end_cancelled(&mut self, ops: &mut Ops, garbage: &mut Vec<Op>) {
        for id in std::mem::take(&mut self.cancelled) {
            let before = self.waiting.len() + self.fresh.len();
            self.waiting.retain(|waiting| waiting.id != id);
            self.fresh.retain(|waiting| waiting.id != id);
            if self.waiting.len() + self.fresh.len() < before {
                let error = io::Error::from_raw_os_error(libc::ECANCELED);
                garbage.extend(ops.complete(id, Err(error)));
            }
        }
    }

    /// Sleeps until a socket is ready, the eventfd is written or the timeout expires; then attempts
    /// the ready operations.
    fn poll(&mut self, timeout_ns: Option<u64>, ops: &mut Ops, garbage: &mut Vec<Op>) {
        let wake_fd = self.shared.wake_fd().as_fd();
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(self.waiting.len() + 1);
        fds.push(PollFd::from_borrowed_fd(wake_fd, PollFlags::IN));
        for waiting in &self.waiting {
            fds.push(PollFd::from_borrowed_fd(os::borrow(waiting.raw), waiting.interest));
        }
        let span = timeout_ns.map(|ns| Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as _,
        });
        if poll(&mut fds, span.as_ref()).is_err() {
            return;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            let _ = rustix::io::read(wake_fd, &mut [0; 8]);
        }
        let all = std::mem::take(&mut self.waiting);
        for (waiting, ready) in all.into_iter().zip(&ready[1..]) {
            if *ready {
                self.attempt(waiting, ops, garbage);
            } else {
                self.waiting.push(waiting);
            }
        }
    }
}

/// Tries a socket operation without blocking.
fn attempt(op: &mut Op) -> io::Result<u32> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let count = match op {
        Op::Recv { socket, buf } => {
            let (place, len) = (buf.as_mut_ptr().cast(), buf.len());
            // SAFETY: the operation owns the buffer that `place` points into.
            unsafe { libc::recv(socket.raw(), place, len, flags) }
        }
        Op::RecvVectored { socket, list } => {
            // SAFETY: the list owns the buffers and the header that the message points to.
            unsafe { libc::recvmsg(socket.raw(), list.message(), flags) }
        }
        Op::Send { socket, list, .. } => {
            // SAFETY: as above.
            unsafe { libc::sendmsg(socket.raw(), list.message(), flags) }
        }
        Op::Accept { socket } => {
            let null = std::ptr::null_mut();
            // SAFETY: no address is requested.
            let raw = unsafe {
                libc::accept4(socket.raw(), null, null.cast(), libc::SOCK_CLOEXEC) as isize
            };
            if raw >= 0 {
                os::no_delay(raw as i32);
            }
            raw
        }
        Op::Connect { socket, address } => return connect(socket.raw(), address),
        Op::ReadAt { .. } | Op::WriteAt { .. } | Op::Sync { .. } | Op::Punch { .. } => {
            unreachable!("file operations go to the workers")
        }
    };
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok(count as u32) }
}

fn connect(raw: i32, address: &crate::net::RawAddress) -> io::Result<u32> {
    let fd = os::borrow(raw);
    rustix::io::ioctl_fionbio(fd, true)?;
    let result = match rustix::net::connect(fd, &address.storage) {
        Ok(()) | Err(rustix::io::Errno::ISCONN) => Ok(0),
        Err(rustix::io::Errno::INPROGRESS | rustix::io::Errno::ALREADY) => {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Err(error) => Err(error.into()),
    };
    rustix::io::ioctl_fionbio(fd, false)?;
    result
}

impl Driver for Threads {
    fn submit(&mut self, id: OpId, op: &mut Op, _node: u32) {
        let (raw, interest) = match op {
            Op::Recv { socket, .. } | Op::RecvVectored { socket, .. } | Op::Accept { socket } => {
                (socket.raw(), PollFlags::IN)
            }
            Op::Send { socket, .. } | Op::Connect { socket, .. } => (socket.raw(), PollFlags::OUT),
            Op::ReadAt { .. } | Op::WriteAt { .. } | Op::Sync { .. } | Op::Punch { .. } => {
                return self.workers.submit(Job::of(id, op), &self.shared);
            }
        };
        self.fresh.push(Waiting { id, raw, interest });
    }

    fn cancel(&mut self, id: OpId) {
        self.cancelled.push(id);
    }

    fn turn(&mut self, wait: Wait, ops: &mut Ops, garbage: &mut Vec<Op>) {
        self.end_cancelled(ops, garbage);
        let mut progress = self.attempt_fresh(ops, garbage);
        progress |= self.workers.reap(ops, garbage);
        // Ended operations hold buffers and descriptors, which are dropped when this returns. So do
        // not sleep first.
        progress |= !garbage.is_empty();
        let timeout = match wait {
            Wait::No => Some(0),
            Wait::Until(_) if progress => Some(0),
            Wait::Until(None) => None,
            Wait::Until(Some(deadline)) => Some(deadline.saturating_sub(os::now())),
        };
        let timeout = if self.shared.fall_asleep() { timeout } else { Some(0) };
        self.poll(timeout, ops, garbage);
        self.shared.wake_up();
        self.workers.reap(ops, garbage);
    }

    fn listen(&mut self, address: &Address, private: bool, _: u32) -> io::Result<(i32, Address)> {
        let (raw, address) = os::listen(address, private)?;
        rustix::io::ioctl_fionbio(os::borrow(raw), true)?;
        Ok((raw, address))
    }

    fn name(&self) -> &'static str {
        "threads"
    }
}

/// A file operation in the form for a worker. The slot of the operation keeps the buffer and the
/// handle alive until the job is reaped.
struct Job {
    id: OpId,
    raw: i32,
    work: Work,
}

enum Work {
    Read { place: *mut u8, len: usize, offset: u64 },
    Write { place: *const u8, len: usize, offset: u64, durable: bool },
    Sync,
    Punch { offset: u64, len: u64, mode: PunchMode },
}

// SAFETY: the pointers are into a buffer that the slot of the operation owns until the executor's
// thread reaps the result of the job. Until then only the worker accesses it.
unsafe impl Send for Job {}

impl Job {
    fn of(id: OpId, op: &mut Op) -> Job {
        let (raw, work) = match op {
            Op::ReadAt { file, buf, offset } => {
                let (place, len, offset) = (buf.as_mut_ptr(), buf.len(), *offset);
                (file.raw(), Work::Read { place, len, offset })
            }
            Op::WriteAt { file, buf, offset, durable } => {
                let (place, len) = (buf.as_ptr(), buf.len());
                (file.raw(), Work::Write { place, len, offset: *offset, durable: *durable })
            }
            Op::Sync { file } => (file.raw(), Work::Sync),
            Op::Punch { file, offset, len, mode } => {
                (file.raw(), Work::Punch { offset: *offset, len: *len, mode: *mode })
            }
            _ => unreachable!("socket operations are polled"),
        };
        Job { id, raw, work }
    }

    fn run(&self) -> io::Result<u32> {
        let result = match self.work {
            // SAFETY: see `Send`: the range is valid and exclusively owned while the job runs.
            Work::Read { place, len, offset } => unsafe {
                libc::pread(self.raw, place.cast(), len, offset as i64)
            },
            Work::Write { place, len, offset, durable } => {
                let iov = libc::iovec { iov_base: place.cast_mut().cast(), iov_len: len };
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                // SAFETY: as above; the vector lives until the call returns.
                unsafe { libc::pwritev2(self.raw, &raw const iov, 1, offset as i64, flags) }
            }
            // SAFETY: a plain call on an open descriptor.
            Work::Sync => unsafe { libc::fdatasync(self.raw) as isize },
            Work::Punch { offset, len, mode } => {
                let bits = os::punch_mode(mode);
                // SAFETY: a plain call on an open descriptor.
                unsafe { libc::fallocate(self.raw, bits, offset as i64, len as i64) as isize }
            }
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as u32) }
    }
}

#[derive(Default)]
struct Pool {
    queue: Mutex<Queue>,
    work: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    done: Vec<(OpId, io::Result<u32>)>,
    stop: bool,
}

/// Worker threads, started at the first file operation.
struct Workers {
    pool: Arc<Pool>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    fn submit(&mut self, job: Job, shared: &Arc<Shared>) {
        while self.threads.len() < FILE_WORKERS {
            let (pool, shared) = (self.pool.clone(), shared.clone());
            let builder = std::thread::Builder::new().name("file-worker".to_owned());
            match builder.spawn(move || work(&pool, &shared)) {
                Ok(thread) => self.threads.push(thread),
                Err(error) if self.threads.is_empty() => {
                    panic!("no thread for file operations: {error}")
                }
                Err(_) => break,
            }
        }
        self.pool.queue.lock().jobs.push_back(job);
        self.pool.work.notify_one();
    }

    fn reap(&mut self, ops: &mut Ops, garbage: &mut Vec<Op>) -> bool {
        if self.threads.is_empty() {
            return false;
        }
        let mut queue = self.pool.queue.lock();
        let done = std::mem::take(&mut queue.done);
        drop(queue);
        let any = !done.is_empty();
        for (id, result) in done {
            garbage.extend(ops.complete(id, result));
        }
        any
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.pool.queue.lock().stop = true;
        self.pool.work.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn work(pool: &Pool, shared: &Shared) {
    loop {
        let mut queue = pool.queue.lock();
        let job = loop {
            if let Some(job) = queue.jobs.pop_front() {
                break job;
            }
            if queue.stop {
                return;
            }
            pool.work.wait(&mut queue);
        };
        drop(queue);
        let result = job.run();
        pool.queue.lock().done.push((job.id, result));
        shared.send(Box::new(|| {}));
    }
}

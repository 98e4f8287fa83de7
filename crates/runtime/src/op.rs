//! I/O operations and the table of operations in flight: the interface of executor and drivers.
//!
//! An [`Op`] owns its buffers and its handle while it is in flight. A task that drops the future
//! therefore leaves nothing dangling: the entry stays, detached, until the driver has completed it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::buf::{Buf, BufMut};
use crate::executor::Executor;
use crate::handle::Handle;
use crate::vectored::{RecvList, SendList};

/// Index of an operation in flight.
pub(crate) type OpId = u32;

/// A request to a driver. Results are byte counts, or a new raw handle for `Accept`.
pub(crate) enum Op {
    /// Read at an offset of a file; short only at the end of the file.
    ReadAt { file: Arc<Handle>, buf: BufMut, offset: u64 },
    /// Write at an offset of a file; `durable` asks for stable storage before completion.
    WriteAt { file: Arc<Handle>, buf: Buf, offset: u64, durable: bool },
    /// Make completed writes durable.
    Sync { file: Arc<Handle> },
    /// Deallocate (`zero` false) or zero (`zero` true) a range of a file.
    Punch { file: Arc<Handle>, offset: u64, len: u64, mode: PunchMode },
    /// Receive at least one byte; zero if the peer has closed.
    Recv { socket: Arc<Handle>, buf: BufMut },
    /// Receive at least one byte into several buffers.
    RecvVectored { socket: Arc<Handle>, list: RecvList },
    /// Send from several buffers, at least one byte.
    Send { socket: Arc<Handle>, list: SendList, mode: SendMode },
    /// Accept a connection.
    Accept { socket: Arc<Handle> },
    /// Connect to an address.
    Connect { socket: Arc<Handle>, address: Box<crate::net::RawAddress> },
}

/// Mode of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendMode {
    /// All bytes, unless an error occurs or the driver cannot.
    Whole,
    /// As many bytes as there is room for. The kernel's TLS refuses flags that it does not know.
    Part,
    /// As `Part`, from a thread of the kernel, which may wait until earlier records of its TLS are
    /// with TCP. It need not: some kernels try without waiting first.
    Flush,
}

/// Mode of a punch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PunchMode {
    /// Deallocate; later reads return zeroes.
    Deallocate,
    /// Zero, keeping the space allocated.
    Zero,
}

impl Op {
    /// True if cancelling is safe and useful: no disk content depends on the operation.
    fn cancellable(&self) -> bool {
        matches!(
            self,
            Op::Recv { .. }
                | Op::RecvVectored { .. }
                | Op::Accept { .. }
                | Op::Connect { .. }
                | Op::Send { .. }
        )
    }

    /// True for operations that change a file: a kernel thread may complete them.
    pub(crate) fn changes_file(&self) -> bool {
        matches!(self, Op::WriteAt { .. } | Op::Sync { .. } | Op::Punch { .. })
    }
}

enum State {
    Free,
    InFlight { op: Op, waker: Option<Waker> },
    Detached { op: Op },
    Done { op: Op, result: io::Result<u32> },
}

/// The operations in flight of one executor.
#[derive(Default)]
pub(crate) struct Ops {
    slots: Vec<State>,
    free: Vec<OpId>,
}

impl Ops {
    pub(crate) fn insert(&mut self, op: Op) -> OpId {
        let slot = State::InFlight { op, waker: None };
        if let Some(id) = self.free.pop() {
            self.slots[id as usize] = slot;
            return id;
        }
        self.slots.push(slot);
        (self.slots.len() - 1) as OpId
    }

    /// The operation, while it is in flight.
    pub(crate) fn op_mut(&mut self, id: OpId) -> Option<&mut Op> {
        match self.slots.get_mut(id as usize)? {
            State::InFlight { op, .. } | State::Detached { op } => Some(op),
            State::Free | State::Done { .. } => None,
        }
    }

    /// Operations that the driver has not completed, including detached ones, and whether each can
    /// be cancelled.
    pub(crate) fn with_driver(&self) -> impl Iterator<Item = (OpId, bool)> + '_ {
        self.slots.iter().enumerate().filter_map(|(id, slot)| match slot {
            State::InFlight { op, .. } | State::Detached { op } => {
                Some((id as OpId, op.cancellable()))
            }
            State::Free | State::Done { .. } => None,
        })
    }

    /// Number of operations that are in flight or whose result was not taken yet.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Records a result and wakes the waiting task. Returns the buffers and handles of a detached
    /// operation, which the caller must drop when it holds no borrow.
    #[must_use]
    pub(crate) fn complete(&mut self, id: OpId, result: io::Result<u32>) -> Option<Op> {
        let slot = &mut self.slots[id as usize];
        match std::mem::replace(slot, State::Free) {
            State::InFlight { op, waker } => {
                *slot = State::Done { op, result };
                if let Some(waker) = waker {
                    waker.wake();
                }
                None
            }
            State::Detached { op } => {
                self.free.push(id);
                if let (Op::Accept { socket }, Ok(raw)) = (&op, &result) {
                    // The future was dropped, so the accepted connection is closed here.
                    drop(Handle::adopt(*raw as i32, socket.kind()));
                }
                Some(op)
            }
            State::Free | State::Done { .. } => unreachable!("an operation completes once"),
        }
    }

    fn take_done(&mut self, id: OpId, waker: &Waker) -> Poll<(io::Result<u32>, Op)> {
        let slot = &mut self.slots[id as usize];
        if let State::InFlight { waker: stored, .. } = slot {
            match stored {
                Some(stored) if stored.will_wake(waker) => {}
                _ => *stored = Some(waker.clone()),
            }
            return Poll::Pending;
        }
        match std::mem::replace(slot, State::Free) {
            State::Done { op, result } => {
                self.free.push(id);
                Poll::Ready((result, op))
            }
            _ => unreachable!("a future holds a live operation"),
        }
    }
}

/// An operation in flight: resolves to its result and returns its buffers.
pub(crate) struct OpFuture {
    executor: Rc<Executor>,
    id: Option<OpId>,
}

impl OpFuture {
    /// Hands `op` to the driver of the current executor.
    pub(crate) fn new(op: Op) -> OpFuture {
        let executor = Executor::current();
        let id = executor.submit(op);
        OpFuture { executor, id: Some(id) }
    }
}

impl Future for OpFuture {
    type Output = (io::Result<u32>, Op);
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let id = self.id.expect("polled after completion");
        let done = self.executor.ops.borrow_mut().take_done(id, cx.waker());
        if done.is_ready() {
            self.id = None;
        }
        done
    }
}

impl Drop for OpFuture {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let mut ops = self.executor.ops.borrow_mut();
        let slot = &mut ops.slots[id as usize];
        match std::mem::replace(slot, State::Free) {
            State::InFlight { op, .. } => {
                let cancel = op.cancellable();
                *slot = State::Detached { op };
                drop(ops);
                if cancel {
                    self.executor.cancel(id);
                }
            }
            done @ State::Done { .. } => {
                ops.free.push(id);
                drop(ops);
                if let State::Done { op: Op::Accept { socket }, result: Ok(raw) } = &done {
                    drop(Handle::adopt(*raw as i32, socket.kind()));
                }
                drop(done);
            }
            State::Free | State::Detached { .. } => unreachable!("a future holds a live operation"),
        }
    }
}

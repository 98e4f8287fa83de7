//! Sending: everything that is ready goes in one system call.
//!
//! Tasks of one core push headers and payloads; a sender task sends what has gathered, one send in
//! flight at a time. While it is in flight more gathers, so batches grow with the load and a lone
//! response goes out at once. Headers with no payload between them lie together and go as one
//! segment.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use flagstone_runtime::net::Stream;
use flagstone_runtime::{Buf, BufMut, SendList, buf, sync};

use crate::limits::TX_HEADER_BLOCK_BYTES;

/// The sending half of a connection.
pub(crate) struct Tx {
    stream: Stream,
    queue: RefCell<Gathered>,
    more: sync::Notify,
    state: Cell<State>,
    /// Bytes sent since the start: what a watchdog looks at.
    sent_bytes: Cell<u64>,
    in_flight: Cell<bool>,
    /// Bytes pushed and not yet sent.
    queued_bytes: Cell<usize>,
    /// Rung whenever a send has ended.
    progress: Rc<sync::Notify>,
}

/// What waits to be sent.
struct Gathered {
    list: SendList,
    /// Headers are written to this block, one after the other.
    block: BufMut,
    /// Bytes of headers at its front, which come after all that is in the list.
    written: usize,
}

impl Gathered {
    fn new() -> Gathered {
        // The first header takes a block of its own.
        Gathered { list: SendList::new(), block: buf::alloc_small(0), written: 0 }
    }

    fn is_empty(&self) -> bool {
        self.written == 0 && self.list.is_empty()
    }

    /// Writes a header of at most `max` bytes; its length.
    #[inline]
    fn header(
        &mut self,
        max: usize,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Option<usize> {
        if self.block.len() - self.written < max {
            self.seal();
            self.block = buf::alloc_small(TX_HEADER_BLOCK_BYTES.max(max));
        }
        let len = write(&mut self.block[self.written..self.written + max])?;
        self.written += len;
        Some(len)
    }

    /// Moves the headers into the list.
    fn seal(&mut self) {
        if self.written > 0 {
            self.list.push(self.block.split_to(self.written).freeze());
            self.written = 0;
        }
    }

    fn push(&mut self, payload: Buf) {
        self.seal();
        self.list.push(payload);
    }

    fn clear(&mut self) {
        self.written = 0;
        self.list.clear();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// No more will be pushed: send what is there, then end.
    Finishing,
    /// Nothing more is sent.
    Closed,
}

impl Tx {
    /// `progress` is rung whenever a send has ended.
    pub(crate) fn new(stream: Stream, progress: Rc<sync::Notify>) -> Tx {
        Tx {
            stream,
            queue: RefCell::new(Gathered::new()),
            more: sync::Notify::new(),
            state: Cell::new(State::Open),
            sent_bytes: Cell::new(0),
            in_flight: Cell::new(false),
            queued_bytes: Cell::new(0),
            progress,
        }
    }

    /// Pushes a header of at most `max` bytes, 4 KiB at most, which `write` writes and whose length
    /// it returns. False when `write` refuses: then nothing was pushed.
    #[inline]
    pub(crate) fn header(
        &self,
        max: usize,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> bool {
        self.gather(|queue| queue.header(max, write))
    }

    /// Pushes a payload.
    #[inline]
    pub(crate) fn push(&self, payload: Buf) {
        self.gather(|queue| {
            let len = payload.len();
            queue.push(payload);
            Some(len)
        });
    }

    /// Adds to what waits, unless nothing is to be sent any more; true when `add` did.
    #[inline]
    fn gather(&self, add: impl FnOnce(&mut Gathered) -> Option<usize>) -> bool {
        if self.state.get() != State::Open {
            return true;
        }
        let mut queue = self.queue.borrow_mut();
        let first = queue.is_empty();
        let Some(len) = add(&mut queue) else { return false };
        drop(queue);
        self.queued_bytes.set(self.queued_bytes.get() + len);
        if first {
            self.more.notify();
        }
        true
    }

    /// Bytes sent since the connection began.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent_bytes.get()
    }

    /// Bytes pushed and not yet sent.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes.get()
    }

    /// True while something waits to be sent or is being sent.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight.get() || !self.queue.borrow().is_empty()
    }

    /// No more will be pushed; [`Tx::run`] ends when all has been sent.
    pub(crate) fn finish(&self) {
        if self.state.get() == State::Open {
            self.state.set(State::Finishing);
            self.more.notify();
        }
    }

    /// Drops what has not been sent; [`Tx::run`] ends.
    pub(crate) fn close(&self) {
        self.state.set(State::Closed);
        self.queue.borrow_mut().clear();
        self.queued_bytes.set(0);
        self.more.notify();
        self.progress.notify();
    }

    /// Waits until everything pushed so far, and since, has been sent.
    pub(crate) async fn drained(&self) {
        let done = || !self.is_busy() || self.state.get() == State::Closed;
        self.progress.wait_for(|| done().then_some(())).await;
    }

    /// The sender task.
    ///
    /// # Errors
    /// The system's, when the peer is gone.
    pub(crate) async fn run(&self) -> io::Result<()> {
        let mut list = SendList::new();
        loop {
            let go_on = self.more.wait_for(|| self.next()).await;
            if !go_on {
                return Ok(());
            }
            {
                let mut queue = self.queue.borrow_mut();
                queue.seal();
                std::mem::swap(&mut list, &mut queue.list);
            }
            self.in_flight.set(true);
            while !list.is_empty() {
                let (result, rest) = self.stream.send(list).await;
                list = rest;
                match result {
                    Ok(0) => return self.failed(io::ErrorKind::WriteZero.into()),
                    Ok(count) => self.sent(count),
                    Err(error) => return self.failed(error),
                }
                if self.state.get() == State::Closed {
                    return Ok(());
                }
            }
            self.in_flight.set(false);
            self.progress.notify();
        }
    }

    fn sent(&self, count: usize) {
        self.sent_bytes.set(self.sent_bytes.get() + count as u64);
        // Closing forgets what is queued while a send is in flight.
        self.queued_bytes.set(self.queued_bytes.get().saturating_sub(count));
        self.progress.notify();
    }

    /// Whether to send (true) or to end (false); `None` to wait.
    fn next(&self) -> Option<bool> {
        match (self.state.get(), self.queue.borrow().is_empty()) {
            (State::Closed, _) | (State::Finishing, true) => Some(false),
            (_, false) => Some(true),
            (State::Open, true) => None,
        }
    }

    fn failed(&self, error: io::Error) -> io::Result<()> {
        self.in_flight.set(false);
        self.close();
        Err(error)
    }
}

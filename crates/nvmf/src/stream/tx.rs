//! Sending: everything that is ready goes in one system call.
//!
//! Tasks of one core push headers and payloads; a sender task sends what has gathered, one send in
//! flight at a time. While it is in flight more gathers, so batches grow with the load and a lone
//! response goes out at once.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use flagstone_runtime::net::Stream;
use flagstone_runtime::{Buf, BufMut, SendList, buf, sync};

use crate::limits::TX_HEADER_BLOCK_BYTES;

/// The sending half of a connection.
pub(crate) struct Tx {
    stream: Stream,
    queue: RefCell<SendList>,
    /// Headers are cut from this block, one after the other.
    headers: RefCell<Option<BufMut>>,
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
            queue: RefCell::new(SendList::new()),
            headers: RefCell::new(None),
            more: sync::Notify::new(),
            state: Cell::new(State::Open),
            sent_bytes: Cell::new(0),
            in_flight: Cell::new(false),
            queued_bytes: Cell::new(0),
            progress,
        }
    }

    /// Pushes a header of at most `max` bytes, which `write` writes and whose length it returns.
    /// False when memory for it is not to be had, or `write` refuses: then nothing was pushed.
    #[inline]
    pub(crate) fn header(
        &self,
        max: usize,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> bool {
        let mut headers = self.headers.borrow_mut();
        if headers.as_ref().is_none_or(|block| block.len() < max) {
            *headers = buf::try_alloc(TX_HEADER_BLOCK_BYTES);
        }
        let Some(block) = headers.as_mut() else { return false };
        let Some(len) = write(&mut block[..max]) else { return false };
        let header = block.split_to(len).freeze();
        drop(headers);
        self.push(header);
        true
    }

    /// Pushes a payload.
    #[inline]
    pub(crate) fn push(&self, payload: Buf) {
        if self.state.get() != State::Open {
            return;
        }
        let mut queue = self.queue.borrow_mut();
        let first = queue.is_empty();
        self.queued_bytes.set(self.queued_bytes.get() + payload.len());
        queue.push(payload);
        drop(queue);
        if first {
            self.more.notify();
        }
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
            std::mem::swap(&mut list, &mut *self.queue.borrow_mut());
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

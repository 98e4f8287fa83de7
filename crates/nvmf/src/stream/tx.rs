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
    out: RefCell<Out>,
    more: sync::Notify,
    state: Cell<State>,
    /// Bytes sent since the start: what a watchdog looks at.
    sent_bytes: Cell<u64>,
    in_flight: Cell<bool>,
    /// Bytes pushed and not yet sent.
    queued_bytes: Cell<usize>,
    /// Of those, headers: pushed since the last send began, and in it.
    header_bytes: Cell<usize>,
    sending_header_bytes: Cell<usize>,
    /// Rung whenever a send has ended.
    progress: Rc<sync::Notify>,
}

/// What waits to be sent.
struct Out {
    list: SendList,
    /// Headers are written into this block, one after the other.
    headers: Option<BufMut>,
    /// Bytes at the start of `headers` that belong behind the list. Headers that follow each other
    /// become one buffer.
    run: usize,
}

impl Out {
    /// Moves the headers written so far behind the list.
    #[inline]
    fn close_run(&mut self) {
        if self.run > 0
            && let Some(block) = &mut self.headers
        {
            self.list.push(block.split_to(self.run).freeze());
            self.run = 0;
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.run == 0 && self.list.is_empty()
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
            out: RefCell::new(Out { list: SendList::new(), headers: None, run: 0 }),
            more: sync::Notify::new(),
            state: Cell::new(State::Open),
            sent_bytes: Cell::new(0),
            in_flight: Cell::new(false),
            queued_bytes: Cell::new(0),
            header_bytes: Cell::new(0),
            sending_header_bytes: Cell::new(0),
            progress,
        }
    }

    /// Pushes a header of at most `max` bytes, which `write` writes and whose length it returns.
    /// False when memory for it is not to be had, or `write` refuses: then nothing was pushed.
    #[inline]
    pub(crate) fn header(&self, max: usize, write: impl FnOnce(&mut [u8]) -> Option<usize>) {
        if self.state.get() != State::Open {
            return;
        }
        let mut out = self.out.borrow_mut();
        let out = &mut *out;
        let first = out.is_empty();
        if out.headers.as_ref().is_none_or(|block| block.len() - out.run < max) {
            out.close_run();
            out.headers = Some(buf::alloc_small(TX_HEADER_BLOCK_BYTES));
        }
        let block = out.headers.as_mut().expect("made above");
        let place = &mut block[out.run..out.run + max];
        let len = write(place).expect("room for the longest header");
        out.run += len;
        self.header_bytes.set(self.header_bytes.get() + len);
        self.queued(len, first);
    }

    /// Pushes a payload.
    #[inline]
    pub(crate) fn push(&self, payload: Buf) {
        if self.state.get() != State::Open {
            return;
        }
        let mut out = self.out.borrow_mut();
        let first = out.is_empty();
        out.close_run();
        let len = payload.len();
        out.list.push(payload);
        self.queued(len, first);
    }

    #[inline]
    fn queued(&self, len: usize, first: bool) {
        self.queued_bytes.set(self.queued_bytes.get() + len);
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

    /// Bytes of headers pushed and not yet sent; those of a send in flight count until it has ended.
    #[inline]
    pub(crate) fn queued_header_bytes(&self) -> usize {
        self.header_bytes.get() + self.sending_header_bytes.get()
    }

    /// True while something waits to be sent or is being sent.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight.get() || !self.out.borrow().is_empty()
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
        let mut out = self.out.borrow_mut();
        out.list.clear();
        out.headers = None;
        out.run = 0;
        drop(out);
        self.queued_bytes.set(0);
        self.header_bytes.set(0);
        self.sending_header_bytes.set(0);
        self.more.notify();
        self.progress.notify();
    }

    /// True when nothing is sent any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.get() == State::Closed
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
            self.take_out(&mut list);
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
            self.sending_header_bytes.set(0);
            self.progress.notify();
        }
    }

    /// Takes all that waits, for the empty list.
    fn take_out(&self, empty: &mut SendList) {
        let mut out = self.out.borrow_mut();
        out.close_run();
        std::mem::swap(empty, &mut out.list);
        self.sending_header_bytes.set(self.header_bytes.take());
    }

    fn sent(&self, count: usize) {
        self.sent_bytes.set(self.sent_bytes.get() + count as u64);
        // Closing forgets what is queued while a send is in flight.
        self.queued_bytes.set(self.queued_bytes.get().saturating_sub(count));
        self.progress.notify();
    }

    /// Whether to send (true) or to end (false); `None` to wait.
    fn next(&self) -> Option<bool> {
        match (self.state.get(), self.out.borrow().is_empty()) {
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

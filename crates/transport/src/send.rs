//! Sender: all that is ready goes out in one system call.
//!
//! Tasks of one core queue headers and payloads. One sender task sends what has accumulated, with
//! at most one send in flight. More accumulates during the send, so batches grow with the load and
//! a single response leaves immediately.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use flagstone_runtime::net::Socket;
use flagstone_runtime::{Buf, SendList, sync};

use crate::gather::Gather;

/// Sending half of a connection.
pub struct Tx {
    socket: Socket,
    send_bytes_max: usize,
    out: RefCell<Gather>,
    more: sync::Notify,
    state: Cell<State>,
    /// Bytes sent since the start, for a watchdog.
    sent_bytes: Cell<u64>,
    in_flight: Cell<bool>,
    queued_bytes: Cell<usize>,
    /// Header bytes among them: queued since the last send began, and in flight.
    header_bytes: Cell<usize>,
    sending_header_bytes: Cell<usize>,
    /// Notified when a send has ended.
    progress: Rc<sync::Notify>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// No more is queued: send the rest, then end.
    Finishing,
    /// Nothing more is sent.
    Closed,
}

impl Tx {
    /// Creates the sender of `socket`. `progress` is notified when a send has ended.
    pub fn new(socket: impl Into<Socket>, progress: Rc<sync::Notify>) -> Tx {
        Tx {
            socket: socket.into(),
            send_bytes_max: usize::MAX,
            out: RefCell::default(),
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

    /// Limits a send to `bytes`: [`Tx::sent_bytes`] shows the progress of a slow peer in such
    /// steps.
    #[must_use]
    pub fn with_send_limit(mut self, bytes: usize) -> Tx {
        self.send_bytes_max = bytes;
        self
    }

    /// Queues a header of at most `max` bytes. `write` fills it and returns its length. Does
    /// nothing after the sender was finished or closed.
    #[inline]
    pub fn header(&self, max: usize, write: impl FnOnce(&mut [u8]) -> Option<usize>) {
        if self.state.get() != State::Open {
            return;
        }
        let mut out = self.out.borrow_mut();
        let first = out.is_empty();
        let len = out.header(max, write);
        self.header_bytes.set(self.header_bytes.get() + len);
        self.queued(len, first);
    }

    /// Queues a payload.
    #[inline]
    pub fn push(&self, payload: Buf) {
        if self.state.get() != State::Open {
            return;
        }
        let mut out = self.out.borrow_mut();
        let first = out.is_empty();
        let len = payload.len();
        out.payload(payload);
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
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes.get()
    }

    /// Bytes queued and unsent.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes.get()
    }

    /// Header bytes queued and unsent; the send in flight counts until it has ended.
    #[inline]
    pub fn queued_header_bytes(&self) -> usize {
        self.header_bytes.get() + self.sending_header_bytes.get()
    }

    /// True while bytes wait for the next send.
    pub fn has_waiting(&self) -> bool {
        !self.out.borrow().is_empty()
    }

    /// True while bytes are queued or being sent.
    pub fn is_busy(&self) -> bool {
        self.in_flight.get() || self.has_waiting()
    }

    /// Ends [`Tx::run`] after all queued bytes were sent.
    pub fn finish(&self) {
        if self.state.get() == State::Open {
            self.state.set(State::Finishing);
            self.more.notify();
        }
    }

    /// Drops unsent bytes and ends [`Tx::run`].
    pub fn close(&self) {
        self.state.set(State::Closed);
        self.out.borrow_mut().clear();
        self.queued_bytes.set(0);
        self.header_bytes.set(0);
        self.sending_header_bytes.set(0);
        self.more.notify();
        self.progress.notify();
    }

    /// True when nothing is sent any more.
    pub fn is_closed(&self) -> bool {
        self.state.get() == State::Closed
    }

    /// Waits until everything queued so far, and since, was sent.
    pub async fn drained(&self) {
        let done = || !self.is_busy() || self.state.get() == State::Closed;
        self.progress.wait_for(|| done().then_some(())).await;
    }

    /// Runs the sender task.
    ///
    /// # Errors
    /// The system's error when the peer is gone.
    pub async fn run(&self) -> io::Result<()> {
        let mut list = SendList::new();
        loop {
            let go_on = self.more.wait_for(|| self.next()).await;
            if !go_on {
                // Everything was sent, unless the sender was closed.
                return match self.state.get() {
                    State::Finishing => self.socket.close().await,
                    State::Open | State::Closed => Ok(()),
                };
            }
            self.take_out(&mut list);
            self.in_flight.set(true);
            while !list.is_empty() {
                let (result, rest) = self.socket.send(list).await;
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

    /// Moves the next send out of the queue.
    fn take_out(&self, empty: &mut SendList) {
        self.out.borrow_mut().take_into(empty, self.send_bytes_max);
        self.sending_header_bytes.set(self.header_bytes.take());
    }

    fn sent(&self, count: usize) {
        self.sent_bytes.set(self.sent_bytes.get() + count as u64);
        // Closing resets the count while a send is in flight.
        self.queued_bytes.set(self.queued_bytes.get().saturating_sub(count));
        self.progress.notify();
    }

    /// True to send, false to end, `None` to wait.
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

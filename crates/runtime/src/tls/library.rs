//! Records by the library: the operations of a [`Stream`], over encrypted records in memory.
//!
//! Received records wait in one buffer until they are decrypted into the places of the caller. Data
//! to send is encrypted into one buffer for each send; small pieces share a record.

use std::cell::RefCell;
use std::io;
use std::task::Poll;

use s2n_tls::error::{Error, ErrorType};

use super::engine::{Engine, record_bytes};
use super::error::TlsFailure;
use crate::buf::{self, Buf, BufMut, ReceiveBudget};
use crate::limits::{
    BUF_MIN_BYTES, TLS_BUDGET_BYTES, TLS_CLOSE_TIMEOUT, TLS_RECORD_BYTES, TLS_RX_MAX_BYTES,
    TLS_RX_MIN_BYTES, TLS_RX_SHRINK_AFTER, TLS_TX_BYTES,
};
use crate::net::Stream;
use crate::time;
use crate::vectored::{RecvList, SendList};

/// Both directions of a stream whose records the library has.
pub(super) struct LibraryRecords {
    engine: RefCell<Engine>,
    incoming: RefCell<Incoming>,
    outgoing: RefCell<Outgoing>,
    budget: ReceiveBudget,
}

/// Receiving direction.
struct Incoming {
    records: Records,
    /// Size of the next buffer.
    size: usize,
    small_receives: u32,
}

/// Received records that are not decrypted yet.
enum Records {
    /// A buffer, and where its unread bytes begin and end.
    Here(BufMut, usize, usize),
    None,
    /// A receive is in flight. If it was dropped, records are lost.
    InFlight,
    /// The peer has ended the stream in order.
    Ended,
    Failed,
}

/// Sending direction.
struct Outgoing {
    /// Small pieces of one record.
    staged: Box<[u8; TLS_RECORD_BYTES]>,
    list: Option<SendList>,
    state: OutgoingState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OutgoingState {
    Open,
    /// If the send was dropped, records are lost.
    InFlight,
    /// The closure alert was sent, or the stream has failed.
    Closed,
}

impl LibraryRecords {
    /// State after a handshake. `early` are bytes after the handshake that have been received.
    pub(super) fn new(engine: Engine, early: &[u8]) -> Result<LibraryRecords, TlsFailure> {
        let records = match early.len() {
            0 => Records::None,
            // The last receive of the handshake had a small buffer.
            length if length <= BUF_MIN_BYTES => {
                let mut buffer = buf::alloc_small(length);
                buffer.copy_from_slice(early);
                Records::Here(buffer, 0, length)
            }
            _ => return Err(TlsFailure::Protocol("too much data after the handshake".to_owned())),
        };
        Ok(LibraryRecords {
            engine: RefCell::new(engine),
            incoming: RefCell::new(Incoming { records, size: TLS_RX_MIN_BYTES, small_receives: 0 }),
            outgoing: RefCell::new(Outgoing {
                staged: Box::new([0; TLS_RECORD_BYTES]),
                list: Some(SendList::new()),
                state: OutgoingState::Open,
            }),
            budget: ReceiveBudget::new(TLS_BUDGET_BYTES),
        })
    }

    /// Sends a KeyUpdate before the next data.
    #[cfg(test)]
    pub(super) fn update_keys(&self) {
        self.engine.borrow_mut().update_keys();
    }

    /// As [`Stream::recv`].
    pub(super) async fn recv(
        &self,
        stream: &Stream,
        mut place: BufMut,
    ) -> (io::Result<usize>, BufMut) {
        let result = match place.is_empty() {
            true => Ok(0),
            false => self.receive(stream, |this| this.decrypt(std::iter::once(&mut place))).await,
        };
        (result, place)
    }

    /// As [`Stream::recv_vectored`].
    pub(super) async fn recv_vectored(
        &self,
        stream: &Stream,
        mut list: RecvList,
    ) -> (io::Result<usize>, RecvList) {
        let result = self.receive(stream, |this| this.decrypt(list.bufs_mut().iter_mut())).await;
        (result, list)
    }

    /// As [`Stream::send`]: sends a part of the list, and removes it from the list.
    pub(super) async fn send(
        &self,
        stream: &Stream,
        mut list: SendList,
    ) -> (io::Result<usize>, SendList) {
        let encrypted = self.encrypt(list.pending());
        let sent = match encrypted {
            Ok((records, taken)) => self.send_records(stream, records).await.map(|()| taken),
            Err(error) => Err(error),
        };
        if let Ok(taken) = sent {
            list.advance(taken);
        }
        (sent, list)
    }

    /// As [`super::TlsStream::close`].
    pub(super) async fn close(&self, stream: &Stream) -> io::Result<()> {
        let Some(alert) = self.closure_alert() else { return Ok(()) };
        let sent = time::timeout(TLS_CLOSE_TIMEOUT, self.send_records(stream, alert)).await;
        self.outgoing.borrow_mut().state = OutgoingState::Closed;
        sent.unwrap_or(Ok(()))
    }

    /// Decrypts received records, and receives more until there is data or the end.
    async fn receive(
        &self,
        stream: &Stream,
        mut decrypt: impl FnMut(&LibraryRecords) -> io::Result<Decrypted>,
    ) -> io::Result<usize> {
        loop {
            match decrypt(self)? {
                Decrypted::Bytes(count) => return Ok(count),
                Decrypted::End => return Ok(0),
                Decrypted::Nothing => {}
            }
            let place = self.begin_receive();
            let (result, place) = stream.recv(place).await;
            self.end_receive(&result, place);
            result?;
        }
    }

    async fn send_records(&self, stream: &Stream, records: BufMut) -> io::Result<()> {
        let mut list = {
            let mut outgoing = self.outgoing.borrow_mut();
            outgoing.state = OutgoingState::InFlight;
            outgoing.list.take().unwrap_or_default()
        };
        list.push(records.freeze());
        let (result, mut list) = stream.send_all(list).await;
        list.clear();
        let mut outgoing = self.outgoing.borrow_mut();
        outgoing.list = Some(list);
        outgoing.state = match result {
            Ok(()) => OutgoingState::Open,
            Err(_) => OutgoingState::Closed,
        };
        result
    }
}

/// Result of decrypting received records.
enum Decrypted {
    /// This number of bytes, at least one.
    Bytes(usize),
    /// More records are needed.
    Nothing,
    End,
}

impl LibraryRecords {
    /// Decrypts into `places`, in order, as much as has been received.
    fn decrypt<'a>(&self, places: impl Iterator<Item = &'a mut BufMut>) -> io::Result<Decrypted> {
        let mut incoming = self.incoming.borrow_mut();
        let mut engine = self.engine.borrow_mut();
        let mut count = 0;
        for place in places {
            let mut have = 0;
            while have < place.len() {
                match incoming.decrypt(&mut engine, &mut place[have..])? {
                    Decrypted::Bytes(more) => (have, count) = (have + more, count + more),
                    _ if count > 0 => return Ok(Decrypted::Bytes(count)),
                    none => return Ok(none),
                }
            }
        }
        Ok(Decrypted::Bytes(count))
    }

    /// Buffer for the next records. It never waits for memory.
    fn begin_receive(&self) -> BufMut {
        let mut incoming = self.incoming.borrow_mut();
        incoming.records = Records::InFlight;
        let pooled = self.budget.try_alloc_passing(incoming.size);
        pooled.unwrap_or_else(|| buf::alloc_small(BUF_MIN_BYTES))
    }

    fn end_receive(&self, result: &io::Result<usize>, place: BufMut) {
        let mut incoming = self.incoming.borrow_mut();
        incoming.records = match *result {
            // A peer may end without a closure alert. The protocols above detect truncation.
            Ok(0) => Records::Ended,
            Ok(count) => {
                incoming.adapt(count, count == place.len());
                Records::Here(place, 0, count)
            }
            Err(_) => Records::Failed,
        };
    }

    /// Encrypts the front of `data`, as far as one buffer goes. Returns the records, and the number
    /// of bytes that are in them.
    fn encrypt(&self, data: &[Buf]) -> io::Result<(BufMut, usize)> {
        let mut outgoing = self.outgoing.borrow_mut();
        if outgoing.state != OutgoingState::Open {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut engine = self.engine.borrow_mut();
        let all = data.iter().map(|piece| piece.len()).sum();
        let room = record_bytes(all).min(TLS_TX_BYTES);
        let pooled = self.budget.try_alloc_passing(room);
        let mut out = pooled.unwrap_or_else(|| buf::alloc_small(BUF_MIN_BYTES));
        let (mut pieces, mut at) = (data.iter(), 0);
        let mut piece: &[u8] = pieces.next().map_or(&[], |first| first);
        let mut taken = 0;
        while taken < all {
            let room = out.len() - at;
            let fits = room.saturating_sub(record_bytes(0).max(record_bytes(1) - 1));
            let length = fits.min(TLS_RECORD_BYTES).min(all - taken);
            if length == 0 {
                break;
            }
            let mut filled = 0;
            let whole = piece.len() >= length;
            while !whole && filled < length {
                let part = piece.len().min(length - filled);
                outgoing.staged[filled..filled + part].copy_from_slice(&piece[..part]);
                filled += part;
                piece = &piece[part..];
                if piece.is_empty() {
                    piece = pieces.next().map_or(&[], |next| next);
                }
            }
            let record = if whole { &piece[..length] } else { &outgoing.staged[..length] };
            let (result, moved) = engine.encrypt(record, &mut out[at..]);
            if whole {
                piece = &piece[length..];
                if piece.is_empty() {
                    piece = pieces.next().map_or(&[], |next| next);
                }
            }
            at += moved.written;
            match result {
                Poll::Ready(Ok(count)) if count == length => taken += length,
                Poll::Ready(Err(error)) => {
                    outgoing.state = OutgoingState::Closed;
                    return Err(broken(&error));
                }
                _ => {
                    outgoing.state = OutgoingState::Closed;
                    return Err(io::Error::other("a TLS record does not fit its buffer"));
                }
            }
        }
        out.truncate(at);
        Ok((out, taken))
    }

    /// The closure alert; `None` if nothing can be sent any more.
    fn closure_alert(&self) -> Option<BufMut> {
        if self.outgoing.borrow().state != OutgoingState::Open {
            return None;
        }
        let mut out = buf::alloc_small(BUF_MIN_BYTES);
        let written = self.engine.borrow_mut().close(&mut out);
        out.truncate(written);
        Some(out)
    }
}

impl Incoming {
    /// Decrypts into `place`, which is not empty.
    fn decrypt(&mut self, engine: &mut Engine, place: &mut [u8]) -> io::Result<Decrypted> {
        let input: &[u8] = match &self.records {
            Records::Here(buffer, begin, end) => &buffer[*begin..*end],
            Records::None => &[],
            Records::Ended => return Ok(Decrypted::End),
            Records::InFlight | Records::Failed => return Err(io::ErrorKind::NotConnected.into()),
        };
        let (result, moved) = engine.decrypt(input, place);
        let is_used_up = moved.taken == input.len();
        if let Records::Here(_, begin, _) = &mut self.records {
            *begin += moved.taken;
        }
        if is_used_up {
            self.records = Records::None;
        }
        match result {
            Poll::Ready(Ok(0)) => {
                self.records = Records::Ended;
                Ok(Decrypted::End)
            }
            Poll::Ready(Ok(count)) => Ok(Decrypted::Bytes(count)),
            Poll::Pending if is_used_up => Ok(Decrypted::Nothing),
            Poll::Pending => {
                self.records = Records::Failed;
                Err(io::Error::other("the TLS library reads no more records"))
            }
            Poll::Ready(Err(error)) => {
                self.records = Records::Failed;
                Err(broken(&error))
            }
        }
    }

    /// Doubles the buffer when it is filled, and halves it after many small receives.
    fn adapt(&mut self, received: usize, filled: bool) {
        if filled {
            self.size = (self.size * 2).min(TLS_RX_MAX_BYTES);
            self.small_receives = 0;
        } else if received < self.size / 4 && self.size > TLS_RX_MIN_BYTES {
            self.small_receives += 1;
            if self.small_receives >= TLS_RX_SHRINK_AFTER {
                self.size /= 2;
                self.small_receives = 0;
            }
        } else {
            self.small_receives = 0;
        }
    }
}

/// Error of a stream with a broken record.
fn broken(error: &Error) -> io::Error {
    match error.kind() {
        ErrorType::Alert => io::ErrorKind::ConnectionAborted.into(),
        ErrorType::ConnectionClosed => io::ErrorKind::BrokenPipe.into(),
        _ => io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {}", error.message())),
    }
}

//! Receiver: many messages per system call, payloads in place.
//!
//! Bytes arrive in *segments*, in stream order. A parser reads the front ([`Rx::peek`]), consumes
//! headers ([`Rx::skip`]) and takes payloads ([`Rx::take`]). A payload that lies in one segment is
//! taken without a copy; otherwise it is gathered into a separate buffer.
//!
//! Two mechanisms keep payloads in one segment:
//! - the rest of a large payload is received directly into its own buffer ([`Rx::fill`], and
//!   [`Rx::fill_ahead`] where the next message follows at once);
//! - for devices with memory alignment, the layout of the next messages is predicted from the
//!   previous ones ([`Rx::expect`]): header, payload, header, and so on, each into its own buffer.
//!   A wrong prediction costs a copy, never correctness.
//!
//! The receive buffer doubles when it is filled and shrinks when traffic is light, so an idle
//! connection holds little. Payloads may keep at most [`RECEIVE_AHEAD_BYTES`] of receive buffers
//! alive. Beyond that, and at the memory ceiling, payloads are copied out.
//!
//! Receiving never waits for memory, because memory is freed by receiving. The exception is
//! [`Rx::more_pooled`], for setup messages whose length the peer chooses.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use flagstone_runtime::buf::{self, ReceiveBudget};
use flagstone_runtime::net::Socket;
use flagstone_runtime::{Buf, BufMut, RecvList, time};

use crate::limits::{
    LOOK_AHEAD_BYTES, POOLED_PAUSE, PREDICT_AFTER, RECEIVE_AHEAD_BYTES, RX_EXPECTED_BYTES,
    RX_LEAST_BYTES, RX_MAX_BYTES, RX_MIN_BYTES, RX_PASSING_BYTES, RX_SHRINK_AFTER,
};

/// Predicted layout of the next messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageShape {
    /// Bytes before each payload.
    pub header: usize,
    /// Bytes of each payload.
    pub payload: usize,
    /// Bytes after each payload, before the next header.
    pub digest: usize,
}

/// Predicts the shape of the next messages from the payloads received so far.
#[derive(Default)]
pub struct ShapePredictor {
    last: Option<MessageShape>,
    repeats: u32,
}

impl ShapePredictor {
    /// Records a message, `None` for one without a predictable payload. Returns the shape of the
    /// next message, for [`Rx::expect`].
    pub fn observe(&mut self, shape: Option<MessageShape>) -> Option<MessageShape> {
        self.repeats = if shape == self.last { self.repeats.saturating_add(1) } else { 0 };
        self.last = shape;
        if self.repeats >= PREDICT_AFTER { shape } else { None }
    }

    /// Starts over.
    pub fn reset(&mut self) {
        self.last = None;
    }
}

/// Receiving half of a connection.
pub struct Rx {
    socket: Socket,
    /// Received and unread bytes, in stream order.
    data: VecDeque<BufMut>,
    data_bytes: usize,
    /// Buffers for the next bytes, in order.
    free: VecDeque<BufMut>,
    list: Option<RecvList>,
    /// Accounts for receive buffers that payloads keep alive.
    ahead: ReceiveBudget,
    /// Size of the next receive buffer.
    size: usize,
    small_rounds: u32,
    expected: Option<MessageShape>,
    /// Block from which predicted headers get their buffers.
    headers: Option<BufMut>,
    receives: Rc<Cell<u64>>,
}

/// Reason why receiving failed.
#[derive(Debug, thiserror::Error)]
pub enum RxError {
    /// End of the stream, within a message or between two.
    #[error("the peer closed the connection")]
    Closed,
    /// System error.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Rx {
    /// Creates the receiver of `socket`.
    pub fn new(socket: impl Into<Socket>) -> Rx {
        Rx {
            socket: socket.into(),
            data: VecDeque::with_capacity(64),
            data_bytes: 0,
            free: VecDeque::with_capacity(64),
            list: Some(RecvList::new()),
            ahead: ReceiveBudget::new(RECEIVE_AHEAD_BYTES),
            size: RX_MIN_BYTES,
            small_rounds: 0,
            expected: None,
            headers: None,
            receives: Rc::default(),
        }
    }

    /// Counter of receives, which distinguishes a slow peer from a silent one.
    pub fn receives(&self) -> Rc<Cell<u64>> {
        self.receives.clone()
    }

    /// Bytes received and unread.
    pub fn available(&self) -> usize {
        self.data_bytes
    }

    /// The first `len` bytes, gathered into `scratch` if they span segments; `None` when fewer have
    /// arrived.
    #[inline]
    pub fn peek<'a>(&'a self, len: usize, scratch: &'a mut [u8]) -> Option<&'a [u8]> {
        if self.data_bytes < len {
            return None;
        }
        let first = self.data.front()?;
        if first.len() >= len {
            return Some(&first[..len]);
        }
        let mut at = 0;
        for segment in &self.data {
            let part = segment.len().min(len - at);
            scratch[at..at + part].copy_from_slice(&segment[..part]);
            at += part;
            if at == len {
                break;
            }
        }
        Some(&scratch[..len])
    }

    /// The first segment.
    #[inline]
    pub fn front(&self) -> &[u8] {
        self.data.front().map_or(&[], |segment| segment)
    }

    /// Everything received and unread, gathered into `scratch` if it spans segments.
    pub fn unread<'a>(&'a self, scratch: &'a mut Vec<u8>) -> &'a [u8] {
        if self.data.len() <= 1 {
            return self.front();
        }
        scratch.clear();
        for segment in &self.data {
            scratch.extend_from_slice(segment);
        }
        scratch
    }

    /// Consumes the first `len` bytes.
    ///
    /// # Panics
    /// When fewer have arrived.
    #[inline]
    pub fn skip(&mut self, len: usize) {
        assert!(len <= self.data_bytes, "skip beyond what has arrived");
        self.data_bytes -= len;
        let mut left = len;
        while left > 0 {
            let first = self.data.front_mut().expect("bytes are in segments");
            if first.len() > left {
                first.advance(left);
                return;
            }
            left -= first.len();
            self.data.pop_front();
        }
    }

    /// True if [`Rx::take`] would succeed for `len` bytes after skipping `before`.
    #[inline]
    pub fn can_take(&self, before: usize, len: usize, align: usize) -> bool {
        let Some(first) = self.data.front() else { return false };
        let (segment, before) = if first.len() > before {
            (first, before)
        } else {
            match self.data.get(1) {
                Some(second) if first.len() == before => (second, 0),
                _ => return false,
            }
        };
        let payload = &segment[before..];
        payload.len() >= len
            && payload.as_ptr().addr().is_multiple_of(align.max(1))
            && !segment.is_passing()
    }

    /// Takes the first `len` bytes as one buffer. They must have arrived, lie in one segment at a
    /// multiple of `align`, and be in a receive buffer that may be kept alive.
    #[inline]
    pub fn take(&mut self, len: usize, align: usize) -> Option<Buf> {
        if self.data_bytes < len {
            return None;
        }
        let first = self.data.front_mut()?;
        if first.len() < len
            || !first.as_ptr().addr().is_multiple_of(align.max(1))
            || first.is_passing()
        {
            return None;
        }
        self.data_bytes -= len;
        if first.len() == len {
            return self.data.pop_front().map(BufMut::settle);
        }
        Some(first.split_to(len).freeze())
    }

    /// True if [`Rx::take`] will succeed for `len` bytes once [`Rx::more`] has received them: the
    /// part that has arrived and the next buffer are one piece.
    pub fn will_take(&self, len: usize, align: usize) -> bool {
        let fits = |start: &BufMut| {
            start.as_ptr().addr().is_multiple_of(align.max(1)) && !start.is_passing()
        };
        match (self.data.front(), self.free.front()) {
            (None, Some(next)) => next.len() >= len && fits(next),
            (Some(first), Some(next)) if self.data.len() == 1 => {
                first.len() + next.len() >= len
                    && fits(first)
                    && first.as_ptr_range().end == next.as_ptr()
            }
            _ => false,
        }
    }

    /// Fills `place` with the next bytes of the stream: arrived bytes are copied, the rest is
    /// received directly into it.
    ///
    /// # Errors
    /// When the stream ends early. `place` is returned in either case.
    pub async fn fill(&mut self, mut place: BufMut) -> (Result<(), RxError>, BufMut) {
        let mut have = self.copy_out(&mut place);
        while have < place.len() {
            let rest = place.split_off(have);
            let (result, rest) = self.socket.recv(rest).await;
            rejoin(&mut place, rest);
            self.count_receive();
            match result {
                Ok(0) => return (Err(RxError::Closed), place),
                Ok(count) => have += count,
                Err(error) => return (Err(error.into()), place),
            }
        }
        (Ok(()), place)
    }

    /// Like [`Rx::fill`], and receives a little of the following message in the same system call:
    /// for peers that send long payloads back to back.
    pub async fn fill_ahead(&mut self, mut place: BufMut) -> (Result<(), RxError>, BufMut) {
        let mut have = self.copy_out(&mut place);
        while have < place.len() {
            let (mut next, beyond) = self.look_ahead();
            let rest = place.split_off(have);
            let missing = rest.len();
            let mut list = self.list.take().unwrap_or_default();
            list.push(rest);
            list.push(next);
            let (result, mut list) = self.socket.recv_vectored(list).await;
            let mut parts = list.drain();
            let (Some(rest), Some(back)) = (parts.next(), parts.next()) else {
                unreachable!("the list keeps its buffers");
            };
            drop(parts);
            self.list = Some(list);
            rejoin(&mut place, rest);
            next = back;
            let count = *result.as_ref().unwrap_or(&0);
            have += count.min(missing);
            if count > missing {
                let unfilled = next.split_off(count - missing);
                Self::append(&mut self.data, &mut self.data_bytes, next);
                next = unfilled;
            }
            if let Some(beyond) = beyond {
                rejoin(&mut next, beyond);
            }
            if !next.is_empty() {
                self.free.push_front(next);
            }
            self.count_receive();
            match result {
                Ok(0) => return (Err(RxError::Closed), place),
                Ok(_) => {}
                Err(error) => return (Err(error.into()), place),
            }
        }
        (Ok(()), place)
    }

    /// Buffer for a little of the following message, and the rest of its block. Buffers of a
    /// prediction are dropped: the message in hand did not fit it.
    fn look_ahead(&mut self) -> (BufMut, Option<BufMut>) {
        if self.free.len() > 1 {
            self.free.clear();
        }
        let mut next = self.free.pop_front().unwrap_or_else(|| self.plain());
        let beyond = (next.len() > LOOK_AHEAD_BYTES).then(|| next.split_off(LOOK_AHEAD_BYTES));
        (next, beyond)
    }

    /// Consumes arrived bytes into the front of `place`, and returns their number.
    pub fn copy_out(&mut self, place: &mut [u8]) -> usize {
        let want = place.len().min(self.data_bytes);
        let mut at = 0;
        while at < want {
            let segment = self.data.front().expect("bytes are in segments");
            let part = segment.len().min(want - at);
            place[at..at + part].copy_from_slice(&segment[..part]);
            self.skip(part);
            at += part;
        }
        want
    }

    /// Sets the predicted layout of the next messages; `None` disables prediction.
    pub fn expect(&mut self, shape: Option<MessageShape>) {
        if self.expected != shape {
            self.expected = shape;
            // Buffers laid out so far may be dropped: a buffer with the start of a payload has
            // already been split off. The new prediction applies from the next receive.
            self.free.clear();
        }
    }

    /// Receives at least one more byte.
    ///
    /// # Errors
    /// [`RxError::Closed`] at the end of the stream.
    pub async fn more(&mut self) -> Result<(), RxError> {
        self.lay_out();
        if self.free.len() == 1 {
            return self.more_plain().await;
        }
        let mut list = self.list.take().unwrap_or_default();
        for place in self.free.drain(..) {
            list.push(place);
        }
        let (result, mut list) = self.socket.recv_vectored(list).await;
        let mut left = *result.as_ref().unwrap_or(&0);
        for mut place in list.drain() {
            if left == 0 {
                self.free.push_back(place);
                continue;
            }
            let part = left.min(place.len());
            left -= part;
            let rest = (part < place.len()).then(|| place.split_off(part));
            Self::append(&mut self.data, &mut self.data_bytes, place);
            self.free.extend(rest);
        }
        self.list = Some(list);
        self.count_receive();
        match result? {
            0 => Err(RxError::Closed),
            _ => Ok(()),
        }
    }

    /// Like [`Rx::more`], for messages of a length that the peer chooses: once a small buffer is
    /// unread, it waits for pooled memory at the ceiling.
    pub async fn more_pooled(&mut self) -> Result<(), RxError> {
        while self.data_bytes >= RX_LEAST_BYTES && self.free.is_empty() {
            match self.pooled() {
                Some(next) => self.free.push_back(next),
                None => time::sleep(POOLED_PAUSE).await,
            }
        }
        self.more().await
    }

    /// Receives and discards `len` bytes.
    ///
    /// # Errors
    /// [`RxError::Closed`] when the stream ends early.
    pub async fn discard(&mut self, mut len: usize) -> Result<(), RxError> {
        loop {
            let part = len.min(self.data_bytes);
            self.skip(part);
            len -= part;
            if len == 0 {
                return Ok(());
            }
            self.more().await?;
        }
    }

    /// Receives and discards until the peer closes.
    pub async fn until_closed(&mut self) {
        self.skip(self.available());
        while self.more().await.is_ok() {
            self.skip(self.available());
        }
    }

    fn count_receive(&self) {
        self.receives.set(self.receives.get().wrapping_add(1));
    }

    async fn more_plain(&mut self) -> Result<(), RxError> {
        let place = self.free.pop_front().expect("laid out");
        let (result, mut place) = self.socket.recv(place).await;
        self.count_receive();
        let count = result?;
        if count == 0 {
            return Err(RxError::Closed);
        }
        let rest = place.split_off(count);
        self.adapt(count, rest.is_empty());
        Self::append(&mut self.data, &mut self.data_bytes, place);
        if rest.len() >= RX_MIN_BYTES / 2 {
            self.free.push_back(rest);
        }
        Ok(())
    }

    /// Joins a segment with the last one if adjacent, so that a payload received in two steps is
    /// contiguous.
    fn append(data: &mut VecDeque<BufMut>, data_bytes: &mut usize, segment: BufMut) {
        *data_bytes += segment.len();
        let segment = match data.back_mut() {
            Some(last) => match last.unsplit(segment) {
                Ok(()) => return,
                Err(segment) => segment,
            },
            None => segment,
        };
        data.push_back(segment);
    }

    /// Doubles the receive buffer when it is filled, and halves it after many small receives.
    fn adapt(&mut self, received: usize, filled: bool) {
        if filled || received >= self.size {
            self.size = (self.size * 2).min(RX_MAX_BYTES);
            self.small_rounds = 0;
        } else if received < self.size / 4 {
            self.small_rounds += 1;
            if self.small_rounds >= RX_SHRINK_AFTER && self.size > RX_MIN_BYTES {
                self.size /= 2;
                self.small_rounds = 0;
                self.free.clear();
            }
        } else {
            self.small_rounds = 0;
        }
    }

    fn lay_out(&mut self) {
        if let (Some(shape), true) = (self.expected, self.free.len() < 2) {
            self.lay_out_expected(shape);
        }
        if self.free.is_empty() {
            self.free.push_back(self.plain());
        }
    }

    /// Allocates a receive buffer, at the memory ceiling a small one.
    fn plain(&self) -> BufMut {
        self.pooled().unwrap_or_else(|| buf::alloc_small(RX_LEAST_BYTES))
    }

    /// Allocates a receive buffer; `None` at the memory ceiling.
    fn pooled(&self) -> Option<BufMut> {
        let ahead = self.ahead.try_alloc(self.size);
        ahead.or_else(|| self.ahead.try_alloc_passing(self.size.min(RX_PASSING_BYTES)))
    }

    /// Lays out buffers for a run of predicted messages. Only at the start of a message: the rest
    /// of a started one goes to a plain buffer.
    fn lay_out_expected(&mut self, shape: MessageShape) {
        if self.data_bytes > 0 {
            return;
        }
        self.free.clear();
        let count = (RX_EXPECTED_BYTES / shape.payload.max(1)).clamp(1, 64);
        let mut between = shape.header;
        for _ in 0..count {
            let (Some(header), Some(payload)) =
                (self.header_place(between), self.ahead.try_alloc(shape.payload))
            else {
                break;
            };
            self.free.push_back(header);
            self.free.push_back(payload);
            between = shape.digest + shape.header;
        }
        // The last digest: the next layout begins with a header.
        if shape.digest > 0 && !self.free.is_empty() {
            let last = self.header_place(shape.digest);
            self.free.extend(last);
        }
    }

    fn header_place(&mut self, len: usize) -> Option<BufMut> {
        if self.headers.as_ref().is_none_or(|block| block.len() < len) {
            self.headers = Some(self.ahead.try_alloc(RX_MIN_BYTES)?);
        }
        self.headers.as_mut().map(|block| block.split_to(len))
    }
}

impl From<RxError> for io::Error {
    fn from(error: RxError) -> io::Error {
        match error {
            RxError::Closed => io::ErrorKind::UnexpectedEof.into(),
            RxError::Io(error) => error,
        }
    }
}

/// Rejoins a buffer that was split in two.
fn rejoin(front: &mut BufMut, back: BufMut) {
    if front.unsplit(back).is_err() {
        unreachable!("the parts were cut from one buffer and are adjacent");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_runtime::net::{Address, Listener, Stream};
    use flagstone_runtime::{SendList, block_on, spawn};
    use std::net::{Ipv4Addr, SocketAddr};

    async fn pair() -> (Stream, Stream) {
        let any = Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let listener = Listener::bind(&any).unwrap();
        let client = Stream::connect(listener.address()).await.unwrap();
        (client, listener.accept().await.unwrap())
    }

    /// Stream of `count` messages: header and payload bytes equal the message number.
    fn pdus(count: usize, shape: MessageShape) -> SendList {
        let mut list = SendList::new();
        for number in 0..count {
            let bytes = vec![number as u8; shape.header + shape.payload + shape.digest];
            list.push(Buf::copy_of(&bytes).unwrap());
        }
        list
    }

    async fn read_all(rx: &mut Rx, count: usize, shape: MessageShape, align: usize) -> usize {
        let mut in_place = 0;
        for number in 0..count {
            let mut scratch = [0; 128];
            while rx.peek(shape.header, &mut scratch).is_none() {
                rx.more().await.unwrap();
            }
            let header = rx.peek(shape.header, &mut scratch).unwrap();
            assert!(header.iter().all(|byte| *byte == number as u8));
            rx.skip(shape.header);
            let payload = match rx.take(shape.payload, align) {
                Some(payload) => {
                    in_place += 1;
                    payload
                }
                None => {
                    let (result, place) = rx.fill(buf::alloc(shape.payload).await).await;
                    result.unwrap();
                    place.freeze()
                }
            };
            assert_eq!(payload.len(), shape.payload);
            assert!(payload.iter().all(|byte| *byte == number as u8), "PDU {number}");
            while rx.available() < shape.digest {
                rx.more().await.unwrap();
            }
            rx.skip(shape.digest);
        }
        in_place
    }

    #[test]
    fn payloads_intact_for_any_prediction() {
        block_on(async {
            let shapes = [(72, 4096, 4), (72, 4096, 0), (72, 512, 0), (24, 1, 0), (24, 70_000, 4)];
            for (header, payload, digest) in shapes {
                let shape = MessageShape { header, payload, digest };
                let wrong = MessageShape { header: 72, payload: 8192, digest };
                for guess in [None, Some(shape), Some(wrong)] {
                    let (client, server) = pair().await;
                    let sending = spawn(async move { client.send_all(pdus(200, shape)).await.0 });
                    let mut rx = Rx::new(server);
                    rx.expect(guess);
                    read_all(&mut rx, 200, shape, 512).await;
                    assert_eq!(rx.available(), 0);
                    sending.await.unwrap().unwrap();
                    assert!(matches!(rx.more().await, Err(RxError::Closed)));
                }
            }
        })
        .unwrap();
    }

    #[test]
    fn correct_prediction_avoids_copy() {
        block_on(async {
            for digest in [0, 4] {
                let shape = MessageShape { header: 72, payload: 4096, digest };
                let (client, server) = pair().await;
                client.send_all(pdus(16, shape)).await.0.unwrap();
                let mut rx = Rx::new(server);
                rx.expect(Some(shape));
                assert_eq!(read_all(&mut rx, 16, shape, 4096).await, 16);
            }
        })
        .unwrap();
    }

    #[test]
    fn fill_ahead_receives_back_to_back_messages() {
        block_on(async {
            let shape = MessageShape { header: 28, payload: 70_000, digest: 0 };
            let (client, server) = pair().await;
            let sending = spawn(async move { client.send_all(pdus(50, shape)).await.0 });
            let mut rx = Rx::new(server);
            let receives = rx.receives();
            for number in 0..50_u8 {
                let mut scratch = [0; 28];
                while rx.peek(shape.header, &mut scratch).is_none() {
                    rx.more().await.unwrap();
                }
                rx.skip(shape.header);
                let (result, place) = rx.fill_ahead(buf::alloc(shape.payload).await).await;
                result.unwrap();
                assert!(place.iter().all(|byte| *byte == number), "message {number}");
            }
            assert_eq!(rx.available(), 0);
            assert!(receives.get() > 0);
            sending.await.unwrap().unwrap();
            let (result, place) = rx.fill_ahead(buf::alloc(10).await).await;
            assert!(matches!(result, Err(RxError::Closed)));
            assert_eq!(place.len(), 10);
        })
        .unwrap();
    }

    #[test]
    fn receive_buffer_fits_any_layout() {
        block_on(async {
            for (guess, align, payload) in [(true, 4096, 32 << 10), (false, 1, 4 << 10)] {
                let shape = MessageShape { header: 28, payload, digest: 0 };
                let (client, server) = pair().await;
                let sending = spawn(async move { client.send_all(pdus(16, shape)).await.0 });
                let mut rx = Rx::new(server);
                rx.expect(guess.then_some(shape));
                let mut in_place = 0;
                for _ in 0..16 {
                    let mut scratch = [0; 28];
                    while rx.peek(shape.header, &mut scratch).is_none() {
                        rx.more().await.unwrap();
                    }
                    rx.skip(shape.header);
                    while rx.available() < payload && rx.will_take(payload, align) {
                        rx.more().await.unwrap();
                    }
                    match rx.take(payload, align) {
                        Some(_) => in_place += 1,
                        None => rx.discard(payload).await.unwrap(),
                    }
                }
                sending.await.unwrap().unwrap();
                assert!(in_place >= if guess { 16 } else { 8 }, "{in_place} in place");
            }
        })
        .unwrap();
    }
}

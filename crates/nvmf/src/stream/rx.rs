//! Receiving: many PDUs a system call, payloads in place.
//!
//! Bytes arrive in *segments*, in stream order. A parser looks at the front ([`Rx::peek`]), drops
//! what it has read ([`Rx::skip`]) and takes payloads out ([`Rx::take`]). A payload that lies in one
//! segment is taken without a copy; otherwise it is gathered into a buffer of its own.
//!
//! Two things keep payloads whole:
//! - the rest of a large payload is received straight into its own buffer ([`Rx::fill`]);
//! - for disks that want aligned memory, the layout of what comes next is guessed from what came
//!   last ([`Rx::expect`]): a header, a payload, a header, … each into its own place. A wrong guess
//!   costs a copy, never correctness.
//!
//! The receive buffer grows while it is filled and shrinks when traffic is small, so that an idle
//! connection holds little. What payloads keep alive of receive buffers is bounded
//! ([`RX_AHEAD_BYTES`]): beyond it, and at the ceiling of memory, payloads are copied out.
//!
//! Receiving itself never waits for memory: it is by receiving that memory comes back.

use std::collections::VecDeque;
use std::io;

use flagstone_runtime::buf::{self, Ahead};
use flagstone_runtime::net::Stream;
use flagstone_runtime::{Buf, BufMut, RecvList};

use crate::limits::{
    RX_AHEAD_BYTES, RX_EXPECTED_BYTES, RX_LEAST_BYTES, RX_MAX_BYTES, RX_MIN_BYTES,
    RX_PASSING_BYTES, RX_SHRINK_AFTER,
};

/// The shape that the next PDUs are expected to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bytes before each payload.
    pub(crate) header: usize,
    /// Bytes of each payload.
    pub(crate) payload: usize,
}

/// The receiving half of a connection.
pub(crate) struct Rx {
    stream: Stream,
    /// Received, not yet read; in stream order.
    data: VecDeque<BufMut>,
    data_bytes: usize,
    /// Where the next bytes go, in order.
    free: VecDeque<BufMut>,
    list: Option<RecvList>,
    /// Counts the buffers that are received into.
    ahead: Ahead,
    /// Size of the next plain receive buffer.
    size: usize,
    small_rounds: u32,
    expected: Option<Shape>,
    /// Headers are received into pieces of this block while a shape is expected.
    headers: Option<BufMut>,
}

/// The peer has closed, in the midst of a PDU or between two.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RxError {
    /// The end of the stream.
    #[error("the peer closed the connection")]
    Closed,
    /// The system's error.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Rx {
    pub(crate) fn new(stream: Stream) -> Rx {
        Rx {
            stream,
            data: VecDeque::with_capacity(64),
            data_bytes: 0,
            free: VecDeque::with_capacity(64),
            list: Some(RecvList::new()),
            ahead: Ahead::new(RX_AHEAD_BYTES),
            size: RX_MIN_BYTES,
            small_rounds: 0,
            expected: None,
            headers: None,
        }
    }

    /// Bytes received and not yet read.
    pub(crate) fn available(&self) -> usize {
        self.data_bytes
    }

    /// The first `len` bytes, gathered into `scratch` when they do not lie together; `None` when
    /// fewer have arrived.
    #[inline]
    pub(crate) fn peek<'a>(&'a self, len: usize, scratch: &'a mut [u8]) -> Option<&'a [u8]> {
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

    /// What has arrived and lies together at the front.
    #[inline]
    pub(crate) fn front(&self) -> &[u8] {
        self.data.front().map_or(&[], |segment| segment)
    }

    /// Drops the first `len` bytes.
    ///
    /// # Panics
    /// When fewer have arrived.
    #[inline]
    pub(crate) fn skip(&mut self, len: usize) {
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

    /// Whether `len` bytes behind the first `before` have arrived and [`Rx::take`] would give them.
    #[inline]
    pub(crate) fn can_take(&self, before: usize, len: usize, align: usize) -> bool {
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

    /// Takes the first `len` bytes as one buffer, if all of them have arrived and lie together at
    /// an address that is a multiple of `align`, in a receive buffer that may be kept alive.
    #[inline]
    pub(crate) fn take(&mut self, len: usize, align: usize) -> Option<Buf> {
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

    /// Fills `place` with the next bytes of the stream: what has arrived is copied, the rest is
    /// received straight into it.
    ///
    /// # Errors
    /// When the stream ends before; `place` comes back in either case.
    pub(crate) async fn fill(&mut self, mut place: BufMut) -> (Result<(), RxError>, BufMut) {
        let have = self.copy_out(&mut place);
        let rest = place.split_off(have);
        let (result, rest) = self.stream.recv_exact(rest).await;
        if place.unsplit(rest).is_err() {
            unreachable!("the rest was cut from this very buffer");
        }
        match result {
            Ok(()) => (Ok(()), place),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                (Err(RxError::Closed), place)
            }
            Err(error) => (Err(error.into()), place),
        }
    }

    /// Copies arrived bytes to the front of `place` and drops them here; how many.
    pub(crate) fn copy_out(&mut self, place: &mut [u8]) -> usize {
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

    /// Says what the next PDUs will look like; `None` for no guess.
    pub(crate) fn expect(&mut self, shape: Option<Shape>) {
        if self.expected != shape {
            self.expected = shape;
            // What has been laid out may go; a place that holds the start of a payload has been
            // cut off already, so the guess begins anew at the next receive.
            self.free.clear();
        }
    }

    /// Receives more, waiting for at least one byte.
    ///
    /// # Errors
    /// [`RxError::Closed`] at the end of the stream.
    pub(crate) async fn more(&mut self) -> Result<(), RxError> {
        self.lay_out();
        if self.free.len() == 1 {
            return self.more_plain().await;
        }
        let mut list = self.list.take().unwrap_or_default();
        for place in self.free.drain(..) {
            list.push(place);
        }
        let (result, mut list) = self.stream.recv_vectored(list).await;
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
        match result? {
            0 => Err(RxError::Closed),
            _ => Ok(()),
        }
    }

    /// Receives and drops until the peer closes.
    pub(crate) async fn until_closed(&mut self) {
        self.skip(self.available());
        while self.more().await.is_ok() {
            self.skip(self.available());
        }
    }

    async fn more_plain(&mut self) -> Result<(), RxError> {
        let place = self.free.pop_front().expect("laid out");
        let (result, mut place) = self.stream.recv(place).await;
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

    /// A segment that continues the last one joins it, so that a payload received in two rounds
    /// lies together.
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

    /// Grows the receive buffer while it is filled, shrinks it after many small rounds.
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

    /// A plain receive buffer, had in any case.
    fn plain(&self) -> BufMut {
        let ahead = self.ahead.try_alloc(self.size);
        ahead
            .or_else(|| self.ahead.try_alloc_passing(self.size.min(RX_PASSING_BYTES)))
            .unwrap_or_else(|| buf::alloc_small(RX_LEAST_BYTES))
    }

    /// Places for a run of PDUs of the expected shape, and a plain buffer behind them. Begins at
    /// the start of a PDU only: bytes of a PDU that has begun go to a plain buffer.
    fn lay_out_expected(&mut self, shape: Shape) {
        if self.data_bytes > 0 {
            return;
        }
        self.free.clear();
        let count = (RX_EXPECTED_BYTES / shape.payload.max(1)).clamp(1, 64);
        for _ in 0..count {
            let (Some(header), Some(payload)) =
                (self.header_place(shape.header), self.ahead.try_alloc(shape.payload))
            else {
                break;
            };
            self.free.push_back(header);
            self.free.push_back(payload);
        }
    }

    fn header_place(&mut self, len: usize) -> Option<BufMut> {
        if self.headers.as_ref().is_none_or(|block| block.len() < len) {
            self.headers = Some(self.ahead.try_alloc(RX_MIN_BYTES)?);
        }
        self.headers.as_mut().map(|block| block.split_to(len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_runtime::net::{Address, Listener};
    use flagstone_runtime::{SendList, block_on, spawn};
    use std::net::{Ipv4Addr, SocketAddr};

    async fn pair() -> (Stream, Stream) {
        let any = Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let listener = Listener::bind(&any).unwrap();
        let client = Stream::connect(listener.address()).await.unwrap();
        (client, listener.accept().await.unwrap())
    }

    /// A stream of `count` PDUs: a header of the PDU's number, then a payload of the same.
    fn pdus(count: usize, shape: Shape) -> SendList {
        let mut list = SendList::new();
        for number in 0..count {
            let bytes = vec![number as u8; shape.header + shape.payload];
            list.push(Buf::copy_of(&bytes).unwrap());
        }
        list
    }

    async fn read_all(rx: &mut Rx, count: usize, shape: Shape, align: usize) -> usize {
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
        }
        in_place
    }

    #[test]
    fn every_payload_arrives_whole_whatever_was_expected() {
        block_on(async {
            let shapes = [(72, 4096), (72, 512), (24, 1), (24, 70_000)];
            for (header, payload) in shapes {
                let shape = Shape { header, payload };
                let wrong = Shape { header: 72, payload: 8192 };
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
    fn a_right_guess_saves_the_copy() {
        block_on(async {
            let shape = Shape { header: 72, payload: 4096 };
            let (client, server) = pair().await;
            client.send_all(pdus(16, shape)).await.0.unwrap();
            let mut rx = Rx::new(server);
            rx.expect(Some(shape));
            assert_eq!(read_all(&mut rx, 16, shape, 4096).await, 16);
        })
        .unwrap();
    }
}

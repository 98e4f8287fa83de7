//! Where a connection's bytes arrive: one receive brings many messages, and payloads are handed on
//! as parts of the very block that they arrived in.
//!
//! Promises: memory follows the peer's pace (16 to 256 KiB a block); a part handed on keeps its
//! block alive, and at most [`PINNED_BLOCKS`] blocks are kept alive so.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use flagstone_runtime::net::Stream;
use flagstone_runtime::{Buf, BufMut, RecvList, buf};

use crate::limits::{
    COPIED_PAYLOAD_BYTES, LOOK_AHEAD_BYTES, PINNED_BLOCKS, STAGED_PAYLOAD_BYTES, STAGING_MAX_BYTES,
    STAGING_MIN_BYTES,
};

/// How many parts of each of the last blocks are alive.
type Pins = Rc<[Cell<u32>; PINNED_BLOCKS]>;

/// Counts one part of a block until it is dropped. Drop it when the part itself is gone.
#[derive(Debug)]
pub(crate) struct Pin {
    pins: Pins,
    block: usize,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let count = &self.pins[self.block];
        count.set(count.get() - 1);
    }
}

/// A write's data.
#[derive(Debug)]
pub(crate) struct Payload {
    pub(crate) data: Buf,
    /// Of the block that `data` is a part of; `None` when it has memory of its own.
    pub(crate) pin: Option<Pin>,
}

/// See the module.
pub(crate) struct Staging {
    /// The part of the current block that nobody else holds.
    buf: Option<BufMut>,
    /// Bytes received and not consumed: `buf[start..end]`.
    start: usize,
    end: usize,
    /// Size of the next block.
    block_bytes: usize,
    /// Parts were cut off the current block, so its front will not come back.
    cut: bool,
    /// The current block's place in `pins`; none when all places are taken.
    place: Option<usize>,
    pins: Pins,
    list: Option<RecvList>,
    /// Moves at each receive.
    progress: Rc<Cell<u64>>,
}

impl Staging {
    pub(crate) fn new() -> Staging {
        Staging {
            buf: None,
            start: 0,
            end: 0,
            block_bytes: STAGING_MIN_BYTES,
            cut: false,
            place: None,
            pins: Rc::default(),
            list: Some(RecvList::new()),
            progress: Rc::default(),
        }
    }

    /// A counter that moves at each receive, to tell a slow peer from a silent one.
    pub(crate) fn progress(&self) -> Rc<Cell<u64>> {
        self.progress.clone()
    }

    fn progressed(&self) {
        self.progress.set(self.progress.get().wrapping_add(1));
    }

    /// What was received and not consumed.
    pub(crate) fn unread(&self) -> &[u8] {
        self.buf.as_ref().map_or(&[], |buf| &buf[self.start..self.end])
    }

    pub(crate) fn consume(&mut self, count: usize) {
        debug_assert!(count <= self.end - self.start);
        self.start += count;
    }

    /// Makes room for `want` bytes more, behind what is unread and in one piece with it.
    async fn make_room(&mut self, want: usize) {
        let unread = self.end - self.start;
        let room = self.buf.as_ref().map_or(0, |buf| buf.len() - self.end);
        if let Some(buf) = &mut self.buf
            && !self.cut
            && (unread == 0 || room < want)
            && buf.len() - unread >= want
        {
            // Nobody holds the front: move back to it. What moves is part of one message.
            buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, unread);
            return;
        }
        if room >= want {
            return;
        }
        let bytes = self.block_bytes.max((unread + want).next_power_of_two());
        if unread == 0 {
            // Give the old block back first: it may be the very one that comes again.
            self.buf = None;
        }
        let mut fresh = buf::alloc(bytes).await;
        fresh[..unread].copy_from_slice(self.unread());
        self.buf = Some(fresh);
        (self.start, self.end, self.cut) = (0, unread, false);
        self.place = self.pins.iter().position(|count| count.get() == 0);
    }

    /// Receives once. Returns how many bytes came; 0 when the peer has closed.
    pub(crate) async fn receive(&mut self, stream: &Stream) -> io::Result<usize> {
        self.make_room(self.block_bytes / 4).await;
        let mut buf = self.buf.take().expect("there is room, so there is a block");
        let room = buf.split_off(self.end);
        let offered = room.len();
        let (result, room) = stream.recv(room).await;
        rejoin(&mut buf, room);
        self.buf = Some(buf);
        let count = result?;
        self.end += count;
        self.progressed();
        if count == offered && self.block_bytes < STAGING_MAX_BYTES {
            self.block_bytes *= 4;
        }
        Ok(count)
    }

    /// Cuts the first `len` unread bytes off the block, shared with nobody.
    fn cut(&mut self, len: usize) -> Buf {
        let buf = self.buf.as_mut().expect("unread bytes are in a block");
        drop(buf.split_to(self.start));
        let part = buf.split_to(len);
        self.end -= self.start + len;
        self.start = 0;
        self.cut = true;
        part.freeze()
    }

    /// The next `len` bytes of the stream in memory that is a multiple of `align`, as a part of the
    /// block if that is possible without a copy.
    pub(crate) async fn payload(
        &mut self,
        stream: &Stream,
        len: usize,
        align: usize,
    ) -> io::Result<Payload> {
        let by_reference = align <= 1 && self.place.is_some();
        if len <= if by_reference { STAGED_PAYLOAD_BYTES } else { COPIED_PAYLOAD_BYTES } {
            while self.unread().len() < len {
                self.make_room(len - self.unread().len()).await;
                if self.receive(stream).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
        if self.unread().len() >= len {
            if let Some(block) = self.place
                && self.is_aligned(align)
            {
                let count = &self.pins[block];
                count.set(count.get() + 1);
                let pin = Pin { pins: self.pins.clone(), block };
                return Ok(Payload { data: self.cut(len), pin: Some(pin) });
            }
            let mut own = buf::alloc(len).await;
            own.copy_from_slice(&self.unread()[..len]);
            self.consume(len);
            return Ok(Payload { data: own.freeze(), pin: None });
        }
        let (result, own) = self.receive_into(stream, buf::alloc(len).await).await;
        result.map(|()| Payload { data: own.freeze(), pin: None })
    }

    fn is_aligned(&self, align: usize) -> bool {
        let Some(buf) = &self.buf else { return false };
        buf[self.start..].as_ptr().addr().is_multiple_of(align.max(1))
    }

    /// Fills `own` with the next bytes of the stream: those that are here are copied, the rest is
    /// received in place, together with a little of what follows.
    pub(crate) async fn receive_into(
        &mut self,
        stream: &Stream,
        mut own: BufMut,
    ) -> (io::Result<()>, BufMut) {
        let here = self.unread().len().min(own.len());
        own[..here].copy_from_slice(&self.unread()[..here]);
        self.consume(here);
        let mut have = here;
        while have < own.len() {
            self.make_room(LOOK_AHEAD_BYTES).await;
            let mut block = self.buf.take().expect("there is room, so there is a block");
            let mut ahead = block.split_off(self.end);
            let rest = ahead.split_off(LOOK_AHEAD_BYTES);
            let mut list = self.list.take().unwrap_or_default();
            list.push(own.split_off(have));
            list.push(ahead);
            let (result, mut list) = stream.recv_vectored(list).await;
            let mut parts = list.drain();
            let (tail, ahead) = (parts.next(), parts.next());
            drop(parts);
            self.list = Some(list);
            let missing = tail.as_ref().map_or(0, |tail| tail.len());
            rejoin(&mut own, tail.expect("the list keeps its buffers"));
            rejoin(&mut block, ahead.expect("the list keeps its buffers"));
            rejoin(&mut block, rest);
            self.buf = Some(block);
            self.progressed();
            match result {
                Ok(0) => return (Err(io::ErrorKind::UnexpectedEof.into()), own),
                Ok(count) => {
                    have += count.min(missing);
                    self.end += count.saturating_sub(missing);
                }
                Err(error) => return (Err(error), own),
            }
        }
        (Ok(()), own)
    }

    /// Throws the next `len` bytes of the stream away.
    pub(crate) async fn skip(&mut self, stream: &Stream, mut len: usize) -> io::Result<()> {
        loop {
            let here = self.unread().len().min(len);
            self.consume(here);
            len -= here;
            if len == 0 {
                return Ok(());
            }
            if self.receive(stream).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// Puts a view back together that was cut in two.
fn rejoin(front: &mut BufMut, back: BufMut) {
    if front.unsplit(back).is_err() {
        unreachable!("the parts were cut from one view and are adjacent");
    }
}

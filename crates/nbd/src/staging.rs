//! Where a connection's bytes arrive: one receive brings many messages, and payloads are handed on
//! as parts of the very block that they arrived in.
//!
//! Promises: memory follows the peer's pace (16 to 256 KiB a block); a part handed on keeps its
//! block alive, at most [`STAGING_AHEAD_BYTES`] of them; receiving never waits for memory while a
//! message of less than 4 KiB is in the block, so that what is in flight goes on.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use flagstone_runtime::buf::{self, Ahead, TooLarge};
use flagstone_runtime::net::Stream;
use flagstone_runtime::{Buf, BufMut, RecvList, time};

use crate::limits::{
    COPIED_PAYLOAD_BYTES, LOOK_AHEAD_BYTES, STAGED_PAYLOAD_BYTES, STAGING_AHEAD_BYTES,
    STAGING_LEAST_BYTES, STAGING_MAX_BYTES, STAGING_MIN_BYTES, STAGING_PASSING_BYTES,
    STAGING_PAUSE,
};

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
    /// Counts the blocks.
    ahead: Ahead,
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
            ahead: Ahead::new(STAGING_AHEAD_BYTES),
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

    /// Makes room for `want` bytes more, behind what is unread and in one piece with it; false when
    /// there is no memory for it.
    fn make_room(&mut self, want: usize) -> bool {
        let unread = self.end - self.start;
        if unread == 0 && !self.may_cut() {
            // What was there for want of a better is not kept: there may be one now.
            self.buf = None;
            (self.start, self.end) = (0, 0);
        }
        let room = self.buf.as_ref().map_or(0, |buf| buf.len() - self.end);
        if let Some(buf) = &mut self.buf
            && !self.cut
            && (unread == 0 || room < want)
            && buf.len() - unread >= want
        {
            // Nobody holds the front: move back to it. What moves is part of one message.
            buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, unread);
            return true;
        }
        if room >= want {
            return true;
        }
        if unread == 0 {
            // Give the old block back first: it may be the very one that comes again.
            self.buf = None;
            (self.start, self.end) = (0, 0);
        }
        let Some(mut fresh) = self.block(unread + want) else { return false };
        fresh[..unread].copy_from_slice(self.unread());
        self.buf = Some(fresh);
        (self.start, self.end, self.cut) = (0, unread, false);
        true
    }

    /// A block of at least `least` bytes.
    fn block(&self, least: usize) -> Option<BufMut> {
        let bytes = self.block_bytes.max(least.next_power_of_two());
        let passing = bytes.min(STAGING_PASSING_BYTES).max(least.next_power_of_two());
        let ahead = self.ahead.try_alloc(bytes);
        ahead.or_else(|| self.ahead.try_alloc_passing(passing)).or_else(|| {
            (least <= STAGING_LEAST_BYTES).then(|| buf::alloc_small(STAGING_LEAST_BYTES))
        })
    }

    /// Room for one receive: much, or at least something.
    async fn some_room(&mut self) {
        while !self.make_room(self.block_bytes / 4) && !self.make_room(1) {
            // A message of more than a small block: an option, or the words of an error.
            time::sleep(STAGING_PAUSE).await;
        }
    }

    /// True while parts of the current block may be handed on.
    fn may_cut(&self) -> bool {
        self.buf.as_ref().is_some_and(|buf| !buf.is_passing())
    }

    /// Receives once. Returns how many bytes came; 0 when the peer has closed.
    pub(crate) async fn receive(&mut self, stream: &Stream) -> io::Result<usize> {
        self.some_room().await;
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
    /// block if that is possible without a copy. `None` when they were thrown away: there can never
    /// be memory for them.
    pub(crate) async fn payload(
        &mut self,
        stream: &Stream,
        len: usize,
        align: usize,
    ) -> io::Result<Option<Buf>> {
        let by_reference = align <= 1 && self.may_cut();
        if len <= if by_reference { STAGED_PAYLOAD_BYTES } else { COPIED_PAYLOAD_BYTES } {
            while self.unread().len() < len && self.make_room(len - self.unread().len()) {
                if self.receive(stream).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
        let is_here = self.unread().len() >= len;
        if is_here && self.may_cut() && self.is_aligned(align) {
            return Ok(Some(self.cut(len)));
        }
        let Ok(own) = buf::acquire(len).await.map_err(|TooLarge| ()) else {
            return self.skip(stream, len).await.map(|()| None);
        };
        let (result, own) = self.receive_into(stream, own).await;
        result.map(|()| Some(own.freeze()))
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
            // Nothing is unread here: a small block is had in any case.
            let has_room = self.make_room(LOOK_AHEAD_BYTES);
            debug_assert!(has_room, "room for as much as the smallest block");
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

//! Buffer lists for one vectored send or receive.
//!
//! A list owns its buffers and the kernel's view of them: `iovec`s and a `msghdr` on the heap, at
//! stable addresses. It is reused from one operation to the next, so it allocates nothing in the
//! steady state.

use crate::buf::{Buf, BufMut};
use crate::driver::kernel_tls::RecordTypeMessage;
use crate::limits::MAX_SEGMENTS;

/// Kernel view of a list.
struct Message {
    iovecs: Vec<libc::iovec>,
    header: libc::msghdr,
    control: Option<RecordTypeMessage>,
}

impl Message {
    fn new() -> Box<Message> {
        // SAFETY: `msghdr` is plain data for which all zeroes is a valid (empty) value.
        let header = unsafe { std::mem::zeroed() };
        Box::new(Message { iovecs: Vec::with_capacity(64), header, control: None })
    }

    fn point(&mut self) -> *mut libc::msghdr {
        self.header.msg_iov = self.iovecs.as_mut_ptr();
        self.header.msg_iovlen = self.iovecs.len() as _;
        if let Some(control) = &mut self.control {
            self.header.msg_control = std::ptr::from_mut(control).cast();
            self.header.msg_controllen = size_of::<RecordTypeMessage>() as _;
        }
        &raw mut self.header
    }
}

/// Buffers to send, in order.
pub struct SendList {
    bufs: Vec<Buf>,
    /// Buffers before this index have been sent and are empty.
    head: usize,
    bytes: usize,
    message: Box<Message>,
}

impl Default for SendList {
    fn default() -> SendList {
        SendList::new()
    }
}

impl SendList {
    /// An empty list.
    pub fn new() -> SendList {
        SendList { bufs: Vec::with_capacity(64), head: 0, bytes: 0, message: Message::new() }
    }

    /// The list, for a record of this type through the kernel's TLS.
    pub(crate) fn with_tls_record_type(mut self, record_type: u8) -> SendList {
        self.message.control = Some(RecordTypeMessage::new(record_type));
        self
    }

    /// Appends a buffer; empty ones are dropped.
    pub fn push(&mut self, buf: Buf) {
        if !buf.is_empty() {
            self.bytes += buf.len();
            self.bufs.push(buf);
        }
    }

    /// Bytes still to send.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Buffers still to send.
    pub fn segments(&self) -> usize {
        self.bufs.len() - self.head
    }

    /// True when nothing is left to send.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Removes all buffers.
    pub fn clear(&mut self) {
        self.bufs.clear();
        self.head = 0;
        self.bytes = 0;
    }

    /// Moves the first bytes, at most `max`, to the end of `out`. Nothing may have been sent.
    pub fn move_front(&mut self, max: usize, out: &mut SendList) {
        debug_assert_eq!(self.head, 0, "a list that is being sent stays whole");
        let mut left = max.min(self.bytes);
        self.bytes -= left;
        let whole = self.bufs.iter().take_while(|buf| match left.checked_sub(buf.len()) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        });
        let whole = whole.count();
        self.bufs.drain(..whole).for_each(|buf| out.push(buf));
        if left > 0 {
            out.push(self.bufs[0].slice(0..left));
            self.bufs[0].advance(left);
        }
    }

    /// The buffers still to send.
    pub(crate) fn pending(&self) -> &[Buf] {
        &self.bufs[self.head..]
    }

    /// Removes the first `count` bytes, which were sent.
    pub fn advance(&mut self, mut count: usize) {
        assert!(count <= self.bytes, "advance beyond the list");
        self.bytes -= count;
        if self.bytes == 0 {
            return self.clear();
        }
        while count > 0 {
            let first = &mut self.bufs[self.head];
            let part = count.min(first.len());
            first.advance(part);
            count -= part;
            if first.is_empty() {
                self.head += 1;
            }
        }
    }

    /// Points the kernel view at the first [`MAX_SEGMENTS`] buffers. The pointer is valid until the
    /// list is changed or dropped.
    pub(crate) fn message(&mut self) -> *mut libc::msghdr {
        let message = &mut *self.message;
        message.iovecs.clear();
        for buf in self.bufs[self.head..].iter().take(MAX_SEGMENTS) {
            let base = buf.as_ptr().cast_mut().cast();
            message.iovecs.push(libc::iovec { iov_base: base, iov_len: buf.len() });
        }
        message.point()
    }
}

/// Buffers to receive into, in order.
pub struct RecvList {
    bufs: Vec<BufMut>,
    message: Box<Message>,
}

impl Default for RecvList {
    fn default() -> RecvList {
        RecvList::new()
    }
}

impl RecvList {
    /// An empty list.
    pub fn new() -> RecvList {
        RecvList { bufs: Vec::with_capacity(16), message: Message::new() }
    }

    /// Appends a buffer.
    ///
    /// # Panics
    /// If there are more than [`MAX_SEGMENTS`] buffers.
    pub fn push(&mut self, buf: BufMut) {
        assert!(self.bufs.len() < MAX_SEGMENTS, "too many segments");
        self.bufs.push(buf);
    }

    /// Total length of the buffers, in bytes.
    pub fn bytes(&self) -> usize {
        self.bufs.iter().map(|buf| buf.len()).sum()
    }

    /// Takes all buffers out, in order.
    pub fn drain(&mut self) -> impl Iterator<Item = BufMut> + '_ {
        self.bufs.drain(..)
    }

    pub(crate) fn bufs_mut(&mut self) -> &mut [BufMut] {
        &mut self.bufs
    }

    pub(crate) fn message(&mut self) -> *mut libc::msghdr {
        let message = &mut *self.message;
        message.iovecs.clear();
        for buf in &mut self.bufs {
            let base = buf.as_mut_ptr().cast();
            message.iovecs.push(libc::iovec { iov_base: base, iov_len: buf.len() });
        }
        message.point()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn front_of_send_list_moves_in_order() {
        let bytes: Vec<u8> = (0..=255).collect();
        for max in [1, 99, 100, 101, 200, 255, 256, 1000] {
            let (mut list, mut out) = (SendList::new(), SendList::new());
            for part in bytes.chunks(100) {
                list.push(Buf::copy_of(part).unwrap());
            }
            list.move_front(max, &mut out);
            let moved = max.min(256);
            assert_eq!((out.bytes(), list.bytes()), (moved, 256 - moved));
            let content = |list: &SendList| list.bufs.iter().flat_map(|buf| buf.to_vec()).collect();
            let (front, back): (Vec<u8>, Vec<u8>) = (content(&out), content(&list));
            assert_eq!([front, back].concat(), bytes, "{max}");
        }
    }
}

//! Gather list: headers and payloads of the next send, in order.

use flagstone_runtime::{Buf, BufMut, SendList, buf};

use crate::limits::HEADER_BLOCK_BYTES;

/// Headers and payloads of the next send. Consecutive headers form one segment; payloads are not
/// copied.
#[derive(Default)]
pub(crate) struct Gather {
    list: SendList,
    /// Block into which headers are written consecutively.
    headers: Option<BufMut>,
    /// Bytes at the start of `headers` not yet in the list.
    run: usize,
}

impl Gather {
    /// Appends a header of at most `max` bytes. `write` fills it and returns its length, which is
    /// returned.
    ///
    /// Headers are allocated beyond the memory ceiling, because the messages that wait to be sent
    /// may hold all pooled memory.
    ///
    /// # Panics
    /// When `write` finds the header too long.
    #[inline]
    pub(crate) fn header(
        &mut self,
        max: usize,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> usize {
        if self.headers.as_ref().is_none_or(|block| block.len() - self.run < max) {
            self.close_run();
            self.headers = Some(buf::alloc_small(HEADER_BLOCK_BYTES));
        }
        let block = self.headers.as_mut().expect("made above");
        let place = &mut block[self.run..self.run + max];
        let len = write(place).expect("room for the longest header");
        self.run += len;
        len
    }

    #[inline]
    pub(crate) fn payload(&mut self, payload: Buf) {
        self.close_run();
        self.list.push(payload);
    }

    /// True when nothing is gathered.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.run == 0 && self.list.is_empty()
    }

    /// Moves what was gathered, at most the first `max` bytes, into the empty list `out`.
    #[inline]
    pub(crate) fn take_into(&mut self, out: &mut SendList, max: usize) {
        debug_assert!(out.is_empty(), "the list would be gathered into");
        self.close_run();
        if self.list.bytes() > max {
            self.list.move_front(max, out);
        } else {
            std::mem::swap(out, &mut self.list);
        }
    }

    /// Drops everything gathered.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.headers = None;
        self.run = 0;
    }

    /// Appends the headers written so far to the list.
    #[inline]
    fn close_run(&mut self) {
        if self.run > 0
            && let Some(block) = &mut self.headers
        {
            self.list.push(block.split_to(self.run).freeze());
            self.run = 0;
        }
    }
}

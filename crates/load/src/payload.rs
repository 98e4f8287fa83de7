//! Payload of plain writes: slices of one block of random bytes, filled once.

use flagstone_runtime::{Buf, buf};

use flagstone_runtime::rng::Rng;

/// Alignment of slices, so that they can go to a disk without a copy.
const ALIGN: usize = 4096;

/// Incompressible data of a core.
pub(crate) struct Payload {
    bytes: Buf,
    next: usize,
}

impl Payload {
    /// `bytes` random bytes; `None` at the limit of pooled memory.
    pub(crate) fn new(seed: u64, bytes: usize) -> Option<Payload> {
        let mut buf = buf::try_alloc(bytes)?;
        Rng::new(seed).fill(&mut buf);
        Some(Payload { bytes: buf.freeze(), next: 0 })
    }

    /// The next `len` bytes, at most the total.
    #[inline]
    pub(crate) fn next(&mut self, len: usize) -> Buf {
        if self.next + len > self.bytes.len() {
            self.next = 0;
        }
        let at = self.next;
        self.next += len.next_multiple_of(ALIGN);
        self.bytes.slice(at..at + len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_slices_are_aligned_and_differ() {
        let mut payload = Payload::new(1, 16384).unwrap();
        let slices: Vec<Buf> = (0..5).map(|_| payload.next(4000)).collect();
        assert!(slices.iter().all(|slice| slice.len() == 4000 && slice.is_aligned(4096)));
        assert_ne!(slices[0][..], slices[1][..]);
        assert_eq!(slices[0][..], slices[4][..]);
        assert_eq!(payload.next(16384).len(), 16384);
    }
}

//! Memory from the system, one block at a time, and back to it at once.
//!
//! Promises: a block that was given back is not resident any more, so what the pool counts is what
//! the process holds; no heap in between keeps or scatters it. (From a C library's heap a page
//! that is aligned to itself takes two, and what is freed between others stays.)
//!
//! Blocks from 64 KiB on are mappings of their own. Smaller ones are cut from slabs of 1 MiB, one
//! size a slab, so that their number is not bounded by that of mappings (`vm.max_map_count`); a
//! free one costs address space only.
//!
//! Nothing here is in the steady state of the data path: the pool keeps idle blocks.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::limits::{BUF_MAPPED_BYTES, BUF_MIN_BYTES, BUF_SLAB_BYTES};

/// Sizes that are cut from slabs: 4 to 32 KiB.
const SLAB_SIZES: usize = (BUF_MAPPED_BYTES / BUF_MIN_BYTES).trailing_zeros() as usize;

/// Words of a slab's map of free blocks: 256 of the smallest.
const MAP_WORDS: usize = BUF_SLAB_BYTES / BUF_MIN_BYTES / u64::BITS as usize;

/// A block of `bytes`, a power of two from 4 KiB, which is its alignment up to 64 KiB and at least
/// 4 KiB beyond; all zeroes. `None` when the system has no more.
pub(super) fn give(bytes: usize) -> Option<NonNull<u8>> {
    if bytes >= BUF_MAPPED_BYTES { map(bytes) } else { slabs().cut(bytes) }
}

/// Gives a block back to the system.
///
/// # Safety
/// It came from [`give`] with the same `bytes`, is given back once, and nothing refers to it.
pub(super) unsafe fn take_back(block: NonNull<u8>, bytes: usize) {
    if bytes >= BUF_MAPPED_BYTES {
        // SAFETY: a mapping of its own, as the caller says.
        unsafe { unmap(block, bytes) };
        return;
    }
    // The pages go, the address stays. It fails for locked memory only, which is resident anyway;
    // what is in it then is of an earlier use, as users of blocks must expect.
    // SAFETY: `bytes` from `block` are a block of a slab that nobody uses.
    let _ = unsafe { madvise(block.as_ptr().cast(), bytes, Advice::LinuxDontNeed) };
    slabs().put_back(block.as_ptr().addr(), bytes);
}

fn map(bytes: usize) -> Option<NonNull<u8>> {
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is used.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, prot, flags) };
    NonNull::new(base.ok()?.cast())
}

/// # Safety
/// `bytes` from `base` are mapped, whole pages, and nothing refers to them.
unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
    // SAFETY: as the caller says.
    let unmapped = unsafe { munmap(base.as_ptr().cast::<c_void>(), bytes) };
    debug_assert_eq!(unmapped, Ok(()), "whole pages can be unmapped");
}

/// The slabs of one size, by address.
type Slabs = BTreeMap<usize, Slab>;

/// One of them.
struct Slab {
    base: NonNull<u8>,
    /// A bit is set for each block that is free.
    free: [u64; MAP_WORDS],
    free_blocks: usize,
}

// SAFETY: `base` owns the slab's address space, no thread's own; the table is behind a lock.
unsafe impl Send for Slab {}

/// The slabs of all sizes.
struct Table {
    sizes: [Slabs; SLAB_SIZES],
    /// Of each size, a slab that may have a free block.
    hints: [usize; SLAB_SIZES],
}

static TABLE: Mutex<Table> =
    Mutex::new(Table { sizes: [const { BTreeMap::new() }; SLAB_SIZES], hints: [0; SLAB_SIZES] });

fn slabs() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn size_index(bytes: usize) -> usize {
    (bytes / BUF_MIN_BYTES).trailing_zeros() as usize
}

impl Table {
    fn cut(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let index = size_index(bytes);
        let slabs = &mut self.sizes[index];
        let hinted = slabs.get(&self.hints[index]).is_some_and(|slab| slab.free_blocks > 0);
        if !hinted {
            let with_room = slabs.iter().find(|(_, slab)| slab.free_blocks > 0);
            self.hints[index] = match with_room {
                Some((address, _)) => *address,
                None => {
                    let slab = Slab::new(bytes)?;
                    let address = slab.base.as_ptr().addr();
                    slabs.insert(address, slab);
                    address
                }
            };
        }
        slabs.get_mut(&self.hints[index])?.cut(bytes)
    }

    fn put_back(&mut self, address: usize, bytes: usize) {
        let index = size_index(bytes);
        let base = address & !(BUF_SLAB_BYTES - 1);
        let slab = self.sizes[index].get_mut(&base).expect("blocks come from slabs");
        slab.put_back((address - base) / bytes);
        if slab.free_blocks == BUF_SLAB_BYTES / bytes && self.hints[index] != base {
            self.sizes[index].remove(&base);
        }
    }
}

impl Slab {
    /// An address that is a multiple of the size tells the slab of a block.
    fn new(bytes: usize) -> Option<Slab> {
        let wide = map(2 * BUF_SLAB_BYTES)?;
        let before = wide.as_ptr().addr().next_multiple_of(BUF_SLAB_BYTES) - wide.as_ptr().addr();
        let after = BUF_SLAB_BYTES - before;
        // SAFETY: `before` is within the mapping, and `before + BUF_SLAB_BYTES` at most its end.
        let (base, end) = unsafe { (wide.add(before), wide.add(before + BUF_SLAB_BYTES)) };
        for (part, length) in [(wide, before), (end, after)] {
            if length > 0 {
                // SAFETY: parts of the mapping beside the slab, in whole pages, that nobody knows.
                unsafe { unmap(part, length) };
            }
        }
        // One huge page would make all of a slab resident for one block. A kernel without huge
        // pages refuses, and needs no advice.
        // SAFETY: the slab's own mapping.
        let _ = unsafe { madvise(base.as_ptr().cast(), BUF_SLAB_BYTES, Advice::LinuxNoHugepage) };
        let blocks = BUF_SLAB_BYTES / bytes;
        let mut free = [0; MAP_WORDS];
        for block in 0..blocks {
            free[block / 64] |= 1 << (block % 64);
        }
        Some(Slab { base, free, free_blocks: blocks })
    }

    fn cut(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let word = self.free.iter().position(|word| *word != 0)?;
        let bit = self.free[word].trailing_zeros() as usize;
        self.free[word] &= !(1 << bit);
        self.free_blocks -= 1;
        // SAFETY: the map has a bit for each whole block of the slab, so this one lies within.
        Some(unsafe { self.base.add((word * 64 + bit) * bytes) })
    }

    fn put_back(&mut self, block: usize) {
        let (word, bit) = (block / 64, 1 << (block % 64));
        assert_eq!(self.free[word] & bit, 0, "a block comes back once");
        self.free[word] |= bit;
        self.free_blocks += 1;
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: a slab goes when all its blocks are free; the table itself is never dropped.
        unsafe { unmap(self.base, BUF_SLAB_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_zero_aligned_and_apart() {
        for bytes in [4 << 10, 8 << 10, 32 << 10, 64 << 10, 1 << 20] {
            let blocks: Vec<_> =
                (0..600.min((64 << 20) / bytes)).map(|_| give(bytes).expect("memory")).collect();
            for (number, block) in blocks.iter().enumerate() {
                assert!(block.as_ptr().addr().is_multiple_of(4096));
                // SAFETY: a block of `bytes` that only this test knows.
                let content = unsafe { std::slice::from_raw_parts_mut(block.as_ptr(), bytes) };
                assert!(content.iter().all(|byte| *byte == 0), "{bytes}: {number}");
                content.fill(number as u8 | 1);
            }
            let mut starts: Vec<_> = blocks.iter().map(|block| block.as_ptr().addr()).collect();
            starts.sort_unstable();
            assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= bytes));
            for block in blocks {
                // SAFETY: given above, given back once.
                unsafe { take_back(block, bytes) };
            }
            let again = give(bytes).expect("memory");
            // SAFETY: as above.
            let content = unsafe { std::slice::from_raw_parts(again.as_ptr(), bytes) };
            assert!(content.iter().all(|byte| *byte == 0), "what was given back is gone");
            // SAFETY: as above.
            unsafe { take_back(again, bytes) };
        }
    }

    #[test]
    fn what_comes_back_is_not_resident() {
        fn is_resident(block: &NonNull<u8>) -> bool {
            let mut page = 0u8;
            // SAFETY: no memory of the block is touched, and `page` is one byte.
            let result = unsafe { libc::mincore(block.as_ptr().cast(), 4096, &raw mut page) };
            // It fails where nothing is mapped: a slab of few blocks of this test that has gone.
            result == 0 && page & 1 == 1
        }
        const COUNT: usize = 16 << 10;
        let blocks: Vec<_> = (0..COUNT).map(|_| give(4096).expect("memory")).collect();
        for block in &blocks {
            // SAFETY: a block that only this test knows.
            unsafe { block.as_ptr().write(1) };
        }
        assert!(blocks.iter().all(is_resident));
        // All but one in 64 go, so that no slab does.
        for (number, block) in blocks.iter().enumerate() {
            if number % 64 != 0 {
                // SAFETY: given above, given back once.
                unsafe { take_back(*block, 4096) };
            }
        }
        // Some may be in use again by now: other tests run beside this one.
        let left = blocks.iter().filter(|block| is_resident(block)).count();
        assert!(left < COUNT / 2, "{left} of {COUNT}");
        for block in blocks.iter().step_by(64) {
            // SAFETY: as above.
            unsafe { take_back(*block, 4096) };
        }
    }
}

//! Block allocator: takes memory from the system one block at a time, and returns it at once.
//!
//! Invariant: a freed block is not resident, so the pool's count equals the memory that the process
//! holds. There is no heap in between that could keep or fragment it. (In the heap of a C library,
//! a page that is aligned to its size takes two pages, and memory freed between blocks in use
//! stays.)
//!
//! Blocks of 64 KiB and more are separate mappings. Smaller ones are cut from slabs of 1 MiB, one
//! size per slab, so that the number of mappings (`vm.max_map_count`) does not bound the number of
//! blocks. A free block of a slab costs address space only.
//!
//! The steady state of the data path does not come here, because the pool keeps idle blocks.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::limits::{BUF_MAPPED_BYTES, BUF_MIN_BYTES, BUF_SLAB_BYTES};

/// Block sizes cut from slabs: 4 to 32 KiB.
const SLAB_SIZES: usize = (BUF_MAPPED_BYTES / BUF_MIN_BYTES).trailing_zeros() as usize;

/// Words of the free map of a slab: 256 of the smallest blocks.
const MAP_WORDS: usize = BUF_SLAB_BYTES / BUF_MIN_BYTES / u64::BITS as usize;

/// A zeroed block of `bytes`, a power of two from 4 KiB up. Its alignment is its size, up to 64
/// KiB, and at least 4 KiB beyond. `None` if the system has no more memory.
pub(super) fn give(bytes: usize) -> Option<NonNull<u8>> {
    if bytes >= BUF_MAPPED_BYTES { map(bytes) } else { TABLE.lock().cut(bytes) }
}

/// Returns a block to the system.
///
/// # Safety
/// The block came from [`give`] with the same `bytes`, is returned once, and is not referenced any
/// more.
pub(super) unsafe fn take_back(block: NonNull<u8>, bytes: usize) {
    if bytes >= BUF_MAPPED_BYTES {
        // SAFETY: a separate mapping, by the contract of this function.
        unsafe { unmap(block, bytes) };
        return;
    }
    // Releases the pages and keeps the address space. This fails only for locked memory, which is
    // resident anyway; the block then keeps old content, which users of blocks must expect. SAFETY:
    // `bytes` from `block` are an unused block of a slab.
    let _ = unsafe { madvise(block.as_ptr().cast(), bytes, Advice::LinuxDontNeed) };
    TABLE.lock().put_back(block.as_ptr().addr(), bytes);
}

fn map(bytes: usize) -> Option<NonNull<u8>> {
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address chosen by the kernel touches no memory in use.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, prot, flags) };
    NonNull::new(base.ok()?.cast())
}

/// # Safety
/// `bytes` from `base` are mapped, whole pages, and not referenced.
unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
    // SAFETY: by the contract of this function.
    let unmapped = unsafe { munmap(base.as_ptr().cast::<c_void>(), bytes) };
    debug_assert_eq!(unmapped, Ok(()), "whole pages can be unmapped");
}

/// The slabs of one size, by address.
type Slabs = BTreeMap<usize, Slab>;

struct Slab {
    base: NonNull<u8>,
    /// One bit per block, set if the block is free.
    free: [u64; MAP_WORDS],
    free_blocks: usize,
}

// SAFETY: `base` owns the address space of the slab, which belongs to no thread; the table is
// behind a lock.
unsafe impl Send for Slab {}

/// The slabs of all sizes.
struct Table {
    sizes: [Slabs; SLAB_SIZES],
    /// Per size, a slab that may have a free block.
    hints: [usize; SLAB_SIZES],
}

static TABLE: Mutex<Table> =
    Mutex::new(Table { sizes: [const { BTreeMap::new() }; SLAB_SIZES], hints: [0; SLAB_SIZES] });

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
    /// Slabs are aligned to their size, so the address of a block identifies its slab.
    fn new(bytes: usize) -> Option<Slab> {
        let wide = map(2 * BUF_SLAB_BYTES)?;
        let before = wide.as_ptr().addr().next_multiple_of(BUF_SLAB_BYTES) - wide.as_ptr().addr();
        let after = BUF_SLAB_BYTES - before;
        // SAFETY: `before` is within the mapping, and `before + BUF_SLAB_BYTES` at most its end.
        let (base, end) = unsafe { (wide.add(before), wide.add(before + BUF_SLAB_BYTES)) };
        for (part, length) in [(wide, before), (end, after)] {
            if length > 0 {
                // SAFETY: whole pages of the mapping outside of the slab, which are not referenced.
                unsafe { unmap(part, length) };
            }
        }
        // A huge page would make the whole slab resident for a single block. A kernel without huge
        // pages refuses the advice, and does not need it. SAFETY: the mapping of the slab itself.
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
        // SAFETY: a slab is unmapped when all its blocks are free; the table itself is never
        // dropped.
        unsafe { unmap(self.base, BUF_SLAB_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_zeroed_aligned_and_disjoint() {
        for bytes in [4 << 10, 8 << 10, 32 << 10, 64 << 10, 1 << 20] {
            let blocks: Vec<_> =
                (0..600.min((64 << 20) / bytes)).map(|_| give(bytes).expect("memory")).collect();
            for (number, block) in blocks.iter().enumerate() {
                assert!(block.as_ptr().addr().is_multiple_of(4096));
                // SAFETY: a block of `bytes` that only this test uses.
                let content = unsafe { std::slice::from_raw_parts_mut(block.as_ptr(), bytes) };
                assert!(content.iter().all(|byte| *byte == 0), "{bytes}: {number}");
                content.fill(number as u8 | 1);
            }
            let mut starts: Vec<_> = blocks.iter().map(|block| block.as_ptr().addr()).collect();
            starts.sort_unstable();
            assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= bytes));
            for block in blocks {
                // SAFETY: taken above, returned once.
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
    fn freed_block_is_not_resident() {
        fn is_resident(block: &NonNull<u8>) -> bool {
            let mut page = 0u8;
            // SAFETY: no memory of the block is touched, and `page` is one byte.
            let result = unsafe { libc::mincore(block.as_ptr().cast(), 4096, &raw mut page) };
            // It fails if the address is not mapped: a slab with few blocks of this test was
            // unmapped.
            result == 0 && page & 1 == 1
        }
        const COUNT: usize = 16 << 10;
        let blocks: Vec<_> = (0..COUNT).map(|_| give(4096).expect("memory")).collect();
        for block in &blocks {
            // SAFETY: a block that only this test uses.
            unsafe { block.as_ptr().write(1) };
        }
        assert!(blocks.iter().all(is_resident));
        // Free all but one block in 64, so that no slab is unmapped.
        for (number, block) in blocks.iter().enumerate() {
            if number % 64 != 0 {
                // SAFETY: taken above, returned once.
                unsafe { take_back(*block, 4096) };
            }
        }
        // Other tests run concurrently, so some may be in use again.
        let left = blocks.iter().filter(|block| is_resident(block)).count();
        assert!(left < COUNT / 2, "{left} of {COUNT}");
        for block in blocks.iter().step_by(64) {
            // SAFETY: as above.
            unsafe { take_back(*block, 4096) };
        }
    }
}

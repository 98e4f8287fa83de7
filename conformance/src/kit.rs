//! Helpers of the checks: patterned data, and calls with checked results.

use flagstone_runtime::{BufMut, buf};

use super::Options;
use flagstone_blockdev::{Geometry, SharedDevice, ZeroFlags};
use flagstone_runtime::rng::{Rng, mix64};

/// A device under test.
pub(super) struct Kit<'a> {
    pub(super) device: SharedDevice,
    pub(super) geometry: Geometry,
    pub(super) options: &'a Options,
    pub(super) rng: Rng,
    stamps: u64,
}

impl Kit<'_> {
    pub(super) fn new(device: SharedDevice, options: &Options) -> Kit<'_> {
        let geometry = device.geometry();
        assert!(geometry.blocks() >= 64, "the suite needs a device of 64 blocks at least");
        Kit { device, geometry, options, rng: Rng::new(options.seed), stamps: options.seed << 32 }
    }

    pub(super) fn block(&self) -> u64 {
        u64::from(self.geometry.block_bytes)
    }

    /// A new stamp, different from all earlier ones.
    pub(super) fn stamp(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }

    /// Longest transfer that the device and the options permit, in bytes.
    pub(super) fn longest(&self) -> u64 {
        let most = (self.options.max_transfer_bytes as u64).min(self.geometry.size_bytes);
        most / self.block() * self.block()
    }

    pub(super) async fn write(&self, offset: u64, len: u64, stamp: u64) {
        let data = patterned(offset, len, stamp).await.freeze();
        let result = self.device.write(offset, data, false).await;
        assert_eq!(result, Ok(()), "write of {len} B at {offset}");
    }

    pub(super) async fn read(&self, offset: u64, len: u64) -> BufMut {
        let mut buf = buf::alloc(len as usize).await;
        // A filler that no pattern contains, so that bytes which the device did not fill are
        // noticed.
        buf.fill(0xDB);
        let known = self.device.try_read_cached(offset, len as usize);
        match self.device.read(offset, buf).await {
            Ok(buf) => {
                assert_eq!(buf.len() as u64, len, "a read gives the caller's buffer back");
                if let Some(known) = known {
                    assert!(known[..] == buf[..], "what is known at {offset} is what is read");
                }
                buf
            }
            Err(error) => panic!("read of {len} B at {offset}: {error}"),
        }
    }

    /// Reads a range and compares it with the pattern that `write` with the same stamp wrote.
    pub(super) async fn verify(&self, offset: u64, len: u64, stamp: u64) {
        self.compare(offset, &self.read(offset, len).await, stamp);
    }

    pub(super) fn compare(&self, offset: u64, data: &[u8], stamp: u64) {
        if let Some(at) = mismatch(offset, data, stamp) {
            let seed = self.options.seed;
            panic!("other data at byte {at}: not what was written, stamp {stamp:#x}, seed {seed}");
        }
    }

    /// Runs `change` on the middle of a patterned range, and checks that the blocks around it are
    /// unchanged. Returns the content of the middle afterwards.
    pub(super) async fn around(
        &mut self,
        offset: u64,
        len: u64,
        change: impl AsyncFnOnce(&Self, u64),
    ) -> BufMut {
        let (block, stamp) = (self.block(), self.stamp());
        self.write(offset - block, block, stamp).await;
        self.write(offset + len, block, stamp).await;
        self.write(offset, len, stamp).await;
        change(self, stamp).await;
        self.verify(offset - block, block, stamp).await;
        self.verify(offset + len, block, stamp).await;
        self.read(offset, len).await
    }
}

/// Fills memory with the pattern of `stamp`: each word differs from the word of any other offset or
/// stamp.
pub(super) fn fill(offset: u64, data: &mut [u8], stamp: u64) {
    for (word, at) in data.chunks_exact_mut(8).zip((offset..).step_by(8)) {
        word.copy_from_slice(&word_at(at, stamp));
    }
}

pub(super) async fn patterned(offset: u64, len: u64, stamp: u64) -> BufMut {
    let mut buf = buf::alloc(len as usize).await;
    fill(offset, &mut buf, stamp);
    buf
}

/// Device offset of the first byte that does not match the pattern of `stamp`.
pub(super) fn mismatch(offset: u64, data: &[u8], stamp: u64) -> Option<u64> {
    let mut words = data.chunks_exact(8).zip((offset..).step_by(8));
    words.find(|(word, at)| *word != word_at(*at, stamp)).map(|(_, at)| at)
}

pub(super) fn is_zero(data: &[u8]) -> bool {
    data.iter().all(|byte| *byte == 0)
}

/// One of the 8 combinations of flags.
pub(super) fn zero_flags(bits: u64) -> ZeroFlags {
    let [fua, may_deallocate, fast_only] = [1, 2, 4].map(|bit| bits & bit != 0);
    ZeroFlags { fua, may_deallocate, fast_only }
}

fn word_at(offset: u64, stamp: u64) -> [u8; 8] {
    mix64(offset ^ mix64(stamp)).to_le_bytes()
}

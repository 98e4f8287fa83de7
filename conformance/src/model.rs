//! Model check: a device behaves like an array of bytes.

use flagstone_runtime::buf;

use super::kit::{Kit, fill, is_zero, zero_flags};
use flagstone_blockdev::{IoError, ZeroFlags};

pub(super) async fn random_calls_match_model(kit: &mut Kit<'_>) {
    let size = kit.geometry.size_bytes;
    let bytes = kit.options.model_bytes.min(size) / kit.block() * kit.block();
    // Once at the start of the device, once at its end.
    for base in [0, size - bytes] {
        let model = vec![0; bytes as usize];
        let whole = ZeroFlags::default();
        assert_eq!(kit.device.write_zeroes(base, bytes, whole).await, Ok(()));
        let mut run = Run { kit, base, model };
        for step in 0..run.kit.options.model_steps {
            run.step(step).await;
        }
        run.compare(base, bytes).await;
    }
}

/// The device from `base` on, and its expected content.
struct Run<'a, 'b> {
    kit: &'a mut Kit<'b>,
    base: u64,
    model: Vec<u8>,
}

impl Run<'_, '_> {
    async fn step(&mut self, step: usize) {
        let (offset, len) = self.range();
        match self.kit.rng.below(100) {
            0..40 => self.write(offset, len).await,
            40..75 => self.compare(offset, len).await,
            75..85 => self.zero(offset, len).await,
            85..93 => self.discard(offset, len).await,
            _ => assert_eq!(self.kit.device.flush().await, Ok(()), "step {step}"),
        }
    }

    /// A random range: mostly short, sometimes as long as the model.
    fn range(&mut self) -> (u64, u64) {
        let block = self.kit.block();
        let blocks = (self.model.len() as u64).min(self.kit.longest()) / block;
        let rng = &mut self.kit.rng;
        let most = if rng.below(4) == 0 { blocks } else { blocks.min(16) };
        let len = 1 + rng.below(most);
        let start = rng.below(self.model.len() as u64 / block - len + 1);
        (self.base + start * block, len * block)
    }

    fn part(&mut self, offset: u64, len: u64) -> &mut [u8] {
        let start = (offset - self.base) as usize;
        &mut self.model[start..start + len as usize]
    }

    async fn write(&mut self, offset: u64, len: u64) {
        let stamp = self.kit.stamp();
        let shift = [0, 0, 0, 8, 13][self.kit.rng.below(5) as usize];
        let fua = self.kit.rng.below(10) == 0;
        let mut data = buf::alloc(shift + len as usize).await.split_off(shift);
        fill(offset, &mut data, stamp);
        self.part(offset, len).copy_from_slice(&data);
        assert_eq!(self.kit.device.write(offset, data.freeze(), fua).await, Ok(()));
    }

    async fn compare(&mut self, offset: u64, len: u64) {
        let seed = self.kit.options.seed;
        // The model may be larger than the longest transfer.
        let longest = self.kit.longest();
        for at in (offset..offset + len).step_by(longest as usize) {
            let len = longest.min(offset + len - at);
            let read = self.kit.read(at, len).await;
            let expected = self.part(at, len);
            let wrong = read.iter().zip(expected).position(|(got, expected)| *got != *expected);
            let wrong = wrong.map(|index| at + index as u64);
            assert_eq!(wrong, None, "the device and the model differ at this byte, seed {seed}");
        }
    }

    async fn zero(&mut self, offset: u64, len: u64) {
        let flags = zero_flags(self.kit.rng.below(8));
        match self.kit.device.write_zeroes(offset, len, flags).await {
            Ok(()) => self.part(offset, len).fill(0),
            Err(IoError::Unsupported) if flags.fast_only => self.learn(offset, len).await,
            Err(error) => panic!("zeroes of {len} B at {offset} with {flags:?}: {error}"),
        }
    }

    async fn discard(&mut self, offset: u64, len: u64) {
        assert_eq!(self.kit.device.discard(offset, len).await, Ok(()));
        self.learn(offset, len).await;
    }

    /// Adopts the content of a range of the device, each block of which must be zero or unchanged.
    async fn learn(&mut self, offset: u64, len: u64) {
        let block = self.kit.block() as usize;
        let longest = self.kit.longest();
        for at in (offset..offset + len).step_by(longest as usize) {
            let len = longest.min(offset + len - at);
            let read = self.kit.read(at, len).await;
            let known = self.part(at, len);
            for (got, known) in read.chunks(block).zip(known.chunks_mut(block)) {
                assert!(is_zero(got) || got == known, "a block is neither zeroes nor what it was");
                known.copy_from_slice(got);
            }
        }
    }
}

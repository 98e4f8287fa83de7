//! Zeroing of a range: by the file system or disk if supported, otherwise by writing zeroes.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use flagstone_runtime::buf;
use flagstone_runtime::fs::PunchMode;

use super::Inner;
use super::failures::FailedCall;
use crate::limits::{PUNCH_BYTES, ZERO_PIECE_BYTES};
use crate::pieces::pieces;
use crate::{IoError, ZeroFlags};

impl Inner {
    pub(super) async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
    ) -> Result<(), IoError> {
        if !self.zero_fast(offset, len, flags).await? {
            if flags.fast_only {
                return Err(IoError::Unsupported);
            }
            self.zero_slow(offset, len).await?;
        }
        if flags.fua { self.flush().await } else { Ok(()) }
    }

    /// False if neither the file system nor the disk supports it.
    async fn zero_fast(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<bool, IoError> {
        if flags.may_deallocate && self.punch(offset, len, PunchMode::Deallocate).await? {
            return Ok(true);
        }
        // To zero a range of a disk and keep it allocated, the kernel silently writes zeroes itself
        // if the disk has no command for it.
        if flags.fast_only && self.file.info().block_device {
            return Ok(false);
        }
        self.punch(offset, len, PunchMode::Zero).await
    }

    /// Deallocates or zeroes. Returns false, and remembers it, if this is unsupported.
    pub(super) async fn punch(
        &self,
        offset: u64,
        len: u64,
        mode: PunchMode,
    ) -> Result<bool, IoError> {
        let unable = self.unable(mode);
        if unable.load(Ordering::Relaxed) {
            return Ok(false);
        }
        for piece in pieces(offset, len, PUNCH_BYTES) {
            match self.file.punch(piece.offset, piece.len, mode).await {
                Ok(()) => {}
                Err(error) if is_unsupported(&error) => {
                    unable.store(true, Ordering::Relaxed);
                    return Ok(false);
                }
                Err(error) => {
                    let call = FailedCall::Zero { offset: piece.offset, len: piece.len };
                    return Err(self.failures.failed(call, &error));
                }
            }
        }
        Ok(true)
    }

    fn unable(&self, mode: PunchMode) -> &AtomicBool {
        match mode {
            PunchMode::Deallocate => &self.no_deallocate,
            PunchMode::Zero => &self.no_zero,
        }
    }

    async fn zero_slow(&self, offset: u64, len: u64) -> Result<(), IoError> {
        for piece in pieces(offset, len, ZERO_PIECE_BYTES) {
            self.write_aligned(piece.offset, buf::zeroes(piece.len as usize), false).await?;
        }
        Ok(())
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
        || IoError::from_os(error, true) == IoError::Unsupported
}

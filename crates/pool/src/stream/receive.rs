//! Receive: applies the frames of a stream to a volume, in order and without a gap. After an
//! interruption, another stream of the same snapshot and base continues: what the volume has may be
//! left out, or comes again and is skipped.

use std::sync::Arc;

use flagstone_blockdev::{BlockDevice, IoError, ZeroFlags};
use flagstone_runtime::buf;

use super::frame::{Frame, FrameBody, StreamStart};
use crate::id::PoolId;
use crate::manage::volume::PoolVolume;
use crate::ondisk::FormatError;

/// Why a frame was not applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// It is no frame.
    #[error("the stream cannot be used: {0}")]
    Format(#[from] FormatError),
    /// It is of another stream.
    #[error("the stream has a frame of another stream")]
    Foreign,
    /// Frames are missing, or are there twice.
    #[error("the stream has a frame for {found}, where one for {expected} was expected")]
    Gap {
        /// Offset of the frame.
        found: u64,
        /// Offset after the frame before.
        expected: u64,
    },
    /// It goes beyond the end, or ends before it.
    #[error("the stream has frames up to {end} of {size_bytes} bytes")]
    End {
        /// Where the frames end.
        end: u64,
        /// Size of the volume.
        size_bytes: u64,
    },
    /// It refers to a base, and the stream has none.
    #[error("the stream refers to a base, and has none")]
    Base,
    /// The volume cannot be written.
    #[error("the volume cannot be written: {0}")]
    Io(#[from] IoError),
}

/// A volume that is being received.
pub struct Receiver {
    device: Arc<PoolVolume>,
    /// Of the snapshot that is received.
    pub snapshot: PoolId,
    /// The beginning of the stream.
    pub start: StreamStart,
    at: u64,
    /// Offset up to which the volume has the snapshot.
    had: u64,
    /// Bytes of data since the last flush.
    unflushed: u64,
    ended: bool,
}

impl Receiver {
    /// A receiver after the first frame. The volume has the content of the base, or is empty.
    pub fn new(device: Arc<PoolVolume>, snapshot: PoolId, start: StreamStart) -> Receiver {
        Receiver { device, snapshot, start, at: 0, had: 0, unflushed: 0, ended: false }
    }

    /// Same, but the volume has the snapshot up to an offset already.
    pub fn resumed(self, had: u64) -> Receiver {
        Receiver { had: had.min(self.start.size_bytes), ..self }
    }

    /// Offset from which on frames are needed.
    pub fn position(&self) -> u64 {
        self.at.max(self.had)
    }

    /// Bytes of data that were applied since the last flush.
    pub fn unflushed_bytes(&self) -> u64 {
        self.unflushed
    }

    /// Makes durable what was applied; returns its end.
    ///
    /// # Errors
    /// Of the devices.
    pub async fn flush(&mut self) -> Result<u64, IoError> {
        self.device.flush().await?;
        self.unflushed = 0;
        Ok(self.position())
    }

    /// True after the last frame.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Applies the next frame.
    ///
    /// # Errors
    /// [`ReceiveError`]; the receive cannot continue.
    pub async fn apply(&mut self, frame: &Frame<'_>) -> Result<(), ReceiveError> {
        let (size_bytes, end) = (self.start.size_bytes, frame.offset + frame.covered_bytes());
        if frame.snapshot != self.snapshot || matches!(frame.body, FrameBody::Begin(_)) {
            return Err(ReceiveError::Foreign);
        }
        let is_next = frame.offset == self.at || (self.at..=self.had).contains(&frame.offset);
        if !is_next || self.ended {
            return Err(ReceiveError::Gap { found: frame.offset, expected: self.position() });
        }
        if end > size_bytes || frame.body == FrameBody::End && end < size_bytes {
            return Err(ReceiveError::End { end, size_bytes });
        }
        if matches!(frame.body, FrameBody::Same(_)) && self.start.base.is_none() {
            return Err(ReceiveError::Base);
        }
        if frame.body != FrameBody::End && end <= self.had {
            self.at = end;
            return Ok(());
        }
        match &frame.body {
            FrameBody::Data(data) => {
                self.unflushed += data.len() as u64;
                let mut memory = buf::acquire_more(data.len()).await;
                memory.copy_from_slice(data);
                self.device.write(frame.offset, memory.freeze(), false).await?;
            }
            FrameBody::Zero(len) => {
                let flags = ZeroFlags { may_deallocate: true, ..ZeroFlags::default() };
                self.device.write_zeroes(frame.offset, *len, flags).await?;
            }
            FrameBody::Same(_) | FrameBody::Begin(_) => {}
            FrameBody::End => {
                self.device.flush().await?;
                self.ended = true;
            }
        }
        self.at = end;
        Ok(())
    }
}

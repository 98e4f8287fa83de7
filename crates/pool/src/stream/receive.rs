//! Receive: applies the frames of a stream to a volume, in order and without a gap.

use std::sync::Arc;

use flagstone_blockdev::{BlockDevice, IoError, ZeroFlags};
use flagstone_runtime::buf;

use super::frame::{FrameBody, StreamFrame, StreamStart};
use crate::id::PoolId;
use crate::manage::volume::{PoolVolume, VolumeInfo};
use crate::ondisk::FormatError;

/// Reason why a frame was not applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// The bytes are not a frame.
    #[error("the stream cannot be used: {0}")]
    Format(#[from] FormatError),
    /// The frame belongs to another stream.
    #[error("the stream has a frame of another stream")]
    Foreign,
    /// Frames are missing or repeated.
    #[error("the stream has a frame for {found}, where one for {expected} was expected")]
    Gap {
        /// Offset of the frame.
        found: u64,
        /// End of the previous frame.
        expected: u64,
    },
    /// The frames do not end at the end of the volume.
    #[error("the stream has frames up to {end} of {size_bytes} bytes")]
    End {
        /// End of the frames.
        end: u64,
        /// Size of the volume.
        size_bytes: u64,
    },
    /// The frame refers to a base, but the stream has none.
    #[error("the stream refers to a base, and has none")]
    Base,
    /// Writing to the volume failed.
    #[error("the volume cannot be written: {0}")]
    Io(#[from] IoError),
}

/// A volume that is being received.
pub struct VolumeReceiver {
    device: Arc<PoolVolume>,
    /// Identifier of the received snapshot.
    pub snapshot: PoolId,
    /// First frame of the stream.
    pub start: StreamStart,
    /// Offset from which the volume read as zeroes when the receive began.
    empty_from: u64,
    at: u64,
    ended: bool,
}

impl VolumeReceiver {
    /// A receiver after the first frame. The volume has the content of the base, and reads as
    /// zeroes from `empty_from` on, where frames of zeroes need no writes, however long they are.
    pub fn new(
        device: Arc<PoolVolume>,
        snapshot: PoolId,
        start: StreamStart,
        empty_from: u64,
    ) -> VolumeReceiver {
        VolumeReceiver { device, snapshot, start, empty_from, at: 0, ended: false }
    }

    /// Properties of the volume; `None` after its deletion.
    pub fn volume(&self) -> Option<VolumeInfo> {
        self.device.info()
    }

    /// Offset of the next frame.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// True after the last frame.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Applies the next frame.
    ///
    /// # Errors
    /// [`ReceiveError`], after which the receive cannot continue.
    pub async fn apply(&mut self, frame: &StreamFrame<'_>) -> Result<(), ReceiveError> {
        let (size_bytes, end) = (self.start.size_bytes, frame.offset + frame.covered_bytes());
        if frame.snapshot != self.snapshot || matches!(frame.body, FrameBody::Begin(_)) {
            return Err(ReceiveError::Foreign);
        }
        if frame.offset != self.at || self.ended {
            return Err(ReceiveError::Gap { found: frame.offset, expected: self.at });
        }
        if end > size_bytes || frame.body == FrameBody::End && end < size_bytes {
            return Err(ReceiveError::End { end, size_bytes });
        }
        match &frame.body {
            FrameBody::Data(data) => {
                let mut memory = buf::acquire_more(data.len()).await;
                memory.copy_from_slice(data);
                self.device.write(self.at, memory.freeze(), false).await?;
            }
            FrameBody::Zero(_) if self.at >= self.empty_from => {}
            FrameBody::Zero(_) => {
                let flags = ZeroFlags { may_deallocate: true, ..ZeroFlags::default() };
                let len = end.min(self.empty_from) - self.at;
                self.device.write_zeroes(self.at, len, flags).await?;
            }
            FrameBody::Same(_) if self.start.base.is_none() => return Err(ReceiveError::Base),
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

//! Receive: applies the frames of a stream to a volume, in order and without a gap.
//!
//! An interrupted receive continues with another stream of the same snapshot and base: frames of
//! what the volume has may be missing, or come again and are skipped. The position is a property of
//! the volume. Its record follows the data in the log, so after a crash the volume has everything
//! before the recorded position.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use flagstone_blockdev::{BlockDevice, IoError, ZeroFlags};
use flagstone_runtime::buf;

use super::frame::{FrameBody, StreamFrame, StreamStart};
use crate::error::VolumeError;
use crate::id::PoolId;
use crate::manage::pool::Pool;
use crate::manage::volume::{PoolVolume, VolumeInfo};
use crate::ondisk::FormatError;

/// Property of a volume that is being received: a [`Received`].
pub const RECEIVED_KEY: &str = "received";

/// Stream of which a volume has a part, and the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Source of the stream, see [`StreamFrame::source`].
    pub source: u64,
    /// Base of the stream; `None` for a full stream.
    pub base: Option<PoolId>,
    /// Offset up to which the volume has the snapshot, in bytes. At 0, it may lack even the content
    /// of the base.
    pub end: u64,
}

impl fmt::Display for Received {
    /// Always of the same length, so that recording a position does not fail because the properties
    /// became too long.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base = self.base.unwrap_or_default();
        write!(f, "{:016x} {base} {:016x}", self.source, self.end)
    }
}

impl FromStr for Received {
    type Err = FormatError;

    /// # Errors
    /// [`FormatError`] for any text that was not made from one.
    fn from_str(text: &str) -> Result<Received, FormatError> {
        let bad = || FormatError::Field("received");
        let parts: Vec<&str> = text.split(' ').collect();
        let [source, base, end] = parts[..] else { return Err(bad()) };
        let number = |text| u64::from_str_radix(text, 16).map_err(|_| bad());
        let base = base.parse::<PoolId>().map_err(|_| bad())?;
        let base = Some(base).filter(|base| *base != PoolId::default());
        let received = Received { source: number(source)?, base, end: number(end)? };
        match received.to_string() == text {
            true => Ok(received),
            false => Err(bad()),
        }
    }
}

/// Reason why a frame was not applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// The bytes are not a frame.
    #[error("the stream cannot be used: {0}")]
    Format(#[from] FormatError),
    /// The frame belongs to another stream.
    #[error("the stream has a frame of another stream")]
    Foreign,
    /// Frames are missing or repeated, beyond what the volume has.
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
    /// Source of the stream, see [`StreamFrame::source`].
    pub source: u64,
    /// First frame of the stream.
    pub start: StreamStart,
    /// Offset from which the volume read as zeroes when the receive began.
    empty_from: u64,
    /// End of the last frame.
    at: u64,
    /// Offset up to which the volume had the snapshot when the stream began.
    had: u64,
    /// Bytes of data since the position was recorded.
    unrecorded: u64,
    ended: bool,
}

impl VolumeReceiver {
    /// A receiver after the first frame. The volume has the content of the base, and reads as
    /// zeroes from `empty_from` on, where frames of zeroes need no writes, however long they are.
    pub fn new(
        device: Arc<PoolVolume>,
        snapshot: PoolId,
        source: u64,
        start: StreamStart,
        empty_from: u64,
    ) -> VolumeReceiver {
        let (at, had, unrecorded, ended) = (0, 0, 0, false);
        VolumeReceiver { device, snapshot, source, start, empty_from, at, had, unrecorded, ended }
    }

    /// The same receiver for a volume that has the snapshot up to an offset, in bytes.
    pub fn resumed(self, had: u64) -> VolumeReceiver {
        VolumeReceiver { had: had.min(self.start.size_bytes), ..self }
    }

    /// Properties of the volume; `None` after its deletion.
    pub fn volume(&self) -> Option<VolumeInfo> {
        self.device.info()
    }

    /// Offset up to which the volume has the snapshot, in bytes. The next frame begins there or, in
    /// a stream that continues, earlier.
    pub fn position(&self) -> u64 {
        self.at.max(self.had)
    }

    /// Bytes of data that were applied since the position was recorded.
    pub fn unrecorded_bytes(&self) -> u64 {
        self.unrecorded
    }

    /// True after the last frame.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Records the position durably. Nothing is recorded of a deleted volume.
    ///
    /// # Errors
    /// [`VolumeError`] in a full pool, and for errors of the devices.
    pub async fn record(&mut self, pool: &Pool) -> Result<(), VolumeError> {
        let Some(mut info) = self.volume() else { return Ok(()) };
        let VolumeReceiver { source, start: StreamStart { base, .. }, .. } = self;
        let received = Received { source: *source, base: *base, end: self.position() };
        info.properties.insert(RECEIVED_KEY.to_owned(), received.to_string());
        pool.set_volume(&info.name, info.thick, info.properties).await?;
        self.unrecorded = 0;
        Ok(())
    }

    /// Applies the next frame.
    ///
    /// # Errors
    /// [`ReceiveError`]. The volume has what it had before.
    pub async fn apply(&mut self, frame: &StreamFrame<'_>) -> Result<(), ReceiveError> {
        let (at, size_bytes) = (frame.offset, self.start.size_bytes);
        let end = at + frame.covered_bytes();
        let is_own = frame.snapshot == self.snapshot && frame.source == self.source;
        if !is_own || matches!(frame.body, FrameBody::Begin(_)) {
            return Err(ReceiveError::Foreign);
        }
        if at != self.at && !(self.at..=self.had).contains(&at) || self.ended {
            return Err(ReceiveError::Gap { found: at, expected: self.position() });
        }
        if end > size_bytes || frame.body == FrameBody::End && end < size_bytes {
            return Err(ReceiveError::End { end, size_bytes });
        }
        if matches!(frame.body, FrameBody::Same(_)) && self.start.base.is_none() {
            return Err(ReceiveError::Base);
        }
        if end > self.had || frame.body == FrameBody::End {
            self.write(frame, end).await?;
        }
        self.at = end;
        Ok(())
    }

    async fn write(&mut self, frame: &StreamFrame<'_>, end: u64) -> Result<(), ReceiveError> {
        match &frame.body {
            FrameBody::Data(data) => {
                let mut memory = buf::acquire_more(data.len()).await;
                memory.copy_from_slice(data);
                self.device.write(frame.offset, memory.freeze(), false).await?;
                self.unrecorded += data.len() as u64;
            }
            FrameBody::Zero(_) if frame.offset >= self.empty_from => {}
            FrameBody::Zero(_) => {
                let flags = ZeroFlags { may_deallocate: true, ..ZeroFlags::default() };
                let len = end.min(self.empty_from) - frame.offset;
                self.device.write_zeroes(frame.offset, len, flags).await?;
            }
            FrameBody::Same(_) | FrameBody::Begin(_) => {}
            FrameBody::End => {
                self.device.flush().await?;
                self.ended = true;
            }
        }
        Ok(())
    }
}

//! Send: parts of the stream of a snapshot. Making a part needs no state of earlier parts, so a
//! stream can continue after a failure of either side.

use flagstone_blockdev::{BlockDevice, IoError};
use flagstone_runtime::buf;

use super::frame::{FrameBody, PAYLOAD_BYTES_MAX, StreamFrame, StreamStart};
use crate::error::VolumeError;
use crate::id::PoolId;
use crate::manage::pool::Pool;
use crate::manage::snapshot::{Diff, SnapshotInfo};
use crate::manage::volume::PoolVolume;

/// Size after which a part ends, in bytes. A part exceeds it by at most one frame.
const PART_BYTES: usize = 2 << 20;

/// Steps after which a part ends even with little data.
const PART_STEPS: usize = 1024;

/// A part of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamPart {
    /// Whole frames.
    pub bytes: Vec<u8>,
    /// Offset of the next part, in bytes of the volume; `None` after the last frame.
    pub next: Option<u64>,
}

struct Sender<'a> {
    device: &'a PoolVolume,
    snapshot: PoolId,
    source: u64,
    size: u64,
    out: Vec<u8>,
    steps: usize,
}

impl Sender<'_> {
    fn frame(&mut self, offset: u64, body: FrameBody<'_>) {
        self.steps += 1;
        let Sender { snapshot, source, .. } = *self;
        StreamFrame { snapshot, source, offset, body }.encode(&mut self.out);
    }

    fn is_full(&self) -> bool {
        self.out.len() >= PART_BYTES || self.steps >= PART_STEPS
    }

    /// Sends a range, with holes as holes; returns the offset where it stopped.
    async fn range(&mut self, mut at: u64, end: u64) -> Result<u64, IoError> {
        while at < end && !self.is_full() {
            for extent in self.device.allocated(at, end - at).await? {
                if self.is_full() {
                    break;
                }
                if extent.is_hole {
                    self.frame(at, FrameBody::Zero(extent.len));
                    at += extent.len;
                    continue;
                }
                let until = at + extent.len;
                while at < until && !self.is_full() {
                    let len = (until - at).min(PAYLOAD_BYTES_MAX as u64);
                    let read = self.device.read(at, buf::acquire_more(len as usize).await).await?;
                    self.frame(at, FrameBody::Data(&read));
                    at += len;
                }
                if at < until {
                    break;
                }
            }
        }
        Ok(at)
    }

    fn same(&mut self, at: u64, end: u64) {
        if at < end {
            self.frame(at, FrameBody::Same(end - at));
        }
    }
}

impl Pool {
    fn find_snapshot(&self, name: &str) -> Result<SnapshotInfo, VolumeError> {
        let found = self.snapshots().into_iter().find(|snapshot| snapshot.name == name);
        found.ok_or_else(|| VolumeError::UnknownSnapshot {
            pool: self.status().name,
            name: name.to_owned(),
        })
    }

    /// Source of a stream: the first half is of the pool and the base, the second of the snapshot.
    /// Numbers are never reused, so a snapshot that was deleted and taken again under its name has
    /// another source, and a receiver refuses to mix both.
    fn source_of(&self, snapshot: &str, base: Option<&str>) -> Result<u64, VolumeError> {
        let pool = u32::from_le_bytes(self.status().id.0[..4].try_into().expect("4 bytes"));
        let state = self.shared().state.lock();
        let number = |name: &str| match state.volume_table.snapshot_by_name(name) {
            Some(found) => Ok(found.id),
            None => Err(VolumeError::UnknownSnapshot {
                pool: self.shared().name.clone(),
                name: name.to_owned(),
            }),
        };
        let base = base.map_or(Ok(0), number)?;
        Ok(u64::from(pool ^ base) | u64::from(number(snapshot)?) << 32)
    }

    /// Part of the stream of a snapshot `volume@snapshot`, from an offset on; with `base`, of the
    /// differences from that snapshot. `offset` is 0, or [`StreamPart::next`] of the previous part.
    ///
    /// # Errors
    /// [`VolumeError`] for unknown snapshots, an impossible offset, and errors of the devices.
    pub async fn send_part(
        &self,
        snapshot: &str,
        base: Option<&str>,
        offset: u64,
    ) -> Result<StreamPart, VolumeError> {
        let source = self.source_of(snapshot, base)?;
        let info = self.find_snapshot(snapshot)?;
        let base_id = match base {
            Some(base) => Some(self.find_snapshot(base)?.id),
            None => None,
        };
        let size = info.size_bytes;
        if offset > size || !offset.is_multiple_of(crate::limits::BLOCK_BYTES as u64) {
            return Err(VolumeError::Field("offset"));
        }
        let device = self.open_snapshot(snapshot)?;
        let (out, steps) = (Vec::with_capacity(PART_BYTES + PAYLOAD_BYTES_MAX), 0);
        let mut sender = Sender { device: &device, snapshot: info.id, source, size, out, steps };
        if offset == 0 {
            let (_, name) = snapshot.split_once('@').expect("it was found by this name");
            sender.frame(
                0,
                FrameBody::Begin(StreamStart {
                    name: name.to_owned(),
                    base: base_id,
                    size_bytes: size,
                    created_s: info.created_s,
                }),
            );
        }
        let mut at = offset;
        while at < size && !sender.is_full() {
            at = match base {
                None => sender.range(at, size).await?,
                Some(base) => {
                    let diff = self.diff(base, snapshot, at).await?;
                    self.send_diff(&mut sender, at, diff).await?
                }
            };
        }
        if at == size {
            sender.frame(at, FrameBody::End);
        }
        // The names were looked up several times: they must have meant the same snapshots.
        if self.source_of(snapshot, base)? != source {
            return Err(VolumeError::UnknownSnapshot {
                pool: self.status().name,
                name: base.unwrap_or(snapshot).to_owned(),
            });
        }
        Ok(StreamPart { bytes: sender.out, next: (at < size).then_some(at) })
    }

    async fn send_diff(
        &self,
        sender: &mut Sender<'_>,
        mut at: u64,
        diff: Diff,
    ) -> Result<u64, IoError> {
        let size = sender.size;
        for range in diff.ranges {
            let (start, end) = (range.start.clamp(at, size), range.end.min(size));
            if sender.is_full() {
                return Ok(at);
            }
            sender.same(at, start);
            at = start;
            if at < end {
                at = sender.range(at, end).await?;
                if at < end {
                    return Ok(at);
                }
            }
        }
        let until = diff.next.unwrap_or(size).min(size);
        if at < until && !sender.is_full() {
            sender.same(at, until);
            at = until;
        }
        Ok(at)
    }
}

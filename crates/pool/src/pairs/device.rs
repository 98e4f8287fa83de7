//! Pair device: the two legs of a device as one, for everything except superblocks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use flagstone_blockdev::{
    BlockDevice, Geometry, IoError, IoFuture, NullDevice, ReopenableDevice, ZeroFlags,
};
use flagstone_runtime::{Buf, BufMut, buf, spawn};

use super::leg::LegDevice;
use super::{LegStatus, Pairs};
use crate::limits::BLOCK_BYTES;
use crate::ondisk::legs::{LEGS, LegRecord};
use crate::storage::NamedDevice;

/// Bytes after which reads use the other leg.
const READ_STRIPE: u64 = 1 << 20;

/// Device of a pool with redundancy.
#[derive(Debug)]
pub(crate) struct PairDevice {
    pub(super) pairs: Arc<Pairs>,
    pub(super) index: usize,
}

/// Stands for a leg that is not attached: every call fails.
pub(super) fn absent(record: &LegRecord, geometry: Geometry) -> NamedDevice {
    closed(format!("(missing: {})", record.id), geometry)
}

/// Device of which every call fails.
pub(super) fn closed(name: String, geometry: Geometry) -> NamedDevice {
    let size_bytes = geometry.size_bytes;
    let device = NullDevice::new(size_bytes, geometry.block_bytes).expect("a possible device");
    let device = ReopenableDevice::new(Arc::new(device));
    device.close();
    NamedDevice { name, device }
}

impl Pairs {
    /// Reads from a leg in sync; a single block from the other one if it fails. Of a longer read,
    /// the caller reads each block: the failed read took its memory, and more may be held by those
    /// who wait for the caller.
    ///
    /// # Errors
    /// Of the leg; [`IoError::ReadFault`] if blocks may be read from the other one.
    async fn read(&self, index: usize, offset: u64, buf: BufMut) -> Result<BufMut, IoError> {
        let (len, pair) = (buf.len(), &self.pairs[index]);
        let mut legs = self.in_sync(index);
        if self.are_equal.load(Ordering::Relaxed) && offset / READ_STRIPE % 2 == 1 {
            legs.reverse();
        }
        let (mut buf, mut first) = (Some(buf), None);
        for leg in legs {
            let Some(own) = pair.sync_device(leg) else { continue };
            let memory = match buf.take() {
                Some(buf) => buf,
                None if len > BLOCK_BYTES => {
                    self.failed_reads.fetch_add(1, Ordering::Relaxed);
                    return Err(IoError::ReadFault);
                }
                None => buf::alloc_small(len),
            };
            match pair.limited(leg, &own, own.read(offset, memory)).await {
                Ok(read) => {
                    if let Some(error) = first {
                        self.failed_reads.fetch_add(1, Ordering::Relaxed);
                        if error == IoError::ReadFault {
                            self.note_fault(index, offset, len);
                        }
                    }
                    return Ok(read);
                }
                Err(error) => {
                    let device = own.name();
                    tracing::warn!(device, offset, len, %error, "read failed");
                    if error == IoError::Unreachable && pair.status()[leg] == LegStatus::InSync {
                        // Later reads would wait as long. The next change waits until the failure
                        // is recorded.
                        let _last = pair.fail(leg, &own, error);
                    }
                    first = first.or(Some(error));
                }
            }
        }
        Err(first.unwrap_or(IoError::Unreachable))
    }

    async fn write(
        self: &Arc<Self>,
        index: usize,
        offset: u64,
        data: Buf,
        fua: bool,
    ) -> Result<(), IoError> {
        let pair = &self.pairs[index];
        let range = offset..offset + data.len() as u64;
        let (in_progress, written) = pair.begin_write(range).await;
        let call = |own: Arc<LegDevice>| {
            let data = data.clone();
            async move { own.write(offset, data, fua).await }
        };
        let results = written.call(pair, call).await;
        drop(in_progress);
        pair.judge(&written.devices, results)?;
        self.record_failures(index).await
    }

    async fn flush(self: &Arc<Self>, index: usize) -> Result<(), IoError> {
        let pair = &self.pairs[index];
        let written = pair.written();
        let results = written.call(pair, |own: Arc<LegDevice>| own.flush()).await;
        pair.judge(&written.devices, results)?;
        self.record_failures(index).await
    }

    /// Waits until a failed leg of this device is recorded as missing.
    async fn record_failures(self: &Arc<Self>, index: usize) -> Result<(), IoError> {
        let status = self.pairs[index].status();
        match (0..LEGS).any(|leg| status[leg] == LegStatus::Failed) {
            true => {
                // The caller may be dropped, but not the update.
                let pairs = self.clone();
                let settled = spawn(async move { pairs.settle().await.map(drop) });
                settled.await.unwrap_or(Err(IoError::Unreachable))
            }
            false => Ok(()),
        }
    }
}

impl BlockDevice for PairDevice {
    fn geometry(&self) -> Geometry {
        self.pairs.pairs[self.index].geometry
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        let (pairs, index) = (self.pairs.clone(), self.index);
        let check = self.geometry().check_transfer(offset, buf.len());
        IoFuture::checked(check, || {
            IoFuture::later(async move { pairs.read(index, offset, buf).await })
        })
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let (pairs, index) = (self.pairs.clone(), self.index);
        let check = self.geometry().check_transfer(offset, data.len());
        IoFuture::checked(check, || {
            IoFuture::later(async move { pairs.write(index, offset, data, fua).await })
        })
    }

    fn flush(&self) -> IoFuture<()> {
        let (pairs, index) = (self.pairs.clone(), self.index);
        IoFuture::later(async move { pairs.flush(index).await })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        IoFuture::ready(self.geometry().check(offset, len))
    }

    fn write_zeroes(&self, _offset: u64, _len: u64, _flags: ZeroFlags) -> IoFuture<()> {
        IoFuture::ready(Err(IoError::Unsupported))
    }
}

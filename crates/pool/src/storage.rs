//! Storage: the devices of a pool, addressed by blocks of the pool, and their superblocks.

use std::sync::Arc;

use flagstone_blockdev::window::run_all;
use flagstone_blockdev::{IoError, IoFuture, SharedDevice};
use flagstone_runtime::{Buf, BufMut, buf};

use crate::limits::BLOCK_BYTES;
use crate::log::device::LogDevice;
use crate::ondisk::Block;
use crate::ondisk::layout::Layout;
use crate::ondisk::superblock::{COPIES, LOG_INDEX, LogStart, Superblock, copy_offset};

/// A device and the name under which messages mention it.
#[derive(Clone, Debug)]
pub struct NamedDevice {
    /// Path, or another name that the operator knows.
    pub name: String,
    /// The device.
    pub device: SharedDevice,
}

/// Devices in the order of the device table, and the log device.
#[derive(Debug)]
pub(crate) struct Storage {
    pub(crate) devices: Vec<NamedDevice>,
    pub(crate) layout: Layout,
    pub(crate) log: Option<Arc<LogDevice>>,
}

/// Reads a block of a device.
pub(crate) async fn read_block(device: &SharedDevice, offset: u64) -> Result<Block, IoError> {
    let read = device.read(offset, buf::alloc_small(BLOCK_BYTES)).await?;
    let mut block = [0; BLOCK_BYTES];
    block.copy_from_slice(&read);
    Ok(block)
}

/// Writes a block of a device, durably.
pub(crate) async fn write_block(
    device: &SharedDevice,
    offset: u64,
    block: &Block,
) -> Result<(), IoError> {
    let mut memory = buf::alloc_small(BLOCK_BYTES);
    memory.copy_from_slice(block);
    device.write(offset, memory.freeze(), true).await
}

impl Storage {
    /// The device from which a block is read.
    pub(crate) fn device_of(&self, block: u64) -> &NamedDevice {
        match &self.log {
            Some(log) if log.held(block).is_some() => &log.named,
            _ => &self.devices[self.layout.place(block).device],
        }
    }

    /// Reads blocks that lie in one segment, from the log device while it has them.
    pub(crate) fn read(&self, block: u64, buf: BufMut) -> IoFuture<BufMut> {
        let place = self.layout.place(block);
        let device = &self.devices[place.device].device;
        let held = self.log.as_ref().and_then(|log| Some((log, log.held(block)?)));
        let Some((log, held)) = held else { return device.read(place.offset, buf) };
        let (log, device) = (log.clone(), device.clone());
        IoFuture::later(async move {
            match log.read_held(held, block, buf).await? {
                (read, true) => Ok(read),
                // It was written out meanwhile, and its slot may have been reused.
                (read, false) => device.read(place.offset, read).await,
            }
        })
    }

    /// Reads one block.
    pub(crate) async fn read_one(&self, block: u64) -> Result<Block, IoError> {
        let read = self.read(block, buf::alloc_small(BLOCK_BYTES)).await?;
        let mut block = [0; BLOCK_BYTES];
        block.copy_from_slice(&read);
        Ok(block)
    }

    /// Writes a chunk: to the log device, if there is one.
    pub(crate) fn write_chunk(&self, start: &LogStart, data: Buf) -> IoFuture<()> {
        match &self.log {
            Some(log) => log.named.device.write(log.chunk_offset(start), data, false),
            None => self.write(start.block, data),
        }
    }

    /// Writes blocks that lie in one segment to their place on the devices of the table.
    pub(crate) fn write(&self, block: u64, data: Buf) -> IoFuture<()> {
        let place = self.layout.place(block);
        self.devices[place.device].device.write(place.offset, data, false)
    }

    /// Makes durable what was written to the log.
    pub(crate) async fn flush(&self) -> Result<(), IoError> {
        match &self.log {
            Some(log) => log.flush().await,
            None => self.flush_table().await,
        }
    }

    /// Flushes every device of the table.
    pub(crate) async fn flush_table(&self) -> Result<(), IoError> {
        run_all(self.devices.iter().map(|named| named.device.flush()), |()| {}).await
    }

    /// True if the log may lose completed writes until a flush.
    pub(crate) fn has_volatile_cache(&self) -> bool {
        let is_volatile = |named: &NamedDevice| named.device.geometry().volatile_cache;
        match &self.log {
            Some(log) => log.has_volatile_cache(),
            None => self.devices.iter().any(is_volatile),
        }
    }

    /// The devices that have superblocks, by position in the device table, then the log device.
    pub(crate) fn members(&self) -> impl Iterator<Item = (u16, &NamedDevice)> {
        let log = self.log.iter().map(|log| (LOG_INDEX, &log.named));
        (0..).zip(&self.devices).chain(log)
    }

    /// Writes an update of the superblock to copies 0 and 1 of every device, then to copies 2 and
    /// 3. On each device one copy may fail.
    ///
    /// # Errors
    /// Of the device whose second copy failed. The update may be found after a power failure.
    pub(crate) async fn write_superblock(&self, superblock: &Superblock) -> Result<(), IoError> {
        let mut failed = vec![0; self.members().count()];
        for copies in [0..2, 2..COPIES] {
            let copies: Vec<usize> = copies.collect();
            for ((index, _), failed) in self.members().zip(&mut failed) {
                self.write_copies(index, superblock, &copies, failed).await?;
            }
        }
        Ok(())
    }

    /// Writes copies of one device, in this order, and counts the failures.
    ///
    /// # Errors
    /// Of the second copy that failed.
    pub(crate) async fn write_copies(
        &self,
        index: u16,
        superblock: &Superblock,
        copies: &[usize],
        failed: &mut usize,
    ) -> Result<(), IoError> {
        let member = self.members().find(|(member, _)| *member == index);
        let (_, named) = member.expect("it is a device of the pool");
        let own = Superblock { device: index, ..superblock.clone() };
        for copy in copies {
            let written = write_block(&named.device, copy_offset(*copy), &own.encode(*copy)).await;
            if let Err(error) = written {
                tracing::warn!(device = named.name, copy, %error, "superblock copy failed");
                *failed += 1;
                if *failed > 1 {
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

//! Storage: the devices of a pool, addressed by blocks of the pool, and their superblocks.

use std::ops::Index;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use flagstone_blockdev::window::run_all;
use flagstone_blockdev::{IoError, IoFuture, NullDevice, ReopenableDevice, SharedDevice};
use flagstone_runtime::{Buf, BufMut, buf};

use crate::limits::{BLOCK_BYTES, DEVICES_MAX};
use crate::ondisk::Block;
use crate::ondisk::layout::Layout;
use crate::ondisk::superblock::{COPIES, Superblock, copy_offset};

/// A device and the name under which messages mention it.
#[derive(Clone, Debug)]
pub struct NamedDevice {
    /// Path, or another name that the operator knows.
    pub name: String,
    /// The device.
    pub device: SharedDevice,
}

/// Devices in the order of the device table, to which further ones may be added at any time. Removed
/// ones keep their positions.
#[derive(Debug, Default)]
pub(crate) struct Devices([OnceLock<Slot>; DEVICES_MAX]);

/// A place in the device table.
#[derive(Debug)]
struct Slot {
    /// Refers to `handle`.
    named: NamedDevice,
    /// Closed when the device was removed.
    handle: Arc<ReopenableDevice>,
    removed: AtomicBool,
}

impl Devices {
    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.0.iter().map_while(OnceLock::get)
    }

    /// Devices that were not removed, with their positions in the device table.
    pub(crate) fn present(&self) -> impl Iterator<Item = (usize, &NamedDevice)> {
        let slots = self.slots().enumerate();
        let present = slots.filter(|(_, slot)| !slot.removed.load(Ordering::Acquire));
        present.map(|(index, slot)| (index, &slot.named))
    }

    /// Adds a device after the others. One task at a time does.
    pub(crate) fn push(&self, named: NamedDevice) {
        let NamedDevice { name, device } = named;
        let handle = ReopenableDevice::new(device);
        let named = NamedDevice { name, device: handle.clone() };
        let slot = Slot { named, handle, removed: AtomicBool::new(false) };
        let set = self.0[self.slots().count()].set(slot);
        set.expect("one task at a time adds devices");
    }

    /// Adds the place of a device that was removed.
    pub(crate) fn push_removed(&self) {
        let geometry = NullDevice::new(BLOCK_BYTES as u64, BLOCK_BYTES as u32);
        let device = Arc::new(geometry.expect("it is a possible device"));
        self.push(NamedDevice { name: "(removed)".to_owned(), device });
        self.release(self.slots().count() - 1);
    }

    /// Closes a device that nothing refers to.
    pub(crate) fn release(&self, index: usize) {
        let slot = self.0[index].get().expect("it is in the table");
        slot.removed.store(true, Ordering::Release);
        slot.handle.close();
    }
}

impl From<Vec<NamedDevice>> for Devices {
    fn from(devices: Vec<NamedDevice>) -> Devices {
        let slots = Devices::default();
        devices.into_iter().for_each(|named| slots.push(named));
        slots
    }
}

impl Index<usize> for Devices {
    type Output = NamedDevice;

    fn index(&self, index: usize) -> &NamedDevice {
        &self.0[index].get().expect("the layout has as many devices").named
    }
}

/// Devices in the order of the device table.
#[derive(Debug)]
pub(crate) struct Storage {
    pub(crate) devices: Devices,
    pub(crate) layout: Layout,
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
    /// The device that holds a block.
    pub(crate) fn device_of(&self, block: u64) -> &NamedDevice {
        &self.devices[self.layout.place(block).device]
    }

    /// Reads blocks that lie in one segment.
    pub(crate) fn read(&self, block: u64, buf: BufMut) -> IoFuture<BufMut> {
        let place = self.layout.place(block);
        self.devices[place.device].device.read(place.offset, buf)
    }

    /// Reads one block.
    pub(crate) async fn read_one(&self, block: u64) -> Result<Block, IoError> {
        let place = self.layout.place(block);
        read_block(&self.devices[place.device].device, place.offset).await
    }

    /// Writes blocks that lie in one segment.
    pub(crate) fn write(&self, block: u64, data: Buf) -> IoFuture<()> {
        let place = self.layout.place(block);
        self.devices[place.device].device.write(place.offset, data, false)
    }

    /// Flushes every device.
    pub(crate) async fn flush(&self) -> Result<(), IoError> {
        run_all(self.devices.present().map(|(_, named)| named.device.flush()), |()| {}).await
    }

    /// True if a device may lose completed writes until a flush.
    pub(crate) fn has_volatile_cache(&self) -> bool {
        self.devices.present().any(|(_, named)| named.device.geometry().volatile_cache)
    }

    /// Writes an update of the superblock to copies 0 and 1 of every device, then to copies 2 and
    /// 3. On each device one copy may fail.
    ///
    /// # Errors
    /// Of the device whose second copy failed. The update may be found after a power failure.
    pub(crate) async fn write_superblock(&self, superblock: &Superblock) -> Result<(), IoError> {
        self.write_superblock_after(superblock, None).await
    }

    /// Same, but a new device has the update in copies 0 and 1 already.
    ///
    /// # Errors
    /// As [`Storage::write_superblock`].
    pub(crate) async fn write_superblock_after(
        &self,
        superblock: &Superblock,
        new: Option<usize>,
    ) -> Result<(), IoError> {
        let mut failed = vec![0; superblock.devices.len()];
        for copies in [0..2, 2..COPIES] {
            let is_first = copies.start == 0;
            let copies: Vec<usize> = copies.collect();
            let wanted = |(index, _): &(usize, _)| {
                !superblock.devices[*index].is_removed() && (!is_first || new != Some(*index))
            };
            for (index, failed) in failed.iter_mut().enumerate().filter(wanted) {
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
        index: usize,
        superblock: &Superblock,
        copies: &[usize],
        failed: &mut usize,
    ) -> Result<(), IoError> {
        let named = &self.devices[index];
        let own = Superblock { device: index as u16, ..superblock.clone() };
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

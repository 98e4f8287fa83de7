//! Transfer table: commands whose data was requested with an R2T and is still arriving.

use flagstone_nvme::Sqe;
use flagstone_nvme::pdu::{AcceptedData, DataHeader, DataTransfer, Fatal};
use flagstone_runtime::{Buf, BufMut};
use std::mem::offset_of;

/// Command with a transfer in progress.
pub(super) struct PendingTransfer {
    pub(super) command: Sqe,
    transfer: DataTransfer,
    /// Length of the command's data, and of its other half, in bytes.
    pub(super) bytes: usize,
    /// The command's buffer; `None` while a piece is being received into it.
    pub(super) data: Option<BufMut>,
    /// A piece failed its digest: the command fails when all pieces have arrived.
    pub(super) digest_error: bool,
    /// The other half of a fused operation.
    pub(super) half: Option<Box<TransferHalf>>,
}

/// Half of a fused operation whose data is being transferred, with the other half.
pub(super) enum TransferHalf {
    /// The Compare; the data of `second` comes next, into `place`.
    First { second: Sqe, place: BufMut },
    /// The Write; the data of `first` has arrived.
    Second { first: Sqe, expected: Buf },
}

impl TransferHalf {
    /// Bytes of the other half.
    fn bytes(&self) -> usize {
        match self {
            TransferHalf::First { place, .. } => place.len(),
            TransferHalf::Second { expected, .. } => expected.len(),
        }
    }
}

/// Transfers by transfer tag, the index in this table.
#[derive(Default)]
pub(super) struct Transfers {
    slots: Vec<Option<PendingTransfer>>,
    free: Vec<u16>,
}

impl Transfers {
    /// Stores `command`, whose data is received into `data`, and returns its tag. The caller bounds
    /// the commands in flight and thereby this table. `None` beyond 65,536 entries.
    pub(super) fn insert(
        &mut self,
        command: Sqe,
        data: BufMut,
        half: Option<Box<TransferHalf>>,
    ) -> Option<u16> {
        let len = u32::try_from(data.len()).ok()?;
        let tag = match self.free.pop() {
            Some(tag) => tag,
            None => {
                let tag = u16::try_from(self.slots.len()).ok()?;
                self.slots.push(None);
                tag
            }
        };
        let transfer = DataTransfer::of_r2t(command.cid.get(), tag, 0, len)?;
        let bytes = data.len() + half.as_ref().map_or(0, |half| half.bytes());
        let (data, digest_error) = (Some(data), false);
        let pending = PendingTransfer { command, transfer, bytes, data, digest_error, half };
        self.slots[usize::from(tag)] = Some(pending);
        Some(tag)
    }

    /// Validates an H2CData header against the transfer that it names.
    pub(super) fn accept(
        &mut self,
        header: &DataHeader,
    ) -> Result<(&mut PendingTransfer, AcceptedData), Fatal> {
        let tag = usize::from(header.transfer_tag.get());
        let pending = self.slots.get_mut(tag).and_then(Option::as_mut);
        let pending = pending.ok_or(Fatal::field(offset_of!(DataHeader, transfer_tag)))?;
        let piece = pending.transfer.accept(header)?;
        Ok((pending, piece))
    }

    /// The transfer of a tag that [`Transfers::accept`] has just validated.
    pub(super) fn get(&mut self, tag: u16) -> Option<&mut PendingTransfer> {
        self.slots.get_mut(usize::from(tag))?.as_mut()
    }

    /// Removes a command whose data is complete.
    pub(super) fn remove(&mut self, tag: u16) -> Option<PendingTransfer> {
        let pending = self.slots.get_mut(usize::from(tag))?.take()?;
        self.free.push(tag);
        Some(pending)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }

    /// Drops all transfers, and calls `dropped` with the payload bytes of each.
    pub(super) fn clear(&mut self, mut dropped: impl FnMut(usize)) {
        for slot in &mut self.slots {
            if let Some(pending) = slot.take() {
                dropped(pending.bytes);
            }
        }
        self.slots.clear();
        self.free.clear();
    }
}

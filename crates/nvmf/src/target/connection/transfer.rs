//! Commands whose data is on its way, asked for with an R2T.

use flagstone_nvme::Sqe;
use flagstone_nvme::pdu::{DataHeader, Fatal, Piece, Transfer};
use flagstone_runtime::BufMut;
use std::mem::offset_of;

/// One of them.
pub(super) struct Pending {
    pub(super) command: Sqe,
    transfer: Transfer,
    /// Length of all of its data.
    bytes: usize,
    /// All of the command's data; `None` while a piece is being received into it.
    pub(super) data: Option<BufMut>,
    /// A piece did not match its digest: the command will fail when all has arrived.
    pub(super) digest_error: bool,
}

/// They are found by their transfer tag, which is their place in this table.
#[derive(Default)]
pub(super) struct Transfers {
    slots: Vec<Option<Pending>>,
    free: Vec<u16>,
}

impl Transfers {
    /// Makes room for `command`, whose data will be received into `data`, and gives its tag. The
    /// caller has bounded how many commands are in hand, and so the table: `None` is beyond 65,536.
    pub(super) fn insert(&mut self, command: Sqe, data: BufMut) -> Option<u16> {
        let len = u32::try_from(data.len()).ok()?;
        let tag = match self.free.pop() {
            Some(tag) => tag,
            None => {
                let tag = u16::try_from(self.slots.len()).ok()?;
                self.slots.push(None);
                tag
            }
        };
        let transfer = Transfer::of_r2t(command.cid.get(), tag, 0, len)?;
        let (bytes, data) = (data.len(), Some(data));
        let pending = Pending { command, transfer, bytes, data, digest_error: false };
        self.slots[usize::from(tag)] = Some(pending);
        Some(tag)
    }

    /// Checks a piece against the transfer that it names.
    pub(super) fn accept(&mut self, header: &DataHeader) -> Result<(&mut Pending, Piece), Fatal> {
        let tag = usize::from(header.transfer_tag.get());
        let pending = self.slots.get_mut(tag).and_then(Option::as_mut);
        let pending = pending.ok_or(Fatal::field(offset_of!(DataHeader, transfer_tag)))?;
        let piece = pending.transfer.accept(header)?;
        Ok((pending, piece))
    }

    /// The pending command of a tag that [`Transfers::accept`] has just found.
    pub(super) fn get(&mut self, tag: u16) -> Option<&mut Pending> {
        self.slots.get_mut(usize::from(tag))?.as_mut()
    }

    /// Takes a command out whose data is complete.
    pub(super) fn remove(&mut self, tag: u16) -> Option<Pending> {
        let pending = self.slots.get_mut(usize::from(tag))?.take()?;
        self.free.push(tag);
        Some(pending)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }

    /// Drops all; tells of each how many bytes of payload it had.
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

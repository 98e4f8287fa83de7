//! Superblock slots: the two copies of a superblock, and the order in which they are written.
//!
//! An update is written to slot 0 and then to slot 1, and it has succeeded when both are durable.
//! Invariants:
//! - a slot is written only while the other one is whole;
//! - slot 0 has the sequence number of slot 1, or the next one after an interrupted update;
//! - each update that succeeded is in both slots, so one slot may decay or become unreadable
//!   without loss.
//!
//! Slots that contradict these invariants are refused: a write was lost, or a part of the device is
//! from another time, and it is unknown which slot is right.

use flagstone_blockdev::{IoError, SharedDevice};

use crate::intent_log::log_area::{read_page, write_page};
use crate::intent_log::recover::is_inconclusive;
use crate::limits::PAGE_BYTES;
use crate::ondisk::superblock::Superblock;
use crate::ondisk::{FormatError, Page, counter};

/// Writer of the slots of one superblock.
#[derive(Clone, Debug)]
pub(crate) struct SuperblockSlots {
    /// Offsets of the slots, in bytes.
    at: [u64; 2],
    /// Sequence number of slot 0, or of slot 1 if slot 0 is not whole.
    sequence: Option<u64>,
    /// Content of slot 0 that slot 1 lacks, or may lack after a failed write.
    behind: Option<Box<Page>>,
}

/// A superblock found in its slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundSuperblock {
    pub(crate) superblock: Superblock,
    /// Slot 1 does not have it.
    pub(crate) second_is_behind: bool,
}

type Slot = Result<Superblock, FormatError>;

/// The superblock that counts, given both slots.
///
/// # Errors
/// [`FormatError::Contradiction`] when no interrupted update explains a difference; the error of a
/// slot that is whole but cannot be interpreted; and without any whole slot the more specific
/// error.
pub(crate) fn choose(slots: [Slot; 2]) -> Result<FoundSuperblock, FormatError> {
    let refused = |slot: &Slot| match slot {
        Err(error @ (FormatError::Version(_) | FormatError::Field(_))) => Some(*error),
        _ => None,
    };
    if let Some(error) = slots.iter().find_map(refused) {
        return Err(error);
    }
    match slots {
        [Ok(first), Ok(second)] if first == second => {
            Ok(FoundSuperblock { superblock: first, second_is_behind: false })
        }
        [Ok(first), Ok(second)] if Some(first.sequence) == second.sequence.checked_add(1) => {
            Ok(FoundSuperblock { superblock: first, second_is_behind: true })
        }
        [Ok(first), Ok(second)] => {
            Err(FormatError::Contradiction { first: first.sequence, second: second.sequence })
        }
        [Ok(superblock), Err(_)] => Ok(FoundSuperblock { superblock, second_is_behind: true }),
        [Err(_), Ok(superblock)] => Ok(FoundSuperblock { superblock, second_is_behind: false }),
        [Err(FormatError::Absent), Err(error)] | [Err(error), Err(_)] => Err(error),
    }
}

/// Reads the slots at the end of a device of `end` bytes.
///
/// # Errors
/// Of the device, if no slot can be read or the error says nothing about its content. Otherwise an
/// unreadable slot counts as damaged.
pub(crate) async fn read_slots(
    device: &SharedDevice,
    end: u64,
) -> Result<Result<FoundSuperblock, FormatError>, IoError> {
    let page = PAGE_BYTES as u64;
    let mut slots = [Err(FormatError::Absent), Err(FormatError::Absent)];
    let mut unreadable = None;
    for (slot, at) in slots.iter_mut().zip([end - 2 * page, end - page]) {
        *slot = match read_page(device, at).await {
            Ok(page) => Superblock::decode(&page).and_then(|superblock| {
                let here = superblock.device_bytes == end;
                if here { Ok(superblock) } else { Err(FormatError::Foreign) }
            }),
            Err(error) if is_inconclusive(error) => return Err(error),
            Err(error) => {
                unreadable = Some(error);
                Err(FormatError::Checksum)
            }
        };
    }
    let found = choose(slots);
    match unreadable {
        Some(error) if found.is_err() => Err(error),
        _ => Ok(found),
    }
}

impl SuperblockSlots {
    /// Slots without a superblock.
    pub(crate) fn empty(at: [u64; 2]) -> SuperblockSlots {
        SuperblockSlots { at, sequence: None, behind: None }
    }

    /// Slots in which this superblock was found.
    pub(crate) fn found(at: [u64; 2], found: &FoundSuperblock) -> SuperblockSlots {
        let FoundSuperblock { superblock, second_is_behind } = found;
        let behind = second_is_behind.then(|| Box::new(superblock.encode()));
        SuperblockSlots { at, sequence: Some(superblock.sequence), behind }
    }

    /// Slots at another place of the device, for the same superblock.
    pub(crate) fn moved(&self, at: [u64; 2]) -> SuperblockSlots {
        SuperblockSlots { at, sequence: self.sequence, behind: None }
    }

    /// Writes the next update to both slots, and sets its sequence number.
    ///
    /// # Errors
    /// Of the device. The update may be found after a power failure.
    pub(crate) async fn write(
        &mut self,
        device: &SharedDevice,
        superblock: &mut Superblock,
    ) -> Result<(), IoError> {
        if let Some(behind) = &self.behind {
            write_page(device, self.at[1], behind).await?;
            self.behind = None;
        }
        let sequence = self.sequence.map_or(Ok(0), counter::next)?;
        superblock.sequence = sequence;
        let page = Box::new(superblock.encode());
        // After a failure slot 0 again, with the same number: slot 1 is whole.
        write_page(device, self.at[0], &page).await?;
        self.sequence = Some(sequence);
        let page: &Page = self.behind.insert(page);
        write_page(device, self.at[1], page).await?;
        self.behind = None;
        Ok(())
    }
}

#[cfg(test)]
#[path = "superblock_slots_tests.rs"]
mod tests;

//! Superblock slots on a device whose writes fail, tear, or stop at any point.

use std::sync::Arc;

use flagstone_blockdev::{BlockDevice, Geometry, IoFuture, ZeroFlags};
use flagstone_runtime::{Buf, BufMut, block_on};
use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;
use crate::ondisk::superblock::tests::any_superblock;

const END: u64 = 2 * PAGE_BYTES as u64;
const AT: [u64; 2] = [0, PAGE_BYTES as u64];

/// Outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteOutcome {
    Done,
    /// It fails, and nothing was written.
    Nothing,
    /// It fails, and everything was written.
    Landed,
    /// It fails, and a part was written.
    Torn(usize),
}

/// Two pages whose writes have these writes.
struct Pages {
    bytes: Mutex<[u8; END as usize]>,
    writes: Mutex<Vec<WriteOutcome>>,
    unreadable: Mutex<Option<u64>>,
}

impl BlockDevice for Pages {
    fn geometry(&self) -> Geometry {
        flagstone_blockdev::MemoryDevice::new(END, 512).expect("a size").geometry()
    }

    fn read(&self, offset: u64, mut buf: BufMut) -> IoFuture<BufMut> {
        if *self.unreadable.lock() == Some(offset) {
            return IoFuture::ready(Err(IoError::ReadFault));
        }
        let len = buf.len();
        buf.copy_from_slice(&self.bytes.lock()[offset as usize..offset as usize + len]);
        IoFuture::ready(Ok(buf))
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        assert!(fua, "a superblock is durable when it counts");
        let write = self.writes.lock().pop().unwrap_or(WriteOutcome::Done);
        let len = match write {
            WriteOutcome::Done | WriteOutcome::Landed => data.len(),
            WriteOutcome::Nothing => 0,
            WriteOutcome::Torn(len) => len.min(data.len()),
        };
        let at = offset as usize;
        self.bytes.lock()[at..at + len].copy_from_slice(&data[..len]);
        IoFuture::ready(if write == WriteOutcome::Done { Ok(()) } else { Err(IoError::WriteFault) })
    }

    fn flush(&self) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }

    fn discard(&self, _: u64, _: u64) -> IoFuture<()> {
        IoFuture::ready(Err(IoError::Unsupported))
    }

    fn write_zeroes(&self, _: u64, _: u64, _: ZeroFlags) -> IoFuture<()> {
        IoFuture::ready(Err(IoError::Unsupported))
    }
}

fn pages() -> Arc<Pages> {
    Arc::new(Pages {
        bytes: Mutex::new([0; END as usize]),
        writes: Mutex::default(),
        unreadable: Mutex::default(),
    })
}

fn any_write() -> impl Strategy<Value = WriteOutcome> {
    prop_oneof![
        6 => Just(WriteOutcome::Done),
        1 => Just(WriteOutcome::Nothing),
        1 => Just(WriteOutcome::Landed),
        2 => (1..PAGE_BYTES / 512).prop_map(|sectors| WriteOutcome::Torn(sectors * 512)),
    ]
}

/// Loss of one slot after the last update.
#[derive(Clone, Copy, Debug)]
enum Loss {
    None,
    Rotten(usize),
    Unreadable(usize),
}

proptest! {
    /// After any failed, torn and interrupted writes, and restarts between them, the superblock
    /// found is the last successfully written one or a later one, even if one slot is lost
    /// after a success.
    #[test]
    fn successful_update_survives_loss_of_one_slot(
        superblock in any_superblock(),
        updates in prop::collection::vec(
            (prop::collection::vec(any_write(), 0..3), any::<bool>()), 1..12),
        loss in prop_oneof![
            Just(Loss::None),
            (0usize..2).prop_map(Loss::Rotten),
            (0usize..2).prop_map(Loss::Unreadable),
        ],
    ) {
        block_on(async {
            let pages = pages();
            let device: SharedDevice = pages.clone();
            let mut slots = SuperblockSlots::empty(AT);
            let update = |epoch: u64| Superblock {
                epoch,
                device_bytes: END,
                moved_from: 0,
                ..superblock.clone()
            };
            slots.write(&device, &mut update(0)).await.expect("no faults yet");
            let (mut durable, mut last_succeeded) = (0, true);
            for (epoch, (writes, restarts)) in (1..).zip(updates) {
                *pages.writes.lock() = writes;
                last_succeeded = slots.write(&device, &mut update(epoch)).await.is_ok();
                if last_succeeded {
                    durable = epoch;
                }
                pages.writes.lock().clear();
                if restarts {
                    let found = read_slots(&device, END).await.expect("it can be read");
                    let found = found.expect("one slot is whole");
                    assert!(found.superblock.epoch >= durable, "taken back to an earlier update");
                    durable = found.superblock.epoch;
                    slots = SuperblockSlots::found(AT, &found);
                    last_succeeded &= !found.second_is_behind;
                }
            }
            if last_succeeded {
                match loss {
                    Loss::None => {}
                    Loss::Rotten(slot) => pages.bytes.lock()[AT[slot] as usize + 100] ^= 1,
                    Loss::Unreadable(slot) => *pages.unreadable.lock() = Some(AT[slot]),
                }
            }
            let found = read_slots(&device, END).await.expect("one can be read");
            assert!(found.expect("one slot is whole").superblock.epoch >= durable);
        })
        .expect("it completes");
    }

    /// A slot that is older or newer than any interrupted update leaves it is no choice.
    #[test]
    fn contradicting_slots_are_refused(superblock in any_superblock(), by in 1u64..9) {
        let base = superblock.sequence.min(u64::MAX - 10);
        let at = |sequence: u64, epoch: u64| Ok(Superblock { sequence, epoch, ..superblock.clone() });
        let refused = |slots: [Slot; 2]| matches!(choose(slots), Err(FormatError::Contradiction { .. }));
        prop_assert!(refused([at(base, 1), at(base + by, 1)]), "slot 0 is written first");
        prop_assert!(refused([at(base + 1 + by, 1), at(base, 1)]), "an update is missing");
        prop_assert!(refused([at(base, 1), at(base, 2)]), "two contents of one update");
        let chosen = choose([at(base + 1, 2), at(base, 1)]).map(|found| found.superblock.epoch);
        prop_assert_eq!(chosen, Ok(2), "an interrupted update");
    }
}

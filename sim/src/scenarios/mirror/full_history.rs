//! Full generation history for some of the seeds, as on volumes whose nodes have separated for
//! months. No run lasts long enough to fill it, and each new generation then evicts an old one.

use std::array;

use flagstone_blockdev::SharedDevice;
use flagstone_mirror::agree::generation::GenerationList;
use flagstone_mirror::id::Generation;
use flagstone_mirror::limits::HISTORY_LEN;
use flagstone_mirror::manage::replica::Replica;

/// True when the volume of this seed starts with a full history.
pub(super) fn is_long(seed: u64) -> bool {
    seed % 4 == 3
}

/// Fills a replica's empty generation history. A peer learns of it in its next resync.
pub(super) async fn lengthen(device: SharedDevice, log: Option<SharedDevice>) {
    let replica = Replica::open(device, log).await.expect("sound disks");
    let past: [_; HISTORY_LEN] = array::from_fn(|age| Generation(1 + age as u64));
    let lengthened =
        replica.update(move |superblock| superblock.history = GenerationList(past)).await;
    lengthened.expect("sound disks");
    replica.retire().await;
}

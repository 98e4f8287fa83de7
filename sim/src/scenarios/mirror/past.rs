//! A past as long as a superblock remembers, for some of the seeds: nodes that have parted as often as
//! those of a volume do in some months, which no run lasts. Each new generation costs an old one then.

use std::array;

use flagstone_blockdev::SharedDevice;
use flagstone_mirror::generation::List;
use flagstone_mirror::id::Generation;
use flagstone_mirror::limits::HISTORY_LEN;
use flagstone_mirror::replica::Replica;

/// Whether the volume of this seed has one.
pub(super) fn is_long(seed: u64) -> bool {
    seed % 4 == 3
}

/// Gives a replica one that has none. A peer hears of it as soon as it is brought up to date.
pub(super) async fn lengthen(device: SharedDevice, log: Option<SharedDevice>) {
    let replica = Replica::open(device, log).await.expect("sound disks");
    let past: [_; HISTORY_LEN] = array::from_fn(|age| Generation(1 + age as u64));
    let lengthened = replica.update(move |superblock| superblock.history = List(past)).await;
    lengthened.expect("sound disks");
    replica.retire().await;
}

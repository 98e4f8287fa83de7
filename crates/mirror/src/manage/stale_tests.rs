use std::sync::Arc;

use flagstone_blockdev::MemoryDevice;
use flagstone_runtime::block_on;

use super::*;
use crate::id::MirrorId;
use crate::intent_log::recover::LogLost;
use crate::manage::replica::{CreateReplica, Replica};
use crate::ondisk::layout::ReplicaGeometry;

const BLOCKS: u64 = 64;

fn memory(bytes: usize) -> SharedDevice {
    Arc::new(MemoryDevice::new(bytes as u64, 4096).expect("a size"))
}

fn create() -> CreateReplica {
    let geometry = ReplicaGeometry {
        usable_bytes: BLOCKS * 4096,
        bit_bytes: 4096,
        region_bytes: 4096,
        active_regions_max: crate::limits::ACTIVE_REGIONS_MIN,
    };
    CreateReplica { volume: MirrorId([7; 16]), with_data: true, zeroes: false, geometry }
}

/// A log beside the data, or on a device of its own, which lost nothing and counts as lost, too.
#[test]
fn stale_replica_is_unverified_and_all_out_of_sync() {
    for separate in [false, true] {
        block_on(async {
            let data = memory(1 << 20);
            let log = separate.then(|| memory(1 << 20));
            Replica::create(data.clone(), log.clone(), create()).await.expect("there is room");
            let replica = Replica::open(data.clone(), log.clone()).await.expect("it was created");
            replica.begin_use(|_| {}).await.expect("the devices work");
            assert_eq!(replica.bits().count(), 0);
            replica.retire().await;
            // Twice, as after a crash between the mark and its consequence.
            for _ in 0..2 {
                assert!(mark_stale(&data).await.expect("the device works"));
            }
            let replica = Replica::open(data.clone(), log.clone()).await.expect("a new log");
            assert_eq!(replica.log_lost(), Some(LogLost::Stale));
            assert!(replica.superblock().unverified);
            assert_eq!(replica.bits().count(), replica.superblock().geometry.bits());
            replica.retire().await;
            // The new log is believed. Only a resync verifies the data.
            let replica = Replica::open(data, log).await.expect("it is a replica");
            assert_eq!(replica.log_lost(), None);
            assert!(replica.superblock().unverified);
        })
        .expect("an executor");
    }
}

#[test]
fn blank_device_has_no_stale_replica() {
    block_on(async {
        for bytes in [4096, 1 << 20] {
            assert!(!mark_stale(&memory(bytes)).await.expect("the device works"));
        }
    })
    .expect("an executor");
}

use std::sync::Arc;

use flagstone_blockdev::{MemoryDevice, SharedDevice};
use flagstone_runtime::block_on;

use super::*;
use crate::agree::decide::{HandshakeDecision, ReplicaSide, ReplicaView, ResyncAmount, decide};
use crate::agree::generation::GenerationHistory;
use crate::id::MirrorId;
use crate::manage::replica::CreateReplica;
use crate::ondisk::layout::ReplicaGeometry;

const BLOCKS: u64 = 64;
const PEER: MirrorId = MirrorId([9; 16]);

fn memory() -> SharedDevice {
    Arc::new(MemoryDevice::new(1 << 20, 4096).expect("a size"))
}

/// A source whose peer has the present generation, and is paused.
async fn paused_source(data: &SharedDevice, log: Option<&SharedDevice>) -> Replica {
    let geometry = ReplicaGeometry {
        usable_bytes: BLOCKS * 4096,
        bit_bytes: 4096,
        region_bytes: 4096,
        active_regions_max: crate::limits::ACTIVE_REGIONS_MIN,
    };
    let create =
        CreateReplica { volume: MirrorId([7; 16]), with_data: true, zeroes: false, geometry };
    Replica::create(data.clone(), log.cloned(), create).await.expect("there is room");
    let replica = Replica::open(data.clone(), log.cloned()).await.expect("it was created");
    let pause = |superblock: &mut Superblock| {
        superblock.role = ReplicaRole::Source;
        superblock.peers[0].replica = PEER;
        superblock.desired_states[0] = DesiredState::Paused;
    };
    replica.update(pause).await.expect("the device works");
    replica
}

/// Step 3 may come at any time after the record, so the peer must be out of date by then, and the
/// log must name what it lacks.
#[test]
fn rolled_back_source_prevails_over_its_peer() {
    for separate in [false, true] {
        block_on(async {
            let (data, log) = (memory(), separate.then(memory));
            let replica = paused_source(&data, log.as_ref()).await;
            // The peer lacks a block already.
            replica.mark(20..21);
            let before = replica.superblock();
            assert!(!before.peers[0].is_outdated());
            let record = RollbackRecord::new(replica, 1).expect("its peer is paused");
            record.differs(5000..9000);
            record.differs(BLOCKS * 4096 - 1..u64::MAX);
            record.differs(BLOCKS * 4096..BLOCKS * 4096 + 4096);
            record.record().await.expect("the devices work");
            let replica = Replica::open(data, log).await.expect("it is a replica");
            assert_eq!(replica.log_lost(), None);
            let marked: Vec<u64> =
                (0..BLOCKS).filter(|bit| replica.word(bit / 64) >> (bit % 64) & 1 == 1).collect();
            assert_eq!(marked, [1, 2, 20, BLOCKS - 1]);
            assert!(replica.superblock().peers[0].is_outdated());
            let mine = replica.view(0);
            let generations = GenerationHistory { current: before.current, ..Default::default() };
            let peers = ReplicaView { replica: PEER, generations, dirty: false, ..mine };
            let local = ReplicaSide::Local;
            let partial =
                HandshakeDecision::Resync { source: local, amount: ResyncAmount::Partial };
            assert_eq!(decide(&mine, &peers), partial);
        })
        .expect("an executor");
    }
}

#[test]
fn rollback_needs_a_whole_source_without_peers() {
    type Change = fn(&mut Superblock);
    let cases: [(Change, RollbackRefusal); 6] = [
        (
            |superblock| superblock.desired_states[0] = DesiredState::Connected,
            RollbackRefusal::PeerConnected,
        ),
        (|superblock| superblock.role = ReplicaRole::Target, RollbackRefusal::NotSource),
        (|superblock| superblock.role = ReplicaRole::Deposed, RollbackRefusal::NotSource),
        (|superblock| superblock.designated_successor = Some(0), RollbackRefusal::NotSource),
        (|superblock| superblock.flags.inconsistent = true, RollbackRefusal::Inconsistent),
        (|superblock| superblock.unverified = true, RollbackRefusal::Inconsistent),
    ];
    for (change, refusal) in cases {
        block_on(async {
            let data = memory();
            let replica = paused_source(&data, None).await;
            replica.update(change).await.expect("the device works");
            assert_eq!(RollbackRecord::new(replica, 1).err(), Some(refusal));
        })
        .expect("an executor");
    }
}

#[test]
fn snapshot_must_have_the_whole_volume() {
    block_on(async {
        let replica = paused_source(&memory(), None).await;
        let now = replica.superblock();
        assert_eq!(check_content(&now, &now), Ok(()));
        let mut then = now.clone();
        then.geometry.usable_bytes -= 4096;
        let other = RollbackRefusal::OtherSize(then.geometry.usable_bytes);
        assert_eq!(check_content(&now, &then), Err(other));
        for number in 0..3 {
            let mut then = now.clone();
            match number {
                0 => then.flags.inconsistent = true,
                1 => then.unverified = true,
                _ => then.current = crate::id::Generation::NONE,
            }
            assert_eq!(check_content(&now, &then), Err(RollbackRefusal::PartialContent));
        }
    })
    .expect("an executor");
}

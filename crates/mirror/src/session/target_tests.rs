//! A target on a simulated disk, and its records of peers.

use flagstone_blockdev::{FileDevice, FileOptions, SharedDevice};
use flagstone_runtime::sim::{DiskConfig, SimConfig, Simulation};

use super::*;
use crate::agree::versions::LinkVersions;
use crate::limits::ACTIVE_REGIONS_MIN;
use crate::manage::replica::{CreateReplica, Replica};
use crate::ondisk::layout::ReplicaGeometry;

const VOLUME: MirrorId = MirrorId([7; 16]);
const SOURCE: MirrorId = MirrorId([8; 16]);
const OTHER: MirrorId = MirrorId([9; 16]);

fn device() -> SharedDevice {
    FileDevice::open("/dev/data", &FileOptions::default()).expect("the device opens")
}

fn known(replica: &Replica) -> [MirrorId; PEERS_MAX] {
    let mut known = replica.superblock().peers.map(|peer| peer.replica);
    known.sort_unstable();
    known
}

/// Regression: a source attaches while a connection of the target is recording another peer. Both
/// found the same free slot. Without its record of the source, a target would serve after a crash
/// without asking it.
#[test]
fn attaching_source_takes_no_other_peers_slot() {
    let sim = Simulation::new(1, SimConfig::default());
    let node = sim.add_node("node");
    sim.add_disk(node, "/dev/data", DiskConfig::block_device(1 << 20));
    let done = sim.spawn_on(node, async {
        let geometry = ReplicaGeometry {
            usable_bytes: 4096,
            bit_bytes: 4096,
            region_bytes: 4096,
            active_regions_max: ACTIVE_REGIONS_MIN,
        };
        let create = CreateReplica { volume: VOLUME, with_data: false, zeroes: false, geometry };
        Replica::create(device(), None, create).await.expect("the disk works");
        let mirror = Mirror::new(Replica::open(device(), None).await.expect("one"), Vec::new());
        let inner = mirror.0.clone();
        let mut remembered = std::pin::pin!(inner.record_peer(OTHER));
        // The connection has chosen a slot, and its superblock write is in progress.
        let chosen = poll_fn(|cx| Poll::Ready(remembered.as_mut().poll(cx).is_pending())).await;
        assert!(chosen);
        let attach = AttachRequest {
            asks: None,
            group: 0,
            volume: VOLUME,
            source: SOURCE,
            epoch: 4,
            expected: Generation::NONE,
            in_sync: false,
            usable_bytes: 0,
            version: LinkVersions::SPOKEN.highest(),
        };
        let attached = mirror.session().ask(PeerRequest::Attach(attach)).await;
        assert_eq!(attached, Ok(Ok(PeerReply::Done)));
        assert_eq!(remembered.await, Ok(()));
        assert_eq!(known(&mirror.0.local), [SOURCE, OTHER]);
        mirror.close();
    });
    sim.block_on(done).expect("the task completes");
    sim.power_off(node);
    sim.restart(node);
    let found = sim.spawn_on(node, async {
        let replica = Replica::open(device(), None).await.expect("the disk works");
        assert_eq!(known(&replica), [SOURCE, OTHER], "durably");
        assert_eq!(replica.superblock().epoch, 4);
    });
    sim.block_on(found).expect("the task completes");
}

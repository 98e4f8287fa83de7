//! A target on a simulated disk, and whom it remembers.

use flagstone_blockdev::{FileDevice, FileOptions, SharedDevice};
use flagstone_runtime::sim::{Config, DiskConfig, Simulation};

use super::*;
use crate::limits::HOT_MIN;
use crate::replica::{Create, Replica};
use crate::shape::Shape;
use crate::versions::Versions;

const VOLUME: Uuid = Uuid([7; 16]);
const SOURCE: Uuid = Uuid([8; 16]);
const OTHER: Uuid = Uuid([9; 16]);

fn device() -> SharedDevice {
    FileDevice::open("/dev/data", &FileOptions::default()).expect("the disk is free")
}

fn known(replica: &Replica) -> [Uuid; PEERS_MAX] {
    let mut known = replica.superblock().peers.map(|peer| peer.replica);
    known.sort_unstable();
    known
}

/// A link of the target's own is about to remember another peer when a source attaches: both found
/// the same place free, and neither may have it from the other. A target that forgot its source
/// would serve after a crash without asking it.
#[test]
fn a_source_that_attaches_takes_nobodys_place() {
    let sim = Simulation::new(1, Config::default());
    let node = sim.add_node("node");
    sim.add_disk(node, "/dev/data", DiskConfig::block_device(1 << 20));
    let done = sim.spawn_on(node, async {
        let shape =
            Shape { usable_bytes: 4096, bit_bytes: 4096, region_bytes: 4096, hot_regions: HOT_MIN };
        let create = Create { volume: VOLUME, with_data: false, shape };
        Replica::create(device(), None, create).await.expect("a sound disk");
        let mirror = Mirror::new(Replica::open(device(), None).await.expect("one"), Vec::new());
        let inner = mirror.0.clone();
        let mut remembered = std::pin::pin!(inner.remember(OTHER));
        // It has chosen a place, and its superblock is on the way to the disk.
        let chosen = poll_fn(|cx| Poll::Ready(remembered.as_mut().poll(cx).is_pending())).await;
        assert!(chosen);
        let attach = Attach {
            volume: VOLUME,
            source: SOURCE,
            epoch: 4,
            expected: Generation::NONE,
            in_sync: false,
            usable_bytes: 0,
            version: Versions::SPOKEN.highest(),
        };
        let attached = mirror.session().ask(Request::Attach(attach)).await;
        assert_eq!(attached, Ok(Ok(Reply::Done)));
        assert_eq!(remembered.await, Ok(()));
        assert_eq!(known(&mirror.0.local), [SOURCE, OTHER]);
        mirror.close();
    });
    sim.block_on(done).expect("nobody ends it");
    sim.power_off(node);
    sim.restart(node);
    let found = sim.spawn_on(node, async {
        let replica = Replica::open(device(), None).await.expect("a sound disk");
        assert_eq!(known(&replica), [SOURCE, OTHER], "durably");
        assert_eq!(replica.superblock().epoch, 4);
    });
    sim.block_on(found).expect("nobody ends it");
}

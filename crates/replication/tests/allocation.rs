//! Heap allocations of a synchronous write and of a read, at the source, on the link and at the
//! target: none in the steady state.
//!
//! Left out: disks, because memory devices answer at once; asynchronous mode, whose reorder buffer
//! allocates for a write that arrives before an earlier one has completed.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, MemoryDevice, SharedDevice};
use flagstone_mirror::id::MirrorId;
use flagstone_mirror::manage::replica::{CreateReplica, Replica};
use flagstone_mirror::ondisk::layout::ReplicaGeometry;
use flagstone_mirror::state::status::MirrorState;
use flagstone_mirror::{Ack, Mirror, PeerOptions};
use flagstone_nvme::Nqn;
use flagstone_nvmf_host::HostOptions;
use flagstone_nvmf_target::{SubsystemConfig, Target, TargetConfig, serve};
use flagstone_replication::{NvmePeer, replication_nqn, serve_replica};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::{IoEngine, RuntimeConfig, buf, run, spawn, spawn_detached, time};

const DEVICE_BYTES: u64 = 16 << 20;
/// Allowance for containers that grow late by doubling, and for what both nodes do by time: a busy
/// machine takes longer. An allocation per call would be 16,000.
const SLACK: u64 = 2000;
const TASKS: u64 = 8;

fn subsystem() -> Nqn {
    replication_nqn(&Nqn::new("nqn.2026-01.io.flagstone:db").unwrap()).unwrap()
}

fn host(index: usize) -> Nqn {
    Nqn::new(&format!("nqn.2026-01.io.flagstone:node-{index}")).unwrap()
}

/// A node of a mirror, which is served to the peer by `listener`.
async fn node(index: usize, listener: Listener, peer: Address, ack: Ack) -> Arc<Mirror> {
    let device: SharedDevice = Arc::new(MemoryDevice::new(DEVICE_BYTES, 4096).unwrap());
    let geometry = ReplicaGeometry {
        usable_bytes: 4096,
        bit_bytes: 4096,
        region_bytes: 1 << 20,
        active_regions_max: 32,
    };
    let create =
        CreateReplica { volume: MirrorId([7; 16]), with_data: index == 0, zeroes: false, geometry };
    Replica::create(device.clone(), None, create).await.unwrap();
    let local = Replica::open(device, None).await.unwrap();
    let options = HostOptions { host_nqn: Some(host(index)), ..HostOptions::default() };
    let mut peer = PeerOptions::new(Arc::new(NvmePeer::new(peer, subsystem(), options)));
    peer.ack = ack;
    let mirror = Arc::new(Mirror::new(local, vec![peer]));
    let target = Target::new(TargetConfig::default()).unwrap();
    let allow_hosts = Some(vec![host(1 - index)]);
    let config = SubsystemConfig {
        nqn: subsystem(),
        serial: "1".to_owned(),
        allow_hosts,
        keys: Default::default(),
    };
    serve_replica(&target, config, [9; 16], mirror.clone()).unwrap();
    spawn_detached(async move {
        while let Ok(stream) = listener.accept().await {
            spawn_detached(serve(target.clone(), stream));
        }
    });
    mirror.start().await.unwrap();
    mirror
}

/// Heap allocations of this thread, which runs both nodes, for `rounds` writes and reads of each
/// task.
fn allocations(ack: Ack, rounds: u64) -> u64 {
    let config = RuntimeConfig { io_engine: IoEngine::IoUring, ..RuntimeConfig::default() };
    let counted = allocation_counter::measure(|| {
        run(&config, async || {
            let any = Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
            let listeners = [(); 2].map(|()| Listener::bind(&any).unwrap());
            let addresses = listeners.each_ref().map(|listener| listener.address().clone());
            let [first, second] = listeners;
            let [a, b] = addresses;
            let target = node(1, second, a, ack).await;
            let source = node(0, first, b, ack).await;
            while source.state(0) != MirrorState::Mirroring {
                time::sleep(Duration::from_millis(10)).await;
            }
            let tasks: Vec<_> = (0..TASKS)
                .map(|task| {
                    let source = source.clone();
                    spawn(async move {
                        let data = buf::alloc(4096).await.freeze();
                        let mut place = buf::alloc(4096).await;
                        for round in 0..rounds {
                            let offset = (round * TASKS + task) % 1000 * 4096;
                            source.write(offset, data.clone(), false).await.unwrap();
                            place = source.read(offset, place).await.unwrap();
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            source.stop().await.unwrap();
            source.close();
            target.close();
        })
        .unwrap();
    });
    counted.count_total
}

#[test]
fn mirrored_calls_do_not_allocate() {
    let config = RuntimeConfig { io_engine: IoEngine::IoUring, ..RuntimeConfig::default() };
    // The threads driver passes events through heap memory.
    if let Err(error) = run(&config, async || {}) {
        return eprintln!("skipped: {error}");
    }
    for ack in [Ack::Disk, Ack::Memory] {
        let few = allocations(ack, 200);
        let many = allocations(ack, 2200);
        assert!(many < few + SLACK, "{ack:?}: {few} for few, {many} for many");
    }
}

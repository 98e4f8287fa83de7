//! Host on several cores, each with its own association.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::fake::{Fake, Quirks};
use common::{Server, any_port, memory, on_cores, options, subnqn};
use flagstone_blockdev::{BlockDevice, IoError, SharedDevice};
use flagstone_conformance::{self as conformance, Options};
use flagstone_nvme::pdu::Digests;
use flagstone_nvmf_host::{HostOptions, RemoteDevice};
use flagstone_nvmf_target::TargetConfig;
use flagstone_runtime::{buf, cores, time};

/// Reads a block on core 1.
async fn read_there(device: &Arc<RemoteDevice>) -> Result<(), IoError> {
    let (there, answer) = (device.clone(), Arc::new(parking_lot::Mutex::new(None)));
    let reported = answer.clone();
    cores()[1].spawn(move || async move {
        let result = there.read(0, buf::alloc(512).await).await.map(drop);
        drop(there);
        *reported.lock() = Some(result);
    });
    loop {
        if let Some(result) = answer.lock().take() {
            return result;
        }
        time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn remote_device_conforms() {
    on_cores(2, async || {
        let server = Server::start(memory(64 << 20, 512));
        let make = async || server.connect(options()).await as SharedDevice;
        conformance::run(make, Options::quick(1)).await;
    });
}

#[test]
fn remote_device_conforms_with_digests_and_queues() {
    on_cores(2, async || {
        let config = TargetConfig {
            in_capsule_bytes: 4096,
            mdts_bytes: 16 << 10,
            max_h2c_data_bytes: 8192,
            ..TargetConfig::default()
        };
        let server = Server::start_with(memory(64 << 20, 4096), config, &any_port());
        let digests = Digests { header: true, data: true };
        let options = HostOptions { queues: 3, queue_depth: 5, digests, ..options() };
        let make = async || server.connect(options.clone()).await as SharedDevice;
        conformance::run(make, Options::quick(2)).await;
    });
}

#[test]
fn disconnect_releases_everything() {
    on_cores(2, async || {
        let server = Server::start(memory(1 << 20, 512));
        let device = server.connect(options()).await;
        device.write(0, buf::zeroes(4096), false).await.unwrap();
        read_there(&device).await.unwrap();
        device.disconnect().await;
        server.until_deserted().await;
        assert_eq!(read_there(&device).await, Err(IoError::Unreachable));
        let refused = device.read(0, buf::alloc(512).await).await;
        assert_eq!(refused.err(), Some(IoError::Unreachable));
    });
}

#[test]
fn dropped_device_releases_every_core() {
    on_cores(2, async || {
        let server = Server::start(memory(1 << 20, 512));
        let device = server.connect(options()).await;
        read_there(&device).await.unwrap();
        assert_eq!(server.target.controllers(), 2, "one association a core");
        drop(device);
        server.until_deserted().await;
    });
}

#[test]
fn no_core_connects_after_disconnect() {
    on_cores(2, async || {
        let server = Server::start(memory(1 << 20, 512));
        let device = server.connect(options()).await;
        device.disconnect().await;
        server.until_deserted().await;
        assert_eq!(read_there(&device).await, Err(IoError::Unreachable));
        assert_eq!(server.target.controllers(), 0);
    });
}

/// The writes of another core were answered over another connection, and only a flush over that
/// connection proves that the target kept them.
#[test]
fn flush_covers_links_of_all_cores() {
    on_cores(2, async || {
        let fake = Fake::start(Quirks::default());
        let device =
            RemoteDevice::connect(fake.address.clone(), &subnqn(), options()).await.unwrap();
        let there = device.clone();
        let write =
            cores()[1].call(move || async move { there.write(0, buf::zeroes(512), false).await });
        write.await.expect("the core runs").unwrap();
        assert_eq!(fake.state.connections.get(), 4, "two cores");
        let before = fake.state.commands.get();
        device.flush().await.unwrap();
        assert_eq!(fake.state.commands.get(), before + 2, "a flush of each core");
        device.flush().await.unwrap();
        assert_eq!(fake.state.commands.get(), before + 3, "nothing was unflushed there");
    });
}

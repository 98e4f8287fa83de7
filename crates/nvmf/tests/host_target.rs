//! The host against Flagstone's own target, on both real drivers.
#![allow(missing_docs)]

mod host_common;

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::conformance;
use flagstone_blockdev::{BlockDevice, IoError, MemoryDevice, SharedDevice};
use flagstone_nvme::pdu::Digests;
use flagstone_nvmf::host::{HostError, HostOptions, RemoteDevice, discover};
use flagstone_nvmf::target::TargetConfig;
use flagstone_runtime::{buf, spawn};
use host_common::{Server, any_port, on_each_driver, options, subnqn};

fn memory(bytes: u64, block_bytes: u32) -> SharedDevice {
    Arc::new(MemoryDevice::new(bytes, block_bytes).unwrap())
}

#[test]
fn it_is_a_block_device() {
    on_each_driver(2, async || {
        let server = Server::start(memory(64 << 20, 512));
        let make = async || server.connect(options()).await as SharedDevice;
        conformance::run(make, conformance::Options::quick(1)).await;
    });
}

#[test]
fn so_is_one_with_digests_small_transfers_and_several_queues() {
    on_each_driver(2, async || {
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
        conformance::run(make, conformance::Options::quick(2)).await;
    });
}

#[test]
fn what_is_served_can_be_discovered() {
    on_each_driver(1, async || {
        let server = Server::start(memory(1 << 20, 512));
        let found = discover(server.address.clone(), &options()).await.unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].subnqn, &found[0].address), (subnqn(), &server.address));
        server.until_deserted().await;
    });
}

#[test]
fn an_end_in_order_leaves_nothing_behind() {
    on_each_driver(2, async || {
        let server = Server::start(memory(1 << 20, 512));
        let device = server.connect(options()).await;
        device.write(0, buf::zeroes(4096), false).await.unwrap();
        device.disconnect().await;
        server.until_deserted().await;
        let refused = device.read(0, buf::alloc(512).await).await;
        assert_eq!(refused.err(), Some(IoError::Unreachable));
    });
}

#[test]
fn a_device_that_is_dropped_leaves_nothing_behind_on_any_core() {
    on_each_driver(2, async || {
        let server = Server::start(memory(1 << 20, 512));
        let device = server.connect(options()).await;
        let (there, done) = (device.clone(), Arc::new(std::sync::atomic::AtomicBool::new(false)));
        let told = done.clone();
        flagstone_runtime::cores()[1].spawn(move || async move {
            let place = buf::alloc(512).await;
            there.read(0, place).await.unwrap();
            drop(there);
            told.store(true, std::sync::atomic::Ordering::Release);
        });
        while !done.load(std::sync::atomic::Ordering::Acquire) {
            flagstone_runtime::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(server.target.controllers(), 2, "one association a core");
        drop(device);
        server.until_deserted().await;
    });
}

#[test]
fn what_is_not_there_is_said_so() {
    on_each_driver(1, async || {
        let server = Server::start(memory(1 << 20, 512));
        let other = flagstone_nvme::Nqn::new("nqn.2024-01.example:other").unwrap();
        let error = RemoteDevice::connect(server.address.clone(), &other, options()).await;
        assert!(matches!(error, Err(HostError::Refused { what: "Connect", .. })), "{error:?}");
        let no_such = HostOptions { nsid: Some(9), ..options() };
        let error = RemoteDevice::connect(server.address.clone(), &subnqn(), no_such).await;
        assert!(matches!(error, Err(HostError::NoNamespace)), "{error:?}");
        server.stop();
        let error = RemoteDevice::connect(server.address.clone(), &subnqn(), options()).await;
        // Refused, unless the listener's last accept is still being taken back.
        let gone = |error: &HostError| {
            matches!(error, HostError::Connect(_) | HostError::Broken(_) | HostError::Closed)
        };
        assert!(error.as_ref().is_err_and(gone), "{error:?}");
    });
}

/// Many writers, each with blocks of its own, while connections are cut again and again: every
/// call ends well, once, and what was written last is there.
#[test]
fn no_command_is_lost_while_connections_break() {
    const WRITERS: u64 = 32;
    const ROUNDS: u32 = 60;
    on_each_driver(1, async || {
        let server = Server::start(memory(WRITERS * 8192, 512));
        let device = server.connect(HostOptions { queues: 2, ..options() }).await;
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let device = device.clone();
                spawn(async move {
                    for round in 1..=ROUNDS {
                        let mut data = buf::alloc(8192).await;
                        data.fill((round as u8) ^ (writer as u8));
                        device.write(writer * 8192, data.freeze(), false).await.unwrap();
                        let mut place = buf::alloc(8192).await;
                        place.fill(0xee);
                        let back = device.read(writer * 8192, place).await.unwrap();
                        assert!(back.iter().all(|byte| *byte == (round as u8) ^ (writer as u8)));
                    }
                })
            })
            .collect();
        let mut cuts = 0;
        while !writers.iter().all(|writer| writer.is_finished()) {
            server.stop();
            flagstone_runtime::task::yield_now().await;
            server.resume();
            cuts += 1;
            // Some work between two cuts, however slow the machine.
            for _ in 0..3 {
                let place = buf::alloc(512).await;
                device.read(0, place).await.unwrap();
            }
        }
        for writer in writers {
            writer.await.unwrap();
        }
        assert!(cuts > 3, "{cuts} cuts");
        drop(device);
        server.until_deserted().await;
    });
}

#[test]
fn calls_fail_when_the_target_stays_away_and_work_when_it_is_back() {
    on_each_driver(1, async || {
        let server = Server::start(memory(1 << 20, 512));
        let impatient = HostOptions { loss_timeout: Duration::from_millis(50), ..options() };
        let device = server.connect(impatient).await;
        server.stop();
        let place = buf::alloc(512).await;
        assert_eq!(device.read(0, place).await.err(), Some(IoError::Unreachable));
        server.resume();
        loop {
            let place = buf::alloc(512).await;
            match device.read(0, place).await {
                Ok(_) => break,
                Err(error) => assert_eq!(error, IoError::Unreachable),
            }
            flagstone_runtime::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

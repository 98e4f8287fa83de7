//! Host against Flagstone's own target, on the real drivers and in simulated worlds.

mod common;
#[path = "../../nvmf-target/tests/support/harness.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use common::{Server, memory, options, subnqn};
use flagstone_blockdev::{BlockDevice, IoError, MemoryDevice, SharedDevice};
use flagstone_conformance::{self as conformance, Options};
use flagstone_nvmf_host::{HostError, HostOptions, RemoteDevice, discover};
use flagstone_runtime::{buf, spawn};
use support::{in_simulation, on_each_driver};

#[test]
fn remote_device_conforms_in_simulation() {
    for seed in 1..=4 {
        in_simulation(seed, async || {
            let server = Server::start(memory(4 << 20, 512));
            let make = async || server.connect(options()).await as SharedDevice;
            conformance::run(make, Options::quick(seed)).await;
            server.until_deserted().await;
        });
    }
}

#[test]
fn discovery_finds_subsystems() {
    on_each_driver(async || {
        let server = Server::start(memory(1 << 20, 512));
        let found = discover(server.address.clone(), &options()).await.unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].subnqn, &found[0].address), (subnqn(), &server.address));
        server.until_deserted().await;
    });
}

#[test]
fn missing_targets_are_reported() {
    on_each_driver(async || {
        let server = Server::start(memory(1 << 20, 512));
        let other = flagstone_nvme::Nqn::new("nqn.2024-01.example:other").unwrap();
        let error = RemoteDevice::connect(server.address.clone(), &other, options()).await;
        assert!(
            matches!(error, Err(HostError::FabricsRefused { what: "Connect", .. })),
            "{error:?}"
        );
        let words = "the target refused Connect: Connect Invalid Parameters (1h/82h)";
        assert_eq!(error.err().unwrap().to_string(), words);
        let no_such = HostOptions { nsid: Some(9), ..options() };
        let error = RemoteDevice::connect(server.address.clone(), &subnqn(), no_such).await;
        assert!(matches!(error, Err(HostError::NoNamespace)), "{error:?}");
        server.stop();
        let error = RemoteDevice::connect(server.address.clone(), &subnqn(), options()).await;
        // Refused, unless the listener's last accept is still being canceled.
        let gone = |error: &HostError| {
            matches!(error, HostError::Connect(_) | HostError::Broken(_) | HostError::Closed)
        };
        assert!(error.as_ref().is_err_and(gone), "{error:?}");
    });
}

#[test]
fn discard_reaches_device() {
    on_each_driver(async || {
        let disk = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
        let server = Server::start(disk.clone());
        let device = server.connect(options()).await;
        assert!(device.geometry().can_discard);
        let mut data = buf::alloc(1 << 18).await;
        data.fill(7);
        device.write(0, data.freeze(), false).await.unwrap();
        assert_eq!(disk.held_bytes(), 1 << 18);
        device.discard(0, 1 << 20).await.unwrap();
        assert_eq!(disk.held_bytes(), 0);
        drop(device);
        server.until_deserted().await;
    });
}

/// Many writers on disjoint blocks while connections are cut repeatedly: every call completes once,
/// and the last write of each is present.
#[test]
fn no_command_lost_across_reconnects() {
    const WRITERS: u64 = 32;
    const ROUNDS: u32 = 60;
    on_each_driver(async || {
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
            // Some progress between two cuts, however slow the machine.
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

/// Regression: each connection had completed commands, and every loss still lengthened the
/// reconnect pause.
#[test]
fn reconnect_pause_resets_after_use() {
    in_simulation(1, async || {
        let server = Server::start(memory(1 << 20, 512));
        let device = server.connect(HostOptions::default()).await;
        for _ in 0..12 {
            device.read(0, buf::alloc(512).await).await.unwrap();
            server.stop();
            flagstone_runtime::task::yield_now().await;
            server.resume();
            let begin = flagstone_runtime::time::now();
            device.read(0, buf::alloc(512).await).await.unwrap();
            assert!(begin.elapsed() < Duration::from_millis(500), "{:?}", begin.elapsed());
        }
        drop(device);
        server.until_deserted().await;
    });
}

#[test]
fn calls_fail_during_outage_and_recover() {
    on_each_driver(async || {
        let server = Server::start(memory(1 << 20, 512));
        let short_timeouts = HostOptions { loss_timeout: Duration::from_millis(50), ..options() };
        let device = server.connect(short_timeouts).await;
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

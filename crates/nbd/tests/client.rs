//! Client against Flagstone's server: it behaves like any block device.

mod common;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use common::blocking_device::BlockingDevice;
use common::{
    Running, any_port, leaves_nothing, memory, on_each_driver, on_each_real_driver, until,
};
use flagstone_blockdev::{BlockDevice, Geometry, IoError, SharedDevice, ZeroFlags};
use flagstone_conformance::{self as conformance, Options};
use flagstone_nbd::client::negotiate::NegotiationError;
use flagstone_nbd::{ClientOptions, ConnectError, Export, NbdDevice, ServerOptions};
use flagstone_runtime::net::Address;
use flagstone_runtime::{Buf, buf, spawn, time};

async fn connect(address: &Address) -> Arc<NbdDevice> {
    NbdDevice::connect(address.clone(), "disk", ClientOptions::default()).await.unwrap()
}

async fn conforms(address: &Address, block_bytes: u32, options: Options) {
    let bound = address.clone();
    let servers = std::cell::RefCell::new(Vec::new());
    let make = async || {
        let export = Export::new("disk", memory(64 << 20, block_bytes));
        let server = Running::start(&bound, vec![export], ServerOptions::default());
        let device = connect(&server.address).await;
        servers.borrow_mut().push(server);
        device as SharedDevice
    };
    conformance::run(make, options).await;
}

#[test]
fn client_and_server_conform_over_tcp() {
    on_each_driver(async || {
        for block_bytes in [512, 4096] {
            conforms(&any_port(), block_bytes, Options::quick(1)).await;
        }
    });
}

/// Regression: a flush on another connection was acknowledged although the server had lost the
/// write, and the connection of the write had not noticed.
#[test]
fn flush_covers_connections_with_unflushed_writes() {
    on_each_real_driver(async || {
        let (device, calls) = BlockingDevice::wrap(memory(1 << 20, 512));
        let server = Running::with(device);
        let device = connect(&server.address).await;
        let writer = device.clone();
        let cores = flagstone_runtime::cores();
        let written = cores[1].call(move || async move {
            writer.write(0, Buf::copy_of(&[1; 512]).unwrap(), false).await
        });
        assert_eq!(written.await.unwrap(), Ok(()));
        device.flush().await.unwrap();
        assert_eq!(calls.begun(), 3, "one write, and the flushes of two connections");
        // Nothing is unflushed.
        device.flush().await.unwrap();
        assert_eq!(calls.begun(), 4);
    });
}

#[test]
fn client_and_server_conform_over_unix_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let count = Cell::new(0);
    on_each_real_driver(async || {
        count.set(count.get() + 1);
        let servers = std::cell::RefCell::new(Vec::new());
        let made = Cell::new(0);
        let make = async || {
            made.set(made.get() + 1);
            let name = format!("{}-{}", count.get(), made.get());
            let address = Address::Unix(dir.path().join(name));
            let export = Export::new("disk", memory(8 << 20, 512));
            let server = Running::start(&address, vec![export], ServerOptions::default());
            servers.borrow_mut().push(server);
            connect(&address).await as SharedDevice
        };
        conformance::run(make, Options::quick(2)).await;
    });
}

#[test]
fn client_transfers_of_all_lengths() {
    on_each_real_driver(async || {
        let server = Running::with(memory(80 << 20, 512));
        let device = connect(&server.address).await;
        for len in [512, 4096, 65536, 65536 + 512, 1 << 20, 32 << 20] {
            let mut data = buf::alloc(len).await;
            for (number, part) in data.chunks_mut(512).enumerate() {
                part.fill((number * 31 + number / 256) as u8);
            }
            let data = data.freeze();
            device.write(1024, data.clone(), false).await.unwrap();
            let read = device.read(1024, buf::alloc(len).await).await.unwrap();
            assert!(read[..] == data[..], "{len} bytes");
        }
    });
}

/// What the server's device knows of its holes, its clients know.
#[test]
fn client_reports_allocation() {
    on_each_driver(async || {
        let server = Running::with(memory(64 << 20, 512));
        let device = connect(&server.address).await;
        let mut data = buf::alloc(4096).await;
        data.fill(1);
        device.write(40 << 20, data.freeze(), false).await.unwrap();
        let (mut at, mut data) = (0, Vec::new());
        while at < 64 << 20 {
            let found = device.allocated(at, (64 << 20) - at).await.unwrap();
            data.extend((!found[0].is_hole).then_some(at..at + found[0].len));
            at += found[0].len;
        }
        assert_eq!(data.len(), 1);
        assert!(data[0].contains(&(40 << 20)) && data[0].end - data[0].start <= 1 << 20);
    });
}

#[test]
fn client_reports_server_geometry() {
    on_each_driver(async || {
        let server = Running::with(memory(1 << 20, 4096));
        let device = connect(&server.address).await;
        let geometry = device.geometry();
        assert_eq!((geometry.size_bytes, geometry.block_bytes), (1 << 20, 4096));
        assert!(geometry.can_discard && geometry.can_write_zeroes && !geometry.read_only);
        let export = Export::new("disk", memory(1 << 20, 512)).read_only(true);
        let server = Running::start(&any_port(), vec![export], ServerOptions::default());
        let device = connect(&server.address).await;
        assert!(device.geometry().read_only);
        let data = Buf::copy_of(&[1; 512]).unwrap();
        assert_eq!(device.write(0, data, false).await, Err(IoError::ReadOnly));
        assert_eq!(device.discard(0, 512).await, Err(IoError::ReadOnly));
    });
}

#[test]
fn missing_export_is_named() {
    on_each_driver(async || {
        let server = Running::with(memory(1 << 20, 512));
        let options = ClientOptions::default();
        let error = NbdDevice::connect(server.address.clone(), "tape", options).await.unwrap_err();
        let expected = NegotiationError::UnknownExport("tape".to_owned());
        assert!(matches!(error, ConnectError::Negotiation(error) if error == expected));
        // The empty name is the default, the only export here.
        NbdDevice::connect(server.address.clone(), "", options).await.unwrap();
    });
}

#[test]
fn hundreds_of_calls_are_pipelined() {
    on_each_driver(async || {
        let server = Running::with(memory(1 << 20, 512));
        let device = connect(&server.address).await;
        let mut tasks = Vec::new();
        for number in 0..500_u64 {
            let device = device.clone();
            tasks.push(spawn(async move {
                let offset = number * 2048;
                let data = Buf::copy_of(&[number as u8; 2048]).unwrap();
                device.write(offset, data, false).await.unwrap();
                let read = device.read(offset, buf::alloc(2048).await).await.unwrap();
                assert_eq!(read[..], [number as u8; 2048]);
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn dropped_device_disconnects_and_leaks_nothing() {
    on_each_driver(async || {
        let server = Running::with(memory(1 << 20, 512));
        leaves_nothing(async || {
            for _ in 0..20 {
                let device = connect(&server.address).await;
                let data = Buf::copy_of(&[1; 512]).unwrap();
                device.write(0, data, false).await.unwrap();
                // Dropped immediately: the call completes, and then the connection ends.
                drop(device.read(0, buf::alloc(4096).await));
                drop(device);
            }
            server.quiet().await;
        })
        .await;
    });
}

#[test]
fn each_core_has_its_own_connection() {
    on_each_real_driver(async || {
        let server = Running::with(memory(1 << 20, 512));
        let device = connect(&server.address).await;
        let there = device.clone();
        flagstone_runtime::cores()[1].spawn(move || async move {
            let data = Buf::copy_of(&[5; 512]).unwrap();
            there.write(512, data, true).await.unwrap();
        });
        until(|| server.server.connections() == 2).await;
        loop {
            let read = device.read(512, buf::alloc(512).await).await.unwrap();
            if read[..] == [5; 512] {
                break;
            }
            time::sleep(Duration::from_millis(1)).await;
        }
        drop(device);
        server.quiet().await;
    });
}

#[test]
fn invalid_ranges_never_reach_server() {
    on_each_driver(async || {
        let server = Running::with(memory(1 << 20, 4096));
        let device = connect(&server.address).await;
        let small = buf::alloc(512).await;
        assert_eq!(device.read(0, small).await.unwrap_err(), IoError::Misaligned);
        let beyond = device.read(1 << 20, buf::alloc(4096).await).await;
        assert_eq!(beyond.unwrap_err(), IoError::OutOfRange);
        let zeroes = device.write_zeroes(4096, 1 << 20, ZeroFlags::default()).await;
        assert_eq!(zeroes, Err(IoError::OutOfRange));
        assert_eq!(device.geometry(), Geometry { volatile_cache: true, ..device.geometry() });
    });
}

//! Subsystems whose other namespaces come and go while a host uses one, on the real drivers.
//!
//! Left out: other targets than Flagstone's.

mod common;
#[path = "../../nvmf-target/tests/support/harness.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use common::{Server, any_port, memory, namespace, options, subnqn};
use flagstone_blockdev::{BlockDevice, Geometry, IoFuture, SharedDevice, ZeroFlags};
use flagstone_nvmf_host::{HostError, HostOptions, MultipathDevice, RemoteDevice};
use flagstone_nvmf_target::TargetConfig;
use flagstone_runtime::{Buf, BufMut, buf, spawn, task, time};
use support::on_each_driver;

const BYTES: u64 = 1 << 20;

fn some_device() -> SharedDevice {
    memory(BYTES, 512)
}

async fn filled(byte: u8) -> Buf {
    let mut data = buf::alloc(512).await;
    data.fill(byte);
    data.freeze()
}

async fn first_byte(device: &SharedDevice) -> u8 {
    device.read(0, buf::alloc(512).await).await.unwrap()[0]
}

/// A device with a volatile write cache.
struct Cached(SharedDevice);

impl BlockDevice for Cached {
    fn geometry(&self) -> Geometry {
        Geometry { volatile_cache: true, ..self.0.geometry() }
    }
    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.0.read(offset, buf)
    }
    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        self.0.write(offset, data, fua)
    }
    fn flush(&self) -> IoFuture<()> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.0.discard(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.0.write_zeroes(offset, len, flags)
    }
}

/// Regression: after a restart the host took the first namespace that was served already,
/// found that it was another one, and failed all calls at once.
#[test]
fn call_waits_for_its_namespace_though_another_is_served() {
    on_each_driver(async || {
        let (own, other) = (some_device(), some_device());
        let server = Server::start(own.clone());
        server.target.add_namespace(&subnqn(), namespace(8, other.clone())).unwrap();
        let device = server.connect(HostOptions { nsid: Some(7), ..options() }).await;
        server.stop();
        task::yield_now().await;
        server.target.remove_namespace(&subnqn(), 7).unwrap();
        server.resume();
        let written = spawn(async move { device.write(0, filled(1).await, false).await });
        // Several attempts to connect.
        time::sleep(Duration::from_millis(30)).await;
        assert!(!written.is_finished(), "the namespace is missing");
        server.target.add_namespace(&subnqn(), namespace(7, own.clone())).unwrap();
        assert_eq!(written.await, Ok(Ok(())));
        assert_eq!((first_byte(&own).await, first_byte(&other).await), (1, 0));
        server.until_deserted().await;
    });
}

/// Regression: the volatile write cache of a later namespace was taken for one of this namespace,
/// whose calls then failed until the host was restarted.
#[test]
fn cache_of_another_namespace_changes_nothing() {
    on_each_driver(async || {
        let server = Server::start(some_device());
        let device = server.connect(options()).await;
        let cached: SharedDevice = Arc::new(Cached(some_device()));
        server.target.add_namespace(&subnqn(), namespace(8, cached)).unwrap();
        device.write(0, filled(1).await, false).await.unwrap();
        device.flush().await.unwrap();
        assert!(!device.geometry().volatile_cache);
        let cached = server.connect(HostOptions { nsid: Some(8), ..options() }).await;
        assert!(cached.geometry().volatile_cache);
        drop((device, cached));
        server.until_deserted().await;
    });
}

/// Regression: the first namespace was taken, which after a restart of the target was another one
/// than before if a device was late.
#[test]
fn one_of_several_namespaces_has_to_be_named() {
    on_each_driver(async || {
        let server = Server::start(some_device());
        server.target.add_namespace(&subnqn(), namespace(8, some_device())).unwrap();
        let error = RemoteDevice::connect(server.address.clone(), &subnqn(), options()).await;
        assert!(matches!(error, Err(HostError::SeveralNamespaces)), "{error:?}");
        let device = server.connect(HostOptions { nsid: Some(8), ..options() }).await;
        assert_eq!(device.nsid(), 8);
        drop(device);
        server.until_deserted().await;
    });
}

/// Regression: paths were compared by the geometry of their first namespaces only.
#[test]
fn each_path_leads_to_the_same_namespace() {
    on_each_driver(async || {
        let (shared, other) = (some_device(), some_device());
        let servers = [7, 8].map(|first| {
            let server = Server::start_with(other.clone(), TargetConfig::default(), &any_port());
            server.target.remove_namespace(&subnqn(), 7).unwrap();
            let device = if first == 7 { &shared } else { &other };
            server.target.add_namespace(&subnqn(), namespace(first, device.clone())).unwrap();
            server
        });
        let addresses = servers.iter().map(|server| server.address.clone()).collect();
        let device = MultipathDevice::connect(addresses, &subnqn(), options()).await.unwrap();
        servers[0].stop();
        let written = spawn(async move { device.write(0, filled(1).await, false).await });
        time::sleep(Duration::from_millis(30)).await;
        assert!(!written.is_finished(), "no path leads to the namespace");
        servers[1].target.add_namespace(&subnqn(), namespace(7, shared.clone())).unwrap();
        assert_eq!(written.await, Ok(Ok(())));
        assert_eq!((first_byte(&shared).await, first_byte(&other).await), (1, 0));
    });
}

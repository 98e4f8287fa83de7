//! Controllers: their events, queues, timeouts and hosts.

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{FileDevice, FileOptions, SharedDevice};
use flagstone_nvme::command::admin::{Abort, GetLogPage, Identify};
use flagstone_nvme::event::{AsyncEvent, EventMask};
use flagstone_nvme::feature::FeatureId;
use flagstone_nvme::identify::Cns;
use flagstone_nvme::limits::NAMESPACE_ID_ALL;
use flagstone_nvme::log::LogId;
use flagstone_nvme::property::{Configuration, shutdown, shutdown_status};
use flagstone_nvme::{Nqn, Sqe, Status};
use flagstone_nvmf_target::TargetConfig;
use flagstone_runtime::time;

use crate::memory;
use crate::support::client::enabled;
use crate::support::{
    Client, Host, Options, Server, eventually, in_simulation, on_each_driver, pattern, subsystem,
};

/// Regression: an address could take all connections without a key, with discovery or silence.
#[test]
fn address_without_volume_leaves_connections_to_others() {
    on_each_driver(async || {
        let server = Server::with(TargetConfig { max_controllers: 40, ..TargetConfig::default() });
        let host = Host::attach(&server, &Options::default()).await;
        let mut idle = Vec::new();
        for _ in 0..32 {
            idle.push(Client::open(&server).await);
        }
        Client::open(&server).await.closed().await;
        // The host of a volume does not count.
        drop((host, idle));
        server.is_quiet().await;
    });
}

#[test]
fn namespace_changes_are_announced() {
    on_each_driver(async || {
        let server = Server::new();
        let mut host = Host::attach(&server, &Options::default()).await;
        let mask = EventMask::NAMESPACE_ATTRIBUTE.0;
        let enable = Sqe::set_features(1, FeatureId::ASYNC_EVENTS, mask);
        assert_eq!(host.admin.call(enable).await.status(), Status::SUCCESS);
        host.admin.submit(Sqe::async_event_request(40)).await;
        let nsid = server.add(memory(512));
        let event = host.admin.response().await;
        assert_eq!((event.cid.get(), event.async_event()), (40, AsyncEvent::NAMESPACE_CHANGED));
        host.io.write(nsid, 0, 512, &[1; 512]).await.unwrap();
        let log = GetLogPage::new(LogId::CHANGED_NAMESPACES, NAMESPACE_ID_ALL, 0, 4096);
        let changed = host.admin.ask(log.command(2).unwrap()).await.unwrap();
        assert_eq!(changed[..8], [nsid as u8, 0, 0, 0, 0, 0, 0, 0]);
        host.admin.submit(Sqe::async_event_request(41)).await;
        drop(server.target.remove_namespace(&subsystem(), nsid).unwrap());
        assert_eq!(host.admin.response().await.cid.get(), 41);
        let gone = host.io.write(nsid, 0, 512, &[1; 512]).await;
        assert_eq!(gone, Err(Status::INVALID_NAMESPACE.dnr()));
        // Abort of an Asynchronous Event Request.
        host.admin.submit(Sqe::async_event_request(42)).await;
        host.admin.submit(Sqe::abort(43, Abort { sqid: 0, cid: 42 })).await;
        let mut ended = [host.admin.response().await, host.admin.response().await];
        ended.sort_by_key(|completion| completion.cid.get());
        assert_eq!(ended[0].status().code(), Status::ABORT_REQUESTED);
        assert_eq!((ended[1].status(), ended[1].dw0.get()), (Status::SUCCESS, 0));
        // Abort of any other command is too late.
        let late = host.admin.call(Sqe::abort(44, Abort { sqid: 1, cid: 1 })).await;
        assert_eq!((late.status(), late.dw0.get()), (Status::SUCCESS, Abort::NOT_ABORTED));
        drop(host);
        server.is_sound().await;
    });
}

/// Its owner opens the devices again right afterwards.
#[test]
fn retired_subsystem_has_released_its_devices() {
    on_each_driver(async || {
        let server = Server::new();
        let device = memory(512);
        let held = Arc::downgrade(&device);
        let nsid = server.add(device);
        let mut host = Host::attach(&server, &Options::default()).await;
        host.io.write(nsid, 0, 512, &[1; 512]).await.unwrap();
        server.target.retire_subsystem(&subsystem()).unwrap().drained().await;
        assert_eq!(held.strong_count(), 0);
        drop(host);
    });
}

#[test]
fn resize_during_activity() {
    in_simulation(6, async || {
        let server = Server::new();
        let options =
            FileOptions { create_bytes: Some(1 << 20), direct: false, ..FileOptions::default() };
        let device: SharedDevice = FileDevice::open("/grows", &options).unwrap();
        let nsid = server.add(device.clone());
        let mut host = Host::attach(&server, &Options::default()).await;
        let mask = EventMask::NAMESPACE_ATTRIBUTE.0;
        let enable = Sqe::set_features(1, FeatureId::ASYNC_EVENTS, mask);
        assert_eq!(host.admin.call(enable).await.status(), Status::SUCCESS);
        host.admin.submit(Sqe::async_event_request(40)).await;
        let last = (1 << 20) / 4096;
        let beyond = host.io.write(nsid, last, 4096, &[7; 4096]).await;
        assert_eq!(beyond, Err(Status::LBA_OUT_OF_RANGE.dnr()));
        // Unchanged size: no notification.
        server.target.resize_namespace(&subsystem(), nsid).unwrap();
        let wanted = flagstone_runtime::fs::OpenOptions {
            exclusive: false,
            direct: false,
            ..Default::default()
        };
        let file = flagstone_runtime::fs::File::open("/grows", &wanted).unwrap();
        let page = flagstone_runtime::buf::alloc(4096).await.freeze();
        file.write_at(page, (2 << 20) - 4096, true).await.unwrap();
        device.refresh();
        server.target.resize_namespace(&subsystem(), nsid).unwrap();
        let event = host.admin.response().await;
        assert_eq!((event.cid.get(), event.async_event()), (40, AsyncEvent::NAMESPACE_CHANGED));
        let log = GetLogPage::new(LogId::CHANGED_NAMESPACES, NAMESPACE_ID_ALL, 0, 4096);
        let changed = host.admin.ask(log.command(2).unwrap()).await.unwrap();
        assert_eq!(changed[..8], [nsid as u8, 0, 0, 0, 0, 0, 0, 0]);
        let identify = Identify::new(Cns::NAMESPACE, nsid);
        let said = host.admin.ask(identify.command(3)).await.unwrap();
        assert_eq!(said[..8], (2u64 * last).to_le_bytes(), "NSZE");
        // On the existing queue.
        host.io.write(nsid, 2 * last - 1, 4096, &[7; 4096]).await.unwrap();
        let beyond = host.io.write(nsid, 2 * last, 4096, &[7; 4096]).await;
        assert_eq!(beyond, Err(Status::LBA_OUT_OF_RANGE.dnr()));
        drop(host);
        server.is_sound().await;
    });
}

#[test]
fn silent_host_loses_controller() {
    in_simulation(5, async || {
        let server = Server::new();
        let options = Options { keep_alive_ms: 15_000, ..Options::default() };
        let mut host = Host::attach(&server, &options).await;
        for _ in 0..20 {
            time::sleep(Duration::from_secs(14)).await;
            assert_eq!(host.admin.call(Sqe::keep_alive(1)).await.status(), Status::SUCCESS);
        }
        // Traffic on an I/O queue counts.
        for _ in 0..20 {
            time::sleep(Duration::from_secs(14)).await;
            host.io.write(1, 0, 512, &[1; 512]).await.unwrap();
        }
        host.admin.closed().await;
        host.io.closed().await;
        assert_eq!(server.target.controllers(), 0);
        server.is_sound().await;
    });
}

#[test]
fn disconnect_of_an_io_queue() {
    on_each_driver(async || {
        let server = Server::new();
        let mut host = Host::attach(&server, &Options::default()).await;
        let disconnect = Sqe::disconnect(7);
        let status = host.admin.call(disconnect).await.status();
        assert_eq!(status.code(), Status::INVALID_QUEUE_TYPE);
        assert_eq!(host.io.call(disconnect).await.status(), Status::SUCCESS);
        host.io.closed().await;
        let queues =
            || server.target.subsystem_status(&subsystem()).unwrap().controllers[0].queues.clone();
        eventually("the queue is gone", || queues() == [0]).await;
        let mut again = host.queue(&server, 1).await;
        again.write(1, 0, 512, &[1; 512]).await.unwrap();
        drop((host, again));
        server.is_sound().await;
    });
}

#[test]
fn reset_ends_queues_and_shutdown_ends_io() {
    on_each_driver(async || {
        let server = Server::new();
        let mut host = Host::attach(&server, &Options::default()).await;
        for _ in 0..3 {
            assert_eq!(host.admin.configure(Configuration::default()).await, Status::SUCCESS);
            assert_eq!(host.admin.status().await.ready(), 0);
            host.io.closed().await;
            let identify = Identify::new(Cns::CONTROLLER, 0).command(1);
            assert!(host.admin.ask(identify).await.is_err());
            assert_eq!(host.admin.configure(enabled()).await, Status::SUCCESS);
            assert_eq!(host.admin.status().await.ready(), 1);
            host.admin.ask(identify).await.unwrap();
            host.io = host.queue(&server, 1).await;
            host.io.write(1, 0, 512, &[1; 512]).await.unwrap();
        }
        let before = server.gate.writes();
        let stop = enabled().with_shutdown(shutdown::ABRUPT);
        assert_eq!(host.admin.configure(stop).await, Status::SUCCESS);
        let status = host.admin.status().await;
        assert_eq!(status.shutdown_status(), shutdown_status::COMPLETE);
        assert!(host.io.write(1, 0, 512, &[1; 512]).await.is_err());
        assert_eq!(server.gate.writes(), before);
        drop(host);
        server.is_sound().await;
    });
}

#[test]
fn two_hosts_and_an_allow_list() {
    on_each_driver(async || {
        let server = Server::new();
        let one = Options::default();
        let two = Options { host: Nqn::from_uuid([2; 16]), host_id: [2; 16], ..one.clone() };
        let mut first = Host::attach(&server, &one).await;
        let mut second = Host::attach(&server, &two).await;
        assert_ne!(first.id, second.id);
        let data = pattern(2, 4096);
        first.io.write(1, 0, 512, &data).await.unwrap();
        assert_eq!(second.io.read(1, 0, 512, 4096).await.unwrap(), data);
        // A queue for the controller of a different host.
        let mut stray = Client::initialized(&server, &two).await;
        let refused = stray.connect(&two, 2, first.id).await;
        assert_eq!(refused.status().code(), Status::CONNECT_INVALID_PARAMETERS);
        // The second host is removed and disconnected; the first is unaffected.
        server.target.set_allowed_hosts(&subsystem(), Some(vec![one.host])).unwrap();
        second.admin.closed().await;
        second.io.closed().await;
        first.io.write(1, 0, 512, &data).await.unwrap();
        let mut again = Client::initialized(&server, &two).await;
        let refused = again.connect(&two, 0, 0xffff).await;
        assert_eq!(refused.status().code(), Status::CONNECT_INVALID_HOST);
        server.target.set_allowed_hosts(&subsystem(), None).unwrap();
        let accepted = again.connect(&two, 0, 0xffff).await;
        assert_eq!(accepted.status(), Status::SUCCESS);
        // A draining target refuses new hosts and keeps existing ones.
        server.target.drain();
        let mut late = Client::initialized(&server, &one).await;
        let busy = late.connect(&one, 0, 0xffff).await;
        assert_eq!(busy.status().code(), Status::CONNECT_CONTROLLER_BUSY);
        first.io.write(1, 0, 512, &data).await.unwrap();
        server.target.disconnect_all();
        first.io.closed().await;
        first.admin.closed().await;
        drop((first, second, stray, again, late));
        server.is_quiet().await;
    });
}

//! Asymmetric Namespace Access (Base 8.1.1): refused commands, and waiting for earlier commands.

mod support;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_nvme::limits::NAMESPACE_ID_ALL;
use flagstone_nvme::log::AnaState;
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::{Cqe, Sqe, Status};
use flagstone_nvmf_target::TargetConfig;
use flagstone_runtime::{spawn, time};

use support::client::{done, range};
use support::{
    Client, Host, Options, Server, eventually, in_simulation, on_each_driver, subsystem,
};

/// Base 8.1.1.4 to 8.1.1.8, and the path related statuses of 4.2.3.4. They lack Do Not Retry,
/// because another path may work.
#[test]
fn ana_state_refuses_all_io_or_none() {
    on_each_driver(async || {
        let server = Server::new();
        let mut host = Host::attach(&server, &Options::default()).await;
        for (state, status) in [
            (AnaState::INACCESSIBLE, Status::ANA_INACCESSIBLE),
            (AnaState::NON_OPTIMIZED, Status::SUCCESS),
            (AnaState::PERSISTENT_LOSS, Status::ANA_PERSISTENT_LOSS),
            (AnaState::CHANGE, Status::ANA_TRANSITION),
            (AnaState::OPTIMIZED, Status::SUCCESS),
        ] {
            server.target.set_ana_state(&subsystem(), state).unwrap();
            let expected = if status == Status::SUCCESS { Ok(()) } else { Err(status) };
            let before = (server.gate.writes(), server.gate.flushes());
            assert_eq!(host.io.write(1, 0, 512, &[1; 512]).await, expected, "{state}");
            assert_eq!(host.io.write_r2t(1, 0, 512, &[1; 512]).await, expected, "{state}");
            assert_eq!(host.io.read(1, 0, 512, 512).await.map(drop), expected, "{state}");
            for nsid in [1, NAMESPACE_ID_ALL] {
                let flushed = host.io.call(Sqe::flush(1, nsid)).await;
                assert_eq!(done(flushed), expected, "{state}");
            }
            let reached = before != (server.gate.writes(), server.gate.flushes());
            assert_eq!(reached, expected.is_ok(), "{state}");
        }
        drop(host);
        server.is_sound().await;
    });
}

#[test]
fn pending_namespace_is_inaccessible_and_others_are_not() {
    on_each_driver(async || {
        let server = Server::new();
        server.target.add_pending_namespace(&subsystem(), 2).unwrap();
        let mut host = Host::attach(&server, &Options::default()).await;
        let refused = Status::ANA_INACCESSIBLE;
        assert_eq!(host.io.write(2, 0, 512, &[1; 512]).await, Err(refused));
        assert_eq!(host.io.write_r2t(2, 0, 512, &[1; 512]).await, Err(refused));
        assert_eq!(host.io.read(2, 0, 512, 512).await.map(drop), Err(refused));
        // It has writes from before the restart that no flush here would reach.
        for nsid in [2, NAMESPACE_ID_ALL] {
            assert_eq!(done(host.io.call(Sqe::flush(1, nsid)).await), Err(refused));
        }
        assert_eq!(host.io.write(1, 0, 512, &[1; 512]).await, Ok(()));
        assert_eq!(done(host.io.call(Sqe::flush(1, 1)).await), Ok(()));
        assert_eq!(host.io.write(3, 0, 512, &[1; 512]).await, Err(Status::INVALID_NAMESPACE.dnr()));
        drop(host);
        server.is_sound().await;
    });
}

#[test]
fn drain_waits_only_for_admitted_commands() {
    on_each_driver(async || {
        let server = Server::new();
        let mut host = Host::attach(&server, &Options::default()).await;
        server.target.drained(&subsystem()).await.unwrap();
        server.gate.close();
        let sgl = SglDescriptor::in_capsule(512);
        let write = Sqe::write(7, 1, range(0, 512, 512), false, sgl);
        let capsule = host.io.capsule(&write, &[1; 512]);
        host.io.send(&capsule).await;
        eventually("the write is at the device", || server.gate.inside() == 1).await;
        server.target.set_ana_state(&subsystem(), AnaState::INACCESSIBLE).unwrap();
        let drained = Rc::new(Cell::new(false));
        let (target, reported) = (server.target.clone(), drained.clone());
        let waits = spawn(async move {
            target.drained(&subsystem()).await.unwrap();
            reported.set(true);
        });
        // Later commands fail immediately, and the earlier one continues.
        let refused = host.io.call(Sqe::flush(8, 1)).await;
        assert_eq!(done(refused), Err(Status::ANA_INACCESSIBLE));
        time::sleep(Duration::from_millis(5)).await;
        assert!(!drained.get() && server.gate.inside() == 1);
        server.gate.open();
        assert_eq!(done(host.io.response().await), Ok(()));
        waits.await.unwrap();
        assert!(drained.get());
        server.target.set_ana_state(&subsystem(), AnaState::OPTIMIZED).unwrap();
        drop(host);
        server.is_sound().await;
    });
}

/// True for the completion of the admitted write; all others are refusals.
fn answered(completion: Cqe) -> bool {
    let written = completion.cid.get() == 7;
    let expected = if written { Ok(()) } else { Err(Status::ANA_INACCESSIBLE) };
    assert_eq!(done(completion), expected);
    written
}

/// Waiting must end even while a host keeps sending refused commands.
#[test]
fn drain_ignores_refused_commands() {
    on_each_driver(async || {
        let server = Server::new();
        let mut host = Host::attach(&server, &Options::default()).await;
        server.gate.close();
        let sgl = SglDescriptor::in_capsule(512);
        let write = Sqe::write(7, 1, range(0, 512, 512), false, sgl);
        let capsule = host.io.capsule(&write, &[1; 512]);
        host.io.send(&capsule).await;
        eventually("the write is at the device", || server.gate.inside() == 1).await;
        // A write whose data is missing is refused when the data arrives, so it is not waited for.
        let owed = Sqe::write(9, 1, range(0, 512, 512), false, SglDescriptor::transport(512));
        let capsule = host.io.capsule(&owed, &[]);
        host.io.send(&capsule).await;
        let r2t = host.io.r2t().await;
        server.target.set_ana_state(&subsystem(), AnaState::INACCESSIBLE).unwrap();
        let drained = Rc::new(Cell::new(false));
        let (target, reported) = (server.target.clone(), drained.clone());
        let waits = spawn(async move {
            target.drained(&subsystem()).await.unwrap();
            reported.set(true);
        });
        // At every moment one of these commands is in flight.
        let mut written = false;
        for round in 0..200 {
            let capsule = host.io.capsule(&Sqe::read(10 + round, 1, range(0, 512, 512), 512), &[]);
            host.io.send(&capsule).await;
            if round == 100 {
                assert!(!drained.get() && !written);
                server.gate.open();
            }
            if round > 0 {
                written |= answered(host.io.response().await);
            }
        }
        waits.await.unwrap();
        for _ in 0..2 {
            written |= answered(host.io.response().await);
        }
        assert!(written);
        let data = host.io.data_for(&r2t, &[1; 512]);
        host.io.send(&data).await;
        assert!(!answered(host.io.response().await));
        assert_eq!(server.gate.writes(), 1);
        server.target.set_ana_state(&subsystem(), AnaState::OPTIMIZED).unwrap();
        drop(host);
        server.is_sound().await;
    });
}

/// A closed connection leaves its write in flight to the device, which must be waited for too.
#[test]
fn drain_waits_for_closed_connections() {
    in_simulation(1, async || {
        let server = Server::new();
        let mut host = Host::attach(&server, &Options::default()).await;
        server.gate.close();
        let sgl = SglDescriptor::in_capsule(512);
        let write = Sqe::write(7, 1, range(0, 512, 512), false, sgl);
        let capsule = host.io.capsule(&write, &[1; 512]);
        host.io.send(&capsule).await;
        eventually("the write is at the device", || server.gate.inside() == 1).await;
        drop(host);
        eventually("its controller is gone", || server.target.controllers() == 0).await;
        server.target.set_ana_state(&subsystem(), AnaState::INACCESSIBLE).unwrap();
        let volume = subsystem();
        let waits = time::timeout(Duration::from_secs(5), server.target.drained(&volume));
        assert!(waits.await.is_err());
        server.gate.open();
        server.target.drained(&subsystem()).await.unwrap();
        assert_eq!(server.gate.inside(), 0);
        server.target.set_ana_state(&subsystem(), AnaState::OPTIMIZED).unwrap();
        server.is_sound().await;
    });
}

/// Base 3.1.1: controller identifiers of one subsystem are unique across nodes.
#[test]
fn controller_ids_within_node_range() {
    in_simulation(1, async || {
        let config = TargetConfig { controller_ids: 100..=102, ..TargetConfig::default() };
        let server = Server::with(config);
        let mut hosts: Vec<Client> = Vec::new();
        for expected in [100, 101, 102] {
            let (client, id) = Host::admin(&server, &Options::default()).await;
            assert_eq!(id, expected);
            hosts.push(client);
        }
        let options = Options::default();
        let mut more = Client::initialized(&server, &options).await;
        let refused = more.connect(&options, 0, 0xffff).await;
        assert_eq!(done(refused), Err(Status::CONNECT_CONTROLLER_BUSY));
        hosts.remove(1);
        eventually("one is free", || server.target.controllers() == 2).await;
        assert_eq!(more.connect(&options, 0, 0xffff).await.result() & 0xffff, 101);
        drop((hosts, more));
        server.is_sound().await;
    });
}

//! Controller life cycle: enable, reset, shutdown, keep alive, and the related fabrics commands.

use flagstone_nvme::command::Sqe;
use flagstone_nvme::command::fabrics::PropertyCommand;
use flagstone_nvme::log::AnaState;
use flagstone_nvme::opcode::FabricsType;
use flagstone_nvme::property::{
    Capabilities, Configuration, ControllerStatus, Property, PropertySize, shutdown,
    shutdown_status,
};
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::status::Status;
use flagstone_nvme::wire::U32;

use super::*;

fn csts(host: &TestHost) -> ControllerStatus {
    ControllerStatus(host.property(Property::CSTS) as u32)
}

/// Status that refuses a fabrics command on queue `of`, with More cleared.
fn refusal(host: &TestHost, queue: &ControllerQueue, command: &Sqe) -> Status {
    let reply = host.controller().fabrics(queue, command);
    assert!(reply.status.is_dnr(), "{reply:?}");
    reply.status.code()
}

#[test]
fn controller_enable_reset_enable() {
    let target = target();
    let attempt = Attempt::admin(&volume());
    let host = TestHost { connected: attempt.send(&target).unwrap(), line: attempt.line };
    assert_eq!(csts(&host).0, 0);
    let identify =
        flagstone_nvme::command::admin::Identify::new(flagstone_nvme::identify::Cns::CONTROLLER, 0);
    let early = host.send(&identify.command(1), &[]);
    assert_eq!(early, Err(Status::COMMAND_SEQUENCE_ERROR.dnr()));

    host.enable();
    assert_eq!(csts(&host).0, 1);
    assert_eq!(host.property(Property::CC), u64::from(enabled().0));
    assert!(host.send(&identify.command(1), &[]).is_ok());
    host.set_cc(enabled().with_enable(0));
    assert_eq!(csts(&host).0, 0);
    assert!(host.send(&identify.command(1), &[]).is_err() && host.line.is_up());
    host.enable();
    assert_eq!(csts(&host).0, 1);
}

#[test]
fn invalid_configuration_fatal_until_reset() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    for bad in [
        enabled().with_sqe_exponent(5),
        enabled().with_cqe_exponent(0),
        enabled().with_page_exponent(1),
        enabled().with_arbitration(1),
        enabled().with_command_set(1),
    ] {
        host.set_cc(Configuration::default());
        host.set_cc(bad);
        assert_eq!(csts(&host), ControllerStatus::default().with_fatal(1));
        assert!(!host.controller().is_ready());
    }
    host.set_cc(Configuration::default());
    host.set_cc(enabled().with_command_set(6));
    assert_eq!(csts(&host).0, 1);
    // Discovery controllers have no I/O queues, so entry sizes are ignored.
    let discovery = TestHost::connect(&target, &Nqn::discovery());
    discovery.set_cc(Configuration::default());
    discovery.set_cc(Configuration::default().with_enable(1));
    assert_eq!(csts(&discovery).0, 1);
}

#[test]
fn shutdown_completes_and_reset_clears_it() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    for kind in [shutdown::NORMAL, shutdown::ABRUPT] {
        host.set_cc(enabled().with_shutdown(kind));
        assert_eq!(csts(&host).shutdown_status(), shutdown_status::COMPLETE);
        assert!(!host.controller().is_ready());
        host.set_cc(Configuration::default());
        assert_eq!(csts(&host).0, 0);
        host.enable();
        assert!(host.controller().is_ready());
    }
}

#[test]
fn normal_shutdown_flushes_volatile_caches() {
    let target = target();
    let (device, flushes) = cached_device();
    let config = NamespaceConfig { nsid: None, device, uuid: [3; 16], read_only: false };
    target.add_namespace(&volume(), config).unwrap();
    let host = TestHost::connect(&target, &volume());
    flagstone_runtime::block_on(async {
        host.set_cc(enabled().with_shutdown(shutdown::ABRUPT));
        assert_eq!(csts(&host).shutdown_status(), shutdown_status::COMPLETE);
        assert_eq!(flushes.load(Ordering::Relaxed), 0);
        host.set_cc(Configuration::default());
        host.enable();
        host.set_cc(enabled().with_shutdown(shutdown::NORMAL));
        assert_eq!(csts(&host).shutdown_status(), shutdown_status::OCCURRING);
        while csts(&host).shutdown_status() != shutdown_status::COMPLETE {
            flagstone_runtime::task::yield_now().await;
        }
        assert_eq!(flushes.load(Ordering::Relaxed), 1);
    })
    .unwrap();
}

#[test]
fn fabrics_capabilities() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let cap = Capabilities(host.property(Property::CAP));
    assert_eq!(cap.max_queue_entries_0based(), 1023);
    assert_eq!((cap.contiguous_queues(), cap.doorbell_stride(), cap.subsystem_reset()), (1, 0, 0));
    assert_eq!((cap.min_page_exponent(), cap.max_page_exponent()), (0, 0));
    assert_eq!(cap.command_sets(), 0x41);
    assert_eq!(host.property(Property::VS), 0x0002_0000);
    // Linux warns about a CRTO below CAP.TO.
    assert!(host.property(Property::CRTO) >= cap.timeout_500ms());
}

#[test]
fn invalid_fabrics_commands_are_refused() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let io = Attempt::io(host.id(), 1).send(&target).unwrap();
    let admin = &host.connected.queue;
    let get = |property, size| PropertyCommand::get(1, property, size).command();
    let set = |property, size, value| PropertyCommand::set(1, property, size, value).command();
    for command in [
        get(Property::CAP, PropertySize::FOUR),
        get(Property::VS, PropertySize::EIGHT),
        get(Property::CC, PropertySize(7)),
        get(Property::NSSR, PropertySize::FOUR),
        get(Property(0x1000), PropertySize::FOUR),
        get(Property(u32::MAX), PropertySize::EIGHT),
        set(Property::CAP, PropertySize::EIGHT, 0),
        set(Property::CSTS, PropertySize::FOUR, 0),
        set(Property::CC, PropertySize::EIGHT, 0),
        set(Property::NSSR, PropertySize::FOUR, 0x4e56_4d65),
    ] {
        assert_eq!(refusal(&host, admin, &command), Status::INVALID_FIELD);
    }
    assert!(host.controller().is_ready());
    let read_cc = get(Property::CC, PropertySize::FOUR);
    assert_eq!(refusal(&host, &io.queue, &read_cc), Status::INVALID_OPCODE);
    let fabrics = |kind: FabricsType| {
        Sqe::new(FabricsType::OPCODE, 1, u32::from(kind.0), SglDescriptor::transport(0))
    };
    for queue in [admin, &io.queue] {
        let connect = fabrics(FabricsType::CONNECT);
        assert_eq!(refusal(&host, queue, &connect), Status::COMMAND_SEQUENCE_ERROR);
        for kind in [0x05, 0x06, 0x77, 0xc0, 0xff] {
            let command = fabrics(FabricsType(kind));
            assert_eq!(refusal(&host, queue, &command), Status::INVALID_OPCODE);
        }
    }
    assert_eq!(refusal(&host, admin, &Sqe::disconnect(1)), Status::INVALID_QUEUE_TYPE);
    let mut format = Sqe::disconnect(1);
    format.cdw10 = U32::new(1);
    let refused = refusal(&host, &io.queue, &format);
    assert_eq!(refused, Status::CONNECT_INCOMPATIBLE_FORMAT);
    let mut fused = get(Property::VS, PropertySize::FOUR);
    fused.flags = 0;
    assert_eq!(refusal(&host, admin, &fused), Status::INVALID_FIELD);

    let reply = host.controller().fabrics(&io.queue, &Sqe::disconnect(1));
    assert_eq!(reply.status, Status::SUCCESS);
}

#[test]
fn keep_alive_expiry_destroys_controller() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let io = Attempt::io(host.id(), 1);
    let connected = io.send(&target).unwrap();
    flagstone_runtime::block_on(async {
        host.controller().keep_alive.shorten(2);
        host.controller().watch_keep_alive().await;
    })
    .unwrap();
    assert!(!host.line.is_up() && !io.line.is_up() && !connected.queue.is_open());
    assert_eq!(csts(&host), ControllerStatus::default().with_fatal(1));
    assert_eq!(target.controllers(), 0);
    // Requests on its remaining connections fail.
    host.set_cc(Configuration::default());
    host.set_cc(enabled());
    assert!(!host.controller().is_ready());
    drop((connected, host));
    assert_eq!(target.controllers(), 0);
}

/// A command that arrives on another core while its controller ends is not refused for good: its
/// host would report an error instead of repeating the command on its next connection.
#[test]
fn commands_of_ending_controllers_are_not_refused() {
    let target = target();
    for round in 0..2000 {
        let host = TestHost::connect(&target, &volume());
        let io = Attempt::io(host.id(), 1).send(&target).unwrap();
        let controller = host.controller().clone();
        std::thread::scope(|scope| {
            let watching = scope.spawn(|| {
                while controller.is_ready() {
                    std::hint::spin_loop();
                }
                controller.may_refuse(&io.queue)
            });
            match round % 2 {
                0 => host.set_cc(enabled().with_enable(0)),
                _ => controller.destroy("test"),
            }
            assert!(!watching.join().unwrap(), "round {round}");
        });
    }
}

#[test]
fn namespace_changes_leave_snapshots_intact() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let controller = host.controller();
    let old = controller.snapshot();
    assert_eq!(controller.generation(), old.generation());
    target.remove_namespace(&volume(), 1).unwrap();
    assert_ne!(controller.generation(), old.generation());
    assert!(old.get(1).is_some() && controller.snapshot().get(1).is_none());
    target.set_ana_state(&volume(), AnaState::INACCESSIBLE).unwrap();
    assert_eq!(controller.snapshot().ana().io_status(), Status::ANA_INACCESSIBLE);
    assert_eq!(old.ana().io_status(), Status::SUCCESS);
}

/// Hosts ask only once for a volatile write cache. A host that saw none never flushes, so it must
/// reconnect when a namespace with a cache is added.
#[test]
fn added_volatile_cache_disconnects_hosts() {
    let target = target();
    let told_no = TestHost::connect(&target, &volume());
    let (device, _) = cached_device();
    let config = NamespaceConfig { nsid: None, device, uuid: [3; 16], read_only: false };
    target.add_namespace(&volume(), config).unwrap();
    assert!(!told_no.line.is_up());
    let told_yes = TestHost::connect(&target, &volume());
    let (device, _) = cached_device();
    let config = NamespaceConfig { nsid: None, device, uuid: [4; 16], read_only: false };
    target.add_namespace(&volume(), config).unwrap();
    assert!(told_yes.line.is_up());
    // A cache that is never written needs no flush.
    let plain = super::target();
    let host = TestHost::connect(&plain, &volume());
    let (device, _) = cached_device();
    let config = NamespaceConfig { nsid: None, device, uuid: [4; 16], read_only: true };
    plain.add_namespace(&volume(), config).unwrap();
    assert!(host.line.is_up());
}

#[test]
fn status_lists_connected_hosts() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let io = Attempt::io(host.id(), 1).send(&target).unwrap();
    io.queue.counters.read(4096);
    io.queue.counters.write(8192);
    io.queue.counters.media_error();
    let totals = |target: &Target| {
        let status = target.subsystem_status(&volume()).unwrap();
        let hosts: Vec<_> = status.totals.into_iter().collect();
        assert_eq!(hosts.len(), 1, "{hosts:?}");
        hosts[0].1
    };
    let expected =
        IoTotals { reads: 1, read_bytes: 4096, writes: 1, written_bytes: 8192, media_errors: 1 };
    assert_eq!(totals(&target), expected);
    let status = target.status();
    assert_eq!((status.len(), status[0].nqn), (1, volume()));
    assert_eq!(status[0].controllers[0].queues, [0, 1]);
    assert_eq!(status[0].controllers[0].keep_alive_ms, 15_000);
    assert_eq!(status[0].namespaces[0].nsid, 1);
    assert!(target.discovery.controllers().is_empty());
    drop(io);
    assert_eq!(totals(&target), expected, "kept when the queue is gone");
    drop(host);
    assert_eq!(totals(&target), expected);
}

//! Connect: every check, and the state left by an ended queue.

use std::collections::BTreeSet;

use flagstone_auth::tls::{TlsKey, offered};
use flagstone_auth::{KeyDemand, KeyPair, KeyRing, KeyUse, Secret, TlsRing};
use flagstone_nvme::command::fabrics::{ConnectCommand, ConnectField};
use flagstone_nvme::property::Property;
use flagstone_nvme::status::Status;
use flagstone_nvme::wire::{U16, U32};
use flagstone_runtime::{block_on, time};

use super::*;
use crate::concatenation::ConcatenationRefusal;
use crate::generated_psks::NewPsk;
use crate::queue::ControllerQueue;
use crate::tls::ChannelProof;

fn invalid(field: ConnectField) -> ConnectRefusal {
    field.into()
}

fn busy() -> ConnectRefusal {
    Status::CONNECT_CONTROLLER_BUSY.into()
}

fn in_use() -> ConnectRefusal {
    ConnectRefusal::QUEUE_IN_USE
}

fn sequence_error() -> ConnectRefusal {
    Status::COMMAND_SEQUENCE_ERROR.dnr().into()
}

#[test]
fn admin_and_io_queues_connect() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    assert_eq!(host.id(), host.controller().id);
    assert_eq!((host.connected.queue.qid, host.connected.queue.entries), (0, 32));
    assert!(!host.connected.queue.flow_control);
    let io = Attempt::io(host.id(), 128).send(&target).unwrap();
    assert_eq!((io.queue.qid, io.queue.entries, io.queue.flow_control), (128, 128, true));
    assert!(Arc::ptr_eq(&io.controller, host.controller()));
    assert_eq!(io.result, u32::from(host.id()));
    assert_eq!(host.controller().queue_ids(), [0, 128]);
}

/// While its admin queue makes a PSK, an I/O queue connects in plain text; and the other way
/// around.
#[test]
fn controller_with_plain_io_queues_has_no_generated_psk() {
    block_on(async {
        let target = target();
        let host = TestHost::connect(&target, &volume());
        let io = Attempt::io(host.id(), 1).send(&target).unwrap();
        let key = TlsKey::new(&[1; 32], None).unwrap();
        let keys = KeyPair::shared(&KeyRing::new(Vec::new())).version();
        let made = |host| {
            let psk = offered(&key, host, "nqn.2026-01.test:s").remove(0);
            NewPsk { psk, keys: keys.clone(), key: KeyUse::default(), proven: true }
        };
        let plain = Err(ConcatenationRefusal::PlainIoQueues);
        assert_eq!(host.controller().promise_psk(), plain);
        assert_eq!(host.controller().keep_psk(made("nqn.2026-01.test:h")), plain);
        assert!(!host.controller().needs_tls());
        assert_eq!(target.generated_psks(), 0);
        drop(io);
        assert_eq!(host.controller().keep_psk(made("nqn.2026-01.test:h")), Ok(()));
        let refused = Attempt::io(host.id(), 1).send(&target).unwrap_err();
        assert_eq!(refused.reason, Some(FailureReason::NoTls));
        // A controller that is gone makes none.
        let controller = host.controller().clone();
        drop(host);
        let ended = Err(ConcatenationRefusal::ControllerEnded);
        assert_eq!(controller.promise_psk(), ended);
        assert_eq!(controller.keep_psk(made("nqn.2026-01.test:late")), ended);
    })
    .unwrap();
}

/// The PSK ends on another core after the check in Connect, and before the queue is attached.
#[test]
fn queue_of_a_psk_that_has_ended_is_not_attached() {
    block_on(async {
        let target = target();
        let host = TestHost::connect(&target, &volume());
        let key = TlsKey::new(&[1; 32], None).unwrap();
        let keys = KeyPair::shared(&KeyRing::new(Vec::new())).version();
        let psk = offered(&key, "nqn.2026-01.test:h", "nqn.2026-01.test:s").remove(0);
        let identity = psk.identity.clone();
        let attach = |qid| {
            let line = Box::new(HangupCounter::default());
            let queue = Arc::new(ControllerQueue::new(qid, 32, true, host.controller().host, line));
            host.controller().attach(queue, ChannelProof::GeneratedPsk(&identity))
        };
        let generated = &target.tls.generated;
        let new = NewPsk { psk, keys, key: KeyUse::default(), proven: true };
        generated.insert(new, None, time::now());
        assert_eq!(attach(1), Ok(()));
        generated.remove(&identity);
        assert_eq!(attach(2), Err(ConnectRefusal::psk_ended()));
        assert_eq!(host.controller().queue_ids(), [0, 1]);
    })
    .unwrap();
}

/// A TLS key is withdrawn while a queue uses it, and before the next one is attached.
#[test]
fn withdrawn_tls_key_ends_its_controller() {
    block_on(async {
        let target = target();
        let host = TestHost::connect(&target, &volume());
        let ring = TlsRing::new(vec![TlsKey::new(&[1; 32], None).unwrap()]);
        let (_, key) = ring.uses().remove(0);
        let attach = |qid| {
            let line = Box::new(HangupCounter::default());
            let queue = Arc::new(ControllerQueue::new(qid, 32, true, host.controller().host, line));
            host.controller().attach(queue, ChannelProof::ConfiguredKey(&key))
        };
        assert_eq!(attach(1), Ok(()));
        assert_eq!(target.end_withdrawn(), 0);
        ring.replace(Vec::new());
        let withdrawn = ConnectRefusal::not_allowed(FailureReason::Withdrawn);
        assert_eq!(attach(2), Err(withdrawn));
        assert_eq!(host.controller().queue_ids(), [0, 1]);
        assert_eq!((target.end_withdrawn(), target.controllers()), (1, 0));
        assert_eq!(target.end_withdrawn(), 0);
    })
    .unwrap();
}

#[test]
fn connect_checks_every_field() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let id = host.id();
    type Bend = fn(&mut Attempt);
    let admin: [(Bend, ConnectRefusal); 12] = [
        (
            |a| a.command.record_format = U16::new(1),
            Status::CONNECT_INCOMPATIBLE_FORMAT.dnr().into(),
        ),
        (|a| a.command.sqsize_0based = U16::ZERO, invalid(ConnectField::SqSize)),
        (|a| a.command.sqsize_0based = U16::new(1024), invalid(ConnectField::SqSize)),
        (|a| a.command.sqsize_0based = U16::new(u16::MAX), invalid(ConnectField::SqSize)),
        (|a| a.data.host_id = [0; 16], invalid(ConnectField::HostId)),
        (|a| a.data.controller_id = U16::new(1), invalid(ConnectField::ControllerId)),
        (|a| a.data.controller_id = U16::new(0xfffe), invalid(ConnectField::ControllerId)),
        (|a| a.data.controller_id = U16::ZERO, invalid(ConnectField::ControllerId)),
        (|a| a.data.subnqn = [b'n'; 256], invalid(ConnectField::SubNqn)),
        (
            |a| a.data.subnqn = Nqn::new("nqn.2026-01.io.flagstone:no").unwrap().to_field(),
            invalid(ConnectField::SubNqn),
        ),
        (|a| a.data.hostnqn[0] = b'x', invalid(ConnectField::HostNqn)),
        (|a| a.data.hostnqn = [0xff; 256], invalid(ConnectField::HostNqn)),
    ];
    for (bend, refusal) in admin {
        let mut attempt = Attempt::admin(&volume());
        bend(&mut attempt);
        assert_eq!(attempt.send(&target).unwrap_err(), refusal);
    }
    let io: [(Bend, ConnectRefusal); 8] = [
        (|a| a.command.sqsize_0based = U16::new(1024), invalid(ConnectField::SqSize)),
        (|a| a.command.qid = U16::new(129), invalid(ConnectField::Qid)),
        (|a| a.command.qid = U16::new(u16::MAX), invalid(ConnectField::Qid)),
        (|a| a.data.subnqn = Nqn::discovery().to_field(), invalid(ConnectField::Qid)),
        (|a| a.data.controller_id = U16::new(u16::MAX), ConnectRefusal::controller_gone()),
        (|a| a.data.controller_id = U16::new(999), ConnectRefusal::controller_gone()),
        (|a| a.data.hostnqn = Nqn::from_uuid([8; 16]).to_field(), invalid(ConnectField::HostNqn)),
        (|a| a.data.host_id = [8; 16], invalid(ConnectField::HostId)),
    ];
    for (bend, refusal) in io {
        let mut attempt = Attempt::io(id, 1);
        bend(&mut attempt);
        assert_eq!(attempt.send(&target).unwrap_err(), refusal);
    }
    assert_eq!(target.controllers(), 1, "a refused Connect keeps nothing");
    assert!(Attempt::io(id, 1).send(&target).is_ok());
}

#[test]
fn largest_queue_is_accepted() {
    let target = target();
    let mut attempt = Attempt::admin(&volume());
    attempt.command.sqsize_0based = U16::new(1023);
    assert_eq!(attempt.send(&target).unwrap().queue.entries, 1024);
}

#[test]
fn io_queue_needs_enabled_controller() {
    let target = target();
    let attempt = Attempt::admin(&volume());
    let host = TestHost { connected: attempt.send(&target).unwrap(), line: attempt.line };
    let id = host.id();
    assert_eq!(Attempt::io(id, 1).send(&target).unwrap_err(), sequence_error());
    host.enable();
    let first = Attempt::io(id, 1).send(&target).unwrap();
    assert_eq!(Attempt::io(id, 1).send(&target).unwrap_err(), in_use());
    assert_eq!(host.controller().queue_ids(), [0, 1], "the refused one took nothing away");
    drop(first);
    assert!(Attempt::io(id, 1).send(&target).is_ok());
}

/// Regression: SPDK's benchmark sends no host name, and could not attach.
#[test]
fn host_without_name_connects_unless_list_forbids() {
    let target = target();
    let mut nameless = Attempt::admin(&volume());
    nameless.data.hostnqn = [0; 256];
    let connected = nameless.send(&target).unwrap();
    let host = TestHost { connected, line: nameless.line.clone() };
    host.enable();
    let mut io = Attempt::io(host.id(), 1);
    assert_eq!(io.send(&target).unwrap_err(), invalid(ConnectField::HostNqn));
    io.data.hostnqn = [0; 256];
    assert!(io.send(&target).is_ok());
    io.data.host_id = [8; 16];
    assert!(io.send(&target).is_err(), "another host without a name");
    // Its identifier is not a name that a list may have.
    target.set_allowed_hosts(&volume(), Some(vec![Nqn::from_uuid(HOST_ID)])).unwrap();
    let refusal = nameless.send(&target).unwrap_err();
    assert_eq!(refusal.status, Status::CONNECT_INVALID_HOST.dnr());
}

#[test]
fn refusals_explain_themselves() {
    let mut attempt = Attempt::admin(&volume());
    attempt.data.subnqn = Nqn::new("nqn.2026-01.io.flagstone:no").unwrap().to_field();
    let refusal = attempt.send(&target()).unwrap_err();
    assert_eq!(refusal.to_string(), "Connect Invalid Parameters (subsystem name)");
    assert_eq!(busy().to_string(), "Connect Controller Busy");
}

#[test]
fn allow_list_refuses_and_disconnects_hosts() {
    let target = target();
    let other = Nqn::from_uuid([1; 16]);
    target.set_allowed_hosts(&volume(), Some(vec![host(), other])).unwrap();
    let host_ = TestHost::connect(&target, &volume());
    let mut unknown_host = Attempt::admin(&volume());
    unknown_host.data.hostnqn = Nqn::from_uuid([2; 16]).to_field();
    let refusal = unknown_host.send(&target).unwrap_err();
    assert_eq!(refusal.status, Status::CONNECT_INVALID_HOST.dnr());
    assert_eq!(refusal.result, ConnectField::HostNqn.result());
    // The discovery subsystem is open to every host.
    unknown_host.data.subnqn = Nqn::discovery().to_field();
    assert!(unknown_host.send(&target).is_ok());

    target.set_allowed_hosts(&volume(), Some(vec![other])).unwrap();
    assert!(!host_.line.is_up());
    assert!(Attempt::admin(&volume()).send(&target).is_err());
}

/// A subsystem where one host has a key, and another one is allowed.
fn keyed_target() -> (Arc<Target>, Nqn, Nqn) {
    let target = target();
    let keyed = Nqn::from_uuid([1; 16]);
    let secret = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
    let ring = KeyRing::new(vec![Secret::parse(secret).unwrap()]);
    let keys = [(keyed, KeyPair { host: ring, controller: None, demand: KeyDemand::Required })];
    let nqn = Nqn::new("nqn.2026-01.io.flagstone:keyed").unwrap();
    let serial = "SN-2".to_owned();
    let allow_hosts = Some(vec![host()]);
    target.add_subsystem(SubsystemConfig { nqn, serial, allow_hosts, keys: keys.into() }).unwrap();
    (target, nqn, keyed)
}

/// Regression: each attempt counted as an abandoned authentication, and delayed its address.
#[test]
fn wait_for_queue_number_abandons_no_authentication() {
    block_on(async {
        let (target, nqn, keyed) = keyed_target();
        target.set_allowed_hosts(&nqn, None).unwrap();
        let mut attempt = Attempt::admin(&nqn);
        attempt.data.hostnqn = keyed.to_field();
        let admin = attempt.send(&target).unwrap();
        let host = TestHost { connected: admin, line: attempt.line.clone() };
        host.enable();
        let mut io = Attempt::io(host.id(), 1);
        io.data.subnqn = nqn.to_field();
        io.data.hostnqn = keyed.to_field();
        let _queue = io.send(&target).unwrap();
        assert_eq!(io.send(&target).unwrap_err(), in_use());
        let abandoned = target.authentication_totals().failed.iter().sum::<u64>();
        assert_eq!(abandoned, 0);
    })
    .unwrap();
}

/// Regression: the keys belonged to the hosts that were allowed when the volume was served.
#[test]
fn allow_list_selects_keys_of_hosts() {
    block_on(async {
        let (target, nqn, keyed) = keyed_target();
        let open = Attempt::admin(&nqn).send(&target).unwrap();
        assert!(open.handshake.is_none());
        target.set_allowed_hosts(&nqn, Some(vec![host(), keyed])).unwrap();
        assert_eq!(target.subsystem_status(&nqn).unwrap().controllers, []);
        assert!(Attempt::admin(&nqn).send(&target).is_err(), "it has no key");
        let mut attempt = Attempt::admin(&nqn);
        attempt.data.hostnqn = keyed.to_field();
        assert!(attempt.send(&target).unwrap().handshake.is_some());
    })
    .unwrap();
}

/// Regression: an empty list admitted every host.
#[test]
fn empty_allow_list_admits_no_host() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    target.set_allowed_hosts(&volume(), Some(Vec::new())).unwrap();
    assert!(!host.line.is_up());
    let mut attempt = Attempt::admin(&volume());
    assert_eq!(attempt.send(&target).unwrap_err().status, Status::CONNECT_INVALID_HOST.dnr());
    attempt.data.hostnqn = [0; 256];
    assert!(attempt.send(&target).is_err(), "a host without a name");
    target.set_allowed_hosts(&volume(), None).unwrap();
    TestHost::connect(&target, &volume());
}

#[test]
fn controller_limit_and_delayed_id_reuse() {
    let config = TargetConfig { max_controllers: 2, ..TargetConfig::default() };
    let target = target_of(config);
    let first = TestHost::connect(&target, &volume());
    let discovery = TestHost::connect(&target, &Nqn::discovery());
    assert_eq!(Attempt::admin(&volume()).send(&target).unwrap_err(), busy());
    let old = first.id();
    drop(first);
    let second = TestHost::connect(&target, &volume());
    assert_ne!(second.id(), old);
    drop((second, discovery));
    assert_eq!(target.controllers(), 0);
    for _ in 0..70_000 {
        drop(Attempt::admin(&volume()).send(&target).unwrap());
    }
    assert_eq!(target.controllers(), 0);
}

#[test]
fn draining_target_keeps_existing_hosts() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    target.drain();
    assert_eq!(Attempt::admin(&volume()).send(&target).unwrap_err(), busy());
    assert_eq!(Attempt::io(host.id(), 1).send(&target).unwrap_err(), busy());
    assert!(host.controller().is_ready() && host.line.is_up());
    target.disconnect_all();
    assert!(!host.controller().is_ready() && !host.line.is_up());
    assert_eq!(target.controllers(), 0);
}

#[test]
fn discovery_controllers_get_default_keep_alive() {
    let target = target();
    for (subsystem, asked, given) in [
        (Nqn::discovery(), 0, 120_000),
        (Nqn::discovery(), 30_000, 30_000),
        (volume(), 0, 0),
        (volume(), 1, 1000),
    ] {
        let mut attempt = Attempt::admin(&subsystem);
        attempt.command.keep_alive_ms = U32::new(asked);
        let connected = attempt.send(&target).unwrap();
        assert_eq!(connected.controller.keep_alive.timeout_ms(), given);
    }
}

#[test]
fn admin_queue_end_closes_io_queues() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let attempt = Attempt::io(host.id(), 1);
    let io = attempt.send(&target).unwrap();
    assert!(io.queue.is_open() && attempt.line.is_up());
    let id = host.id();
    drop(host);
    assert!(!io.queue.is_open() && !attempt.line.is_up());
    // A host that does not know yet may try again, with another controller.
    let refusal = Attempt::io(id, 2).send(&target).unwrap_err();
    assert_eq!(refusal, ConnectRefusal::controller_gone());
    assert!(!refusal.status.is_dnr());
    assert_eq!(target.controllers(), 0);
}

/// A write of a closed connection may still be in flight to the device after its host has resent
/// it, and written newer data to the same blocks, on a new connection. It would undo the newer
/// write. So a reset or a new controller of the host must wait until the old connection has
/// finished.
#[test]
fn ready_waits_for_closed_queue_commands() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let old = Attempt::io(host.id(), 1).send(&target).unwrap();
    host.set_cc(enabled().with_enable(0));
    assert!(!old.queue.is_open() && !host.controller().is_ready());
    assert_eq!(host.property(Property::CSTS), 1, "the reset is not complete");
    drop(old);
    assert_eq!(host.property(Property::CSTS), 0);

    host.enable();
    let old = Attempt::io(host.id(), 1).send(&target).unwrap();
    drop(host);
    let attempt = Attempt::admin(&volume());
    let host = TestHost { connected: attempt.send(&target).unwrap(), line: attempt.line };
    host.enable();
    assert_eq!(host.property(Property::CSTS), 0);
    assert_eq!(Attempt::io(host.id(), 1).send(&target).unwrap_err(), sequence_error());
    // Other hosts are unaffected.
    let mut other = Attempt::admin(&volume());
    other.data.host_id = [1; 16];
    let other = TestHost { connected: other.send(&target).unwrap(), line: other.line };
    other.enable();
    assert_eq!(other.property(Property::CSTS), 1);
    drop(old);
    assert_eq!(host.property(Property::CSTS), 1);
    assert!(Attempt::io(host.id(), 1).send(&target).is_ok());
}

#[test]
fn enable_during_reset_is_fatal() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let old = Attempt::io(host.id(), 1).send(&target).unwrap();
    host.set_cc(enabled().with_enable(0));
    host.enable();
    drop(old);
    assert_eq!(host.property(Property::CSTS), 2);
    assert!(!host.controller().is_ready());
    host.set_cc(enabled().with_enable(0));
    host.enable();
    assert_eq!(host.property(Property::CSTS), 1);
}

#[test]
fn removed_subsystem_is_unknown() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    target.remove_subsystem(&volume()).unwrap();
    assert!(!host.line.is_up());
    let refusal = Attempt::admin(&volume()).send(&target).unwrap_err();
    assert_eq!(refusal, invalid(ConnectField::SubNqn));
    assert_eq!(
        target.remove_subsystem(&volume()),
        Err(TargetError::NoSubsystem(Box::new(volume())))
    );
}

/// A volume that was rolled back is served again by the same name. A command that failed, or a
/// subsystem that does not exist, would have made Linux give up its disk.
#[test]
fn retired_subsystem_makes_hosts_wait_for_its_successor() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let generation = target.discovery_changes.load(Ordering::Relaxed);
    let retired = target.retire_subsystem(&volume()).unwrap();
    assert!(!host.line.is_up() && target.controllers() == 0);
    // Commands that arrive find their namespace, and no answer is sent.
    assert!(host.controller().snapshot().get(1).is_some());
    assert!(!host.controller().may_refuse(&host.connected.queue));
    let refused = || Attempt::admin(&volume()).send(&target).unwrap_err();
    assert_eq!(refused(), busy());
    assert_eq!(Attempt::io(host.id(), 1).send(&target).unwrap_err(), busy());
    // An order that is given up does not end that.
    target.resume_connects(&volume()).unwrap();
    assert_eq!(refused(), busy());
    flagstone_runtime::block_on(retired.drained()).unwrap();
    assert!(host.controller().snapshot().is_empty());
    assert_eq!(generation, target.discovery_changes.load(Ordering::Relaxed));
    let config = SubsystemConfig {
        nqn: volume(),
        serial: "SN-1".to_owned(),
        allow_hosts: None,
        keys: Default::default(),
    };
    target.add_suspended_subsystem(config).unwrap();
    assert!(!target.remove_retired_subsystem(&volume()), "it has a successor");
    add_namespace(&target, Some(1)).unwrap();
    assert_eq!(refused(), busy());
    target.resume_connects(&volume()).unwrap();
    assert!(TestHost::connect(&target, &volume()).controller().is_ready());
    drop(host);
    target.retire_subsystem(&volume()).unwrap();
    assert!(target.remove_retired_subsystem(&volume()));
    assert_eq!(refused(), invalid(ConnectField::SubNqn));
}

#[test]
fn invalid_subsystems_are_refused() {
    let target = target();
    let config = |nqn| SubsystemConfig {
        nqn,
        serial: "1".to_owned(),
        allow_hosts: None,
        keys: Default::default(),
    };
    let exists = |nqn| Err(TargetError::SubsystemExists(Box::new(nqn)));
    assert_eq!(target.add_subsystem(config(volume())), exists(volume()));
    assert_eq!(target.add_subsystem(config(Nqn::discovery())), exists(Nqn::discovery()));
    for serial in ["", "123456789012345678901", "t\u{e9}l"] {
        let config = SubsystemConfig { serial: serial.to_owned(), ..config(host()) };
        assert_eq!(target.add_subsystem(config), Err(TargetError::Serial(serial.to_owned())));
    }
    assert_eq!(add_namespace(&target, Some(1)), Err(TargetError::NamespaceExists(1)));
    for nsid in [0, 1025, u32::MAX] {
        let error = TargetError::NamespaceId { nsid, max: 1024 };
        assert_eq!(add_namespace(&target, Some(nsid)), Err(error));
    }
    assert_eq!(add_namespace(&target, None), Ok(2));
    assert!(matches!(target.remove_namespace(&volume(), 9), Err(TargetError::NoNamespace(9))));
    let uuid = target.subsystem_status(&volume()).unwrap().namespaces[0].uuid;
    let device = null_device(flagstone_blockdev::Geometry::new(1 << 20, 512));
    for (uuid, error) in [(uuid, TargetError::UuidTaken), ([0; 16], TargetError::Uuid)] {
        let device = device.clone();
        let config = NamespaceConfig { nsid: None, device, uuid, read_only: false };
        assert_eq!(target.add_namespace(&volume(), config), Err(error));
    }
    let unix = Address::Unix("a".into());
    assert_eq!(target.add_listener(&unix), Err(TargetError::NotTcp("a".to_owned())));
}

/// The fabrics command that a connection on queue 0 must have sent determines the queue size.
#[test]
fn queue_size_of_connect_on_queue_zero() {
    let target = target();
    let mut attempt = Attempt::admin(&volume());
    attempt.command = ConnectCommand::new(1, 0, 2, 0, true).unwrap();
    let connected = attempt.send(&target).unwrap();
    assert_eq!((connected.queue.entries, connected.queue.flow_control), (2, true));
}

/// Linux gives up a subsystem that does not exist. The subsystems of a pool exist only once its
/// disks are there.
#[test]
fn hosts_of_missing_subsystems_wait() {
    let target = target();
    let (missing, other) = (host(), Nqn::from_uuid([8; 16]));
    let refusal = |nqn| Attempt::admin(nqn).send(&target).unwrap_err();
    assert_eq!(refusal(&missing), invalid(ConnectField::SubNqn));
    target.set_missing(MissingSubsystems::Named(BTreeSet::from([missing])));
    assert_eq!(refusal(&missing), busy());
    // The field's error, so that a mistyped name is not retried for good.
    assert_eq!(refusal(&other), invalid(ConnectField::SubNqn));
    target.set_missing(MissingSubsystems::Any);
    assert_eq!(refusal(&other), busy());
    assert!(TestHost::connect(&target, &volume()).controller().is_ready());
    target.set_missing(MissingSubsystems::default());
    assert_eq!(refusal(&missing), invalid(ConnectField::SubNqn));
}

#[test]
fn suspended_subsystem_refuses_connect() {
    let target = target();
    target.suspend_connects(&volume()).unwrap();
    assert_eq!(Attempt::admin(&volume()).send(&target).unwrap_err(), busy());
    // Hosts may retry: Do Not Retry is clear.
    assert!(!busy().status.is_dnr());
    let _discovery = TestHost::connect(&target, &Nqn::discovery());
    target.resume_connects(&volume()).unwrap();
    assert!(TestHost::connect(&target, &volume()).controller().is_ready());
}

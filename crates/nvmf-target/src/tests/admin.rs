//! Admin commands: features, Abort, refusals, and arbitrary input.

use flagstone_nvme::command::admin::Abort;
use flagstone_nvme::command::{FLAGS_SGL, Sqe};
use flagstone_nvme::feature::{FeatureId, HostBehavior, NumberOfQueues, capability};
use flagstone_nvme::opcode::{AdminOpcode, FabricsType};
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::status::Status;
use flagstone_nvme::wire::{U32, Wire};
use proptest::prelude::*;

use super::*;

fn get(host: &TestHost, feature: FeatureId, parameter: u32) -> Result<u64, Status> {
    let command = Sqe::get_features(1, feature, parameter, 4096);
    host.send(&command, &[]).map(|(result, _)| result)
}

fn set(host: &TestHost, feature: FeatureId, value: u32) -> Result<u64, Status> {
    host.send(&Sqe::set_features(1, feature, value), &[]).map(|(result, _)| result)
}

fn refused(status: Status) -> Result<u64, Status> {
    Err(status.dnr())
}

fn with_select(mut command: Sqe, select: u32) -> Sqe {
    command.cdw10 = U32::new(command.cdw10.get() | select << 8);
    command
}

#[test]
fn features_persist_until_reset() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    for (feature, value, default) in [
        (FeatureId::ARBITRATION, 0x0102_0304, 0),
        (FeatureId::POWER_MANAGEMENT, 0x20, 0),
        (FeatureId::WRITE_ATOMICITY, 1, 0),
        (FeatureId::ASYNC_EVENTS, 0x9ff, 0),
    ] {
        assert_eq!(get(&host, feature, 0), Ok(default));
        assert_eq!(set(&host, feature, value), Ok(0));
        assert_eq!(get(&host, feature, 0), Ok(u64::from(value)));
        for select in [1, 2] {
            let command = with_select(Sqe::get_features(1, feature, 0, 0), select);
            assert_eq!(host.send(&command, &[]).map(|(result, _)| result), Ok(default));
        }
        host.set_cc(enabled().with_enable(0));
        host.enable();
        assert_eq!(get(&host, feature, 0), Ok(default));
    }
}

#[test]
fn composite_temperature_thresholds() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let (over, under) = (0, 1 << 20);
    let feature = FeatureId::TEMPERATURE_THRESHOLD;
    assert_eq!((get(&host, feature, over), get(&host, feature, under)), (Ok(0xffff), Ok(0)));
    assert_eq!(set(&host, feature, over | 350), Ok(0));
    assert_eq!(set(&host, feature, under | 15 << 16 | 270), Ok(0));
    assert_eq!((get(&host, feature, over), get(&host, feature, under)), (Ok(350), Ok(270)));
    for value in [1 << 16, 9 << 16, 2 << 20] {
        assert_eq!(set(&host, feature, value), refused(Status::INVALID_FIELD));
        assert_eq!(get(&host, feature, value), refused(Status::INVALID_FIELD));
    }
    assert_eq!(get(&host, feature, 15 << 16), refused(Status::INVALID_FIELD));
}

#[test]
fn number_of_queues_feature() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let feature = FeatureId::NUMBER_OF_QUEUES;
    let dword = |submission, completion| NumberOfQueues { submission, completion }.to_dword();
    assert_eq!(get(&host, feature, 0), Ok(u64::from(dword(128, 128))));
    assert_eq!(set(&host, feature, dword(4, 8)), Ok(u64::from(dword(4, 4))));
    assert_eq!(get(&host, feature, 0), Ok(u64::from(dword(4, 4))));
    assert_eq!(set(&host, feature, dword(1000, 1000)), Ok(u64::from(dword(128, 128))));
    assert_eq!(set(&host, feature, 0xffff), refused(Status::INVALID_FIELD));
    let _io = Attempt::io(host.id(), 1).send(&target).unwrap();
    assert_eq!(set(&host, feature, dword(4, 4)), refused(Status::COMMAND_SEQUENCE_ERROR));
}

#[test]
fn keep_alive_feature_rounds_up() {
    let target = target();
    for subsystem in [volume(), Nqn::discovery()] {
        let host = TestHost::connect(&target, &subsystem);
        let feature = FeatureId::KEEP_ALIVE_TIMER;
        assert_eq!(get(&host, feature, 0), Ok(15_000));
        assert_eq!(set(&host, feature, 5001), Ok(0));
        assert_eq!(get(&host, feature, 0), Ok(6000));
        assert!(host.send(&Sqe::keep_alive(1), &[]).is_ok());
    }
}

#[test]
fn write_cache_feature_requires_cache() {
    let target = target();
    let feature = FeatureId::VOLATILE_WRITE_CACHE;
    let host = TestHost::connect(&target, &volume());
    assert_eq!(get(&host, feature, 0), refused(Status::INVALID_FIELD));
    assert_eq!(set(&host, feature, 0), refused(Status::INVALID_FIELD));
    let (device, _) = cached_device();
    let config = NamespaceConfig { nsid: None, device, uuid: [3; 16], read_only: false };
    target.add_namespace(&volume(), config).unwrap();
    let host = TestHost::connect(&target, &volume());
    assert_eq!(get(&host, feature, 0), Ok(1));
    assert!(!host.controller().is_write_through());
    assert_eq!(set(&host, feature, 0), Ok(0));
    assert!(host.controller().is_write_through());
    assert_eq!(get(&host, feature, 0), Ok(0));
    host.set_cc(enabled().with_enable(0));
    host.enable();
    assert!(!host.controller().is_write_through());
}

#[test]
fn interrupt_features_are_constant() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let get = |feature, parameter| {
        let command = Sqe::get_features(1, feature, parameter, 0);
        host.send(&command, &[]).map(|(result, _)| result)
    };
    assert_eq!(get(FeatureId::INTERRUPT_COALESCING, 0), Ok(0));
    assert_eq!(get(FeatureId::INTERRUPT_VECTOR, 0), Ok(0));
    assert_eq!(get(FeatureId::INTERRUPT_VECTOR, 128), Ok(128));
    assert_eq!(get(FeatureId::INTERRUPT_VECTOR, 129), refused(Status::INVALID_FIELD));
    for feature in [FeatureId::INTERRUPT_COALESCING, FeatureId::INTERRUPT_VECTOR] {
        let refusal = Status::FEATURE_NOT_CHANGEABLE.dnr();
        assert_eq!(host.send(&Sqe::set_features(1, feature, 0), &[]), Err(refusal));
    }
}

#[test]
fn error_recovery_is_per_namespace() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    add_namespace(&target, Some(2)).unwrap();
    let feature = FeatureId::ERROR_RECOVERY;
    let of = |mut command: Sqe, nsid| {
        command.nsid = U32::new(nsid);
        host.send(&command, &[]).map(|(result, _)| result)
    };
    let set = |nsid, value| of(Sqe::set_features(1, feature, value), nsid);
    let get = |nsid| of(Sqe::get_features(1, feature, 0, 0), nsid);
    assert_eq!(set(1, 7), Ok(0));
    assert_eq!((get(1), get(2)), (Ok(7), Ok(0)));
    assert_eq!(set(u32::MAX, 9), Ok(0));
    assert_eq!((get(1), get(2)), (Ok(9), Ok(9)));
    for nsid in [0, 3, u32::MAX - 1] {
        assert_eq!(set(nsid, 1), refused(Status::INVALID_NAMESPACE));
    }
    for nsid in [3, u32::MAX - 1] {
        assert_eq!(get(nsid), refused(Status::INVALID_NAMESPACE));
    }
    assert_eq!(get(0), Ok(0));
    assert_eq!(set(1, 1 << 16), refused(Status::INVALID_FIELD));
    let mut arbitration = Sqe::set_features(1, FeatureId::ARBITRATION, 1);
    arbitration.nsid = U32::new(1);
    let refusal = Status::FEATURE_NOT_NAMESPACE_SPECIFIC.dnr();
    assert_eq!(host.send(&arbitration, &[]), Err(refusal));
}

#[test]
fn host_identifier_is_read_only() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let feature = FeatureId::HOST_IDENTIFIER;
    let (_, data) = host.send(&Sqe::get_features(1, feature, 1, 16), &[]).unwrap();
    assert_eq!(data, HOST_ID);
    let refusals = [
        (Sqe::get_features(1, feature, 0, 16), Status::INVALID_FIELD),
        (Sqe::get_features(1, feature, 1, 8), Status::DATA_SGL_LENGTH_INVALID),
        (Sqe::set_features(1, feature, 1), Status::COMMAND_SEQUENCE_ERROR),
    ];
    for (command, status) in refusals {
        assert_eq!(host.send(&command, &[1; 16]), Err(status.dnr()));
    }
}

#[test]
fn host_behavior_support_transfers_data() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let set = Sqe::set_features(1, FeatureId::HOST_BEHAVIOR, 0);
    assert_eq!(admin_data_bytes(&set), 512);
    let behavior = HostBehavior { retry_delay: 1, extended_formats: 1, ..Default::default() };
    assert!(host.send(&set, behavior.bytes()).is_ok());
    let get = Sqe::get_features(1, FeatureId::HOST_BEHAVIOR, 0, 512);
    assert_eq!(host.send(&get, &[]).unwrap().1, behavior.bytes());
    let short = host.send(&set, &behavior.bytes()[..511]);
    assert_eq!(short, Err(Status::DATA_SGL_LENGTH_INVALID.dnr()));
    assert_eq!(host.send(&set, &[2; 512]), Err(Status::INVALID_FIELD.dnr()));
    assert_eq!(host.send(&get, &[]).unwrap().1, behavior.bytes());
    let default = with_select(get, 1);
    assert_eq!(host.send(&default, &[]).unwrap().1, [0; 512]);
}

#[test]
fn feature_capabilities_and_unknown_features() {
    let target = target();
    let io = TestHost::connect(&target, &volume());
    let discovery = TestHost::connect(&target, &Nqn::discovery());
    let mut supported = [0; 2];
    for feature in (0..=255).map(FeatureId) {
        let command = Sqe::get_features(1, feature, 1, 4096);
        for (host, count) in [&io, &discovery].into_iter().zip(&mut supported) {
            match host.send(&with_select(command, 3), &[]) {
                Ok((able, _)) => {
                    *count += 1;
                    assert_eq!(able as u32 & capability::SAVEABLE, 0);
                    let mut save = Sqe::set_features(1, feature, 0);
                    save.cdw10 = U32::new(save.cdw10.get() | 1 << 31);
                    let refusal = Status::FEATURE_NOT_SAVEABLE.dnr();
                    assert_eq!(host.send(&save, &[0; 4096]), Err(refusal));
                    let reserved = host.send(&with_select(command, 4), &[]);
                    assert_eq!(reserved, Err(Status::INVALID_FIELD.dnr()));
                }
                Err(status) => {
                    assert_eq!(status, Status::INVALID_FIELD.dnr());
                    assert_eq!(host.send(&command, &[]), Err(status));
                    let set = host.send(&Sqe::set_features(1, feature, 0), &[0; 4096]);
                    assert_eq!(set, Err(status));
                }
            }
        }
    }
    // Without a volatile write cache; and of discovery controllers: events and keep alive.
    assert_eq!(supported, [15, 2]);
    let profile = FeatureId::COMMAND_SET_PROFILE;
    assert_eq!((set(&io, profile, 0), get(&io, profile, 0)), (Ok(0), Ok(0)));
    assert_eq!(set(&io, profile, 1), refused(Status::COMMAND_SET_COMBINATION_REJECTED));
    assert_eq!(set(&io, FeatureId::POWER_MANAGEMENT, 1), refused(Status::INVALID_FIELD));
    // Unsupported events: firmware activation, and discovery on an I/O controller.
    for value in [1 << 9, 1 << 31] {
        let events = set(&io, FeatureId::ASYNC_EVENTS, value);
        assert_eq!(events, refused(Status::INVALID_FIELD));
    }
}

#[test]
fn unknown_opcodes_are_refused() {
    let target = target();
    let io = TestHost::connect(&target, &volume());
    let discovery = TestHost::connect(&target, &Nqn::discovery());
    let ours = [0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18];
    for opcode in (0..=255).filter(|opcode| !ours.contains(opcode)) {
        let command = Sqe::new(opcode, 1, 0, SglDescriptor::transport(4096));
        assert_eq!(admin_data_bytes(&command), 0);
        for host in [&io, &discovery] {
            assert_eq!(host.send(&command, &[]), Err(Status::INVALID_OPCODE.dnr()));
        }
    }
    assert_eq!(io.controller().error_count(), 256 - ours.len() as u64);
    let abort = Sqe::abort(1, Abort { sqid: 0, cid: 1 });
    assert_eq!(discovery.send(&abort, &[]), Err(Status::INVALID_OPCODE.dnr()));
}

#[test]
fn fused_commands_and_prps_are_refused() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    for flags in [0, FLAGS_SGL | 1, 0x80] {
        for mut command in [Sqe::keep_alive(1), Sqe::async_event_request(1)] {
            command.flags = flags;
            assert_eq!(host.send(&command, &[]), Err(Status::INVALID_FIELD.dnr()));
        }
    }
}

#[test]
fn abort_is_best_effort() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    host.wait_for_event(40);
    let abort = |sqid, cid| {
        let command = Sqe::abort(1, Abort { sqid, cid });
        host.send(&command, &[]).map(|(result, _)| result)
    };
    for (sqid, cid) in [(0, 41), (1, 40), (0xffff, 0xffff)] {
        assert_eq!(abort(sqid, cid), Ok(1));
    }
    assert_eq!(abort(0, 40), Ok(0));
    assert_eq!(abort(0, 40), Ok(1));
    let aborted = host.controller().events.try_next().unwrap();
    assert_eq!((aborted.cid.get(), aborted.status()), (40, Status::ABORT_REQUESTED));
}

/// Any entry, biased toward opcodes, flags and SGLs that pass the first checks.
fn any_command() -> impl Strategy<Value = Sqe> {
    let opcode = prop_oneof![
        Just(AdminOpcode::IDENTIFY.0),
        Just(AdminOpcode::GET_LOG_PAGE.0),
        Just(AdminOpcode::GET_FEATURES.0),
        Just(AdminOpcode::SET_FEATURES.0),
        Just(AdminOpcode::ABORT.0),
        Just(AdminOpcode::ASYNC_EVENT_REQUEST.0),
        any::<u8>(),
    ];
    let dwords = prop::collection::vec(prop_oneof![0u32..0x200, any::<u32>()], 16);
    let nsid = prop_oneof![0u32..4, any::<u32>()];
    (prop::collection::vec(any::<u8>(), 64), opcode, dwords, nsid, 0u32..3 << 20, 0u8..8).prop_map(
        |(bytes, opcode, dwords, nsid, sgl_bytes, plain)| {
            let mut command = *Sqe::view(&bytes).unwrap();
            if plain == 0 {
                return command;
            }
            command.opcode = opcode;
            command.flags = FLAGS_SGL;
            command.nsid = U32::new(nsid);
            command.cdw10 = U32::new(dwords[10]);
            command.cdw11 = U32::new(dwords[11]);
            command.cdw12 = U32::new(dwords[12]);
            command.cdw13 = U32::new(if plain > 1 { 0 } else { dwords[13] });
            command.cdw14 = U32::new(if plain > 2 { 0 } else { dwords[14] });
            command.data = SglDescriptor::transport(sgl_bytes);
            command
        },
    )
}

proptest! {
    #[test]
    fn any_command_is_answered(
        commands in prop::collection::vec(any_command(), 1..20),
        data in prop::collection::vec(any::<u8>(), 0..600),
        discovery: bool,
    ) {
        let target = target();
        target.add_listener(&Address::Tcp("0.0.0.0:4420".parse().unwrap())).unwrap();
        let subsystem = if discovery { Nqn::discovery() } else { volume() };
        let host = TestHost::connect(&target, &subsystem);
        let mut waiting = 0;
        for command in commands {
            prop_assert!(admin_data_bytes(&command) <= 4096);
            match host.controller().admin(&command, &data) {
                None => waiting += 1,
                Some(CommandReply { status, data: Some(data), .. }) => {
                    prop_assert!(status.is_success());
                    prop_assert!(data.len() <= command.data.data_bytes.get() as usize);
                    prop_assert!(data.len() <= target.config().mdts_bytes as usize);
                }
                Some(CommandReply { status, result, data: None }) => {
                    prop_assert!(status.fabrics_name().is_some() || status.name().is_some());
                    prop_assert!(status.is_success() || result == 0);
                }
            }
            prop_assert!(waiting <= 20 && host.controller().is_ready());
        }
    }

    #[test]
    fn any_fabrics_command_is_answered(
        bytes in prop::collection::vec(any::<u8>(), 64),
        kind in prop::sample::select(vec![0u8, 1, 4, 5, 6, 8, 9]),
        offset in prop::sample::select(vec![0u32, 8, 0x14, 0x1c, 0x20, 0x68, 0x6c]),
        plain: bool,
        admin: bool,
    ) {
        let target = target();
        let host = TestHost::connect(&target, &volume());
        let io = Attempt::io(host.id(), 1).send(&target).unwrap();
        let mut command = *Sqe::view(&bytes).unwrap();
        if plain {
            command.opcode = 0x7f;
            command.flags = FLAGS_SGL;
            command.nsid = U32::new(u32::from(kind));
            command.cdw10 = U32::new(command.cdw10.get() & 1);
            command.cdw11 = U32::new(offset);
        }
        let queue = if admin { &host.connected.queue } else { &io.queue };
        let reply = host.controller().fabrics(queue, &command);
        prop_assert!(reply.status.fabrics_name().is_some());
        let disconnects = command.fabrics_type() == Some(FabricsType::DISCONNECT);
        prop_assert!(!admin || !disconnects || !reply.status.is_success());
        prop_assert!(reply.status.is_success() || reply.result == 0);
    }

    #[test]
    fn any_connect_is_answered(
        bytes in prop::collection::vec(any::<u8>(), 64),
        qid in 0u16..4,
        sqsize: u16,
        controller in prop::sample::select(vec![0u16, 1, 2, 0xfffe, 0xffff]),
        known: bool,
    ) {
        let target = target();
        let host = TestHost::connect(&target, &volume());
        let mut attempt = Attempt::admin(&volume());
        attempt.command = *Wire::view(&bytes).unwrap();
        attempt.data.controller_id = controller.into();
        if known {
            attempt.command.record_format = 0.into();
            attempt.command.qid = qid.into();
            attempt.command.sqsize_0based = sqsize.into();
        }
        match attempt.send(&target) {
            Ok(connected) => {
                prop_assert!(connected.queue.entries >= 2);
                prop_assert!(connected.queue.entries <= target.config().max_queue_entries);
            }
            Err(refusal) => prop_assert!(!refusal.status.is_success()),
        }
        prop_assert_eq!(target.controllers(), 1);
        prop_assert_eq!(host.controller().queue_ids(), [0]);
    }
}

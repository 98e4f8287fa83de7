//! Fuzz target for command capsules, parsed as every possible command.
//!
//! Input: the submission queue entry, 64 bytes, then the in-capsule data.

use flagstone_nvme::command::admin::{Abort, GetFeatures, GetLogPage, Identify, SetFeatures};
use flagstone_nvme::command::fabrics::{ConnectCommand, ConnectData, PropertyCommand};
use flagstone_nvme::command::io::{BlockCommand, BlockRange, DatasetManagement, DsmRange};
use flagstone_nvme::feature::{HostBehavior, NumberOfQueues};
use flagstone_nvme::limits::{DSM_BYTES, IO_BLOCKS, NQN_BYTES};
use flagstone_nvme::replica::{
    CompressedWrite, DATA_MAX_BYTES, IdentifyReplica, OrderedWrite, OrderedZeroes, ReplicaRequest,
};
use flagstone_nvme::sgl::DataPointer;
use flagstone_nvme::{AdminOpcode, IoOpcode, Sqe, Wire};

/// Namespaces of 1 GiB in 512-byte blocks, and of the maximum number of blocks.
const NAMESPACES_BLOCKS: [u64; 2] = [1 << 21, u64::MAX];

/// Parses the entry and its data as every command.
pub fn run(input: &[u8]) {
    let Some((entry, data)) = input.split_at_checked(Sqe::BYTES) else { return };
    let command = Sqe::view(entry).expect("64 bytes");
    let carried = u32::try_from(data.len()).expect("an input is small");
    let _ = command.check_flags();
    match DataPointer::parse(&command.data, carried) {
        Ok(pointer) => assert_eq!(pointer.data_bytes(), command.data.data_bytes.get()),
        Err(error) => {
            assert!(!error.status().is_success());
            let _ = (error.fatal(), error.to_string());
        }
    }
    let _ = (IoOpcode(command.opcode).to_string(), AdminOpcode(command.opcode).to_string());
    let _ = command.fabrics_type().map(|kind| kind.to_string());
    io(command, data);
    admin(command, data);
    fabrics(command, data);
    replica(command, data);
}

fn io(command: &Sqe, data: &[u8]) {
    let parsed = BlockCommand::parse(command);
    assert!((1..=IO_BLOCKS).contains(&parsed.range.blocks()));
    for namespace_blocks in NAMESPACES_BLOCKS {
        if parsed.range.check_within(namespace_blocks).is_ok() {
            let end = parsed.range.start() + u64::from(parsed.range.blocks());
            assert!(end <= namespace_blocks);
        }
    }
    if let Some(range) = BlockRange::new(parsed.range.start(), parsed.range.blocks()) {
        let again = Sqe::write(1, 1, range, parsed.fua(), command.data);
        assert_eq!(BlockCommand::parse(&again).range, range);
        assert_eq!(BlockCommand::parse(&again).fua(), parsed.fua());
    }
    let _ = parsed.wants_protection();
    let _ = (parsed.deallocate(), parsed.namespace_zeroes());

    let dataset = DatasetManagement::parse(command);
    assert!(dataset.data_bytes() as usize <= DSM_BYTES);
    let ranges = DsmRange::view_list(data);
    for range in ranges.iter().take(usize::from(dataset.ranges)) {
        for namespace_blocks in NAMESPACES_BLOCKS {
            if range.check_within(namespace_blocks).is_ok() {
                assert!(range.start.get() + u64::from(range.blocks.get()) <= namespace_blocks);
            }
        }
    }
}

fn admin(command: &Sqe, data: &[u8]) {
    let cid = command.cid.get();
    let identify = Identify::parse(command);
    assert_eq!(Identify::parse(&identify.command(cid)), identify);
    let _ = identify.cns.to_string();

    let log = GetLogPage::parse(command);
    assert!(log.data_bytes >= 4 && log.data_bytes.is_multiple_of(4));
    match log.command(cid) {
        Some(again) => assert_eq!(GetLogPage::parse(&again), log),
        None => assert!(log.data_bytes > u64::from(u32::MAX), "one SGL holds it"),
    }
    let _ = log.log.to_string();

    let get = GetFeatures::parse(command);
    let again = GetFeatures::parse(&Sqe::get_features(cid, get.feature, get.parameter, 0));
    assert_eq!((again.feature, again.parameter), (get.feature, get.parameter));
    let set = SetFeatures::parse(command);
    let again = SetFeatures::parse(&Sqe::set_features(cid, set.feature, set.value));
    assert_eq!((again.feature, again.value), (set.feature, set.value));
    let _ = set.feature.to_string();
    if let Ok(queues) = NumberOfQueues::from_request(set.value) {
        assert_eq!(queues.to_dword(), set.value);
    }
    if let Some(behavior) = HostBehavior::view(data) {
        let _ = behavior.check();
    }

    let abort = Abort::parse(command);
    assert_eq!(Abort::parse(&Sqe::abort(cid, abort)), abort);
}

fn replica(command: &Sqe, data: &[u8]) {
    if let Ok(request) = ReplicaRequest::parse(command, data) {
        assert!(request.reply_bytes() <= DATA_MAX_BYTES);
        let again = request.command(command.cid.get(), command.nsid.get());
        let sent = request.data();
        assert_eq!(ReplicaRequest::sent_bytes(request.opcode()), Some(sent.len()));
        assert_eq!(again.parameters(), command.parameters());
        assert_eq!(ReplicaRequest::parse(&again, sent), Ok(request));
    }
    if let Ok(write) = OrderedWrite::parse(command) {
        let again = write.command(1, 1, command.data);
        assert_eq!(OrderedWrite::parse(&again), Ok(write));
    }
    if let Ok(write) = CompressedWrite::parse(command) {
        assert!(write.sent_bytes().is_none_or(|sent| sent >= write.compressed_bytes));
        let again = write.command(1, 1, command.data);
        assert_eq!(CompressedWrite::parse(&again), Ok(write));
    }
    if let Ok(zeroes) = OrderedZeroes::parse(command) {
        assert_eq!(OrderedZeroes::parse(&zeroes.command(1, 1)), Ok(zeroes));
        for namespace_blocks in NAMESPACES_BLOCKS {
            if zeroes.check_within(namespace_blocks).is_ok() {
                assert!(zeroes.start + zeroes.blocks <= namespace_blocks);
            }
        }
    }
    if let Some(replica) = IdentifyReplica::view(data) {
        match replica.check() {
            Ok(_) => assert!(replica.bit_bytes.get().is_power_of_two()),
            Err(error) => drop(error.to_string()),
        }
    }
}

fn fabrics(command: &Sqe, data: &[u8]) {
    let connect = ConnectCommand::of(command);
    if connect.check().is_ok() {
        assert!(connect.sqsize_0based.get() > 0);
    }
    let _ = connect.disables_flow_control();
    assert_eq!(&connect.command(), command);
    if let Some(data) = ConnectData::view(data) {
        match data.check() {
            Ok((subnqn, hostnqn)) => {
                for name in [Some(subnqn), hostnqn].into_iter().flatten() {
                    assert!((1..=NQN_BYTES).contains(&name.as_str().len()));
                }
                let id = data.controller_id.get();
                let Some(hostnqn) = hostnqn else { return };
                let again = ConnectData::new(data.host_id, id, &subnqn, &hostnqn);
                assert_eq!(again.check(), Ok((subnqn, Some(hostnqn))));
            }
            Err(field) => assert!(!field.completion(command.cid.get()).status().is_success()),
        }
    }

    let property = PropertyCommand::of(command);
    let (name, size) = (property.property(), property.size());
    if name.check_set(size).is_ok() {
        assert!(name.is_writable() && name.check_get(size).is_ok());
    }
    let _ = (name.to_string(), property.set_value());
}

//! Log pages: contents, every offset, and the discovery log.

use flagstone_nvme::command::Sqe;
use flagstone_nvme::command::admin::GetLogPage;
use flagstone_nvme::log::discovery::SubsystemType;
use flagstone_nvme::log::{
    AnaHeader, AnaState, CommandEffects, DiscoveryEntry, DiscoveryHeader, ErrorEntry, LogId,
    SmartHealth, SupportedPages, ana,
};
use flagstone_nvme::status::Status;
use flagstone_nvme::wire::{U32, Wire};
use proptest::prelude::*;

use super::*;

const IO_LOGS: [(u8, usize); 10] = [
    (0x00, 1024),
    (0x01, 4096),
    (0x02, 512),
    (0x03, 512),
    (0x04, 4096),
    (0x05, 4096),
    (0x0c, 16 + 32 + 4),
    (0x12, 1024),
    (0x13, 4096),
    (0x80, 64),
];

fn read(host: &TestHost, log: LogId, offset: u64, bytes: u32) -> Result<Vec<u8>, Status> {
    let mut get = GetLogPage::new(log, u32::MAX, offset, bytes);
    get.retain_event = true;
    send(host, get)
}

fn send(host: &TestHost, get: GetLogPage) -> Result<Vec<u8>, Status> {
    let (_, data) = host.send(&get.command(1).unwrap(), &[])?;
    assert_eq!(data.len() as u64, get.data_bytes);
    Ok(data)
}

fn refused(status: Status) -> Result<Vec<u8>, Status> {
    Err(status.dnr())
}

#[test]
fn supported_log_pages() {
    let target = target();
    let io = TestHost::connect(&target, &volume());
    let discovery = TestHost::connect(&target, &Nqn::discovery());
    let io_logs: Vec<u8> = IO_LOGS.iter().map(|&(log, _)| log).collect();
    for (host, ours) in [(&io, io_logs), (&discovery, vec![0x00, 0x01, 0x70])] {
        let data = read(host, LogId::SUPPORTED_PAGES, 0, 1024).unwrap();
        let pages = SupportedPages::view(&data).unwrap();
        for log in 0..=255 {
            let there = ours.contains(&log);
            assert_eq!(pages.pages[usize::from(log)].get(), u32::from(there), "{log:#x}");
            let answer = read(host, LogId(log), 0, 4);
            assert!(if there {
                answer.is_ok()
            } else {
                answer == refused(Status::INVALID_LOG_PAGE)
            });
        }
    }
}

#[test]
fn log_pages_end_at_their_length() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    for (log, page_bytes) in IO_LOGS {
        let (log, end) = (LogId(log), page_bytes as u64);
        let whole = read(&host, log, 0, page_bytes as u32).unwrap();
        let beyond = read(&host, log, 0, page_bytes as u32 + 64).unwrap();
        assert_eq!((&beyond[..page_bytes], &beyond[page_bytes..]), (&whole[..], &[0; 64][..]));
        assert_eq!(read(&host, log, end, 64), Ok(vec![0; 64]));
        let last = read(&host, log, end - 4, 8).unwrap();
        assert_eq!((&last[..4], &last[4..]), (&whole[page_bytes - 4..], &[0; 4][..]));
        for offset in [end + 4, 1 << 32, u64::MAX - 3, 2, u64::MAX] {
            assert_eq!(read(&host, log, offset, 64), refused(Status::INVALID_FIELD));
        }
    }
}

#[test]
fn invalid_log_lengths_refused_before_allocation() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let most = target.config().mdts_bytes;
    assert_eq!(read(&host, LogId::SMART, 0, most).unwrap().len(), most as usize);
    assert_eq!(read(&host, LogId::SMART, 0, most + 4), refused(Status::INVALID_FIELD));
    assert_eq!(read(&host, LogId::SMART, 0, u32::MAX - 3), refused(Status::INVALID_FIELD));
    let index = GetLogPage { offset_is_index: true, ..GetLogPage::new(LogId::SMART, 0, 0, 512) };
    assert_eq!(send(&host, index), refused(Status::INVALID_FIELD));
    let of_one = GetLogPage::new(LogId::SMART, 1, 0, 512);
    assert_eq!(send(&host, of_one), refused(Status::INVALID_FIELD));
    let key_value = GetLogPage { csi: 1, ..GetLogPage::new(LogId::COMMAND_EFFECTS, 0, 0, 4096) };
    assert_eq!(send(&host, key_value), refused(Status::INVALID_FIELD));
    let mut short = GetLogPage::new(LogId::SMART, 0, 0, 512).command(1).unwrap();
    short.data = flagstone_nvme::sgl::SglDescriptor::transport(508);
    assert_eq!(host.send(&short, &[]), Err(Status::DATA_SGL_LENGTH_INVALID.dnr()));
    // Largest length that the command can encode, 16 GiB.
    let mut largest = GetLogPage::new(LogId::SMART, 0, 0, 4).command(1).unwrap();
    largest.cdw10 = (largest.cdw10.get() | 0xffff_0000).into();
    largest.cdw11 = 0xffff.into();
    assert_eq!(host.send(&largest, &[]), Err(Status::INVALID_FIELD.dnr()));
}

#[test]
fn error_log_is_newest_first() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let mut vendor = Sqe::keep_alive(0x55);
    vendor.opcode = 0xc1;
    host.send(&vendor, &[]).unwrap_err();
    let mut write = Sqe::keep_alive(0x66);
    write.opcode = 1;
    host.controller().record_error(3, &write, Status::WRITE_FAULT, 77, 0);
    let data = read(&host, LogId::ERROR, 0, 4096).unwrap();
    let entries = ErrorEntry::view_list(&data);
    assert_eq!((entries[0].error_count.get(), entries[0].sqid.get()), (2, 3));
    assert_eq!((entries[0].status(), entries[0].block.get()), (Status::WRITE_FAULT, 77));
    assert_eq!((entries[1].cid.get(), entries[1].opcode), (0x55, 0xc1));
    assert_eq!(entries[1].status(), Status::INVALID_OPCODE.dnr());
    assert_eq!(entries[2], ErrorEntry::default());
    let data = read(&host, LogId::SMART, 0, 512).unwrap();
    assert_eq!(SmartHealth::view(&data).unwrap().error_entries.get(), 2);
}

#[test]
fn smart_log_counts_all_queues() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let other = TestHost::connect(&target, &volume());
    let queues = [(&host, 1), (&host, 2), (&other, 1)]
        .map(|(host, qid)| Attempt::io(host.id(), qid).send(&target).unwrap());
    for io in &queues {
        io.queue.counters.read(512_000);
        io.queue.counters.write(1);
    }
    let [first, ..] = queues;
    drop(first);
    let data = read(&host, LogId::SMART, 0, 512).unwrap();
    let smart = SmartHealth::view(&data).unwrap();
    assert_eq!((smart.host_reads.get(), smart.host_writes.get()), (3, 3));
    assert_eq!((smart.data_units_read.get(), smart.data_units_written.get()), (3, 1));
    assert_eq!((smart.critical_warning, smart.available_spare), (0, 100));
}

#[test]
fn command_effects_list_supported_commands() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let data = read(&host, LogId::COMMAND_EFFECTS, 0, 4096).unwrap();
    let effects = CommandEffects::view(&data).unwrap();
    let listed = |table: &[flagstone_nvme::wire::U32; 256]| {
        let opcodes = (0..256).filter(|&opcode| table[opcode].get() & 1 != 0);
        opcodes.collect::<Vec<usize>>()
    };
    assert_eq!(listed(&effects.admin), [0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18]);
    assert_eq!(listed(&effects.io), [0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0c, 0x19]);
    let changing = [0x01, 0x08, 0x09, 0x19];
    for opcode in listed(&effects.io) {
        let changes = effects.io[opcode].get() & 2 != 0;
        assert_eq!(changes, changing.contains(&opcode));
        // Linux up to 6.3 warns of any other bit.
        assert_eq!(effects.io[opcode].get() & !3, 0);
    }
    let data = read(&host, LogId::FEATURE_EFFECTS, 0, 1024).unwrap();
    let features = SupportedPages::view(&data).unwrap();
    assert_eq!(
        listed(&features.pages),
        [1, 2, 4, 5, 7, 8, 9, 0x0a, 0x0b, 0x0f, 0x16, 0x19, 0x81, 0x82, 0x83]
    );
    assert_eq!(features.pages[5].get(), 1 | 1 << 20);
}

#[test]
fn ana_log_has_one_group() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    add_namespace(&target, Some(9)).unwrap();
    target.set_ana_state(&volume(), AnaState::NON_OPTIMIZED).unwrap();
    let data = read(&host, LogId::ANA, 0, 4144).unwrap();
    let groups: Vec<_> = ana::groups(&data).collect();
    let [(group, namespaces)] = groups[..] else { panic!("{groups:?}") };
    assert_eq!((group.id.get(), group.state()), (1, AnaState::NON_OPTIMIZED));
    assert_eq!(namespaces.iter().map(|nsid| nsid.get()).collect::<Vec<u32>>(), [1, 9]);
    let count = AnaHeader::view(&data).unwrap().change_count.get();
    let get = GetLogPage { specific: ana::GROUPS_ONLY, ..GetLogPage::new(LogId::ANA, 0, 0, 64) };
    let data = send(&host, get).unwrap();
    let groups: Vec<_> = ana::groups(&data).collect();
    assert!(groups.len() == 1 && groups[0].1.is_empty());
    assert_eq!(AnaHeader::view(&data).unwrap().change_count.get(), count);
    target.set_ana_state(&volume(), AnaState::OPTIMIZED).unwrap();
    let data = read(&host, LogId::ANA, 0, 64).unwrap();
    assert!(AnaHeader::view(&data).unwrap().change_count.get() > count);
}

/// The group of pending namespaces is there while there is one.
#[test]
fn ana_log_has_pending_namespaces_apart() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    for nsid in [5, 3] {
        target.add_pending_namespace(&volume(), nsid).unwrap();
    }
    let groups = || {
        let data = read(&host, LogId::ANA, 0, 4176).unwrap();
        let listed = |(group, namespaces): (&flagstone_nvme::log::AnaGroup, &[U32])| {
            let namespaces: Vec<u32> = namespaces.iter().map(|nsid| nsid.get()).collect();
            (group.id.get(), group.state(), namespaces)
        };
        ana::groups(&data).map(listed).collect::<Vec<_>>()
    };
    let (up, down) = (AnaState::OPTIMIZED, AnaState::INACCESSIBLE);
    assert_eq!(groups(), [(1, up, vec![1]), (2, down, vec![3, 5])]);
    let get = GetLogPage { specific: ana::GROUPS_ONLY, ..GetLogPage::new(LogId::ANA, 0, 0, 80) };
    let data = send(&host, get).unwrap();
    assert_eq!(ana::groups(&data).map(|(_, namespaces)| namespaces.len()).max(), Some(0));
    add_namespace(&target, Some(3)).unwrap();
    assert_eq!(groups(), [(1, up, vec![1, 3]), (2, down, vec![5])]);
    add_namespace(&target, Some(5)).unwrap();
    assert_eq!(groups(), [(1, up, vec![1, 3, 5])]);
}

/// Discovery log read by `host`: generation and entries.
fn discover(host: &TestHost) -> (u64, Vec<DiscoveryEntry>) {
    let data = read(host, LogId::DISCOVERY, 0, 1024).unwrap();
    let header = DiscoveryHeader::view(&data).unwrap();
    assert_eq!(header.record_format.get(), 0);
    let entries = header.entries.get() as u32;
    if entries == 0 {
        return (header.generation.get(), Vec::new());
    }
    let data = read(host, LogId::DISCOVERY, 1024, entries * 1024).unwrap();
    (header.generation.get(), DiscoveryEntry::view_list(&data).to_vec())
}

fn host_at(target: &Arc<Target>, local: Option<&str>) -> TestHost {
    let mut attempt = Attempt::admin(&Nqn::discovery());
    attempt.local = local.map(|address| address.parse().unwrap());
    let host = TestHost { connected: attempt.send(target).unwrap(), line: attempt.line };
    host.enable();
    host
}

fn listen(target: &Target, address: &str) {
    target.add_listener(&Address::Tcp(address.parse().unwrap())).unwrap();
}

#[test]
fn discovery_log_lists_subsystems_per_listener() {
    let target = target();
    let host = host_at(&target, Some("192.0.2.9:4420"));
    let (first, entries) = discover(&host);
    assert!(entries.is_empty());
    listen(&target, "192.0.2.1:4420");
    listen(&target, "[2001:db8::1]:4421");
    let (second, entries) = discover(&host);
    assert!(second > first);
    let seen: Vec<_> = entries
        .iter()
        .map(|e| (e.subsystem_type, e.subnqn().unwrap(), e.tcp_address().unwrap().to_string()))
        .collect();
    let of = |kind: SubsystemType, nqn, at: &str| (kind.0, nqn, at.to_owned());
    assert_eq!(
        seen,
        [
            of(SubsystemType::CURRENT_DISCOVERY, Nqn::discovery(), "192.0.2.1:4420"),
            of(SubsystemType::CURRENT_DISCOVERY, Nqn::discovery(), "[2001:db8::1]:4421"),
            of(SubsystemType::NVM, volume(), "192.0.2.1:4420"),
            of(SubsystemType::NVM, volume(), "[2001:db8::1]:4421"),
        ]
    );
    assert_eq!((entries[2].port_id.get(), entries[3].port_id.get()), (1, 2));
    assert_eq!(
        (entries[2].controller_id.get(), entries[2].admin_queue_entries.get()),
        (0xffff, 1024)
    );
    assert_eq!(discover(&host).0, second, "it changes only when something does");
}

#[test]
fn discovery_log_lists_ports_of_other_nodes() {
    let target = target();
    listen(&target, "192.0.2.1:4420");
    let other = Nqn::new("nqn.2026-01.io.flagstone:other").unwrap();
    add_subsystem(&target, other, None);
    let host = host_at(&target, None);
    let before = discover(&host).0;
    for (address, port_id) in
        [("192.0.2.2:4420", 65), ("192.0.2.2:4420", 65), ("192.0.2.1:4420", 9)]
    {
        target.add_remote_port(&volume(), address.parse().unwrap(), port_id).unwrap();
    }
    let (after, entries) = discover(&host);
    assert!(after > before);
    let remote: Vec<_> = entries.iter().filter(|entry| entry.port_id.get() != 1).collect();
    assert_eq!(entries.len(), 4, "one each, and one of the other node");
    assert_eq!(remote.len(), 1);
    assert_eq!((remote[0].subnqn().unwrap(), remote[0].port_id.get()), (volume(), 65));
    assert_eq!(remote[0].tcp_address().unwrap().to_string(), "192.0.2.2:4420");
    target.remove_remote_port(&volume(), "192.0.2.2:4420".parse().unwrap()).unwrap();
    assert_eq!(discover(&host).1.len(), 3, "it was removed");
    target.add_remote_port(&Nqn::discovery(), "192.0.2.3:1".parse().unwrap(), 1).unwrap_err();
}

#[test]
fn wildcard_listener_reports_used_address() {
    for (listener, local, seen) in [
        ("0.0.0.0:4420", Some("192.0.2.9:4420"), Some("192.0.2.9:4420")),
        ("[::]:4420", Some("192.0.2.9:4420"), Some("192.0.2.9:4420")),
        ("[::]:4420", Some("[::ffff:192.0.2.9]:4420"), Some("192.0.2.9:4420")),
        ("0.0.0.0:4421", Some("[::ffff:192.0.2.9]:4420"), Some("192.0.2.9:4421")),
        ("[::]:4420", Some("[2001:db8::9]:1"), Some("[2001:db8::9]:4420")),
        ("0.0.0.0:4420", Some("[2001:db8::9]:1"), None),
        ("0.0.0.0:4420", None, None),
        ("127.0.0.1:4420", None, Some("127.0.0.1:4420")),
    ] {
        let target = target();
        listen(&target, listener);
        let host = host_at(&target, local);
        let (_, entries) = discover(&host);
        let got = entries.last().map(|entry| entry.tcp_address().unwrap().to_string());
        assert_eq!(got.as_deref(), seen, "{listener} {local:?}");
    }
    let target = target();
    listen(&target, "0.0.0.0:4420");
    listen(&target, "[::]:4420");
    assert_eq!(discover(&host_at(&target, Some("192.0.2.9:4420"))).1.len(), 2);
}

#[test]
fn discovery_log_respects_allow_list() {
    let target = target();
    listen(&target, "192.0.2.1:4420");
    let private = Nqn::new("nqn.2026-01.io.flagstone:private").unwrap();
    add_subsystem(&target, private, Some(vec![Nqn::from_uuid([1; 16])]));
    let host = host_at(&target, None);
    assert_eq!(discover(&host).1.len(), 2);
    target.set_allowed_hosts(&private, Some(vec![super::host()])).unwrap();
    assert_eq!(discover(&host).1.len(), 3);
}

proptest! {
    #[test]
    fn log_page_offsets_match_whole_page(
        offset_dwords in 0u64..2000,
        dwords in 1u32..2000,
        subsystems in 0u32..6,
        log in prop::sample::select(vec![0x00u8, 0x05, 0x0c, 0x70]),
    ) {
        let target = target();
        listen(&target, "192.0.2.1:4420");
        for index in 0..subsystems {
            let nqn = Nqn::new(&format!("nqn.2026-01.io.flagstone:{index}")).unwrap();
            add_subsystem(&target, nqn, None);
        }
        let subsystem = if log == 0x70 { Nqn::discovery() } else { volume() };
        let host = TestHost::connect(&target, &subsystem);
        let whole_bytes = match log {
            0x00 => 1024,
            0x05 => 4096,
            0x0c => 52,
            _ => 1024 * (3 + subsystems as usize),
        };
        let whole = read(&host, LogId(log), 0, whole_bytes as u32).unwrap();
        let (offset, bytes) = (offset_dwords * 4, dwords * 4);
        let part = read(&host, LogId(log), offset, bytes);
        if offset > whole_bytes as u64 {
            prop_assert_eq!(part, refused(Status::INVALID_FIELD));
        } else {
            let mut expected = whole[offset as usize..].to_vec();
            expected.resize(bytes as usize, 0);
            prop_assert_eq!(part.unwrap(), expected);
        }
    }
}

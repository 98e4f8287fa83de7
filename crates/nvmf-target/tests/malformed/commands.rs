//! Malformed commands and SGL descriptors.

use super::*;

// SGL descriptors.

#[test]
fn in_capsule_length_differs_from_sgl() {
    survives(async |server| {
        let mut host = Host::attach(server, &Options::default()).await;
        for sgl in [
            SglDescriptor::in_capsule(0),
            SglDescriptor::in_capsule(512),
            SglDescriptor::in_capsule(4095),
            SglDescriptor::in_capsule(8192),
            SglDescriptor::in_capsule(u32::MAX),
            SglDescriptor::transport(4096),
            SglDescriptor::transport(0),
        ] {
            let command = Sqe::write(5, 1, range(0, BLOCK, 4096), false, sgl);
            let completion = host.io.call_with(command, &[1; 4096]).await;
            assert_eq!(completion.status().code(), Status::DATA_SGL_LENGTH_INVALID, "{sgl:?}");
        }
        // The SGL matches the capsule but not the blocks.
        let sgl = SglDescriptor::in_capsule(4096);
        for bytes in [512, 8192] {
            let command = Sqe::write(5, 1, range(0, BLOCK, bytes), false, sgl);
            let completion = host.io.call_with(command, &[1; 4096]).await;
            assert_eq!(completion.status().code(), Status::DATA_SGL_LENGTH_INVALID);
        }
        // The SGL claims in-capsule data, and the capsule has none.
        let command = Sqe::write(5, 1, range(0, BLOCK, 4096), false, sgl);
        let completion = host.io.call(command).await;
        assert_eq!(completion.status().code(), Status::DATA_SGL_LENGTH_INVALID);
        assert_eq!(server.gate.writes(), 0);
    });
}

#[test]
fn unsupported_sgl_type() {
    let field = 8 + offset_of!(Sqe, data) + offset_of!(SglDescriptor, identifier);
    let wrong = Fatal::unsupported(field as u32);
    for identifier in [0x00, 0x02, 0x10, 0x20, 0x30, 0x40, 0x4f, 0x50, 0x5b, 0xff] {
        pdu_is_refused(wrong, |io| {
            let mut command =
                Sqe::write(5, 1, range(0, BLOCK, 512), false, SglDescriptor::default());
            command.data.identifier = identifier;
            command.data.data_bytes = U32::new(512);
            io.capsule(&command, &[0; 512])
        });
    }
    pdu_is_refused(wrong, |io| {
        let mut command = Sqe::read(5, 1, range(0, BLOCK, 512), 512);
        command.data.identifier = 0x40;
        io.capsule(&command, &[])
    });
}

#[test]
fn in_capsule_data_at_offset() {
    let wrong = Fatal::unsupported(8 + offset_of!(Sqe, data) as u32);
    assert_eq!(wrong.status, FatalStatus::UNSUPPORTED_PARAMETER);
    for offset in [1, 512, u64::MAX] {
        pdu_is_refused(wrong, |io| {
            let mut sgl = SglDescriptor::in_capsule(512);
            sgl.address = U64::new(offset);
            io.capsule(&Sqe::write(5, 1, range(0, BLOCK, 512), false, sgl), &[0; 512])
        });
    }
}

// Commands.

#[test]
fn discovery_log_beyond_end() {
    survives(async |server| {
        let options = Options { subsystem: Nqn::discovery(), ..Options::default() };
        let (mut admin, _) = Host::admin(server, &options).await;
        let log =
            |offset, bytes| GetLogPage::new(LogId::DISCOVERY, 0, offset, bytes).command(3).unwrap();
        let header = admin.ask(log(0, 1024)).await.unwrap();
        let entries = DiscoveryHeader::view(&header).unwrap().entries.get();
        let end = 1024 * (1 + entries);
        for offset in [end + 4, end + 1024, 1 << 32, u64::MAX - 3] {
            let refused = admin.ask(log(offset, 1024)).await.unwrap_err();
            assert_eq!(refused.code(), Status::INVALID_FIELD, "{offset}");
        }
        // More bytes than the log has, from an offset within it.
        for (offset, bytes) in [(1024, 1 << 20), (end - 4, 4096)] {
            assert!(admin.ask(log(offset, bytes)).await.is_ok());
        }
        let refused = admin.ask(log(0, u32::MAX - 3)).await.unwrap_err();
        assert_eq!(refused.code(), Status::INVALID_FIELD);
        assert_eq!(admin.ask(log(0, 1024)).await.unwrap(), header);
    });
}

#[test]
fn invalid_connect() {
    survives(async |server| {
        let options = Options::default();
        let host = Host::attach(server, &options).await;
        let refused = |field: ConnectField| {
            (Status::CONNECT_INVALID_PARAMETERS.dnr(), u64::from(field.result()))
        };
        let connect = |qid, entries| ConnectCommand::new(1, qid, entries, 0, false).unwrap();
        let mut empty = connect(2, 2);
        empty.sqsize_0based = U16::new(0);
        let mut format = connect(2, 2);
        format.record_format = U16::new(1);
        // It might be released soon.
        let exists = (Status::COMMAND_SEQUENCE_ERROR, 0);
        // It may have ended just now.
        let gone =
            (Status::CONNECT_INVALID_PARAMETERS, u64::from(ConnectField::ControllerId.result()));
        let incompatible = (Status::CONNECT_INCOMPATIBLE_FORMAT.dnr(), 0);
        // One connection tries all of them, and succeeds at the end.
        let mut client = Client::initialized(server, &options).await;
        for (command, controller, expected) in [
            (connect(1, 128), host.id, exists),
            (connect(2, 128), host.id + 1, gone),
            (connect(2, 128), CONTROLLER_ID_DYNAMIC, gone),
            (connect(0, 32), host.id, refused(ConnectField::ControllerId)),
            (empty, host.id, refused(ConnectField::SqSize)),
            (connect(2, 65_536), host.id, refused(ConnectField::SqSize)),
            (connect(129, 128), host.id, refused(ConnectField::Qid)),
            (connect(0xffff, 128), host.id, refused(ConnectField::Qid)),
            (format, host.id, incompatible),
        ] {
            let completion = client.connect_as(&options, command, controller).await;
            assert_eq!((completion.status(), completion.result()), expected, "{command:?}");
        }
        for (bad, field) in [
            (Options { host_id: [0; 16], ..options.clone() }, ConnectField::HostId),
            (Options { host_id: [8; 16], ..options.clone() }, ConnectField::HostId),
            (Options { host: Nqn::from_uuid([1; 16]), ..options.clone() }, ConnectField::HostNqn),
            (
                Options { subsystem: Nqn::from_uuid([1; 16]), ..options.clone() },
                ConnectField::SubNqn,
            ),
        ] {
            let completion = client.connect_as(&bad, connect(2, 2), host.id).await;
            assert_eq!((completion.status(), completion.result()), refused(field));
        }
        let completion = client.connect_as(&options, connect(2, 2), host.id).await;
        assert_eq!(completion.status(), Status::SUCCESS);
        client.write(1, 0, BLOCK, &[1; 512]).await.unwrap();
        // Connect on a connected queue.
        let again = client.connect_as(&options, connect(3, 2), host.id).await;
        assert_eq!(again.status().code(), Status::COMMAND_SEQUENCE_ERROR);
    });
}

#[test]
fn connect_without_data() {
    survives(async |server| {
        let mut client = Client::initialized(server, &Options::default()).await;
        let connect = ConnectCommand::new(1, 0, 32, 0, false).unwrap().command();
        for (sgl, bytes) in [
            (SglDescriptor::transport(1024), 0),
            (SglDescriptor::transport(0), 0),
            (SglDescriptor::in_capsule(0), 0),
            (SglDescriptor::in_capsule(1023), 1023),
            (SglDescriptor::in_capsule(1024), 512),
        ] {
            let command = Sqe { data: sgl, ..connect };
            let completion = client.call_with(command, &vec![0; bytes]).await;
            assert!(!completion.status().is_success());
            assert_eq!(server.target.controllers(), 0);
        }
    });
}

#[test]
fn commands_before_connect() {
    survives(async |server| {
        let mut client = Client::initialized(server, &Options::default()).await;
        let get = PropertyCommand::get(1, Property::CAP, PropertySize::EIGHT).command();
        for command in
            [get, Sqe::flush(1, 1), Sqe::keep_alive(1), Sqe::read(1, 1, range(0, 512, 512), 512)]
        {
            let status = client.call(command).await.status();
            assert_eq!(status.code(), Status::COMMAND_SEQUENCE_ERROR);
        }
        assert!(!client.call(big_write(1)).await.status().is_success());
        assert_eq!(server.gate.writes(), 0);
    });
}

#[test]
fn io_and_admin_commands_before_enable() {
    survives(async |server| {
        let options = Options::default();
        let mut admin = Client::initialized(server, &options).await;
        let connected = admin.connect(&options, 0, CONTROLLER_ID_DYNAMIC).await;
        assert_eq!(connected.status(), Status::SUCCESS);
        let identify = Identify::new(Cns::CONTROLLER, 0).command(1);
        let refused = admin.ask(identify).await.unwrap_err();
        assert_eq!(refused.code(), Status::COMMAND_SEQUENCE_ERROR);
        let mut io = Client::initialized(server, &options).await;
        let id = connected.dw0.get() as u16;
        let refused = io.connect(&options, 1, id).await;
        assert_eq!(refused.status().code(), Status::COMMAND_SEQUENCE_ERROR);
    });
}

#[test]
fn maximum_namespaces() {
    on_each_driver(async || {
        let config = TargetConfig { max_namespaces: 65_535, ..TargetConfig::default() };
        let server = Server::with(config);
        let device = server.gate.clone();
        for nsid in 2..=65_535 {
            server.try_add(Some(nsid), device.clone(), false);
        }
        let (mut admin, _) = Host::admin(&server, &Options::default()).await;
        let mut above = 0;
        while above < 65_535 {
            let list = Identify::new(Cns::ACTIVE_NAMESPACES, above).command(1);
            let list = admin.ask(list).await.unwrap();
            for id in NamespaceList::view(&list).unwrap().ids {
                above += u32::from(id.get() != 0);
                assert!(id.get() == above || (id.get() == 0 && above == 65_535));
            }
        }
        for (nsid, there) in [(65_535, true), (65_536, false), (u32::MAX - 2, false)] {
            let identify = Identify::new(Cns::NAMESPACE_DESCRIPTORS, nsid).command(1);
            assert_eq!(admin.ask(identify).await.is_ok(), there);
        }
        drop((admin, device));
        server.is_sound().await;
    });
}

#[test]
fn duplicate_command_identifiers() {
    survives(async |server| {
        let mut host = Host::attach(server, &Options::default()).await;
        server.gate.close();
        let mut pdus = Vec::new();
        for _ in 0..30 {
            pdus.extend(host.io.capsule(&Sqe::flush(9, 1), &[]));
        }
        for _ in 0..2 {
            pdus.extend(host.io.capsule(&big_write(9), &[]));
        }
        host.io.send(&pdus).await;
        let (first, second) = (host.io.r2t().await, host.io.r2t().await);
        // The tags distinguish them.
        assert_ne!(first.transfer_tag, second.transfer_tag);
        for r2t in [second, first] {
            let data = host.io.data_for(&r2t, &pattern(0, BIG));
            host.io.send(&data).await;
        }
        eventually("all are under way", || server.gate.inside() == 32).await;
        server.gate.open();
        for _ in 0..32 {
            let completion = host.io.response().await;
            assert_eq!((completion.cid.get(), completion.status()), (9, Status::SUCCESS));
        }
    });
}

#[test]
fn more_commands_than_queue_entries() {
    survives(async |server| {
        let options = Options { entries: 4, ..Options::default() };
        let mut host = Host::attach(server, &options).await;
        server.gate.close();
        let mut pdus = Vec::new();
        for cid in 0..100 {
            pdus.extend(host.io.capsule(&Sqe::flush(cid, 1), &[]));
        }
        host.io.send(&pdus).await;
        eventually("the queue is full", || server.gate.inside() == 4).await;
        settle().await;
        assert_eq!(server.gate.inside(), 4);
        server.gate.open();
        let mut answered = BTreeSet::new();
        while answered.len() < 100 {
            assert!(answered.insert(host.io.response().await.cid.get()));
        }
    });
}

#[test]
fn random_bytes_at_any_time() {
    survives(async |server| {
        let mut dice = Dice::new(5);
        for round in 0..200 {
            let mut host = Host::attach(server, &Options::default()).await;
            let mut bytes = write_capsule(&host.io, 512);
            let first = host.io.h2c_data(5, 0, 0, &pattern(round, 700), false);
            bytes.extend(first);
            // One corrupted header byte, followed by noise.
            let at = [dice.below(72), 72 + 512 + dice.below(24)][dice.below(2)];
            bytes[at] = dice.below(256) as u8;
            bytes.extend(pattern(round, dice.below(3000)));
            host.io.send(&bytes).await;
            host.io.stream.shutdown();
        }
    });
}

//! Connection setup and teardown.

use super::*;

#[test]
fn icreq_then_close() {
    survives(async |server| {
        for _ in 0..50 {
            let mut client = Client::open(server).await;
            client.send(InitializeRequest::new(BOTH, 0, 1).bytes()).await;
        }
    });
}

#[test]
fn second_icreq() {
    survives(async |server| {
        let request = InitializeRequest::new(Digests::default(), 0, 1);
        let mut client = Client::initialized(server, &Options::default()).await;
        client.send(request.bytes()).await;
        assert_eq!(client.terminated().await, Fatal::SEQUENCE);
        let mut client = Client::open(server).await;
        client.send(&[request.bytes(), request.bytes()].concat()).await;
        assert!(matches!(client.pdu().await, Pdu::Initialized(_)));
    });
    pdu_is_refused(Fatal::SEQUENCE, |_| {
        InitializeRequest::new(Digests::default(), 0, 1).bytes().to_vec()
    });
}

#[test]
fn pdus_before_icreq() {
    survives(async |server| {
        for kind in [PduType::CAPSULE_CMD, PduType::H2C_DATA] {
            let mut client = Client::open(server).await;
            let pdu = write_capsule(&client, 512);
            client.send(&bend(pdu, |common| common.kind = kind.0)).await;
            assert_eq!(client.terminated().await, Fatal::SEQUENCE);
        }
    });
}

#[test]
fn unknown_or_wrong_direction_pdu_types() {
    survives(async |server| {
        for kind in [0x01, 0x03, 0x05, 0x07, 0x08, 0x09, 0x0a, 0x42, 0xff] {
            let mut client = Client::open(server).await;
            client.send(&[kind; 128]).await;
            assert_eq!(client.terminated().await, KIND);
            let mut host = Host::attach(server, &Options::default()).await;
            let pdu = bend(write_capsule(&host.io, 512), |common| common.kind = kind);
            host.io.send(&pdu).await;
            assert_eq!(host.io.terminated().await, KIND);
        }
    });
}

#[test]
fn icreq_with_unknown_format_or_alignment() {
    survives(async |server| {
        for (field, change) in [
            (8, (|icreq| icreq.format_version = U16::new(1)) as fn(&mut InitializeRequest)),
            (10, |icreq| icreq.host_alignment = 32),
            (10, |icreq| icreq.host_alignment = 255),
            (2, |icreq| icreq.common.header_bytes = 127),
            (4, |icreq| icreq.common.pdu_bytes = U32::new(127)),
            (4, |icreq| icreq.common.pdu_bytes = U32::new(129)),
        ] {
            let mut request = InitializeRequest::new(Digests::default(), 0, 1);
            change(&mut request);
            let mut client = Client::open(server).await;
            client.send(request.bytes()).await;
            assert_eq!(client.terminated().await, Fatal::field(field));
        }
    });
}

/// Bytes that a host sends until its admin queue is enabled.
fn set_up(client: &Client) -> Vec<u8> {
    let mut bytes = InitializeRequest::new(Digests::default(), 0, 1).bytes().to_vec();
    let options = Options::default();
    let connect = ConnectCommand::new(0, 0, 32, 15_000, false).unwrap();
    let Options { host_id, subsystem, host, .. } = options;
    let data = ConnectData::new(host_id, CONTROLLER_ID_DYNAMIC, &subsystem, &host);
    bytes.extend(client.capsule(&connect.command(), data.bytes()));
    let value = u64::from(enabled().0);
    let enable = PropertyCommand::set(1, Property::CC, PropertySize::FOUR, value);
    bytes.extend(client.capsule(&enable.command(), &[]));
    bytes
}

#[test]
fn close_at_every_byte_of_setup() {
    survives(async |server| {
        let length = set_up(&Client::open(server).await).len();
        for cut in 0..=length {
            let mut client = Client::open(server).await;
            let bytes = set_up(&client);
            client.send(&bytes[..cut]).await;
            if cut % 3 == 0 {
                // The command is in flight, and its response cannot be sent.
                client.stream.shutdown();
            }
        }
        server.is_quiet().await;
    });
}

#[test]
fn term_req_of_any_status() {
    survives(async |server| {
        for status in [0, 1, 2, 3, 4, 5, 6, 7, 0xff, 0xffff] {
            for data in [0, 1, 24, 128] {
                let mut pdu = vec![0; 24 + data];
                pdu[..8].copy_from_slice(&[2, 0, 24, 0, 24 + data as u8, 0, 0, 0]);
                pdu[8..10].copy_from_slice(&u16::to_le_bytes(status));
                let mut client = Client::open(server).await;
                client.send(&pdu).await;
                client.closed().await;
                let mut host = Host::attach(server, &Options::default()).await;
                // A following command is not executed.
                pdu.extend(write_capsule(&host.io, 512));
                let before = server.gate.writes();
                host.io.send(&pdu).await;
                host.io.closed().await;
                assert_eq!(server.gate.writes(), before);
            }
        }
    });
}

#[test]
fn term_req_of_invalid_length() {
    survives(async |server| {
        for (header, pdu_bytes) in
            [(24, 0), (24, 23), (24, 153), (24, u32::MAX), (0, 24), (23, 24), (255, 24), (128, 152)]
        {
            let mut pdu = vec![0; 152];
            pdu[..4].copy_from_slice(&[2, 0, header, 0]);
            pdu[4..8].copy_from_slice(&u32::to_le_bytes(pdu_bytes));
            let mut host = Host::attach(server, &Options::default()).await;
            host.io.send(&pdu).await;
            host.io.closed().await;
        }
    });
}

//! Input that no host should send: each is answered as the transport wants, nothing of it is
//! carried out, and the target lives.
#![allow(missing_docs)]

mod support;

use std::collections::BTreeSet;
use std::mem::offset_of;

use flagstone_nvme::command::admin::{GetLogPage, Identify};
use flagstone_nvme::command::fabrics::{
    CONTROLLER_ID_DYNAMIC, ConnectCommand, ConnectData, ConnectField, PropertyCommand,
};
use flagstone_nvme::digest::wire_digest;
use flagstone_nvme::identify::{Cns, NamespaceList};
use flagstone_nvme::log::{DiscoveryHeader, LogId};
use flagstone_nvme::pdu::{
    CommonHeader, DataHeader, Digests, Fatal, FatalStatus, InitializeRequest, PduType, R2tHeader,
};
use flagstone_nvme::property::{Property, PropertySize};
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::wire::{U16, U32, U64};
use flagstone_nvme::{Nqn, Sqe, Status, Wire};
use flagstone_nvmf::target::TargetConfig;
use flagstone_runtime::task;

use support::client::{enabled, range};
use support::{
    Client, Dice, Gate, Host, Options, Pdu, Server, eventually, on_each_driver, pattern,
};

const BLOCK: u64 = 512;
const BOTH: Digests = Digests { header: true, data: true };

/// Runs an attack on a new target on each driver, and sees that the target is sound.
fn survives(attack: impl AsyncFn(&Server) + Sync) {
    on_each_driver(async || {
        let server = Server::new();
        attack(&server).await;
        server.is_sound().await;
    });
}

/// A write of 128 KiB as command 5 on a new I/O queue, and the R2T that asks for its data.
async fn asked_for_data(server: &Server) -> (Host, R2tHeader) {
    let mut host = Host::attach(server, &Options::default()).await;
    host.io.submit(big_write(5)).await;
    let r2t = host.io.r2t().await;
    assert_eq!((r2t.cid.get(), r2t.offset.get(), r2t.data_bytes.get()), (5, 0, BIG as u32));
    (host, r2t)
}

const BIG: usize = 128 << 10;

fn big_write(cid: u16) -> Sqe {
    Sqe::write(cid, 1, range(0, BLOCK, BIG), false, SglDescriptor::transport(BIG as u32))
}

/// `bytes` end a connection whose R2T asked for 128 KiB with `fatal`, and nothing is written.
fn data_is_refused(fatal: Fatal, bytes: impl Fn(&Client, u16) -> Vec<u8> + Sync) {
    survives(async |server| {
        let (mut host, r2t) = asked_for_data(server).await;
        let before = server.gate.writes();
        let bytes = bytes(&host.io, r2t.transfer_tag.get());
        host.io.send(&bytes).await;
        assert_eq!(host.io.terminated().await, fatal);
        assert_eq!(server.gate.writes(), before);
    });
}

/// `bytes` end a new I/O queue with `fatal`.
fn pdu_is_refused(fatal: Fatal, bytes: impl Fn(&Client) -> Vec<u8> + Sync) {
    survives(async |server| {
        let mut host = Host::attach(server, &Options::default()).await;
        let bytes = bytes(&host.io);
        host.io.send(&bytes).await;
        assert_eq!(host.io.terminated().await, fatal);
    });
}

/// The common header of `pdu`, to be bent.
fn bend(mut pdu: Vec<u8>, change: impl FnOnce(&mut CommonHeader)) -> Vec<u8> {
    change(CommonHeader::view_mut(&mut pdu).unwrap());
    pdu
}

/// The header of an H2CData, to be bent.
fn bend_data(mut pdu: Vec<u8>, change: impl FnOnce(&mut DataHeader)) -> Vec<u8> {
    change(DataHeader::view_mut(&mut pdu).unwrap());
    pdu
}

const UNKNOWN_TAG: Fatal = Fatal::UNKNOWN_TRANSFER_TAG;
const LENGTH: Fatal = Fatal::field(offset_of!(DataHeader, data_bytes));
const OFFSET: Fatal = Fatal::field(offset_of!(CommonHeader, data_offset));
const PDU_LENGTH: Fatal = Fatal::field(offset_of!(CommonHeader, pdu_bytes));
const KIND: Fatal = Fatal::field(offset_of!(CommonHeader, kind));
const FLAGS: Fatal = Fatal::field(offset_of!(CommonHeader, flags));
const HEADER_LENGTH: Fatal = Fatal::field(offset_of!(CommonHeader, header_bytes));

// Data that nobody asked for.

#[test]
fn data_before_connect() {
    survives(async |server| {
        for tag in [0, 1, 0xffff] {
            let mut client = Client::initialized(server, &Options::default()).await;
            let data = client.h2c_data(0, tag, 0, &[0; 4096], true);
            client.send(&data).await;
            assert_eq!(client.terminated().await, UNKNOWN_TAG);
        }
    });
}

#[test]
fn data_for_a_read() {
    survives(async |server| {
        let mut host = Host::attach(server, &Options::default()).await;
        server.gate.close();
        host.io.submit(Sqe::read(5, 1, range(0, BLOCK, 4096), 4096)).await;
        eventually("the read is under way", || server.gate.inside() == 1).await;
        for tag in [0, 5] {
            let mut queue = host.queue(server, 2 + tag).await;
            queue.submit(Sqe::read(5, 1, range(0, BLOCK, 4096), 4096)).await;
            let data = queue.h2c_data(5, tag, 0, &[0; 4096], true);
            queue.send(&data).await;
            // The reads are awaited before the connections end, and the reason comes first.
            let Pdu::Terminated { fatal, .. } = queue.pdu().await else { panic!("no TermReq") };
            assert_eq!(fatal, UNKNOWN_TAG);
        }
        server.gate.open();
        host.io.answer(5, 4096).await.unwrap();
        assert_eq!(server.gate.writes(), 0);
    });
}

#[test]
fn data_for_a_tag_that_is_not_in_use() {
    data_is_refused(UNKNOWN_TAG, |io, tag| io.h2c_data(5, tag + 1, 0, &[1; 4096], false));
    // Tag 0 of a connection that has no R2T at all.
    pdu_is_refused(UNKNOWN_TAG, |io| io.h2c_data(0, 0, 0, &[1; 4096], true));
}

#[test]
fn data_for_a_tag_beyond_the_queue() {
    for tag in [128, 1024, 0xffff] {
        data_is_refused(UNKNOWN_TAG, move |io, _| io.h2c_data(5, tag, 0, &[1; 4096], false));
    }
}

#[test]
fn data_for_another_command() {
    let wrong = Fatal::field(offset_of!(DataHeader, cid));
    data_is_refused(wrong, |io, tag| io.h2c_data(6, tag, 0, &[1; 4096], false));
}

#[test]
fn data_once_more_for_a_transfer_that_is_complete() {
    survives(async |server| {
        let (mut host, r2t) = asked_for_data(server).await;
        let data = pattern(1, BIG);
        let all = host.io.data_for(&r2t, &data);
        host.io.send(&all).await;
        assert_eq!(host.io.response().await.status(), Status::SUCCESS);
        host.io.send(&all).await;
        assert_eq!(host.io.terminated().await, UNKNOWN_TAG);
        assert_eq!(server.gate.writes(), 1);
    });
}

// Data of the wrong length or place.

#[test]
fn data_of_length_zero() {
    data_is_refused(LENGTH, |io, tag| {
        let mut pdu = io.h2c_data(5, tag, 0, &[0; 4], false);
        pdu.truncate(24);
        let pdu = bend(pdu, |common| common.pdu_bytes = U32::new(24));
        bend_data(pdu, |header| header.data_bytes = U32::new(0))
    });
}

#[test]
fn data_of_a_length_unlike_what_its_pdu_implies() {
    for named in [0, 1, 4095, 4097, 8192, u32::MAX] {
        data_is_refused(LENGTH, |io, tag| {
            let pdu = io.h2c_data(5, tag, 0, &[0; 4096], false);
            bend_data(pdu, |header| header.data_bytes = U32::new(named))
        });
    }
}

#[test]
fn data_over_the_largest_pdu() {
    on_each_driver(async || {
        let config = TargetConfig { max_h2c_data_bytes: 8192, ..TargetConfig::default() };
        let server = Server::with(config);
        let (mut host, r2t) = asked_for_data(&server).await;
        assert_eq!(host.io.max_h2c_data_bytes, 8192);
        let tag = r2t.transfer_tag.get();
        let most = host.io.h2c_data(5, tag, 0, &[0; 8192], false);
        let more = host.io.h2c_data(5, tag, 8192, &[0; 8193], false);
        host.io.send(&most).await;
        host.io.send(&more).await;
        assert_eq!(host.io.terminated().await, Fatal::LIMIT_EXCEEDED);
        drop(host);
        server.is_sound().await;
    });
}

#[test]
fn data_beyond_what_was_asked_for() {
    let out = Fatal::OUT_OF_RANGE;
    data_is_refused(out, |io, tag| io.h2c_data(5, tag, BIG as u32, &[0; 512], true));
    data_is_refused(out, |io, tag| io.h2c_data(5, tag, BIG as u32 - 256, &[0; 512], true));
    data_is_refused(out, |io, tag| io.h2c_data(5, tag, 0, &[0; BIG + 4], true));
}

#[test]
fn offset_and_length_that_wrap_32_bits() {
    for offset in [u32::MAX, u32::MAX - 511, u32::MAX - 510] {
        let out = Fatal::OUT_OF_RANGE;
        data_is_refused(out, |io, tag| io.h2c_data(5, tag, offset, &[0; 512], true));
    }
}

#[test]
fn data_out_of_order_or_with_the_wrong_last_flag() {
    let wrong = Fatal::SEQUENCE;
    data_is_refused(wrong, |io, tag| io.h2c_data(5, tag, 512, &[0; 512], false));
    data_is_refused(wrong, |io, tag| io.h2c_data(5, tag, 0, &[0; 512], true));
    data_is_refused(wrong, |io, tag| io.h2c_data(5, tag, 0, &[0; BIG], false));
    data_is_refused(wrong, |io, tag| {
        let mut pdus = io.h2c_data(5, tag, 0, &[0; 1024], false);
        pdus.extend(io.h2c_data(5, tag, 512, &[0; 512], false));
        pdus
    });
}

#[test]
fn data_offset_below_the_header_or_unaligned() {
    for offset in [0, 4, 20, 23, 25, 26, 27] {
        data_is_refused(OFFSET, |io, tag| {
            bend(io.h2c_data(5, tag, 0, &[0; 4096], false), |common| common.data_offset = offset)
        });
    }
    for offset in [0, 8, 71, 73] {
        pdu_is_refused(OFFSET, |io| {
            bend(write_capsule(io, 512), |common| common.data_offset = offset)
        });
    }
}

fn write_capsule(io: &Client, bytes: u32) -> Vec<u8> {
    let sgl = SglDescriptor::in_capsule(bytes);
    let command = Sqe::write(7, 1, range(0, BLOCK, bytes as usize), false, sgl);
    io.capsule(&command, &pattern(3, bytes as usize))
}

#[test]
fn pdu_length_of_all_ones() {
    let all_ones = |pdu| bend(pdu, |common| common.pdu_bytes = U32::new(u32::MAX));
    let exceeded = Fatal::LIMIT_EXCEEDED;
    data_is_refused(exceeded, |io, tag| all_ones(io.h2c_data(5, tag, 0, &[0; 512], false)));
    pdu_is_refused(exceeded, |io| all_ones(write_capsule(io, 512)));
    survives(async |server| {
        let mut client = Client::open(server).await;
        let request = InitializeRequest::new(Digests::default(), 0, 1);
        client.send(&all_ones(request.bytes().to_vec())).await;
        assert_eq!(client.terminated().await, PDU_LENGTH);
    });
}

#[test]
fn pdu_length_below_its_parts() {
    for length in [0, 1, 23, 24, 71] {
        pdu_is_refused(PDU_LENGTH, |io| {
            bend(write_capsule(io, 512), |common| common.pdu_bytes = U32::new(length))
        });
    }
    for length in [0, 1, 23] {
        data_is_refused(PDU_LENGTH, |io, tag| {
            let pdu = io.h2c_data(5, tag, 0, &[0; 512], false);
            bend(pdu, |common| common.pdu_bytes = U32::new(length))
        });
    }
}

#[test]
fn more_data_than_a_capsule_may_have() {
    pdu_is_refused(Fatal::LIMIT_EXCEEDED, |io| write_capsule(io, (64 << 10) + 512));
}

#[test]
fn what_follows_a_rejected_pdu_is_not_carried_out() {
    survives(async |server| {
        for cut in [0, 1, 30, 100] {
            let (mut host, r2t) = asked_for_data(server).await;
            let before = server.gate.writes();
            let tag = r2t.transfer_tag.get();
            let mut bytes = host.io.h2c_data(5, tag + 1, 0, &pattern(9, 512), false);
            // The rest of the transfer, and commands, sound in themselves.
            bytes.extend(host.io.data_for(&r2t, &pattern(1, BIG)));
            for _ in 0..20 {
                bytes.extend(write_capsule(&host.io, 4096));
            }
            let (first, rest) = bytes.split_at(cut);
            host.io.send(first).await;
            task::yield_now().await;
            host.io.send(rest).await;
            assert_eq!(host.io.terminated().await, UNKNOWN_TAG);
            assert_eq!(server.gate.writes(), before);
        }
    });
}

#[test]
fn several_pieces_of_data_at_unaligned_offsets() {
    survives(async |server| {
        let mut dice = Dice::new(11);
        for round in 0..8 {
            let options = if round % 2 == 0 { Options::default() } else { digests() };
            let mut host = Host::attach(server, &options).await;
            let data = pattern(round, BIG);
            host.io.submit(big_write(5)).await;
            let r2t = host.io.r2t().await;
            let mut at = 0;
            while at < BIG {
                let most = [3, 100, 5000, BIG][dice.below(4)];
                let next = BIG.min(at + 1 + dice.below(most));
                let tag = r2t.transfer_tag.get();
                let pdu = host.io.h2c_data(5, tag, at as u32, &data[at..next], next == BIG);
                let (first, rest) = pdu.split_at(dice.below(pdu.len()));
                host.io.send(first).await;
                host.io.send(rest).await;
                at = next;
            }
            assert_eq!(host.io.response().await.status(), Status::SUCCESS);
            assert_eq!(host.io.read(1, 0, BLOCK, BIG).await.unwrap(), data);
        }
    });
}

fn digests() -> Options {
    Options { digests: BOTH, ..Options::default() }
}

// Padding.

#[test]
fn padding_before_the_data_that_comes_late() {
    survives(async |server| {
        for piecewise in [false, true] {
            let mut host = Host::attach(server, &Options::default()).await;
            let data = pattern(4, 512);
            for offset in [76, 128, 252] {
                let pdu = bend(write_capsule(&host.io, 512), |common| {
                    common.data_offset = offset;
                    common.pdu_bytes = U32::new(u32::from(offset) + 512);
                });
                let mut pdu = pdu[..72].to_vec();
                pdu.resize(offset.into(), 0);
                pdu.extend_from_slice(&data);
                if piecewise {
                    // The header is there, the padding is not.
                    host.io.send(&pdu[..72]).await;
                    settle().await;
                    host.io.send(&pdu[72..]).await;
                } else {
                    host.io.send(&pdu).await;
                }
                assert_eq!(host.io.response().await.status(), Status::SUCCESS);
            }
            host.io.submit(big_write(5)).await;
            let r2t = host.io.r2t().await;
            let whole = pattern(5, BIG);
            let mut pdu = host.io.h2c_data(5, r2t.transfer_tag.get(), 0, &whole, true);
            pdu.splice(24..24, [0; 104]);
            let pdu = bend(pdu, |common| {
                common.data_offset = 128;
                common.pdu_bytes = U32::new(128 + BIG as u32);
            });
            host.io.send(&pdu[..24]).await;
            settle().await;
            host.io.send(&pdu[24..]).await;
            assert_eq!(host.io.response().await.status(), Status::SUCCESS);
            assert_eq!(host.io.read(1, 0, BLOCK, BIG).await.unwrap(), whole);
        }
    });
}

/// Lets what was sent arrive: no promise, only a better chance that a test bites.
async fn settle() {
    flagstone_runtime::time::sleep(std::time::Duration::from_millis(20)).await;
}

#[test]
fn capsules_whose_data_is_of_no_length() {
    on_each_driver(async || {
        // A device that wants aligned memory: the shape of what comes next is guessed.
        let server = Server::of(TargetConfig::default(), Gate::disk());
        let mut host = Host::attach(&server, &Options::default()).await;
        let mut empty = Sqe::flush(3, 1);
        empty.data = SglDescriptor::in_capsule(0);
        for round in 0..20 {
            assert_eq!(host.io.call(empty).await.status(), Status::SUCCESS);
            if round > 8 {
                let data = pattern(round, 4096);
                host.io.write(1, round, 4096, &data).await.unwrap();
                assert_eq!(host.io.read(1, round, 4096, 4096).await.unwrap(), data);
            }
        }
        drop(host);
        server.is_sound().await;
    });
}

// Digests.

#[test]
fn a_data_digest_error_on_a_piece_that_is_not_the_last() {
    survives(async |server| {
        let mut host = Host::attach(server, &digests()).await;
        host.io.submit(big_write(5)).await;
        let tag = host.io.r2t().await.transfer_tag.get();
        let mut bad = host.io.h2c_data(5, tag, 0, &[1; 4096], false);
        *bad.last_mut().unwrap() ^= 1;
        host.io.send(&bad).await;
        let rest = host.io.h2c_data(5, tag, 4096, &[1; BIG - 4096], true);
        host.io.send(&rest).await;
        let completion = host.io.response().await;
        assert_eq!(completion.status(), Status::TRANSIENT_TRANSPORT_ERROR);
        assert_eq!(server.gate.writes(), 0);
        // The connection lives.
        host.io.write(1, 0, BLOCK, &[2; 512]).await.unwrap();
    });
}

#[test]
fn a_data_digest_error_in_a_capsule() {
    survives(async |server| {
        let mut host = Host::attach(server, &digests()).await;
        for bytes in [512, 4096, 64 << 10] {
            let mut bad = write_capsule(&host.io, bytes);
            let at = bad.len() - 5;
            bad[at] ^= 0x80;
            host.io.send(&bad).await;
            let completion = host.io.response().await;
            assert_eq!(completion.status(), Status::TRANSIENT_TRANSPORT_ERROR);
        }
        assert_eq!(server.gate.writes(), 0);
        host.io.write(1, 0, BLOCK, &[2; 512]).await.unwrap();
    });
}

#[test]
fn a_data_digest_error_on_the_data_of_a_rejected_command() {
    survives(async |server| {
        let mut host = Host::attach(server, &digests()).await;
        let sgl = SglDescriptor::in_capsule(512);
        let nowhere = Sqe::write(5, 99, range(0, BLOCK, 512), false, sgl);
        let beyond = Sqe::write(5, 1, range(1 << 40, BLOCK, 512), false, sgl);
        let mut mode = Sqe::write(5, 1, range(0, BLOCK, 512), false, sgl);
        mode.flags = 0;
        for command in [nowhere, beyond, mode] {
            let mut bad = host.io.capsule(&command, &[0; 512]);
            *bad.last_mut().unwrap() ^= 1;
            host.io.send(&bad).await;
            assert!(!host.io.response().await.status().is_success());
        }
        let nowhere = Sqe { data: SglDescriptor::transport(4096), ..nowhere };
        host.io.submit(nowhere).await;
        // It may be refused at once or after its data.
        match host.io.pdu().await {
            Pdu::R2t(r2t) => {
                let mut bad = host.io.data_for(&r2t, &[0; 4096]);
                *bad.last_mut().unwrap() ^= 1;
                host.io.send(&bad).await;
                assert!(!host.io.response().await.status().is_success());
            }
            Pdu::Response(completion) => assert!(!completion.status().is_success()),
            other => panic!("{other:?}"),
        }
        assert_eq!(server.gate.writes(), 0);
        host.io.write(1, 0, BLOCK, &[2; 512]).await.unwrap();
    });
}

#[test]
fn a_header_digest_error() {
    survives(async |server| {
        let mut host = Host::attach(server, &digests()).await;
        let mut bad = write_capsule(&host.io, 512);
        bad[40] ^= 1;
        let received = u32::from_le_bytes(bad[72..76].try_into().unwrap());
        host.io.send(&bad).await;
        assert_eq!(host.io.terminated().await, Fatal::header_digest(received));
        assert_eq!(server.gate.writes(), 0);
    });
}

#[test]
fn digest_flags_unlike_what_was_agreed() {
    for flags in [1, 2, 3] {
        pdu_is_refused(FLAGS, |io| bend(write_capsule(io, 512), |common| common.flags |= flags));
    }
    survives(async |server| {
        for flags in [0, 1, 2] {
            let mut host = Host::attach(server, &digests()).await;
            let pdu = bend(write_capsule(&host.io, 512), |common| common.flags = flags);
            host.io.send(&pdu).await;
            assert_eq!(host.io.terminated().await, FLAGS);
        }
    });
}

#[test]
fn header_length_255_with_header_digest() {
    survives(async |server| {
        for length in [0, 8, 71, 73, 128, 255] {
            let mut host = Host::attach(server, &digests()).await;
            let mut pdu =
                bend(write_capsule(&host.io, 4096), |common| common.header_bytes = length);
            let covered = usize::from(length).max(8);
            let digest = wire_digest(&pdu[..covered]);
            pdu[covered..covered + 4].copy_from_slice(&digest);
            host.io.send(&pdu).await;
            assert_eq!(host.io.terminated().await, HEADER_LENGTH);
        }
    });
}

// Beginnings and ends.

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
fn a_second_icreq() {
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
fn anything_before_icreq() {
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
fn types_that_do_not_exist_or_go_the_other_way() {
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
fn icreq_of_another_format_or_alignment() {
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

/// What a host says until its admin queue is enabled.
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
fn closing_at_every_byte_of_queue_set_up() {
    survives(async |server| {
        let length = set_up(&Client::open(server).await).len();
        for cut in 0..=length {
            let mut client = Client::open(server).await;
            let bytes = set_up(&client);
            client.send(&bytes[..cut]).await;
            if cut % 3 == 0 {
                // What has arrived is under way, and its answer has nowhere to go.
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
                // A command that follows is not carried out.
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
fn term_req_of_a_length_that_cannot_be() {
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

// SGL descriptors.

#[test]
fn in_capsule_length_unlike_the_sgl() {
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
        // The SGL agrees with the capsule, but not with the blocks.
        let sgl = SglDescriptor::in_capsule(4096);
        for bytes in [512, 8192] {
            let command = Sqe::write(5, 1, range(0, BLOCK, bytes), false, sgl);
            let completion = host.io.call_with(command, &[1; 4096]).await;
            assert_eq!(completion.status().code(), Status::DATA_SGL_LENGTH_INVALID);
        }
        // Data that the SGL says is in a capsule that has none.
        let command = Sqe::write(5, 1, range(0, BLOCK, 4096), false, sgl);
        let completion = host.io.call(command).await;
        assert_eq!(completion.status().code(), Status::DATA_SGL_LENGTH_INVALID);
        assert_eq!(server.gate.writes(), 0);
    });
}

#[test]
fn an_sgl_of_a_type_that_tcp_does_not_have() {
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
fn in_capsule_data_at_an_offset() {
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
fn a_discovery_log_beyond_its_end() {
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
        // More than the log has, from within it.
        for (offset, bytes) in [(1024, 1 << 20), (end - 4, 4096)] {
            assert!(admin.ask(log(offset, bytes)).await.is_ok());
        }
        let refused = admin.ask(log(0, u32::MAX - 3)).await.unwrap_err();
        assert_eq!(refused.code(), Status::INVALID_FIELD);
        assert_eq!(admin.ask(log(0, 1024)).await.unwrap(), header);
    });
}

#[test]
fn connect_that_cannot_be() {
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
        let exists = (Status::COMMAND_SEQUENCE_ERROR.dnr(), 0);
        let incompatible = (Status::CONNECT_INCOMPATIBLE_FORMAT.dnr(), 0);
        // One connection tries all, and succeeds at last.
        let mut client = Client::initialized(server, &options).await;
        for (command, controller, expected) in [
            (connect(1, 128), host.id, exists),
            (connect(2, 128), host.id + 1, refused(ConnectField::ControllerId)),
            (connect(2, 128), CONTROLLER_ID_DYNAMIC, refused(ConnectField::ControllerId)),
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
        // Connect on a queue that is connected.
        let again = client.connect_as(&options, connect(3, 2), host.id).await;
        assert_eq!(again.status().code(), Status::COMMAND_SEQUENCE_ERROR);
    });
}

#[test]
fn connect_whose_data_is_not_there() {
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
fn as_many_namespaces_as_there_can_be() {
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
fn one_command_identifier_for_many_commands() {
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
        // The tags tell the two apart.
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
fn more_commands_than_the_queue_has_entries() {
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
fn any_bytes_at_any_time() {
    survives(async |server| {
        let mut dice = Dice::new(5);
        for round in 0..200 {
            let mut host = Host::attach(server, &Options::default()).await;
            let mut bytes = write_capsule(&host.io, 512);
            let first = host.io.h2c_data(5, 0, 0, &pattern(round, 700), false);
            bytes.extend(first);
            // One byte in the headers is another, and then noise.
            let at = [dice.below(72), 72 + 512 + dice.below(24)][dice.below(2)];
            bytes[at] = dice.below(256) as u8;
            bytes.extend(pattern(round, dice.below(3000)));
            host.io.send(&bytes).await;
            host.io.stream.shutdown();
        }
    });
}

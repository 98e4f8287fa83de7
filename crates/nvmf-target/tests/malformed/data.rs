//! Data that was not requested, has the wrong length or offset, or wrong padding.

use super::*;

// Unrequested data.

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
fn h2c_data_for_read() {
    survives(async |server| {
        let host = Host::attach(server, &Options::default()).await;
        for tag in [0, 5] {
            let mut queue = host.queue(server, 2 + tag).await;
            server.gate.close();
            queue.submit(Sqe::read(5, 1, range(0, BLOCK, 4096), 4096)).await;
            eventually("the read is under way", || server.gate.inside() == 1).await;
            let data = queue.h2c_data(5, tag, 0, &[0; 4096], true);
            queue.send(&data).await;
            settle().await;
            // The read is awaited before the connection ends.
            assert_eq!(server.gate.inside(), 1);
            server.gate.open();
            assert_eq!(queue.terminated().await, UNKNOWN_TAG);
        }
        assert_eq!(server.gate.writes(), 0);
    });
}

#[test]
fn data_for_unused_tag() {
    data_is_refused(UNKNOWN_TAG, |io, tag| io.h2c_data(5, tag + 1, 0, &[1; 4096], false));
    // Tag 0 on a connection without any R2T.
    pdu_is_refused(UNKNOWN_TAG, |io| io.h2c_data(0, 0, 0, &[1; 4096], true));
}

#[test]
fn data_for_tag_beyond_queue() {
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
fn data_after_complete_transfer() {
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

// Wrong length or offset.

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
fn data_length_differs_from_pdu_length() {
    for named in [0, 1, 4095, 4097, 8192, u32::MAX] {
        data_is_refused(LENGTH, |io, tag| {
            let pdu = io.h2c_data(5, tag, 0, &[0; 4096], false);
            bend_data(pdu, |header| header.data_bytes = U32::new(named))
        });
    }
}

#[test]
fn data_over_maxh2cdata() {
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
fn data_beyond_requested_range() {
    let out = Fatal::OUT_OF_RANGE;
    data_is_refused(out, |io, tag| io.h2c_data(5, tag, BIG as u32, &[0; 512], true));
    data_is_refused(out, |io, tag| io.h2c_data(5, tag, BIG as u32 - 256, &[0; 512], true));
    data_is_refused(out, |io, tag| io.h2c_data(5, tag, 0, &[0; BIG + 4], true));
}

#[test]
fn data_offset_and_length_overflow() {
    for offset in [u32::MAX, u32::MAX - 511, u32::MAX - 510] {
        let out = Fatal::OUT_OF_RANGE;
        data_is_refused(out, |io, tag| io.h2c_data(5, tag, offset, &[0; 512], true));
    }
}

#[test]
fn data_out_of_order_or_wrong_last_flag() {
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
fn data_offset_below_header_or_unaligned() {
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
fn pdu_length_below_parts() {
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
fn in_capsule_data_over_limit() {
    pdu_is_refused(Fatal::LIMIT_EXCEEDED, |io| write_capsule(io, (64 << 10) + 512));
}

#[test]
fn pdus_after_violation_are_ignored() {
    survives(async |server| {
        for cut in [0, 1, 30, 100] {
            let (mut host, r2t) = asked_for_data(server).await;
            let before = server.gate.writes();
            let tag = r2t.transfer_tag.get();
            let mut bytes = host.io.h2c_data(5, tag + 1, 0, &pattern(9, 512), false);
            // The rest of the transfer, and valid commands.
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
fn data_pieces_at_unaligned_offsets() {
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

// Padding.

#[test]
fn late_padding_before_data() {
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
                    // The header has arrived, the padding has not.
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

#[test]
fn capsules_with_empty_data() {
    on_each_driver(async || {
        // A device with memory alignment: the layout of the following PDUs is predicted.
        let server = Server::of(TargetConfig::default(), BlockingDevice::disk());
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

//! Header and data digests that mismatch or were not negotiated.

use super::*;

#[test]
fn data_digest_error_before_last_piece() {
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
        // The connection survives.
        host.io.write(1, 0, BLOCK, &[2; 512]).await.unwrap();
    });
}

#[test]
fn data_digest_error_in_capsule() {
    for header in [true, false] {
        damaged_capsules_are_refused(Digests { header, data: true });
    }
}

/// Without header digests, they take the fast path.
fn damaged_capsules_are_refused(digests: Digests) {
    survives(async |server| {
        let mut host = Host::attach(server, &Options { digests, ..Options::default() }).await;
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
fn data_digest_error_of_rejected_command() {
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
        // It may be refused immediately or after its data.
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
fn header_digest_error() {
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
fn unnegotiated_digest_flags() {
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
fn header_length_255_with_digest() {
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

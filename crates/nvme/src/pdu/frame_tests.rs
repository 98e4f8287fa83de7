use super::*;
use crate::digest::wire_digest;
use crate::pdu::FatalStatus;
use crate::wire::{U32, Wire};
use proptest::prelude::*;

const IN_CAPSULE: u32 = 8192;
const MAX_DATA: u32 = 65_536;

/// kind, flags, HLEN, PDO, PLEN.
type Fields = (u8, u8, u8, u8, u32);

fn header((kind, flags, header_bytes, data_offset, pdu_bytes): Fields) -> CommonHeader {
    CommonHeader { kind, flags, header_bytes, data_offset, pdu_bytes: U32::new(pdu_bytes) }
}

fn digests(header: bool, data: bool) -> Digests {
    Digests { header, data }
}

fn controller(digests: Digests, alignment: u8) -> Rules {
    Rules::of_controller(digests, alignment, IN_CAPSULE, MAX_DATA)
}

/// FES and FEI of the refusal.
fn refused(rules: &Rules, fields: Fields) -> (u16, u32) {
    match rules.check(&header(fields)) {
        Err(PduViolation::Terminate(fatal)) => (fatal.status.0, fatal.information),
        other => panic!("{fields:?}: {other:?}"),
    }
}

#[test]
fn target_refuses_each_wrong_field() {
    let plain = controller(digests(false, false), 0);
    let both = controller(digests(true, true), 0);
    let aligned = controller(digests(false, false), 15);
    for (rules, fields, answer) in [
        // Unknown types, and types for the host.
        (&plain, (0x08, 0, 24, 0, 24), (1, 0)),
        (&plain, (0x0a, 0, 24, 0, 24), (1, 0)),
        (&plain, (0xff, 0xff, 0xff, 0xff, u32::MAX), (1, 0)),
        (&plain, (0x01, 0, 128, 0, 128), (1, 0)),
        (&plain, (0x03, 0, 24, 0, 24), (1, 0)),
        (&plain, (0x05, 0, 24, 0, 24), (1, 0)),
        (&plain, (0x07, 0, 24, 24, 28), (1, 0)),
        (&plain, (0x09, 0, 24, 0, 24), (1, 0)),
        // Digest flags that differ from the negotiated ones.
        (&plain, (0x04, 1, 72, 0, 72), (1, 1)),
        (&plain, (0x04, 2, 72, 72, 76), (1, 1)),
        (&plain, (0x06, 2, 24, 24, 28), (1, 1)),
        (&both, (0x04, 0, 72, 0, 76), (1, 1)),
        (&both, (0x04, 3, 72, 0, 76), (1, 1)),
        (&both, (0x04, 1, 72, 76, 84), (1, 1)),
        (&both, (0x06, 1, 24, 28, 36), (1, 1)),
        // Header lengths, including 255 with a header digest.
        (&plain, (0x04, 0, 71, 0, 72), (1, 2)),
        (&plain, (0x04, 0, 73, 0, 72), (1, 2)),
        (&both, (0x04, 1, 255, 0, 76), (1, 2)),
        (&both, (0x04, 3, 255, 76, 84), (1, 2)),
        (&plain, (0x06, 0, 0, 24, 28), (1, 2)),
        (&both, (0x06, 3, 255, 28, 36), (1, 2)),
        // Data offsets inside the header or its digest, or not aligned.
        (&plain, (0x04, 0, 72, 0, 584), (1, 3)),
        (&plain, (0x04, 0, 72, 68, 584), (1, 3)),
        (&plain, (0x04, 0, 72, 73, 584), (1, 3)),
        (&both, (0x04, 3, 72, 72, 592), (1, 3)),
        (&aligned, (0x04, 0, 72, 72, 584), (1, 3)),
        (&plain, (0x06, 0, 24, 20, 28), (1, 3)),
        (&plain, (0x06, 0, 24, 0, 28), (1, 3)),
        (&both, (0x06, 3, 24, 24, 36), (1, 3)),
        (&aligned, (0x06, 0, 24, 24, 28), (1, 3)),
        // PDU lengths: too short for header, padding or digest.
        (&plain, (0x04, 0, 72, 0, 0), (1, 4)),
        (&plain, (0x04, 0, 72, 0, 71), (1, 4)),
        (&both, (0x04, 1, 72, 0, 72), (1, 4)),
        (&plain, (0x04, 0, 72, 80, 76), (1, 4)),
        (&plain, (0x04, 0, 72, 80, 80), (1, 4)),
        (&both, (0x04, 3, 72, 76, 80), (1, 4)),
        (&plain, (0x06, 0, 24, 24, 0), (1, 4)),
        (&plain, (0x06, 0, 24, 24, 23), (1, 4)),
        (&both, (0x06, 3, 24, 28, 31), (1, 4)),
        // A second ICReq.
        (&plain, (0x00, 0, 128, 0, 128), (2, 0)),
        // More data than negotiated.
        (&plain, (0x04, 0, 72, 72, 72 + IN_CAPSULE + 1), (5, 0)),
        (&plain, (0x04, 0, 72, 72, u32::MAX), (5, 0)),
        (&both, (0x04, 3, 72, 76, u32::MAX), (5, 0)),
        (&plain, (0x06, 0, 24, 24, 24 + MAX_DATA + 1), (5, 0)),
        (&plain, (0x06, 0, 24, 24, u32::MAX), (5, 0)),
    ] {
        assert_eq!(refused(rules, fields), answer, "{fields:?}");
    }
}

#[test]
fn target_expects_ic_req_first() {
    let rules = Rules::initial(Receiver::Controller);
    let frame = rules.check(&header((0x00, 0, 128, 0, 128))).unwrap();
    assert_eq!((frame.kind, frame.header_end(), frame.data_bytes), (PduKind::IcReq, 128, 0));
    for (fields, answer) in [
        ((0x04, 0, 72, 0, 72), (2, 0)),
        ((0x06, 0, 24, 24, 28), (2, 0)),
        ((0x01, 0, 128, 0, 128), (1, 0)),
        ((0x7f, 0, 128, 0, 128), (1, 0)),
        ((0x00, 1, 128, 0, 128), (1, 1)),
        ((0x00, 2, 128, 0, 128), (1, 1)),
        ((0x00, 0, 127, 0, 128), (1, 2)),
        ((0x00, 0, 128, 0, 127), (1, 4)),
        ((0x00, 0, 128, 0, 129), (1, 4)),
        ((0x00, 0, 128, 0, u32::MAX), (1, 4)),
    ] {
        assert_eq!(refused(&rules, fields), answer, "{fields:?}");
    }
}

#[test]
fn host_refuses_each_wrong_field() {
    let initial = Rules::initial(Receiver::Host);
    let plain = Rules::of_host(digests(false, false), 0, MAX_DATA);
    let both = Rules::of_host(digests(true, true), 0, MAX_DATA);
    assert_eq!(initial.check(&header((0x01, 0, 128, 0, 128))).unwrap().kind, PduKind::IcResp);
    for (rules, fields, answer) in [
        (&initial, (0x05, 0, 24, 0, 24), (2, 0)),
        (&initial, (0x07, 0, 24, 24, 28), (2, 0)),
        (&initial, (0x09, 0, 24, 0, 24), (2, 0)),
        (&initial, (0x00, 0, 128, 0, 128), (1, 0)),
        (&plain, (0x01, 0, 128, 0, 128), (2, 0)),
        (&plain, (0x04, 0, 72, 0, 72), (1, 0)),
        (&plain, (0x06, 0, 24, 24, 28), (1, 0)),
        (&plain, (0x02, 0, 24, 0, 24), (1, 0)),
        (&both, (0x05, 0, 24, 0, 28), (1, 1)),
        (&both, (0x05, 3, 24, 0, 28), (1, 1)),
        (&plain, (0x05, 0, 25, 0, 24), (1, 2)),
        (&plain, (0x05, 0, 24, 0, 28), (1, 4)),
        (&both, (0x09, 1, 24, 0, 24), (1, 4)),
        (&plain, (0x09, 0, 23, 0, 24), (1, 2)),
        (&plain, (0x07, 0, 24, 8, 28), (1, 3)),
        (&plain, (0x07, 0, 24, 24, 24 + MAX_DATA + 1), (5, 0)),
    ] {
        assert_eq!(refused(rules, fields), answer, "{fields:?}");
    }
}

#[test]
fn malformed_term_req_gets_no_reply() {
    let controller = controller(digests(true, true), 7);
    let host = Rules::of_host(digests(true, false), 0, MAX_DATA);
    let initial = Rules::initial(Receiver::Controller);
    for (rules, kind) in [(&controller, 2), (&host, 3), (&initial, 2)] {
        for (header_bytes, pdu_bytes) in
            [(24, 23), (24, 0), (24, 153), (24, u32::MAX), (23, 24), (255, 152)]
        {
            let fields = (kind, 0, header_bytes, 0, pdu_bytes);
            assert_eq!(rules.check(&header(fields)), Err(PduViolation::Close), "{fields:?}");
        }
        for pdu_bytes in [24, 32, 152] {
            let frame = rules.check(&header((kind, 0, 24, 0, pdu_bytes))).unwrap();
            assert_eq!(frame.kind, PduKind::TermReq);
            assert_eq!(frame.pdu_bytes(), u64::from(pdu_bytes));
            assert_eq!(frame.data_bytes, pdu_bytes - 24);
        }
    }
}

#[test]
fn linux_and_spdk_pdus_are_framed() {
    let plain = controller(digests(false, false), 0);
    let both = controller(digests(true, true), 0);
    let wide = controller(digests(true, false), 31);
    let capsule = |rules: &Rules, fields| rules.check(&header(fields)).unwrap();

    let read = capsule(&plain, (0x04, 0, 72, 0, 72));
    assert_eq!((read.kind, read.header_end(), read.data_bytes), (PduKind::CapsuleCmd, 72, 0));
    // Without data, the data offset is ignored.
    assert_eq!(capsule(&plain, (0x04, 0, 72, 72, 72)), read);

    let write = capsule(&both, (0x04, 3, 72, 76, 76 + 4096 + 4));
    assert_eq!((write.header_end(), write.data_offset, write.data_bytes), (76, 76, 4096));
    assert_eq!((write.data_digest_bytes, write.pdu_bytes()), (4, 4176));

    let padded = capsule(&wide, (0x04, 1, 72, 128, 128 + 512));
    assert_eq!((padded.header_end(), padded.data_offset, padded.data_bytes), (76, 128, 512));

    let data = capsule(&plain, (0x06, 4, 24, 24, 24 + MAX_DATA));
    assert_eq!((data.kind, data.data_bytes), (PduKind::Data, MAX_DATA));

    // A data PDU without data passes here: its own length field is wrong.
    let empty = capsule(&plain, (0x06, 4, 24, 24, 24));
    assert_eq!(empty.data_bytes, 0);

    // Reserved flags are ignored, as the specification requires.
    assert_eq!(capsule(&plain, (0x04, 0xfc, 72, 0, 72)), read);

    let small = both.with_max_in_capsule_bytes(4095);
    assert_eq!(refused(&small, (0x04, 3, 72, 76, 76 + 4096 + 4)), (5, 0));
}

#[test]
fn header_digest_is_checked() {
    let mut bytes = [0x5a; 76];
    let digest = wire_digest(&bytes[..72]);
    bytes[72..].copy_from_slice(&digest);
    let rules = controller(digests(true, false), 0);
    let frame = rules.check(&header((0x04, 1, 72, 0, 76))).unwrap();
    assert_eq!(frame.check_header_digest(&bytes), Ok(()));
    let wrong = u32::from_le_bytes(digest) ^ 1;
    bytes[72] ^= 1;
    let error = frame.check_header_digest(&bytes).unwrap_err();
    assert_eq!((error.status, error.information), (FatalStatus::HEADER_DIGEST_ERROR, wrong));
    assert!(frame.check_header_digest(&bytes[..75]).is_err());
    assert!(frame.check_header_digest(&[]).is_err());
    let without = controller(digests(false, false), 0);
    let frame = without.check(&header((0x04, 0, 72, 0, 72))).unwrap();
    assert_eq!(frame.check_header_digest(&[]), Ok(()));
}

fn any_rules() -> impl Strategy<Value = Rules> {
    let limits = (any::<u32>(), any::<u32>());
    (0..4u8, any::<bool>(), any::<bool>(), any::<u8>(), limits).prop_map(
        |(which, header, data, alignment, (capsule, max))| {
            let digests = Digests { header, data };
            match which {
                0 => Rules::initial(Receiver::Controller),
                1 => Rules::initial(Receiver::Host),
                2 => Rules::of_host(digests, alignment, max),
                _ => Rules::of_controller(digests, alignment, capsule, max),
            }
        },
    )
}

/// Bytes close to valid ones, so that the later checks are reached too.
fn any_header() -> impl Strategy<Value = [u8; 8]> {
    let near = |values: &'static [u8]| prop_oneof![prop::sample::select(values), any::<u8>()];
    let length = prop_oneof![0u32..300, any::<u32>()];
    (0u8..12, 0u8..16, near(&[24, 72, 128]), near(&[0, 24, 28, 72, 76, 128]), length).prop_map(
        |(kind, flags, header_bytes, offset, length)| {
            let [a, b, c, d] = length.to_le_bytes();
            [kind, flags, header_bytes, offset, a, b, c, d]
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]
    #[test]
    fn any_header_frames_or_fails(
        rules in any_rules(),
        bytes in prop_oneof![any_header(), any::<[u8; 8]>()],
    ) {
        let header = CommonHeader::view(&bytes).unwrap();
        match rules.check(header) {
            Ok(frame) => {
                prop_assert_eq!(frame.pdu_bytes(), u64::from(header.pdu_bytes.get()));
                prop_assert_eq!(frame.header_bytes, header.header_bytes);
                prop_assert!(usize::from(frame.data_offset) >= frame.header_end());
                if frame.data_bytes > 0 && frame.kind != PduKind::TermReq {
                    prop_assert_eq!(frame.data_offset, header.data_offset);
                }
            }
            Err(PduViolation::Terminate(fatal)) => match fatal.status {
                FatalStatus::INVALID_HEADER_FIELD => prop_assert!(fatal.information <= 4),
                status => {
                    prop_assert!(matches!(
                        status,
                        FatalStatus::SEQUENCE_ERROR | FatalStatus::LIMIT_EXCEEDED
                    ));
                    prop_assert_eq!(fatal.information, 0);
                }
            },
            Err(PduViolation::Close) => prop_assert!(matches!(header.kind, 2 | 3)),
        }
    }
}

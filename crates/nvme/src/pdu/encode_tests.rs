use super::*;
use crate::limits::{ENCODED_HEADER_MAX_BYTES, TERM_REQ_MAX_BYTES};
use crate::pdu::{FatalStatus, Frame, PduKind, PduViolation, Rules};
use crate::sgl::SglDescriptor;
use crate::status::Status;
use proptest::prelude::*;

fn any_digests() -> impl Strategy<Value = Digests> {
    (any::<bool>(), any::<bool>()).prop_map(|(header, data)| Digests { header, data })
}

/// Receives an encoded PDU.
fn receive(rules: &Rules, sent: &[u8]) -> Result<Frame, PduViolation> {
    let frame = rules.check(CommonHeader::view(sent).unwrap())?;
    frame.check_header_digest(sent)?;
    Ok(frame)
}

#[test]
fn headers_match_linux() {
    let mut out = [0xee; ENCODED_HEADER_MAX_BYTES];
    let plain = Encoder::new(Digests::default(), 0);
    assert_eq!(plain.capsule_cmd(&mut out, &Sqe::flush(1, 1), 0), Some(72));
    assert_eq!(out[..8], [4, 0, 72, 0, 72, 0, 0, 0]);
    let both = Encoder::new(Digests { header: true, data: true }, 0);
    assert_eq!(both.capsule_cmd(&mut out, &Sqe::flush(1, 1), 4096), Some(76));
    assert_eq!(out[..8], [4, 3, 72, 76, 0x50, 0x10, 0, 0]);
    assert_eq!(both.capsule_cmd(&mut out, &Sqe::flush(1, 1), 0), Some(76));
    assert_eq!(out[..8], [4, 1, 72, 0, 76, 0, 0, 0]);
    assert_eq!(plain.r2t(&mut out, 0x0102, 0x0304, 8192, 4096), Some(24));
    assert_eq!(out[..12], [9, 0, 24, 0, 24, 0, 0, 0, 2, 1, 4, 3]);
    assert_eq!(out[12..24], [0, 0x20, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0]);
    let flags = DataFlags { last: true, success: true };
    assert_eq!(plain.c2h_data(&mut out, 7, 0, 512, flags), Some(24));
    assert_eq!(out[..12], [7, 0x0c, 24, 24, 0x18, 2, 0, 0, 7, 0, 0, 0]);
    assert_eq!(plain.h2c_data(&mut out, 7, 9, 512, 512, false), Some(24));
    assert_eq!(out[..12], [6, 0, 24, 24, 0x18, 2, 0, 0, 7, 0, 9, 0]);
}

#[test]
fn unsendable_pdus_are_refused() {
    let encoder = Encoder::new(Digests { header: true, data: true }, 0);
    let mut out = [0; ENCODED_HEADER_MAX_BYTES];
    assert_eq!(encoder.h2c_data(&mut out, 1, 1, 0, 0, true), None);
    assert_eq!(encoder.h2c_data(&mut out, 1, 1, 0, u32::MAX - 31, true), None);
    assert_eq!(encoder.h2c_data(&mut out, 1, 1, 0, u32::MAX - 32, true), Some(28));
    assert_eq!(encoder.capsule_cmd(&mut out, &Sqe::default(), u32::MAX), None);
    assert_eq!(encoder.capsule_resp(&mut out[..27], &Cqe::default()), None);
    assert_eq!(encoder.capsule_resp(&mut [], &Cqe::default()), None);
}

#[test]
fn padding_is_zero_up_to_data() {
    let mut longest = 0;
    for digest in [false, true] {
        for alignment in 0..32 {
            let encoder = Encoder::new(Digests { header: digest, data: false }, alignment);
            let mut out = [0xee; ENCODED_HEADER_MAX_BYTES];
            let end = encoder.capsule_cmd(&mut out, &Sqe::default(), 1).unwrap();
            let header_end = if digest { 76 } else { 72 };
            assert_eq!(end % ((usize::from(alignment) + 1) * 4), 0);
            assert_eq!(usize::from(out[3]), end);
            assert!(out[header_end..end].iter().all(|&byte| byte == 0));
            assert!(out[end..].iter().all(|&byte| byte == 0xee));
            longest = longest.max(end);
        }
    }
    assert_eq!(longest, ENCODED_HEADER_MAX_BYTES);
}

#[test]
fn term_req_layout_and_size() {
    let mut out = [0; TERM_REQ_MAX_BYTES];
    let offending = [0xab; 200];
    let fatal = Fatal::header_digest(0x1122_3344);
    assert_eq!(encode_term_req(&mut out, Receiver::Controller, fatal, &offending), Some(152));
    assert_eq!(out[..14], [3, 0, 24, 0, 152, 0, 0, 0, 3, 0, 0x44, 0x33, 0x22, 0x11]);
    assert_eq!(out[14..24], [0; 10]);
    assert_eq!(out[24..], [0xab; 128]);
    let read = TermReqHeader::view(&out).unwrap().fatal();
    assert_eq!(read, fatal);

    let rules = Rules::of_host(Digests { header: true, data: true }, 0, 4096);
    assert_eq!(receive(&rules, &out).unwrap().kind, PduKind::TermReq);

    let field = Fatal { status: FatalStatus(1), information: 2 };
    assert_eq!(encode_term_req(&mut out, Receiver::Host, field, &[4; 8]), Some(32));
    assert_eq!(out[..12], [2, 0, 24, 0, 32, 0, 0, 0, 1, 0, 2, 0]);
    assert_eq!(encode_term_req(&mut out, Receiver::Host, field, &[]), Some(24));
    assert_eq!(encode_term_req(&mut out[..151], Receiver::Host, field, &offending), None);
}

#[test]
fn initialize_round_trips() {
    let digests = Digests { header: true, data: false };
    let request = InitializeRequest::new(digests, 31, 16);
    let frame = receive(&Rules::initial(Receiver::Controller), request.bytes()).unwrap();
    assert_eq!(frame.kind, PduKind::IcReq);
    assert_eq!(request.check(), Ok(()));
    assert_eq!((request.digests(), request.max_r2t()), (digests, 16));
    assert_eq!(InitializeRequest::new(digests, 0, 0).max_r2t(), 1);
    let response = InitializeResponse::new(digests, 0, 131_072);
    let frame = receive(&Rules::initial(Receiver::Host), response.bytes()).unwrap();
    assert_eq!(frame.kind, PduKind::IcResp);
    assert_eq!(response.check(digests), Ok(()));
}

proptest! {
    #[test]
    fn host_pdus_reach_target(
        digests in any_digests(), alignment in 0u8..32, command: [u8; 64],
        data_bytes in 0u32..100_000, cid: u16, tag: u16, offset in 0u32..1 << 30, last: bool,
    ) {
        let encoder = Encoder::new(digests, alignment);
        let rules = Rules::of_controller(digests, alignment, 100_000, 100_000);
        let mut out = [0; ENCODED_HEADER_MAX_BYTES];

        let command = Sqe::view(&command).unwrap();
        let end = encoder.capsule_cmd(&mut out, command, data_bytes).unwrap();
        let frame = receive(&rules, &out).unwrap();
        prop_assert_eq!(frame.kind, PduKind::CapsuleCmd);
        prop_assert_eq!((usize::from(frame.data_offset), frame.data_bytes), (end, data_bytes));
        prop_assert_eq!(&CapsuleCmd::view(&out).unwrap().command, command);

        prop_assume!(data_bytes > 0);
        let end = encoder.h2c_data(&mut out, cid, tag, offset, data_bytes, last).unwrap();
        let frame = receive(&rules, &out).unwrap();
        let header = DataHeader::view(&out).unwrap();
        prop_assert_eq!(frame.kind, PduKind::Data);
        prop_assert_eq!(usize::from(frame.data_offset), end);
        prop_assert_eq!(header.check(&frame), Ok(()));
        prop_assert_eq!(header.data_flags(), DataFlags { last, success: false });
        let fields = (header.cid.get(), header.transfer_tag.get(), header.offset.get());
        prop_assert_eq!(fields, (cid, tag, offset));
        prop_assert_eq!(usize::from(frame.data_digest_bytes), encoder.data_digest_bytes());
    }

    #[test]
    fn target_pdus_reach_host(
        digests in any_digests(), alignment in 0u8..32, cid: u16, tag: u16,
        offset in 0u32..1 << 30, data_bytes in 1u32..100_000, last: bool, success: bool,
    ) {
        let encoder = Encoder::new(digests, alignment);
        let rules = Rules::of_host(digests, alignment, 100_000);
        let mut out = [0; ENCODED_HEADER_MAX_BYTES];

        let completion = Cqe::with_result(cid, Status::INVALID_FIELD.dnr(), 42);
        let end = encoder.capsule_resp(&mut out, &completion).unwrap();
        let frame = receive(&rules, &out[..end]).unwrap();
        prop_assert_eq!((frame.kind, frame.header_end()), (PduKind::CapsuleResp, end));
        prop_assert_eq!(CapsuleResp::view(&out).unwrap().completion, completion);

        let end = encoder.r2t(&mut out, cid, tag, offset, data_bytes).unwrap();
        let frame = receive(&rules, &out[..end]).unwrap();
        let r2t = R2tHeader::view(&out).unwrap();
        prop_assert_eq!((frame.kind, r2t.check(u32::MAX)), (PduKind::R2t, Ok(())));
        prop_assert_eq!((r2t.transfer_tag.get(), r2t.data_bytes.get()), (tag, data_bytes));

        let flags = DataFlags { last, success };
        let end = encoder.c2h_data(&mut out, cid, offset, data_bytes, flags).unwrap();
        let frame = receive(&rules, &out).unwrap();
        let header = DataHeader::view(&out).unwrap();
        prop_assert_eq!((usize::from(frame.data_offset), header.check(&frame)), (end, Ok(())));
        prop_assert_eq!(header.data_flags(), flags);
    }

    #[test]
    fn header_digest_detects_any_flipped_bit(flip in 0usize..28 * 8, cid: u16) {
        let digests = Digests { header: true, data: false };
        let encoder = Encoder::new(digests, 0);
        let mut out = [0; 28];
        encoder.r2t(&mut out, cid, 1, 0, 4096).unwrap();
        out[flip / 8] ^= 1 << (flip % 8);
        let rules = Rules::of_host(digests, 0, 4096);
        // The digest also covers reserved flag bits and the reserved data offset.
        prop_assert!(receive(&rules, &out).is_err());
    }

    #[test]
    fn in_capsule_data_and_its_descriptor_agree(data_bytes in 1u32..8192) {
        let encoder = Encoder::new(Digests::default(), 0);
        let mut out = [0; ENCODED_HEADER_MAX_BYTES];
        let command = Sqe::new(1, 1, 1, SglDescriptor::in_capsule(data_bytes));
        encoder.capsule_cmd(&mut out, &command, data_bytes).unwrap();
        let rules = Rules::of_controller(Digests::default(), 0, 8192, 4096);
        let frame = receive(&rules, &out).unwrap();
        let sent = &CapsuleCmd::view(&out).unwrap().command.data;
        prop_assert!(crate::sgl::DataPointer::parse(sent, frame.data_bytes).is_ok());
    }
}

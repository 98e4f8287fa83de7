//! Fuzz target for the byte stream of an NVMe/TCP connection, as parsed by a target and by a host.
//!
//! Input: one byte of parameters (bit 0: a host reads; bit 1: header digests; bit 2: data digests;
//! bits 7:3: alignment), then the stream. With header digests, a further byte selects (bit 0)
//! whether they are corrected before the check, because no mutation finds a valid CRC.

use std::collections::BTreeMap;

use flagstone_nvme::digest::wire_digest;
use flagstone_nvme::pdu::{
    CapsuleCmd, CapsuleResp, CommonHeader, DataHeader, DataTransfer, Digests, Encoder, Fatal,
    Frame, InitializeRequest, InitializeResponse, PduKind, PduViolation, R2tHeader, Receiver,
    Rules, TermReqHeader, encode_term_req,
};
use flagstone_nvme::sgl::DataPointer;
use flagstone_nvme::{Wire, limits};

const MAX_IN_CAPSULE_BYTES: u32 = 8192;
const MAX_DATA_BYTES: u32 = 64 * 1024;
/// Maximum number of outstanding commands of a peer, as limited by the queue size.
const QUEUE_ENTRIES: usize = 16;

struct Connection {
    receiver: Receiver,
    wanted: Digests,
    alignment: u8,
    rules: Rules,
    mend_digests: bool,
    transfers: BTreeMap<u16, DataTransfer>,
}

/// Reads a stream until its end or a fatal PDU.
pub fn run(data: &[u8]) {
    let [parameters, mend, stream @ ..] = data else { return };
    let receiver = if parameters & 1 == 0 { Receiver::Controller } else { Receiver::Host };
    let mut connection = Connection {
        receiver,
        wanted: Digests { header: parameters & 2 != 0, data: parameters & 4 != 0 },
        alignment: parameters >> 3,
        rules: Rules::initial(receiver),
        mend_digests: mend & 1 != 0,
        transfers: BTreeMap::new(),
    };
    let mut rest = stream;
    loop {
        match connection.next(rest) {
            Ok(Some(used)) => rest = &rest[used..],
            Ok(None) => return,
            Err(violation) => return check_answer(receiver, violation, rest),
        }
    }
}

/// Checks that a violation can be reported to the peer, and that the peer can parse the report.
fn check_answer(receiver: Receiver, violation: PduViolation, offending: &[u8]) {
    let PduViolation::Terminate(fatal) = violation else { return };
    let mut out = [0; limits::TERM_REQ_MAX_BYTES];
    let len = encode_term_req(&mut out, receiver, fatal, offending).expect("it fits");
    let peer = match receiver {
        Receiver::Controller => Receiver::Host,
        Receiver::Host => Receiver::Controller,
    };
    let common = CommonHeader::view(&out).expect("8 bytes");
    let frame = Rules::initial(peer).check(common).expect("a TermReq may come at any time");
    assert_eq!(frame.pdu_bytes(), len as u64);
    assert_eq!(TermReqHeader::view(&out).expect("24 bytes").fatal(), fatal);
}

impl Connection {
    /// Reads one PDU. Returns its length, or `None` if it is incomplete.
    fn next(&mut self, bytes: &[u8]) -> Result<Option<usize>, PduViolation> {
        let Some(common) = CommonHeader::view(bytes) else { return Ok(None) };
        let frame = self.rules.check(common)?;
        assert_eq!(frame.pdu_bytes(), u64::from(common.pdu_bytes.get()), "PLEN is the sum");
        assert!(usize::from(frame.data_offset) >= frame.header_end());
        assert!(frame.data_bytes <= MAX_DATA_BYTES);
        let Some(header) = bytes.get(..frame.header_end()) else { return Ok(None) };
        let mut header = header.to_vec();
        if self.mend_digests && frame.header_digest_bytes != 0 {
            let split = usize::from(frame.header_bytes);
            let digest = wire_digest(&header[..split]);
            header[split..].copy_from_slice(&digest);
        }
        frame.check_header_digest(&header)?;
        self.header(&frame, &header)?;
        // The next reader checks the data's content. A stream that ends within it has ended.
        let whole = usize::try_from(frame.pdu_bytes()).expect("bounded by the limits");
        Ok((bytes.len() >= whole).then_some(whole))
    }

    fn header(&mut self, frame: &Frame, header: &[u8]) -> Result<(), Fatal> {
        match frame.kind {
            PduKind::IcReq => self.initialize_request(header),
            PduKind::IcResp => self.initialize_response(header),
            PduKind::TermReq => {
                let fatal = TermReqHeader::view(header).expect("24 bytes").fatal();
                assert!(!fatal.to_string().is_empty());
                Ok(())
            }
            PduKind::CapsuleCmd => self.capsule_cmd(frame, header),
            PduKind::CapsuleResp => self.capsule_resp(header),
            PduKind::Data => self.data(frame, header),
            PduKind::R2t => self.r2t(header),
        }
    }

    fn initialize_request(&mut self, header: &[u8]) -> Result<(), Fatal> {
        let request = InitializeRequest::view(header).expect("128 bytes");
        request.check()?;
        assert!(request.max_r2t() >= 1);
        let digests = request.digests().and(self.wanted);
        self.rules =
            Rules::of_controller(digests, self.alignment, MAX_IN_CAPSULE_BYTES, MAX_DATA_BYTES);
        Ok(())
    }

    fn initialize_response(&mut self, header: &[u8]) -> Result<(), Fatal> {
        let response = InitializeResponse::view(header).expect("128 bytes");
        response.check(self.wanted)?;
        assert!(response.max_h2c_data_bytes.get() >= limits::MAXH2CDATA_MIN_BYTES);
        self.rules = Rules::of_host(response.digests(), self.alignment, MAX_DATA_BYTES);
        // Reader of a host: command identifiers 0 to 7 are outstanding.
        for cid in 0..8 {
            self.transfers.insert(cid, DataTransfer::of_command(cid, 4096 << (cid & 3)));
        }
        Ok(())
    }

    fn capsule_cmd(&mut self, frame: &Frame, header: &[u8]) -> Result<(), Fatal> {
        assert!(frame.data_bytes <= MAX_IN_CAPSULE_BYTES);
        let capsule = CapsuleCmd::view(header).expect("72 bytes");
        self.written_again(frame, header);
        let pointer =
            DataPointer::parse(&capsule.command.data, frame.data_bytes).map_err(|error| {
                let _ = (error.status().name(), error.to_string());
                error.fatal()
            })?;
        let cid = capsule.command.cid.get();
        if let DataPointer::Transport { data_bytes } = pointer
            && self.transfers.len() < QUEUE_ENTRIES
            && let Some(transfer) = DataTransfer::of_r2t(cid, cid, 0, data_bytes.min(1 << 20))
        {
            self.transfers.insert(cid, transfer);
        }
        Ok(())
    }

    /// Checks that our writer can encode the parsed PDU, and that it parses to the same value.
    fn written_again(&self, frame: &Frame, header: &[u8]) {
        let digests =
            Digests { header: frame.header_digest_bytes != 0, data: frame.data_digest_bytes != 0 };
        let capsule = CapsuleCmd::view(header).expect("72 bytes");
        let mut out = [0; limits::ENCODED_HEADER_MAX_BYTES];
        let encoder = Encoder::new(digests, self.alignment);
        let len = encoder.capsule_cmd(&mut out, &capsule.command, frame.data_bytes);
        let len = len.expect("it fits and is not longer than 2^32");
        let common = CommonHeader::view(&out).expect("8 bytes");
        let again = self.rules.check(common);
        let again = again.expect("an encoded PDU parses");
        assert_eq!((again.kind, again.data_bytes), (frame.kind, frame.data_bytes));
        assert_eq!(usize::from(again.data_offset), len);
        again.check_header_digest(&out).expect("our own digest");
        assert_eq!(CapsuleCmd::view(&out).expect("72 bytes").command, capsule.command);
    }

    fn capsule_resp(&mut self, header: &[u8]) -> Result<(), Fatal> {
        let completion = &CapsuleResp::view(header).expect("24 bytes").completion;
        let status = completion.status();
        let _ = (status.to_string(), format!("{status:?}"), status.is_path_error());
        match self.transfers.remove(&completion.cid.get()) {
            Some(_) => Ok(()),
            None => Err(Fatal::UNKNOWN_COMPLETION),
        }
    }

    fn data(&mut self, frame: &Frame, header: &[u8]) -> Result<(), Fatal> {
        let header = DataHeader::view(header).expect("24 bytes");
        header.check(frame)?;
        let key = match self.receiver {
            Receiver::Controller => header.transfer_tag.get(),
            Receiver::Host => header.cid.get(),
        };
        let unknown = match self.receiver {
            Receiver::Controller => Fatal::UNKNOWN_TRANSFER_TAG,
            Receiver::Host => Fatal::UNKNOWN_COMMAND,
        };
        let transfer = self.transfers.get_mut(&key).ok_or(unknown)?;
        let before = transfer.remaining_bytes();
        let piece = transfer.accept(header)?;
        assert!(piece.data_bytes > 0 && piece.data_bytes <= before);
        assert_eq!(transfer.remaining_bytes(), before - piece.data_bytes);
        assert!(piece.offset.checked_add(piece.data_bytes).is_some());
        assert_eq!(piece.last, transfer.remaining_bytes() == 0);
        if piece.last && self.receiver == Receiver::Controller {
            self.transfers.remove(&key);
        }
        Ok(())
    }

    fn r2t(&mut self, header: &[u8]) -> Result<(), Fatal> {
        let r2t = R2tHeader::view(header).expect("24 bytes");
        if !self.transfers.contains_key(&r2t.cid.get()) {
            return Err(Fatal::UNKNOWN_COMMAND);
        }
        r2t.check(MAX_DATA_BYTES)?;
        let (offset, bytes) = (r2t.offset.get(), r2t.data_bytes.get());
        assert!(bytes > 0 && offset + bytes <= MAX_DATA_BYTES);
        let transfer = DataTransfer::of_r2t(r2t.cid.get(), r2t.transfer_tag.get(), offset, bytes);
        assert_eq!(transfer.expect("it was checked").remaining_bytes(), bytes);
        Ok(())
    }
}

//! PDU reader: validates every PDU of the target against its command.
//!
//! Received PDUs are processed synchronously. The reader waits only for more bytes, or for the rest
//! of a large payload, which is received directly into the caller's buffer.

use flagstone_nvme::digest::crc32c;
use flagstone_nvme::limits::{COMMON_HEADER_BYTES, DATA_HEADER_BYTES, DIGEST_BYTES};
use flagstone_nvme::pdu::{
    CapsuleResp, CommonHeader, DataHeader, Fatal, Frame, PduKind, R2tHeader, TermReqHeader,
};
use flagstone_nvme::wire::Wire;
use flagstone_nvme::{Cqe, Status};
use flagstone_runtime::BufMut;

use super::HostError;
use super::command::CommandData;
use super::queue::HostQueue;
use flagstone_transport::Rx;
use flagstone_transport::limits::DIRECT_BYTES;

/// PDU header; all headers to a host have the same length.
#[derive(Default)]
struct Header {
    bytes: [u8; DATA_HEADER_BYTES + DIGEST_BYTES],
    /// Bytes that have arrived.
    known: usize,
}

impl Header {
    #[inline]
    fn view<T: Wire>(&self) -> &T {
        const { assert!(T::BYTES <= DATA_HEADER_BYTES) };
        T::view(&self.bytes).expect("a header is as long")
    }

    /// The part of the header that a TermReq returns to the target.
    fn shown(&self) -> &[u8] {
        &self.bytes[..self.known.min(DATA_HEADER_BYTES)]
    }
}

/// Input that the parser needs to continue.
enum Want {
    /// More bytes.
    More,
    /// The rest of a large payload.
    Payload(Payload),
}

/// Payload that is being received into its buffer.
struct Payload {
    cid: u16,
    place: BufMut,
    start: usize,
    len: usize,
    digest_bytes: usize,
    success: bool,
}

impl HostQueue {
    /// Reads until the connection ends.
    pub(super) async fn read(&self, rx: &mut Rx) -> HostError {
        loop {
            let went_on = match self.parse(rx) {
                Ok(Want::More) => rx.more().await.map_err(HostError::from),
                Ok(Want::Payload(payload)) => self.receive(rx, payload).await,
                Err(error) => Err(error),
            };
            if let Err(error) = went_on {
                return error;
            }
            if self.is_broken() {
                // No caller waits for further data.
                return HostError::Closed;
            }
        }
    }

    /// Processes every PDU that has arrived.
    fn parse(&self, rx: &mut Rx) -> Result<Want, HostError> {
        let mut header = Header::default();
        loop {
            match self.next_pdu(rx, &mut header) {
                Ok(None) => {}
                Ok(Some(want)) => return Ok(want),
                Err(error) => {
                    if let HostError::Protocol(fatal) = error {
                        self.terminate(fatal, header.shown());
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Processes one PDU; `None` when it was complete.
    #[inline]
    fn next_pdu(&self, rx: &mut Rx, header: &mut Header) -> Result<Option<Want>, HostError> {
        let Some(frame) = self.frame(rx, header)? else { return Ok(Some(Want::More)) };
        match frame.kind {
            PduKind::Data => self.data(rx, &frame, header),
            PduKind::CapsuleResp => {
                rx.skip(frame.header_end());
                let response = header.view::<CapsuleResp>();
                self.response(response.completion)?;
                Ok(None)
            }
            PduKind::R2t => {
                rx.skip(frame.header_end());
                self.r2t(header.view::<R2tHeader>())?;
                Ok(None)
            }
            _ => {
                let said = header.view::<TermReqHeader>();
                Err(HostError::Terminated(said.fatal().to_string()))
            }
        }
    }

    /// Frame of the next PDU, once its header has arrived and is valid. Copies the header.
    #[inline]
    fn frame(&self, rx: &Rx, header: &mut Header) -> Result<Option<Frame>, HostError> {
        let available = rx.available();
        if available < COMMON_HEADER_BYTES {
            return Ok(None);
        }
        header.known = available.min(header.bytes.len());
        let mut scratch = [0; DATA_HEADER_BYTES + DIGEST_BYTES];
        let bytes = rx.peek(header.known, &mut scratch).expect("as many have arrived");
        header.bytes[..header.known].copy_from_slice(bytes);
        let frame = self.rules().check(header.view::<CommonHeader>())?;
        if available < frame.header_end() {
            return Ok(None);
        }
        frame.check_header_digest(&header.bytes)?;
        Ok(Some(frame))
    }

    #[inline]
    fn response(&self, completion: Cqe) -> Result<(), HostError> {
        {
            let mut slots = self.slots.borrow_mut();
            let pending = slots.get(completion.cid.get()).ok_or(Fatal::UNKNOWN_COMPLETION)?;
            if completion.status().is_success() {
                let whole = match &pending.data {
                    CommandData::None => true,
                    CommandData::In(_) | CommandData::UpTo(_) => {
                        pending.transfer.remaining_bytes() == 0
                    }
                    CommandData::Out(data) => {
                        pending.in_capsule || pending.requested == data.len() as u32
                    }
                };
                if !whole {
                    // It reports success without having sent or requested all the data.
                    return Err(Fatal::SEQUENCE.into());
                }
            }
        }
        self.complete(completion);
        Ok(())
    }

    #[inline]
    fn data(&self, rx: &mut Rx, frame: &Frame, header: &Header) -> Result<Option<Want>, HostError> {
        let header = header.view::<DataHeader>();
        header.check(frame)?;
        let cid = header.cid.get();
        let len = frame.data_bytes as usize;
        let whole = rx.available() as u64 >= frame.pdu_bytes();
        let mut slots = self.slots.borrow_mut();
        let pending = slots.get(cid).ok_or(Fatal::UNKNOWN_COMMAND)?;
        let is_exact = matches!(pending.data, CommandData::In(_));
        let Some(place) = pending.data.place() else {
            return Err(Fatal::UNKNOWN_COMMAND.into());
        };
        if !whole && (len < DIRECT_BYTES || !is_exact) {
            // Validated again, and consumed, when it has arrived.
            return Ok(Some(Want::More));
        }
        let piece = pending.transfer.accept(header)?;
        let start = piece.offset as usize;
        rx.skip(frame.data_offset.into());
        let digest_bytes = usize::from(frame.data_digest_bytes);
        let success = header.data_flags().success;
        if whole {
            let place = &mut place[start..start + len];
            rx.copy_out(place);
            if digest_bytes > 0 {
                let computed = crc32c(place);
                check_digest(rx, computed)?;
            }
            drop(slots);
            self.arrived(cid, success);
            return Ok(None);
        }
        let place = slots.lend(cid).expect("it has a place");
        Ok(Some(Want::Payload(Payload { cid, place, start, len, digest_bytes, success })))
    }

    /// Receives the rest of a large payload and its digest.
    async fn receive(&self, rx: &mut Rx, payload: Payload) -> Result<(), HostError> {
        let Payload { cid, place, start, len, digest_bytes, success } = payload;
        let (filled, place) = fill_part(rx, place, start, len).await;
        let computed = (digest_bytes > 0).then(|| crc32c(&place[start..start + len]));
        if !self.slots.borrow_mut().give_back(cid, place) {
            return Err(HostError::Closed);
        }
        filled?;
        if let Some(computed) = computed {
            while rx.available() < digest_bytes {
                rx.more().await?;
            }
            check_digest(rx, computed)?;
        }
        self.arrived(cid, success);
        Ok(())
    }

    /// Accounts for a received piece. With `success`, no CapsuleResp follows the last one.
    #[inline]
    fn arrived(&self, cid: u16, success: bool) {
        if success {
            self.complete(Cqe::new(cid, Status::SUCCESS));
        }
    }

    fn r2t(&self, header: &R2tHeader) -> Result<(), HostError> {
        let data = {
            let mut slots = self.slots.borrow_mut();
            let pending = slots.get(header.cid.get()).ok_or(Fatal::UNKNOWN_COMMAND)?;
            let CommandData::Out(data) = &pending.data else {
                return Err(Fatal::UNKNOWN_COMMAND.into());
            };
            header.check(data.len() as u32)?;
            // Data must be requested in order, once, and never if it was in the capsule.
            if pending.in_capsule || header.offset.get() != pending.requested {
                return Err(Fatal::OUT_OF_RANGE.into());
            }
            pending.requested = header.offset.get() + header.data_bytes.get();
            data.clone()
        };
        self.answer(header, &data);
        Ok(())
    }
}

/// Consumes and checks the data digest. As with Linux hosts, a mismatch breaks the connection, and
/// the command is resent over the next one.
fn check_digest(rx: &mut Rx, computed: u32) -> Result<(), HostError> {
    let mut scratch = [0; DIGEST_BYTES];
    let received = rx.peek(DIGEST_BYTES, &mut scratch).expect("the digest has arrived");
    let intact = received == computed.to_le_bytes();
    rx.skip(DIGEST_BYTES);
    if intact { Ok(()) } else { Err(HostError::Damaged) }
}

/// Fills `place[start..start + len]` from the stream.
async fn fill_part(
    rx: &mut Rx,
    mut place: BufMut,
    start: usize,
    len: usize,
) -> (Result<(), HostError>, BufMut) {
    let mut part = place.split_off(start);
    let rest = part.split_off(len);
    let (result, mut part) = rx.fill(part).await;
    if part.unsplit(rest).is_err() || place.unsplit(part).is_err() {
        unreachable!("the parts were cut from one buffer");
    }
    (result.map_err(HostError::from), place)
}

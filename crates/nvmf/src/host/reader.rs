//! From bytes to completions: every PDU of the target is checked against its command.

use std::mem::offset_of;

use flagstone_nvme::digest::crc32c;
use flagstone_nvme::limits::{COMMON_HEADER_BYTES, HEADER_MAX_BYTES};
use flagstone_nvme::pdu::{
    CapsuleResp, CommonHeader, DataHeader, Fatal, Frame, PduKind, R2tHeader, TermReqHeader,
    Violation,
};
use flagstone_nvme::wire::Wire;
use flagstone_nvme::{Cqe, Status};
use flagstone_runtime::BufMut;

use super::HostError;
use super::command::Data;
use super::queue::Queue;
use crate::stream::rx::Rx;

impl From<Violation> for HostError {
    fn from(violation: Violation) -> HostError {
        match violation {
            Violation::Terminate(fatal) => HostError::Protocol(fatal),
            Violation::Close => HostError::Terminated("with a malformed TermReq".to_owned()),
        }
    }
}

impl Queue {
    /// Reads until the connection ends.
    pub(super) async fn read(&self, mut rx: Rx) -> HostError {
        loop {
            if let Err(error) = self.next_pdu(&mut rx).await {
                return error;
            }
        }
    }

    async fn next_pdu(&self, rx: &mut Rx) -> Result<(), HostError> {
        let mut scratch = [0; HEADER_MAX_BYTES + 4];
        arrive(rx, COMMON_HEADER_BYTES).await?;
        let bytes = arrived(rx, COMMON_HEADER_BYTES, &mut scratch);
        let common = CommonHeader::view(bytes).expect("8 bytes have arrived");
        let frame = self.rules().check(common)?;
        arrive(rx, frame.header_end()).await?;
        let bytes = arrived(rx, frame.header_end(), &mut scratch);
        frame.check_header_digest(bytes)?;
        match frame.kind {
            PduKind::CapsuleResp => {
                let completion = CapsuleResp::view(bytes).expect("whole").completion;
                rx.skip(frame.header_end());
                self.response(completion)
            }
            PduKind::Data => {
                let header = *DataHeader::view(bytes).expect("whole");
                self.data(rx, &frame, header).await
            }
            PduKind::R2t => {
                let header = *R2tHeader::view(bytes).expect("whole");
                rx.skip(frame.header_end());
                self.r2t(&header)
            }
            _ => {
                let said = TermReqHeader::view(bytes).map(|header| header.fatal().to_string());
                Err(HostError::Terminated(said.unwrap_or_default()))
            }
        }
    }

    fn response(&self, completion: Cqe) -> Result<(), HostError> {
        let mut slots = self.slots.borrow_mut();
        let cid_field = offset_of!(CapsuleResp, completion) + offset_of!(Cqe, cid);
        let pending = slots.get(completion.cid.get()).ok_or(Fatal::field(cid_field))?;
        if completion.status().is_success() && pending.transfer.remaining_bytes() > 0 {
            // It says success, and the data is not all here.
            if matches!(pending.data, Data::In(_)) {
                return Err(Fatal::SEQUENCE.into());
            }
        }
        drop(slots);
        self.complete(completion);
        Ok(())
    }

    /// Data of a read: into the caller's buffer, straight from the socket where it is large.
    async fn data(&self, rx: &mut Rx, frame: &Frame, header: DataHeader) -> Result<(), HostError> {
        header.check(frame)?;
        let cid = header.cid.get();
        let unknown = Fatal::field(offset_of!(DataHeader, cid));
        let digest_bytes = usize::from(frame.data_digest_bytes);
        let (piece, mut place) = {
            let mut slots = self.slots.borrow_mut();
            let pending = slots.get(cid).ok_or(unknown)?;
            let piece = pending.transfer.accept(&header)?;
            match std::mem::take(&mut pending.data) {
                Data::In(place) => (piece, place),
                other => {
                    pending.data = other;
                    return Err(unknown.into());
                }
            }
        };
        rx.skip(frame.data_offset.into());
        let (start, len) = (piece.offset as usize, piece.data_bytes as usize);
        let result = if rx.available() >= len {
            rx.copy_out(&mut place[start..start + len]);
            Ok(())
        } else {
            let filled;
            (filled, place) = fill_part(rx, place, start, len).await;
            filled
        };
        let computed = (digest_bytes > 0).then(|| crc32c(&place[start..start + len]));
        let mut slots = self.slots.borrow_mut();
        // A queue that was closed meanwhile has ended the command: then nobody wants the data.
        let Some(pending) = slots.get(cid) else { return Err(HostError::Closed) };
        pending.data = Data::In(place);
        drop(slots);
        result?;
        if let Some(computed) = computed {
            arrive(rx, digest_bytes).await?;
            let mut scratch = [0; 4];
            let intact = arrived(rx, 4, &mut scratch) == computed.to_le_bytes();
            rx.skip(digest_bytes);
            if !intact {
                // As Linux hosts do: data that changed on its way breaks the connection, and the
                // command is sent again over the next.
                return Err(HostError::Broken(std::io::Error::other("data digest mismatch")));
            }
        }
        if header.data_flags().success {
            self.complete(Cqe::new(cid, Status::SUCCESS));
        }
        Ok(())
    }

    fn r2t(&self, header: &R2tHeader) -> Result<(), HostError> {
        header.check()?;
        let unknown = Fatal::field(offset_of!(R2tHeader, cid));
        let data = {
            let mut slots = self.slots.borrow_mut();
            let pending = slots.get(header.cid.get()).ok_or(unknown)?;
            let Data::Out(data) = &pending.data else { return Err(unknown.into()) };
            let in_capsule = data.len() as u32 <= self.in_capsule_bytes.get();
            // Data is asked for in order, once, and never what was in the capsule.
            let end = header.offset.get() + header.data_bytes.get();
            if in_capsule || header.offset.get() != pending.requested || end > data.len() as u32 {
                return Err(Fatal::OUT_OF_RANGE.into());
            }
            let data = data.clone();
            pending.requested = end;
            data
        };
        self.answer(header, &data);
        Ok(())
    }
}

/// Waits until `len` bytes can be peeked at.
#[inline]
async fn arrive(rx: &mut Rx, len: usize) -> Result<(), HostError> {
    while rx.available() < len {
        rx.more().await?;
    }
    Ok(())
}

#[inline]
fn arrived<'a>(rx: &'a Rx, len: usize, scratch: &'a mut [u8]) -> &'a [u8] {
    rx.peek(len, scratch).expect("as many bytes have arrived")
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

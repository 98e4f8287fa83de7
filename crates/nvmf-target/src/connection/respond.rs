//! Completions, read data and R2Ts sent to the host.

use flagstone_nvme::digest::wire_digest;
use flagstone_nvme::pdu::DataFlags;
use flagstone_nvme::wire::U16;
use flagstone_nvme::{Cqe, Sqe, Status};
use flagstone_runtime::Buf;

use super::Connection;
use flagstone_nvme::limits::TERM_REQ_MAX_BYTES;

impl Connection {
    /// Submission queue head for completions, or `None` with flow control disabled.
    #[inline]
    fn sq_head(&self) -> Option<u16> {
        let session = self.session.borrow();
        let session = session.as_ref()?;
        session.connected.queue.flow_control.then_some(session.sq_head)
    }

    #[inline]
    pub(crate) fn respond(&self, completion: Cqe) {
        self.send_completion(completion, self.sq_head());
    }

    /// Sends a completion, with the submission queue head if flow control is enabled.
    #[inline]
    pub(super) fn send_completion(&self, mut completion: Cqe, sq_head: Option<u16>) {
        completion.sqhd = U16::new(sq_head.unwrap_or(0));
        let encoder = self.encoder.get();
        self.tx.header(TERM_REQ_MAX_BYTES, |out| encoder.capsule_resp(out, &completion));
    }

    /// Completes command `cid`, which held `payload` bytes, with `status`.
    #[inline]
    pub(crate) fn complete(&self, cid: u16, status: Status, payload: usize) {
        self.respond(Cqe::new(cid, status));
        self.release(payload);
    }

    /// Completes a command with data for the host.
    #[inline]
    pub(crate) fn complete_with_data(&self, completion: Cqe, data: Buf) {
        // Only I/O and admin queues send data, and both have a session.
        self.send_data(completion, data, self.sq_head());
    }

    /// Sends data in one PDU, then the completion. Without submission queue flow control, the data
    /// PDU itself reports success (NVMe/TCP 3.3.2.2).
    #[inline]
    pub(super) fn send_data(&self, completion: Cqe, data: Buf, sq_head: Option<u16>) {
        let plain = completion.result() == 0 && completion.status() == Status::SUCCESS;
        let success = plain && sq_head.is_none();
        self.data_pdu(completion.cid.get(), 0, data, DataFlags { last: true, success });
        if !success {
            self.send_completion(completion, sq_head);
        }
    }

    /// Sends the part at `offset` of a read's data, and the completion with the last part.
    pub(super) fn send_part(&self, command: &Sqe, offset: usize, data: Buf, last: bool) {
        let (cid, sq_head) = (command.cid.get(), self.sq_head());
        let success = last && sq_head.is_none();
        self.data_pdu(cid, offset as u32, data, DataFlags { last, success });
        if last && !success {
            self.send_completion(Cqe::new(cid, Status::SUCCESS), sq_head);
        }
    }

    #[inline]
    fn data_pdu(&self, cid: u16, offset: u32, data: Buf, flags: DataFlags) {
        let (encoder, len) = (self.encoder.get(), data.len() as u32);
        self.tx.header(TERM_REQ_MAX_BYTES, |out| encoder.c2h_data(out, cid, offset, len, flags));
        let digest = (encoder.data_digest_bytes() > 0).then(|| wire_digest(&data));
        self.tx.push(data);
        if let Some(digest) = digest {
            self.tx.header(digest.len(), |out| {
                out.copy_from_slice(&digest);
                Some(digest.len())
            });
        }
    }

    /// Sends an R2T for all data of a command.
    pub(super) fn request_data(&self, cid: u16, tag: u16, data_bytes: u32) {
        let encoder = self.encoder.get();
        self.tx.header(TERM_REQ_MAX_BYTES, |out| encoder.r2t(out, cid, tag, 0, data_bytes));
    }
}

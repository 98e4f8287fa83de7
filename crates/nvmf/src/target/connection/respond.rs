//! Answers: completions, data to the host, R2Ts.

use flagstone_nvme::digest::wire_digest;
use flagstone_nvme::pdu::DataFlags;
use flagstone_nvme::wire::U16;
use flagstone_nvme::{Cqe, Status};
use flagstone_runtime::Buf;

use super::Connection;
use crate::limits::HEADER_BYTES_MAX;

impl Connection {
    /// The submission queue's head, where completions carry it.
    #[inline]
    fn sq_head(&self) -> Option<u16> {
        let session = self.session.borrow();
        let session = session.as_ref()?;
        session.connected.queue.flow_control.then_some(session.sq_head)
    }

    /// Sends a completion.
    #[inline]
    pub(crate) fn respond(&self, completion: Cqe) {
        self.send_completion(completion, self.sq_head());
    }

    /// Sends a completion with the submission queue's head, where there is flow control.
    #[inline]
    pub(super) fn send_completion(&self, mut completion: Cqe, sq_head: Option<u16>) {
        completion.sqhd = U16::new(sq_head.unwrap_or(0));
        let encoder = self.encoder.get();
        self.tx.header(HEADER_BYTES_MAX, |out| encoder.capsule_resp(out, &completion));
    }

    /// Completes command `cid`, which had `payload` bytes in hand, with `status`.
    #[inline]
    pub(crate) fn complete(&self, cid: u16, status: Status, payload: usize) {
        self.respond(Cqe::new(cid, status));
        self.release(payload);
    }

    /// Completes a command with data for the host.
    #[inline]
    pub(crate) fn complete_with_data(&self, completion: Cqe, data: Buf) {
        // Before Connect nothing has data; fabrics commands have none either.
        self.send_data(completion, data, self.sq_head());
    }

    /// Sends data in one PDU, then the completion. Without flow control of the submission queue
    /// the data PDU itself says that the command succeeded (NVMe/TCP 3.3.2.2).
    #[inline]
    pub(super) fn send_data(&self, completion: Cqe, data: Buf, sq_head: Option<u16>) {
        let encoder = self.encoder.get();
        let plain = completion.result() == 0 && completion.status() == Status::SUCCESS;
        let success = plain && sq_head.is_none();
        let (cid, len) = (completion.cid.get(), data.len() as u32);
        let flags = DataFlags { last: true, success };
        self.tx.header(HEADER_BYTES_MAX, |out| encoder.c2h_data(out, cid, 0, len, flags));
        let digest = (encoder.data_digest_bytes() > 0).then(|| wire_digest(&data));
        self.tx.push(data);
        if let Some(digest) = digest {
            self.tx.header(digest.len(), |out| {
                out.copy_from_slice(&digest);
                Some(digest.len())
            });
        }
        if !success {
            self.send_completion(completion, sq_head);
        }
    }

    /// Asks for all data of a command.
    pub(super) fn request_data(&self, cid: u16, tag: u16, data_bytes: u32) {
        let encoder = self.encoder.get();
        self.tx.header(HEADER_BYTES_MAX, |out| encoder.r2t(out, cid, tag, 0, data_bytes));
    }
}

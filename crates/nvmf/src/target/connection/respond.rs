//! Answers: completions, data to the host, R2Ts.

use flagstone_nvme::digest::wire_digest;
use flagstone_nvme::pdu::DataFlags;
use flagstone_nvme::wire::U16;
use flagstone_nvme::{Cqe, Status};
use flagstone_runtime::Buf;

use super::Connection;
use crate::limits::HEADER_BYTES_MAX;

impl Connection {
    /// Sends a completion.
    #[inline]
    pub(crate) fn respond(&self, mut completion: Cqe) {
        if let Some(session) = self.session.borrow().as_ref()
            && session.connected.queue.flow_control
        {
            completion.sqhd = U16::new(session.sq_head);
        }
        let encoder = self.encoder.get();
        self.tx.header(HEADER_BYTES_MAX, |out| encoder.capsule_resp(out, &completion));
    }

    /// Completes command `cid`, which had `payload` bytes in hand, with `status`.
    #[inline]
    pub(crate) fn complete(&self, cid: u16, status: Status, payload: usize) {
        self.respond(Cqe::new(cid, status));
        self.release(payload);
    }

    /// Completes command `cid` with data for the host, in one PDU, then success. Without flow
    /// control of the submission queue the data PDU says so itself (NVMe/TCP 3.3.2.2).
    #[inline]
    pub(crate) fn complete_with_data(&self, completion: Cqe, data: Buf) {
        let encoder = self.encoder.get();
        let flow_control = self.with_controller(|_, queue| queue.flow_control).unwrap_or(true);
        let plain = completion.result() == 0 && completion.status() == Status::SUCCESS;
        let success = plain && !flow_control;
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
            self.respond(completion);
        }
    }

    /// Asks for all data of a command.
    pub(super) fn request_data(&self, cid: u16, tag: u16, data_bytes: u32) {
        let encoder = self.encoder.get();
        self.tx.header(HEADER_BYTES_MAX, |out| encoder.r2t(out, cid, tag, 0, data_bytes));
    }
}

//! Checksums of a leg's data: two nodes compare them instead of sending the data.

use flagstone_blockdev::IoError;
use flagstone_runtime::buf;

use crate::limits::{BIT_MIN_BYTES, CHECK_BYTES};
use crate::mirror::Inner;
use crate::wire::peer::{PeerAnswer, PeerRefusal, PeerReply};

/// A checksum strong enough for equal checksums to count as equal data.
pub(crate) fn checksum(part: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, part)
}

impl Inner {
    /// Checksums of the target's data, for the source's verify.
    pub(super) async fn checksums(&self, offset: u64, len: u64, unit_bytes: u32) -> PeerAnswer {
        let sound = unit_bytes >= BIT_MIN_BYTES && len <= CHECK_BYTES;
        let within = self.local.data().geometry().check(offset, len).is_ok();
        if !sound || !within || !len.is_multiple_of(u64::from(BIT_MIN_BYTES)) {
            return Err(PeerRefusal::Range);
        }
        let mut leg_checksums =
            self.leg_checksums(offset, len, unit_bytes).await.map_err(|_| PeerRefusal::Failed)?;
        let unverified = self.lock().unverified;
        for (checksum, at) in leg_checksums.iter_mut().zip((offset..).step_by(unit_bytes as usize))
        {
            let suspect = self.suspect.any(self.suspect.bits_of(at, u64::from(unit_bytes)));
            // Report a mismatch, so that even equal data is rewritten.
            if unverified || suspect {
                *checksum = !*checksum;
            }
        }
        Ok(PeerReply::Checksums(leg_checksums))
    }

    /// Checksums of the local leg, one per `unit_bytes`, for at most [`CHECK_BYTES`]. Uses reserved
    /// memory: host writes that hold all other memory may wait for it.
    pub(crate) async fn leg_checksums(
        &self,
        offset: u64,
        len: u64,
        unit_bytes: u32,
    ) -> Result<Vec<u64>, IoError> {
        let memory = buf::acquire_more(len as usize).await;
        let data = self.local.data().read(offset, memory).await?;
        Ok(data.chunks(unit_bytes as usize).map(checksum).collect())
    }
}

//! Header of a write-intent log: its owner, and how often it was opened.

use crate::id::MirrorId;
use crate::ondisk::layout::ReplicaGeometry;
use crate::ondisk::{FormatError, Page, begin, open, put, seal};

pub(super) const MAGIC: &[u8; 8] = b"FSMIRLG\n";

/// A decoded log header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogHeader {
    /// Incremented by each write. Its lowest bit selects the slot.
    pub sequence: u64,
    /// This log.
    pub log: MirrorId,
    /// The replica that owns it.
    pub replica: MirrorId,
    /// How often it was opened for use.
    pub incarnation: u64,
    /// Size and granularities.
    pub geometry: ReplicaGeometry,
}

impl LogHeader {
    /// Encodes the header for slot `sequence & 1`.
    pub fn encode(&self) -> Page {
        let mut page = begin(MAGIC);
        put(&mut page, 16, &self.sequence.to_le_bytes());
        put(&mut page, 24, &self.log.0);
        put(&mut page, 40, &self.replica.0);
        put(&mut page, 56, &self.incarnation.to_le_bytes());
        put(&mut page, 64, &self.geometry.encode());
        seal(&mut page);
        page
    }

    /// Contents of both slots while a log is being created: never valid, without a checksum.
    /// Nonzero only in the first 512 bytes, so a power failure leaves all or none of it.
    pub fn begun() -> Page {
        begin(MAGIC)
    }

    /// Decodes one slot.
    ///
    /// # Errors
    /// See [`FormatError`].
    pub fn decode(page: &Page) -> Result<LogHeader, FormatError> {
        let fields = open(page, MAGIC)?;
        let header = LogHeader {
            sequence: fields.u64(16),
            log: fields.uuid(24),
            replica: fields.uuid(40),
            incarnation: fields.u64(56),
            geometry: ReplicaGeometry::decode(&fields.bytes(64))?,
        };
        if header.log.is_none() || header.replica.is_none() {
            return Err(FormatError::Field("identity"));
        }
        Ok(header)
    }
}

/// Whether a replica can trust a log that it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogTrust {
    /// The replica's own log in its latest state.
    Own,
    /// The replica's own log in an earlier state, restored from a backup or snapshot.
    Stale,
    /// The log of another replica, or a replaced log of this one.
    Foreign,
}

impl LogHeader {
    /// Compares with the values that the superblock expects.
    ///
    /// When a log is opened for use, the next incarnation is written to the header first and to the
    /// superblock second. A crash in between leaves the log one ahead, and nothing was written
    /// under that incarnation: so one ahead is trusted, and one behind never is. In the opposite
    /// order, a log one behind would have to be trusted, and a log restored from a backup looks
    /// like that.
    ///
    /// When a volume grows, the log is enlarged first and the superblock second. When a target
    /// shrinks, only the superblock changes. So a log of a larger volume is trusted, because it has
    /// all bits of the smaller one, and a log of a smaller volume never is.
    pub fn trust(
        &self,
        log: MirrorId,
        replica: MirrorId,
        incarnation: u64,
        geometry: &ReplicaGeometry,
    ) -> LogTrust {
        let covers = ReplicaGeometry { usable_bytes: geometry.usable_bytes, ..self.geometry }
            == *geometry
            && self.geometry.usable_bytes >= geometry.usable_bytes;
        if self.log != log || self.replica != replica || !covers {
            return LogTrust::Foreign;
        }
        match self.incarnation.checked_sub(incarnation) {
            Some(0 | 1) => LogTrust::Own,
            // Further ahead: the data device was restored from a backup.
            Some(_) | None => LogTrust::Stale,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ondisk::layout::tests::any_shape;

    prop_compose! {
        fn any_header()(
            numbers in any::<[u64; 2]>(),
            names in prop::array::uniform2(prop::array::uniform16(1u8..)),
            geometry in any_shape(),
        ) -> LogHeader {
            let [log, replica] = names.map(MirrorId);
            LogHeader { sequence: numbers[0], log, replica, incarnation: numbers[1], geometry }
        }
    }

    proptest! {
        #[test]
        fn header_round_trips(header in any_header()) {
            prop_assert_eq!(LogHeader::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn unfinished_header_is_invalid(header in any_header()) {
            let begun = LogHeader::begun();
            prop_assert_eq!(LogHeader::decode(&begun), Err(FormatError::Checksum));
            let torn = [&begun[..512], &header.encode()[512..]].concat();
            let torn = <&Page>::try_from(&torn[..]).expect("a page");
            prop_assert_eq!(LogHeader::decode(torn), Err(FormatError::Checksum));
            prop_assert!(begun[512..].iter().all(|byte| *byte == 0));
        }

        #[test]
        fn changed_byte_is_detected(header in any_header(), at in 0usize..4096, change in 1u8..) {
            let mut page = header.encode();
            page[at] ^= change;
            prop_assert!(LogHeader::decode(&page).is_err());
        }

        #[test]
        fn only_latest_own_log_is_trusted(header in any_header(), expected in any::<u64>()) {
            let LogHeader { log, replica, incarnation, geometry, .. } = header.clone();
            let trusted = header.trust(log, replica, expected, &geometry) == LogTrust::Own;
            prop_assert_eq!(trusted, incarnation.wrapping_sub(expected) < 2 && expected <= incarnation);
            prop_assert_eq!(header.trust(log, MirrorId([0; 16]), incarnation, &geometry), LogTrust::Foreign);
            prop_assert_eq!(header.trust(MirrorId([0; 16]), replica, incarnation, &geometry), LogTrust::Foreign);
        }
    }
}

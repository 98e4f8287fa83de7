//! The header of a write-intent log: whose it is, and how often it was opened.

use crate::format::{FormatError, Page, begin, open, put, seal};
use crate::id::Uuid;
use crate::shape::Shape;

pub(super) const MAGIC: &[u8; 8] = b"FSMIRLG\n";

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogHeader {
    /// Each write has the next; the slot is its lowest bit.
    pub sequence: u64,
    /// This log.
    pub log: Uuid,
    /// The replica that it belongs to.
    pub replica: Uuid,
    /// How often it was opened for use.
    pub incarnation: u64,
    /// Size and granularities.
    pub shape: Shape,
}

impl LogHeader {
    /// As it is written to slot `sequence & 1`.
    pub fn encode(&self) -> Page {
        let mut page = begin(MAGIC);
        put(&mut page, 16, &self.sequence.to_le_bytes());
        put(&mut page, 24, &self.log.0);
        put(&mut page, 40, &self.replica.0);
        put(&mut page, 56, &self.incarnation.to_le_bytes());
        put(&mut page, 64, &self.shape.encode());
        seal(&mut page);
        page
    }

    /// What both slots have while a log is being made: a header that nobody takes for one, as it has no
    /// checksum. All that it holds lies in its first 512 bytes, so a power loss leaves all of it or none.
    pub fn begun() -> Page {
        begin(MAGIC)
    }

    /// Reads one slot.
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
            shape: Shape::decode(&fields.bytes(64))?,
        };
        if header.log.is_none() || header.replica.is_none() {
            return Err(FormatError::Field("identity"));
        }
        Ok(header)
    }
}

/// What a log that was found is worth to the replica that looks for its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// It is the replica's own and its latest.
    Own,
    /// An earlier state of the replica's own: it came back from a backup or snapshot.
    Stale,
    /// Another replica's, or this replica's before it was made anew.
    Foreign,
}

impl LogHeader {
    /// Compares with what the superblock expects.
    ///
    /// When a log is opened for use the header gets the next incarnation first and the superblock
    /// second. A crash between the two leaves the log one ahead, and nothing was written under it:
    /// so one ahead is trusted, and one behind never is. In the other order a log one behind would
    /// have to be trusted, and that is also how a log looks that was restored from a backup.
    ///
    /// When a volume grows the log is made larger first and the superblock says so second; when a
    /// target becomes smaller it is the superblock alone. So a log of a larger volume is trusted:
    /// it has all bits of the smaller. One of a smaller volume never is.
    pub fn trust(&self, log: Uuid, replica: Uuid, incarnation: u64, shape: &Shape) -> Trust {
        let covers = Shape { usable_bytes: shape.usable_bytes, ..self.shape } == *shape
            && self.shape.usable_bytes >= shape.usable_bytes;
        if self.log != log || self.replica != replica || !covers {
            return Trust::Foreign;
        }
        match self.incarnation.checked_sub(incarnation) {
            Some(0 | 1) => Trust::Own,
            // Further ahead: the data device is the one that came back from the past.
            Some(_) | None => Trust::Stale,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::shape::tests::any_shape;

    prop_compose! {
        fn any_header()(
            numbers in any::<[u64; 2]>(),
            names in prop::array::uniform2(prop::array::uniform16(1u8..)),
            shape in any_shape(),
        ) -> LogHeader {
            let [log, replica] = names.map(Uuid);
            LogHeader { sequence: numbers[0], log, replica, incarnation: numbers[1], shape }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(header in any_header()) {
            prop_assert_eq!(LogHeader::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn one_that_was_only_begun_is_none(header in any_header()) {
            let begun = LogHeader::begun();
            prop_assert_eq!(LogHeader::decode(&begun), Err(FormatError::Checksum));
            let torn = [&begun[..512], &header.encode()[512..]].concat();
            let torn = <&Page>::try_from(&torn[..]).expect("a page");
            prop_assert_eq!(LogHeader::decode(torn), Err(FormatError::Checksum));
            prop_assert!(begun[512..].iter().all(|byte| *byte == 0));
        }

        #[test]
        fn a_changed_byte_is_noticed(header in any_header(), at in 0usize..4096, change in 1u8..) {
            let mut page = header.encode();
            page[at] ^= change;
            prop_assert!(LogHeader::decode(&page).is_err());
        }

        #[test]
        fn only_the_latest_own_log_is_trusted(header in any_header(), expected in any::<u64>()) {
            let LogHeader { log, replica, incarnation, shape, .. } = header.clone();
            let trusted = header.trust(log, replica, expected, &shape) == Trust::Own;
            prop_assert_eq!(trusted, incarnation.wrapping_sub(expected) < 2 && expected <= incarnation);
            prop_assert_eq!(header.trust(log, Uuid([0; 16]), incarnation, &shape), Trust::Foreign);
            prop_assert_eq!(header.trust(Uuid([0; 16]), replica, incarnation, &shape), Trust::Foreign);
        }
    }
}

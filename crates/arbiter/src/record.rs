//! Record: content of the store for one volume, as ASCII lines that an operator can read.
//!
//! ```text
//! flagstone-failover 1
//! volume 3f0c9d1e5b7a4c2f8e6d0a1b2c3d4e5f
//! epoch 17179869187
//! revision 12
//! source 00112233445566778899aabbccddeeff
//! in-sync 00112233445566778899aabbccddeeff ffeeddccbbaa99887766554433221100
//! maintenance off
//! writer 5d1e6b0a9c3f2784
//! check 8d2f40c1b7a3e596
//! ```
//!
//! The lines have a fixed order, and each number has one spelling, so that equal records have equal
//! bytes. The check is a CRC-64/NVME of all lines before it. Input is hostile: its length is
//! bounded first, and whatever differs from what [`ArbiterRecord::encode`] writes is refused.

use std::fmt::{self, Write as _};
use std::str::Lines;

use crate::limits::{RECORD_BYTES_MAX, REPLICAS_MAX};

const NAME: &str = "flagstone-failover";
/// Version of the format that this release reads and writes.
const VERSION: u64 = 1;

/// UUID of a volume or of a replica. All zeroes name none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub [u8; 16]);

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Identity of one stored record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordStamp {
    /// See [`ArbiterRecord::revision`]; not 0. Another store may have a record of this revision.
    pub revision: u64,
    /// See [`ArbiterRecord::writer`]. A record with this number is no other one.
    pub writer: u64,
}

/// The decision about a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArbiterRecord {
    /// The volume.
    pub volume: ReplicaId,
    /// The highest role epoch that was ever recorded.
    pub epoch: u64,
    /// Grows with each write, also when the store itself does not number its versions.
    pub revision: u64,
    /// The replica that wrote the record last. It serves, or is about to.
    pub source: ReplicaId,
    /// Replicas that have every acknowledged write, in ascending order: one to [`REPLICAS_MAX`].
    pub in_sync: Vec<ReplicaId>,
    /// The operator has suspended automatic failover: only the node that serves may write.
    pub maintenance: bool,
    /// Random number of the race that wrote the record, to recognize it after a lost answer.
    pub writer: u64,
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Longer than [`RECORD_BYTES_MAX`].
    #[error("it is longer than {RECORD_BYTES_MAX} bytes")]
    TooLong,
    /// Not written by Flagstone.
    #[error("it is not a record of Flagstone")]
    Foreign,
    /// A later release wrote it.
    #[error("it has version {0} of the format; this release reads version {VERSION}")]
    Version(u64),
    /// The check does not match.
    #[error("its checksum is wrong")]
    Checksum,
    /// This line is invalid.
    #[error("its line '{0}' is invalid")]
    Line(&'static str),
}

impl ArbiterRecord {
    /// Identity of this record.
    pub fn stamp(&self) -> RecordStamp {
        RecordStamp { revision: self.revision, writer: self.writer }
    }

    /// Whether this replica has every acknowledged write.
    pub fn is_in_sync(&self, replica: ReplicaId) -> bool {
        self.in_sync.contains(&replica)
    }

    /// The text, at most [`RECORD_BYTES_MAX`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut text = format!(
            "{NAME} {VERSION}\nvolume {}\nepoch {}\nrevision {}\nsource {}\nin-sync",
            self.volume, self.epoch, self.revision, self.source
        );
        for replica in &self.in_sync {
            let _ = write!(text, " {replica}");
        }
        let maintenance = if self.maintenance { "on" } else { "off" };
        let _ = write!(text, "\nmaintenance {maintenance}\nwriter {:016x}\n", self.writer);
        let check = checksum(&text);
        let _ = writeln!(text, "check {check:016x}");
        debug_assert!(text.len() <= RECORD_BYTES_MAX, "the longest record fits");
        text.into_bytes()
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn decode(bytes: &[u8]) -> Result<ArbiterRecord, RecordError> {
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(RecordError::TooLong);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| RecordError::Foreign)?;
        let version = text.lines().next().and_then(|line| line.strip_prefix(NAME));
        let version = version.and_then(|rest| rest.strip_prefix(' ')).and_then(number);
        match version.ok_or(RecordError::Foreign)? {
            VERSION => {}
            later => return Err(RecordError::Version(later)),
        }
        let end = text.rfind("check ").ok_or(RecordError::Line("check"))?;
        if text[end..] != format!("check {:016x}\n", checksum(&text[..end])) {
            return Err(RecordError::Checksum);
        }
        let mut lines = text[..end].lines();
        lines.next();
        let record = ArbiterRecord {
            volume: id(&mut lines, "volume")?,
            epoch: count(&mut lines, "epoch")?,
            revision: count(&mut lines, "revision")?,
            source: id(&mut lines, "source")?,
            in_sync: ids(&mut lines, "in-sync")?,
            maintenance: match field(&mut lines, "maintenance")? {
                "on" => true,
                "off" => false,
                _ => return Err(RecordError::Line("maintenance")),
            },
            writer: {
                let text = field(&mut lines, "writer")?;
                u64::from_str_radix(text, 16).map_err(|_| RecordError::Line("writer"))?
            },
        };
        let ascending = record.in_sync.is_sorted_by(|one, other| one < other);
        if !ascending || record.in_sync.is_empty() || record.in_sync.len() > REPLICAS_MAX {
            return Err(RecordError::Line("in-sync"));
        }
        // One spelling only: what this release would not write is refused.
        if record.encode() != bytes {
            return Err(RecordError::Foreign);
        }
        Ok(record)
    }
}

fn checksum(text: &str) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, text.as_bytes())
}

fn field<'a>(lines: &mut Lines<'a>, name: &'static str) -> Result<&'a str, RecordError> {
    let value = lines.next().and_then(|line| line.strip_prefix(name));
    value.and_then(|value| value.strip_prefix(' ')).ok_or(RecordError::Line(name))
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn count(lines: &mut Lines<'_>, name: &'static str) -> Result<u64, RecordError> {
    number(field(lines, name)?).ok_or(RecordError::Line(name))
}

fn replica(text: &str) -> Option<ReplicaId> {
    let id = u128::from_str_radix(text, 16).ok()?;
    (text.len() == 32 && id != 0).then_some(ReplicaId(id.to_be_bytes()))
}

fn id(lines: &mut Lines<'_>, name: &'static str) -> Result<ReplicaId, RecordError> {
    replica(field(lines, name)?).ok_or(RecordError::Line(name))
}

fn ids(lines: &mut Lines<'_>, name: &'static str) -> Result<Vec<ReplicaId>, RecordError> {
    let list = field(lines, name)?.split(' ').map(replica).collect::<Option<Vec<_>>>();
    list.ok_or(RecordError::Line(name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn any_record()(
            ids in prop::collection::btree_set(1u8..=255, 1..=3),
            (volume, source) in (1u8..=255, 1u8..=255),
            numbers in any::<[u64; 3]>(),
            maintenance in any::<bool>(),
        ) -> ArbiterRecord {
            let [epoch, revision, writer] = numbers;
            let id = |byte: u8| ReplicaId([byte; 16]);
            ArbiterRecord {
                volume: id(volume),
                epoch,
                revision,
                source: id(source),
                in_sync: ids.into_iter().map(id).collect(),
                maintenance,
                writer,
            }
        }
    }

    proptest! {
        #[test]
        fn record_round_trips(record in any_record()) {
            prop_assert_eq!(ArbiterRecord::decode(&record.encode()), Ok(record));
        }

        #[test]
        fn changed_byte_is_refused(record in any_record(), at in 0usize..1024, change in 1u8..) {
            let mut bytes = record.encode();
            let at = at % bytes.len();
            bytes[at] ^= change;
            prop_assert!(ArbiterRecord::decode(&bytes).is_err());
        }

        #[test]
        fn hostile_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
            prop_assert!(ArbiterRecord::decode(&bytes).is_err());
        }

        /// Forged lines with a valid check are refused, or decode to a record with one spelling.
        #[test]
        fn forged_lines_are_refused_or_canonical(
            record in any_record(),
            line in 1usize..8,
            value in "[ -~]{0,80}",
        ) {
            let text = String::from_utf8(record.encode()).expect("ASCII");
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.pop();
            let name = lines[line].split(' ').next().expect("a name").to_owned();
            lines[line] = format!("{name} {value}");
            let body = lines.join("\n") + "\n";
            let forged = format!("{body}check {:016x}\n", checksum(&body));
            if let Ok(record) = ArbiterRecord::decode(forged.as_bytes()) {
                prop_assert_eq!(record.encode(), forged.into_bytes());
            }
        }
    }

    #[test]
    fn later_version_is_named() {
        let text = format!("{NAME} 2\nanything\n");
        assert_eq!(ArbiterRecord::decode(text.as_bytes()), Err(RecordError::Version(2)));
        assert_eq!(ArbiterRecord::decode(b""), Err(RecordError::Foreign));
        assert_eq!(ArbiterRecord::decode(&[b'a'; 1025]), Err(RecordError::TooLong));
    }
}

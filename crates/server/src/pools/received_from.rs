//! Origin of the snapshot that a volume received last. Snapshots that were taken together have one
//! UUID; their numbers in their pool distinguish them.
//!
//! The record is a property of the volume. Without one, the UUID alone decides: a volume that has
//! the snapshot because it was taken there has no record.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use flagstone_pool::PoolId;

use super::volume_state::StreamId;

/// Property with the record.
pub(super) const RECEIVED_FROM_KEY: &str = "received_from";

/// Snapshot, and its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceivedFrom {
    snapshot: PoolId,
    /// First four bytes of the UUID of the pool that sent it.
    pool: u32,
    /// Number in that pool, which no other snapshot ever had there.
    number: u32,
}

impl fmt::Display for ReceivedFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:08x} {:08x}", self.snapshot, self.pool, self.number)
    }
}

impl FromStr for ReceivedFrom {
    type Err = ();

    fn from_str(text: &str) -> Result<ReceivedFrom, ()> {
        let parts: Vec<&str> = text.split(' ').collect();
        let [snapshot, pool, number] = parts[..] else { return Err(()) };
        let half = |text| u32::from_str_radix(text, 16).map_err(drop);
        let snapshot = snapshot.parse().map_err(drop)?;
        Ok(ReceivedFrom { snapshot, pool: half(pool)?, number: half(number)? })
    }
}

/// Halves of a stream's source: of the pool and the base, and of the snapshot.
fn halves(stream: &StreamId) -> (u32, u32) {
    (stream.source as u32, (stream.source >> 32) as u32)
}

impl ReceivedFrom {
    pub(super) fn of(properties: &BTreeMap<String, String>) -> Option<ReceivedFrom> {
        properties.get(RECEIVED_FROM_KEY)?.parse().ok()
    }

    /// Number of the stream's base, 0 without one, if it is of the pool of the record. The snapshot
    /// of a mirrored volume is in the pools of all nodes, each with another number.
    fn base_number(&self, stream: &StreamId) -> Option<u32> {
        let (first, number) = halves(stream);
        let base = first ^ self.pool;
        // Numbers count up, and pools have random ones.
        let is_possible = match stream.base {
            None => base == 0,
            Some(_) => (1..number).contains(&base),
        };
        is_possible.then_some(base)
    }

    /// The record after a stream. `None` if the pool of its base is not known.
    fn after(stream: &StreamId, before: Option<ReceivedFrom>) -> Option<ReceivedFrom> {
        let (first, number) = halves(stream);
        let pool = match stream.base {
            None => first,
            Some(base) => {
                let before = before.filter(|before| before.snapshot == base)?;
                before.base_number(stream)?;
                before.pool
            }
        };
        Some(ReceivedFrom { snapshot: stream.snapshot, pool, number })
    }

    /// Records the origin of a stream that was received in full.
    pub(super) fn record(properties: &mut BTreeMap<String, String>, stream: &StreamId) {
        let before = ReceivedFrom::of(properties);
        properties.remove(RECEIVED_FROM_KEY);
        if let Some(after) = ReceivedFrom::after(stream, before) {
            properties.insert(RECEIVED_FROM_KEY.to_owned(), after.to_string());
        }
    }

    /// Checks that a stream of the recorded snapshot, or based on it, is of the same volume.
    /// Streams of another pool pass.
    ///
    /// # Errors
    /// The contradiction.
    pub(super) fn check(&self, stream: &StreamId) -> Result<(), &'static str> {
        let Some(base) = self.base_number(stream) else { return Ok(()) };
        if self.snapshot == stream.snapshot && halves(stream).1 != self.number {
            return Err(
                "it has a snapshot of another volume that was taken together with that of \
                        the stream: receive the stream under another name",
            );
        }
        if stream.base == Some(self.snapshot) && base != self.number {
            return Err(
                "the base of the stream is of another volume, and was taken together with \
                        the snapshot that this one has: send the difference from that one",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: u32 = 0xbead_f00d;

    /// Stream of the snapshot `id` with this number, as a pool sends it.
    fn stream(id: u8, number: u32, base: Option<(u8, u32)>) -> StreamId {
        stream_of(POOL, id, number, base)
    }

    fn stream_of(pool: u32, id: u8, number: u32, base: Option<(u8, u32)>) -> StreamId {
        let first = pool ^ base.map_or(0, |(_, number)| number);
        StreamId {
            snapshot: PoolId([id; 16]),
            source: u64::from(first) | u64::from(number) << 32,
            base: base.map(|(id, _)| PoolId([id; 16])),
        }
    }

    fn after(streams: &[StreamId]) -> BTreeMap<String, String> {
        let mut properties = BTreeMap::new();
        streams.iter().for_each(|stream| ReceivedFrom::record(&mut properties, stream));
        properties
    }

    /// Snapshots a and b are 1 and 3 of db, 2 and 4 of log.
    #[test]
    fn snapshots_taken_together_are_not_confused() {
        let db = [stream(1, 1, None), stream(2, 3, Some((1, 1)))];
        let log = [stream(1, 2, None), stream(2, 4, Some((1, 2)))];
        let first = ReceivedFrom::of(&after(&db[..1])).expect("a record");
        assert_eq!(first.check(&db[0]), Ok(()), "repeated");
        assert_eq!(first.check(&db[1]), Ok(()));
        assert!(first.check(&log[0]).is_err());
        assert!(first.check(&log[1]).is_err());
        // The difference of log@b from db@a.
        assert!(first.check(&stream(2, 4, Some((1, 1)))).is_ok(), "only its sender can know");
        let second = ReceivedFrom::of(&after(&db)).expect("a record");
        assert_eq!(second.check(&db[1]), Ok(()), "repeated");
        assert_eq!(second.check(&stream(3, 5, Some((2, 3)))), Ok(()));
        assert!(second.check(&stream(3, 6, Some((2, 4)))).is_err());
        assert!(second.check(&log[1]).is_err());
    }

    /// After a failover, the other node sends: its snapshots have the same UUIDs and other numbers.
    #[test]
    fn streams_of_the_other_node_pass() {
        let first = ReceivedFrom::of(&after(&[stream(1, 1, None)])).expect("a record");
        let other = 0x1234_5678;
        assert_eq!(first.check(&stream_of(other, 1, 7, None)), Ok(()), "repeated");
        let next = stream_of(other, 2, 8, Some((1, 7)));
        assert_eq!(first.check(&next), Ok(()));
        let properties = after(&[stream(1, 1, None), next]);
        assert_eq!(ReceivedFrom::of(&properties), None, "the pool of the base is not known");
    }

    #[test]
    fn snapshot_of_unknown_origin_has_no_record() {
        // The base was taken on this node.
        let properties = after(&[stream(2, 3, Some((1, 1)))]);
        assert_eq!(ReceivedFrom::of(&properties), None);
        for bad in ["", "x", "1 2 3", "00000000-0000-0000-0000-000000000001 1"] {
            let properties = BTreeMap::from([(RECEIVED_FROM_KEY.to_owned(), bad.to_owned())]);
            assert_eq!(ReceivedFrom::of(&properties), None, "{bad}");
        }
    }
}

//! Frame of a stream: a header and a payload, each with a checksum.
//!
//! Frames cover the volume without a gap, from 0 to its size, so that a lost frame is noticed.
//! Every frame names the snapshot, so that frames of two streams are not mixed. Snapshots that were
//! taken together have one identifier; their sources differ.

use crate::id::PoolId;
use crate::limits::{BLOCK_BYTES, VOLUME_BLOCKS_MAX, VOLUME_NAME_MAX};
use crate::ondisk::volume_table::is_name;
use crate::ondisk::{Fields, FormatError, checksum, put};

const MAGIC: &[u8; 8] = b"FSSTREAM";

/// Version of the format.
pub const STREAM_VERSION: u16 = 1;

/// Length of a frame's header, in bytes.
pub const HEADER_BYTES: usize = 64;

/// Longest payload, in bytes: the longest transfer of a device.
pub const PAYLOAD_BYTES_MAX: usize = 256 * BLOCK_BYTES;

/// Fixed part of the payload of [`FrameBody::Begin`], before the name.
const BEGIN_BYTES: usize = 40;

/// Beginning of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamStart {
    /// Name of the snapshot, without its volume.
    pub name: String,
    /// Identifier of the base snapshot; `None` for a full stream.
    pub base: Option<PoolId>,
    /// Size of the volume, in bytes.
    pub size_bytes: u64,
    /// Time of the snapshot, in seconds since 1970.
    pub created_s: u64,
}

/// Content of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameBody<'a> {
    /// The first frame.
    Begin(StreamStart),
    /// Data.
    Data(&'a [u8]),
    /// Number of bytes that are a hole: zeroes without space.
    Zero(u64),
    /// Number of bytes that equal the base's.
    Same(u64),
    /// The last frame.
    End,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamFrame<'a> {
    /// Identifier of the snapshot.
    pub snapshot: PoolId,
    /// Number that tells snapshots of one identifier apart: of the sending pool, and of the
    /// snapshot in it.
    pub source: u64,
    /// Offset in the volume, in bytes: the end of the previous frame.
    pub offset: u64,
    /// Content.
    pub body: FrameBody<'a>,
}

impl StreamFrame<'_> {
    /// Bytes of the volume that the frame covers.
    pub fn covered_bytes(&self) -> u64 {
        match &self.body {
            FrameBody::Data(data) => data.len() as u64,
            FrameBody::Zero(len) | FrameBody::Same(len) => *len,
            FrameBody::Begin(_) | FrameBody::End => 0,
        }
    }

    /// Appends the frame to a stream.
    ///
    /// # Panics
    /// With a payload or a name that is too long.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start;
        let (kind, payload): (u8, &[u8]) = match &self.body {
            FrameBody::Begin(begin) => {
                start = encode_start(begin);
                (1, &start)
            }
            FrameBody::Data(data) => (2, data),
            FrameBody::Zero(_) => (3, &[]),
            FrameBody::Same(_) => (4, &[]),
            FrameBody::End => (5, &[]),
        };
        assert!(payload.len() <= PAYLOAD_BYTES_MAX, "a payload is bounded");
        let mut header = [0; HEADER_BYTES];
        put(&mut header, 0, MAGIC);
        put(&mut header, 8, &STREAM_VERSION.to_le_bytes());
        header[10] = kind;
        put(&mut header, 12, &(payload.len() as u32).to_le_bytes());
        put(&mut header, 16, &self.offset.to_le_bytes());
        put(&mut header, 24, &self.covered_bytes().to_le_bytes());
        put(&mut header, 32, &self.snapshot.0);
        put(&mut header, 48, &self.source.to_le_bytes());
        put(&mut header, 56, &checksum(payload).to_le_bytes());
        let crc = checksum(&header[..60]);
        put(&mut header, 60, &crc.to_le_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(payload);
    }

    /// Frame at the beginning of `bytes`, with its length; `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`FormatError`] for an invalid frame.
    pub fn decode(bytes: &[u8]) -> Result<Option<(StreamFrame<'_>, usize)>, FormatError> {
        if let Some(version) = bytes.get(8..10).filter(|_| bytes.starts_with(MAGIC)) {
            let version = u16::from_le_bytes([version[0], version[1]]);
            if version != STREAM_VERSION {
                return Err(FormatError::Version(version));
            }
        }
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err(FormatError::Absent);
        }
        let Some(header) = bytes.get(..HEADER_BYTES) else { return Ok(None) };
        let fields = Fields(header);
        if fields.u32(60) != checksum(&header[..60]) {
            return Err(FormatError::Checksum);
        }
        let len = fields.u32(12) as usize;
        if len > PAYLOAD_BYTES_MAX {
            return Err(FormatError::Field("payload"));
        }
        let Some(payload) = bytes[HEADER_BYTES..].get(..len) else { return Ok(None) };
        if fields.u32(56) != checksum(payload) {
            return Err(FormatError::Checksum);
        }
        let (offset, covered) = (fields.u64(16), fields.u64(24));
        let is_aligned = (offset | covered).is_multiple_of(BLOCK_BYTES as u64);
        let end = offset.checked_add(covered);
        let size_max = VOLUME_BLOCKS_MAX * BLOCK_BYTES as u64;
        if !is_aligned || end.is_none_or(|end| end > size_max) {
            return Err(FormatError::Field("range"));
        }
        let body = match (bytes[10], len) {
            (1, _) if offset == 0 && covered == 0 => FrameBody::Begin(decode_start(payload)?),
            (2, 1..) if covered == len as u64 => FrameBody::Data(payload),
            (3, 0) if covered > 0 => FrameBody::Zero(covered),
            (4, 0) if covered > 0 => FrameBody::Same(covered),
            (5, 0) if covered == 0 => FrameBody::End,
            _ => return Err(FormatError::Field("frame")),
        };
        let snapshot = PoolId(fields.bytes(32));
        let frame = StreamFrame { snapshot, source: fields.u64(48), offset, body };
        Ok(Some((frame, HEADER_BYTES + len)))
    }
}

/// Recomputes the checksums of the first frame, for tests of later checks.
pub fn reseal(bytes: &mut [u8]) {
    if bytes.len() < HEADER_BYTES {
        return;
    }
    let len = (Fields(bytes).u32(12) as usize).min(bytes.len() - HEADER_BYTES);
    let payload = checksum(&bytes[HEADER_BYTES..HEADER_BYTES + len]);
    put(bytes, 56, &payload.to_le_bytes());
    let header = checksum(&bytes[..60]);
    put(bytes, 60, &header.to_le_bytes());
}

fn encode_start(start: &StreamStart) -> Vec<u8> {
    assert!(start.name.len() <= VOLUME_NAME_MAX, "a name is bounded");
    let mut payload = vec![0; BEGIN_BYTES];
    put(&mut payload, 0, &start.base.unwrap_or_default().0);
    put(&mut payload, 16, &start.size_bytes.to_le_bytes());
    put(&mut payload, 24, &start.created_s.to_le_bytes());
    put(&mut payload, 32, &(start.name.len() as u16).to_le_bytes());
    payload.extend_from_slice(start.name.as_bytes());
    payload
}

fn decode_start(payload: &[u8]) -> Result<StreamStart, FormatError> {
    let fixed = payload.get(..BEGIN_BYTES).ok_or(FormatError::Field("beginning"))?;
    let fields = Fields(fixed);
    let name = std::str::from_utf8(&payload[BEGIN_BYTES..]);
    let name = name.map_err(|_| FormatError::Field("name"))?;
    if name.len() != usize::from(fields.u16(32)) || !is_name(name) {
        return Err(FormatError::Field("name"));
    }
    let size_bytes = fields.u64(16);
    let block = BLOCK_BYTES as u64;
    let possible = block..=VOLUME_BLOCKS_MAX * block;
    if !size_bytes.is_multiple_of(block) || !possible.contains(&size_bytes) {
        return Err(FormatError::Field("size"));
    }
    let base = Some(PoolId(fields.bytes(0))).filter(|base| *base != PoolId::default());
    Ok(StreamStart { name: name.to_owned(), base, size_bytes, created_s: fields.u64(24) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_runtime::rng::Rng;

    fn frames(data: &[u8]) -> Vec<StreamFrame<'_>> {
        let start = StreamStart {
            name: "a".to_owned(),
            base: Some(PoolId([3; 16])),
            size_bytes: 1 << 30,
            created_s: 7,
        };
        let bodies = [
            (0, FrameBody::Begin(start)),
            (0, FrameBody::Data(data)),
            (8192, FrameBody::Zero(4096)),
            (12_288, FrameBody::Same(1 << 20)),
            (12_288 + (1 << 20), FrameBody::End),
        ];
        let frame = |(offset, body)| StreamFrame {
            snapshot: PoolId([9; 16]),
            source: 3 << 40,
            offset,
            body,
        };
        bodies.map(frame).into()
    }

    #[test]
    fn frames_round_trip_and_any_change_is_found() {
        let data = [5; 8192];
        for frame in frames(&data) {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            assert_eq!(StreamFrame::decode(&bytes), Ok(Some((frame.clone(), bytes.len()))));
            for at in (0..bytes.len()).step_by(7).chain([56, 59, 60, 63, bytes.len() - 1]) {
                let mut changed = bytes.clone();
                changed[at] ^= 16;
                assert!(StreamFrame::decode(&changed).is_err(), "{at} of {frame:?}");
            }
            for len in 0..bytes.len().min(100) {
                assert_eq!(StreamFrame::decode(&bytes[..len]), Ok(None), "{len} of {frame:?}");
            }
        }
    }

    #[test]
    fn impossible_frames_are_refused() {
        let mut rng = Rng::new(1);
        let mut good = Vec::new();
        frames(&[0; 4096])[1].encode(&mut good);
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            for _ in 0..1 + rng.below(3) {
                bytes[10 + rng.below(46) as usize] = rng.next_u64() as u8;
            }
            let crc = checksum(&bytes[..60]);
            put(&mut bytes, 60, &crc.to_le_bytes());
            if let Ok(Some((frame, len))) = StreamFrame::decode(&bytes) {
                assert!(len <= bytes.len() && frame.covered_bytes() <= 1 << 62);
            }
        }
        put(&mut good, 8, &2_u16.to_le_bytes());
        assert_eq!(StreamFrame::decode(&good), Err(FormatError::Version(2)));
    }
}

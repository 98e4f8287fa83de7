//! Fuzz target for streams of snapshots: frames, one after the other, as a receiver reads them.
//!
//! Input: a byte that says whether the checksums of the first frame are made to match, then the
//! stream.
//!
//! Whatever is accepted can be encoded again, and the same bytes come out.

use flagstone_pool::stream::frame::{HEADER_BYTES, PAYLOAD_BYTES_MAX, StreamFrame, reseal};

/// Decodes the bytes as a stream.
pub fn run(input: &[u8]) {
    let [parameters, bytes @ ..] = input else { return };
    let mut bytes = bytes.to_vec();
    if parameters & 1 != 0 {
        reseal(&mut bytes);
    }
    let mut rest = &bytes[..];
    while let Ok(Some((frame, len))) = StreamFrame::decode(rest) {
        assert!((HEADER_BYTES..=HEADER_BYTES + PAYLOAD_BYTES_MAX).contains(&len));
        assert!(frame.offset.checked_add(frame.covered_bytes()).is_some());
        let mut again = Vec::new();
        frame.encode(&mut again);
        let decoded = StreamFrame::decode(&again);
        assert_eq!(decoded, Ok(Some((frame, again.len()))));
        rest = &rest[len..];
    }
}

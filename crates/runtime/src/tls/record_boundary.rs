//! Boundaries of records in a stream of bytes, for a handshake that receives no byte beyond its
//! last record: what follows is for the kernel.

/// Bytes of the header of a record: its type, version and length.
const HEADER_BYTES: usize = 5;

/// Place in a stream of records.
#[derive(Debug)]
pub(super) enum RecordBoundary {
    /// In a header, of which these many bytes have come.
    Header([u8; HEADER_BYTES], usize),
    /// In a content, of which these many bytes, at least one, are missing.
    Content(usize),
}

impl Default for RecordBoundary {
    fn default() -> RecordBoundary {
        RecordBoundary::Header([0; HEADER_BYTES], 0)
    }
}

impl RecordBoundary {
    /// Bytes up to the end of the header or content; at least one.
    pub(super) fn missing(&self) -> usize {
        match self {
            RecordBoundary::Header(_, have) => HEADER_BYTES - have,
            RecordBoundary::Content(missing) => *missing,
        }
    }

    /// True between two records.
    pub(super) fn is_between_records(&self) -> bool {
        matches!(self, RecordBoundary::Header(_, 0))
    }

    /// Moves on by these bytes.
    pub(super) fn advance(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let count = self.missing().min(bytes.len());
            let (part, rest) = bytes.split_at(count);
            bytes = rest;
            *self = match *self {
                RecordBoundary::Header(mut header, have) => {
                    header[have..have + count].copy_from_slice(part);
                    match (have + count, u16::from_be_bytes([header[3], header[4]])) {
                        (HEADER_BYTES, 0) => RecordBoundary::default(),
                        (HEADER_BYTES, length) => RecordBoundary::Content(length.into()),
                        (have, _) => RecordBoundary::Header(header, have),
                    }
                }
                RecordBoundary::Content(missing) if missing == count => RecordBoundary::default(),
                RecordBoundary::Content(missing) => RecordBoundary::Content(missing - count),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_are_found_in_any_pieces() {
        let records =
            [&[22, 3, 3, 1, 4][..], &[9; 260], &[20, 3, 3, 0, 0], &[23, 3, 3, 0, 1, 7]].concat();
        let ends = [265, 270, 276];
        for size in [1, 2, 4, 5, 6, 264, 265, 266, 276] {
            let mut boundary = RecordBoundary::default();
            let mut at = 0;
            for piece in records.chunks(size) {
                boundary.advance(piece);
                at += piece.len();
                assert_eq!(boundary.is_between_records(), ends.contains(&at), "{size} {at}");
            }
        }
        // Receiving what is missing never crosses the end of a record.
        let (mut boundary, mut at, mut found) = (RecordBoundary::default(), 0, Vec::new());
        while at < records.len() {
            let count = boundary.missing();
            boundary.advance(&records[at..at + count]);
            at += count;
            if boundary.is_between_records() {
                found.push(at);
            }
        }
        assert_eq!(found, ends);
    }
}

//! Splitting of a range at the multiples of a unit.

/// A part of a range that lies within one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Start, in bytes.
    pub(crate) offset: u64,
    /// Length, in bytes; at most the unit.
    pub(crate) len: u64,
}

/// The parts of `[offset, offset + len)`, in order. The end must not exceed `u64::MAX`.
#[inline]
pub(crate) fn pieces(offset: u64, len: u64, unit: u64) -> impl Iterator<Item = Piece> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let len = (unit - at % unit).min(end - at);
        let piece = Piece { offset: at, len };
        at += len;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_range_and_stay_within_units() {
        for (offset, len, unit) in [(0, 1, 1), (5, 17, 4), (8, 8, 4), (7, 1, 100), (3, 300, 100)] {
            let mut at = offset;
            for piece in pieces(offset, len, unit) {
                assert_eq!(piece.offset, at);
                assert!(piece.len > 0);
                assert_eq!(piece.offset / unit, (piece.offset + piece.len - 1) / unit);
                at += piece.len;
            }
            assert_eq!(at, offset + len);
        }
        assert_eq!(pieces(10, 0, 4).count(), 0);
    }
}

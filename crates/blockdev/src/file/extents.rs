//! Extents of a file, from the ranges of data that the file system reports.

use flagstone_runtime::fs::DataRanges;

use crate::Extent;

/// Extents of `[offset, offset + len)` in blocks of `block` bytes, as far as `data` is known. A
/// block that contains any data is data.
pub(super) fn of_data(offset: u64, len: u64, block: u64, data: &DataRanges) -> Vec<Extent> {
    let end = offset + len;
    let mut extents = Vec::new();
    let mut at = offset;
    for range in &data.ranges {
        let from = (range.start - range.start % block).clamp(at, end);
        let to = range.end.min(end).next_multiple_of(block).clamp(from, end);
        push(&mut extents, from - at, true);
        push(&mut extents, to - from, false);
        at = to;
    }
    if !data.is_cut {
        push(&mut extents, end - at, true);
    }
    extents
}

fn push(extents: &mut Vec<Extent>, len: u64, is_hole: bool) {
    match extents.last_mut() {
        _ if len == 0 => {}
        Some(last) if last.is_hole == is_hole => last.len += len,
        _ => extents.push(Extent { len, is_hole }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ranges: &[(u64, u64)], is_cut: bool) -> Vec<(u64, bool)> {
        let ranges = ranges.iter().map(|(start, end)| *start..*end).collect();
        let extents = of_data(8192, 65_536, 4096, &DataRanges { ranges, is_cut });
        extents.iter().map(|extent| (extent.len, extent.is_hole)).collect()
    }

    #[test]
    fn holes_surround_data() {
        assert_eq!(of(&[], false), [(65_536, true)]);
        assert_eq!(of(&[(0, 1 << 20)], false), [(65_536, false)]);
        let around = [(4096, true), (8192, false), (53_248, true)];
        assert_eq!(of(&[(12_288, 20_480)], false), around);
        assert_eq!(of(&[(12_288, 20_480)], true), around[..2]);
    }

    #[test]
    fn block_with_any_data_is_data() {
        assert_eq!(of(&[(12_289, 12_290)], true), [(4096, true), (4096, false)]);
        let joined = [(4096, true), (8192, false), (53_248, true)];
        assert_eq!(of(&[(12_289, 12_290), (16_385, 16_386)], false), joined);
        assert_eq!(of(&[(12_289, 12_290), (12_295, 12_296)], true), [(4096, true), (4096, false)]);
    }
}

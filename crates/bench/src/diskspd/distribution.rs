//! Distribution of requests over a target (`-rd`): as requested, and in bytes of a target's size.

use std::collections::BTreeMap;

use super::profile::{Distribution, Profile};
use super::report::Thread;

/// A share of the requests and the range of the target that they access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Range {
    /// Percent of the requests; 0 is a hole.
    pub(super) io_percent: u64,
    /// Start of the range: percent or bytes from the base of the target.
    pub(super) from: u64,
    /// Length of the range; 0 is up to the end of the target.
    pub(super) length: u64,
}

/// The distribution as diskspd's profile prints it: requests without a range access the rest of the
/// target, and a rest without requests is omitted.
pub(super) fn asked(distribution: &Distribution) -> Vec<Range> {
    let (Distribution::Percent(pairs) | Distribution::Absolute(pairs)) = distribution;
    let (mut from, mut left) = (0u64, 100u64);
    let mut ranges = Vec::new();
    for &(io_percent, length) in pairs {
        ranges.push(Range { io_percent, from, length });
        from = from.saturating_add(length);
        left = left.saturating_sub(io_percent);
    }
    match distribution {
        Distribution::Percent(_) if ranges.last().is_some_and(|last| last.io_percent == 0) => {
            ranges.pop();
        }
        Distribution::Absolute(_) if left > 0 => {
            ranges.push(Range { io_percent: left, from, length: 0 });
        }
        _ => {}
    }
    ranges
}

/// The ranges in bytes on a target of this size, aligned like its requests, without holes.
pub(super) fn effective(profile: &Profile, file_bytes: u64) -> Vec<Range> {
    let Some(distribution) = &profile.distribution else { return Vec::new() };
    let end = profile.end_bytes.map_or(file_bytes, |end| end.min(file_bytes));
    let size = end.saturating_sub(profile.base_bytes);
    let align = profile.align_bytes().max(1);
    let whole = size.saturating_sub(profile.block_bytes) / align * align + align;
    let part = |percent: u64| (u128::from(whole) * u128::from(percent) / 100) as u64;
    let requests = asked(distribution).into_iter().filter(|range| range.io_percent > 0);
    let placed = requests.map(|range| match distribution {
        Distribution::Percent(_) => {
            let from = part(range.from) / align * align;
            let to = match range.from + range.length {
                100 => whole,
                // As diskspd adds: both parts are rounded down separately.
                _ => (part(range.from) + part(range.length)) / align * align,
            };
            Range { from, length: to.saturating_sub(from), ..range }
        }
        Distribution::Absolute(_) => {
            let rest = size.saturating_sub(range.from);
            let length = if range.length == 0 { rest } else { range.length.min(rest) };
            Range { length, ..range }
        }
    });
    placed.filter(|range| range.length > 0).collect()
}

/// Threads by effective distribution: for each distribution its targets, and for each target its
/// threads.
pub(super) type Effective<'a> = BTreeMap<Vec<Range>, BTreeMap<&'a str, Vec<usize>>>;

pub(super) fn by_threads<'a>(profile: &Profile, threads: &'a [Thread]) -> Effective<'a> {
    let mut all = Effective::new();
    for (at, thread) in threads.iter().enumerate() {
        let ranges = effective(profile, thread.file_bytes);
        if !ranges.is_empty() {
            all.entry(ranges).or_default().entry(&thread.path).or_default().push(at);
        }
    }
    all
}

/// Threads as diskspd lists them: ` 0`, ` 0 1`, ` 0 - 2 5`.
pub(super) fn listed(threads: &[usize]) -> String {
    let mut out = String::new();
    for run in threads.chunk_by(|one, next| one + 1 == *next) {
        match *run {
            [one] => out += &format!(" {one}"),
            [first, last] => out += &format!(" {first} {last}"),
            [first, .., last] => out += &format!(" {first} - {last}"),
            [] => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(line: &str) -> Profile {
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        crate::diskspd::parse(&words).unwrap().profile
    }

    fn places(line: &str, file_bytes: u64) -> Vec<(u64, u64, u64)> {
        let ranges = effective(&profile(line), file_bytes);
        ranges.iter().map(|r| (r.io_percent, r.from, r.from + r.length)).collect()
    }

    #[test]
    fn effective_distribution_matches_diskspd() {
        // Test_PrintEffectiveDistributionPct: a target of 100 KiB, blocks of 4 KiB.
        assert_eq!(
            places("-b4K -rdpct10/10:10/10:0/10 f", 100 << 10),
            [(10, 0, 8 << 10), (10, 8 << 10, 20 << 10), (80, 28 << 10, 100 << 10)]
        );
        assert_eq!(
            places("-b4K -rdabs10/1M:10/1M:0/1M f", 4 << 20),
            [(10, 0, 1 << 20), (10, 1 << 20, 2 << 20), (80, 3 << 20, 4 << 20)]
        );
    }

    #[test]
    fn distribution_divides_accessed_range() {
        assert_eq!(places("-b4K -B1M:1M -rdpct100/50 f", 4 << 20), [(100, 0, 512 << 10)]);
        assert_eq!(places("-b4K -rdabs50/1M f", 1 << 20), [(50, 0, 1 << 20)]);
        assert_eq!(places("-b4K f", 1 << 20), []);
        // fio refuses a target smaller than a block; the arithmetic must not overflow before that.
        assert_eq!(places("-b64K -rdpct100/100 f", 0), [(100, 0, 64 << 10)]);
        assert_eq!(places("-b4K -rdpct1/1:99/99 f", u64::MAX).len(), 2);
    }

    #[test]
    fn thread_lists_have_ranges() {
        let of = |threads: &[usize]| listed(threads);
        assert_eq!([of(&[0]), of(&[0, 1]), of(&[0, 1, 2])], [" 0", " 0 1", " 0 - 2"]);
        assert_eq!(of(&[0, 1, 2, 4]), " 0 - 2 4");
    }
}

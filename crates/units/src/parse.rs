//! Exact text of sizes, throughputs and durations, one grammar for files and options. A parsed
//! value prints as text with the same value.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Units of a size, in bytes. A letter alone, such as `k`, is short for the power of 1,024.
const SIZE_UNITS: [(&str, u64); 11] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("PB", 1_000_000_000_000_000),
];

/// Units of a duration, in nanoseconds.
const DURATION_UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A size that cannot be parsed. Each message names the accepted forms.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Nothing was written, or no digit in front.
    #[error("expected a size: a whole number and a unit, such as 4096, 64KiB, 1GiB or 500GB")]
    NotANumber,
    /// A fraction, such as `1.5GiB`.
    #[error("a size is a whole number: write 1536MiB instead of 1.5GiB")]
    Fraction,
    /// A unit that does not exist.
    #[error(
        "unknown unit `{0}`: the units are B, KiB, MiB, GiB, TiB, PiB or k, m, g, t, p (powers of 1024) and KB, MB, GB, TB, PB (powers of 1000)"
    )]
    UnknownUnit(String),
    /// More than 2^64 - 1 bytes.
    #[error("too large: a size is less than 16384PiB (2^64 bytes)")]
    TooLarge,
}

/// A throughput that cannot be parsed. Each message names the accepted forms.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// No `/s` at the end.
    #[error(
        "a throughput is a size a second: a whole number and a unit, such as 240MB/s or 1GiB/s"
    )]
    NotPerSecond,
    /// The size in front of it.
    #[error("{0}")]
    Size(#[from] SizeError),
}

/// A duration that cannot be parsed. Each message names the accepted forms.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Nothing was written, or no digit in front.
    #[error("expected a duration: a whole number and a unit, such as 200us, 10ms, 10s or 5m")]
    NotANumber,
    /// A fraction, such as `1.5s`.
    #[error("a duration is a whole number: write 1500ms instead of 1.5s")]
    Fraction,
    /// A number without a unit, other than 0.
    #[error("a duration needs a unit: ns, us, ms, s, min or h, such as {0}us or {0}s")]
    NoUnit(String),
    /// A unit that does not exist.
    #[error("unknown unit `{0}`: the units are ns, us, ms, s, min (or m) and h")]
    UnknownUnit(String),
    /// More than 2^64 - 1 nanoseconds.
    #[error("too long: a duration is less than 584 years")]
    TooLarge,
}

/// Splits `text` into its leading digits and the unit behind them (one space is allowed between).
fn split_number(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (!number.is_empty()).then(|| (number, unit.strip_prefix(' ').unwrap_or(unit)))
}

fn is_fraction(unit: &str) -> bool {
    unit.starts_with(['.', ',']) && unit[1..].starts_with(|c: char| c.is_ascii_digit())
}

fn look_up(units: &[(&str, u64)], unit: &str) -> Option<u64> {
    let known = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    known.map(|(_, factor)| *factor)
}

/// An unknown unit is repeated in the error; a hostile one is not repeated at length.
fn shortened(unit: &str) -> String {
    unit.chars().take(16).flat_map(char::escape_debug).collect()
}

/// Reads a size in bytes: a whole number, alone or with `B`, `KiB`…`PiB` or `k`…`p` (powers of
/// 1,024), or `KB`…`PB` (powers of 1,000), in either case.
///
/// # Errors
/// The text has another form, or the size is 2^64 bytes or more.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let (number, unit) = split_number(text).ok_or(SizeError::NotANumber)?;
    if is_fraction(unit) {
        return Err(SizeError::Fraction);
    }
    let factor = match unit {
        "" => Some(1),
        _ => look_up(&SIZE_UNITS, unit).or_else(|| look_up(&SIZE_UNITS, &format!("{unit}iB"))),
    };
    let factor = factor.ok_or_else(|| SizeError::UnknownUnit(shortened(unit)))?;
    let number: u64 = number.parse().map_err(|_| SizeError::TooLarge)?;
    number.checked_mul(factor).ok_or(SizeError::TooLarge)
}

/// A correction for a size that is below `range` and written without a unit: the unit is missing
/// rather than the size too small.
pub fn missing_size_unit(text: &str, range: &RangeInclusive<u64>) -> Option<String> {
    let number: u64 = text.trim().parse().ok().filter(|n| (1..*range.start()).contains(n))?;
    let fits = |(name, factor): &(&str, u64)| {
        let size = number.checked_mul(*factor).filter(|size| range.contains(size));
        size.map(|_| format!("{number}{name}"))
    };
    let sizes: Vec<_> = SIZE_UNITS.iter().filter_map(fits).take(2).collect();
    (!sizes.is_empty()).then(|| {
        format!("the unit is missing, and {number} is {number} bytes: write {}", sizes.join(" or "))
    })
}

/// Writes a size so that [`parse_size`] reads back the same number: the shortest exact form,
/// powers of 1,024 before powers of 1,000.
pub fn format_size(bytes: u64) -> String {
    let mut best = bytes.to_string();
    if bytes == 0 {
        return best;
    }
    for (name, factor) in SIZE_UNITS.iter().skip(1) {
        if bytes.is_multiple_of(*factor) {
            let candidate = format!("{}{name}", bytes / factor);
            if candidate.len() < best.len() || best.ends_with(|c: char| c.is_ascii_digit()) {
                best = candidate;
            }
        }
    }
    best
}

/// Formats a size with one letter, as fio writes it: `64k`, in the largest unit that divides it.
pub fn format_block_size(bytes: u64) -> String {
    let letters = ["k", "m", "g", "t", "p"].iter().zip(&SIZE_UNITS[1..6]);
    let divides = |(_, (_, factor)): &(_, &(_, u64))| bytes != 0 && bytes.is_multiple_of(*factor);
    match letters.rev().find(divides) {
        Some((letter, (_, factor))) => format!("{}{letter}", bytes / factor),
        None => bytes.to_string(),
    }
}

/// Reads a throughput in bytes a second: a size as [`parse_size`] takes it, and `/s`.
pub fn parse_rate(text: &str) -> Result<u64, RateError> {
    let size = text.trim().strip_suffix("/s").ok_or(RateError::NotPerSecond)?;
    Ok(parse_size(size)?)
}

/// Writes a throughput so that [`parse_rate`] reads back the same number.
pub fn format_rate(bytes_per_second: u64) -> String {
    match format_size(bytes_per_second) {
        bare if bare.ends_with(|c: char| c.is_ascii_digit()) => format!("{bare}B/s"),
        size => format!("{size}/s"),
    }
}

/// Reads a duration: a whole number and `ns`, `us`, `ms`, `s`, `min` or `m`, or `h`, in either
/// case; `0` needs no unit.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let (number, unit) = split_number(text).ok_or(DurationError::NotANumber)?;
    if is_fraction(unit) {
        return Err(DurationError::Fraction);
    }
    let value: u64 = number.parse().map_err(|_| DurationError::TooLarge)?;
    if unit.is_empty() {
        return match value {
            0 => Ok(Duration::ZERO),
            _ => Err(DurationError::NoUnit(number.to_owned())),
        };
    }
    let factor = look_up(&DURATION_UNITS, unit)
        .ok_or_else(|| DurationError::UnknownUnit(shortened(unit)))?;
    value.checked_mul(factor).map(Duration::from_nanos).ok_or(DurationError::TooLarge)
}

/// Writes a duration so that [`parse_duration`] reads back the same: the largest unit that is
/// exact. Durations beyond 2^64 - 1 ns are cut to it.
pub fn format_duration(duration: Duration) -> String {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    if nanos == 0 {
        return "0".to_owned();
    }
    let (name, factor) = DURATION_UNITS
        .iter()
        .rev()
        .filter(|(name, _)| name.is_ascii())
        .find(|(_, factor)| nanos.is_multiple_of(*factor))
        .unwrap_or(&DURATION_UNITS[0]);
    format!("{}{name}", nanos / factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn missing_unit_is_named() {
        let range = 1 << 20..=1 << 50;
        let help = missing_size_unit("500", &range);
        let expected = "the unit is missing, and 500 is 500 bytes: write 500MiB or 500GiB";
        assert_eq!(help.as_deref(), Some(expected));
        for text in ["0", "500GB", "1048576", "x", ""] {
            assert_eq!(missing_size_unit(text, &range), None, "{text}");
        }
    }

    #[test]
    fn size_units_are_powers_of_1000_or_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("7B", 7),
            ("64KiB", 65536),
            ("64 KiB", 65536),
            ("64kib", 65536),
            ("64K", 65536),
            ("4k", 4096),
            ("1m", 1 << 20),
            ("1 g", 1 << 30),
            ("1t", 1 << 40),
            ("1mb", 1_000_000),
            ("4KB", 4000),
            ("8b", 8),
            ("1GiB", 1 << 30),
            ("500GB", 500_000_000_000),
            ("3kB", 3000),
            ("16383PiB", 16383 << 50),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn block_sizes_print_with_one_letter() {
        let sizes = [4096, 1 << 40, 1000, 0].map(format_block_size);
        assert_eq!(sizes, ["4k", "1t", "1000", "0"]);
    }

    #[test]
    fn a_throughput_is_a_size_a_second() {
        assert_eq!(parse_rate("240MB/s"), Ok(240_000_000));
        assert_eq!(parse_rate("1 GiB/s"), Ok(1 << 30));
        assert_eq!(parse_rate("240MB"), Err(RateError::NotPerSecond));
        assert_eq!(parse_rate("fast/s"), Err(SizeError::NotANumber.into()));
        assert_eq!(format_rate(240_000_000), "240MB/s");
        assert_eq!(format_rate(999), "999B/s");
    }

    #[test]
    fn refused_sizes_say_why() {
        assert_eq!(parse_size(""), Err(SizeError::NotANumber));
        assert_eq!(parse_size("-1"), Err(SizeError::NotANumber));
        assert_eq!(parse_size("1.5GiB"), Err(SizeError::Fraction));
        for unit in ["x", "kb i", "ki", "iB", "kk", "kBiB", "µ"] {
            let error = SizeError::UnknownUnit(unit.into());
            assert_eq!(parse_size(&format!("64{unit}")), Err(error));
        }
        assert_eq!(parse_size("16384PiB"), Err(SizeError::TooLarge));
        assert_eq!(parse_size("99999999999999999999"), Err(SizeError::TooLarge));
        assert_eq!(parse_size("99999999999999999999k"), Err(SizeError::TooLarge));
    }

    #[test]
    fn duration_units() {
        for (text, nanos) in [
            ("0", 0),
            ("0s", 0),
            ("200us", 200_000),
            ("200µs", 200_000),
            ("10ms", 10_000_000),
            ("10s", 10_000_000_000),
            ("5m", 300_000_000_000),
            ("5min", 300_000_000_000),
            ("5 MIN", 300_000_000_000),
            ("1h", 3_600_000_000_000),
            ("1H", 3_600_000_000_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
        assert_eq!(parse_duration("10"), Err(DurationError::NoUnit("10".into())));
        assert_eq!(parse_duration("1.5s"), Err(DurationError::Fraction));
        assert_eq!(parse_duration("10sec"), Err(DurationError::UnknownUnit("sec".into())));
        assert_eq!(parse_duration("999999999999h"), Err(DurationError::TooLarge));
        assert_eq!(parse_duration("soon"), Err(DurationError::NotANumber));
    }

    #[test]
    fn sizes_print_in_largest_whole_unit() {
        for (bytes, text) in [
            (0, "0"),
            (1, "1"),
            (512, "512"),
            (4096, "4KiB"),
            (1 << 30, "1GiB"),
            (500_000_000_000, "500GB"),
            (1536 << 20, "1536MiB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
    }

    proptest! {
        #[test]
        fn sizes_round_trip(number in any::<u64>(), shift in 0u32..64) {
            let bytes = number >> shift << (shift / 2);
            prop_assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
            prop_assert_eq!(parse_size(&format_block_size(bytes)), Ok(bytes));
            prop_assert_eq!(parse_rate(&format_rate(bytes)), Ok(bytes));
        }

        #[test]
        fn durations_round_trip(number in any::<u64>(), unit in 0usize..DURATION_UNITS.len()) {
            let nanos = (number >> 42).checked_mul(DURATION_UNITS[unit].1).unwrap_or(number);
            let duration = Duration::from_nanos(nanos);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn any_text_is_survived(text in any::<String>()) {
            let _ = parse_size(&text);
            let _ = parse_duration(&text);
        }
    }
}

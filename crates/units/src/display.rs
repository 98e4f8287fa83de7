//! Numbers as text for tables and messages: rounded, with thousands separators and units.

use crate::parse::format_size;

/// Formats a number with commas between thousands and `decimals` digits after the point. A value
/// that rounds to 0 has no sign.
pub fn grouped(value: f64, decimals: usize) -> String {
    let text = format!("{:.decimals$}", value.abs());
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut out = String::with_capacity(text.len() + text.len() / 3 + 1);
    if value < 0.0 && text.bytes().any(|b| (b'1'..=b'9').contains(&b)) {
        out.push('-');
    }
    for (at, digit) in whole.char_indices() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) && digit.is_ascii_digit() {
            out.push(',');
        }
        out.push(digit);
    }
    out + fraction
}

/// A count with its noun: `1 limit`, `2 limits`. For nouns that form their plural with `s`.
pub fn counted(count: u64, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{} {noun}s", grouped(count as f64, 0)),
    }
}

/// Formats bytes in the largest binary unit with at least one digit before the point, to three
/// digits: `1.50 GiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let unit = (bytes.ilog2() / 10) as usize - 1;
    let value = bytes as f64 / (1_u64 << (10 * (unit + 1))) as f64;
    format!("{} {}", three_digits(value), UNITS[unit])
}

/// Formats a size for a message: exact and short if it can be, such as `64KiB` or `500GB`, else
/// rounded and exact, such as `255.96MiB (268398592 bytes)`.
pub fn size_text(bytes: u64) -> String {
    /// Digits that are read at a glance.
    const DIGITS: usize = 4;
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let exact = format_size(bytes);
    let digits = exact.bytes().filter(u8::is_ascii_digit).count();
    match (digits <= DIGITS, digits == exact.len()) {
        (true, false) => exact,
        (true, true) => format!("{bytes} bytes"),
        (false, _) => {
            let power = bytes.ilog2() / 10;
            let value = bytes as f64 / (1_u64 << (10 * power)) as f64;
            format!("{value:.2}{} ({bytes} bytes)", UNITS[power as usize - 1])
        }
    }
}

/// Formats the size of a block, exact for whole KiB and MiB: `4 KiB`, `30.5 KiB`.
pub fn block_size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b.is_multiple_of(1024) => format!("{} KiB", b >> 10),
        b => format!("{:.1} KiB", b as f64 / 1024.0),
    }
}

/// Formats a number to three digits, without an exponent: `1.23`, `12.3`, `1234`.
pub fn three_digits(value: f64) -> String {
    let decimals = match value {
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// Formats a duration in its two largest units: `1h 5m`, `12s`.
pub fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}m {}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h {minutes}m"),
        (days, hours, _) => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_have_separators() {
        let whole = [0.0, 999.0, 1000.0, 1_234_567.4, -1000.0, -0.2].map(|n| grouped(n, 0));
        assert_eq!(whole, ["0", "999", "1,000", "1,234,567", "-1,000", "0"]);
        assert_eq!(grouped(1234.567, 2), "1,234.57");
        assert_eq!([f64::NAN, f64::INFINITY].map(|n| grouped(n, 1)), ["NaN", "inf"]);
    }

    #[test]
    fn one_is_singular() {
        let texts = [0, 1, 2, 1000].map(|count| counted(count, "limit"));
        assert_eq!(texts, ["0 limits", "1 limit", "2 limits", "1,000 limits"]);
    }

    #[test]
    fn sizes_have_three_digits() {
        let sizes = [0, 1023, 1024, 1_610_612_736].map(size);
        assert_eq!(sizes, ["0 B", "1023 B", "1.00 KiB", "1.50 GiB"]);
        assert_eq!(size(u64::MAX), "16.0 EiB");
    }

    #[test]
    fn sizes_in_messages_are_short_or_complete() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1000, "1KB"),
            (1001, "1001 bytes"),
            (4096, "4KiB"),
            (4_194_304, "4MiB"),
            (500_000_000_000, "500GB"),
            (268_398_592, "255.96MiB (268398592 bytes)"),
            (1025, "1025 bytes"),
            (16_385, "16.00KiB (16385 bytes)"),
            (u64::MAX, "16.00EiB (18446744073709551615 bytes)"),
        ] {
            assert_eq!(size_text(bytes), text);
        }
    }

    #[test]
    fn block_sizes_are_in_kib_or_mib() {
        let sizes = [512, 4096, 1 << 20, 31_232].map(block_size);
        assert_eq!(sizes, ["0.5 KiB", "4 KiB", "1 MiB", "30.5 KiB"]);
    }

    #[test]
    fn durations_have_two_units() {
        let spans = [7.9, 61.0, 3_700.0, 90_000.0, -1.0].map(duration);
        assert_eq!(spans, ["7s", "1m 1s", "1h 1m", "1d 1h", "0s"]);
    }
}

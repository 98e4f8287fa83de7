//! Numbers with units, as text.

/// A whole number with thousands separators.
pub(crate) fn grouped(number: u64) -> String {
    flagstone_units::grouped(number as f64, 0)
}

/// Bytes in the largest binary unit with at least one digit before the point.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let unit = (bytes.ilog2() / 10) as usize - 1;
    let value = bytes as f64 / (1_u64 << (10 * (unit + 1))) as f64;
    format!("{value:.*} {}", decimals(value), UNITS[unit])
}

/// Bytes a second, as MB/s (10^6).
pub(crate) fn megabytes(bytes_per_second: f64) -> String {
    let value = bytes_per_second / 1e6;
    format!("{value:.*}", decimals(value))
}

/// Calls per second.
pub(crate) fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate > 0.0 && rate < 10.0 => format!("{rate:.1}"),
        rate => grouped(rate.round() as u64),
    }
}

/// A latency in microseconds; `-` without calls. The first histogram bucket, of immediate answers,
/// ends at 1.024 µs.
pub(crate) fn micros(us: f64, calls: bool) -> String {
    match us {
        _ if !calls => "-".to_owned(),
        us if us <= 1.024 => "<1".to_owned(),
        us if us < 100.0 => format!("{us:.1}"),
        us => grouped(us.round() as u64),
    }
}

/// A duration in its two largest units.
pub(crate) fn span(seconds: f64) -> String {
    let seconds = seconds as u64;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}m {}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h {minutes}m"),
        (days, hours, _) => format!("{days}d {hours}h"),
    }
}

fn decimals(value: f64) -> usize {
    match value {
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_formats() {
        let grouped_ones = [0, 999, 1000, 1_234_567].map(grouped);
        assert_eq!(grouped_ones, ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0, 1023, 1024, 1_610_612_736].map(size),
            ["0 B", "1023 B", "1.00 KiB", "1.50 GiB"]
        );
        assert_eq!(size(u64::MAX), "16.0 EiB");
        assert_eq!([0.0, 1_234_567.0, 2.5e9].map(megabytes), ["0.00", "1.23", "2500"]);
        assert_eq!([0.0, 0.26, 12.4, 12_345.6].map(rate), ["0", "0.3", "12", "12,346"]);
        assert_eq!([0.5, 12.34, 1234.4].map(|us| micros(us, true)), ["<1", "12.3", "1,234"]);
        assert_eq!(micros(0.0, false), "-");
        let spans = [7.9, 61.0, 3_700.0, 90_000.0].map(span);
        assert_eq!(spans, ["7s", "1m 1s", "1h 1m", "1d 1h"]);
    }
}

//! Numbers as text for people: rounded, with thousands separators and units.
//!
//! Sizes have one format, [`size`]: `1.5 GiB`. [`exact_size`] adds the bytes where readers compare
//! or repeat a size that is not round. Values to write in a configuration or on a command line have
//! the form of [`parse`](crate::parse): `1536MiB`. Latencies have one format, [`latency`], except
//! in columns of one unit.

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

/// Formats a whole number with commas between thousands.
pub fn count(number: u64) -> String {
    grouped(number as f64, 0)
}

/// Formats a number of things, whose noun is regular: `1 volume`, `2,000 addresses`.
pub fn counted(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{} {}", count(number), plural(noun)),
    }
}

/// The plural of a regular noun.
pub fn plural(noun: &str) -> String {
    let ending = if noun.ends_with('s') { "es" } else { "s" };
    format!("{noun}{ending}")
}

/// Formats bytes in the largest binary unit with at least one digit before the point, to three
/// digits, without zeroes at the end: `1.5 GiB`, `64 KiB`.
pub fn size(bytes: u64) -> String {
    let (value, unit) = scaled(bytes);
    format!("{value} {unit}")
}

/// Formats bytes as [`size`] does, and adds their number if that is not exact:
/// `256 MiB (268398592 bytes)`.
pub fn exact_size(bytes: u64) -> String {
    let (value, unit) = scaled(bytes);
    let power = SIZE_UNITS.iter().position(|name| *name == unit).unwrap_or(0) as u32;
    // Three digits and a power of two are exact as a float.
    let is_exact =
        value.parse::<f64>().is_ok_and(|value| value * 1024_f64.powi(power as i32) == bytes as f64);
    match is_exact {
        true => format!("{value} {unit}"),
        false => format!("{value} {unit} ({bytes} bytes)"),
    }
}

const SIZE_UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

fn scaled(bytes: u64) -> (String, &'static str) {
    let power = bytes.checked_ilog2().unwrap_or(0) / 10;
    let value = bytes as f64 / (1_u64 << (10 * power)) as f64;
    let text = three_digits(value);
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    (text, SIZE_UNITS[power as usize])
}

/// Formats a latency in microseconds with a unit that fits: `73.4 µs`, `3.73 ms`, `2.1 s`.
pub fn latency(us: f64) -> String {
    match us {
        us if us < 100.0 => format!("{us:.1} µs"),
        us if us < 1e3 => format!("{us:.0} µs"),
        us if us < 1e6 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
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
    fn counted_nouns_are_singular_or_plural() {
        let volumes = [0, 1, 2, 1234].map(|number| counted(number, "volume"));
        assert_eq!(volumes, ["0 volumes", "1 volume", "2 volumes", "1,234 volumes"]);
        assert_eq!(counted(2, "address"), "2 addresses");
    }

    #[test]
    fn sizes_have_three_digits_at_most() {
        for (bytes, text) in [
            (0, "0 B"),
            (1000, "1000 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (31_232, "30.5 KiB"),
            (1_610_612_736, "1.5 GiB"),
            (1000 << 20, "1000 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn exact_sizes_add_bytes_only_if_rounded() {
        for (bytes, text) in [
            (0, "0 B"),
            (1001, "1001 B"),
            (4096, "4 KiB"),
            (31_232, "30.5 KiB"),
            (500_000_000_000, "466 GiB (500000000000 bytes)"),
            (268_398_592, "256 MiB (268398592 bytes)"),
            (1025, "1 KiB (1025 bytes)"),
            ((1 << 50) + 1, "1 PiB (1125899906842625 bytes)"),
        ] {
            assert_eq!(exact_size(bytes), text);
        }
    }

    #[test]
    fn latencies_have_a_unit_that_fits() {
        let texts = [0.0, 73.44, 310.2, 3_730.0, 2_100_000.0].map(latency);
        assert_eq!(texts, ["0.0 µs", "73.4 µs", "310 µs", "3.73 ms", "2.1 s"]);
    }

    #[test]
    fn durations_have_two_units() {
        let spans = [7.9, 61.0, 3_700.0, 90_000.0, -1.0].map(duration);
        assert_eq!(spans, ["7s", "1m 1s", "1h 1m", "1d 1h", "0s"]);
    }
}

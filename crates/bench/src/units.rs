//! Sizes, times and numbers in fio's notation: `4k` is 4,096 bytes, `1m` of time is a minute.

/// Parses a size in bytes: a whole number with `k`, `m`, `g` or `t` (powers of 1,024, as in fio),
/// optionally followed by `b` or `iB`.
///
/// # Errors
/// The mistake, as a sentence.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &lower[digits.len()..] {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(format!("`{text}` is no size: write such as 4k, 1m or 96g")),
    };
    let number: u64 =
        digits.parse().map_err(|_| format!("`{text}` is no size: write such as 4k, 1m or 96g"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is too large"))
}

/// Formats a size with the largest unit that divides it: `64k`.
pub fn format_size(bytes: u64) -> String {
    for (shift, unit) in [(40, "t"), (30, "g"), (20, "m"), (10, "k")] {
        if bytes != 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// Parses a time in milliseconds: a number with `ms`, `s` (the default), `m` or `h`.
///
/// # Errors
/// The mistake, as a sentence.
pub fn parse_time_ms(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no time: write such as 500ms, 30s or 2m");
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| !c.is_ascii_digit());
    let factor = match &lower[digits.len()..] {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(factor).ok_or_else(wrong)
}

/// Formats a duration for people: `1 h 05 min`, `2 min 03 s`, `12 s`.
pub fn format_seconds(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s:02} s"),
        (h, m, _) => format!("{h} h {m:02} min"),
    }
}

/// Formats a time in UTC for the name of a file: `20261121-081500`.
pub fn format_utc(unix_seconds: f64) -> String {
    let whole = unix_seconds.max(0.0) as u64;
    let (days, seconds) = (whole / 86_400, whole % 86_400);
    // Days since 1 March of year 0, in eras of 400 years (Hinnant's civil_from_days).
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (seconds / 3600, seconds / 60 % 60);
    format!("{year:04}{month:02}{day_of_month:02}-{hour:02}{minute:02}{:02}", seconds % 60)
}

/// Formats a number with commas between thousands and `decimals` digits after the point.
pub fn format_number(value: f64, decimals: usize) -> String {
    let text = format!("{:.decimals$}", value.abs());
    let (whole, fraction) =
        text.split_once('.').map_or((text.as_str(), None), |(w, f)| (w, Some(f)));
    let mut out = String::new();
    for (at, digit) in whole.char_indices() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    if let Some(fraction) = fraction {
        out.push('.');
        out += fraction;
    }
    let is_zero = !text.bytes().any(|b| (b'1'..=b'9').contains(&b));
    if value < 0.0 && !is_zero { format!("-{out}") } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("0", 0), ("512", 512), ("4k", 4096), ("64K", 65536), ("1MiB", 1 << 20)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        assert_eq!(parse_size("96G"), Ok(96 << 30));
        for text in ["", "k", "4x", "-1", "1.5k", "99999999999999999999", "17179869184g"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!([4096, 1 << 40, 1000, 0].map(format_size), ["4k", "1t", "1000", "0"]);
    }

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0.0, "19700101-000000"),
            (951_782_399.0, "20000228-235959"),
            (951_868_800.0, "20000301-000000"),
            (1_795_247_333.9, "20261121-074853"),
        ] {
            assert_eq!(format_utc(seconds), text);
        }
    }

    #[test]
    fn times_and_numbers() {
        assert_eq!(
            ["500ms", "30s", "2m", "7", "1h"].map(|t| parse_time_ms(t).unwrap()),
            [500, 30_000, 120_000, 7000, 3_600_000]
        );
        assert!(parse_time_ms("s").is_err() && parse_time_ms("1d").is_err());
        assert_eq!(format_seconds(3725.0), "1 h 02 min");
        assert_eq!(format_seconds(61.2), "1 min 01 s");
        assert_eq!(format_number(1_234_567.891, 2), "1,234,567.89");
        assert_eq!(format_number(-0.004, 2), "0.00");
        assert_eq!(format_number(-1234.5, 1), "-1,234.5");
        assert_eq!(format_number(999.0, 0), "999");
    }
}

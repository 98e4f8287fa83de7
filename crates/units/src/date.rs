//! Dates: times in UTC, for names of files and for documents.

use jiff::Timestamp;

/// Formats a time in UTC for the name of a file: `20261121-081500`. Times beyond the year 9999 are
/// cut to it.
pub fn format_utc(unix_seconds: f64) -> String {
    format_time(unix_seconds, "%Y%m%d-%H%M%S")
}

/// Formats a time in UTC with a valid format of strftime, such as `%Y-%m-%d %H:%M`, and bounds it
/// as [`format_utc`] does.
pub fn format_time(unix_seconds: f64, format: &'static str) -> String {
    let whole = unix_seconds.clamp(0.0, Timestamp::MAX.as_second() as f64) as i64;
    let time = Timestamp::from_second(whole).unwrap_or(Timestamp::UNIX_EPOCH);
    time.strftime(format).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_for_file_names() {
        for (seconds, text) in [
            (0.0, "19700101-000000"),
            (951_782_399.0, "20000228-235959"),
            (951_868_800.0, "20000301-000000"),
            (1_795_247_333.9, "20261121-074853"),
            (f64::MAX, "99991230-220000"),
        ] {
            assert_eq!(format_utc(seconds), text);
        }
        assert_eq!(format_time(951_782_399.0, "%Y/%m/%d %H:%M:%S"), "2000/02/28 23:59:59");
    }
}

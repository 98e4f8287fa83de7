//! Formats of numbers at axes and above bars.

use flagstone_units::grouped;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NumberFormat {
    /// Three digits and a factor of 1,000: `950`, `1.5k`, `15M`.
    Si,
    /// Digits in groups: `15,000`.
    Plain,
    /// Bytes in factors of 1,024: `4 KiB`.
    Bytes,
    /// Block sizes: `4K`, `1M`, factors of 1,024.
    Block,
    /// GB in factors of 1,000: `100 GB`, `1 TB`.
    Gb,
    /// GiB in factors of 1,024: `128 GiB`, `1 TiB`.
    Gib,
    /// `1.25` is `125 %`.
    Percent,
    /// A percentile by the rarity of larger values: 10 is `90 %`, 1,000 is `99.9 %`.
    Nines,
}

impl NumberFormat {
    pub fn text(self, value: f64) -> String {
        match self {
            NumberFormat::Si => scaled(value, 1000.0, &["", "k", "M", "G", "T"], ""),
            NumberFormat::Bytes => {
                scaled(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"], "\u{a0}")
            }
            NumberFormat::Block => scaled(value, 1024.0, &["", "K", "M", "G", "T"], ""),
            NumberFormat::Gb => scaled(value, 1000.0, &["GB", "TB", "PB", "EB"], "\u{a0}"),
            NumberFormat::Gib => scaled(value, 1024.0, &["GiB", "TiB", "PiB", "EiB"], "\u{a0}"),
            NumberFormat::Percent => format!("{}\u{a0}%", digits(value * 100.0)),
            NumberFormat::Plain if value.abs() < 1000.0 => digits(value),
            NumberFormat::Plain => grouped(value, 0),
            NumberFormat::Nines => nines(value),
        }
    }
}

/// Three significant digits without trailing zeros.
fn digits(value: f64) -> String {
    let size = value.abs();
    let places = match size {
        _ if size >= 99.95 || size == 0.0 => 0,
        _ if size >= 9.995 => 1,
        _ if size >= 0.995 => 2,
        // Down to numbers that are indistinguishable from 0.
        _ => (2 - size.log10().floor() as i64).clamp(3, 9) as usize,
    };
    let text = format!("{value:.places$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn scaled(value: f64, factor: f64, units: &[&str], gap: &str) -> String {
    let mut value = value;
    let mut unit = 0;
    // 1,000 of a unit, after rounding, is 1 of the next.
    while value.abs() >= factor * 0.9995 && unit + 1 < units.len() {
        value /= factor;
        unit += 1;
    }
    format!("{}{gap}{}", digits(value), units[unit])
}

fn nines(value: f64) -> String {
    let value = value.max(1.0);
    // 99 % needs no decimal, 99.9 % one.
    let places = (value.log10().ceil() as usize).saturating_sub(2);
    format!("{:.places$}\u{a0}%", 100.0 * (1.0 - 1.0 / value))
}

#[cfg(test)]
mod tests {
    use super::NumberFormat;

    #[test]
    fn number_formats() {
        let si = [
            (0.0, "0"),
            (0.25, "0.25"),
            (950.0, "950"),
            (999.96, "1k"),
            (1500.0, "1.5k"),
            (15_000.0, "15k"),
            (1_000_000.0, "1M"),
            (-2500.0, "-2.5k"),
        ];
        for (value, text) in si {
            assert_eq!(NumberFormat::Si.text(value), text);
        }
        assert_eq!(NumberFormat::Bytes.text(4096.0), "4\u{a0}KiB");
        assert_eq!(NumberFormat::Bytes.text(512.0), "512\u{a0}B");
        assert_eq!(NumberFormat::Block.text(4096.0), "4K");
        assert_eq!(NumberFormat::Block.text(1024.0 * 1024.0), "1M");
        assert_eq!(NumberFormat::Block.text(512.0), "512");
        assert_eq!(NumberFormat::Gb.text(500.0), "500\u{a0}GB");
        assert_eq!(NumberFormat::Gb.text(2000.0), "2\u{a0}TB");
        assert_eq!(NumberFormat::Gib.text(1024.0), "1\u{a0}TiB");
        assert_eq!(NumberFormat::Gib.text(1000.0), "1000\u{a0}GiB");
        assert_eq!(NumberFormat::Percent.text(0.0215), "2.15\u{a0}%");
        assert_eq!(NumberFormat::Plain.text(1_234_567.0), "1,234,567");
        assert_eq!(NumberFormat::Plain.text(0.5), "0.5");
        let nines =
            [1.0, 2.0, 10.0, 100.0, 1000.0, 1e5].map(|value| NumberFormat::Nines.text(value));
        assert_eq!(
            nines.map(|text| text.replace('\u{a0}', " ")),
            ["0 %", "50 %", "90 %", "99 %", "99.9 %", "99.999 %"]
        );
    }
}

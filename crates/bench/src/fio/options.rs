//! Options that fio repeats in its output: names and values as given.

use std::collections::BTreeMap;
use std::fmt;

use flagstone_units::{parse_duration, parse_size};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::limits::FIO_OPTIONS;

/// Options of a job, or global options. fio omits most options without a value, such as
/// `group_reporting` and `stonewall`, so an absent option may have been given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FioOptions(BTreeMap<String, String>);

/// A value: fio writes strings; other producers write numbers and booleans. Anything nested is
/// refused at its start, before it takes memory.
struct Value(String);

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(ValueVisitor).map(Value)
    }
}

struct ValueVisitor;

impl Visitor<'_> for ValueVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the value of an option")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<String, E> {
        Ok(text)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_bool<E: de::Error>(self, truth: bool) -> Result<String, E> {
        Ok(u8::from(truth).to_string())
    }

    fn visit_unit<E: de::Error>(self) -> Result<String, E> {
        Ok(String::new())
    }
}

struct OptionsVisitor;

impl<'de> Visitor<'de> for OptionsVisitor {
    type Value = FioOptions;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of options")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<FioOptions, M::Error> {
        let mut out = BTreeMap::new();
        let mut count = 0;
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            count += 1;
            if count > FIO_OPTIONS {
                return Err(de::Error::custom("too many options"));
            }
            out.insert(name, value.0);
        }
        Ok(FioOptions(out))
    }
}

impl<'de> Deserialize<'de> for FioOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FioOptions, D::Error> {
        deserializer.deserialize_map(OptionsVisitor)
    }
}

impl FioOptions {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Whether fio repeated no option.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct OfJob<'a> {
    pub own: &'a FioOptions,
    pub(crate) global: &'a FioOptions,
}

impl<'a> OfJob<'a> {
    pub(crate) fn get(&self, name: &str) -> Option<&'a str> {
        self.own.get(name).or_else(|| self.global.get(name))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.own.is_empty() && self.global.is_empty()
    }

    /// A number; `None` if the option is absent or not a plain number.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.trim().parse().ok()
    }

    /// Whether a boolean option is on; without a value it is. `None` if it is absent.
    pub(crate) fn is_on(&self, name: &str) -> Option<bool> {
        self.get(name).map(|value| !matches!(value.trim(), "0" | "false"))
    }

    /// Whether any part of an option is a number above 0, as in `rate_iops=,500`.
    pub(crate) fn is_above_zero(&self, name: &str) -> bool {
        let above = |part: &str| part.trim().starts_with(|c: char| ('1'..='9').contains(&c));
        self.get(name).is_some_and(|value| value.split([',', ':']).any(above))
    }

    /// A size in bytes as fio reads it: `200G` is 200 GiB. `None` for a size relative to a file,
    /// such as `50%`, and for invalid ones.
    pub(crate) fn bytes(&self, name: &str) -> Option<u64> {
        // fio takes `4k`, `4kb` and `4KiB` for the same.
        let text = self.get(name)?.trim().to_ascii_lowercase();
        parse_size(text.trim_end_matches('b').trim_end_matches('i')).ok()
    }

    /// A time in ms as fio reads it; without a unit it is in seconds.
    pub(crate) fn millis(&self, name: &str) -> Option<u64> {
        let text = self.get(name)?.trim();
        let is_bare = text.ends_with(|c: char| c.is_ascii_digit());
        let time = parse_duration(&if is_bare { format!("{text}s") } else { text.to_owned() });
        u64::try_from(time.ok()?.as_millis()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> FioOptions {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn job_options_override_global_ones() {
        let own = options(r#"{"bs": "8k", "direct": "1", "stonewall": null}"#);
        let global = options(r#"{"bs": "4k", "iodepth": 32, "rate_iops": ",500", "rate": "0"}"#);
        let of = OfJob { own: &own, global: &global };
        assert_eq!((of.get("bs"), of.number("iodepth")), (Some("8k"), Some(32)));
        assert_eq!((of.is_on("direct"), of.is_on("stonewall")), (Some(true), Some(true)));
        assert_eq!(of.is_on("buffered"), None);
        assert!(of.is_above_zero("rate_iops") && !of.is_above_zero("rate"));
    }

    #[test]
    fn fio_option_sizes_and_times() {
        let own = options(
            r#"{"a": "200G", "b": "50%", "c": "4096", "d": "1.0MB", "e": "16kib", "f": "99999999999T",
                "g": "60", "h": "2s", "i": "1m", "j": "soon", "k": "ü"}"#,
        );
        let of = OfJob { own: &own, global: &FioOptions::default() };
        let sizes = ["a", "b", "c", "d", "e", "f", "k"].map(|name| of.bytes(name));
        assert_eq!(sizes, [Some(200 << 30), None, Some(4096), None, Some(16384), None, None]);
        let times = ["g", "h", "i", "j"].map(|name| of.millis(name));
        assert_eq!(times, [Some(60_000), Some(2000), Some(60_000), None]);
    }

    #[test]
    fn fio_option_values_and_their_limit() {
        // Regression test: a nested value was read to its end, at 18 times its size in memory.
        for nested in [r#"{"a": [1]}"#, r#"{"a": {}}"#, r#"{"a": [1, oops"#, r#"{"a": {oops"#] {
            let error = serde_json::from_str::<FioOptions>(nested).unwrap_err().to_string();
            assert!(error.contains("expected the value of an option"), "{error}");
        }
        let many: Vec<_> = (0..=FIO_OPTIONS).map(|n| format!("\"{n}\": \"\"")).collect();
        let error = serde_json::from_str::<FioOptions>(&format!("{{{}}}", many.join(",")));
        assert!(error.unwrap_err().to_string().contains("too many options"));
        let open = serde_json::from_str::<FioOptions>(&format!("{{{}, oops", many.join(",")));
        assert!(open.unwrap_err().to_string().contains("too many options"), "while reading");
    }
}

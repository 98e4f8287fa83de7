//! Row selectors of a catalog: number ranges `"4"`, `"2-7"`, `"64+"`, and names with `*`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A range of whole numbers, both ends included, or without an upper end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CountRange {
    pub min: u32,
    /// Last number; `None` without an upper end.
    pub max: Option<u32>,
}

impl CountRange {
    pub fn contains(&self, number: u32) -> bool {
        number >= self.min && self.max.is_none_or(|max| number <= max)
    }

    pub fn overlaps(&self, other: &CountRange) -> bool {
        self.max.is_none_or(|max| max >= other.min) && other.max.is_none_or(|max| max >= self.min)
    }
}

pub(crate) const RANGE_FORM: &str = "a range of whole numbers: \"4\", \"2-7\" or \"64+\"";

impl std::str::FromStr for CountRange {
    type Err = String;

    fn from_str(text: &str) -> Result<CountRange, String> {
        let number = |digits: &str| digits.parse::<u32>().ok();
        let range = if let Some(first) = text.strip_suffix('+') {
            number(first).map(|min| CountRange { min, max: None })
        } else if let Some((first, last)) = text.split_once('-') {
            number(first).zip(number(last)).map(|(min, max)| CountRange { min, max: Some(max) })
        } else {
            number(text).map(|only| CountRange { min: only, max: Some(only) })
        };
        range
            .filter(|range| range.max.is_none_or(|max| max >= range.min))
            .ok_or_else(|| RANGE_FORM.to_owned())
    }
}

impl std::fmt::Display for CountRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.max {
            None => write!(f, "{}+", self.min),
            Some(max) if max == self.min => write!(f, "{max}"),
            Some(max) => write!(f, "{}-{max}", self.min),
        }
    }
}

impl Serialize for CountRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CountRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CountRange, D::Error> {
        deserializer.deserialize_str(Words(RANGE_FORM)).and_then(|text| {
            text.parse().map_err(|_| {
                let unexpected = serde::de::Unexpected::Str(&text);
                serde::de::Error::invalid_value(unexpected, &RANGE_FORM)
            })
        })
    }
}

/// A name pattern in which `*` matches any characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NamePattern(pub String);

impl NamePattern {
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or("");
        let Some(mut rest) = name.strip_prefix(first) else { return false };
        let mut parts = parts.peekable();
        if parts.peek().is_none() {
            return rest.is_empty();
        }
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                return rest.ends_with(part);
            }
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        false
    }
}

/// String visitor with a custom description of the expected form.
struct Words(&'static str);

impl serde::de::Visitor<'_> for Words {
    type Value = String;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_parse_and_print() {
        for (text, min, max) in [("4", 4, Some(4)), ("2-7", 2, Some(7)), ("64+", 64, None)] {
            let range: CountRange = text.parse().expect(text);
            assert_eq!(range, CountRange { min, max });
            assert_eq!(range.to_string(), text);
        }
        for wrong in ["", "+", "-", "7-2", "x", "1-2-3", "99999999999", "-4", "4 - 7"] {
            assert!(wrong.parse::<CountRange>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn ranges_include_their_ends() {
        let range: CountRange = "2-7".parse().unwrap();
        assert!([2, 5, 7].iter().all(|n| range.contains(*n)));
        assert!(![1, 8].iter().any(|n| range.contains(*n)));
        let open: CountRange = "8+".parse().unwrap();
        assert!(open.contains(u32::MAX) && !open.contains(7));
        assert!(!range.overlaps(&open));
        assert!(range.overlaps(&"7-9".parse().unwrap()));
    }

    #[test]
    fn name_patterns_match_stars() {
        for (pattern, name, fits) in [
            ("e2-medium", "e2-medium", true),
            ("e2-medium", "e2-mediumx", false),
            ("c3-*-metal", "c3-standard-192-metal", true),
            ("c3-*-metal", "c3-standard-192", false),
            ("*-64*", "n1-standard-64", true),
            ("*", "", true),
            ("a*b*c", "abbc", true),
            ("a*bc*c", "abc", false),
        ] {
            assert_eq!(NamePattern(pattern.to_owned()).matches(name), fits, "{pattern} {name}");
        }
    }
}

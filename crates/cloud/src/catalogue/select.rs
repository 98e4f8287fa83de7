//! How rows of a catalogue say for which machines or numbers they hold: `"4"`, `"2-7"`, `"64+"`,
//! and names with `*`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Whole numbers from one to another, both included, or without end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    /// The first.
    pub min: u32,
    /// The last; none if it has no end.
    pub max: Option<u32>,
}

impl Range {
    /// Whether `number` is in it.
    pub fn contains(&self, number: u32) -> bool {
        number >= self.min && self.max.is_none_or(|max| number <= max)
    }

    /// Whether any number is in both.
    pub fn overlaps(&self, other: &Range) -> bool {
        self.max.is_none_or(|max| max >= other.min) && other.max.is_none_or(|max| max >= self.min)
    }
}

/// What is accepted, for messages.
pub(crate) const RANGE_FORM: &str = "a range of whole numbers: \"4\", \"2-7\" or \"64+\"";

impl std::str::FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Range, String> {
        let number = |digits: &str| digits.parse::<u32>().ok();
        let range = if let Some(first) = text.strip_suffix('+') {
            number(first).map(|min| Range { min, max: None })
        } else if let Some((first, last)) = text.split_once('-') {
            number(first).zip(number(last)).map(|(min, max)| Range { min, max: Some(max) })
        } else {
            number(text).map(|only| Range { min: only, max: Some(only) })
        };
        range
            .filter(|range| range.max.is_none_or(|max| max >= range.min))
            .ok_or_else(|| RANGE_FORM.to_owned())
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.max {
            None => write!(f, "{}+", self.min),
            Some(max) if max == self.min => write!(f, "{max}"),
            Some(max) => write!(f, "{}-{max}", self.min),
        }
    }
}

impl Serialize for Range {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Range {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Range, D::Error> {
        deserializer.deserialize_str(Words(RANGE_FORM)).and_then(|text| {
            text.parse().map_err(|_| {
                let unexpected = serde::de::Unexpected::Str(&text);
                serde::de::Error::invalid_value(unexpected, &RANGE_FORM)
            })
        })
    }
}

/// A name in which each `*` stands for any characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pattern(pub String);

impl Pattern {
    /// Whether `name` fits.
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

/// Takes a text and says what it is a text of when it is something else.
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
    fn ranges_are_read_and_printed_alike() {
        for (text, min, max) in [("4", 4, Some(4)), ("2-7", 2, Some(7)), ("64+", 64, None)] {
            let range: Range = text.parse().expect(text);
            assert_eq!(range, Range { min, max });
            assert_eq!(range.to_string(), text);
        }
        for wrong in ["", "+", "-", "7-2", "x", "1-2-3", "99999999999", "-4", "4 - 7"] {
            assert!(wrong.parse::<Range>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn ranges_contain_their_ends() {
        let range: Range = "2-7".parse().unwrap();
        assert!([2, 5, 7].iter().all(|n| range.contains(*n)));
        assert!(![1, 8].iter().any(|n| range.contains(*n)));
        let open: Range = "8+".parse().unwrap();
        assert!(open.contains(u32::MAX) && !open.contains(7));
        assert!(!range.overlaps(&open));
        assert!(range.overlaps(&"7-9".parse().unwrap()));
    }

    #[test]
    fn stars_stand_for_anything() {
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
            assert_eq!(Pattern(pattern.to_owned()).matches(name), fits, "{pattern} {name}");
        }
    }
}

//! Names: which known name a misspelled one was probably meant to be.

/// Longest part of a name that is compared, in characters. A longer one is no known name, and the
/// comparison costs its length.
const COMPARED_CHARS: usize = 64;

/// The known name that differs from `name` in the fewest letters, if these are at most a third of
/// it. Upper and lower case, `-` and `_` are the same.
pub fn nearest_name<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |name: &str| -> String {
        name.chars().take(COMPARED_CHARS).map(|c| if c == '_' { '-' } else { c }).collect()
    };
    let name = plain(&name.to_ascii_lowercase());
    let distance = |known: &str| strsim::levenshtein(&name, &plain(known));
    let nearest = known.into_iter().map(|known| (distance(known), known)).min();
    nearest.filter(|(edits, known)| *edits <= (known.len() / 3).max(1)).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_names_are_corrected() {
        let known = ["device", "read_only", "pd-ssd", "pd-standard"];
        for (name, nearest) in [
            ("devise", Some("device")),
            ("read-only", Some("read_only")),
            ("pdssd", Some("pd-ssd")),
            ("PD_STANDARDS", Some("pd-standard")),
            ("mirror", None),
            ("", None),
        ] {
            assert_eq!(nearest_name(name, known), nearest, "{name}");
        }
        assert_eq!(nearest_name(&"x".repeat(1 << 20), known), None);
    }
}

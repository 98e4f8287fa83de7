//! Form of each required key, for the error that the key is missing.

/// Keys without a default: `KEY = FORM` in each line.
const REQUIRED: &str = include_str!("../../catalogs/required-keys.txt");

pub(super) fn form(key: &str) -> Option<&'static str> {
    let mut forms = REQUIRED.lines().filter_map(|line| line.split_once(" = "));
    forms.find(|(name, _)| *name == key).map(|(_, form)| form)
}

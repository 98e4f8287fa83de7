//! Fuzz target for the text form of devices, listen addresses, sizes, durations and names.
//!
//! Input: one byte that selects the kind, then the text.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use flagstone_config::device_spec::DeviceSpec;
use flagstone_config::listen_spec::ListenSpec;
use flagstone_config::names;
use flagstone_units::{format_duration, format_size, parse_duration, parse_size};

/// Parses the text as the kind selected by the first byte.
pub fn run(input: &[u8]) {
    let Some((choice, text)) = input.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    match choice % 6 {
        0 => round_trip::<DeviceSpec>(text),
        1 => round_trip::<ListenSpec>(text),
        2 => uuids(text),
        3 => sizes(text),
        4 => durations(text),
        _ => all_names(text),
    }
}

/// Checks that an accepted value prints to text that parses to the same value; otherwise that there
/// is a message.
fn round_trip<T>(text: &str)
where
    T: FromStr + Display + Debug + PartialEq,
    T::Err: Display + Debug + PartialEq,
{
    match text.parse::<T>() {
        Ok(value) => assert_eq!(value.to_string().parse::<T>().as_ref(), Ok(&value)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn uuids(text: &str) {
    if let Ok(uuid) = names::parse_uuid(text) {
        assert_eq!(names::parse_uuid(&uuid.to_string()), Ok(uuid));
    }
}

fn sizes(text: &str) {
    if let Ok(bytes) = parse_size(text) {
        assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
    }
}

fn durations(text: &str) {
    if let Ok(duration) = parse_duration(text) {
        assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
    }
}

fn all_names(text: &str) {
    let _ = (names::check_nqn(text), names::check_subsystem_nqn(text));
    let _ = (names::check_volume_name(text), names::check_serial(text));
    let _ = names::check_export_name(text);
    if let Ok(name) = flagstone_nvme::Nqn::new(text) {
        assert_eq!(name.as_str(), text);
        assert_eq!(flagstone_nvme::Nqn::from_field(&name.to_field()), Ok(name));
    }
}

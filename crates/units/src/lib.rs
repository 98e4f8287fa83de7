//! Units and names as text: sizes, throughputs, durations, numbers and dates, as people write and
//! read them; [`nearest_name`], which corrects
//! misspelled names; and text tables ([`columns`]).
//!
//! [`parse_size`], [`parse_rate`] and [`parse_duration`] are the only parsers, so a value has one
//! meaning in configuration files, suites and options. The `format_*` functions are exact: parsing
//! their text gives the same value. The functions of [`mod@display`] round, and are for tables and
//! messages only.

pub mod columns;
mod date;
pub mod display;
mod names;
mod parse;

pub use crate::date::{format_time, format_utc};
pub use crate::display::{counted, exact_size, grouped};
pub use crate::names::nearest_name;
pub use crate::parse::{
    DurationError, RateError, SizeError, format_block_size, format_duration, format_rate,
    format_size, missing_size_unit, parse_duration, parse_rate, parse_size,
};

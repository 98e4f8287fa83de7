//! Every key of the configuration file: its kind, range, default and meaning, in one table.
//!
//! The parser accepts what is in this table and nothing else, takes ranges and defaults from it,
//! and `docs/configuration.md` is checked against it by a test, so the three cannot differ.
//!
//! `form` is what a key can be, `words` how it is told to people; the tables themselves are by
//! what they configure.

mod emulate;
mod form;
mod like;
mod limit;
mod mirror;
mod server;
mod volume;
mod words;

pub use emulate::EMULATE;
pub use form::{Key, Kind, Section, SizeRule};
pub use limit::{BURST, LIMIT};
pub use mirror::{MIRROR, PEER};
pub use server::{NBD, NVME, SERVER};
pub use volume::{DELAY, FAULT, STRIPE, SUBSYSTEM, VOLUME};

/// Every table of the file, in the order of the documentation.
pub static SECTIONS: [&Section; 13] = [
    &SERVER, &NVME, &NBD, &VOLUME, &DELAY, &FAULT, &EMULATE, &MIRROR, &STRIPE, &LIMIT, &BURST,
    &SUBSYSTEM, &PEER,
];

//! Schema of the configuration file: kind, range, default and meaning of every key.
//!
//! The parser accepts exactly the keys of these tables and takes ranges and defaults from them. A
//! test compares `docs/configuration.md` with them, so the three cannot differ.
//!
//! `form` defines keys and kinds, `words` describes them to people, and the other modules hold the
//! tables by subject.

mod arbiter;
mod disk_model;
mod form;
mod limit;
mod mirror;
mod profile;
mod server;
mod volume;
mod words;

pub use arbiter::ARBITER;
pub use disk_model::DISK_MODEL;
pub use form::{Key, Section, SizeRule, ValueKind};
pub use limit::{BURST, LIMIT};
pub use mirror::{MIRROR, PEER};
pub use profile::PROFILE;
pub use server::{API_TLS, API_USER, LISTEN, NBD, NVME, SERVER};
pub use volume::{DELAY, FAULT, HOST, STRIPE, SUBSYSTEM, VOLUME};

/// Every table of the file, in the order of the documentation.
pub static SECTIONS: [&Section; 19] = [
    &SERVER,
    &LISTEN,
    &API_TLS,
    &NVME,
    &NBD,
    &VOLUME,
    &DELAY,
    &FAULT,
    &DISK_MODEL,
    &MIRROR,
    &STRIPE,
    &LIMIT,
    &PROFILE,
    &BURST,
    &SUBSYSTEM,
    &HOST,
    &PEER,
    &API_USER,
    &ARBITER,
];

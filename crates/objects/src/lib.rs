//! Client of an object store: credentials, requests and settings, for the arbiter and for backups.
//!
//! Invariants:
//! - a client sends each request once and repeats nothing: its user knows which repetition is safe;
//! - answers are bounded, and errors do not quote secrets;
//! - unusable credentials are errors, though the library panics on some.

mod client;
mod credential;
mod http;

pub use client::{Client, ClientOptions, Secret, TlsSource, connect, secret};
pub use http::check;

/// The cause of an error. The layers above it name the whole URL.
pub fn cause(error: &object_store::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

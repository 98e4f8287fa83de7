//! Mirror state as operators see it.

pub mod status;

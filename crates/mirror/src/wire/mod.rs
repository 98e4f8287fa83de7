//! Requests to a peer.

pub mod peer;
pub mod snapshot;

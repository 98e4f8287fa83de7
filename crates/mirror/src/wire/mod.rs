//! Requests to a peer.

pub mod peer;

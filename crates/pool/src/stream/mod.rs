//! Streams: a snapshot, or what differs between two, as a sequence of bytes that another pool can
//! receive. `docs/pool-stream.md` has the byte maps.
//!
//! [`frame`] is the format, as pure functions of bytes; [`send`] makes parts of a stream,
//! [`receive`] applies its frames to a volume.

pub mod frame;
pub mod receive;
pub mod send;

//! Streams: a snapshot, or the difference of two, as bytes that another pool can receive.
//! `docs/pool-stream.md` has the byte maps.
//!
//! [`frame`] is the format, as pure functions of bytes; [`send`] makes parts of a stream,
//! [`receive`] applies frames to a volume.

pub mod frame;
pub mod receive;
pub mod send;

//! Log: where the next chunk goes, the chunks in flight, and the writer that gathers the writes of
//! a core into chunks.

pub(crate) mod append;
pub(crate) mod gather;
mod pace;
pub mod position;
pub mod segments;

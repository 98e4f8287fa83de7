//! Log: where the next chunk goes, the chunks in flight, and the writer that gathers the writes of
//! a core into chunks. The log device, and the task that writes it out.

pub(crate) mod append;
pub(crate) mod device;
pub(crate) mod gather;
mod pace;
pub mod position;
pub mod segments;
pub mod tail;
pub mod throttle;
pub(crate) mod write_out;

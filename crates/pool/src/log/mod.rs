//! Log: its position, chunks in flight, the writer that gathers the writes of a core into chunks,
//! the log device, and the task that writes it out.

pub(crate) mod append;
pub(crate) mod device;
pub(crate) mod gather;
mod pace;
pub mod position;
pub mod segments;
pub mod tail;
pub mod throttle;
pub(crate) mod write_out;

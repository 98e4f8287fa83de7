//! I/O path of a mirrored volume: admission, range lock, both legs, queue and reorder buffer.

pub(crate) mod admission;
pub(crate) mod blocked;
pub(crate) mod call_admission;
pub(crate) mod deliver;
pub(crate) mod device;
pub(crate) mod fifo_lock;
pub(crate) mod flush;
pub(crate) mod local;
pub(crate) mod memory;
pub(crate) mod new_generation;
pub mod queue;
pub(crate) use flagstone_blockdev::range_lock;
pub mod reorder;
pub(crate) mod repair;
pub(crate) mod request;
pub(crate) mod write;

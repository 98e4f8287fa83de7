//! Management: creating pools, their volumes, and the orders on them.

mod admission;
mod backing;
pub mod create;
pub mod destroy;
pub mod device_set;
pub mod devices;
mod dry_run;
mod encryption;
pub mod grow_closed;
pub mod grow_pair;
pub(crate) mod handle;
pub mod identity;
pub mod leg;
pub mod leg_rollback;
pub mod log_device;
pub mod open;
pub mod pool;
mod replace;
pub(crate) mod shared;
pub mod snapshot;
pub(crate) mod space;
pub(crate) mod superblock;
pub(crate) mod usage;
pub mod volume;

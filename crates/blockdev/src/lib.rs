//! The one idea that all of Flagstone is built on: everything is a [`BlockDevice`].
//!
//! A volume is a small stack of devices. Leaves talk to the runtime or to memory, layers wrap other
//! devices and know nothing of what kind they are. Front ends speak a protocol and turn it into
//! calls on one device.
//!
//! Read [`device`] first: it says what a completed call promises. Then the leaves: [`null`],
//! [`memory`], [`file`].

pub mod config;
pub mod device;
pub mod error;
pub mod file;
mod future;
pub mod limits;
pub mod memory;
pub mod null;
mod pieces;

pub use config::ConfigError;
pub use device::{BlockDevice, Geometry, SharedDevice, ZeroFlags};
pub use error::IoError;
pub use file::{FileDevice, FileOptions};
pub use future::IoFuture;
pub use memory::MemoryDevice;
pub use null::NullDevice;

//! The one idea that all of Flagstone is built on: everything is a [`BlockDevice`].
//!
//! A volume is a small stack of devices. Leaves talk to the runtime or to memory, layers wrap other
//! devices and know nothing of what kind they are. Front ends speak a protocol and turn it into
//! calls on one device.
//!
//! Read [`device`] first: it says what a completed call promises.

pub mod device;
pub mod error;
mod future;

pub use device::{BlockDevice, Geometry, SharedDevice, ZeroFlags};
pub use error::IoError;
pub use future::IoFuture;

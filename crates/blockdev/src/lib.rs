//! The one idea that all of Flagstone is built on: everything is a [`BlockDevice`].
//!
//! A volume is a small stack of devices. Leaves talk to the runtime or to memory, layers wrap other
//! devices and know nothing of what kind they are. Front ends speak a protocol and turn it into
//! calls on one device.
//!
//! Read [`device`] first: it says what a completed call promises. Then the leaves: [`null`],
//! [`memory`], [`mod@file`]; then the layers: [`stripe`], [`delay`], [`fault`], [`swap`];
//! and what all of them have to pass: [`conformance`].

pub mod config;
pub mod conformance;
pub mod delay;
pub mod device;
pub mod error;
pub mod fault;
pub mod file;
mod future;
pub mod limits;
pub mod memory;
pub mod null;
mod pieces;
mod rng;
pub mod stripe;
pub mod swap;
mod window;

pub use config::ConfigError;
pub use delay::{Delay, DelayConfig, Latency};
pub use device::{BlockDevice, Geometry, SharedDevice, ZeroFlags};
pub use error::IoError;
pub use fault::{Fault, FaultConfig, FaultControl, FaultCounters, FaultRate};
pub use file::{FileDevice, FileOptions};
pub use future::IoFuture;
pub use memory::MemoryDevice;
pub use null::NullDevice;
pub use stripe::Stripe;
pub use swap::Swap;

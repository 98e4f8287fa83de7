//! Block devices: the [`BlockDevice`] trait, on which all of Flagstone is built, with its leaves
//! and simple layers.
//!
//! A volume is a small stack of devices. Leaves use the runtime or memory; layers wrap other
//! devices without knowing their type. Front ends translate a protocol into calls on one device.
//!
//! Read [`device`] first, which states the promises of a completed call. Then the leaves: [`null`],
//! [`memory`], [`mod@file`]; then the layers: [`stripe`], [`delay`], [`fault`], [`stats`],
//! [`reopenable`], [`sectors`]. The crate `conformance` contains the checks that all of them must
//! pass.

pub mod config;
pub mod delay;
pub mod device;
pub mod error;
mod exclusion;
pub mod fault;
pub mod file;
mod future;
mod layer;
pub mod limits;
pub mod memory;
pub mod null;
mod pieces;
pub mod range_lock;
mod range_table;
pub mod reopenable;
pub mod sectors;
pub mod stats;
pub mod stripe;
pub mod window;

pub use config::LayerConfigError;
pub use delay::{DelayConfig, DelayLayer, DelayTime};
pub use device::{BlockDevice, Extent, Geometry, SharedDevice, ZeroFlags};
pub use error::IoError;
pub use fault::{FaultConfig, FaultControl, FaultLayer, FaultRate};
pub use file::{FileDevice, FileOptions};
pub use future::IoFuture;
pub use layer::Layer;
pub use memory::MemoryDevice;
pub use null::NullDevice;
pub use reopenable::ReopenableDevice;
pub use sectors::SectorDevice;
pub use stats::StatsLayer;
pub use stripe::StripeDevice;

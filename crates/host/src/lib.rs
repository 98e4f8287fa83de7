//! The host under the storage: what its disks are used for ([`inspect()`]), which settings cost
//! performance, and changing them with a way back.

pub mod inspect;
pub mod limits;
pub mod parse;
pub mod root;

pub use inspect::{DeviceUse, inspect};

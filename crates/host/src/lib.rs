//! The host under the storage: what its disks are used for ([`inspect()`]), which settings cost
//! performance, and changing them with a way back.
//!
//! Three steps, each usable alone: [`facts`] reads a host, or a recorded tree of one, into typed
//! facts; [`checks`] judges them without touching anything; [`apply`] writes what is safe, with a
//! journal from which it is undone. [`doctor`] is the three together.

pub mod apply;
pub mod checks;
pub mod doctor;
pub mod facts;
pub mod inspect;
pub mod limits;
pub mod parse;
pub mod report;
pub mod root;

pub use inspect::{DeviceUse, inspect};

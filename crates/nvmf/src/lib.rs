//! NVMe over Fabrics over TCP: the target, and the host behind the `remote` device.

mod limits;
pub mod host;
mod stream;
pub mod target;

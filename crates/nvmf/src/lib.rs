//! NVMe over Fabrics over TCP: the target, and the host behind the `remote` device.

mod countdown;
pub mod host;
mod limits;
mod stream;
pub mod target;

//! Measurements kept as ratios in docs/performance.md.
//!
//! [`exchange`] is a client that does nothing but send requests and count the bytes that come back,
//! with the batching of a real host. Against the bare server of the `floor` program it shows what
//! the kernel's TCP costs; against the NVMe/TCP target, what NVMe adds to that.

pub mod exchange;
pub mod nvme;

//! Benchmarks behind the ratios in docs/performance.md.
//!
//! [`exchange`] is a client that only sends requests and counts received bytes, with the batching
//! of a real host. Against the bare server of the `floor` program it measures the cost of the
//! kernel's TCP; against the NVMe/TCP target, the additional cost of NVMe.

pub mod exchange;
pub mod nvme;

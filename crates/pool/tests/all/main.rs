//! All integration tests in one binary, which builds faster than one per file.

#[path = "../common/mod.rs"]
mod common;

mod compression;
mod conformance;
mod dedup;
mod devices;
mod encryption;
mod evacuation;
mod faults;
mod full;
mod full_units;
mod gate;
mod hostile;
mod legs;
mod log_changes;
mod log_device;
mod orders;
mod redundancy;
mod redundancy_absent;
mod redundancy_crash;
mod redundancy_grow;
mod redundancy_hung;
mod redundancy_repair;
mod redundancy_replace;
mod reserved;
mod reserved_history;
mod snapshots;
mod sparse;
mod stream;
mod transient_errors;
mod units;
mod verify;

//! Tests in one program, which builds in a fraction of the time that one for each file takes.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;

mod conformance;
mod devices;
mod evacuation;
mod faults;
mod full;
mod hostile;
mod log_changes;
mod log_device;
mod orders;
mod reserved;
mod snapshots;
mod sparse;
mod stream;
mod transient_errors;
mod verify;

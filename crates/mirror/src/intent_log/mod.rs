//! Write-intent log: bitmap, active regions, their pages on disk, the writer, and recovery.

pub(crate) mod active_regions;
pub mod bitmap;
pub(crate) mod log_area;
pub mod log_device;
pub(crate) mod out_of_sync;
pub(crate) mod pages;
pub(crate) mod recover;
pub(crate) mod writer;

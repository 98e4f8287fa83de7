//! Replicas of a volume, and the log that says where they may differ.

pub mod decide;
pub mod format;
pub mod generation;
pub mod id;
pub mod limits;
pub mod shape;

//! Cloud disks as data: performance, binding limit and price of a disk type, size and machine.
//!
//! - Limits are data. A versioned catalog holds them with sources, dates and confidence. The
//!   built-in catalogs are the files of `catalogs/`, and a user may supply another. A value
//!   without a source stays unknown.
//! - Functions are pure. The only I/O is reading a given catalog file.
//! - Every cell of the 2019 page is reproduced: tests compare all its tables with the model.
//!   Contradictions of the page are reported with the results that they affect.
//!
//! Start with [`catalog`]; then [`input`], the question, and [`prediction`], the answer.
//! [`judge`] compares measurements. [`pool`] predicts a pool on a disk.

#![allow(missing_docs, reason = "the names of most members say it")]

mod caps;
pub mod catalog;
pub mod cheapest;
pub mod compare;
pub mod curve;
mod describe;
mod input;
pub mod judge;
pub mod limits;
mod mix;
mod placement;
pub mod pool;
mod predict;
pub mod prediction;
mod price;
mod provenance;
mod provision;
mod recommendation;
pub mod table;
mod together;

pub use catalog::{Catalog, CatalogError, Confidence, LimitKind};
pub use input::{AccessOrder, DiskConfiguration, Machine, PlanError, Workload};
pub use judge::{Judgment, MeasuredRun};
pub use mix::WorkloadMix;
pub use placement::{Demand, Placement, size_text};
pub use prediction::{Ceilings, PredictedLimit, Prediction, Rates, Recommendation};
pub use price::{CapacityPrice, NoPrice};
pub use together::{JointDisk, JointPrediction, SharedLimit};

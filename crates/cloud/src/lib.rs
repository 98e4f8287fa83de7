//! Cloud disks as data: what a type, size and machine can do, which limit binds, and what it costs.
//!
//! What it promises:
//!
//! - **Limits are data.** They stand in a versioned catalogue with their sources, dates and
//!   confidence; the ones in the program are the files of `catalogues/`, and a user may bring
//!   another. What no source gives is not known, and nothing is put in its place.
//! - **Pure functions.** Nothing here does I/O, but for reading a catalogue file that is named.
//! - **Every cell is reproduced.** Tests walk all tables of the page of 2019 and compare them with
//!   what the model gives; where the page contradicts itself, its inconsistencies are carried
//!   along and reported with the results that they touch.
//!
//! Begin with [`catalogue`]; then [`input`], what is asked, and [`prediction`], what is answered;
//! [`judge`] compares what was measured.

pub mod caps;
pub mod catalogue;
pub mod cheapest;
pub mod compare;
pub mod curve;
mod describe;
pub mod input;
pub mod judge;
pub mod limits;
pub mod mix;
mod predict;
pub mod prediction;
mod price;
mod provenance;
mod provision;
mod remedy;
pub mod site;
pub mod table;

pub use catalogue::{Catalogue, CatalogueError, Confidence, LimitKind};
pub use input::{Access, Configuration, Machine, PlanError, Workload};
pub use judge::{Judgement, Measured};
pub use mix::Mix;
pub use predict::binding_order;
pub use prediction::{Ceilings, Limit, Prediction, Rates, Remedy};
pub use price::NoPrice;
pub use provision::Purchase;
pub use remedy::{block_text, grouped};
pub use site::{Demand, Site};

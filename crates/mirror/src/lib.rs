//! Replicas of a volume, and the log that says where they may differ.
//!
//! Read in this order: [`shape`] and [`format`](mod@format) (what lies where on disk), [`generation`] and [`decide`]
//! (whose data is kept), then the store: [`bitmap`], `hot` and `pages` (what is marked, in memory),
//! `area` (the log's place), `log` (its writer), `recover`, and [`replica`], which holds all of it.

mod area;
pub mod bitmap;
pub mod decide;
pub mod format;
pub mod generation;
mod hot;
pub mod id;
pub mod limits;
mod log;
mod pages;
mod part;
mod recover;
pub mod replica;
pub mod shape;
mod turn;

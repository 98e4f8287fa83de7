//! Provisioned performance: the rate limit layer and the disk model layer.
//!
//! Modules, in reading order:
//!
//! - [`rates`]: a [`Limit`] as numbers: I/Os and bytes per second of reads, writes or both
//!   together, with bursts, and how many I/Os a large I/O counts as.
//! - `meter`: one rate, as the time at which it is next free (GCRA), without ticks or counters to
//!   reset.
//! - `schedule`: several meters, and the order of commands when they are free. Pure: time is an
//!   argument.
//! - [`limiter`]: a schedule that cores share, and the single timer that serves waiting commands.
//! - [`rate_limit`]: the layer, [`RateLimitLayer`].
//! - [`disk_model`]: [`DiskModelLayer`], which adds the service latency of a disk type.
//!
//! `docs/limit.md` describes the accounting for users.

#![allow(missing_docs, reason = "the names of most members say it")]

pub mod disk_model;
mod flows;
pub mod limiter;
pub mod limits;
mod lognormal;
mod meter;
pub mod rate_limit;
pub mod rates;
mod schedule;
mod waiting;

pub use disk_model::{DiskModelConfig, DiskModelLayer, ServiceTime};
pub use limiter::{Limiter, LimiterStatus};
pub use rate_limit::RateLimitLayer;
pub use rates::{Budget, Burst, IoSize, IoStep, Limit, LimitError, Mix, Rate};

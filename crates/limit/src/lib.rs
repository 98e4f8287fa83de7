//! A volume with provisioned performance, and one that is as slow as a disk of some type.
//!
//! What is here, in reading order:
//!
//! - [`rates`]: a [`Limit`] in numbers: I/Os and bytes a second, of reads, writes or both together,
//!   with bursts, and what a large I/O counts as.
//! - `meter`: one rate, as the time at which it is next free (GCRA): no ticks, no counters to reset.
//! - `schedule`: several meters, and who goes next when they are free. Pure: time is an argument.
//! - [`limiter`]: a schedule that cores share, and the one timer that serves those who wait.
//! - [`device`]: the layer, [`Limited`].
//! - [`emulate`]: the other layer, [`Emulated`], which adds the service latency of a disk type.
//!
//! `docs/limit.md` says how it counts, for users.

pub mod device;
pub mod emulate;
mod flows;
pub mod limiter;
pub mod limits;
mod lognormal;
mod meter;
pub mod rates;
mod schedule;
mod waiting;

pub use device::Limited;
pub use emulate::{Emulated, EmulationConfig, ServiceTime};
pub use limiter::{Limiter, Status};
pub use rates::{Budget, Burst, ConfigError, IoSize, IoStep, Limit, Mix, Rate};

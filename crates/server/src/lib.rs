//! Serving daemon: opens the volumes of a configuration, exports them, and serves the HTTP API.
//!
//! - [`serve`]: startup, serving and shutdown; [`service_manager`]: messages to systemd.
//! - `stack`: the device stack of a volume; `mirrors`: mirrored volumes; `pending`: volumes whose
//!   devices are unreachable.
//! - `pools`: pools and the volumes in them, which are made at run time.
//! - [`api`]: the documents, actions and metrics; [`http`]: the server and client they travel over.

mod announce;
pub mod api;
mod arbiter;
mod connections;
mod hardware_watchdog;
pub mod http;
mod insecure;
pub mod limits;
mod mirrors;
mod pending;
mod pools;
mod reload;
mod reservations;
pub mod serve;
pub mod service_manager;
mod signals;
mod stack;
mod subsystems;
mod volume;
mod wake;

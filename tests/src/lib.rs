//! End-to-end tests: the real `flagstone` program driven by programs that we did not write.
//!
//! - [`server`] runs `flagstone serve` on free ports, kills and restarts it.
//! - [`http`] asks its API, without any client of ours.
//! - [`load`] runs `flagstone load`, whose verified loads are the judge of what was promised.
//! - [`mirror`] runs two servers that mirror a volume, [`mirror_events`] lets things happen to them;
//!   [`network`] lets the link between them be cut.
//! - [`place`] runs programs with networks and mounts of their own.
//! - [`process`] reads what `/proc` tells of a process; [`rng`] makes random choices repeatable.
//! - [`guest`] boots a Linux kernel under QEMU, whose NVMe/TCP host then uses the server;
//!   [`by_hand`] judges what that is answered by a mirror's replica.
//! - [`tools`] runs other programs, and skips a test, visibly, where one is missing.
//! - [`wire`] makes the first bytes of a connection by hand.
//! - [`scratch`] gives each test a directory of its own.
//!
//! Every wait ends with an event (a line, an exit, an end of file). The limits on waits are
//! safety nets, generous by an order of magnitude; no test passes or fails by how long it took.
#![allow(
    clippy::disallowed_methods,
    reason = "real processes, threads and clocks are what an end-to-end test is made of"
)]

pub mod by_hand;
pub mod guest;
pub mod http;
pub mod load;
pub mod mirror;
pub mod mirror_events;
pub mod network;
pub mod place;
pub mod process;
pub mod rng;
pub mod scratch;
pub mod server;
pub mod tools;
pub mod wire;

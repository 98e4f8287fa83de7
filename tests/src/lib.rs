//! End-to-end tests: the real `flagstone` program, driven by independent programs.
//!
//! - [`server`] runs `flagstone serve` on free ports, kills and restarts it.
//! - [`service`] starts it as its systemd unit does, and reads its notifications.
//! - [`http`] talks to its API without Flagstone's own client.
//! - [`load`] runs `flagstone load`, whose verified loads check the durability guarantees.
//! - [`mirror`] runs two servers that mirror a volume, [`mirror_events`] injects events, and
//!   [`network`] cuts the link between them, [`volatile_disk`] loses unflushed writes and hangs,
//!   and [`point_in_time`] checks that an asynchronous target shows one moment of the past.
//! - [`pool_pair`] runs two servers that mirror a volume over their pools.
//! - [`freezer`] has a disk whose writes hang.
//! - [`place`] runs programs in their own network and mount namespaces.
//! - [`process`] reads the state of a process from `/proc`; [`rng`] makes random choices
//!   repeatable.
//! - [`guest`] boots a Linux kernel under QEMU, whose NVMe/TCP host uses the server;
//!   [`vendor_commands`] checks the answers of a mirror's replica.
//! - [`tools`] runs other programs, and visibly skips a test when one is missing.
//! - [`wire`] builds the first bytes of a connection by hand.
//! - [`scratch`] gives each test a directory of its own.
//!
//! Every wait ends with an event (a line, an exit, an end of file). The time limits are generous
//! safety nets; no test depends on the duration of an operation.
#![allow(
    clippy::disallowed_methods,
    reason = "end-to-end tests use real processes, threads and clocks"
)]

pub mod authority;
pub mod bucket;
pub mod environment;
pub mod etcd;
pub mod failover;
pub mod freezer;
pub mod guest;
pub mod http;
pub mod load;
pub mod mirror;
pub mod mirror_events;
pub mod network;
pub mod point_in_time;
pub mod pool_pair;
pub mod pools;
pub mod process;
pub mod rng;
pub mod scratch;
pub mod server;
pub mod service;
pub mod tools;
pub mod vendor_commands;
pub mod volatile_disk;
pub mod wire;

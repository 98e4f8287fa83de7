//! What each fuzz target does with its input: one module a target.
//!
//! Each has one function, `run`, that takes any bytes. It must return: a panic, an overflow, a
//! failed assertion, unbounded memory or an endless loop is a bug. Beside that each asserts what
//! the code promises, such as that what was accepted can be written again and reads the same.
//!
//! Inputs begin with a byte or two that choose the parameters, so that one corpus covers all of
//! them; the seeds that show how are made by the package `seeds`.

#![forbid(unsafe_code)]

pub mod bench_diskspd;
pub mod bench_fio;
pub mod catalogue;
pub mod config;
mod conversation;
pub mod fio;
pub mod http_request;
pub mod mirror_codec;
pub mod mirror_replica;
pub mod nbd_client;
pub mod nbd_handshake;
pub mod nbd_request;
pub mod nbd_server;
pub mod nvme_command;
pub mod nvme_host;
pub mod nvme_pdu;
pub mod nvme_reply;
pub mod nvme_target;
mod remote;
pub mod spec;
mod tamper;

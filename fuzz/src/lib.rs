//! Fuzz targets: one module each.
//!
//! Each module has one function, `run`, that takes any bytes and must return. A panic, an overflow,
//! a failed assertion, unbounded memory or an endless loop is a bug. Each target also asserts
//! guarantees of the code, such as that an accepted message can be encoded again and decodes to the
//! same value.
//!
//! Inputs begin with a byte or two that select the parameters, so a single corpus covers all of
//! them. The package `seeds` makes example inputs.

#![forbid(unsafe_code)]

pub mod bench_diskspd;
pub mod bench_fio;
pub mod catalog;
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
pub mod nvme_authentication;
pub mod nvme_command;
pub mod nvme_host;
pub mod nvme_keys;
pub mod nvme_pdu;
pub mod nvme_reply;
pub mod nvme_target;
pub mod pool_format;
pub mod pool_stream;
mod remote;
pub mod spec;
mod tamper;

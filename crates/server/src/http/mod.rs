//! HTTP/1.1 for the control API: a server and a client over axum, hyper and tokio, the table of
//! routes, problem documents, the OpenAPI document and the text format of metrics.
//!
//! Threads: the server runs on one thread of its own, `flagstone-api`. State of the daemon lives on
//! core 0, so a handler runs there: the thread sends each request to core 0 over a channel and
//! awaits the answer. No tokio type appears below this crate.
//!
//! Invariants:
//! - heads, bodies, connections and waits are bounded by [`limits`];
//! - an error is a problem document of RFC 9457 ([`Problem`]), except where hyper answers a head
//!   that it cannot parse: 400 or 431 without a body;
//! - nothing here runs in the path of a read or write.
//!
//! Read in this order: [`router`] (routes, on core 0), [`service`] (the same routes for axum),
//! [`access`] (who calls), [`admission`] (checks of a request), [`audit`] (the log of orders),
//! [`connection`] (time limits), [`server`] (thread and
//! sockets); then [`client`], [`openapi`] and [`metrics`].
//!
//! Specifications: RFC 9110 (HTTP semantics), RFC 9112 (HTTP/1.1), RFC 9457 (problem details),
//! OpenAPI 3.1.

pub mod access;
mod admission;
mod audit;
pub mod client;
mod connection;
#[cfg(any(test, feature = "fuzz"))]
pub mod duplex;
pub mod limits;
pub mod metrics;
pub mod openapi;
pub mod problem;
pub mod response;
pub mod router;
pub mod server;
mod service;
pub mod tls;

pub use access::{Caller, ListenerAccess};
pub use axum::http::Method;
pub use client::{Client, ClientError, RemoteServer, Reply, encode};
pub use metrics::Exposition;
pub use problem::Problem;
pub use response::Response;
pub use router::{Call, HandlerAnswer, RouteInfo, Router};
pub use server::{HttpOptions, HttpServer, Site};

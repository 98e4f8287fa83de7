//! HTTP/1.1 as far as a local API needs it, on the runtime: a server with a router, a client, and
//! the text format of metrics. It knows nothing of volumes.
//!
//! Promises:
//! - whatever bytes come, a request is understood or refused with a status and a reason: heads,
//!   bodies, connections and the patience with a peer are bounded by [`limits`];
//! - what goes wrong is told as RFC 9457 says ([`Problem`]): what happened, and what is accepted;
//! - nothing here runs on the way of a read or write, and no lock is held while a peer is awaited.
//!
//! Read in this order: [`head`] (bytes to a request, pure), [`request`] and [`response`],
//! [`problem`], [`router`], [`server`]; then [`client`] and [`metrics`].
//!
//! Specifications: RFC 9110 (HTTP semantics), RFC 9112 (HTTP/1.1), RFC 9457 (problem details);
//! section numbers are of RFC 9112 where nothing else is said.

pub mod client;
pub mod head;
pub mod limits;
pub mod metrics;
pub mod problem;
pub mod request;
pub mod response;
pub mod router;
pub mod server;
mod wire;

pub use client::{Client, ClientError, Reply};
pub use metrics::{Exposition, Kind};
pub use problem::Problem;
pub use request::{Method, Request};
pub use response::Response;
pub use router::{Call, RouteInfo, Router};
pub use server::{ServerOptions, serve};

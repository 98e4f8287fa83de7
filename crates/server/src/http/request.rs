//! Request: what a handler sees of an admitted HTTP request.

use axum::http::Method;
use flagstone_runtime::net::PeerUser;

/// A request whose body has arrived in full, and who sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Method; `HEAD` is handled as `GET`.
    pub method: Method,
    /// Parameters of the query, decoded, in their order.
    pub query: Vec<(String, String)>,
    /// Value of `Content-Type`, if given.
    pub content_type: Option<String>,
    /// The body; empty when there is none.
    pub body: Vec<u8>,
    /// The user at the other end of a Unix socket.
    pub user: Option<PeerUser>,
}

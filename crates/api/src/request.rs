//! A request that has arrived whole.

use flagstone_runtime::net::PeerUser;

/// What a request asks to do (RFC 9110, section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// Tell.
    Get,
    /// Tell, without the body.
    Head,
    /// Do.
    Post,
    /// Replace.
    Put,
    /// Take away.
    Delete,
    /// Say what is accepted.
    Options,
    /// Anything else.
    Other,
}

impl Method {
    /// The method of this name.
    pub fn from_name(name: &str) -> Method {
        match name {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "POST" => Method::Post,
            "PUT" => Method::Put,
            "DELETE" => Method::Delete,
            "OPTIONS" => Method::Options,
            _ => Method::Other,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
            Method::Options => "OPTIONS",
            Method::Other => "an unknown method",
        }
    }
}

/// A request, and who made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub method: Method,
    /// The path's parts, decoded.
    pub segments: Vec<String>,
    /// The query's parameters, decoded, in their order.
    pub query: Vec<(String, String)>,
    /// The body's type, if it was told.
    pub content_type: Option<String>,
    /// The body; empty when there is none.
    pub body: Vec<u8>,
    /// Who connected, on a Unix socket.
    pub user: Option<PeerUser>,
}

impl Request {
    /// A request without a query or a body, of nobody. For tests and for calls from within.
    pub fn new(method: Method, path: &str) -> Request {
        let segments = path.split('/').filter(|part| !part.is_empty()).map(str::to_owned);
        Request {
            method,
            segments: segments.collect(),
            query: Vec::new(),
            content_type: None,
            body: Vec::new(),
            user: None,
        }
    }
}

//! axum service: the routes of a [`Router`](super::Router) on the API's thread.
//!
//! Each axum handler sends its call to core 0, where the route's own handler runs, and awaits the
//! response. Paths without a route get 404, methods without a route 405, `OPTIONS` is answered from
//! the table.

use std::convert::Infallible;

use axum::body::to_bytes;
use axum::extract::{RawPathParams, Request as AxumRequest};
use axum::http::{Method, Uri, header};
use axum::response::IntoResponse;
use axum::routing::{MethodFilter, MethodRouter};
use flagstone_runtime::net::PeerUser;
use tokio::sync::{mpsc, oneshot};

use crate::http::admission::Query;
use crate::http::limits::MAX_BODY_BYTES;
use crate::http::problem::Problem;
use crate::http::request::Request;
use crate::http::response::Response;
use crate::http::router::{Call, RouteInfo};

/// What a connection knows of a request beyond its head and body: an extension of the request.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) user: Option<PeerUser>,
    pub(crate) query: Query,
}

/// A call on its way to core 0.
pub(crate) struct RoutedCall {
    /// Index of the route in its table.
    pub(crate) route: usize,
    pub(crate) call: Call,
    pub(crate) response: oneshot::Sender<Response>,
}

/// Where calls go.
pub(crate) type Calls = mpsc::Sender<RoutedCall>;

/// Builds the service of a table of routes.
pub(crate) fn service(routes: &[RouteInfo], calls: &Calls) -> axum::Router {
    let mut patterns: Vec<&'static str> = Vec::new();
    for route in routes {
        if !patterns.contains(&route.pattern) {
            patterns.push(route.pattern);
        }
    }
    let mut service = axum::Router::new();
    for pattern in &patterns {
        let here = routes.iter().enumerate().filter(|(_, route)| route.pattern == *pattern);
        let methods = methods(here, calls);
        service = service.route(pattern, methods.clone());
        // With or without a slash at the end is the same.
        let other = match pattern.strip_suffix('/') {
            Some("") => continue,
            Some(without) => without.to_owned(),
            None => format!("{pattern}/"),
        };
        service = service.route(&other, methods);
    }
    service.fallback(move |uri: Uri| async move {
        let problem = Problem::not_found(format!("there is no {}", uri.path()));
        problem.accepting(patterns).response()
    })
}

fn methods<'a>(
    routes: impl Iterator<Item = (usize, &'a RouteInfo)> + Clone,
    calls: &Calls,
) -> MethodRouter<(), Infallible> {
    let allowed = allowed(routes.clone().map(|(_, route)| &route.method));
    let allow = allowed.join(", ");
    let mut methods = MethodRouter::new();
    for (index, route) in routes {
        let filter = MethodFilter::try_from(route.method.clone());
        let filter = filter.expect("axum knows every method of the table");
        let calls = calls.clone();
        methods = methods.on(filter, move |names: RawPathParams, request: AxumRequest| {
            let calls = calls.clone();
            async move { send(index, names, request, calls).await }
        });
    }
    let options = Response { status: 204, allow: Some(allow.clone()), ..Response::ok(&()) };
    let options = Response { body: Vec::new(), ..options };
    methods.options(|| async move { options }).fallback(|method: Method| async move {
        let detail = format!("{method} is not supported here");
        let title = "The method is not supported here";
        let problem = Problem::new(405, "method", title, detail).accepting(allowed);
        Response { allow: Some(allow), ..problem.response() }
    })
}

/// The methods that `Allow` lists.
fn allowed<'a>(methods: impl Iterator<Item = &'a Method> + Clone) -> Vec<String> {
    let head = methods.clone().any(|method| *method == Method::GET).then_some(&Method::HEAD);
    let all = methods.chain(head).chain([&Method::OPTIONS]);
    all.map(ToString::to_string).collect()
}

/// Has core 0 handle a call.
async fn send(
    route: usize,
    names: RawPathParams,
    request: AxumRequest,
    calls: Calls,
) -> axum::response::Response {
    let names = names.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let (mut parts, body) = request.into_parts();
    let peer = parts.extensions.remove::<Peer>();
    let (user, query) = peer.map_or_else(Default::default, |peer| (peer.user, peer.query));
    let content_type = parts.headers.get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok()).map(str::to_owned);
    // Admission has received and bounded it.
    let Ok(body) = to_bytes(body, MAX_BODY_BYTES).await else { return ending() };
    let request = Request { method: parts.method, query, content_type, body: body.into(), user };
    let (response, answered) = oneshot::channel();
    let call = Call::new(request, names);
    if calls.send(RoutedCall { route, call, response }).await.is_err() {
        return ending();
    }
    answered.await.map_or_else(|_| ending(), IntoResponse::into_response)
}

fn ending() -> axum::response::Response {
    let title = "The server is stopping";
    let problem = Problem::new(503, "busy", title, "the server is about to stop");
    problem.response().into_response()
}

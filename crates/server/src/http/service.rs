//! axum service: the routes of a [`Router`](super::Router) on the API's thread.
//!
//! Each axum handler sends its call to core 0, where the route's own handler runs, and awaits the
//! response. Paths without a route get 404, methods without a route 405, `OPTIONS` is answered from
//! the table.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::{RawPathParams, Request as AxumRequest};
use axum::http::{Method, Uri, header};
use axum::routing::{MethodFilter, MethodRouter};
use tokio::sync::{mpsc, oneshot};

use crate::http::admission::RequestContext;
use crate::http::problem::Problem;
use crate::http::response::{Response, complete, with};
use crate::http::router::{Call, RouteInfo};

pub(crate) struct RoutedCall {
    pub(crate) route: usize,
    pub(crate) call: Call,
    pub(crate) response: oneshot::Sender<Response>,
}

pub(crate) type Calls = mpsc::Sender<RoutedCall>;

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
        problem.accepting(patterns).response().map(Body::from)
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
    let options = with(complete(204, "", Vec::new()), header::ALLOW, &allow);
    let options = || async move { options.map(Body::from) };
    methods.options(options).fallback(|method: Method| async move {
        let detail = format!("{method} is not supported here");
        let title = "The method is not supported here";
        let problem = Problem::new(405, "method", title, detail).accepting(allowed);
        with(problem.response(), header::ALLOW, &allow).map(Body::from)
    })
}

/// Path and query of a request, as received.
pub(crate) fn target(uri: &Uri) -> String {
    uri.path_and_query().map_or_else(String::new, ToString::to_string)
}

fn allowed<'a>(methods: impl Iterator<Item = &'a Method> + Clone) -> Vec<String> {
    let head = methods.clone().any(|method| *method == Method::GET).then_some(&Method::HEAD);
    let all = methods.chain(head).chain([&Method::OPTIONS]);
    all.map(ToString::to_string).collect()
}

/// Has core 0 handle a call.
async fn send(
    route: usize,
    names: RawPathParams,
    mut request: AxumRequest,
    calls: Calls,
) -> axum::response::Response {
    let names = names.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let content_type = request.headers().get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok()).map(str::to_owned);
    let admitted = request.extensions_mut().remove::<RequestContext>();
    let RequestContext { caller, peer, query, body } =
        admitted.expect("admission precedes routing");
    let (response, answered) = oneshot::channel();
    let (method, target) = (request.method().clone(), target(request.uri()));
    let call = Call { caller, peer, method, target, query, content_type, body, names };
    // Both channels end with core 0.
    let _ = calls.send(RoutedCall { route, call, response }).await;
    let stopping = |_| Problem::stopping("the server is about to stop").response();
    answered.await.unwrap_or_else(stopping).map(Body::from)
}

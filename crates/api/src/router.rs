//! Which function answers what.
//!
//! A route is a method, a pattern and an `async` function. Patterns are paths whose parts are words
//! or `{names}`; a word is preferred to a name. HEAD is answered as GET without its body, OPTIONS by
//! what there is. Whoever adds a resource adds its routes:
//!
//! ```
//! use flagstone_api::{Problem, Response, Router};
//!
//! let mut router = Router::new();
//! router.post("/v1/volumes/{volume}/mirror/{action}", "Does it.", |call| async move {
//!     let (volume, action) = (call.text("volume"), call.text("action"));
//!     if action != "pause" {
//!         return Err(Problem::not_found("no such action").accepting(["pause"]));
//!     }
//!     let dry_run = call.flag("dry_run")?;
//!     Ok(Response::ok(&serde_json::json!({ "volume": volume, "dry_run": dry_run })))
//! });
//! ```

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::str::FromStr;

use serde::de::DeserializeOwned;

use crate::problem::Problem;
use crate::request::{Method, Request};
use crate::response::Response;

type Answer = Pin<Box<dyn Future<Output = Result<Response, Problem>>>>;

struct Route {
    method: Method,
    pattern: &'static str,
    about: &'static str,
    handler: Rc<dyn Fn(Call) -> Answer>,
}

/// A route, for documents that list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteInfo {
    /// What it answers to.
    pub method: Method,
    /// Its path, `{names}` standing for any word.
    pub pattern: &'static str,
    /// What it does, in a sentence.
    pub about: &'static str,
}

/// The routes of a server. Lives on one core.
#[derive(Default)]
pub struct Router {
    routes: Vec<Route>,
}

/// A request with what its path's names stand for.
#[derive(Clone, Debug)]
pub struct Call {
    /// The request.
    pub request: Request,
    names: Vec<(&'static str, String)>,
}

impl Call {
    /// The part of the path that the pattern names so.
    ///
    /// # Panics
    /// When the route's pattern has no such name.
    pub fn text(&self, name: &str) -> &str {
        let found = self.names.iter().find(|(other, _)| *other == name);
        &found.unwrap_or_else(|| panic!("the pattern has no {{{name}}}")).1
    }

    /// The same as a value of its own kind.
    ///
    /// # Errors
    /// 404, with the reason: nothing is called so.
    pub fn name<T: FromStr<Err: std::fmt::Display>>(&self, name: &str) -> Result<T, Problem> {
        let text = self.text(name);
        text.parse().map_err(|error| Problem::not_found(format!("`{text}`: {error}")))
    }

    /// A parameter of the query, if it is given once.
    ///
    /// # Errors
    /// 422 when it is given twice, or is no such value.
    pub fn query<T: FromStr<Err: std::fmt::Display>>(
        &self,
        name: &str,
    ) -> Result<Option<T>, Problem> {
        let mut given = self.request.query.iter().filter(|(other, _)| other == name);
        let Some((_, text)) = given.next() else { return Ok(None) };
        if given.next().is_some() {
            return Err(Problem::invalid(format!("`{name}` is given twice")));
        }
        let value = text.parse();
        value
            .map(Some)
            .map_err(|error| Problem::invalid(format!("`{name}` cannot be `{text}`: {error}")))
    }

    /// A flag of the query: `?name` or `?name=true`; false when absent.
    ///
    /// # Errors
    /// 422 when it is anything else.
    pub fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.query::<String>(name)?.as_deref() {
            None | Some("false") => Ok(false),
            Some("" | "true") => Ok(true),
            Some(other) => Err(Problem::invalid(format!("`{name}` cannot be `{other}`"))
                .accepting([format!("{name}=true"), format!("{name}=false")])),
        }
    }

    /// That there is no query: what is written there to one that takes all in its body, such as that
    /// nothing be done, would go unheard.
    ///
    /// # Errors
    /// 422 when there is one.
    pub fn without_query(&self) -> Result<(), Problem> {
        match self.request.query.first() {
            None => Ok(()),
            Some((name, _)) => Err(Problem::invalid(format!(
                "`{name}` is in the query, where nothing is taken: what is asked for is in the body"
            ))),
        }
    }

    /// The body as a document. No body is `{}`.
    ///
    /// # Errors
    /// 415 when its type is told and is not JSON, 422 when it is not the document.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        let told = self.request.content_type.as_deref();
        let essence = told.and_then(|told| told.split(';').next()).map(str::trim);
        // curl's default for --data, which says nothing.
        let default = "application/x-www-form-urlencoded";
        if let Some(essence) = essence.filter(|essence| *essence != default)
            && !essence.eq_ignore_ascii_case("application/json")
        {
            let detail = format!("the body is `{essence}`");
            let title = "The body is of no type that is read here";
            return Err(
                Problem::new(415, "media-type", title, detail).accepting(["application/json"])
            );
        }
        let body = if self.request.body.is_empty() { b"{}" } else { &self.request.body[..] };
        serde_json::from_slice(body).map_err(|error| {
            Problem::invalid(format!("the body is not what is asked for: {error}"))
        })
    }
}

impl Router {
    /// No routes.
    pub fn new() -> Router {
        Router::default()
    }

    /// Answers GET, and HEAD.
    ///
    /// # Panics
    /// As [`Router::add`].
    pub fn get<F, Fut>(&mut self, pattern: &'static str, about: &'static str, handler: F)
    where
        F: Fn(Call) -> Fut + 'static,
        Fut: Future<Output = Result<Response, Problem>> + 'static,
    {
        self.add(Method::Get, pattern, about, handler);
    }

    /// Answers POST: an action, safe to repeat.
    ///
    /// # Panics
    /// As [`Router::add`].
    pub fn post<F, Fut>(&mut self, pattern: &'static str, about: &'static str, handler: F)
    where
        F: Fn(Call) -> Fut + 'static,
        Fut: Future<Output = Result<Response, Problem>> + 'static,
    {
        self.add(Method::Post, pattern, about, handler);
    }

    /// Adds a route.
    ///
    /// # Panics
    /// When there is one of this method and pattern, or the pattern does not begin with `/`: both
    /// are mistakes of the program.
    pub fn add<F, Fut>(
        &mut self,
        method: Method,
        pattern: &'static str,
        about: &'static str,
        handler: F,
    ) where
        F: Fn(Call) -> Fut + 'static,
        Fut: Future<Output = Result<Response, Problem>> + 'static,
    {
        assert!(pattern.starts_with('/'), "{pattern} is no path");
        let taken = |route: &Route| route.method == method && route.pattern == pattern;
        assert!(!self.routes.iter().any(taken), "{} {pattern} is there already", method.name());
        let handler: Rc<dyn Fn(Call) -> Answer> = Rc::new(move |call| Box::pin(handler(call)));
        self.routes.push(Route { method, pattern, about, handler });
    }

    /// What there is, in the order in which it was added.
    pub fn routes(&self) -> Vec<RouteInfo> {
        let info = |route: &Route| RouteInfo {
            method: route.method,
            pattern: route.pattern,
            about: route.about,
        };
        self.routes.iter().map(info).collect()
    }

    /// Answers a request, whatever it is.
    pub async fn answer(&self, request: Request) -> Response {
        match self.dispatch(request).await {
            Ok(response) => response,
            Err(problem) => problem.response(),
        }
    }

    async fn dispatch(&self, request: Request) -> Result<Response, Problem> {
        let here = self.matching(&request.segments);
        if here.is_empty() {
            let path = request.segments.join("/");
            let mut paths: Vec<_> = self.routes.iter().map(|route| route.pattern).collect();
            paths.dedup();
            return Err(Problem::not_found(format!("there is no /{path}")).accepting(paths));
        }
        let methods = allowed(&here);
        let wanted = match request.method {
            Method::Head => Method::Get,
            Method::Options => {
                let allow = Some(methods.join(", "));
                return Ok(Response { allow, ..empty() });
            }
            method => method,
        };
        let Some(route) = here.iter().find(|route| route.method == wanted) else {
            let detail = format!("{} is not done here", request.method.name());
            let title = "The method is not known here";
            let problem = Problem::new(405, "method", title, detail).accepting(methods.clone());
            return Ok(Response { allow: Some(methods.join(", ")), ..problem.response() });
        };
        let names = names(route.pattern, &request.segments);
        (route.handler)(Call { request, names }).await
    }

    /// The routes of the best pattern that matches.
    fn matching(&self, segments: &[String]) -> Vec<&Route> {
        let fits = self.routes.iter().filter(|route| matches(route.pattern, segments));
        let words = |route: &&Route| parts(route.pattern).filter(|part| !is_name(part)).count();
        let Some(best) = fits.clone().max_by_key(words) else { return Vec::new() };
        let same = |route: &&Route| shape(route.pattern).eq(shape(best.pattern));
        fits.filter(same).collect()
    }
}

fn empty() -> Response {
    Response { status: 204, content_type: "", body: Vec::new(), allow: None }
}

fn allowed(routes: &[&Route]) -> Vec<&'static str> {
    let mut methods: Vec<_> = routes.iter().map(|route| route.method.name()).collect();
    if routes.iter().any(|route| route.method == Method::Get) {
        methods.push("HEAD");
    }
    methods.push("OPTIONS");
    methods
}

/// The parts of a pattern. As in requests, a slash at the end is an empty one.
fn parts(pattern: &'static str) -> impl Iterator<Item = &'static str> + Clone {
    pattern[1..].split('/').filter(move |_| pattern.len() > 1)
}

/// A pattern without what its names are.
fn shape(pattern: &'static str) -> impl Iterator<Item = Option<&'static str>> {
    parts(pattern).map(|part| (!is_name(part)).then_some(part))
}

fn is_name(part: &str) -> bool {
    part.starts_with('{') && part.ends_with('}')
}

fn matches(pattern: &'static str, segments: &[String]) -> bool {
    // `/v1` is `/v1/` too.
    let whole = |segments: &[String]| {
        parts(pattern).count() == segments.len()
            && parts(pattern)
                .zip(segments)
                .all(|(part, segment)| part == segment || is_name(part) && !segment.is_empty())
    };
    match segments {
        [rest @ .., last] if last.is_empty() => whole(segments) || whole(rest),
        _ if pattern.ends_with('/') && pattern.len() > 1 => {
            let mut with = segments.to_vec();
            with.push(String::new());
            whole(&with)
        }
        _ => whole(segments),
    }
}

fn names(pattern: &'static str, segments: &[String]) -> Vec<(&'static str, String)> {
    let named = parts(pattern).zip(segments).filter(|(part, _)| is_name(part));
    named.map(|(part, segment)| (&part[1..part.len() - 1], segment.clone())).collect()
}

#[cfg(test)]
mod tests {
    use flagstone_runtime::block_on;
    use serde_json::{Value, json};

    use super::*;

    fn router() -> Router {
        let mut router = Router::new();
        let echo = |what: &'static str| {
            move |call: Call| async move {
                let names: Vec<_> = call.names.iter().map(|(_, value)| value.clone()).collect();
                Ok(Response::ok(&json!([what, names])))
            }
        };
        router.get("/v1/", "The root.", echo("root"));
        router.get("/v1/volumes", "All.", echo("all"));
        router.get("/v1/volumes/{name}", "One.", echo("one"));
        router.post("/v1/volumes/{name}", "Change.", echo("change"));
        router.get("/v1/volumes/special", "The special one.", echo("special"));
        router.post("/v1/volumes/{name}/mirror/{action}", "Act.", echo("act"));
        router.post("/v1/body", "Read.", |call: Call| async move {
            #[derive(serde::Deserialize)]
            struct Body {
                number: u8,
            }
            let (body, dry_run): (Body, _) = (call.json()?, call.flag("dry_run")?);
            Ok(Response::ok(&json!([body.number, dry_run, call.query::<u8>("n")?])))
        });
        router
    }

    fn ask(method: Method, path: &str, change: impl FnOnce(&mut Request)) -> Response {
        let mut request = Request::new(method, path);
        if path.ends_with('/') && path.len() > 1 {
            request.segments.push(String::new());
        }
        change(&mut request);
        block_on(async { router().answer(request).await }).unwrap()
    }

    fn body(response: &Response) -> Value {
        serde_json::from_slice(&response.body).unwrap()
    }

    #[test]
    fn words_are_preferred_to_names() {
        for (method, path, expected) in [
            (Method::Get, "/v1/", json!(["root", []])),
            (Method::Get, "/v1", json!(["root", []])),
            (Method::Get, "/v1/volumes/", json!(["all", []])),
            (Method::Get, "/v1/volumes/db", json!(["one", ["db"]])),
            (Method::Head, "/v1/volumes/db", json!(["one", ["db"]])),
            (Method::Post, "/v1/volumes/db", json!(["change", ["db"]])),
            (Method::Get, "/v1/volumes/special", json!(["special", []])),
            (Method::Post, "/v1/volumes/db/mirror/pause", json!(["act", ["db", "pause"]])),
        ] {
            let response = ask(method, path, |_| ());
            assert_eq!((response.status, body(&response)), (200, expected), "{path}");
        }
    }

    #[test]
    fn what_is_not_there_says_what_is() {
        for path in ["/", "/v2", "/v1/volumes/db/x", "/v1/volumes/db/mirror/"] {
            let response = ask(Method::Get, path, |_| ());
            assert_eq!(response.status, 404, "{path}");
            assert!(body(&response)["accepted"].as_array().unwrap().len() > 3);
        }
        // Empty parts are parts.
        let response = ask(Method::Get, "/v1", |request| {
            request.segments = ["v1", "", "volumes"].map(str::to_owned).to_vec();
        });
        assert_eq!(response.status, 404);
        let response = ask(Method::Delete, "/v1/volumes/db", |_| ());
        assert_eq!(response.status, 405);
        assert_eq!(response.allow.as_deref(), Some("GET, POST, HEAD, OPTIONS"));
        let response = ask(Method::Options, "/v1/volumes/db/mirror/x", |_| ());
        assert_eq!((response.status, response.allow.as_deref()), (204, Some("POST, OPTIONS")));
    }

    #[test]
    fn bodies_and_queries_are_read_by_their_types() {
        let post = |text: &str, kind: Option<&str>, query: &[(&str, &str)]| {
            ask(Method::Post, "/v1/body", |request| {
                request.body = text.as_bytes().to_vec();
                request.content_type = kind.map(str::to_owned);
                request.query =
                    query.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
            })
        };
        let json = "{\"number\": 7}";
        let good = post(json, Some("Application/JSON; charset=utf-8"), &[("dry_run", "")]);
        assert_eq!(body(&good), json!([7, true, null]));
        let good = post(json, None, &[("n", "3"), ("dry_run", "false")]);
        assert_eq!(body(&good), json!([7, false, 3]));
        for (text, kind, query, status) in [
            (json, Some("text/plain"), &[][..], 415),
            ("{\"number\": 700}", None, &[], 422),
            ("", None, &[], 422),
            ("\u{0}", None, &[], 422),
            (json, None, &[("dry_run", "perhaps")], 422),
            (json, None, &[("n", "1"), ("n", "1")], 422),
            (json, None, &[("n", "-1")], 422),
        ] {
            assert_eq!(post(text, kind, query).status, status, "{text} {query:?}");
        }
    }

    #[test]
    #[should_panic(expected = "is there already")]
    fn one_route_of_a_kind() {
        router().get("/v1/volumes", "Again.", |_| async { Ok(empty()) });
    }
}

//! Problem document (RFC 9457): an error for people, and for programs by its `type`.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::http::response::{self, Response};

/// Media type of a problem.
pub const CONTENT_TYPE: &str = "application/problem+json";

/// A problem document, RFC 9457. The title belongs to the kind, the detail to this occurrence.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Problem {
    /// The kind, on which programs may rely: `urn:flagstone:problem:` and a name.
    #[serde(rename = "type", serialize_with = "as_urn")]
    pub kind: &'static str,
    /// The kind in a few words.
    pub title: &'static str,
    /// HTTP status, 400 to 599.
    pub status: u16,
    /// What happened.
    pub detail: String,
    /// What would have been accepted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accepted: Vec<String>,
    /// Further members of some kinds.
    #[serde(flatten)]
    pub members: Map<String, Value>,
}

/// Title of the problem that a response has: an extension of the response, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefusalReason(pub(crate) &'static str);

fn as_urn<S: Serializer>(kind: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("urn:flagstone:problem:{kind}"))
}

impl Problem {
    /// A problem of a kind, with what happened.
    pub fn new(
        status: u16,
        kind: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Problem {
        let (accepted, members) = (Vec::new(), Map::new());
        Problem { status, kind, title, detail: detail.into(), accepted, members }
    }

    /// 404: no such path, volume, mirror, peer or action.
    pub fn not_found(detail: impl Into<String>) -> Problem {
        Problem::new(404, "not-found", "Not found", detail)
    }

    /// 422: an invalid parameter, query or body.
    pub fn invalid(detail: impl Into<String>) -> Problem {
        Problem::new(422, "invalid", "The request is not valid", detail)
    }

    /// 409: the present state does not allow it.
    pub fn conflict(detail: impl Into<String>) -> Problem {
        Problem::new(409, "conflict", "The present state does not allow it", detail)
    }

    /// 503: the server is about to stop.
    pub fn stopping(detail: impl Into<String>) -> Problem {
        Problem::new(503, "busy", "The server is stopping", detail)
    }

    /// Adds what would have been accepted.
    #[must_use]
    pub fn accepting<T: Into<String>>(mut self, accepted: impl IntoIterator<Item = T>) -> Problem {
        self.accepted.extend(accepted.into_iter().map(Into::into));
        self
    }

    /// Adds a member to the document.
    #[must_use]
    pub fn with(mut self, member: &str, value: impl Into<Value>) -> Problem {
        self.members.insert(member.to_owned(), value.into());
        self
    }

    /// The response with the document.
    pub fn response(&self) -> Response {
        let mut response = response::json(self.status, CONTENT_TYPE, self);
        response.extensions_mut().insert(RefusalReason(self.title));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn document_has_the_members_of_rfc_9457() {
        let problem = Problem::not_found("there is no volume `x`").accepting(["db", "log"]);
        let response = problem.with("extra", 7).response();
        assert_eq!(
            (response.status().as_u16(), &response.headers()["content-type"]),
            (404, &HeaderValue::from_static(CONTENT_TYPE))
        );
        let document: Value = serde_json::from_slice(response.body()).unwrap();
        let expected = serde_json::json!({
            "type": "urn:flagstone:problem:not-found",
            "title": "Not found",
            "status": 404,
            "detail": "there is no volume `x`",
            "accepted": ["db", "log"],
            "extra": 7,
        });
        assert_eq!(document, expected);
    }
}

//! Problem document (RFC 9457): an error for people, and for programs by its `type`.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::http::response::Response;

/// Media type of a problem.
pub const CONTENT_TYPE: &str = "application/problem+json";

/// Begins the `type` of every problem here.
const TYPE_PREFIX: &str = "urn:flagstone:problem:";

/// A problem. The title belongs to the kind, the detail to this occurrence.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// HTTP status, 400 to 599.
    pub status: u16,
    /// Kind, on which programs may rely: the end of its `type`.
    pub kind: &'static str,
    /// The kind in a few words.
    pub title: &'static str,
    /// What happened.
    pub detail: String,
    /// What would have been accepted; not in the document when empty.
    pub accepted: Vec<String>,
    /// Further members.
    pub members: Map<String, Value>,
}

/// A problem document, RFC 9457. Some kinds have further members.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub(crate) struct ProblemDocument<'a> {
    /// The kind: `urn:flagstone:problem:` and a name.
    r#type: String,
    /// The kind in a few words.
    title: &'a str,
    /// HTTP status.
    status: u16,
    /// What happened.
    detail: &'a str,
    /// What would have been accepted.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    accepted: &'a [String],
    #[serde(flatten)]
    members: &'a Map<String, Value>,
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
        let document = ProblemDocument {
            r#type: format!("{TYPE_PREFIX}{}", self.kind),
            title: self.title,
            status: self.status,
            detail: &self.detail,
            accepted: &self.accepted,
            members: &self.members,
        };
        Response { content_type: CONTENT_TYPE, ..Response::json(self.status, &document) }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.title, self.detail)
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_has_the_members_of_rfc_9457() {
        let problem = Problem::not_found("there is no volume `x`").accepting(["db", "log"]);
        let response = problem.with("extra", 7).response();
        assert_eq!((response.status, response.content_type), (404, CONTENT_TYPE));
        let document: Value = serde_json::from_slice(&response.body).unwrap();
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

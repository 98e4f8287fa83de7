//! Response: status, body and the few header fields that the API sets.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use serde::Serialize;

/// A response. hyper adds `Date`, `Content-Length` and `Connection`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// HTTP status, 200 to 599.
    pub status: u16,
    /// Value of `Content-Type`; not sent with an empty body.
    pub content_type: &'static str,
    /// The body.
    pub body: Vec<u8>,
    /// Value of `Allow`, if set.
    pub allow: Option<String>,
    /// The connection ends after this response.
    pub close: bool,
}

impl Response {
    /// A JSON document, indented and ended by a newline for people who read it in a terminal.
    ///
    /// # Panics
    /// If `document` has a map whose keys are not strings.
    pub fn json(status: u16, document: &impl Serialize) -> Response {
        let mut body = serde_json::to_vec_pretty(document).expect("documents have text keys");
        body.push(b'\n');
        Response { status, content_type: "application/json", body, allow: None, close: false }
    }

    /// A JSON document with status 200.
    pub fn ok(document: &impl Serialize) -> Response {
        Response::json(200, document)
    }

    /// A text with status 200.
    pub fn text(content_type: &'static str, text: String) -> Response {
        Response { status: 200, content_type, body: text.into_bytes(), allow: None, close: false }
    }

    /// Header fields except those that hyper adds.
    fn fields(&self) -> Vec<(HeaderName, HeaderValue)> {
        let mut fields = vec![(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))];
        if !self.body.is_empty() {
            fields.push((header::CONTENT_TYPE, HeaderValue::from_static(self.content_type)));
        }
        if let Some(allow) = &self.allow {
            let allow = HeaderValue::from_str(allow).expect("methods are plain ASCII");
            fields.push((header::ALLOW, allow));
        }
        if self.close {
            fields.push((header::CONNECTION, HeaderValue::from_static("close")));
        }
        fields
    }

    /// The bytes of a response that ends its connection, for answers that are sent without hyper.
    pub(crate) fn last_bytes(mut self) -> Vec<u8> {
        self.close = true;
        let status = StatusCode::from_u16(self.status).expect("statuses are 200 to 599");
        let mut bytes = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", self.body.len());
        for (name, value) in self.fields() {
            let value = value.to_str().expect("values are plain ASCII");
            bytes += &format!("{name}: {value}\r\n");
        }
        bytes += "\r\n";
        [bytes.into_bytes(), self.body].concat()
    }
}

impl IntoResponse for Response {
    fn into_response(self) -> axum::response::Response {
        let fields = self.fields();
        let mut response = axum::response::Response::new(Body::from(self.body));
        *response.status_mut() =
            StatusCode::from_u16(self.status).expect("statuses are 200 to 599");
        response.headers_mut().extend(fields);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_response_has_all_fields() {
        let response = Response { allow: Some("GET".into()), ..Response::json(405, &7) };
        assert_eq!(
            String::from_utf8(response.last_bytes()).unwrap(),
            "HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 2\r\ncache-control: no-store\r\n\
             content-type: application/json\r\nallow: GET\r\nconnection: close\r\n\r\n7\n"
        );
    }
}

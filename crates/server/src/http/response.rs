//! Response: a complete body, and the few header fields that the API sets.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use serde::Serialize;

/// A response. hyper adds `Date`, `Content-Length` and `Connection`.
pub type Response = axum::http::Response<Vec<u8>>;

/// A JSON document, indented for people in a terminal. The status is 200 to 599.
pub(crate) fn json(status: u16, media_type: &'static str, document: &impl Serialize) -> Response {
    let mut body = serde_json::to_vec_pretty(document).expect("documents have text keys");
    body.push(b'\n');
    complete(status, media_type, body)
}

/// Any body; the media type of an empty one is not sent.
pub(crate) fn complete(status: u16, media_type: &'static str, body: Vec<u8>) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).expect("statuses are 200 to 599");
    let response = with(response, header::CACHE_CONTROL, "no-store");
    match response.body().is_empty() {
        true => response,
        false => with(response, header::CONTENT_TYPE, media_type),
    }
}

/// Sets a header field to plain ASCII text.
pub(crate) fn with(mut response: Response, name: HeaderName, value: &str) -> Response {
    let value = HeaderValue::from_str(value).expect("values are plain ASCII");
    response.headers_mut().insert(name, value);
    response
}

/// The bytes of a response that ends its connection, for answers that are sent without hyper.
pub(crate) fn last_bytes(response: Response) -> Vec<u8> {
    let response = with(response, header::CONNECTION, "close");
    let (status, length) = (response.status(), response.body().len());
    let mut bytes = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n").into_bytes();
    for (name, value) in response.headers() {
        bytes.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    [&bytes[..], b"\r\n", response.body()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_response_has_all_fields() {
        let response = with(json(405, "application/json", &7), header::ALLOW, "GET");
        assert_eq!(
            String::from_utf8(last_bytes(response)).unwrap(),
            "HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 2\r\ncache-control: no-store\r\n\
             content-type: application/json\r\nallow: GET\r\nconnection: close\r\n\r\n7\n"
        );
    }
}

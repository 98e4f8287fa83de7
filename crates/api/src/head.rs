//! From bytes to a request. Pure: no I/O, and any bytes are either a head, the beginning of one, or
//! refused.

use std::fmt::Write as _;

use crate::limits::{MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_HEADERS, MAX_PARAMETERS, MAX_SEGMENTS};
use crate::problem::Problem;
use crate::request::Method;

/// The head of a request: everything before its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// What to do.
    pub method: Method,
    /// The path's parts, decoded; none of `/`. A slash at the end is one empty part.
    pub segments: Vec<String>,
    /// The query's parameters, decoded, in their order.
    pub query: Vec<(String, String)>,
    /// The body's type, if it is told.
    pub content_type: Option<String>,
    /// Whether the connection serves another request after this one.
    pub keep_alive: bool,
    /// Whether the client waits to be told to send the body (RFC 9110, section 10.1.1).
    pub expects_continue: bool,
    /// Bytes of the head.
    pub head_bytes: usize,
    /// Bytes of the body that follows: at most [`MAX_BODY_BYTES`].
    pub body_bytes: usize,
}

/// Reads the head that `bytes` begins with; `None` when more is needed to tell.
///
/// # Errors
/// What to answer before the connection is closed: after a request that was not understood nobody
/// knows where the next begins.
pub fn parse(bytes: &[u8]) -> Result<Option<Head>, Problem> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut fields);
    let window = &bytes[..bytes.len().min(MAX_HEAD_BYTES)];
    let head_bytes = match parsed.parse(window) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD_BYTES => return Ok(None),
        Ok(httparse::Status::Partial) => return Err(too_large()),
        Err(error) => return Err(refused(error)),
    };
    // What is complete has all three.
    let method = Method::from_name(parsed.method.unwrap_or_default());
    let is_newer = parsed.version == Some(1);
    let (segments, query) = target(parsed.path.unwrap_or_default())?;
    let fields = Fields::read(parsed.headers)?;
    if is_newer && fields.hosts != 1 {
        return Err(bad("HTTP/1.1 asks for one Host field").accepting(["Host: localhost"]));
    }
    Ok(Some(Head {
        method,
        segments,
        query,
        content_type: fields.content_type,
        keep_alive: if is_newer { !fields.closes } else { fields.keeps_alive && !fields.closes },
        expects_continue: is_newer && fields.expects_continue,
        head_bytes,
        body_bytes: fields.body_bytes.unwrap_or(0),
    }))
}

fn bad(detail: impl Into<String>) -> Problem {
    Problem::new(400, "bad-request", "This is no request that can be understood", detail)
}

fn too_large() -> Problem {
    let detail = format!(
        "the request line and the header fields are more than {MAX_HEAD_BYTES} bytes or \
         {MAX_HEADERS} fields"
    );
    Problem::new(431, "head-too-large", "The head of the request is too large", detail)
}

fn refused(error: httparse::Error) -> Problem {
    match error {
        httparse::Error::TooManyHeaders => too_large(),
        httparse::Error::Version => {
            let detail = "the request is of no version of HTTP that is spoken here";
            Problem::new(505, "http-version", "This version of HTTP is not spoken", detail)
                .accepting(["HTTP/1.1", "HTTP/1.0"])
        }
        error => bad(error.to_string()),
    }
}

/// What the fields of a request say that matters here.
#[derive(Default)]
struct Fields {
    hosts: usize,
    body_bytes: Option<usize>,
    content_type: Option<String>,
    closes: bool,
    keeps_alive: bool,
    expects_continue: bool,
}

impl Fields {
    fn read(headers: &[httparse::Header<'_>]) -> Result<Fields, Problem> {
        let mut fields = Fields::default();
        for header in headers {
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            if is("host") {
                fields.hosts += 1;
            } else if is("content-length") {
                fields.length(header.value)?;
            } else if is("transfer-encoding") {
                // Section 6.1: a coding that is not understood.
                let detail = "bodies in a transfer coding, such as chunked, are not taken";
                return Err(Problem::new(
                    501,
                    "transfer-coding",
                    "Unknown transfer coding",
                    detail,
                )
                .accepting(["Content-Length: BYTES"]));
            } else if is("content-type") {
                fields.content_type = std::str::from_utf8(header.value).ok().map(str::to_owned);
            } else if is("connection") {
                let words = header.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
                for word in words {
                    fields.closes |= word.eq_ignore_ascii_case(b"close");
                    fields.keeps_alive |= word.eq_ignore_ascii_case(b"keep-alive");
                }
            } else if is("expect") {
                if !header.value.eq_ignore_ascii_case(b"100-continue") {
                    let detail = "an expectation that is not known";
                    return Err(Problem::new(417, "expectation", "Unknown expectation", detail)
                        .accepting(["Expect: 100-continue"]));
                }
                fields.expects_continue = true;
            }
        }
        Ok(fields)
    }

    fn length(&mut self, value: &[u8]) -> Result<(), Problem> {
        let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        if !digits {
            return Err(bad("Content-Length is a number of bytes"));
        }
        let length = std::str::from_utf8(value).ok().and_then(|text| text.parse::<usize>().ok());
        match length.filter(|length| *length <= MAX_BODY_BYTES) {
            None => {
                let detail = format!("the body is more than {MAX_BODY_BYTES} bytes");
                Err(Problem::new(413, "body-too-large", "The body is too large", detail))
            }
            // Section 6.3: two lengths that differ are how requests are smuggled.
            Some(length) if self.body_bytes.is_some_and(|other| other != length) => {
                Err(bad("Content-Length is given twice and differs"))
            }
            length => {
                self.body_bytes = length;
                Ok(())
            }
        }
    }
}

type Target = (Vec<String>, Vec<(String, String)>);

/// Reads a request target in origin form, or in absolute form, whose authority says nothing here.
fn target(text: &str) -> Result<Target, Problem> {
    let text = match text.get(..7) {
        Some(scheme) if scheme.eq_ignore_ascii_case("http://") => {
            let rest = &text[7..];
            rest.find(['/', '?']).map_or("/", |at| &rest[at..])
        }
        _ => text,
    };
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    let path = match (path.strip_prefix('/'), path) {
        (Some(path), _) => path,
        (None, "") => "",
        _ => return Err(bad("the target is a path that begins with /").accepting(["/v1/"])),
    };
    let parts = path.split('/').filter(|_| !path.is_empty());
    if parts.clone().count() > MAX_SEGMENTS {
        return Err(bad(format!("the path has more than {MAX_SEGMENTS} parts")));
    }
    let segments = parts.map(|part| decoded(part, false)).collect::<Result<_, _>>()?;
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    if pairs.clone().count() > MAX_PARAMETERS {
        return Err(bad(format!("the query has more than {MAX_PARAMETERS} parameters")));
    }
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((decoded(name, true)?, decoded(value, true)?))
    };
    Ok((segments, pairs.map(pair).collect::<Result<_, Problem>>()?))
}

/// Undoes percent-encoding. What is no text, or has control characters in it, is refused: it could
/// not be shown to people as it is.
fn decoded(text: &str, is_query: bool) -> Result<String, Problem> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                let value = digit().and_then(|high| Some(high * 16 + digit()?));
                // Two hexadecimal digits are at most 255.
                value.ok_or_else(|| bad("% is followed by two hexadecimal digits"))? as u8
            }
            b'+' if is_query => b' ',
            byte => byte,
        });
    }
    let text = String::from_utf8(out).map_err(|_| bad("the target is not UTF-8"))?;
    if text.chars().any(char::is_control) {
        return Err(bad("the target has control characters in it"));
    }
    Ok(text)
}

/// Writes a path's part or a query's value so that it reads back the same.
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            byte => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(text: &str) -> Head {
        parse(text.as_bytes()).unwrap_or_else(|problem| panic!("{problem}")).expect("it is whole")
    }

    fn status(text: &str) -> u16 {
        parse(text.as_bytes()).expect_err(text).status
    }

    #[test]
    fn what_curl_sends() {
        let text = "GET /v1/volumes/a%20b?watch=1&x=a+b HTTP/1.1\r\nHost: localhost\r\n\
                    User-Agent: curl/8\r\nAccept: */*\r\n\r\nrest";
        let head = head(text);
        assert_eq!(head.method, Method::Get);
        assert_eq!(head.segments, ["v1", "volumes", "a b"]);
        let query = [("watch", "1"), ("x", "a b")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(head.query, query);
        assert!(head.keep_alive && !head.expects_continue);
        assert_eq!((head.head_bytes, head.body_bytes), (text.len() - 4, 0));
        for cut in 0..head.head_bytes {
            assert_eq!(parse(&text.as_bytes()[..cut]), Ok(None), "{cut}");
        }
    }

    #[test]
    fn connections_live_as_versions_and_fields_say() {
        for (text, keep_alive) in [
            ("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nHost: x\r\nConnection: x , Close\r\n\r\n", false),
            ("GET / HTTP/1.0\r\n\r\n", false),
            ("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", true),
            ("GET http://x:1/ HTTP/1.1\r\nHost: x\r\n\r\n", true),
        ] {
            assert_eq!(head(text).keep_alive, keep_alive, "{text}");
            assert!(head(text).segments.is_empty(), "{text}");
        }
    }

    #[test]
    fn bodies_have_one_length_within_the_bound() {
        let with = |fields: &str| format!("POST /a HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n");
        let good = head(&with("Content-Length: 12\r\nContent-Length: 12\r\nExpect: 100-Continue"));
        assert_eq!((good.body_bytes, good.expects_continue), (12, true));
        for (fields, expected) in [
            ("Content-Length: 12\r\nContent-Length: 13", 400),
            ("Content-Length: +1", 400),
            ("Content-Length: ", 400),
            ("Content-Length: 65537", 413),
            ("Content-Length: 99999999999999999999999", 413),
            ("Transfer-Encoding: chunked", 501),
            ("Expect: cake", 417),
            ("Host: y", 400),
            ("Bad Field: y", 400),
        ] {
            assert_eq!(status(&with(fields)), expected, "{fields}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused_at_once() {
        for (text, expected) in [
            ("GET / HTTP/2.0\r\n\r\n", 505),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
            ("\x16\x03\x01\x02", 400),
            ("GET v1 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("GET /%ff HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\n\r\n", 400),
        ] {
            assert_eq!(status(text), expected, "{text:?}");
        }
        let many = "a: b\r\n".repeat(MAX_HEADERS + 1);
        assert_eq!(status(&format!("GET / HTTP/1.1\r\n{many}\r\n")), 431);
        assert_eq!(status(&format!("GET /{} HTTP/1.1", "x".repeat(MAX_HEAD_BYTES))), 431);
        let deep = "/x".repeat(MAX_SEGMENTS + 1);
        assert_eq!(status(&format!("GET {deep} HTTP/1.1\r\nHost: x\r\n\r\n")), 400);
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(text in "\\PC{0,40}") {
            let request = format!("GET /{}?{} HTTP/1.1\r\nHost: x\r\n\r\n",
                encode(&text), encode(&text));
            let head = head(&request);
            let expected: &[String] = if text.is_empty() { &[] } else { std::slice::from_ref(&text) };
            prop_assert_eq!(&head.segments, expected);
            prop_assert_eq!(head.query.len(), expected.len());
        }

        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>, cut in 0..200_usize) {
            let _ = parse(&bytes);
            let mut almost = b"POST /v1/x?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n".to_vec();
            almost.truncate(cut.min(almost.len()));
            almost.extend(bytes);
            if let Ok(Some(head)) = parse(&almost) {
                prop_assert!(head.head_bytes <= almost.len().min(MAX_HEAD_BYTES));
                prop_assert!(head.body_bytes <= MAX_BODY_BYTES);
            }
        }
    }
}

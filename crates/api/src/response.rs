//! An answer, and its bytes.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: Vec<u8>,
    /// The methods of the field `Allow`, if it is told.
    pub allow: Option<String>,
}

impl Response {
    /// A document as JSON, with a line end, so that it is a text for people too.
    ///
    /// # Panics
    /// If `document` cannot be JSON: a map whose keys are no texts.
    pub fn json(status: u16, document: &impl Serialize) -> Response {
        let mut body = serde_json::to_vec_pretty(document).expect("documents have text keys");
        body.push(b'\n');
        Response { status, content_type: "application/json", body, allow: None }
    }

    /// A document as JSON, and all is well.
    pub fn ok(document: &impl Serialize) -> Response {
        Response::json(200, document)
    }

    /// A text of some type, and all is well.
    pub fn text(content_type: &'static str, text: String) -> Response {
        Response { status: 200, content_type, body: text.into_bytes(), allow: None }
    }

    /// The head's bytes; `since_epoch` is the time of day.
    pub(crate) fn head(&self, keep_alive: bool, since_epoch: Duration) -> Vec<u8> {
        let mut head = String::with_capacity(256);
        let _ = write!(
            head,
            "HTTP/1.1 {} {}\r\nDate: {}\r\nCache-Control: no-store\r\nContent-Length: {}\r\n",
            self.status,
            reason(self.status),
            http_date(since_epoch.as_secs()),
            self.body.len()
        );
        if !self.body.is_empty() {
            let _ = write!(head, "Content-Type: {}\r\n", self.content_type);
        }
        if let Some(allow) = &self.allow {
            let _ = write!(head, "Allow: {allow}\r\n");
        }
        head.push_str(if keep_alive { "\r\n" } else { "Connection: close\r\n\r\n" });
        head.into_bytes()
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        202 => "Accepted",
        204 => "No Content",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        422 => "Unprocessable Content",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        // The phrase may be empty (section 4).
        _ => "",
    }
}

/// A point of time as RFC 9110, section 5.6.7, writes it, from seconds since the epoch.
fn http_date(seconds: u64) -> String {
    const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Eras of 400 years, of 146,097 days; years begin in March, so that leap days end them.
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march_month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * march_month + 2) / 5 + 1;
    let month = (march_month + 2) % 12;
    let year = era * 400 + year + u64::from(month < 2);
    format!(
        "{}, {of_month:02} {} {year:04} {:02}:{:02}:{:02} GMT",
        WEEKDAYS[(days % 7) as usize],
        MONTHS[month as usize],
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_399, "Mon, 28 Feb 2000 23:59:59 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (1_735_689_599, "Tue, 31 Dec 2024 23:59:59 GMT"),
        ] {
            assert_eq!(http_date(seconds), text);
        }
    }

    #[test]
    fn heads() {
        let response = Response { allow: Some("GET".into()), ..Response::json(405, &7) };
        let head = String::from_utf8(response.head(false, Duration::ZERO)).unwrap();
        assert_eq!(
            head,
            "HTTP/1.1 405 Method Not Allowed\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
             Cache-Control: no-store\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\
             Allow: GET\r\nConnection: close\r\n\r\n"
        );
    }
}

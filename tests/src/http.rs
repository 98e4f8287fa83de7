//! Minimal HTTP client over a Unix socket or TCP: sends one request and reads until the end of the
//! stream.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::wire;

/// Longest wait for an answer. A safety net: answers come at once.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// An HTTP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Complete response head.
    pub head: String,
    /// Response body.
    pub body: String,
}

impl Answer {
    /// Body parsed as JSON.
    ///
    /// # Panics
    ///
    /// If the body is not JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status in {head:?}"));
        Self { status, head: head.to_owned(), body: body.to_owned() }
    }
}

/// Sends bytes and returns everything received until the peer closes its side. The peer may refuse
/// the bytes before it has read them all.
///
/// # Panics
///
/// If the response does not end.
pub fn exchange(mut stream: impl Read + Write, bytes: &[u8]) -> Vec<u8> {
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("after {} bytes: {error}", answer.len()),
    }
    answer
}

/// Connects to a Unix socket.
///
/// # Panics
///
/// If no server listens there.
pub fn unix(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket);
    let stream = stream.unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
    stream.set_read_timeout(Some(ANSWER_WAIT)).expect("the wait is not zero");
    stream
}

fn request(method: &str, path: &str) -> String {
    let length = if method == "POST" { "Content-Length: 0\r\n" } else { "" };
    format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{length}\r\n")
}

/// Sends a request over a Unix socket.
///
/// # Panics
///
/// If the response is not valid HTTP.
pub fn ask(socket: &Path, method: &str, path: &str) -> Answer {
    let answer = exchange(unix(socket), request(method, path).as_bytes());
    Answer::parse(&String::from_utf8_lossy(&answer))
}

/// Sends a request over TCP to this machine.
///
/// # Panics
///
/// If the response is not valid HTTP.
pub fn ask_port(port: u16, method: &str, path: &str) -> Answer {
    let answer = exchange(wire::connect(port), request(method, path).as_bytes());
    Answer::parse(&String::from_utf8_lossy(&answer))
}

/// Sends JSON over TCP to this machine.
///
/// # Panics
///
/// If the response is not valid HTTP.
pub fn post_port(port: u16, path: &str, body: &str) -> Answer {
    post_with(port, path, "", body)
}

/// As [`post_port`], with further header lines, each of which ends with a line break.
///
/// # Panics
///
/// If the response is not valid HTTP.
pub fn post_with(port: u16, path: &str, header: &str, body: &str) -> Answer {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: application/json\r\n\
         {header}Content-Length: {}\r\n\r\n",
        body.len()
    );
    let answer = exchange(wire::connect(port), (head + body).as_bytes());
    Answer::parse(&String::from_utf8_lossy(&answer))
}

/// Fetches an existing document.
///
/// # Panics
///
/// If the status is not 200.
#[track_caller]
pub fn get(socket: &Path, path: &str) -> Value {
    let answer = ask(socket, "GET", path);
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    answer.json()
}
